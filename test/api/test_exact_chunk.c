/* A chunk of a prompt that sees its own rows unrounded: a cache of 16 bits for the time of the
 * step, joined with the compressed prefix by tq_merge(). INTEGRATION.md has it in words. */
#include <stdlib.h>
#include <string.h>

#include "common/attention.h"
#include "common/cache.h"

enum { KV_HEADS = 2, GROUP = 3, Q_HEADS = KV_HEADS * GROUP, DIM = 80, TOKENS = 150 };
enum { K_ROW = KV_HEADS * DIM, Q_ROW = Q_HEADS * DIM };

struct prompt {
    float *k, *v, *q; /* k and v are numbers of bf16 */
};

static float as_bf16(float x) {
    uint32_t bits;
    memcpy(&bits, &x, sizeof bits);
    bits &= 0xffff0000u;
    memcpy(&x, &bits, sizeof x);
    return x;
}

static float *rows_of_bf16(size_t n, struct rng *rng) {
    float *rows = random_rows(rng, n, 1);
    for (size_t i = 0; i < n; i++)
        rows[i] = as_bf16(rows[i]);
    return rows;
}

/* What a chunk that begins with token `first` is to give: the rows before it as they decode, its
 * own as they are. */
static void check_chunk(const struct rig *codes, tq_seq seq, const struct prompt *p, uint32_t first,
                        uint32_t n, const float *out) {
    const struct shape shape = {.n_tokens = first + n,
                                .n_queries = n,
                                .n_kv_heads = KV_HEADS,
                                .group = GROUP,
                                .k_dim = DIM,
                                .v_dim = DIM,
                                .causal = 1};
    size_t rows = (size_t)(first + n) * K_ROW, outs = (size_t)n * Q_ROW;
    float *k = must_alloc(rows, sizeof *k), *v = must_alloc(rows, sizeof *v);
    double *want = must_alloc(outs, sizeof *want), *lse = must_alloc(n * Q_HEADS, sizeof *lse);
    memcpy(k, p->k, rows * sizeof *k);
    memcpy(v, p->v, rows * sizeof *v);
    if (first)
        rig_read(codes, seq, 0, 0, first, k, v);
    plain_attend(&shape, p->q + (size_t)first * Q_ROW, k, v, want, lse);
    AT_MOST(relative_error(out, want, outs), ATTEND_TOLERANCE, "%u rows from token %u", n, first);
    free(k);
    free(v);
    free(want);
    free(lse);
}

/* The whole prompt in chunks, every one exact in itself. */
static void prefill(struct rig *codes, struct rig *exact, const struct prompt *p, uint32_t chunk,
                    float *out) {
    tq_seq seq = rig_seq(codes);
    for (uint32_t first = 0, n; first < TOKENS; first += n) {
        n = TOKENS - first < chunk ? TOKENS - first : chunk;
        const float *k = p->k + (size_t)first * K_ROW, *v = p->v + (size_t)first * K_ROW;
        const float *q = p->q + (size_t)first * Q_ROW;
        tq_seq own = rig_seq(exact);
        rig_append(exact, own, 0, n, k, v);
        struct asked before = ask_with(codes, seq, 0, n, 0, q);
        struct asked self = ask_with(exact, own, 0, n, TQ_ATTEND_CAUSAL, q);
        tq_rows_in a = rows_in(before.out), b = rows_in(self.out);
        tq_rows_out to = rows_out(out + (size_t)first * Q_ROW);
        OK(tq_merge(codes->ctx, n, Q_HEADS, DIM, &a, before.lse, &b, self.lse, &to, NULL, NULL));
        check_chunk(codes, seq, p, first, n, to.data);
        rig_append(codes, seq, 0, n, k, v);
        OK(tq_seq_destroy(exact->cache, own));
        ask_free(&before);
        ask_free(&self);
    }
    OK(tq_seq_destroy(codes->cache, seq));
}

/* All rows over codes alone, and over the rows themselves. */
static void prefill_codes(struct rig *codes, const struct prompt *p, float *out) {
    tq_seq seq = rig_seq(codes);
    rig_append(codes, seq, 0, TOKENS, p->k, p->v);
    struct asked all = ask_with(codes, seq, 0, TOKENS, TQ_ATTEND_CAUSAL, p->q);
    memcpy(out, all.out, (size_t)TOKENS * Q_ROW * sizeof *out);
    ask_free(&all);
    OK(tq_seq_destroy(codes->cache, seq));
}

static double distance(const float *out, const struct prompt *p) {
    const struct shape shape = {.n_tokens = TOKENS,
                                .n_queries = TOKENS,
                                .n_kv_heads = KV_HEADS,
                                .group = GROUP,
                                .k_dim = DIM,
                                .v_dim = DIM,
                                .causal = 1};
    double *want = must_alloc(TOKENS * Q_ROW, sizeof *want);
    double *lse = must_alloc(TOKENS * Q_HEADS, sizeof *lse);
    plain_attend(&shape, p->q, p->k, p->v, want, lse);
    double error = relative_error(out, want, (size_t)TOKENS * Q_ROW);
    free(want);
    free(lse);
    return error;
}

/* Any chunk size: the rows of the chunk exactly, never further from the truth than codes alone; the
 * whole prompt in one chunk is the truth. */
static void test_chunks(void **state) {
    (void)state;
    static const tq_variant variants[] = {TQ_VARIANT_4BIT_NC, TQ_VARIANT_INT8, TQ_VARIANT_FP8};
    static const uint32_t chunks[] = {1, 7, 64, 100, TOKENS};
    for (size_t i = 0; i < COUNT(variants); i++) {
        struct rig codes = {0}, exact = {0};
        struct rng rng = {7};
        tq_cache_config c = plain_config(variants[i], DIM, KV_HEADS, GROUP);
        tq_cache_config e = plain_config(TQ_VARIANT_BF16, DIM, KV_HEADS, GROUP);
        rig_open(&codes, &c);
        rig_open(&exact, &e);
        struct prompt p = {rows_of_bf16(TOKENS * K_ROW, &rng), rows_of_bf16(TOKENS * K_ROW, &rng),
                           random_rows(&rng, TOKENS * Q_ROW, 1)};
        float *out = must_alloc(TOKENS * Q_ROW, sizeof *out);
        prefill_codes(&codes, &p, out);
        double codes_alone = distance(out, &p), error = 0;
        for (size_t j = 0; j < COUNT(chunks); j++) {
            prefill(&codes, &exact, &p, chunks[j], out);
            error = distance(out, &p);
            AT_MOST(error, codes_alone, "chunks of %u", chunks[j]);
        }
        AT_MOST(error, ATTEND_TOLERANCE, "one chunk");
        free(out);
        free(p.k);
        free(p.v);
        free(p.q);
        rig_close(&exact);
        rig_close(&codes);
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_chunks)};
    return cmocka_run_group_tests_name("exact_chunk", tests, NULL, NULL);
}
