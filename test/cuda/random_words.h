/* cuRAND's Philox on the GPU. */
#ifndef TEST_CUDA_RANDOM_WORDS_H
#define TEST_CUDA_RANDOM_WORDS_H

#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

/* Outputs first .. first + n - 1 of a stream of a seed, into device memory, each by a thread
 * that starts there. A cudaError_t. */
int random_words(uint64_t seed, uint64_t stream, uint64_t first, uint32_t n, uint32_t *out);
/* The same by one thread from the first on. */
int random_words_in_turn(uint64_t seed, uint64_t stream, uint64_t first, uint32_t n, uint32_t *out);

#ifdef __cplusplus
}
#endif

#endif
