/* A cache on each device and lists of tokens that say what both hold. */
#ifndef TEST_CUDA_WALK_H
#define TEST_CUDA_WALK_H

#include "gpu.h"

enum {
    LAYERS = 2,
    SEQS = 6,
    TOKENS = 48,
    MOST = 320,
    HEADS = 2,
    GROUP = 8,
    QUERIES = 2,
    STEP_TOKENS = 40
};

struct list {
    tq_seq id; /* the same on both; 0 = none */
    uint32_t n[LAYERS], token[LAYERS][MOST];
};

/* Rows of a layer's tokens, as appended, on both sides, and as the GPU decodes their codes. */
struct rows {
    uint16_t *k, *v; /* bf16 */
    float *k_read, *v_read;
};

struct walk {
    struct pair p; /* contexts, and a cache of one layer that is not used */
    tq_cache *cpu, *gpu;
    tq_batch *cpu_batch, *gpu_batch; /* of SEQS sequences and STEP_TOKENS tokens */
    tq_cache_config c;
    tq_layer_formats formats[LAYERS];
    struct rows rows[LAYERS];
    struct list seqs[SEQS];
    uint32_t steps, without_pages, refused, kept;
    char what[128];
};

/* A number below n; 0 for n = 0. */
uint32_t walk_below(uint32_t n);
/* Two caches, and their tokens; 0 = they can't be made. shape: head_dim, page_tokens, max_pages,
 * sink_tokens, recent_tokens. */
int walk_open(struct walk *w, const tq_layer_formats formats[LAYERS], const tq_cache_config *shape);
void walk_close(struct walk *w);

/* Both said the same; whether it was TQ_OK. */
int walk_agreed(struct walk *w, tq_status cpu, tq_status gpu);
/* The same for calls that make a sequence, whose ids are a and b and whose list is `to`. */
int walk_agreed_on(struct walk *w, tq_status cpu, tq_status gpu, tq_seq a, tq_seq b,
                   struct list *to);
/* Appends the tokens of a list on both; whether that went well. */
int walk_append(struct walk *w, tq_seq id, uint32_t layer, const uint32_t *list, uint32_t n);
/* Appends the step's tokens to a layer of both, which have planned it. */
void walk_append_step(struct walk *w, uint32_t layer, const uint32_t *list, uint32_t n);
/* Attention of the step's n query rows in a layer of both. */
void walk_attend_step(struct walk *w, uint32_t layer, uint32_t n);
/* Rows on the GPU, and counters of both. */
void walk_check_contents(struct walk *w);
/* Attention of some queries on both. */
void walk_check_attend(struct walk *w, const struct list *s, uint32_t layer);

/* Some list with or without a sequence, NULL when there is none. */
struct list *walk_pick(struct walk *w, int alive);
/* A range that exists, or one that is too long now and then. */
void walk_pick_range(const struct walk *w, const struct list *s, uint32_t *first, uint32_t *n);
void walk_add_range(struct list *to, const struct list *from, uint32_t first, uint32_t n);

#endif
