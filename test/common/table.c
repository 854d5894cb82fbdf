#include "common/table.h"

#include <stdlib.h>
#include <string.h>

#include "common/numbers.h"

static float *halves(const float *rows, size_t n) {
    void *half = convert_rows(rows, n, TQ_BF16);
    float *wide = widen_rows(half, n, TQ_BF16);
    free(half);
    return wide;
}

struct table table_make(const tq_cache_config *c, uint32_t layer, uint32_t n, uint64_t seed) {
    struct rng rng = {seed};
    struct rig r = {0};
    tq_cache_config config = *c;
    config.max_pages = config.sink_tokens = config.recent_tokens = 0;
    rig_open(&r, &config);
    struct table t = {.n = n, .k_row = rig_k_row(&r), .v_row = rig_v_row(&r)};
    t.k = random_rows(&rng, n * t.k_row, 1);
    t.v = random_rows(&rng, n * t.v_row, 1);
    t.k_half = halves(t.k, n * t.k_row);
    t.v_half = halves(t.v, n * t.v_row);
    t.k_decoded = must_alloc(n * t.k_row, sizeof *t.k_decoded);
    t.v_decoded = must_alloc(n * t.v_row, sizeof *t.v_decoded);
    tq_seq seq = rig_seq(&r);
    int rounded = c->recent_tokens != 0; /* what leaves a window is coded from 16 bits */
    rig_append(&r, seq, layer, n, rounded ? t.k_half : t.k, rounded ? t.v_half : t.v);
    rig_read(&r, seq, layer, 0, n, t.k_decoded, t.v_decoded);
    rig_close(&r);
    return t;
}

void table_free(struct table *t) {
    free(t->k);
    free(t->v);
    free(t->k_decoded);
    free(t->v_decoded);
    free(t->k_half);
    free(t->v_half);
}

/* The rows of a list one after the other; allocated. */
static float *gather(const float *rows, size_t row, const uint32_t *list, uint32_t n) {
    float *out = must_alloc(n * row, sizeof *out);
    for (uint32_t i = 0; i < n; i++)
        memcpy(out + i * row, rows + list[i] * row, row * sizeof *out);
    return out;
}

/* As they are read. */
static float *gather_read(const float *decoded, const float *half, size_t row, const uint32_t *list,
                          const uint8_t *exact, uint32_t n) {
    float *out = gather(decoded, row, list, n);
    for (uint32_t i = 0; exact && i < n; i++)
        if (exact[i])
            memcpy(out + i * row, half + list[i] * row, row * sizeof *out);
    return out;
}

tq_status table_append(const struct table *t, tq_cache *cache, tq_seq seq, uint32_t layer,
                       const uint32_t *list, uint32_t n) {
    float *k = gather(t->k, t->k_row, list, n), *v = gather(t->v, t->v_row, list, n);
    tq_rows_in keys = rows_in(k), values = rows_in(v);
    tq_status status = tq_append(cache, seq, layer, n, &keys, &values, NULL);
    free(k);
    free(v);
    return status;
}

static void check_rows(const float *got, const float *want, size_t row, uint32_t n,
                       const char *what) {
    for (uint32_t i = 0; i < n; i++)
        CHECK(memcmp(got + i * row, want + i * row, row * sizeof *got) == 0, "%s: token %u", what,
              i);
}

void table_check_kept(const struct table *t, const struct rig *r, tq_seq seq, uint32_t layer,
                      const uint32_t *list, const uint8_t *exact, uint32_t n, const char *what) {
    uint64_t length = rig_length(r, seq, layer);
    CHECK(length == n, "%s: length %llu instead of %u", what, (unsigned long long)length, n);
    float *k = must_alloc(n * t->k_row, sizeof *k), *v = must_alloc(n * t->v_row, sizeof *v);
    float *want_k = gather_read(t->k_decoded, t->k_half, t->k_row, list, exact, n);
    float *want_v = gather_read(t->v_decoded, t->v_half, t->v_row, list, exact, n);
    rig_read(r, seq, layer, 0, n, k, v);
    check_rows(k, want_k, t->k_row, n, what);
    check_rows(v, want_v, t->v_row, n, what);
    free(k);
    free(v);
    free(want_k);
    free(want_v);
}

void table_check(const struct table *t, const struct rig *r, tq_seq seq, uint32_t layer,
                 const uint32_t *list, uint32_t n, const char *what) {
    table_check_kept(t, r, seq, layer, list, NULL, n, what);
}

void table_judge_kept(const struct table *t, const struct rig *r, const uint32_t *list,
                      const uint8_t *exact, uint32_t n, const struct asked *a, const char *what) {
    float *k = gather_read(t->k_decoded, t->k_half, t->k_row, list, exact, n);
    float *v = gather_read(t->v_decoded, t->v_half, t->v_row, list, exact, n);
    struct shape shape = {.n_tokens = n,
                          .n_queries = a->n_queries,
                          .n_kv_heads = r->c.n_kv_heads,
                          .group = r->c.n_q_heads / r->c.n_kv_heads,
                          .k_dim = r->c.head_dim,
                          .v_dim = r->c.v_head_dim,
                          .causal = (a->flags & TQ_ATTEND_CAUSAL) != 0};
    size_t rows = (size_t)a->n_queries * r->c.n_q_heads, outs = rows * r->c.v_head_dim;
    double *out = must_alloc(outs, sizeof *out), *lse = must_alloc(rows, sizeof *lse);
    plain_attend(&shape, a->q, k, v, out, lse);
    AT_MOST(relative_error(a->out, out, outs), ATTEND_TOLERANCE, "%s: out", what);
    AT_MOST(largest_difference(a->lse, lse, rows), ATTEND_TOLERANCE, "%s: lse", what);
    free(k);
    free(v);
    free(out);
    free(lse);
}

void table_judge(const struct table *t, const struct rig *r, const uint32_t *list, uint32_t n,
                 const struct asked *a, const char *what) {
    table_judge_kept(t, r, list, NULL, n, a, what);
}

void table_attend(const struct table *t, const struct rig *r, tq_seq seq, uint32_t layer,
                  const uint32_t *list, uint32_t n, uint32_t n_queries, uint32_t flags,
                  struct rng *rng, const char *what) {
    struct asked a = ask_make(r, n_queries, flags, rng);
    ask(r, seq, layer, &a);
    table_judge(t, r, list, n, &a, what);
    ask_free(&a);
}
