/*
 * The slots of a warp in shared memory. Every warp has its own and refills a slot as soon as it
 * has consumed it: no producer warp, no barrier between warps while pages stream. (Slots shared
 * by warps are wrong with bulk copies: a copy can complete after younger ones, and a waiting
 * warp would then pass a barrier one phase early.)
 *
 * A page comes in two parts, keys with all gains and values, each refilled as soon as it has
 * been read: a slot is on its way while the other part is worked on.
 */
#ifndef TQI_CUDA_ATTEND_RING_CUH
#define TQI_CUDA_ATTEND_RING_CUH

#include "attend/words.cuh"

namespace tqi {

/* The slots of a warp: a ring that is filled and consumed in order. L: the layout of a blob; SPLIT:
 * in two parts, else whole pages, as the part of keys. */
template <class L, bool SPLIT> struct Ring {
    uint32_t slots, barriers; /* addresses; two barriers a slot */
    uint32_t n, lane;
    uint32_t at = 0; /* the slot at hand */
    uint32_t phase = 0;
#if TQI_BULK_COPY
    uint64_t policy;
#endif

    TQI_INLINE Ring(uint8_t *shared, uint32_t warp_bytes, uint32_t warp, uint32_t warps,
                    uint32_t n_slots, uint32_t l)
        : n(n_slots), lane(l) {
        slots = shared_address(shared) + warp * warp_bytes;
        barriers = shared_address(shared) + warps * warp_bytes + warp * n * 16;
#if TQI_BULK_COPY
        policy = evict_first();
        if (lane < 2 * n)
            barrier_init(barriers + 8 * lane);
        asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
        __syncwarp();
#endif
    }

    /* Both parts of the next slot, n times before anything is consumed; NULL: nothing is left. */
    TQI_INLINE void request(const uint8_t *page) {
        request_keys(page);
        if (SPLIT)
            request_values(page);
        at = at + 1 == n ? 0 : at + 1;
    }

    /* The oldest page, its keys and gains. */
    TQI_INLINE Slot wait_keys() {
        wait(0);
        return slot_at(slots + at * L::bytes, lane);
    }

    /* Its keys and gains have been read: their place takes another page's. */
    TQI_INLINE void refill_keys(const uint8_t *page) {
        if (SPLIT) {
            __syncwarp();
            request_keys(page);
        }
    }

    TQI_INLINE void wait_values() {
        if (SPLIT)
            wait(1);
    }

    /* Address of the bytes behind the last slot. */
    TQI_INLINE uint32_t behind_slots() const {
        return slots + n * L::bytes;
    }

    /* All of it has been read. */
    TQI_INLINE void refill_values(const uint8_t *page) {
        __syncwarp();
        if (SPLIT)
            request_values(page);
        else
            request_keys(page);
        if (++at == n) {
            at = 0;
            phase ^= 1;
        }
    }

  private:
    TQI_INLINE void request_keys(const uint8_t *page) {
        constexpr int codes = SPLIT ? L::k_bytes : L::bytes,
                      gains = SPLIT ? L::bytes - L::k_gains : 0;
        const uint32_t to = slots + at * L::bytes;
#if TQI_BULK_COPY
        const uint32_t barrier = barriers + 16 * at;
        if (elected() && page) {
            expect_bytes(barrier, codes + gains);
            bulk_copy(to, page, codes, barrier, policy);
            if (gains)
                bulk_copy(to + L::k_gains, page + L::k_gains, gains, barrier, policy);
        }
#else
        copy_part(to, page, 0, codes);
        copy_part(to, page, L::k_gains, gains);
        asm volatile("cp.async.commit_group;" ::: "memory");
#endif
    }

    TQI_INLINE void request_values(const uint8_t *page) {
        const uint32_t to = slots + at * L::bytes;
#if TQI_BULK_COPY
        const uint32_t barrier = barriers + 16 * at + 8;
        if (elected() && page) {
            expect_bytes(barrier, L::v_bytes);
            bulk_copy(to + L::k_bytes, page + L::k_bytes, L::v_bytes, barrier, policy);
        }
#else
        copy_part(to, page, L::k_bytes, L::v_bytes);
        asm volatile("cp.async.commit_group;" ::: "memory");
#endif
    }

#if !TQI_BULK_COPY
    TQI_INLINE void copy_part(uint32_t to, const uint8_t *page, uint32_t first, uint32_t bytes) {
        for (uint32_t i = lane * 16; page && i < bytes; i += 512)
            copy16(to + first + i, page + first + i);
    }
#endif

    /* Of the parts that are under way, n or 2 n, the oldest. */
    TQI_INLINE void wait(uint32_t part) {
#if TQI_BULK_COPY
        barrier_wait(barriers + 16 * at + 8 * part, phase);
#else
        if (n == 1 && !SPLIT)
            asm volatile("cp.async.wait_group 0;" ::: "memory");
        else if (n == 1 || !SPLIT)
            asm volatile("cp.async.wait_group 1;" ::: "memory");
        else
            asm volatile("cp.async.wait_group 3;" ::: "memory");
        __syncwarp();
#endif
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
