/*
 * Shared memory of a block of warpgroups, and what they leave of an item: pieces, each of a group
 * or joined over the groups of a block.
 */
#ifndef TQI_CUDA_ATTEND_GROUP_PIECES_CUH
#define TQI_CUDA_ATTEND_GROUP_PIECES_CUH

#include "attend/fast_job.h"
#include "attend/warpgroup.cuh"

namespace tqi {

/* ---- shared memory ----------------------------------------------------------------------------
 */

/* Bytes of a warpgroup's slots, which at the end hold its accumulators. */
template <class T> __host__ __device__ uint32_t group_slots_bytes(uint32_t slots) {
    uint32_t ring = slots * T::SLOT_BYTES, accumulators = T::HEADS * T::D * 4;
    return ring > accumulators ? ring : accumulators;
}

/* Slots, operands, states of the groups, barriers. */
template <class T> size_t group_shared(uint32_t groups, uint32_t asked) {
    const uint32_t slots = T::slots_of(asked);
    return (size_t)groups * (group_slots_bytes<T>(slots) + T::Room::bytes + T::HEADS * 8 +
                             slots * T::SLOT_BARRIERS * 8);
}

#if TQI_WGMMA

/* Barriers 1 to 4 are the groups'. */
enum { JOIN_BARRIER = 6, BLOCK_BARRIER = 7, PRODUCER_REGISTERS = 32 };

/* The parts of a block's shared memory. */
template <class T> struct GroupMemory {
    uint8_t *shared;
    uint32_t groups, slots;

    TQI_INLINE uint8_t *slots_of(uint32_t group) const {
        return shared + group * group_slots_bytes<T>(slots);
    }
    TQI_INLINE uint8_t *room_of(uint32_t group) const {
        return slots_of(groups) + group * T::Room::bytes;
    }
    TQI_INLINE float2 *states() const {
        return (float2 *)room_of(groups);
    }
    TQI_INLINE uint8_t *barriers_of(uint32_t group) const {
        return (uint8_t *)(states() + groups * T::HEADS) + group * slots * T::SLOT_BARRIERS * 8;
    }
};

/* ---- groups as workers ------------------------------------------------------------------------
 */

template <class T> TQI_INLINE void write_piece(const FastJob &job, uint32_t piece, T &t) {
    float one[T::NT];
    t.join_threads();
#pragma unroll
    for (int nt = 0; nt < T::NT; nt++) {
        one[nt] = 1;
        if (t.group.thread < 4)
            job.call.partial_ml[(uint64_t)piece * T::HEADS + nt * 4 + t.group.thread] =
                make_float2(t.max[nt], t.sum[nt]);
    }
    t.store(one, job.call.partial + (uint64_t)piece * T::HEADS * T::D);
}

/* ---- blocks as workers ------------------------------------------------------------------------
 */

/* All groups of the block that have pages; a producer is not among them. */
TQI_INLINE void sync_groups(const FastJob &job) {
    asm volatile("bar.sync %0,%1;" ::"n"((int)JOIN_BARRIER), "r"(job.warps * GROUP_THREADS)
                 : "memory");
}

/* The whole block: producers come to it from another place than groups. */
TQI_INLINE void sync_block() {
    asm volatile("bar.sync %0,%1;" ::"n"((int)BLOCK_BARRIER), "r"(blockDim.x) : "memory");
}

/* Factors that bring the groups' states to a joint one, which the first group writes. */
template <class T>
TQI_INLINE void joint_state(const FastJob &job, uint32_t piece, float2 *states, const T &t,
                            float factor[T::NT]) {
#pragma unroll
    for (int nt = 0; nt < T::NT; nt++)
        if (t.group.thread < 4)
            states[t.group.index * T::HEADS + nt * 4 + t.group.thread] =
                make_float2(t.max[nt], t.sum[nt]);
    sync_groups(job);
#pragma unroll
    for (int nt = 0; nt < T::NT; nt++) {
        uint32_t head = nt * 4 + t.group.lane % 4;
        float joint = TQI_NO_MAXIMUM, sum = 0;
        for (uint32_t w = 0; w < job.warps; w++)
            joint = fmaxf(joint, states[w * T::HEADS + head].x);
        for (uint32_t w = 0; w < job.warps; w++) {
            float2 v = states[w * T::HEADS + head];
            sum += v.y == 0 ? 0 : v.y * exp2_fast(v.x - joint);
        }
        factor[nt] = exp2_fast(t.max[nt] - joint);
        if (threadIdx.x < 4)
            job.call.partial_ml[(uint64_t)piece * T::HEADS + head] = make_float2(joint, sum);
    }
}

/* The groups' accumulators in their slots, added up. */
template <class T>
TQI_INLINE void sum_groups(const FastJob &job, uint32_t piece, const uint8_t *slots,
                           uint32_t group_bytes) {
    const uint32_t threads = job.warps * GROUP_THREADS;
    float4 *out = (float4 *)(job.call.partial + (uint64_t)piece * T::HEADS * T::D);
    for (uint32_t i = threadIdx.x; i < T::HEADS * T::D / 4; i += threads) {
        float4 a = ((const float4 *)slots)[i];
        for (uint32_t w = 1; w < job.warps; w++) {
            float4 b = ((const float4 *)(slots + w * group_bytes))[i];
            a.x += b.x;
            a.y += b.y;
            a.z += b.z;
            a.w += b.w;
        }
        out[i] = a;
    }
}

/* The same, called: the compiler then keeps nothing for what runs once while it goes over pages. */
template <class T>
__device__ __noinline__ void sum_groups_apart(const FastJob &job, uint32_t piece,
                                              const uint8_t *slots, uint32_t group_bytes) {
    sum_groups<T>(job, piece, slots, group_bytes);
}

/* Joins the states of the groups through their slots, which no copy is filling any more. APART:
 * where that spares the loop over pages spills. */
template <bool APART, class T>
TQI_INLINE void join_groups(const FastJob &job, uint32_t piece, const GroupMemory<T> &memory,
                            T &t) {
    float factor[T::NT];
    sync_groups(job); /* all groups have read their slots */
    t.join_threads();
    joint_state(job, piece, memory.states(), t, factor);
    t.store(factor, (float *)memory.slots_of(t.group.index));
    sync_groups(job);
    const uint32_t group_bytes = group_slots_bytes<T>(memory.slots);
    if constexpr (APART)
        sum_groups_apart<T>(job, piece, memory.shared, group_bytes);
    else
        sum_groups<T>(job, piece, memory.shared, group_bytes);
}

#endif /* TQI_WGMMA */

} /* namespace tqi */

#endif
