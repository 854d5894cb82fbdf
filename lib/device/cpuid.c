#include "device/device.h"

/* The compiler's own test, which also asks whether the operating system saves the
 * registers. */
uint64_t tqi_cpu_features(void) {
    uint64_t features = 0;
#if defined(__x86_64__) && defined(__GNUC__)
    __builtin_cpu_init();
    if (__builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma"))
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
#endif
    return features;
}
