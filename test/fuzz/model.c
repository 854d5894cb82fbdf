#include "fuzz/model.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

/* ---- rows ------------------------------------------------------------------------------ */

size_t model_k_row(const struct model *m) {
    return (size_t)m->c.n_kv_heads * m->c.head_dim;
}

size_t model_v_row(const struct model *m) {
    return (size_t)m->c.n_kv_heads * m->c.v_head_dim;
}

/* Roughly normal numbers; row 0 is zero, the last one larger. */
static float *make_rows(size_t row, uint32_t state) {
    float *x = fuzz_alloc(N_ROWS * row * sizeof *x);
    for (size_t i = row; i < N_ROWS * row; i++) {
        float sum = 0;
        for (int j = 0; j < 4; j++) {
            state = state * 1664525u + 1013904223u;
            sum += (float)(state >> 8) / 8388608.0f - 1;
        }
        x[i] = i / row == N_ROWS - 1 ? 4 * sum : sum;
    }
    return x;
}

static void learn_layer(struct model *m, tq_cache *cache, tq_seq seq, uint32_t layer) {
    tq_rows_in k = {.data = m->k}, v = {.data = m->v};
    m->k_read[layer] = fuzz_alloc(N_ROWS * model_k_row(m) * sizeof(float));
    m->v_read[layer] = fuzz_alloc(N_ROWS * model_v_row(m) * sizeof(float));
    tq_rows_out k_out = {.data = m->k_read[layer]}, v_out = {.data = m->v_read[layer]};
    MUST(tq_append(cache, seq, layer, N_ROWS, &k, &v, NULL) == TQ_OK);
    MUST(tq_read_rows(cache, seq, layer, 0, N_ROWS, &k_out, &v_out) == TQ_OK);
}

struct model *model_make(const tq_cache_config *config, const float *means) {
    struct model *m = fuzz_alloc(sizeof *m);
    tq_context *ctx = NULL;
    tq_cache *cache = NULL;
    tq_cache_config plain = *config;
    tq_seq seq = 0;
    plain.max_pages = 1; /* enough, and small */
    m->c.struct_size = sizeof m->c;
    tq_context_config reference = {.struct_size = sizeof reference,
                                   .cpu_features_disabled = UINT64_MAX};
    MUST(tq_context_create(&reference, &ctx) == TQ_OK);
    MUST(tq_cache_create(ctx, &plain, &cache) == TQ_OK);
    MUST(tq_cache_get_config(cache, &m->c) == TQ_OK);
    m->c.max_pages = config->max_pages;
    m->c.layer_formats = NULL; /* that cache's memory */
    m->k = make_rows(model_k_row(m), 1);
    m->v = make_rows(model_v_row(m), 2);
    m->k[NAN_ROW * model_k_row(m) + 3] = NAN;
    MUST(tq_seq_create(cache, &seq) == TQ_OK);
    for (uint32_t l = 0; l < m->c.n_layers; l++) {
        MUST(!means || tq_cache_set_means(cache, l, means, means) == TQ_OK);
        learn_layer(m, cache, seq, l);
    }
    tq_cache_destroy(cache);
    tq_context_destroy(ctx);
    return m;
}

void model_free(struct model *m) {
    for (uint32_t l = 0; l < MAX_LAYERS; l++) {
        free(m->k_read[l]);
        free(m->v_read[l]);
    }
    free(m->k);
    free(m->v);
    free(m);
}

/* ---- pages ----------------------------------------------------------------------------- */

static uint32_t pages_of(const struct model *m, uint32_t n) {
    return (n + m->c.page_tokens - 1) / m->c.page_tokens;
}

static uint8_t new_page(struct model *m) {
    uint8_t page = 0;
    while (page < ALL_PAGES && m->references[page])
        page++;
    MUST(page < ALL_PAGES);
    m->references[page] = 1;
    return page;
}

static void keep_pages(struct model *m, struct model_seq *s, uint32_t n) {
    while (s->n_pages > n)
        m->references[s->pages[--s->n_pages]]--;
}

uint32_t model_demand(const struct model *m, const struct model_seq *s, uint32_t layer,
                      uint32_t n) {
    uint32_t start = s->lengths[layer], last = pages_of(m, start + n), demand = 0;
    for (uint32_t i = start / m->c.page_tokens; i < last; i++)
        demand += i >= s->n_pages || m->references[s->pages[i]] > 1;
    return demand;
}

/* Pages that will be written are the sequence's own. */
static void make_room(struct model *m, struct model_seq *s, uint32_t layer, uint32_t n) {
    uint32_t start = s->lengths[layer], last = pages_of(m, start + n);
    for (uint32_t i = start / m->c.page_tokens; i < last; i++) {
        if (i < s->n_pages && m->references[s->pages[i]] == 1)
            continue;
        if (i < s->n_pages)
            m->references[s->pages[i]]--;
        else
            s->n_pages = i + 1;
        s->pages[i] = new_page(m);
    }
}

/* ---- sequences ------------------------------------------------------------------------- */

uint32_t model_alive(const struct model *m) {
    uint32_t n = 0;
    for (int i = 0; i < MAX_SEQS; i++)
        n += m->seqs[i].alive != 0;
    return n;
}

struct model_seq *model_free_slot(struct model *m) {
    int i = 0;
    while (i < MAX_SEQS && m->seqs[i].alive)
        i++;
    return i < MAX_SEQS ? &m->seqs[i] : NULL;
}

uint32_t model_shortest(const struct model *m, const struct model_seq *s) {
    uint32_t n = s->lengths[0];
    for (uint32_t l = 1; l < m->c.n_layers; l++)
        n = s->lengths[l] < n ? s->lengths[l] : n;
    return n;
}

uint32_t model_longest(const struct model *m, const struct model_seq *s) {
    uint32_t n = s->lengths[0];
    for (uint32_t l = 1; l < m->c.n_layers; l++)
        n = s->lengths[l] > n ? s->lengths[l] : n;
    return n;
}

tq_status model_prefix(const struct model *m, const struct model_seq *s, uint64_t n) {
    if (!s->alive)
        return TQ_ERR_NOT_FOUND;
    if (n > model_longest(m, s))
        return TQ_ERR_INVALID_ARGUMENT;
    return n > model_shortest(m, s) ? TQ_ERR_INVALID_STATE : TQ_OK;
}

void model_create(struct model_seq *s, tq_seq id) {
    memset(s, 0, sizeof *s);
    s->alive = 1;
    s->id = id;
}

void model_fork(struct model *m, const struct model_seq *from, struct model_seq *to, tq_seq id,
                uint32_t n) {
    *to = *from;
    to->id = id;
    to->n_pages = pages_of(m, n);
    for (uint32_t i = 0; i < to->n_pages; i++)
        m->references[to->pages[i]]++;
    for (uint32_t l = 0; l < m->c.n_layers; l++)
        to->lengths[l] = n;
}

void model_append(struct model *m, struct model_seq *s, uint32_t layer, const uint8_t *tokens,
                  uint32_t n) {
    if (n)
        make_room(m, s, layer, n);
    for (uint32_t i = 0; i < n; i++) {
        s->tokens[layer][s->lengths[layer]++] = tokens[i];
        m->nan_values += tokens[i] == NAN_ROW;
    }
}

void model_truncate(struct model *m, struct model_seq *s, uint32_t n) {
    keep_pages(m, s, pages_of(m, n));
    for (uint32_t l = 0; l < m->c.n_layers; l++)
        s->lengths[l] = n;
}

void model_destroy(struct model *m, struct model_seq *s) {
    keep_pages(m, s, 0);
    s->alive = 0;
}

void model_reset(struct model *m) {
    for (int i = 0; i < MAX_SEQS; i++)
        if (m->seqs[i].alive)
            model_destroy(m, &m->seqs[i]);
    m->nan_values = 0;
}

/* ---- checks ---------------------------------------------------------------------------- */

static void check_lengths(const struct model *m, const tq_cache *cache) {
    for (int i = 0; i < MAX_SEQS; i++)
        for (uint32_t l = 0; l < m->c.n_layers; l++) {
            const struct model_seq *s = &m->seqs[i];
            uint64_t n = 7777;
            tq_status status = tq_seq_length(cache, s->id, l, &n);
            MUST(status == (s->alive ? TQ_OK : TQ_ERR_NOT_FOUND));
            MUST(n == (s->alive ? s->lengths[l] : 7777));
        }
}

void model_check(const struct model *m, const tq_cache *cache, size_t host_bytes) {
    tq_cache_stats stats = {.struct_size = sizeof stats};
    uint64_t used = 0, shared = 0, tokens = 0;
    for (int i = 0; i < ALL_PAGES; i++) {
        used += m->references[i] > 0;
        shared += m->references[i] > 1;
    }
    for (int i = 0; i < MAX_SEQS; i++)
        tokens += m->seqs[i].alive ? model_shortest(m, &m->seqs[i]) : 0;
    MUST(tq_cache_get_stats(cache, &stats) == TQ_OK);
    MUST(stats.n_seqs == model_alive(m));
    MUST(stats.pages_used == used && stats.pages_shared == shared);
    MUST(stats.pages_total >= used && (!m->c.max_pages || stats.pages_total == m->c.max_pages));
    MUST(stats.tokens == tokens);
    MUST(stats.nan_values == m->nan_values && stats.inf_values == 0);
    MUST(stats.host_bytes == host_bytes && stats.device_bytes == 0);
    check_lengths(m, cache);
}

static double dot(const float *a, const float *b, uint32_t n) {
    double sum = 0;
    for (uint32_t i = 0; i < n; i++)
        sum += (double)a[i] * (double)b[i];
    return sum;
}

static void attend_row(const struct model *m, const struct model_seq *s, uint32_t layer,
                       uint32_t kv_head, uint32_t visible, const float *q, double *out) {
    uint32_t dim = m->c.head_dim, v_dim = m->c.v_head_dim;
    double score[MAX_TOKENS], top = -INFINITY, sum = 0;
    for (uint32_t t = 0; t < visible; t++) {
        const float *k = m->k_read[layer] + s->tokens[layer][t] * model_k_row(m);
        score[t] = dot(q, k + (size_t)kv_head * dim, dim) / sqrt(dim);
        top = score[t] > top ? score[t] : top;
    }
    for (uint32_t t = 0; t < visible; t++)
        sum += score[t] = exp(score[t] - top);
    for (uint32_t t = 0; t < visible; t++) {
        const float *v = m->v_read[layer] + s->tokens[layer][t] * model_v_row(m);
        for (uint32_t i = 0; i < v_dim; i++)
            out[i] += score[t] / sum * (double)v[(size_t)kv_head * v_dim + i];
    }
}

void model_attend(const struct model *m, const struct model_seq *s, uint32_t layer,
                  uint32_t n_queries, int causal, const float *q, double *out) {
    uint32_t heads = m->c.n_q_heads, group = heads / m->c.n_kv_heads;
    uint32_t length = s->lengths[layer];
    memset(out, 0, (size_t)n_queries * heads * m->c.v_head_dim * sizeof *out);
    for (uint32_t i = 0; i < n_queries * heads; i++) {
        uint32_t behind = causal ? n_queries - 1 - i / heads : 0;
        attend_row(m, s, layer, i % heads / group, behind > length ? 0 : length - behind,
                   q + (size_t)i * m->c.head_dim, out + (size_t)i * m->c.v_head_dim);
    }
}
