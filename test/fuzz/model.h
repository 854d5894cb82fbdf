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
    uint8_t exact[MAX_LAYERS][MAX_TOKENS]; /* kept in 16 bits */
    uint32_t n_pages;
    uint8_t pages[SEQ_PAGES];
};

struct model {
    tq_cache_config c; /* with all defaults resolved */
    struct model_seq seqs[MAX_SEQS];
    uint32_t references[ALL_PAGES];
    uint64_t nan_values;
    /* [N_ROWS][n_kv_heads][dim]: what is appended; what each layer makes of it as codes, and in
     * 16 bits. */
    float *k, *v, *k_read[MAX_LAYERS], *v_read[MAX_LAYERS], *k_half[MAX_LAYERS],
        *v_half[MAX_LAYERS];
};

/* Learns rows from a cache of that configuration. Means may be NULL. */
struct model *model_make(const tq_cache_config *config, const float *means);
void model_free(struct model *m);
size_t model_k_row(const struct model *m);
size_t model_v_row(const struct model *m);

/* The rows of a token of a sequence, as they are read. */
const float *model_k_of(const struct model *m, const struct model_seq *s, uint32_t layer,
                        uint32_t token);
const float *model_v_of(const struct model *m, const struct model_seq *s, uint32_t layer,
                        uint32_t token);

uint32_t model_alive(const struct model *m);
struct model_seq *model_free_slot(struct model *m);
uint32_t model_shortest(const struct model *m, const struct model_seq *s);
uint32_t model_longest(const struct model *m, const struct model_seq *s);
/* What a cut of so many tokens returns. */
tq_status model_prefix(const struct model *m, const struct model_seq *s, uint64_t n);
/* Whether the pool has pages to write page [first, last) of a sequence. */
int model_has_room(const struct model *m, const struct model_seq *s, uint32_t first, uint32_t last);
/* The same for n tokens behind those of a layer. */
int model_has_room_for(const struct model *m, const struct model_seq *s, uint32_t layer,
                       uint32_t n);

void model_create(struct model_seq *s, tq_seq id);
void model_fork(struct model *m, const struct model_seq *from, struct model_seq *to, tq_seq id,
                uint32_t n);
void model_append(struct model *m, struct model_seq *s, uint32_t layer, const uint8_t *tokens,
                  uint32_t n);
void model_truncate(struct model *m, struct model_seq *s, uint32_t n);
/* Tokens [first, + n), which exist in every layer, leave; 0 when the pool is short of pages. */
int model_remove(struct model *m, struct model_seq *s, uint32_t first, uint32_t n);
/* Tokens [first, + n) of one sequence come behind those of another, for which there is room. */
void model_add_range(struct model *m, struct model_seq *to, const struct model_seq *from,
                     uint32_t first, uint32_t n);
/* Sequence slots[i] becomes what slots[parents[i]] was. */
void model_reorder(struct model *m, uint32_t n, const uint32_t *slots, const uint32_t *parents);
void model_destroy(struct model *m, struct model_seq *s);
void model_reset(struct model *m);

/* Every counter of the cache, and every length. */
void model_check(const struct model *m, const tq_cache *cache, size_t host_bytes);
/* Attention of query rows over the tokens, in double: out [n_queries][n_q_heads][v_head_dim]. */
void model_attend(const struct model *m, const struct model_seq *s, uint32_t layer,
                  uint32_t n_queries, int causal, const float *q, double *out);

#endif
