#include <curand_kernel.h>

#include "random_words.h"

__global__ void words(uint64_t seed, uint64_t stream, uint64_t first, uint32_t n, uint32_t *out) {
    uint32_t i = blockIdx.x * blockDim.x + threadIdx.x;
    curandStatePhilox4_32_10_t state;
    if (i >= n)
        return;
    curand_init(seed, stream, first + i, &state);
    out[i] = curand(&state);
}

__global__ void words_in_turn(uint64_t seed, uint64_t stream, uint64_t first, uint32_t n,
                              uint32_t *out) {
    curandStatePhilox4_32_10_t state;
    curand_init(seed, stream, first, &state);
    for (uint32_t i = 0; i < n; i++)
        out[i] = curand(&state);
}

int random_words(uint64_t seed, uint64_t stream, uint64_t first, uint32_t n, uint32_t *out) {
    words<<<(n + 255) / 256, 256>>>(seed, stream, first, n, out);
    return cudaGetLastError();
}

int random_words_in_turn(uint64_t seed, uint64_t stream, uint64_t first, uint32_t n,
                         uint32_t *out) {
    words_in_turn<<<1, 1>>>(seed, stream, first, n, out);
    return cudaGetLastError();
}
