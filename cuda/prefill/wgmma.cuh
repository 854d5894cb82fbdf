/*
 * Matrix products of a warpgroup (128 threads) on Hopper: A from registers, B from shared memory,
 * sums in registers. B is stored with k contiguous in rows of 128 bytes, eight rows to a block of
 * 1024 bytes, and the 16-byte pieces of a row are permuted by XOR with the row's number modulo 8.
 */
#ifndef TQI_CUDA_PREFILL_WGMMA_CUH
#define TQI_CUDA_PREFILL_WGMMA_CUH

#include "attend/instructions.cuh"

namespace tqi {

#if TQI_WGMMA

/* B at a shared address that is a multiple of 1024, or 32 bytes (16 of k) further per step. */
TQI_INLINE uint64_t operand_at(uint32_t address) {
    const uint64_t rows_of_128_bytes = 1ull << 62, next_8_rows = 1024 / 16;
    return rows_of_128_bytes | next_8_rows << 32 | 1ull << 16 | (address & 0x3ffffu) >> 4;
}

/* Sums that a product writes are not to move across what orders the product. */
template <int N> TQI_INLINE void pin(float (&d)[N]) {
#pragma unroll
    for (int i = 0; i < N; i++)
        asm volatile("" : "+f"(d[i])::"memory");
}

template <int N> TQI_INLINE void pin(uint32_t (&a)[N]) {
#pragma unroll
    for (int i = 0; i < N; i++)
        asm volatile("" : "+r"(a[i])::"memory");
}

/* clang-format off */
#define TQI_F8(d, i)                                                                            \
    "+f"((d)[i]), "+f"((d)[i + 1]), "+f"((d)[i + 2]), "+f"((d)[i + 3]), "+f"((d)[i + 4]),       \
    "+f"((d)[i + 5]), "+f"((d)[i + 6]), "+f"((d)[i + 7])
#define TQI_F32(d, i) TQI_F8(d, i), TQI_F8(d, i + 8), TQI_F8(d, i + 16), TQI_F8(d, i + 24)
#define TQI_NAMES_32                                                                            \
    "%0,%1,%2,%3,%4,%5,%6,%7,%8,%9,%10,%11,%12,%13,%14,%15,"                                    \
    "%16,%17,%18,%19,%20,%21,%22,%23,%24,%25,%26,%27,%28,%29,%30,%31"
#define TQI_NAMES_64                                                                            \
    TQI_NAMES_32 ",%32,%33,%34,%35,%36,%37,%38,%39,%40,%41,%42,%43,%44,%45,%46,%47,"            \
    "%48,%49,%50,%51,%52,%53,%54,%55,%56,%57,%58,%59,%60,%61,%62,%63"
#define TQI_NAMES_128                                                                           \
    TQI_NAMES_64 ",%64,%65,%66,%67,%68,%69,%70,%71,%72,%73,%74,%75,%76,%77,%78,%79,"            \
    "%80,%81,%82,%83,%84,%85,%86,%87,%88,%89,%90,%91,%92,%93,%94,%95,"                          \
    "%96,%97,%98,%99,%100,%101,%102,%103,%104,%105,%106,%107,%108,%109,%110,%111,"              \
    "%112,%113,%114,%115,%116,%117,%118,%119,%120,%121,%122,%123,%124,%125,%126,%127"
#define TQI_PRODUCT(n, type, names, a0, a1, a2, a3, b, more)                                    \
    "{\n.reg .pred more;\nsetp.ne.b32 more," more ",0;\n"                                       \
    "wgmma.mma_async.sync.aligned.m64n" n "k16.f32." type "." type " {" names "},{" a0 "," a1   \
    "," a2 "," a3 "}," b ",more,1,1,0;\n}"

/* d = a b, or d += a b with `more`: 64 rows, N = 2 * the number of sums, 16 of k. A: rows of 16-bit
 * floats in registers; multiply_stored: in shared memory, stored like B. */
#define TQI_PRODUCTS_OF(name, type)                                                             \
    TQI_INLINE void multiply_##name(float (&d)[32], const uint32_t *a, uint64_t b, int more) {  \
        asm volatile(TQI_PRODUCT("64", type, TQI_NAMES_32, "%32", "%33", "%34", "%35", "%36",   \
                                 "%37")                                                         \
                     : TQI_F32(d, 0)                                                            \
                     : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b), "r"(more));          \
    }                                                                                           \
    TQI_INLINE void multiply_##name(float (&d)[64], const uint32_t *a, uint64_t b, int more) {  \
        asm volatile(TQI_PRODUCT("128", type, TQI_NAMES_64, "%64", "%65", "%66", "%67", "%68",  \
                                 "%69")                                                         \
                     : TQI_F32(d, 0), TQI_F32(d, 32)                                            \
                     : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b), "r"(more));          \
    }                                                                                           \
    TQI_INLINE void multiply_##name(float (&d)[128], const uint32_t *a, uint64_t b, int more) { \
        asm volatile(TQI_PRODUCT("256", type, TQI_NAMES_128, "%128", "%129", "%130", "%131",    \
                                 "%132", "%133")                                                \
                     : TQI_F32(d, 0), TQI_F32(d, 32), TQI_F32(d, 64), TQI_F32(d, 96)            \
                     : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b), "r"(more));          \
    }                                                                                           \
    TQI_INLINE void multiply_stored_##name(float (&d)[32], uint64_t a, uint64_t b, int more) {  \
        asm volatile("{\n.reg .pred more;\nsetp.ne.b32 more,%34,0;\n"                           \
                     "wgmma.mma_async.sync.aligned.m64n64k16.f32." type "." type                \
                     " {" TQI_NAMES_32 "},%32,%33,more,1,1,0,0;\n}"                             \
                     : TQI_F32(d, 0)                                                            \
                     : "l"(a), "l"(b), "r"(more));                                              \
    }
TQI_PRODUCTS_OF(f16, "f16")
TQI_PRODUCTS_OF(bf16, "bf16")
#undef TQI_PRODUCTS_OF
/* clang-format on */

/* BF16: what the 16-bit floats are. */
template <bool BF16, int N>
TQI_INLINE void multiply(float (&d)[N], const uint32_t *a, uint64_t b, int more) {
    if constexpr (BF16)
        multiply_bf16(d, a, b, more);
    else
        multiply_f16(d, a, b, more);
}

template <bool BF16>
TQI_INLINE void multiply_stored(float (&d)[32], uint64_t a, uint64_t b, int more) {
    if constexpr (BF16)
        multiply_stored_bf16(d, a, b, more);
    else
        multiply_stored_f16(d, a, b, more);
}

/* ---- barriers ------------------------------------------------------------------------------- */

/* One thread announces the bytes of copies to come; it counts as its arrival. */
TQI_INLINE void barrier_expect(uint32_t barrier, uint32_t bytes) {
    asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _,[%0],%1;" ::"r"(barrier), "r"(bytes)
                 : "memory");
}

TQI_INLINE void bulk_copy_part(uint32_t to, const void *from, uint32_t bytes, uint32_t barrier) {
    asm volatile("cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes "
                 "[%0],[%1],%2,[%3];" ::"r"(to),
                 "l"(from), "r"(bytes), "r"(barrier)
                 : "memory");
}

/* The 128 threads of a warpgroup meet; id: 1 and up. */
TQI_INLINE void meet_warpgroup(uint32_t id) {
    asm volatile("bar.sync %0,128;" ::"r"(id) : "memory");
}

/* Registers of every thread of the warpgroup, from here on. */
template <int N> TQI_INLINE void take_registers() {
    asm volatile("setmaxnreg.inc.sync.aligned.u32 %0;" ::"n"(N));
}

template <int N> TQI_INLINE void give_registers() {
    asm volatile("setmaxnreg.dec.sync.aligned.u32 %0;" ::"n"(N));
}

#endif

} /* namespace tqi */

#endif
