/* A table of tokens whose decoded rows are known, from a cache that does nothing else: what
 * a sequence holds is then a list of token numbers. */
#ifndef TEST_COMMON_TABLE_H
#define TEST_COMMON_TABLE_H

#include "common/rig.h"

struct table {
    uint32_t n;
    size_t k_row, v_row;          /* elements of a token */
    float *k, *v;                 /* as appended, [token][head][dim] */
    float *k_decoded, *v_decoded; /* as read where they are codes */
    float *k_half, *v_half;       /* in bf16, as read where a cache keeps them in 16 bits */
};

/* n random tokens for one layer of caches of that configuration, which are appended as f32. */
struct table table_make(const tq_cache_config *c, uint32_t layer, uint32_t n, uint64_t seed);
void table_free(struct table *t);

/* Appends the tokens of a list. */
tq_status table_append(const struct table *t, tq_cache *cache, tq_seq seq, uint32_t layer,
                       const uint32_t *list, uint32_t n);
/* A layer of a sequence holds just the tokens of a list, bit for bit; exact[i] tells whether
 * token i is kept in 16 bits, NULL: none is. */
void table_check_kept(const struct table *t, const struct rig *r, tq_seq seq, uint32_t layer,
                      const uint32_t *list, const uint8_t *exact, uint32_t n, const char *what);
void table_check(const struct table *t, const struct rig *r, tq_seq seq, uint32_t layer,
                 const uint32_t *list, uint32_t n, const char *what);
/* An answer, all visible or causal, against attention in double over the list. */
void table_judge_kept(const struct table *t, const struct rig *r, const uint32_t *list,
                      const uint8_t *exact, uint32_t n, const struct asked *a, const char *what);
void table_judge(const struct table *t, const struct rig *r, const uint32_t *list, uint32_t n,
                 const struct asked *a, const char *what);
/* Asks n_queries random questions and compares with attention in double over the list. */
void table_attend(const struct table *t, const struct rig *r, tq_seq seq, uint32_t layer,
                  const uint32_t *list, uint32_t n, uint32_t n_queries, uint32_t flags,
                  struct rng *rng, const char *what);

#endif
