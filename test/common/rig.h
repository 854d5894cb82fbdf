/* A cache for a test: over the checking allocator, with calls that take f32 arrays and fail
 * the test in the library's words. */
#ifndef TEST_COMMON_RIG_H
#define TEST_COMMON_RIG_H

#include "common/check.h"
#include "common/hooks.h"
#include "common/rows.h"
#include "tq/tq.h"

struct rig {
    struct test_heap heap;
    tq_context *ctx;
    tq_cache *cache;
    tq_cache_config c; /* with all defaults resolved */
};

/* The least configuration: one layer. */
tq_cache_config plain_config(tq_variant variant, uint32_t head_dim, uint32_t n_kv_heads,
                             uint32_t group);
/* The same for a pair of formats, which must outlive the call of rig_open(). */
tq_cache_config pair_config(const tq_layer_formats *pair, uint32_t head_dim, uint32_t n_kv_heads,
                            uint32_t group);

/* A zeroed rig, or one whose heap has its switches set. */
void rig_open(struct rig *r, const tq_cache_config *c);
void rig_open_with(struct rig *r, const tq_cache_config *c, const tq_executor *executor);
/* Fails when memory has leaked, came back wrongly or was overrun. */
void rig_close(struct rig *r);

tq_variant_info variant_at(uint32_t index);
tq_format_info format_at(uint32_t index);
tq_format_info format_of(tq_format id);

tq_rows_in rows_in(const float *data);
tq_rows_out rows_out(float *data);

tq_seq rig_seq(struct rig *r);
tq_seq rig_fork(struct rig *r, tq_seq src, uint64_t n);
uint64_t rig_length(const struct rig *r, tq_seq seq, uint32_t layer);
tq_cache_stats rig_stats(const struct rig *r);
void rig_append(struct rig *r, tq_seq seq, uint32_t layer, uint32_t n, const float *k,
                const float *v);
/* Appends n rows of N(0, 1). */
void rig_append_random(struct rig *r, tq_seq seq, uint32_t layer, uint32_t n, struct rng *rng);
/* Rows as the cache decodes them, [token][head][dim]; either may be NULL. */
void rig_read(const struct rig *r, tq_seq seq, uint32_t layer, uint64_t first, uint32_t n, float *k,
              float *v);

/* Elements of a token: all kv heads of a key or value, all query heads of a query or output. */
size_t rig_k_row(const struct rig *r);
size_t rig_v_row(const struct rig *r);
size_t rig_q_row(const struct rig *r);
size_t rig_out_row(const struct rig *r);

/* A call of tq_attend() and its results. */
struct asked {
    uint32_t n_queries, flags, window;
    float scale, softcap;
    const float *sinks;   /* that the layer has been told, or NULL */
    float *q, *out, *lse; /* owned */
};
/* Random queries. */
struct asked ask_make(const struct rig *r, uint32_t n_queries, uint32_t flags, struct rng *rng);
/* The parameters of a call; out and lse become NaN everywhere, so that what it does not write
 * must show. */
tq_attend_params ask_begin(const struct rig *r, struct asked *a);
void ask(const struct rig *r, tq_seq seq, uint32_t layer, struct asked *a);
void ask_free(struct asked *a);
/* Results bit for bit. */
int same_answer(const struct rig *r, const struct asked *a, const struct asked *b);

/* A call that has been answered against plain attention over the decoded rows. */
struct verdict {
    double out;     /* relative to the whole output */
    double lse;     /* largest difference, relative above 1 */
    double stretch; /* 1, or scale |q| |k| / 16: integer queries have a relative error */
};
struct verdict judge(const struct rig *r, tq_seq seq, uint32_t layer, const struct asked *a);
/* Both within the tolerance of the kernels that run. */
#define ATTEND_TOLERANCE test_attend_tolerance()
#define JUSTIFIED(judgement, ...)                           \
    do {                                                    \
        struct verdict judged = (judgement);                \
        double allowed = ATTEND_TOLERANCE * judged.stretch; \
        AT_MOST(judged.out, allowed, "out: " __VA_ARGS__);  \
        AT_MOST(judged.lse, allowed, "lse: " __VA_ARGS__);  \
    } while (0)
/* Asks n_queries random questions, all visible and causal, and judges the answers. */
void check_attention(const struct rig *r, tq_seq seq, uint32_t layer, uint32_t n_queries,
                     struct rng *rng, const char *what);

/* What can be seen of a cache: counters, lengths and answers of one sequence. */
struct snapshot {
    tq_cache_stats stats;
    tq_seq seq;
    uint64_t *lengths;     /* [n_layers] */
    struct asked *answers; /* [n_layers], to the same questions each time */
};
struct snapshot snapshot_take(const struct rig *r, tq_seq seq);
/* Fails when something differs now. */
void snapshot_check(const struct rig *r, const struct snapshot *before, const char *what);
/* The same, but memory may be held beyond what the content needs. */
void snapshot_check_content(const struct rig *r, const struct snapshot *before, const char *what);
void snapshot_free(const struct rig *r, struct snapshot *s);

#endif
