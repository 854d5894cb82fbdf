/* Rows wherever they lie and of whatever type: the same result as adjacent f32 rows of the
 * same values, and not a byte written between the rows. B75: odd element offsets. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "common/cache.h"

/* Ways to lay rows out. Default strides are 0. */
enum kind { ADJACENT, GAPS, HEAD_MAJOR, TOKEN_GAPS, HEAD_GAPS, N_KINDS };

/* Rows in a guarded buffer; what no row covers is NaN. */
struct box {
    struct guarded memory;
    tq_dtype dtype;
    uint32_t n_tokens, n_heads, dim;
    int64_t token_stride, head_stride; /* as the library gets them */
    int64_t real_token_stride, real_head_stride;
};

static void set_strides(struct box *b, enum kind kind) {
    int64_t dim = b->dim, heads = b->n_heads, tokens = b->n_tokens;
    const int64_t strides[N_KINDS][2] = {[GAPS] = {heads * (dim + 3) + 5, dim + 3},
                                         [HEAD_MAJOR] = {dim + 1, tokens * (dim + 1) + 2},
                                         [TOKEN_GAPS] = {heads * dim + 7, 0},
                                         [HEAD_GAPS] = {0, dim + 9}};
    b->token_stride = strides[kind][0];
    b->head_stride = strides[kind][1];
    b->real_head_stride = b->head_stride ? b->head_stride : dim;
    b->real_token_stride = b->token_stride ? b->token_stride : heads * b->real_head_stride;
}

static struct box box_make(enum kind kind, tq_dtype dtype, uint32_t n_tokens, uint32_t n_heads,
                           uint32_t dim) {
    struct box b = {.dtype = dtype, .n_tokens = n_tokens, .n_heads = n_heads, .dim = dim};
    set_strides(&b, kind);
    int64_t last = (n_tokens - 1) * b.real_token_stride + (n_heads - 1) * b.real_head_stride;
    size_t size = dtype_size(dtype);
    /* Odd offsets: the natural alignment of the type and no more. */
    b.memory = guard_make(((size_t)last + dim) * size, (2 * (size_t)kind + 1) * size);
    return b;
}

static char *row_of(const struct box *b, uint32_t token, uint32_t head) {
    int64_t at = token * b->real_token_stride + head * b->real_head_stride;
    return (char *)b->memory.data + (size_t)at * dtype_size(b->dtype);
}

/* Copies rows between a box and adjacent rows of the same type. */
static void box_copy(const struct box *b, void *adjacent, int into_box) {
    size_t bytes = b->dim * dtype_size(b->dtype);
    char *other = adjacent;
    for (uint32_t t = 0; t < b->n_tokens; t++)
        for (uint32_t h = 0; h < b->n_heads; h++, other += bytes)
            memcpy(into_box ? row_of(b, t, h) : other, into_box ? other : row_of(b, t, h), bytes);
}

static void box_free(struct box *b) {
    size_t bytes = b->dim * dtype_size(b->dtype);
    const unsigned char *data = b->memory.data;
    unsigned char *covered = must_alloc(b->memory.bytes, 1);
    for (uint32_t t = 0; t < b->n_tokens; t++)
        for (uint32_t h = 0; h < b->n_heads; h++)
            memset(covered + ((unsigned char *)row_of(b, t, h) - data), 1, bytes);
    for (size_t i = 0; i < b->memory.bytes; i++)
        CHECK(covered[i] || data[i] == GUARD_FILL, "byte %zu between the rows was written", i);
    free(covered);
    guard_free(&b->memory);
}

static tq_rows_in box_in(const struct box *b) {
    return (tq_rows_in){.data = b->memory.data,
                        .token_stride = b->token_stride,
                        .head_stride = b->head_stride,
                        .dtype = b->dtype};
}

static tq_rows_out box_out(const struct box *b) {
    return (tq_rows_out){.data = b->memory.data,
                         .token_stride = b->token_stride,
                         .head_stride = b->head_stride,
                         .dtype = b->dtype};
}

/* ---- input ----------------------------------------------------------------------------- */

/* Random rows in a box; the same values as adjacent f32 rows in *plain. */
static struct box random_box(enum kind kind, tq_dtype dtype, uint32_t n_tokens, uint32_t n_heads,
                             uint32_t dim, struct rng *rng, float **plain) {
    struct box b = box_make(kind, dtype, n_tokens, n_heads, dim);
    size_t n = (size_t)n_tokens * n_heads * dim;
    float *wide = random_rows(rng, n, 1);
    void *narrow = convert_rows(wide, n, dtype);
    box_copy(&b, narrow, 1);
    *plain = widen_rows(narrow, n, dtype);
    free(wide);
    free(narrow);
    return b;
}

enum { KV_HEADS = 2, GROUP = 3, K_DIM = 64, V_DIM = 96, TOKENS = 19, QUERIES = 2 };

static void open_variant(struct rig *r, tq_variant variant) {
    tq_cache_config c = plain_config(variant, K_DIM, KV_HEADS, GROUP);
    c.v_head_dim = V_DIM;
    c.page_tokens = 16;
    rig_open(r, &c);
}

/* One call of append and attend with boxes of these types and layouts. */
static void check_input(struct rig *r, const tq_dtype dtypes[3], const enum kind kinds[3]) {
    struct rng rng = {(uint64_t)(dtypes[0] + 3 * dtypes[1] + 9 * dtypes[2])};
    float *k, *v, *q;
    char what[96];
    tq_seq plain = rig_seq(r), boxed = rig_seq(r);
    struct box kb = random_box(kinds[0], dtypes[0], TOKENS, KV_HEADS, K_DIM, &rng, &k);
    struct box vb = random_box(kinds[1], dtypes[1], TOKENS, KV_HEADS, V_DIM, &rng, &v);
    struct box qb = random_box(kinds[2], dtypes[2], QUERIES, KV_HEADS * GROUP, K_DIM, &rng, &q);
    tq_rows_in k_rows = box_in(&kb), v_rows = box_in(&vb), q_rows = box_in(&qb);
    (void)snprintf(what, sizeof what, "k %s/%d, v %s/%d, q %s/%d", dtype_name(dtypes[0]), kinds[0],
                   dtype_name(dtypes[1]), kinds[1], dtype_name(dtypes[2]), kinds[2]);
    rig_append(r, plain, 0, TOKENS, k, v);
    struct asked a = ask_with(r, plain, 0, QUERIES, 0, q), b = ask_with(r, plain, 0, QUERIES, 0, q);
    memset(b.out, 0xff, QUERIES * rig_out_row(r) * sizeof(float));
    tq_rows_out out = rows_out(b.out);
    OK(tq_append(r->cache, boxed, 0, TOKENS, &k_rows, &v_rows, NULL));
    OK(tq_attend(r->cache, boxed, 0, QUERIES, NULL, &q_rows, &out, b.lse, NULL));
    CHECK(same_answer(r, &a, &b), "%s: not as adjacent f32 rows", what);
    CHECK(rig_stats(r).nan_values == 0, "%s: something between the rows was read", what);
    OK(tq_seq_destroy(r->cache, plain));
    OK(tq_seq_destroy(r->cache, boxed));
    ask_free(&a);
    ask_free(&b);
    box_free(&kb);
    box_free(&vb);
    box_free(&qb);
    free(k);
    free(v);
    free(q);
}

/* All types of k, v and q together; each side goes through all layouts. */
static void check_inputs(tq_variant variant) {
    struct rig r = {0};
    open_variant(&r, variant);
    for (unsigned types = 0; types < 27; types++)
        for (unsigned i = 0; i < N_KINDS; i++) {
            const tq_dtype dtypes[3] = {all_dtypes[types % 3], all_dtypes[types / 3 % 3],
                                        all_dtypes[types / 9]};
            const enum kind kinds[3] = {i, (i + types) % N_KINDS, (i + 2 * types + 1) % N_KINDS};
            check_input(&r, dtypes, kinds);
        }
    rig_close(&r);
}

static void test_input_rows(void **state) {
    (void)state;
    check_inputs(TQ_VARIANT_4BIT_NC);
    check_inputs(TQ_VARIANT_F16);
    check_inputs(TQ_VARIANT_FP8);
    check_inputs(TQ_VARIANT_POLAR_QJL);
}

/* Means are measured over rows of any type and layout as well. */
static void test_rows_to_fit_means(void **state) {
    (void)state;
    for (unsigned i = 0; i < 3 * N_KINDS; i++) {
        struct rig a = {0}, b = {0};
        struct rng rng = {i};
        float *k, *v;
        open_variant(&a, TQ_VARIANT_3BIT_NC);
        open_variant(&b, TQ_VARIANT_3BIT_NC);
        struct box kb =
            random_box(i % N_KINDS, all_dtypes[i / N_KINDS], TOKENS, KV_HEADS, K_DIM, &rng, &k);
        struct box vb =
            random_box((i + 1) % N_KINDS, all_dtypes[i % 3], TOKENS, KV_HEADS, V_DIM, &rng, &v);
        tq_rows_in k_plain = rows_in(k), v_plain = rows_in(v);
        tq_rows_in k_rows = box_in(&kb), v_rows = box_in(&vb);
        OK(tq_cache_fit_means(a.cache, 0, TOKENS, &k_plain, &v_plain));
        OK(tq_cache_fit_means(b.cache, 0, TOKENS, &k_rows, &v_rows));
        tq_seq a_seq = rig_seq(&a), b_seq = rig_seq(&b);
        rig_append(&a, a_seq, 0, TOKENS, k, v);
        rig_append(&b, b_seq, 0, TOKENS, k, v);
        struct asked answer = ask_make(&a, 1, 0, &rng);
        ask(&a, a_seq, 0, &answer);
        check_answer(&b, b_seq, 0, &answer, "fitted to boxed rows");
        ask_free(&answer);
        box_free(&kb);
        box_free(&vb);
        free(k);
        free(v);
        rig_close(&a);
        rig_close(&b);
    }
}

/* ---- output ---------------------------------------------------------------------------- */

/* The rows of a box are f32 rows, rounded once. */
static void check_rounded(const struct box *b, const float *want, const char *what) {
    size_t n = (size_t)b->n_tokens * b->n_heads * b->dim, size = dtype_size(b->dtype);
    char *got = must_alloc(n, size);
    box_copy(b, got, 0);
    for (size_t i = 0; i < n; i++) {
        double x = (double)want[i], y = value_of(got + i * size, b->dtype);
        double limit = b->dtype == TQ_F32 ? 0 : half_unit(x, b->dtype) * (1 + 1e-3);
        AT_MOST(y > x ? y - x : x - y, limit, "%s, %s, element %zu = %g instead of %g", what,
                dtype_name(b->dtype), i, y, x);
    }
    free(got);
}

static void check_attend_output(const struct rig *r, tq_seq seq, enum kind kind, tq_dtype dtype) {
    struct rng rng = {kind};
    struct box b = box_make(kind, dtype, QUERIES, KV_HEADS * GROUP, V_DIM);
    struct asked a = ask_make(r, QUERIES, 0, &rng);
    ask(r, seq, 0, &a);
    struct guarded lse = guard_make(sizeof(float) * QUERIES * KV_HEADS * GROUP, 4);
    tq_rows_in q = rows_in(a.q);
    tq_rows_out out = box_out(&b);
    OK(tq_attend(r->cache, seq, 0, QUERIES, NULL, &q, &out, lse.data, NULL));
    check_rounded(&b, a.out, "attend");
    CHECK(memcmp(lse.data, a.lse, lse.bytes) == 0, "lse depends on the type of out");
    guard_free(&lse);
    box_free(&b);
    ask_free(&a);
}

/* Tokens [first, first + n) through boxes. */
static void check_read_output(const struct rig *r, tq_seq seq, enum kind kind, tq_dtype dtype,
                              uint32_t first, uint32_t n) {
    struct box kb = box_make(kind, dtype, n, KV_HEADS, K_DIM);
    struct box vb = box_make((kind + 1) % N_KINDS, dtype, n, KV_HEADS, V_DIM);
    float *k = must_alloc(TOKENS * rig_k_row(r), sizeof *k);
    float *v = must_alloc(TOKENS * rig_v_row(r), sizeof *v);
    tq_rows_out k_rows = box_out(&kb), v_rows = box_out(&vb);
    rig_read(r, seq, 0, 0, TOKENS, k, v);
    OK(tq_read_rows(r->cache, seq, 0, first, n, &k_rows, &v_rows));
    check_rounded(&kb, k + first * rig_k_row(r), "keys read");
    check_rounded(&vb, v + first * rig_v_row(r), "values read");
    box_free(&kb);
    box_free(&vb);
    free(k);
    free(v);
}

static void test_output_rows(void **state) {
    (void)state;
    for (uint32_t i = 0; i < tq_variant_count(); i++) {
        struct rig r = {0};
        struct rng rng = {i};
        open_variant(&r, variant_at(i).id);
        tq_seq seq = rig_seq(&r);
        rig_append_random(&r, seq, 0, TOKENS, &rng);
        for (unsigned kind = 0; kind < N_KINDS; kind++)
            for (size_t t = 0; t < COUNT(all_dtypes); t++) {
                check_attend_output(&r, seq, kind, all_dtypes[t]);
                check_read_output(&r, seq, kind, all_dtypes[t], 0, TOKENS);
                check_read_output(&r, seq, kind, all_dtypes[t], 13, 5);
            }
        rig_close(&r);
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_input_rows),
        cmocka_unit_test(test_rows_to_fit_means),
        cmocka_unit_test(test_output_rows),
    };
    return cmocka_run_group_tests_name("strides", tests, NULL, NULL);
}
