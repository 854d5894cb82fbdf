#include <cuda_bf16.h>
#include <curand_kernel.h>

#include "random.h"

/* Four numbers a thread, so that counters are used whole. */
__global__ void gaussian(__nv_bfloat16 *out, size_t n, uint64_t seed) {
    size_t i = ((size_t)blockIdx.x * blockDim.x + threadIdx.x) * 4;
    curandStatePhilox4_32_10_t state;
    if (i >= n)
        return;
    curand_init(seed, i / 4, 0, &state);
    float4 f = curand_normal4(&state);
    const float v[4] = {f.x, f.y, f.z, f.w};
    for (size_t k = 0; k < 4 && i + k < n; k++)
        out[i + k] = __float2bfloat16_rn(v[k]);
}

cudaError_t random_rows(uint16_t *out, size_t n, uint64_t seed, cudaStream_t stream) {
    size_t blocks = (n + 1023) / 1024;
    gaussian<<<(unsigned)blocks, 256, 0, stream>>>((__nv_bfloat16 *)out, n, seed);
    return cudaGetLastError();
}
