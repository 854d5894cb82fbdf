/* NaN and infinities in rows: replaced in append, in their element only, and counted. In
 * queries: they spoil their own output row. */
#include <float.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "common/rig.h"

enum { N_TOKENS = 32, PAGE_TOKENS = 16, KV_HEADS = 2, GROUP = 2 };

/* ---- rows with bad elements ------------------------------------------------------------ */

/* Bits of what is not finite: 0, 1 infinities, then NaNs: quiet, signalling, negative. */
enum { N_BAD = 5 };
static const uint32_t bad_f32[N_BAD] = {0x7f800000, 0xff800000, 0x7fc00000, 0x7f800001, 0xffffffff};
static const uint32_t bad_f16[N_BAD] = {0x7c00, 0xfc00, 0x7e00, 0x7c01, 0xffff};
static const uint32_t bad_bf16[N_BAD] = {0x7f80, 0xff80, 0x7fc0, 0x7f81, 0xffff};

static void put_bits(void *rows, size_t i, tq_dtype dtype, uint32_t kind) {
    uint32_t bits = dtype == TQ_F32   ? bad_f32[kind]
                    : dtype == TQ_F16 ? bad_f16[kind]
                                      : bad_bf16[kind];
    uint16_t half = (uint16_t)bits;
    size_t size = dtype_size(dtype);
    memcpy((char *)rows + i * size, size == 4 ? (void *)&bits : (void *)&half, size);
}

/* The same rows twice, with bad elements and with what they are replaced by. */
struct rows {
    void *bad, *good;
    uint64_t n_nan, n_inf;
};

static void spoil(struct rows *r, size_t i, tq_dtype dtype, uint32_t kind) {
    double largest = dtype_largest(dtype);
    put_bits(r->bad, i, dtype, kind);
    store_value((char *)r->good + i * dtype_size(dtype), dtype,
                kind > 1 ? 0
                : kind   ? -largest
                         : largest);
    r->n_inf += kind < 2;
    r->n_nan += kind >= 2;
}

/* A few elements all over, one row of infinities and one of NaNs. */
static struct rows rows_make(struct rng *rng, size_t n_rows, uint32_t dim, tq_dtype dtype) {
    float *random = random_rows(rng, n_rows * dim, 2);
    struct rows r = {.n_nan = 0};
    r.bad = convert_rows(random, n_rows * dim, dtype);
    r.good = convert_rows(random, n_rows * dim, dtype);
    for (uint32_t i = 0; i < dim; i++) {
        spoil(&r, 3 * dim + i, dtype, i % 2);
        spoil(&r, 9 * dim + i, dtype, 2 + i % 3);
    }
    for (size_t row = 10; row < n_rows; row += 3)
        spoil(&r, row * dim + rng_below(rng, dim), dtype, rng_below(rng, N_BAD));
    free(random);
    return r;
}

static void rows_free(struct rows *r) {
    free(r->bad);
    free(r->good);
}

/* ---- caches ---------------------------------------------------------------------------- */

struct check {
    tq_layer_formats pair;
    tq_cache_config c;
    tq_dtype dtype;
    struct rng rng;
    char name[64];
};

/* Keys of every format; values of the same, or of one that can hold them. */
static void for_every_format(void (*check)(struct check *c)) {
    static const uint32_t dims[] = {80, 96, 128};
    for (uint32_t f = 0; f < tq_format_count(); f++)
        for (size_t i = 0; i < COUNT(dims) * COUNT(all_dtypes); i++) {
            tq_format_info info = format_at(f);
            struct check c = {.dtype = all_dtypes[i / COUNT(dims)], .rng = {f * 100 + i}};
            c.pair.k_format = info.id;
            c.pair.v_format = info.roles & TQ_ROLE_V ? info.id : TQ_FORMAT_LM3;
            c.c = pair_config(&c.pair, dims[i % COUNT(dims)], KV_HEADS, GROUP);
            c.c.page_tokens = PAGE_TOKENS;
            (void)snprintf(c.name, sizeof c.name, "%s, %s, dim %u", info.name, dtype_name(c.dtype),
                           c.c.head_dim);
            check(&c);
        }
}

static tq_status append(struct rig *r, tq_seq seq, uint32_t n, const void *k, const void *v,
                        tq_dtype dtype) {
    tq_rows_in k_rows = {.data = k, .dtype = dtype}, v_rows = {.data = v, .dtype = dtype};
    return tq_append(r->cache, seq, 0, n, &k_rows, &v_rows, NULL);
}

static void check_same_bytes(const struct rig *a, tq_seq a_seq, const struct rig *b, tq_seq b_seq,
                             const char *name) {
    for (uint32_t i = 0; i < N_TOKENS / PAGE_TOKENS * KV_HEADS; i++) {
        size_t size = 0, written;
        uint64_t page = i / KV_HEADS;
        OK(tq_read_page(a->cache, a_seq, 0, page, i % KV_HEADS, NULL, 0, &size));
        char *bytes = must_alloc(2, size);
        OK(tq_read_page(a->cache, a_seq, 0, page, i % KV_HEADS, bytes, size, &written));
        OK(tq_read_page(b->cache, b_seq, 0, page, i % KV_HEADS, bytes + size, size, &written));
        CHECK(memcmp(bytes, bytes + size, size) == 0, "%s: page %u", name, i / KV_HEADS);
        free(bytes);
    }
}

static void check_counts(const struct rig *r, uint64_t n_nan, uint64_t n_inf, const char *name) {
    tq_cache_stats stats = rig_stats(r);
    CHECK(stats.nan_values == n_nan, "%s: %llu NaNs of %llu", name,
          (unsigned long long)stats.nan_values, (unsigned long long)n_nan);
    CHECK(stats.inf_values == n_inf, "%s: %llu infinities of %llu", name,
          (unsigned long long)stats.inf_values, (unsigned long long)n_inf);
}

static void check_finite(const float *x, size_t n, const char *name) {
    for (size_t i = 0; i < n; i++)
        CHECK(isfinite(x[i]), "%s: element %zu is %g", name, i, (double)x[i]);
}

static void check_decoded_finite(const struct rig *r, tq_seq seq, const char *name) {
    size_t n = N_TOKENS * rig_k_row(r);
    float *k = must_alloc(n, sizeof *k), *v = must_alloc(n, sizeof *v);
    rig_read(r, seq, 0, 0, N_TOKENS, k, v);
    check_finite(k, n, name);
    check_finite(v, n, name);
    free(k);
    free(v);
}

/* Scores may leave the range of f32, so that lse is infinite; outputs may not. The same at a scale
 * that brings logits to 16, where integer queries get no allowance. */
static void check_attended_finite(const struct rig *r, tq_seq seq, struct rng *rng,
                                  const char *name) {
    struct asked a = ask_make(r, 3, 0, rng);
    ask(r, seq, 0, &a);
    check_finite(a.out, 3 * rig_out_row(r), name);
    struct verdict found = judge(r, seq, 0, &a);
    AT_MOST(found.out, ATTEND_TOLERANCE * found.stretch, "%s", name);
    a.scale = (float)(1 / sqrt(r->c.head_dim) / found.stretch);
    if (found.stretch > 1 && a.scale >= FLT_MIN) {
        ask(r, seq, 0, &a);
        JUSTIFIED(judge(r, seq, 0, &a), "%s, scale %g", name, (double)a.scale);
    }
    ask_free(&a);
}

/* ---- append ---------------------------------------------------------------------------- */

static void replaced(struct check *c) {
    struct rows k = rows_make(&c->rng, N_TOKENS * KV_HEADS, c->c.head_dim, c->dtype);
    struct rows v = rows_make(&c->rng, N_TOKENS * KV_HEADS, c->c.head_dim, c->dtype);
    struct rig bad = {.ctx = NULL}, good = {.ctx = NULL};
    rig_open(&bad, &c->c);
    rig_open(&good, &c->c);
    tq_seq bad_seq = rig_seq(&bad), good_seq = rig_seq(&good);
    OK(append(&bad, bad_seq, N_TOKENS, k.bad, v.bad, c->dtype));
    OK(append(&good, good_seq, N_TOKENS, k.good, v.good, c->dtype));
    check_same_bytes(&bad, bad_seq, &good, good_seq, c->name);
    check_counts(&bad, k.n_nan + v.n_nan, k.n_inf + v.n_inf, c->name);
    check_counts(&good, 0, 0, c->name);
    check_decoded_finite(&bad, bad_seq, c->name);
    check_attended_finite(&bad, bad_seq, &c->rng, c->name);
    OK(tq_cache_reset(bad.cache));
    check_counts(&bad, 0, 0, c->name);
    rig_close(&bad);
    rig_close(&good);
    rows_free(&k);
    rows_free(&v);
}

static void test_replaced(void **state) {
    (void)state;
    for_every_format(replaced);
}

/* Tokens whose weight is exp(-300) are not heard, though their values are as large as they may be:
 * before the one that is, in its page and behind it. */
static void unheard(struct check *c) {
    enum { TOKENS = 3 * 64, HEARD = 64 + 13 };
    const size_t row = (size_t)KV_HEADS * c->c.head_dim, n = TOKENS * row;
    float *k = must_alloc(n, sizeof *k), *v = must_alloc(n, sizeof *v);
    struct rig rig = {.ctx = NULL};
    for (size_t i = 0; i < n; i++) {
        const int heard = i / row == HEARD;
        k[i] = heard ? 20 : -20;
        v[i] = rng_below(&c->rng, 2) ? -FLT_MAX : FLT_MAX;
        v[i] = heard ? v[i] / FLT_MAX * (float)(1 + rng_below(&c->rng, 5)) : v[i];
    }
    c->c.page_tokens = 64;
    rig_open(&rig, &c->c);
    tq_seq seq = rig_seq(&rig);
    OK(append(&rig, seq, TOKENS, k, v, TQ_F32));
    struct asked a = ask_make(&rig, 1, 0, &c->rng);
    for (size_t i = 0; i < (size_t)c->c.n_q_heads * c->c.head_dim; i++)
        a.q[i] = 1;
    ask(&rig, seq, 0, &a);
    JUSTIFIED(judge(&rig, seq, 0, &a), "%s", c->name);
    ask_free(&a);
    rig_close(&rig);
    free(k);
    free(v);
}

static void test_unheard(void **state) {
    (void)state;
    for_every_format(unheard);
}

/* Counts go on from call to call, whoever does the work; a refused append counts nothing. */
static void test_counts_add_up(void **state) {
    tq_cache_config config = plain_config(TQ_VARIANT_4BIT_NC, 64, KV_HEADS, 1);
    struct test_threads threads = {.n_workers = 3};
    tq_executor executor = test_executor(&threads);
    struct rig rig = {.ctx = NULL};
    struct rng rng = {1};
    struct rows k = rows_make(&rng, N_TOKENS * KV_HEADS, 64, TQ_F32);
    struct rows v = rows_make(&rng, N_TOKENS * KV_HEADS, 64, TQ_F32);
    (void)state;
    config.page_tokens = PAGE_TOKENS;
    config.max_pages = 3 * (N_TOKENS / PAGE_TOKENS);
    rig_open_with(&rig, &config, &executor);
    tq_seq seq = rig_seq(&rig);
    for (uint64_t i = 0; i < 3; i++) {
        check_counts(&rig, i * (k.n_nan + v.n_nan), i * (k.n_inf + v.n_inf), "calls");
        OK(append(&rig, seq, N_TOKENS, k.bad, v.bad, TQ_F32));
    }
    FAILS(append(&rig, seq, N_TOKENS, k.bad, v.bad, TQ_F32), TQ_ERR_OUT_OF_PAGES, "pages");
    OK(tq_seq_destroy(rig.cache, seq)); /* counts stay */
    check_counts(&rig, 3 * (k.n_nan + v.n_nan), 3 * (k.n_inf + v.n_inf), "refused");
    rig_close(&rig);
    rows_free(&k);
    rows_free(&v);
}

/* The means that tq_cache_fit_means() takes from bad rows are those of the replaced ones. */
static void fitted(struct check *c) {
    struct rows k = rows_make(&c->rng, N_TOKENS * KV_HEADS, c->c.head_dim, c->dtype);
    struct rig bad = {.ctx = NULL}, good = {.ctx = NULL};
    tq_rows_in bad_rows = {.data = k.bad, .dtype = c->dtype};
    tq_rows_in good_rows = {.data = k.good, .dtype = c->dtype};
    rig_open(&bad, &c->c);
    rig_open(&good, &c->c);
    OK(tq_cache_fit_means(bad.cache, 0, N_TOKENS, &bad_rows, &bad_rows));
    OK(tq_cache_fit_means(good.cache, 0, N_TOKENS, &good_rows, &good_rows));
    tq_seq bad_seq = rig_seq(&bad), good_seq = rig_seq(&good);
    OK(append(&bad, bad_seq, N_TOKENS, k.good, k.good, c->dtype));
    OK(append(&good, good_seq, N_TOKENS, k.good, k.good, c->dtype));
    check_same_bytes(&bad, bad_seq, &good, good_seq, c->name);
    rig_close(&bad);
    rig_close(&good);
    rows_free(&k);
}

static void test_fitted(void **state) {
    (void)state;
    for_every_format(fitted);
}

/* ---- codec ----------------------------------------------------------------------------- */

static void coded(struct check *c) {
    struct rows rows = rows_make(&c->rng, N_TOKENS, c->c.head_dim, c->dtype);
    tq_codec_config config = {
        .struct_size = sizeof config, .format = c->pair.k_format, .dim = c->c.head_dim};
    tq_rows_in bad = {.data = rows.bad, .dtype = c->dtype};
    tq_rows_in good = {.data = rows.good, .dtype = c->dtype};
    tq_context *ctx = NULL;
    tq_codec *codec = NULL;
    OK(tq_context_create(NULL, &ctx));
    OK(tq_codec_create(ctx, &config, &codec));
    size_t size = tq_codec_row_bytes(codec) * N_TOKENS;
    char *codes = must_alloc(2, size);
    OK(tq_codec_encode(codec, N_TOKENS, &bad, codes));
    OK(tq_codec_encode(codec, N_TOKENS, &good, codes + size));
    CHECK(memcmp(codes, codes + size, size) == 0, "%s: other codes", c->name);
    tq_codec_destroy(codec);
    tq_context_destroy(ctx);
    free(codes);
    rows_free(&rows);
}

static void test_coded(void **state) {
    (void)state;
    for_every_format(coded);
}

/* ---- queries --------------------------------------------------------------------------- */

enum { N_QUERIES = 5 };

struct answer {
    float *out, *lse;
};

static struct answer answer(const struct rig *r, tq_seq seq, const void *q, tq_dtype dtype) {
    tq_rows_in in = {.data = q, .dtype = dtype};
    struct answer a = {must_alloc(N_QUERIES * rig_out_row(r), sizeof *a.out),
                       must_alloc(N_QUERIES * KV_HEADS * GROUP, sizeof *a.lse)};
    tq_rows_out out = rows_out(a.out);
    OK(tq_attend(r->cache, seq, 0, N_QUERIES, NULL, &in, &out, a.lse, NULL));
    return a;
}

static void answer_free(struct answer *a) {
    free(a->out);
    free(a->lse);
}

/* Spoils one element; all rows but its own are as before, bit for bit. */
static void spoil_query(struct check *c, const struct rig *r, tq_seq seq, const void *q,
                        const struct answer *want) {
    size_t n = N_QUERIES * rig_q_row(r), dim = c->c.head_dim, size = dtype_size(c->dtype);
    size_t at = rng_below(&c->rng, (uint32_t)n), row = at / dim;
    void *bad = must_alloc(n, size);
    memcpy(bad, q, n * size);
    put_bits(bad, at, c->dtype, rng_below(&c->rng, N_BAD));
    struct answer got = answer(r, seq, bad, c->dtype);
    for (size_t i = 0; i < N_QUERIES * KV_HEADS * GROUP; i++) {
        int same = memcmp(&got.out[i * dim], &want->out[i * dim], dim * sizeof(float)) == 0 &&
                   memcmp(&got.lse[i], &want->lse[i], sizeof(float)) == 0;
        CHECK(same == (i != row), "%s: element %zu, row %zu", c->name, at, i);
    }
    answer_free(&got);
    free(bad);
}

static void spoiled(struct check *c) {
    struct rig rig = {.ctx = NULL};
    rig_open(&rig, &c->c);
    tq_seq seq = rig_seq(&rig);
    rig_append_random(&rig, seq, 0, N_TOKENS - 3, &c->rng);
    size_t n = N_QUERIES * rig_q_row(&rig);
    float *random = random_rows(&c->rng, n, 1);
    void *q = convert_rows(random, n, c->dtype);
    struct answer want = answer(&rig, seq, q, c->dtype);
    check_finite(want.out, n, c->name);
    for (int i = 0; i < 24 / FEWER; i++)
        spoil_query(c, &rig, seq, q, &want);
    answer_free(&want);
    free(random);
    free(q);
    rig_close(&rig);
}

static void test_spoiled_queries(void **state) {
    (void)state;
    for_every_format(spoiled);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_replaced),      cmocka_unit_test(test_unheard),
        cmocka_unit_test(test_counts_add_up), cmocka_unit_test(test_fitted),
        cmocka_unit_test(test_coded),         cmocka_unit_test(test_spoiled_queries),
    };
    return cmocka_run_group_tests_name("rows that are not finite", tests, NULL, NULL);
}
