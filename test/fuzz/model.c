#include "fuzz/model.h"

#include <math.h>
#include <string.h>

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

int model_has_room(const struct model *m, const struct model_seq *s, uint32_t first,
                   uint32_t last) {
    uint64_t used = 0;
    for (int i = 0; i < ALL_PAGES; i++)
        used += m->references[i] > 0;
    for (uint32_t i = first; i < last; i++)
        used += i >= s->n_pages || m->references[s->pages[i]] > 1;
    return !m->c.max_pages || used <= m->c.max_pages;
}

int model_has_room_for(const struct model *m, const struct model_seq *s, uint32_t layer,
                       uint32_t n) {
    uint32_t start = s->lengths[layer];
    return !n || model_has_room(m, s, start / m->c.page_tokens, pages_of(m, start + n));
}

/* Pages that will be written are the sequence's own. */
static void own_pages(struct model *m, struct model_seq *s, uint32_t first, uint32_t last) {
    for (uint32_t i = first; i < last; i++) {
        if (i < s->n_pages && m->references[s->pages[i]] == 1)
            continue;
        if (i < s->n_pages)
            m->references[s->pages[i]]--;
        else
            s->n_pages = i + 1;
        s->pages[i] = new_page(m);
    }
}

static void make_room(struct model *m, struct model_seq *s, uint32_t layer, uint32_t n) {
    uint32_t start = s->lengths[layer];
    own_pages(m, s, start / m->c.page_tokens, pages_of(m, start + n));
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

/* A token is exact as long as it is among the first tokens and all before it are exact too, or
 * among the last ones and all behind it are. */
static void settle(const struct model *m, struct model_seq *s) {
    for (uint32_t l = 0; l < m->c.n_layers; l++) {
        uint8_t *exact = s->exact[l];
        uint32_t n = s->lengths[l], head = 0, tail = 0;
        while (head < n && head < m->c.sink_tokens && exact[head])
            head++;
        while (tail < n && tail < m->c.recent_tokens && exact[n - 1 - tail])
            tail++;
        for (uint32_t i = 0; i < n; i++)
            exact[i] = i < head || i >= n - tail;
    }
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
    settle(m, to);
}

void model_append(struct model *m, struct model_seq *s, uint32_t layer, const uint8_t *tokens,
                  uint32_t n) {
    if (n)
        make_room(m, s, layer, n);
    for (uint32_t i = 0; i < n; i++) {
        s->exact[layer][s->lengths[layer]] = 1;
        s->tokens[layer][s->lengths[layer]++] = tokens[i];
        m->nan_values += tokens[i] == NAN_ROW;
    }
    settle(m, s);
}

void model_truncate(struct model *m, struct model_seq *s, uint32_t n) {
    keep_pages(m, s, pages_of(m, n));
    for (uint32_t l = 0; l < m->c.n_layers; l++)
        s->lengths[l] = n;
    settle(m, s);
}

/* Pages [first, last) leave the table. */
static void drop_pages(struct model *m, struct model_seq *s, uint32_t first, uint32_t last) {
    for (uint32_t i = first; i < last; i++)
        m->references[s->pages[i]]--;
    memmove(s->pages + first, s->pages + last, s->n_pages - last);
    s->n_pages -= last - first;
}

/* Whole pages change their place, and one is put together of two; else all behind are written. */
static int remove_pages(struct model *m, struct model_seq *s, uint32_t first, uint32_t n) {
    uint32_t P = m->c.page_tokens, page = first / P, end = pages_of(m, model_longest(m, s) - n);
    int whole = n % P == 0;
    uint32_t last = !whole ? end : first % P ? page + 1 : page;
    if (!model_has_room(m, s, page, last))
        return 0;
    own_pages(m, s, page, last);
    if (whole)
        drop_pages(m, s, last, last + n / P);
    else
        keep_pages(m, s, end);
    return 1;
}

int model_remove(struct model *m, struct model_seq *s, uint32_t first, uint32_t n) {
    if (n == 0)
        return 1;
    if (first + n == model_longest(m, s)) {
        model_truncate(m, s, first);
        return 1;
    }
    if (!remove_pages(m, s, first, n))
        return 0;
    for (uint32_t l = 0; l < m->c.n_layers; l++) {
        uint32_t behind = s->lengths[l] - first - n;
        memmove(s->tokens[l] + first, s->tokens[l] + first + n, behind);
        memmove(s->exact[l] + first, s->exact[l] + first + n, behind);
        s->lengths[l] -= n;
    }
    settle(m, s);
    return 1;
}

void model_add_range(struct model *m, struct model_seq *to, const struct model_seq *from,
                     uint32_t first, uint32_t n) {
    if (n)
        make_room(m, to, 0, n);
    for (uint32_t l = 0; l < m->c.n_layers; l++) {
        memmove(to->tokens[l] + to->lengths[l], from->tokens[l] + first, n);
        memmove(to->exact[l] + to->lengths[l], from->exact[l] + first, n);
        to->lengths[l] += n;
    }
    settle(m, to);
}

void model_reorder(struct model *m, uint32_t n, const uint32_t *slots, const uint32_t *parents) {
    struct model_seq before[MAX_SEQS];
    memcpy(before, m->seqs, sizeof before);
    for (uint32_t i = 0; i < n; i++) {
        struct model_seq *s = &m->seqs[slots[i]];
        const struct model_seq *from = &before[slots[parents[i]]];
        for (uint32_t p = 0; p < from->n_pages; p++)
            m->references[from->pages[p]]++;
        *s = *from;
        s->id = before[slots[i]].id;
    }
    for (uint32_t i = 0; i < n; i++)
        for (uint32_t p = 0; p < before[slots[i]].n_pages; p++)
            m->references[before[slots[i]].pages[p]]--;
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
        const float *k = model_k_of(m, s, layer, t);
        score[t] = dot(q, k + (size_t)kv_head * dim, dim) / sqrt(dim);
        top = score[t] > top ? score[t] : top;
    }
    for (uint32_t t = 0; t < visible; t++)
        sum += score[t] = exp(score[t] - top);
    for (uint32_t t = 0; t < visible; t++) {
        const float *v = model_v_of(m, s, layer, t);
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
