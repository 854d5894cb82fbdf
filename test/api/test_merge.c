/* tq_merge(): two parts of a sequence, attended apart, are the whole; empty parts vanish. */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "common/cache.h"

enum { HEADS = 6, DIM = 80, TOKENS = 5, N = TOKENS * HEADS * DIM, ROWS = TOKENS * HEADS };

static tq_context *open_context(const tq_executor *executor) {
    tq_context_config config = {.struct_size = sizeof config, .executor = executor};
    tq_context *ctx = NULL;
    OK(tq_context_create(&config, &ctx));
    return ctx;
}

static tq_rows_in typed_in(const void *data, tq_dtype dtype) {
    return (tq_rows_in){.data = data, .dtype = dtype};
}

static tq_rows_out typed_out(void *data, tq_dtype dtype) {
    return (tq_rows_out){.data = data, .dtype = dtype};
}

/* ---- parts of a sequence ----------------------------------------------------------------- */

static void copy_part(struct rig *r, tq_seq whole, tq_seq part, uint32_t first, uint32_t n) {
    float *k = must_alloc(n * rig_k_row(r), sizeof *k),
          *v = must_alloc(n * rig_v_row(r), sizeof *v);
    rig_read(r, whole, 0, first, n, k, v);
    rig_append(r, part, 0, n, k, v);
    free(k);
    free(v);
}

/* Cut anywhere, also at the ends: the parts join to what the whole gives. bf16 rows are stored as
 * they are read, so that the parts hold the same numbers. */
static void test_parts_of_a_sequence(void **state) {
    (void)state;
    static const uint32_t cuts[] = {0, 1, 17, 32, 99, 100};
    struct rig r = {0};
    struct rng rng = {1};
    tq_cache_config c = plain_config(TQ_VARIANT_BF16, DIM, 2, 3);
    rig_open(&r, &c);
    tq_seq whole = rig_seq(&r);
    rig_append_random(&r, whole, 0, 100, &rng);
    struct asked want = ask_make(&r, TOKENS, 0, &rng);
    ask(&r, whole, 0, &want);
    for (size_t i = 0; i < COUNT(cuts); i++) {
        tq_seq low = rig_seq(&r), high = rig_seq(&r);
        copy_part(&r, whole, low, 0, cuts[i]);
        copy_part(&r, whole, high, cuts[i], 100 - cuts[i]);
        struct asked a = ask_with(&r, low, 0, TOKENS, 0, want.q);
        struct asked b = ask_with(&r, high, 0, TOKENS, 0, want.q);
        tq_rows_in in_a = rows_in(a.out), in_b = rows_in(b.out);
        tq_rows_out out = rows_out(a.out); /* in place */
        double wanted[N], wanted_lse[ROWS];
        OK(tq_merge(r.ctx, TOKENS, HEADS, DIM, &in_a, a.lse, &in_b, b.lse, &out, a.lse, NULL));
        for (size_t j = 0; j < N; j++)
            wanted[j] = (double)want.out[j];
        for (size_t j = 0; j < ROWS; j++)
            wanted_lse[j] = (double)want.lse[j];
        AT_MOST(relative_error(a.out, wanted, N), ATTEND_TOLERANCE, "cut at %u", cuts[i]);
        AT_MOST(largest_difference(a.lse, wanted_lse, ROWS), 1e-6, "cut at %u: lse", cuts[i]);
        ask_free(&a);
        ask_free(&b);
        OK(tq_seq_destroy(r.cache, low));
        OK(tq_seq_destroy(r.cache, high));
    }
    ask_free(&want);
    rig_close(&r);
}

/* ---- empty parts ------------------------------------------------------------------------- */

/* An empty part is not looked at, whatever it holds: the other comes through to the bit. */
static void test_empty_parts(void **state) {
    (void)state;
    static const tq_dtype types[] = {TQ_F32, TQ_F16, TQ_BF16};
    tq_context *ctx = open_context(NULL);
    struct rng rng = {2};
    for (size_t t = 0; t < COUNT(types); t++)
        for (int side = 0; side < 2; side++) {
            size_t size = types[t] == TQ_F32 ? 4 : 2;
            unsigned char part[N * 4], empty[N * 4], out[N * 4];
            float lse[2][ROWS], got[ROWS];
            memset(empty, 0xff, sizeof empty); /* NaN */
            memset(out, 0x55, sizeof out);
            for (size_t i = 0; i < N * size; i++)
                part[i] = (unsigned char)(rng_below(&rng, 0x40)); /* finite in every type */
            for (size_t i = 0; i < ROWS; i++) {
                lse[side][i] = (float)rng_below(&rng, 200) - 100;
                lse[!side][i] = -INFINITY;
            }
            tq_rows_in a = typed_in(side ? empty : part, types[t]);
            tq_rows_in b = typed_in(side ? part : empty, types[t]);
            tq_rows_out to = typed_out(out, types[t]);
            OK(tq_merge(ctx, TOKENS, HEADS, DIM, &a, lse[0], &b, lse[1], &to, got, NULL));
            CHECK(memcmp(out, part, N * size) == 0, "dtype %d, side %d", types[t], side);
            CHECK(memcmp(got, lse[side], sizeof got) == 0, "dtype %d, side %d: lse", types[t],
                  side);
            a = typed_in(empty, types[t]);
            b = typed_in(empty, types[t]);
            OK(tq_merge(ctx, TOKENS, HEADS, DIM, &a, lse[!side], &b, lse[!side], &to, got, NULL));
            for (size_t i = 0; i < N * size; i++)
                CHECK(out[i] == 0, "both empty: byte %zu", i);
            for (size_t i = 0; i < ROWS; i++)
                assert_true(got[i] == -INFINITY);
        }
    tq_context_destroy(ctx);
}

/* ---- weights ----------------------------------------------------------------------------- */

/* Against the formula in double; logarithms far apart must not overflow. */
static void test_weights(void **state) {
    (void)state;
    static const float pairs[][2] = {{0, 0},      {1, -1},     {-3, 5},         {700, 0},
                                     {0, 700},    {-1e30f, 0}, {1e30f, 0},      {-90, -91},
                                     {88, 88.5f}, {0, 1e-6f},  {-1e30f, -1e30f}};
    tq_context *ctx = open_context(NULL);
    for (size_t p = 0; p < COUNT(pairs); p++) {
        float a[3] = {1, -2, 1e30f}, b[3] = {3, 5, -1e30f}, out[3], lse;
        tq_rows_in in_a = rows_in(a), in_b = rows_in(b);
        tq_rows_out to = rows_out(out);
        double high = fmax((double)pairs[p][0], (double)pairs[p][1]);
        double wa = exp((double)pairs[p][0] - high), wb = exp((double)pairs[p][1] - high);
        OK(tq_merge(ctx, 1, 1, 3, &in_a, &pairs[p][0], &in_b, &pairs[p][1], &to, &lse, NULL));
        for (int i = 0; i < 3; i++) {
            double want = (wa * (double)a[i] + wb * (double)b[i]) / (wa + wb);
            AT_MOST(fabs((double)out[i] - want), 1e-7 * (fabs((double)a[i]) + fabs((double)b[i])),
                    "pair %zu, element %d", p, i);
        }
        AT_MOST(fabs((double)lse - (high + log(wa + wb))), 1e-7 * fmax(1, fabs(high)), "lse");
    }
    tq_context_destroy(ctx);
}

/* What is not a number shows, in its own row only. */
static void test_nan(void **state) {
    (void)state;
    tq_context *ctx = open_context(NULL);
    float a[2] = {1, 2}, b[2] = {3, 4}, out[2], lse_a[2] = {NAN, 0}, lse_b[2] = {0, 0}, lse[2];
    tq_rows_in in_a = rows_in(a), in_b = rows_in(b);
    tq_rows_out to = rows_out(out);
    OK(tq_merge(ctx, 2, 1, 1, &in_a, lse_a, &in_b, lse_b, &to, lse, NULL));
    assert_true(isnan(out[0]) && isnan(lse[0]));
    assert_true(out[1] == 3 && fabs((double)lse[1] - log(2)) < 1e-6);
    tq_context_destroy(ctx);
}

/* ---- rows of all kinds ------------------------------------------------------------------- */

/* Strides, more tasks than one, workers: the same bits as plain rows. */
static void test_strides_and_workers(void **state) {
    (void)state;
    enum { MANY = 300, STRIDE = HEADS * DIM + 7, WIDE = DIM + 1 };
    struct test_threads threads = {.n_workers = 3};
    tq_executor executor = test_executor(&threads);
    tq_context *serial = open_context(NULL), *parallel = open_context(&executor);
    struct rng rng = {3};
    float *a = random_rows(&rng, MANY * HEADS * DIM, 1),
          *b = random_rows(&rng, MANY * HEADS * DIM, 1);
    float *lse_a = random_rows(&rng, MANY * HEADS, 3), *lse_b = random_rows(&rng, MANY * HEADS, 3);
    float *want = must_alloc(MANY * HEADS * DIM, sizeof *want);
    float *apart = must_alloc(MANY * STRIDE + HEADS * WIDE, sizeof *apart);
    float *got = must_alloc(MANY * STRIDE + HEADS * WIDE, sizeof *got);
    tq_rows_in in_a = rows_in(a), in_b = rows_in(b);
    tq_rows_out to = rows_out(want);
    OK(tq_merge(serial, MANY, HEADS, DIM, &in_a, lse_a, &in_b, lse_b, &to, NULL, NULL));
    for (size_t t = 0; t < MANY; t++)
        for (size_t h = 0; h < HEADS; h++)
            memcpy(apart + t * STRIDE + h * WIDE, a + (t * HEADS + h) * DIM, DIM * sizeof *a);
    in_a = (tq_rows_in){apart, STRIDE, WIDE, TQ_F32, 0};
    to = (tq_rows_out){got, STRIDE, WIDE, TQ_F32, 0};
    OK(tq_merge(parallel, MANY, HEADS, DIM, &in_a, lse_a, &in_b, lse_b, &to, NULL, NULL));
    assert_true(threads.tasks > 1);
    for (size_t t = 0; t < MANY; t++)
        for (size_t h = 0; h < HEADS; h++)
            CHECK(memcmp(got + t * STRIDE + h * WIDE, want + (t * HEADS + h) * DIM,
                         DIM * sizeof *a) == 0,
                  "token %zu, head %zu", t, h);
    free(a);
    free(b);
    free(lse_a);
    free(lse_b);
    free(want);
    free(apart);
    free(got);
    tq_context_destroy(serial);
    tq_context_destroy(parallel);
}

static void test_arguments(void **state) {
    (void)state;
    tq_context *ctx = open_context(NULL);
    float x[4] = {0}, out[4] = {7, 7, 7, 7}, lse[4] = {0};
    tq_rows_in in = rows_in(x), bad = in;
    tq_rows_out to = rows_out(out), bad_to = to;
    bad.dtype = 9;
    bad_to.reserved = 1;
#define MERGE(ctx, n, heads, dim, a, la, b, lb, to) \
    tq_merge(ctx, n, heads, dim, a, la, b, lb, to, NULL, NULL)
#define INVALID(call, word) FAILS(call, TQ_ERR_INVALID_ARGUMENT, word)
    INVALID(MERGE(NULL, 1, 1, 1, &in, lse, &in, lse, &to), "ctx");
    INVALID(MERGE(ctx, 1, 0, 1, &in, lse, &in, lse, &to), "n_heads");
    INVALID(MERGE(ctx, 1, 1, 0, &in, lse, &in, lse, &to), "dim");
    INVALID(MERGE(ctx, 1, 1, 4097, &in, lse, &in, lse, &to), "dim");
    INVALID(MERGE(ctx, 1, UINT32_MAX, 1, &in, lse, &in, lse, &to), "n_heads");
    INVALID(MERGE(ctx, 1, 1, 1, NULL, lse, &in, lse, &to), "a:");
    INVALID(MERGE(ctx, 1, 1, 1, &in, lse, &bad, lse, &to), "b:");
    INVALID(MERGE(ctx, 1, 1, 1, &in, NULL, &in, lse, &to), "lse_a");
    INVALID(MERGE(ctx, 1, 1, 1, &in, lse, &in, NULL, &to), "lse_b");
    INVALID(MERGE(ctx, 1, 1, 1, &in, lse, &in, lse, &bad_to), "out:");
    OK(MERGE(ctx, 0, 1, 1, NULL, NULL, NULL, NULL, NULL));
    for (int i = 0; i < 4; i++)
        assert_true(out[i] == 7);
    tq_context_destroy(ctx);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_parts_of_a_sequence),
        cmocka_unit_test(test_empty_parts),
        cmocka_unit_test(test_weights),
        cmocka_unit_test(test_nan),
        cmocka_unit_test(test_strides_and_workers),
        cmocka_unit_test(test_arguments),
    };
    return cmocka_run_group_tests_name("merge", tests, NULL, NULL);
}
