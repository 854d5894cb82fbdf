/* What a cache should hold, as plain arrays: lengths, the row that each token is, and which
 * pages are shared. Tokens are one of a few rows, whose decoded form a cache of reference kernels
 * tells; so a token's content is one byte. */
#ifndef TEST_FUZZ_MODEL_H
#define TEST_FUZZ_MODEL_H

#include <stddef.h>
#include <stdint.h>

#include "fuzz/fuzz.h"

enum { N_ROWS = 8, NAN_ROW = 1, MAX_LAYERS = 3, MAX_SEQS = 6, MAX_TOKENS = 96 };
enum { MIN_PAGE = 16, SEQ_PAGES = MAX_TOKENS / MIN_PAGE, ALL_PAGES = MAX_SEQS * SEQ_PAGES };

struct model_seq {
    int alive;
    tq_seq id; /* of the sequence that was here last, when it is dead; 0 = none yet */
    uint32_t lengths[MAX_LAYERS];
    uint8_t tokens[MAX_LAYERS][MAX_TOKENS];
    uint32_t n_pages;
    uint8_t pages[SEQ_PAGES];
};

struct model {
    tq_cache_config c; /* with all defaults resolved */
    struct model_seq seqs[MAX_SEQS];
    uint32_t references[ALL_PAGES];
    uint64_t nan_values;
    /* [N_ROWS][n_kv_heads][dim]: what is appended; what each layer makes of it. */
    float *k, *v, *k_read[MAX_LAYERS], *v_read[MAX_LAYERS];
};

/* Learns rows from a cache of that configuration. Means may be NULL. */
struct model *model_make(const tq_cache_config *config, const float *means);
void model_free(struct model *m);
size_t model_k_row(const struct model *m);
size_t model_v_row(const struct model *m);

uint32_t model_alive(const struct model *m);
struct model_seq *model_free_slot(struct model *m);
uint32_t model_shortest(const struct model *m, const struct model_seq *s);
uint32_t model_longest(const struct model *m, const struct model_seq *s);
/* What a cut of so many tokens returns. */
tq_status model_prefix(const struct model *m, const struct model_seq *s, uint64_t n);
/* Pages that an append takes from the pool. */
uint32_t model_demand(const struct model *m, const struct model_seq *s, uint32_t layer, uint32_t n);

void model_create(struct model_seq *s, tq_seq id);
void model_fork(struct model *m, const struct model_seq *from, struct model_seq *to, tq_seq id,
                uint32_t n);
void model_append(struct model *m, struct model_seq *s, uint32_t layer, const uint8_t *tokens,
                  uint32_t n);
void model_truncate(struct model *m, struct model_seq *s, uint32_t n);
void model_destroy(struct model *m, struct model_seq *s);
void model_reset(struct model *m);

/* Every counter of the cache, and every length. */
void model_check(const struct model *m, const tq_cache *cache, size_t host_bytes);
/* Attention of query rows over the tokens, in double: out [n_queries][n_q_heads][v_head_dim]. */
void model_attend(const struct model *m, const struct model_seq *s, uint32_t layer,
                  uint32_t n_queries, int causal, const float *q, double *out);

#endif
