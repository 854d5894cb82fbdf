/* A warpgroup of sm_90a: its barrier, its page slots, and wgmma on e4m3. */
#ifndef TQI_CUDA_ATTEND_WARPGROUP_CUH
#define TQI_CUDA_ATTEND_WARPGROUP_CUH

#include "attend/ring.cuh"

namespace tqi {

/* Rings of slots, for the device. */
template <int BYTES> struct GroupRing;
template <class L, int PAGES, int SLOTS> struct TurnRing;

#if TQI_WGMMA

enum { GROUP_THREADS = 128, GROUP_WARPS = 4 };
/* Warps that look up an item's rows and its edges, at the same time. */
enum { ROWS_WARP = 1, EDGES_WARP = 2 };

struct Group {
    uint32_t index; /* in the block */
    uint32_t thread, warp, lane;

    TQI_INLINE void sync() const {
        asm volatile("bar.sync %0,128;" ::"r"(index + 1) : "memory");
    }
};

/* Registers of the warps of a group, from here on. */
template <int N> TQI_INLINE void keep_registers() {
    asm volatile("setmaxnreg.dec.sync.aligned.u32 %0;" ::"n"(N));
}
template <int N> TQI_INLINE void take_registers() {
    asm volatile("setmaxnreg.inc.sync.aligned.u32 %0;" ::"n"(N));
}

/* Asks for the pages of its group: in every group another, as these share a scheduler. */
TQI_INLINE bool is_fetcher(const Group &g) {
    return g.warp == g.index % GROUP_WARPS;
}

TQI_INLINE Group group_of_thread() {
    uint32_t thread = threadIdx.x % GROUP_THREADS;
    return Group{same_in_warp(threadIdx.x / GROUP_THREADS), thread, same_in_warp(thread / 32),
                 thread % 32};
}

/* A barrier at which the warps of a group arrive. */
TQI_INLINE void init_warps_barrier(uint32_t barrier) {
    barrier_init_count(barrier, GROUP_WARPS * WARP_ARRIVALS);
}

/* What the warp's lanes have written before is seen by whoever waits. Loads may still be under way:
 * what they are from can be written to if a fence stands in between. */
TQI_INLINE void arrive_of_warp(uint32_t barrier, uint32_t lane) {
    __syncwarp();
    if (lane < WARP_ARRIVALS)
        barrier_arrive(barrier);
}

/* ring.cuh for a warpgroup, whose warps are never more than a page apart. One of them asks for
 * pages. */
template <int BYTES> struct GroupRing {
    uint32_t slots, barriers, n;
    uint32_t fill = 0, take = 0, phase = 0;
    uint64_t policy;

    TQI_INLINE GroupRing(uint32_t first_slot, uint32_t first_barrier, uint32_t n_slots)
        : slots(first_slot), barriers(first_barrier), n(n_slots), policy(evict_first()) {}

    /* By the group, once. */
    TQI_INLINE void init(const Group &g) const {
        if (g.thread < n)
            barrier_init(barriers + 8 * g.thread);
        asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
        g.sync();
    }

    /* By one warp. */
    TQI_INLINE void request(const Group &g, const uint8_t *page) {
        if (page && g.lane == 0) {
            expect_bytes(barriers + 8 * fill, BYTES);
            bulk_copy(slots + fill * BYTES, page, BYTES, barriers + 8 * fill, policy);
        }
        fill = fill + 1 == n ? 0 : fill + 1;
    }

    /* The oldest page that has not been taken. */
    TQI_INLINE uint32_t take_page() {
        barrier_wait(barriers + 8 * take, phase);
        uint32_t slot = slots + take * BYTES;
        if (++take == n) {
            take = 0;
            phase ^= 1;
        }
        return slot;
    }

    /* For the last page that was taken: does not block. */
    TQI_INLINE void wait_again() const {
        uint32_t last = (take ? take : n) - 1;
        barrier_wait(barriers + 8 * last, take ? phase : phase ^ 1);
    }
};

/* The same with PAGES pages of layout L a slot, which a thread of the group or another warp asks
 * for as soon as they have been read: where there is one slot in parts, keys with all gains, then
 * the values of two pages at a time. Two barriers a part: it is there, and all warps have read it.
 */
template <class L, int PAGES, int SLOTS> struct TurnRing {
    static constexpr bool APART = SLOTS == 1;
    static constexpr int N = SLOTS, PARTS = APART ? 1 + PAGES / 2 : 1;
    static constexpr uint32_t GAINS = L::bytes - L::k_gains;
    uint32_t slots, barriers;
    uint32_t take = 0, phase = 0; /* of whoever goes around: takes pages, or asks for them */

    TQI_INLINE TurnRing(uint32_t first_slot, uint32_t first_barrier, uint32_t)
        : slots(first_slot), barriers(first_barrier) {}

    /* part: 0 keys, 1 + c values of pages 2 c and 2 c + 1. */
    TQI_INLINE uint32_t there(int part) const {
        return barriers + 8 * (part * SLOTS + (SLOTS == 1 ? 0 : take));
    }
    TQI_INLINE uint32_t was_read(int part) const {
        return there(PARTS + part);
    }
    TQI_INLINE uint32_t slot() const {
        return slots + (SLOTS == 1 ? 0 : take * PAGES * L::bytes);
    }

    TQI_INLINE void init(const Group &g) const {
        if (g.thread < PARTS * SLOTS) {
            barrier_init(barriers + 8 * g.thread);
            init_warps_barrier(barriers + 8 * (PARTS * SLOTS + g.thread));
        }
        asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
        g.sync();
    }

    /* By one thread, or by a WARP, one lane of which asks: the pages of a turn, every part as soon
     * as its place is free. */
    template <bool WARP, class P> TQI_INLINE void ask(const P &turn, uint32_t page_bytes) {
        const uint64_t policy = evict_first();
        wait_read<WARP>(0);
        if constexpr (APART) {
            ask_parts<WARP>(turn, page_bytes, policy);
        } else if (asks<WARP>()) {
            expect_bytes(there(0), turn.n * L::bytes);
#pragma unroll
            for (int i = 0; i < PAGES; i++)
                copy(turn, i, page_bytes, 0, L::bytes, 0, policy);
        }
        step();
    }

    /* One lane: the compiler then knows that the operands of copies are one lane's. */
    template <bool WARP> TQI_INLINE static bool asks() {
        return !WARP || elected();
    }

    /* A warp that has nothing else to do waits long. */
    template <bool WARP> TQI_INLINE void wait_read(int part) const {
        if constexpr (WARP)
            barrier_wait_long(was_read(part), phase ^ 1);
        else
            barrier_wait(was_read(part), phase ^ 1);
    }

    template <bool WARP, class P>
    TQI_INLINE void ask_parts(const P &turn, uint32_t page_bytes, uint64_t policy) const {
        if (asks<WARP>()) {
            expect_bytes(there(0), turn.n * (L::k_bytes + GAINS));
#pragma unroll
            for (int i = 0; i < PAGES; i++) {
                copy(turn, i, page_bytes, 0, L::k_bytes, 0, policy);
                copy(turn, i, page_bytes, L::k_gains, GAINS, 0, policy);
            }
        }
#pragma unroll
        for (int c = 0; c < PAGES / 2; c++) {
            wait_read<WARP>(1 + c);
            if (!asks<WARP>())
                continue;
            const uint32_t n = turn.n > 2 * c ? min(turn.n - 2 * c, 2u) : 0;
            expect_bytes(there(1 + c), n * L::v_bytes);
#pragma unroll
            for (int i = 2 * c; i < 2 * c + 2; i++)
                copy(turn, i, page_bytes, L::k_bytes, L::v_bytes, 1 + c, policy);
        }
    }

    /* Of page i, unless the turn has fewer. */
    template <class P>
    TQI_INLINE void copy(const P &turn, int i, uint32_t page_bytes, uint32_t at, uint32_t bytes,
                         int part, uint64_t policy) const {
        if (i < turn.n)
            bulk_copy(slot() + i * L::bytes + at,
                      turn.base + (uint64_t)turn.id[i] * page_bytes + at, bytes, there(part),
                      policy);
    }

    TQI_INLINE void wait_keys() const {
        barrier_wait(there(0), phase);
    }
    /* Parity of the turn. */
    TQI_INLINE uint32_t turn() const {
        return SLOTS == 1 ? phase : take % 2 ^ (SLOTS % 2 ? phase : 0);
    }
    /* Of pages 2 c and 2 c + 1. */
    TQI_INLINE void wait_values(int c) const {
        if (APART)
            barrier_wait(there(1 + c), phase);
    }
    /* By all warps, when what they read is in registers: loads may not only have begun. */
    TQI_INLINE void keys_read(uint32_t lane) const {
        if (APART)
            arrive_of_warp(was_read(0), lane);
    }
    TQI_INLINE void values_read(int c, uint32_t lane) const {
        if (APART || c == PAGES / 2 - 1)
            arrive_of_warp(was_read(APART ? 1 + c : 0), lane);
    }
    TQI_INLINE void step() {
        if (SLOTS == 1 || ++take == SLOTS) {
            take = 0;
            phase ^= 1;
        }
    }

    /* For the last pages that were taken: does not block. */
    TQI_INLINE void wait_again() const {
        uint32_t last = (take ? take : SLOTS) - 1;
        barrier_wait(barriers + 8 * last, take ? phase : phase ^ 1);
    }
};

/* Turns of a group that has taken n times pages where another one takes some `most` times, each
 * with that many barriers. racecheck loses track of a __syncthreads behind barriers that warpgroups
 * have passed a different number of times: so it gets a build where they are the same. */
template <class R>
TQI_INLINE void idle_turns(const Group &g, const R &ring, uint32_t n, uint32_t most, int of_turn) {
#ifdef TQI_RACECHECK
    for (; n < most; n++) {
        ring.wait_again();
        for (int i = 0; i < of_turn; i++)
            g.sync();
    }
#endif
}

/* ---- wgmma ---------------------------------------------------------------------------------- */

/* B in shared memory without swizzle: core matrices of 8 columns x 16 bytes, those next to each
 * other in k 128 bytes apart, in n `block_bytes`. */
TQI_INLINE uint64_t operand_b(uint32_t address, uint32_t block_bytes) {
    return (uint64_t)(address >> 4 & 0x3fff) | (uint64_t)(128 >> 4) << 16 |
           (uint64_t)(block_bytes >> 4) << 32;
}

/* D (64 x N) = A (64 x 32, registers) B (32 x N), added to D unless it begins a sum. */
template <int N> TQI_INLINE void wgmma_e4m3(float *d, const uint32_t a[4], uint64_t b, bool adds);

#define TQI_WGMMA_HEAD(n) "{.reg .pred p;\nsetp.ne.u32 p,%" #n ",0;\nwgmma.mma_async.sync.aligned."

template <> TQI_INLINE void wgmma_e4m3<8>(float *d, const uint32_t a[4], uint64_t b, bool adds) {
    asm volatile(TQI_WGMMA_HEAD(9) "m64n8k32.f32.e4m3.e4m3 {%0,%1,%2,%3},{%4,%5,%6,%7},%8,p,1,1;\n}"
                 : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
                 : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b), "r"((uint32_t)adds));
}

#define TQI_D8(i)                                                                               \
    "+f"(d[i]), "+f"(d[i + 1]), "+f"(d[i + 2]), "+f"(d[i + 3]), "+f"(d[i + 4]), "+f"(d[i + 5]), \
        "+f"(d[i + 6]), "+f"(d[i + 7])

template <> TQI_INLINE void wgmma_e4m3<16>(float *d, const uint32_t a[4], uint64_t b, bool adds) {
    asm volatile(TQI_WGMMA_HEAD(13) "m64n16k32.f32.e4m3.e4m3 {%0,%1,%2,%3,%4,%5,%6,%7},"
                                    "{%8,%9,%10,%11},%12,p,1,1;\n}"
                 : TQI_D8(0)
                 : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b), "r"((uint32_t)adds));
}

template <> TQI_INLINE void wgmma_e4m3<24>(float *d, const uint32_t a[4], uint64_t b, bool adds) {
    asm volatile(TQI_WGMMA_HEAD(17) "m64n24k32.f32.e4m3.e4m3 {%0,%1,%2,%3,%4,%5,%6,%7,%8,%9,%10,"
                                    "%11},{%12,%13,%14,%15},%16,p,1,1;\n}"
                 : TQI_D8(0), "+f"(d[8]), "+f"(d[9]), "+f"(d[10]), "+f"(d[11])
                 : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b), "r"((uint32_t)adds));
}

template <> TQI_INLINE void wgmma_e4m3<32>(float *d, const uint32_t a[4], uint64_t b, bool adds) {
    asm volatile(TQI_WGMMA_HEAD(21) "m64n32k32.f32.e4m3.e4m3 {%0,%1,%2,%3,%4,%5,%6,%7,%8,%9,%10,"
                                    "%11,%12,%13,%14,%15},{%16,%17,%18,%19},%20,p,1,1;\n}"
                 : TQI_D8(0), TQI_D8(8)
                 : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b), "r"((uint32_t)adds));
}

template <> TQI_INLINE void wgmma_e4m3<48>(float *d, const uint32_t a[4], uint64_t b, bool adds) {
    asm volatile(TQI_WGMMA_HEAD(29) "m64n48k32.f32.e4m3.e4m3 {%0,%1,%2,%3,%4,%5,%6,%7,%8,%9,%10,"
                                    "%11,%12,%13,%14,%15,%16,%17,%18,%19,%20,%21,%22,%23},"
                                    "{%24,%25,%26,%27},%28,p,1,1;\n}"
                 : TQI_D8(0), TQI_D8(8), TQI_D8(16)
                 : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b), "r"((uint32_t)adds));
}

#undef TQI_D8
#undef TQI_WGMMA_HEAD

/* D (64 x N) = A (64 x 128 signed bytes, registers) B (128 x N, signed or not), added to D unless
 * FIRST. One statement, since nothing may be moved to the registers between the products. */
template <int N, bool SIGNED, bool FIRST>
TQI_INLINE void wgmma_bytes(int *d, const uint32_t (*a)[4], uint64_t first, uint64_t step) {
    static_assert(N == 16 || N == 32, "columns");
    const uint64_t at[4] = {first, first + step, first + 2 * step, first + 3 * step};
#define TQI_D4(c, j) c(d[j]), c(d[j + 1]), c(d[j + 2]), c(d[j + 3])
#define TQI_A4(i) "r"(a[i][0]), "r"(a[i][1]), "r"(a[i][2]), "r"(a[i][3])
#define TQI_STEP(shape, d, type, a, b, adds) \
    "wgmma.mma_async.sync.aligned." shape ".s32.s8." type " " d "," a ",%" b "," adds ";\n"
/* d: operands of the sums, which come first; a and b: those behind. */
#define TQI_STEPS(shape, d, a0, a1, a2, a3, b0, b1, b2, b3, type, adds, sums)                      \
    asm volatile("wgmma.fence.sync.aligned;\n" TQI_STEP(shape, d, type, a0, b0, adds)              \
                     TQI_STEP(shape, d, type, a1, b1, "1") TQI_STEP(shape, d, type, a2, b2, "1")   \
                         TQI_STEP(shape, d, type, a3, b3, "1") "wgmma.commit_group.sync.aligned;"  \
                 : sums                                                                            \
                 : TQI_A4(0), TQI_A4(1), TQI_A4(2), TQI_A4(3), "l"(at[0]), "l"(at[1]), "l"(at[2]), \
                   "l"(at[3]))
#define TQI_SUMS16(c) TQI_D4(c, 0), TQI_D4(c, 4)
#define TQI_SUMS32(c) TQI_SUMS16(c), TQI_D4(c, 8), TQI_D4(c, 12)
#define TQI_PRODUCT(type, adds, c)                                                                 \
    if constexpr (N == 16)                                                                         \
        TQI_STEPS("m64n16k32", "{%0,%1,%2,%3,%4,%5,%6,%7}", "{%8,%9,%10,%11}",                     \
                  "{%12,%13,%14,%15}", "{%16,%17,%18,%19}", "{%20,%21,%22,%23}", "24", "25", "26", \
                  "27", type, adds, TQI_SUMS16(c));                                                \
    else                                                                                           \
        TQI_STEPS("m64n32k32", "{%0,%1,%2,%3,%4,%5,%6,%7,%8,%9,%10,%11,%12,%13,%14,%15}",          \
                  "{%16,%17,%18,%19}", "{%20,%21,%22,%23}", "{%24,%25,%26,%27}",                   \
                  "{%28,%29,%30,%31}", "32", "33", "34", "35", type, adds, TQI_SUMS32(c))
#define TQI_SET "=&r"
#define TQI_ADDED "+r"
    if constexpr (SIGNED && FIRST) {
        TQI_PRODUCT("s8", "0", TQI_SET);
    } else if constexpr (SIGNED) {
        TQI_PRODUCT("s8", "1", TQI_ADDED);
    } else if constexpr (FIRST) {
        TQI_PRODUCT("u8", "0", TQI_SET);
    } else {
        TQI_PRODUCT("u8", "1", TQI_ADDED);
    }
#undef TQI_ADDED
#undef TQI_SET
#undef TQI_PRODUCT
#undef TQI_SUMS32
#undef TQI_SUMS16
#undef TQI_STEPS
#undef TQI_STEP
#undef TQI_A4
#undef TQI_D4
}

/* Registers of N numbers are what they are here: nothing that makes or takes them moves past. */
template <int N, class T> TQI_INLINE void pin(T *x) {
    static_assert(N % 8 == 0, "");
#pragma unroll
    for (int i = 0; i < N; i += 8)
        asm volatile(""
                     : "+r"(x[i]), "+r"(x[i + 1]), "+r"(x[i + 2]), "+r"(x[i + 3]), "+r"(x[i + 4]),
                       "+r"(x[i + 5]), "+r"(x[i + 6]), "+r"(x[i + 7]));
}

/* Matrices of 8 x 8 16-bit elements, transposed, to rows of 16 bytes: lane l has the address of row
 * l % 8 of matrix l / 8. */
TQI_INLINE void store_transposed(uint32_t at, const uint32_t w[4]) {
    asm volatile("stmatrix.sync.aligned.m8n8.x4.trans.shared.b16 [%0],{%1,%2,%3,%4};" ::"r"(at),
                 "r"(w[0]), "r"(w[1]), "r"(w[2]), "r"(w[3])
                 : "memory");
}

#endif /* TQI_WGMMA */

} /* namespace tqi */

#endif
