#if defined(TQI_HAVE_AMX) && defined(__linux__)
#define _DEFAULT_SOURCE /* syscall() */
#endif
#include "device/device.h"

#if defined(__aarch64__) && defined(__linux__)
#include <sys/auxv.h>

/* Of the kernel's lists, AT_HWCAP and AT_HWCAP2; headers may be older than the CPU. */
enum { DOT_PRODUCT = 1 << 20, MATRIX_BYTES = 1 << 13 };
#endif

#if defined(__x86_64__) && defined(__GNUC__)
#include <cpuid.h>

/* Not among the names that every compiler's test knows. AVX2 below tells that the registers
 * are saved. */
static int has_f16c(void) {
    unsigned a, b, c, d;
    return __get_cpuid(1, &a, &b, &c, &d) && (c & bit_F16C);
}

/* And GFNI, which every CPU with AVX-VNNI has. */
static int has_avx_vnni(void) {
#ifdef TQI_HAVE_AVXVNNI
    unsigned a, b, c, d;
    return __get_cpuid_count(7, 0, &a, &b, &c, &d) && a >= 1 && (c & bit_GFNI) &&
           __get_cpuid_count(7, 1, &a, &b, &c, &d) && (a & bit_AVXVNNI);
#else
    return 0;
#endif
}

#if defined(TQI_HAVE_AMX) && defined(__linux__) && defined(__LP64__)
#include <sys/syscall.h>
#include <unistd.h>

/* Of leaf 7, edx; some compilers that know the instructions lack the names. */
#ifndef bit_AMX_TILE
#define bit_AMX_TILE (1u << 24)
#endif
#ifndef bit_AMX_INT8
#define bit_AMX_INT8 (1u << 25)
#endif

enum { ARCH_REQ_XCOMP_PERM = 0x1023, TILE_DATA = 18 };
#ifndef bit_AMX_TILE /* clang's names */
#define bit_AMX_TILE bit_AMXTILE
#define bit_AMX_INT8 bit_AMXINT8
#endif

/* Linux saves tiles, 8 KB a thread, for processes that have asked; it refuses where the CPU or
 * the hypervisor lacks them or a signal stack of the process is too small. Asking again is
 * harmless, from any thread. */
static int has_tiles(void) {
    unsigned a, b, c, d, want = bit_AMX_TILE | bit_AMX_INT8;
    return __get_cpuid_count(7, 0, &a, &b, &c, &d) && (d & want) == want &&
           syscall(SYS_arch_prctl, ARCH_REQ_XCOMP_PERM, TILE_DATA) == 0;
}
#else
static int has_tiles(void) {
    return 0;
}
#endif
#endif

/* The compiler's own test, which also asks whether the operating system saves the
 * registers. Every instruction flag of a level (tools/make/lib.mk) is asked for here. */
uint64_t tqi_cpu_features(uint64_t wanted) {
    uint64_t features = 0;
#if defined(__x86_64__) && defined(__GNUC__)
    const uint64_t vectors = TQ_CPU_AVX2 | TQ_CPU_AVX512 | TQ_CPU_AVX512VNNI;
    __builtin_cpu_init();
    if (__builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma") && has_f16c())
        features |= TQ_CPU_AVX2;
    if ((features & TQ_CPU_AVX2) && has_avx_vnni())
        features |= TQ_CPU_AVXVNNI;
    if ((features & TQ_CPU_AVX2) && __builtin_cpu_supports("avx512f") &&
        __builtin_cpu_supports("avx512bw") && __builtin_cpu_supports("avx512dq") &&
        __builtin_cpu_supports("avx512vl"))
        features |= TQ_CPU_AVX512;
    if ((features & TQ_CPU_AVX512) && __builtin_cpu_supports("avx512vnni") &&
        __builtin_cpu_supports("avx512vbmi"))
        features |= TQ_CPU_AVX512VNNI;
    if ((wanted & TQ_CPU_AMX) && (features & wanted & vectors) == vectors && has_tiles())
        features |= TQ_CPU_AMX;
#elif defined(__aarch64__)
    features |= TQ_CPU_NEON; /* part of the base architecture */
#ifdef __linux__
    if (getauxval(AT_HWCAP) & DOT_PRODUCT)
        features |= TQ_CPU_DOTPROD;
    if ((features & TQ_CPU_DOTPROD) && (getauxval(AT_HWCAP2) & MATRIX_BYTES))
        features |= TQ_CPU_I8MM;
#endif
#endif
    return features & wanted;
}
