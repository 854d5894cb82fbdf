#include "base/rng.h"

/* The library header asks for the compiler's 128-bit type, which -Wpedantic names. */
#if defined(__GNUC__)
#pragma GCC diagnostic push
#pragma GCC diagnostic ignored "-Wpedantic"
#pragma GCC diagnostic ignored "-Wconversion"
#pragma GCC diagnostic ignored "-Wsign-conversion"
#endif
#include <Random123/philox.h>
#if defined(__GNUC__)
#pragma GCC diagnostic pop
#endif

uint32_t tqi_philox(uint64_t seed, uint64_t subsequence, uint64_t n) {
    uint64_t block = n / 4;
    philox4x32_ctr_t counter = {{(uint32_t)block, (uint32_t)(block >> 32), (uint32_t)subsequence,
                                 (uint32_t)(subsequence >> 32)}};
    philox4x32_key_t key = {{(uint32_t)seed, (uint32_t)(seed >> 32)}};
    philox4x32_ctr_t out = philox4x32(counter, key);
    return out.v[n % 4];
}
