#include "device/device.h"

#if defined(__aarch64__) && defined(__linux__)
#include <sys/auxv.h>

/* Of the kernel's lists, AT_HWCAP and AT_HWCAP2; older headers lack the second. */
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
#endif

/* The compiler's own test, which also asks whether the operating system saves the
 * registers. Every instruction flag of a level (tools/make/lib.mk) is asked for here. */
uint64_t tqi_cpu_features(void) {
    uint64_t features = 0;
#if defined(__x86_64__) && defined(__GNUC__)
    __builtin_cpu_init();
    if (__builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma") && has_f16c())
        features |= TQ_CPU_AVX2;
    if ((features & TQ_CPU_AVX2) && __builtin_cpu_supports("avx512f") &&
        __builtin_cpu_supports("avx512bw") && __builtin_cpu_supports("avx512dq") &&
        __builtin_cpu_supports("avx512vl"))
        features |= TQ_CPU_AVX512;
    if ((features & TQ_CPU_AVX512) && __builtin_cpu_supports("avx512vnni") &&
        __builtin_cpu_supports("avx512vbmi"))
        features |= TQ_CPU_AVX512VNNI;
#elif defined(__aarch64__)
    features |= TQ_CPU_NEON; /* part of the base architecture */
#ifdef __linux__
    if (getauxval(AT_HWCAP) & DOT_PRODUCT)
        features |= TQ_CPU_DOTPROD;
    if ((features & TQ_CPU_DOTPROD) && (getauxval(AT_HWCAP2) & MATRIX_BYTES))
        features |= TQ_CPU_I8MM;
#endif
#endif
    return features;
}
