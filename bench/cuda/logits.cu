#include "logits.h"

#include <curand_kernel.h>

#include "attend/prepare_row.cuh"
#include "attend/ring.cuh"
#include "attend/tile.cuh"

namespace {

using namespace tqi;

enum { WARPS = 12, SLOTS = 2, MAX_ROWS = 8 };

/* Offsets of the room. */
struct Room {
    uint32_t *flips, *fragments;
    float *q_scale, *shift;
    int32_t *q_half;
    size_t bytes;
};

Room room_of(const logits *l) {
    size_t rows = (size_t)l->n_seqs * l->n_heads * MAX_ROWS;
    uint8_t *at = (uint8_t *)l->room;
    Room r;
    r.flips = (uint32_t *)at;
    r.fragments = r.flips + LOGIT_DIM;
    r.q_scale = (float *)(r.fragments + rows * LOGIT_DIM);
    r.shift = r.q_scale + rows;
    r.q_half = (int32_t *)(r.shift + rows);
    r.bytes = (size_t)((uint8_t *)(r.q_half + rows) - at);
    return r;
}

/* Four signs a thread: FORMAT.md, 2.1. */
__global__ void make_flips(uint32_t *flips, uint64_t seed) {
    curandStatePhilox4_32_10_t state;
    curand_init(seed, 0, threadIdx.x * 4, &state);
    for (uint32_t i = 0; i < 4; i++)
        flips[threadIdx.x * 4 + i] = curand(&state) & 0x80000000u;
}

/* A warp per query row, as prepare.cu does it. */
__global__ void prepare(const __grid_constant__ FastJob job, uint32_t n_rows) {
    uint32_t index = blockIdx.x * (blockDim.x / 32) + threadIdx.x / 32, lane = threadIdx.x % 32;
    if (index >= n_rows)
        return;
    const AttendJob &call = job.call;
    uint32_t item = index / call.group; /* sequence and kv head: query heads follow each other */
    uint32_t per_seq = call.n_heads * call.group;
    RowPlace place = {index / per_seq, index % per_seq, item % call.n_heads, item,
                      index % call.group};
    RegisterRow<32, 4> row(lane, LOGIT_DIM, nullptr);
    row.prefetch(call.k);
    (void)load_row(call, place, true, row);
    row.rotate_row(call.k);
    to_operands(job, place, true, row);
}

/* The queries of an item, rows that it lacks standing for its last. */
template <class T>
__device__ void load_rows(const FastJob &job, uint32_t item, uint32_t lane, T &t) {
    const uint32_t last = job.call.group - 1;
#pragma unroll
    for (int nt = 0; nt < T::NT; nt++) {
        uint32_t row = min(nt * 4 + lane / 8, last);
        const uint32_t *from = job.fragments +
                               ((uint64_t)item * T::NT + row / 4) * T::Q_WORDS * 32 +
                               8 * (row % 4) + lane % 8;
#pragma unroll
        for (int w = 0; w < T::Q_WORDS; w++)
            t.q[nt][w] = from[w * 32];
        row = item * T::HEADS + min(nt * 4 + lane % 4, last);
        t.q_scale[nt] = job.q_scale[row] / TQI_LOG2E;
        t.set_half(nt, job.q_half[row]);
    }
}

/* A warp takes the pages of one sequence and kv head that are its own, `stride` apart. */
template <int NT>
__global__ void __launch_bounds__(WARPS * 32, 1)
    scores(const __grid_constant__ FastJob job, const __grid_constant__ logits l) {
#if TQI_BULK_COPY
    using T = Tile<TQ_FORMAT_LM4, TQ_FORMAT_LM4, NT, LOGIT_DIM>;
    constexpr uint32_t slot_bytes = T::Layout::k_gains + LOGIT_TOKENS * 2; /* V stays empty */
    extern __shared__ __align__(128) uint8_t shared[];
    const uint32_t lane = threadIdx.x % 32, warp = threadIdx.x / 32;
    const uint32_t slots = shared_address(shared) + warp * SLOTS * slot_bytes;
    const uint32_t barriers =
        shared_address(shared) + WARPS * SLOTS * slot_bytes + warp * SLOTS * 8;
    const uint64_t policy = evict_first();
    if (lane < SLOTS)
        barrier_init(barriers + 8 * lane);
    asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
    __syncwarp();
    const uint64_t n = (uint64_t)l.n_seqs * l.n_heads * l.n_pages, workers = gridDim.x * WARPS;
    const uint64_t worker = blockIdx.x * WARPS + warp;
    const uint64_t first = n * worker / workers, end = n * (worker + 1) / workers;
    auto request =
        [&](uint64_t
                i) { /* work i: page i % n_pages of an item */
                     uint64_t item = i / l.n_pages, page = i % l.n_pages, seq = item / l.n_heads;
                     const uint8_t *blob =
                         l.blobs +
                         ((seq * l.n_pages + page) * l.n_heads + item % l.n_heads) * l.blob_bytes;
                     uint32_t slot = i % SLOTS, to = slots + slot * slot_bytes,
                              barrier = barriers + 8 * slot;
                     if (i >= end || lane)
                         return;
                     asm volatile(
                         "mbarrier.arrive.expect_tx.shared::cta.b64 _,[%0],%1;" ::"r"(barrier),
                         "r"((uint32_t)LOGIT_KEY_BYTES)
                         : "memory");
                     const uint32_t at[2] = {0, T::Layout::k_gains},
                                    bytes[2] = {T::Layout::k_bytes, 128};
                     for (int k = 0; k < 2; k++)
                         asm volatile(
                             "cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes"
                             ".L2::cache_hint [%0],[%1],%2,[%3],%4;" ::"r"(to + at[k]),
                             "l"(blob + at[k]), "r"(bytes[k]), "r"(barrier), "l"(policy)
                             : "memory");
        };
    T t;
    t.setup(job);
    uint64_t loaded = ~0ull;
    uint32_t phases = 0;
    for (uint64_t i = first; i < first + SLOTS; i++)
        request(i);
    for (uint64_t i = first; i < end; i++) {
        uint64_t item = i / l.n_pages;
        uint32_t slot = i % SLOTS;
        if (item != loaded)
            load_rows(job, (uint32_t)(loaded = item), lane, t);
        barrier_wait(barriers + 8 * slot, phases >> slot & 1);
        phases ^= 1u << slot;
        Slot s = slot_at(slots + slot * slot_bytes, lane);
#pragma unroll
        for (int r = 0; r < GROUPS; r++) {
            float score[NT][4];
            t.score_int(s, r, score, [] {});
#pragma unroll
            for (int nt = 0; nt < NT; nt++) {
                uint32_t row = nt * 4 + lane % 4;
                float *to = l.out + (item * l.group + row) * l.n_pages * LOGIT_TOKENS +
                            i % l.n_pages * LOGIT_TOKENS + 32 * r + lane / 4 * 4;
                float u = t.q_scale[nt];
                if (row < l.group)
                    __stcs((float4 *)to, make_float4(score[nt][0] * u, score[nt][1] * u,
                                                     score[nt][2] * u, score[nt][3] * u));
            }
        }
        __syncwarp();
        request(i + SLOTS);
    }
#endif
}

FastJob job_of(const logits *l) {
    const Room room = room_of(l);
    const uint8_t levels[8] = {5, 16, 27, 39, 52, 67, 86, 114}; /* FORMAT.md, 2.2 */
    FastJob job = {};
    job.call.k.layout.dim = LOGIT_DIM;
    job.call.k.format = TQ_FORMAT_LM4;
    job.call.k.rotates = 1;
    job.call.k.order = 1;
    job.call.k.flips = room.flips;
    job.call.q = RowsIn{l->q, (int64_t)l->n_heads * l->group * LOGIT_DIM, LOGIT_DIM, TQ_BF16};
    job.call.aligned = 1;
    job.call.n_heads = l->n_heads;
    job.call.group = l->group;
    job.call.item_rows = l->group <= 4 ? 4 : 8;
    job.call.scale = 1 / sqrt((double)LOGIT_DIM);
    job.call.shift = room.shift;
    job.k_step = 0.0238895761f / sqrtf(LOGIT_DIM);
    job.power[0] = 16;
    for (int i = 0; i < 8; i++)
        job.table[0][i / 4] |= (uint32_t)levels[i] << 8 * (i % 4);
    job.fragments = room.fragments;
    job.q_scale = room.q_scale;
    job.q_half = room.q_half;
    return job;
}

template <int NT> cudaError_t run(const logits *l, const FastJob &job, cudaStream_t stream) {
    using T = Tile<TQ_FORMAT_LM4, TQ_FORMAT_LM4, NT, LOGIT_DIM>;
    const int shared = WARPS * SLOTS * (T::Layout::k_gains + LOGIT_TOKENS * 2 + 8);
    int sms = 0;
    cudaDeviceGetAttribute(&sms, cudaDevAttrMultiProcessorCount, 0);
    cudaError_t error =
        cudaFuncSetAttribute(scores<NT>, cudaFuncAttributeMaxDynamicSharedMemorySize, shared);
    if (error != cudaSuccess)
        return error;
    scores<NT><<<sms, WARPS * 32, shared, stream>>>(job, *l);
    return cudaGetLastError();
}

} /* namespace */

size_t logits_room(const logits *l) {
    logits nowhere = *l;
    nowhere.room = nullptr;
    return room_of(&nowhere).bytes;
}

cudaError_t logits_prepare(const logits *l, cudaStream_t stream) {
    make_flips<<<1, LOGIT_DIM / 4, 0, stream>>>(room_of(l).flips, l->seed);
    return cudaGetLastError();
}

cudaError_t logits_run(const logits *l, cudaStream_t stream) {
    const FastJob job = job_of(l);
    uint32_t rows = l->n_seqs * l->n_heads * l->group;
    prepare<<<(rows + 7) / 8, 256, 0, stream>>>(job, rows);
    cudaError_t error = cudaGetLastError();
    if (error != cudaSuccess)
        return error;
    return l->group <= 4 ? run<1>(l, job, stream) : run<2>(l, job, stream);
}
