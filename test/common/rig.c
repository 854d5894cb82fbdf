#include "common/rig.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

/* ---- configurations -------------------------------------------------------------------- */

tq_cache_config plain_config(tq_variant variant, uint32_t head_dim, uint32_t n_kv_heads,
                             uint32_t group) {
    tq_cache_config c = {.struct_size = sizeof c, .n_layers = 1, .variant = variant};
    c.head_dim = head_dim;
    c.n_kv_heads = n_kv_heads;
    c.n_q_heads = n_kv_heads * group;
    c.seed = 42;
    return c;
}

tq_cache_config pair_config(const tq_layer_formats *pair, uint32_t head_dim, uint32_t n_kv_heads,
                            uint32_t group) {
    tq_cache_config c = plain_config(0, head_dim, n_kv_heads, group);
    c.layer_formats = pair;
    return c;
}

tq_variant_info variant_at(uint32_t index) {
    tq_variant_info info = {.struct_size = sizeof info};
    OK(tq_variant_get(index, &info));
    return info;
}

tq_format_info format_at(uint32_t index) {
    tq_format_info info = {.struct_size = sizeof info};
    OK(tq_format_get(index, &info));
    return info;
}

tq_format_info format_of(tq_format id) {
    for (uint32_t i = 0; i < tq_format_count(); i++)
        if (format_at(i).id == id)
            return format_at(i);
    fail_msg("no format with id %u", id);
    return format_at(0);
}

/* ---- cache ----------------------------------------------------------------------------- */

void rig_open_with(struct rig *r, const tq_cache_config *c, const tq_executor *executor) {
    tq_allocator hooks = test_allocator(&r->heap);
    tq_context_config config = {.struct_size = sizeof config,
                                .cpu_features_disabled = test_features_disabled(),
                                .allocator = &hooks,
                                .executor = executor};
    OK(tq_context_create(&config, &r->ctx));
    OK(tq_cache_create(r->ctx, c, &r->cache));
    r->c.struct_size = sizeof r->c;
    OK(tq_cache_get_config(r->cache, &r->c));
}

void rig_open(struct rig *r, const tq_cache_config *c) {
    rig_open_with(r, c, NULL);
}

void rig_close(struct rig *r) {
    tq_cache_destroy(r->cache);
    tq_context_destroy(r->ctx);
    CHECK(r->heap.live_blocks == 0, "%llu blocks leaked", (unsigned long long)r->heap.live_blocks);
    CHECK(r->heap.errors == 0, "%llu faults in memory use", (unsigned long long)r->heap.errors);
}

tq_rows_in rows_in(const float *data) {
    return (tq_rows_in){.data = data, .dtype = TQ_F32};
}

tq_rows_out rows_out(float *data) {
    return (tq_rows_out){.data = data, .dtype = TQ_F32};
}

tq_seq rig_seq(struct rig *r) {
    tq_seq seq = 0;
    OK(tq_seq_create(r->cache, &seq));
    return seq;
}

tq_seq rig_fork(struct rig *r, tq_seq src, uint64_t n) {
    tq_seq seq = 0;
    OK(tq_seq_fork(r->cache, src, n, &seq));
    return seq;
}

uint64_t rig_length(const struct rig *r, tq_seq seq, uint32_t layer) {
    uint64_t n = UINT64_MAX;
    OK(tq_seq_length(r->cache, seq, layer, &n));
    return n;
}

tq_cache_stats rig_stats(const struct rig *r) {
    tq_cache_stats s = {.struct_size = sizeof s};
    OK(tq_cache_get_stats(r->cache, &s));
    return s;
}

size_t rig_k_row(const struct rig *r) {
    return (size_t)r->c.n_kv_heads * r->c.head_dim;
}

size_t rig_v_row(const struct rig *r) {
    return (size_t)r->c.n_kv_heads * r->c.v_head_dim;
}

size_t rig_q_row(const struct rig *r) {
    return (size_t)r->c.n_q_heads * r->c.head_dim;
}

size_t rig_out_row(const struct rig *r) {
    return (size_t)r->c.n_q_heads * r->c.v_head_dim;
}

void rig_append(struct rig *r, tq_seq seq, uint32_t layer, uint32_t n, const float *k,
                const float *v) {
    tq_rows_in keys = rows_in(k), values = rows_in(v);
    OK(tq_append(r->cache, seq, layer, n, &keys, &values, NULL));
}

void rig_append_random(struct rig *r, tq_seq seq, uint32_t layer, uint32_t n, struct rng *rng) {
    float *k = random_rows(rng, n * rig_k_row(r), 1), *v = random_rows(rng, n * rig_v_row(r), 1);
    rig_append(r, seq, layer, n, k, v);
    free(k);
    free(v);
}

void rig_read(const struct rig *r, tq_seq seq, uint32_t layer, uint64_t first, uint32_t n, float *k,
              float *v) {
    tq_rows_out keys = rows_out(k), values = rows_out(v);
    OK(tq_read_rows(r->cache, seq, layer, first, n, k ? &keys : NULL, v ? &values : NULL));
}

/* ---- attention ------------------------------------------------------------------------- */

struct asked ask_make(const struct rig *r, uint32_t n_queries, uint32_t flags, struct rng *rng) {
    struct asked a = {.n_queries = n_queries, .flags = flags};
    a.q = random_rows(rng, n_queries * rig_q_row(r), 1);
    a.out = must_alloc(n_queries * rig_out_row(r), sizeof(float));
    a.lse = must_alloc((size_t)n_queries * r->c.n_q_heads, sizeof(float));
    return a;
}

tq_attend_params ask_begin(const struct rig *r, struct asked *a) {
    tq_attend_params params = {.struct_size = sizeof params,
                               .flags = a->flags,
                               .scale = a->scale,
                               .logit_softcap = a->softcap,
                               .window = a->window};
    memset(a->out, 0xff, a->n_queries * rig_out_row(r) * sizeof(float));
    memset(a->lse, 0xff, (size_t)a->n_queries * r->c.n_q_heads * sizeof(float));
    return params;
}

void ask(const struct rig *r, tq_seq seq, uint32_t layer, struct asked *a) {
    tq_attend_params params = ask_begin(r, a);
    tq_rows_in q = rows_in(a->q);
    tq_rows_out out = rows_out(a->out);
    OK(tq_attend(r->cache, seq, layer, a->n_queries, &params, &q, &out, a->lse, NULL));
}

void ask_free(struct asked *a) {
    free(a->q);
    free(a->out);
    free(a->lse);
}

int same_answer(const struct rig *r, const struct asked *a, const struct asked *b) {
    return a->n_queries == b->n_queries &&
           memcmp(a->out, b->out, a->n_queries * rig_out_row(r) * sizeof(float)) == 0 &&
           memcmp(a->lse, b->lse, (size_t)a->n_queries * r->c.n_q_heads * sizeof(float)) == 0;
}

static double largest_norm(const float *rows, size_t n, uint32_t dim) {
    double largest = 0;
    for (size_t r = 0; r < n; r++) {
        double sum = 0;
        for (uint32_t i = 0; i < dim; i++)
            sum += (double)rows[r * dim + i] * (double)rows[r * dim + i];
        largest = fmax(largest, sqrt(sum));
    }
    return largest;
}

/* An integer query has a relative error, so that the error of a logit is in proportion to
 * scale |q| |k|, whatever the logit itself is. The reference gets no allowance. */
static double stretch_of(const struct shape *s, const float *q, const float *k) {
    double scale = s->scale != 0 ? fabs(s->scale) : 1 / sqrt(s->k_dim);
    if (test_features_disabled() == UINT64_MAX)
        return 1;
    size_t q_rows = (size_t)s->n_queries * s->n_kv_heads * s->group;
    size_t k_rows = (size_t)s->n_tokens * s->n_kv_heads;
    double reach = scale * largest_norm(q, q_rows, s->k_dim) * largest_norm(k, k_rows, s->k_dim);
    return fmax(1, reach / 16);
}

struct verdict judge(const struct rig *r, tq_seq seq, uint32_t layer, const struct asked *a) {
    uint32_t n = (uint32_t)rig_length(r, seq, layer);
    struct shape shape = {.n_tokens = n,
                          .n_queries = a->n_queries,
                          .n_kv_heads = r->c.n_kv_heads,
                          .group = r->c.n_q_heads / r->c.n_kv_heads,
                          .k_dim = r->c.head_dim,
                          .v_dim = r->c.v_head_dim,
                          .causal = (a->flags & TQ_ATTEND_CAUSAL) != 0,
                          .scale = (double)a->scale,
                          .softcap = (double)a->softcap,
                          .window = a->window,
                          .sinks = a->sinks};
    size_t rows = (size_t)a->n_queries * r->c.n_q_heads, outs = rows * r->c.v_head_dim;
    float *k = must_alloc(n * rig_k_row(r), sizeof *k),
          *v = must_alloc(n * rig_v_row(r), sizeof *v);
    double *out = must_alloc(outs, sizeof *out), *lse = must_alloc(rows, sizeof *lse);
    rig_read(r, seq, layer, 0, n, k, v);
    plain_attend(&shape, a->q, k, v, out, lse);
    struct verdict verdict = {relative_error(a->out, out, outs),
                              largest_difference(a->lse, lse, rows), stretch_of(&shape, a->q, k)};
    free(k);
    free(v);
    free(out);
    free(lse);
    return verdict;
}

void check_attention(const struct rig *r, tq_seq seq, uint32_t layer, uint32_t n_queries,
                     struct rng *rng, const char *what) {
    for (uint32_t flags = 0; flags <= TQ_ATTEND_CAUSAL; flags++) {
        struct asked a = ask_make(r, n_queries, flags, rng);
        ask(r, seq, layer, &a);
        JUSTIFIED(judge(r, seq, layer, &a), "%s, %u queries, flags %u", what, n_queries, flags);
        ask_free(&a);
    }
}

/* ---- snapshots ------------------------------------------------------------------------- */

struct snapshot snapshot_take(const struct rig *r, tq_seq seq) {
    struct snapshot s = {.seq = seq, .stats = rig_stats(r)};
    struct rng rng = {7};
    s.lengths = must_alloc(r->c.n_layers, sizeof *s.lengths);
    s.answers = must_alloc(r->c.n_layers, sizeof *s.answers);
    for (uint32_t l = 0; l < r->c.n_layers; l++) {
        s.lengths[l] = rig_length(r, seq, l);
        s.answers[l] = ask_make(r, 2, TQ_ATTEND_CAUSAL, &rng);
        ask(r, seq, l, &s.answers[l]);
    }
    return s;
}

static void check_counters(const tq_cache_stats *a, const tq_cache_stats *b, const char *what) {
    CHECK(a->n_seqs == b->n_seqs, "%s: number of sequences", what);
    CHECK(a->pages_used == b->pages_used, "%s: pages used", what);
    CHECK(a->pages_shared == b->pages_shared, "%s: pages shared", what);
    CHECK(a->tokens == b->tokens, "%s: tokens", what);
    CHECK(a->nan_values == b->nan_values, "%s: NaNs counted", what);
    CHECK(a->inf_values == b->inf_values, "%s: infinities counted", what);
}

void snapshot_check_content(const struct rig *r, const struct snapshot *before, const char *what) {
    struct snapshot now = snapshot_take(r, before->seq);
    check_counters(&now.stats, &before->stats, what);
    for (uint32_t l = 0; l < r->c.n_layers; l++) {
        CHECK(now.lengths[l] == before->lengths[l], "%s: length in layer %u", what, l);
        CHECK(same_answer(r, &now.answers[l], &before->answers[l]), "%s: attention in layer %u",
              what, l);
    }
    snapshot_free(r, &now);
}

void snapshot_check(const struct rig *r, const struct snapshot *before, const char *what) {
    tq_cache_stats now = rig_stats(r);
    snapshot_check_content(r, before, what);
    CHECK(now.pages_total == before->stats.pages_total, "%s: pages held", what);
    CHECK(now.host_bytes == before->stats.host_bytes, "%s: host bytes were %llu, are %llu", what,
          (unsigned long long)before->stats.host_bytes, (unsigned long long)now.host_bytes);
}

void snapshot_free(const struct rig *r, struct snapshot *s) {
    for (uint32_t l = 0; l < r->c.n_layers; l++)
        ask_free(&s->answers[l]);
    free(s->lengths);
    free(s->answers);
}
