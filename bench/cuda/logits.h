/* Logits and nothing else: q . k of one query token over 4-bit keys, by the score stage of the
 * library's attention. For the comparison with keys of 32 and 16 bits; attention does not store
 * logits. */
#ifndef BENCH_LOGITS_H
#define BENCH_LOGITS_H

#include <cuda_runtime.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

enum { LOGIT_DIM = 128, LOGIT_TOKENS = 64, LOGIT_KEY_BYTES = 64 * 64 + 64 * 2 };

/* Blobs of 4bit_nc, head_dim 128, pages of 64 tokens: [sequence][page][kv head]. */
struct logits {
    const uint8_t *blobs;
    uint32_t n_seqs, n_pages, n_heads, group; /* n_pages: of a sequence; group: 1 to 8 */
    uint32_t blob_bytes;
    const uint16_t *q; /* bf16 [sequence][n_heads * group][128] */
    float *out;        /* [sequence][n_heads * group][n_pages * 64], times 1 / sqrt(128) */
    uint64_t seed;     /* of the cache that made the blobs */
    void *room;        /* logits_room() bytes */
};

size_t logits_room(const struct logits *l);
/* Once: the rotation of the seed. */
cudaError_t logits_prepare(const struct logits *l, cudaStream_t stream);
/* Queries to operands, then all logits. */
cudaError_t logits_run(const struct logits *l, cudaStream_t stream);

#ifdef __cplusplus
}
#endif

#endif
