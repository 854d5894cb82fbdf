/*
 * The slots of a warp in shared memory. Every warp has its own and refills a slot as soon as it
 * has consumed it: no producer warp, no barrier between warps while pages stream. (Slots shared
 * by warps are wrong with bulk copies: a copy can complete after younger ones, and a waiting
 * warp would then pass a barrier one phase early.)
 */
#ifndef TQI_CUDA_ATTEND_RING_CUH
#define TQI_CUDA_ATTEND_RING_CUH

#include "attend/words.cuh"

namespace tqi {

/* The slots of a warp: a ring that is filled and consumed in order. */
template <int BYTES> struct Ring {
    uint32_t slots, barriers; /* addresses */
    uint32_t n, lane;
    uint32_t fill = 0, take = 0; /* next slot of either end */
    uint32_t phase = 0;
#if TQI_BULK_COPY
    uint64_t policy;
#endif

    TQI_INLINE Ring(uint8_t *shared, uint32_t warp_bytes, uint32_t warp, uint32_t warps,
                    uint32_t n_slots, uint32_t l)
        : n(n_slots), lane(l) {
        slots = shared_address(shared) + warp * warp_bytes;
        barriers = shared_address(shared) + warps * warp_bytes + warp * n * 8;
#if TQI_BULK_COPY
        policy = evict_first();
        if (lane < n)
            barrier_init(barriers + 8 * lane);
        asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
        __syncwarp();
#endif
    }

    /* Fills the next slot; NULL: nothing is left, the ring runs dry. */
    TQI_INLINE void request(const uint8_t *page) {
#if TQI_BULK_COPY
        if (page && lane == 0)
            bulk_copy(slots + fill * BYTES, page, BYTES, barriers + 8 * fill, policy);
#else
        for (uint32_t i = lane * 16; page && i < BYTES; i += 512)
            copy16(slots + fill * BYTES + i, page + i);
        asm volatile("cp.async.commit_group;" ::: "memory");
#endif
        fill = fill + 1 == n ? 0 : fill + 1;
    }

    /* The oldest page. */
    TQI_INLINE Slot wait() {
#if TQI_BULK_COPY
        barrier_wait(barriers + 8 * take, phase);
#else
        if (n == 1)
            asm volatile("cp.async.wait_group 0;" ::: "memory");
        else
            asm volatile("cp.async.wait_group 1;" ::: "memory");
        __syncwarp();
#endif
        return slot_at(slots + take * BYTES, lane);
    }

    /* The oldest page has been read: its slot takes another. */
    TQI_INLINE void replace(const uint8_t *page) {
        __syncwarp();
        request(page);
        if (++take == n) {
            take = 0;
            phase ^= 1;
        }
    }
};

/* Copies may follow what threads have stored to their slots. */
TQI_INLINE void allow_copies() {
#if TQI_BULK_COPY
    asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
#endif
}

} /* namespace tqi */

#endif
