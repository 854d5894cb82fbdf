/* Data of the benchmark, made on the device by cuRAND. */
#ifndef BENCH_RANDOM_H
#define BENCH_RANDOM_H

#include <cuda_runtime.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

/* n Gaussian bf16 numbers. */
cudaError_t random_rows(uint16_t *out, size_t n, uint64_t seed, cudaStream_t stream);

#ifdef __cplusplus
}
#endif

#endif
