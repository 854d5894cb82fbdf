/* Single instructions of the fast read path: tensor cores, byte permutes, bulk copies. */
#ifndef TQI_CUDA_ATTEND_INSTRUCTIONS_CUH
#define TQI_CUDA_ATTEND_INSTRUCTIONS_CUH

#include <stdint.h>

namespace tqi {

#define TQI_INLINE __device__ __forceinline__

/* The same in every lane, in a way that the compiler sees: addresses of barriers and copies are
 * then kept in uniform registers, and branches, which wgmma wants not to part a warp, do not part
 * it. */
TQI_INLINE uint32_t same_in_warp(uint32_t x) {
    return __shfl_sync(~0u, x, 0);
}

/* ---- arithmetic ----------------------------------------------------------------------------- */

/* Four table look-ups: the bytes of {a, b} that the nibbles of s name. */
TQI_INLINE uint32_t prmt(uint32_t a, uint32_t b, uint32_t s) {
    uint32_t r;
    asm("prmt.b32 %0,%1,%2,%3;" : "=r"(r) : "r"(a), "r"(b), "r"(s));
    return r;
}

/* The high half of a word, in the low half; in the high half anything. The word is a pair of
 * finite halves (selectors are: two of their exponent bits are 0), and multiplying by one is
 * exact. The multipliers have time to spare, the shifters have not. */
TQI_INLINE uint32_t high_half(uint32_t w, uint32_t one) {
    uint32_t r;
    asm("{.reg .b16 l,h;\n.reg .b32 p;\nmov.b32 {l,h},%1;\nmov.b32 p,{h,h};\n"
        "mul.rn.f16x2 %0,p,%2;\n}"
        : "=r"(r)
        : "r"(w), "r"(one));
    return r;
}

/* a b + c by the multipliers, which have time to spare. If the compiler knew b to be a power of two
 * it would make shifts of it, work for the pipe of the byte permutes. */
TQI_INLINE uint32_t multiply_add(uint32_t a, uint32_t b, uint32_t c) {
    uint32_t r;
    asm("mad.lo.u32 %0,%1,%2,%3;" : "=r"(r) : "r"(a), "r"(b), "r"(c));
    return r;
}

TQI_INLINE float exp2_fast(float x) {
    float r;
    asm("ex2.approx.ftz.f32 %0,%1;" : "=f"(r) : "f"(x));
    return r;
}

TQI_INLINE float reciprocal(float x) {
    float r;
    asm("rcp.approx.ftz.f32 %0,%1;" : "=f"(r) : "f"(x));
    return r;
}

/* Transposes an 8x8 matrix of 16-bit elements held by a warp. */
TQI_INLINE uint32_t transpose16(uint32_t a) {
    uint32_t d;
    asm("movmatrix.sync.aligned.m8n8.trans.b16 %0,%1;" : "=r"(d) : "r"(a));
    return d;
}

/* Keeps a loop-invariant value in a register: the compiler otherwise fetches it from uniform
 * registers before every use. */
TQI_INLINE uint32_t in_register(uint32_t x) {
    asm volatile("mov.b32 %0,%0;" : "+r"(x));
    return x;
}

/* x in a register of every lane. What the assembler sees to be the same for the warp it keeps in a
 * uniform register, and moves to one of the lane's before every use that cannot read those: it is
 * not to see that a lane's mask has one bit. */
TQI_INLINE uint32_t in_lanes(uint32_t x) {
    uint32_t own;
    asm volatile("mov.u32 %0,%%lanemask_eq;" : "=r"(own));
    return x + (uint32_t)__popc(own) - 1;
}

#define TQI_MMA_INT(name, a_type, b_type)                                                      \
    TQI_INLINE void name(int d[4], const uint32_t a[4], const uint32_t b[2], const int c[4]) { \
        asm("mma.sync.aligned.m16n8k32.row.col.s32." a_type "." b_type ".s32 "                 \
            "{%0,%1,%2,%3},{%4,%5,%6,%7},{%8,%9},{%10,%11,%12,%13};"                           \
            : "=r"(d[0]), "=r"(d[1]), "=r"(d[2]), "=r"(d[3])                                   \
            : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]), "r"(c[0]),     \
              "r"(c[1]), "r"(c[2]), "r"(c[3]));                                                \
    }
TQI_MMA_INT(mma_s8s8, "s8", "s8")
TQI_MMA_INT(mma_s8u8, "s8", "u8")
TQI_MMA_INT(mma_u8s8, "u8", "s8")
#undef TQI_MMA_INT

#define TQI_MMA_16(name, type)                                                   \
    TQI_INLINE void name(float c[4], const uint32_t a[4], const uint32_t b[2]) { \
        asm("mma.sync.aligned.m16n8k16.row.col.f32." type "." type ".f32 "       \
            "{%0,%1,%2,%3},{%4,%5,%6,%7},{%8,%9},{%0,%1,%2,%3};"                 \
            : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])                     \
            : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1])); \
    }
TQI_MMA_16(mma_f16, "f16")
TQI_MMA_16(mma_bf16, "bf16")
#undef TQI_MMA_16

/* ---- shared memory -------------------------------------------------------------------------- */

TQI_INLINE uint32_t shared_address(const void *p) {
    return (uint32_t)__cvta_generic_to_shared(p);
}

TQI_INLINE uint4 load_shared16(uint32_t at) {
    uint4 r;
    asm volatile("ld.shared.v4.u32 {%0,%1,%2,%3},[%4];"
                 : "=r"(r.x), "=r"(r.y), "=r"(r.z), "=r"(r.w)
                 : "r"(at));
    return r;
}

TQI_INLINE uint2 load_shared8(uint32_t at) {
    uint2 r;
    asm volatile("ld.shared.v2.u32 {%0,%1},[%2];" : "=r"(r.x), "=r"(r.y) : "r"(at));
    return r;
}

#define TQI_LOAD_SHARED(name, type)                                      \
    TQI_INLINE uint32_t name(uint32_t at) {                              \
        uint32_t r;                                                      \
        asm volatile("ld.shared." type " %0,[%1];" : "=r"(r) : "r"(at)); \
        return r;                                                        \
    }
TQI_LOAD_SHARED(load_shared4, "u32")
TQI_LOAD_SHARED(load_shared2, "u16")
TQI_LOAD_SHARED(load_shared1, "u8")
#undef TQI_LOAD_SHARED

TQI_INLINE void store_shared4(uint32_t at, uint32_t word) {
    asm volatile("st.shared.u32 [%0],%1;" ::"r"(at), "r"(word) : "memory");
}

TQI_INLINE void store_shared8(uint32_t at, uint64_t word) {
    asm volatile("st.shared.u64 [%0],%1;" ::"r"(at), "l"(word) : "memory");
}

TQI_INLINE void store_shared16(uint32_t at, uint64_t a, uint64_t b) {
    asm volatile("st.shared.v2.u64 [%0],{%1,%2};" ::"r"(at), "l"(a), "l"(b) : "memory");
}

TQI_INLINE void store_shared16(uint32_t at, float a, float b, float c, float d) {
    asm volatile("st.shared.v4.f32 [%0],{%1,%2,%3,%4};" ::"r"(at), "f"(a), "f"(b), "f"(c), "f"(d)
                 : "memory");
}

/* ---- copies into slots ---------------------------------------------------------------------- */

#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900
#define TQI_BULK_COPY 1
#else
#define TQI_BULK_COPY 0
#endif

TQI_INLINE void barrier_init_count(uint32_t barrier, uint32_t count) {
    asm volatile("mbarrier.init.shared::cta.b64 [%0],%1;" ::"r"(barrier), "r"(count) : "memory");
}

/* Lanes of a warp that arrive at a barrier: one, behind a __syncwarp. racecheck takes an arrival
 * for its own lane's only, so that all arrive in the build that it sees. */
#ifdef TQI_RACECHECK
enum { WARP_ARRIVALS = 32 };
#else
enum { WARP_ARRIVALS = 1 };
#endif

TQI_INLINE void barrier_arrive(uint32_t barrier) {
    asm volatile("mbarrier.arrive.shared::cta.b64 _,[%0];" ::"r"(barrier) : "memory");
}

#if TQI_BULK_COPY
TQI_INLINE void barrier_init(uint32_t barrier) {
    barrier_init_count(barrier, 1);
}

TQI_INLINE void barrier_wait(uint32_t barrier, uint32_t parity) {
    asm volatile("{\n.reg .pred p;\nAGAIN_%=:\n"
                 "mbarrier.try_wait.parity.shared::cta.b64 p,[%0],%1;\n"
                 "@p bra DONE_%=;\nbra AGAIN_%=;\nDONE_%=:\n}" ::"r"(barrier),
                 "r"(parity)
                 : "memory");
}

/* The same, seldom looking: up to so many nanoseconds apart, unless the barrier completes. */
TQI_INLINE void barrier_wait_long(uint32_t barrier, uint32_t parity) {
    asm volatile("{\n.reg .pred p;\nAGAIN_%=:\n"
                 "mbarrier.try_wait.parity.shared::cta.b64 p,[%0],%1,%2;\n"
                 "@p bra DONE_%=;\nbra AGAIN_%=;\nDONE_%=:\n}" ::"r"(barrier),
                 "r"(parity), "r"(10000000)
                 : "memory");
}

/* One lane of a whole warp. The compiler knows that it is one: where lane == 0 is asked for, it
 * moves the operands of a copy to uniform registers in a loop over lanes. */
TQI_INLINE bool elected() {
    uint32_t is;
    asm volatile("{\n.reg .pred p;\nelect.sync _|p,0xffffffff;\nselp.u32 %0,1,0,p;\n}" : "=r"(is));
    return is != 0;
}

TQI_INLINE uint64_t evict_first() {
    uint64_t policy;
    asm volatile("createpolicy.fractional.L2::evict_first.b64 %0,1.0;" : "=l"(policy));
    return policy;
}

/* One thread; the barrier completes when as many bytes are there. */
TQI_INLINE void expect_bytes(uint32_t barrier, uint32_t bytes) {
    asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _,[%0],%1;" ::"r"(barrier), "r"(bytes)
                 : "memory");
}

TQI_INLINE void bulk_copy(uint32_t to, const void *from, uint32_t bytes, uint32_t barrier,
                          uint64_t policy) {
    asm volatile("cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes"
                 ".L2::cache_hint [%0],[%1],%2,[%3],%4;" ::"r"(to),
                 "l"(from), "r"(bytes), "r"(barrier), "l"(policy)
                 : "memory");
}

/* Asks for a whole number of 16 bytes in the second cache. */
TQI_INLINE void bulk_prefetch(const void *from, uint32_t bytes, uint64_t policy) {
    asm volatile("cp.async.bulk.prefetch.L2.global.L2::cache_hint [%0],%1,%2;" ::"l"(from),
                 "r"(bytes), "l"(policy)
                 : "memory");
}
#endif

TQI_INLINE void copy16(uint32_t to, const void *from) {
    asm volatile("cp.async.cg.shared.global [%0],[%1],16;" ::"r"(to), "l"(from) : "memory");
}

/* ---- chained launches ----------------------------------------------------------------------- */

/* The kernel behind this one may be set up already. */
TQI_INLINE void allow_next_kernel() {
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900
    asm volatile("griddepcontrol.launch_dependents;" ::: "memory");
#endif
}

/* From here on everything that the kernel in front wrote can be seen. */
TQI_INLINE void wait_for_last_kernel() {
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900
    asm volatile("griddepcontrol.wait;" ::: "memory");
#endif
}

/* ---- wgmma ---------------------------------------------------------------------------------- */

/* Instructions of sm_90a, which is not part of what newer GPUs run: others compile the kernels
 * without a body, and the tables leave them out. */
#if defined(__CUDA_ARCH_FEAT_SM90_ALL)
#define TQI_WGMMA 1
#else
#define TQI_WGMMA 0
#endif

#if TQI_WGMMA

TQI_INLINE void begin_products() {
    asm volatile("wgmma.fence.sync.aligned;" ::: "memory");
}

/* Those issued so far become a group. */
TQI_INLINE void end_products() {
    asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory");
}

/* All groups but the youngest LEFT are done. */
template <int LEFT> TQI_INLINE void wait_products() {
    asm volatile("wgmma.wait_group.sync.aligned %0;" ::"n"(LEFT) : "memory");
}

/* What the thread has stored to shared memory may be read by products behind the next barrier. */
TQI_INLINE void publish_stores() {
    asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
}

#endif

} /* namespace tqi */

#endif
