/* Reading blobs and nothing else: the limit that attention on the same bytes is held against. */
#ifndef BENCH_PLAIN_READ_H
#define BENCH_PLAIN_READ_H

#include <cuda_runtime.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

enum { PLAIN_READ_WAYS = 3 };

/* Launches a read of n blobs of `bytes` (a multiple of 128) in scattered order; way: 0 and 1
 * bulk copies of one or two blocks per multiprocessor, 2 loads into registers. */
cudaError_t plain_read(const uint8_t *from, uint64_t n, uint32_t bytes, int way,
                       cudaStream_t stream);

#ifdef __cplusplus
}
#endif

#endif
