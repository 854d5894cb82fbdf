/*
 * The slots of a warp in shared memory. Every warp has its own and refills a slot as soon as it
 * has consumed it: no producer warp, no barrier between warps while pages stream. (Slots shared
 * by warps are wrong with bulk copies: a copy can complete after younger ones, and a waiting
 * warp would then pass a barrier one phase early.)
 *
 * A page comes in two parts, keys with all gains and values, each refilled as soon as it has
 * been read: a slot is on its way while the other part is worked on. A slot holds what a warp
 * takes at a time, a page or two.
 */
#ifndef TQI_CUDA_ATTEND_RING_CUH
#define TQI_CUDA_ATTEND_RING_CUH

#include "attend/words.cuh"

namespace tqi {

/* Copies may follow what the thread has stored to slots, or has begun to load from them: neither a
 * barrier nor an arrival waits for loads that are under way, and a copy of what is in the L2 cache
 * can be faster. */
TQI_INLINE void allow_copies() {
#if TQI_BULK_COPY
    asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
#endif
}

/* Pages that a warp takes at a time; NULL: there is none, and none behind it. */
template <int PAGES> struct Turn {
    const uint8_t *page[PAGES];

    TQI_INLINE bool is_full() const {
        return page[PAGES - 1] != nullptr;
    }
};

/* The slots of a warp: a ring that is filled and consumed in order. L: the layout of a blob; SPLIT:
 * in two parts, else whole pages, as the part of keys. SLOTS: at most; of one it is known that it
 * is always at hand. */
template <class L, bool SPLIT, int PAGES, int SLOTS> struct Ring {
    static constexpr uint32_t SLOT = PAGES * L::bytes;
    uint32_t slots, barriers; /* addresses; two barriers a slot */
    uint32_t n, lane;
    uint32_t at = 0; /* the slot at hand */
    uint32_t phase = 0;
#if TQI_BULK_COPY
    uint64_t policy;
#endif

    TQI_INLINE Ring(uint8_t *shared, uint32_t warp_bytes, uint32_t warp, uint32_t warps,
                    uint32_t n_slots, uint32_t l)
        : n(SLOTS == 1 ? 1 : n_slots), lane(l) {
        if (SLOTS == 1) /* more have no registers to spare for it */
            warp = same_in_warp(warp);
        slots = shared_address(shared) + warp * warp_bytes;
        barriers = shared_address(shared) + warps * warp_bytes + warp * n * 16;
#if TQI_BULK_COPY
        policy = evict_first();
        if (SLOTS == 1)
            policy = (uint64_t)same_in_warp((uint32_t)(policy >> 32)) << 32 |
                     same_in_warp((uint32_t)policy);
        if (lane < 2 * n)
            barrier_init(barriers + 8 * lane);
        asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
        __syncwarp();
#endif
    }

    /* Both parts of the next slot, n times before anything is consumed. */
    TQI_INLINE void request(const Turn<PAGES> &turn) {
        request_keys(turn);
        if (SPLIT)
            request_values(turn);
        at = at + 1 == n ? 0 : at + 1;
    }

    /* The oldest pages, their keys and gains. */
    TQI_INLINE void wait_keys(Slot page[PAGES]) {
        wait(0);
#pragma unroll
        for (int i = 0; i < PAGES; i++)
            page[i] = slot_at(slots + at * SLOT + i * L::bytes, lane);
    }

    /* Their keys and gains have been read, allow_copies() stands behind that: their place takes
     * others'. */
    TQI_INLINE void refill_keys(const Turn<PAGES> &turn) {
        if (SPLIT) {
            __syncwarp();
            request_keys(turn);
        }
    }

    TQI_INLINE void wait_values() {
        if (SPLIT)
            wait(1);
    }

    /* Address of the bytes behind the last slot. */
    TQI_INLINE uint32_t behind_slots() const {
        return slots + n * SLOT;
    }

    /* All of it has been read, likewise. */
    TQI_INLINE void refill_values(const Turn<PAGES> &turn) {
        __syncwarp();
        if (SPLIT)
            request_values(turn);
        else
            request_keys(turn);
        if (++at == n) {
            at = 0;
            phase ^= 1;
        }
    }

  private:
    TQI_INLINE void request_keys(const Turn<PAGES> &turn) {
        constexpr int codes = SPLIT ? L::k_bytes : L::bytes,
                      gains = SPLIT ? L::bytes - L::k_gains : 0;
        request_part<0>(turn, 0, codes, gains);
    }

    TQI_INLINE void request_values(const Turn<PAGES> &turn) {
        request_part<1>(turn, L::k_bytes, L::v_bytes, 0);
    }

    /* Of every page `codes` bytes from `first` on, and `gains` at the end. */
    template <int PART>
    TQI_INLINE void request_part(const Turn<PAGES> &turn, int first, int codes, int gains) {
        const uint32_t to = slots + at * SLOT;
#if TQI_BULK_COPY
        const uint32_t barrier = barriers + 16 * at + 8 * PART;
        if (!elected() || !turn.page[0])
            return;
        expect_bytes(barrier, turn.is_full() ? PAGES * (codes + gains) : codes + gains);
#pragma unroll
        for (int i = 0; i < PAGES; i++) {
            const uint8_t *page = turn.page[i];
            if (i && !page)
                return;
            bulk_copy(to + i * L::bytes + first, page + first, codes, barrier, policy);
            if (gains)
                bulk_copy(to + i * L::bytes + L::k_gains, page + L::k_gains, gains, barrier,
                          policy);
        }
#else
#pragma unroll
        for (int i = 0; i < PAGES; i++) {
            copy_part(to + i * L::bytes, turn.page[i], first, codes);
            copy_part(to + i * L::bytes, turn.page[i], L::k_gains, gains);
        }
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

} /* namespace tqi */

#endif
