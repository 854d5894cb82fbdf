#include "common/cache.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

tq_variant_info variant_of(tq_variant id) {
    for (uint32_t i = 0; i < tq_variant_count(); i++)
        if (variant_at(i).id == id)
            return variant_at(i);
    fail_msg("no variant with id %u", id);
    return variant_at(0);
}

void *page_bytes(const struct rig *r, tq_seq seq, uint32_t layer, uint64_t page, uint32_t kv_head,
                 size_t *size) {
    size_t written = 0;
    *size = 0;
    OK(tq_read_page(r->cache, seq, layer, page, kv_head, NULL, 0, size));
    void *bytes = must_alloc(*size, 1);
    OK(tq_read_page(r->cache, seq, layer, page, kv_head, bytes, *size, &written));
    CHECK(written == *size, "a page has %zu bytes or %zu", *size, written);
    return bytes;
}

void check_same_pages(const struct rig *a, tq_seq a_seq, const struct rig *b, tq_seq b_seq,
                      uint32_t layer, uint64_t n_tokens, const char *what) {
    for (uint64_t page = 0; page * a->c.page_tokens < n_tokens; page++)
        for (uint32_t head = 0; head < a->c.n_kv_heads; head++) {
            size_t a_size, b_size;
            void *a_bytes = page_bytes(a, a_seq, layer, page, head, &a_size);
            void *b_bytes = page_bytes(b, b_seq, layer, page, head, &b_size);
            CHECK(a_size == b_size && memcmp(a_bytes, b_bytes, a_size) == 0,
                  "%s: page %llu, head %u differs", what, (unsigned long long)page, head);
            free(a_bytes);
            free(b_bytes);
        }
}

struct asked ask_with(const struct rig *r, tq_seq seq, uint32_t layer, uint32_t n_queries,
                      uint32_t flags, const float *q) {
    struct rng unused = {0};
    struct asked a = ask_make(r, n_queries, flags, &unused);
    memcpy(a.q, q, n_queries * rig_q_row(r) * sizeof *q);
    ask(r, seq, layer, &a);
    return a;
}

void check_answer(const struct rig *r, tq_seq seq, uint32_t layer, const struct asked *want,
                  const char *what) {
    struct asked a = ask_with(r, seq, layer, want->n_queries, want->flags, want->q);
    CHECK(same_answer(r, &a, want), "%s: another answer", what);
    ask_free(&a);
}

void check_against_rows(const struct rig *r, const struct asked *a, uint32_t n_tokens,
                        const float *k, const float *v, double tolerance, const char *what) {
    struct shape s = {.n_tokens = n_tokens,
                      .n_queries = a->n_queries,
                      .n_kv_heads = r->c.n_kv_heads,
                      .group = r->c.n_q_heads / r->c.n_kv_heads,
                      .k_dim = r->c.head_dim,
                      .v_dim = r->c.v_head_dim,
                      .causal = (a->flags & TQ_ATTEND_CAUSAL) != 0,
                      .scale = (double)a->scale};
    size_t rows = (size_t)a->n_queries * r->c.n_q_heads, n = rows * r->c.v_head_dim;
    double *out = must_alloc(n, sizeof *out), *lse = must_alloc(rows, sizeof *lse);
    plain_attend(&s, a->q, k, v, out, lse);
    AT_MOST(relative_error(a->out, out, n), tolerance, "%s: out", what);
    AT_MOST(largest_difference(a->lse, lse, rows), tolerance, "%s: lse", what);
    free(out);
    free(lse);
}

double one_hot_error(tq_format id, uint32_t role) {
    tq_format_info format = format_of(id);
    if (!(format.flags & TQ_FORMAT_ROTATED))
        return 0;
    if (id == TQ_FORMAT_POLAR || id == TQ_FORMAT_POLAR_QJL)
        return 2 * sqrt(format.mse);
    return role == TQ_ROLE_K ? 0x1p-11 : 0x1p-8;
}
