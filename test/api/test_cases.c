/*
 * Cases of public bug reports that are about rows and buffers. Each test has the number of
 * its case; the symptom of the report is in its comment.
 *
 * Here:            B3 B4 B7 B10 B16 B17 B26
 * test_cases_attend.c: B37 B43 B57 B72 B92     test_large.c: B73
 * Elsewhere in this folder: B2 (properties), B6 (codec_books), B11 (small_stack), B14 B29
 *   (pairs), B13 B27 B31 B32 (invariance), B19 B22 (rows), B21 B49 (fp8), B38 B45 (shapes),
 *   B42 B55 (old_memory), B51 (threads), B54 (arguments_run), B60 B68 (pages), B71
 *   (allocation), B75 (strides, codec)
 *   B53 B55 B58 B60 B63 (cases_surgery), B61 B64 B69 (snapshots)
 * Not supported, so nothing to test: B40 (no custom masks)
 * Later issues: B8 B47 B76 B78 B79 (CUDA), B34 B35 B50 B98 (windows, sinks, softcap),
 *   B80 (TSan), B82 B83 B84 (SIMD), B85 B87 B89 B90 B94 B96 (packages,
 *   bindings); B24 is statistics (test/accuracy)
 */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "common/cache.h"

static const uint32_t all_dims[] = {64, 80, 96, 112, 128, 160, 192, 256, 512, 576};

/* Rows through a format, as keys or values of a cache with one token and a head per row. */
static void through_cache(tq_variant variant, uint32_t dim, uint32_t n, const float *rows, float *k,
                          float *v) {
    struct rig r = {0};
    tq_cache_config c = plain_config(variant, dim, n, 1);
    c.page_tokens = 16;
    rig_open(&r, &c);
    tq_seq seq = rig_seq(&r);
    rig_append(&r, seq, 0, 1, rows, rows);
    rig_read(&r, seq, 0, 0, 1, k, v);
    rig_close(&r);
}

/* Energy of dims [first, dim) of n rows. */
static double energy(const float *rows, uint32_t n, uint32_t dim, uint32_t first) {
    double sum = 0;
    for (uint32_t r = 0; r < n; r++)
        for (uint32_t i = first; i < dim; i++)
            sum += (double)rows[(size_t)r * dim + i] * (double)rows[(size_t)r * dim + i];
    return sum;
}

static double dot(const float *a, const float *b, size_t n) {
    double sum = 0;
    for (size_t i = 0; i < n; i++)
        sum += (double)a[i] * (double)b[i];
    return sum;
}

/* Rows that are zero below `first`. */
static float *tail_rows(struct rng *rng, uint32_t n, uint32_t dim, uint32_t first) {
    float *rows = random_rows(rng, (size_t)n * dim, 1);
    for (uint32_t r = 0; r < n; r++)
        memset(rows + (size_t)r * dim, 0, first * sizeof *rows);
    return rows;
}

enum { ROWS = 200 };

/* B3: a head_dim larger than a block was cut, the rest read as zero. Energy in the upper half
 * stays there to 1 % and what the format may move. */
static void test_b3_upper_half(void **state) {
    (void)state;
    enum { DIM = 256 };
    struct rng rng = {3};
    float *rows = tail_rows(&rng, ROWS, DIM, DIM / 2);
    float *k = must_alloc(ROWS * DIM, sizeof *k), *v = must_alloc(ROWS * DIM, sizeof *v);
    double whole = energy(rows, ROWS, DIM, DIM / 2);
    for (uint32_t i = 0; i < tq_variant_count(); i++) {
        tq_variant_info info = variant_at(i);
        through_cache(info.id, DIM, ROWS, rows, k, v);
        AT_MOST(fabs(energy(k, ROWS, DIM, DIM / 2) / whole - 1),
                0.01 + format_of(info.k_format).mse, "%s: keys", info.name);
        AT_MOST(fabs(energy(v, ROWS, DIM, DIM / 2) / whole - 1),
                0.01 + format_of(info.v_format).mse, "%s: values", info.name);
    }
    free(rows);
    free(k);
    free(v);
}

static double mean_cosine(const float *a, const float *b, uint32_t n, uint32_t dim) {
    double sum = 0;
    for (uint32_t r = 0; r < n; r++) {
        const float *x = a + (size_t)r * dim, *y = b + (size_t)r * dim;
        sum += dot(x, y, dim) / sqrt(dot(x, x, dim) * dot(y, y, dim));
    }
    return sum / n;
}

/* B4: dims behind the last whole block were lost. All energy in the last 16: a cosine of
 * 1 - mse / 2 is expected when norms are kept. */
static void test_b4_last_dims(void **state) {
    (void)state;
    for (size_t d = 0; d < COUNT(all_dims); d++) {
        uint32_t dim = all_dims[d];
        struct rng rng = {dim};
        float *rows = tail_rows(&rng, ROWS, dim, dim - 16);
        float *k = must_alloc(ROWS * dim, sizeof *k), *v = must_alloc(ROWS * dim, sizeof *v);
        for (uint32_t i = 0; i < tq_variant_count(); i++) {
            tq_variant_info info = variant_at(i);
            through_cache(info.id, dim, ROWS, rows, k, v);
            AT_MOST(1 - mean_cosine(rows, k, ROWS, dim), format_of(info.k_format).mse,
                    "%s, dim %u: keys", info.name, dim);
            AT_MOST(1 - mean_cosine(rows, v, ROWS, dim), format_of(info.v_format).mse,
                    "%s, dim %u: values", info.name, dim);
        }
        free(rows);
        free(k);
        free(v);
    }
}

/* B4, second half: one variant's store ran another one's code. */
static void test_b4_variants_differ(void **state) {
    (void)state;
    enum { DIM = 192 };
    struct rng rng = {4};
    float *rows = random_rows(&rng, ROWS * DIM, 1), *k[32];
    float *v = must_alloc(ROWS * DIM, sizeof *v);
    uint32_t n = tq_format_count();
    assert_true(n <= COUNT(k));
    for (uint32_t i = 0; i < n; i++) {
        tq_layer_formats pair = {format_at(i).id, TQ_FORMAT_BF16};
        tq_cache_config c = pair_config(&pair, DIM, ROWS, 1);
        struct rig r = {0};
        k[i] = must_alloc(ROWS * DIM, sizeof **k);
        rig_open(&r, &c);
        tq_seq seq = rig_seq(&r);
        rig_append(&r, seq, 0, 1, rows, rows);
        rig_read(&r, seq, 0, 0, 1, k[i], v);
        rig_close(&r);
        for (uint32_t j = 0; j < i; j++)
            CHECK(memcmp(k[i], k[j], ROWS * DIM * sizeof **k) != 0, "%s decodes like %s",
                  format_at(i).name, format_at(j).name);
    }
    for (uint32_t i = 0; i < n; i++)
        free(k[i]);
    free(rows);
    free(v);
}

/* ---- pages ----------------------------------------------------------------------------- */

/* B7: slots overlapped or ended beyond the buffer. Pages of two caches that differ in one row
 * differ in the page of that row only, and reading a page stays inside the buffer. */
static void check_slots(tq_variant variant, uint32_t dim, uint32_t token, uint32_t head) {
    enum { HEADS = 8, PAGE = 16, PAGES = 4, TOKENS = PAGE * PAGES };
    struct rng rng = {7};
    struct rig r[2] = {{{0}}};
    tq_seq seq[2];
    tq_cache_config c = plain_config(variant, dim, HEADS, 1);
    size_t n = (size_t)TOKENS * HEADS * dim, size, written;
    float *rows = random_rows(&rng, n, 1), *other = random_rows(&rng, dim, 1);
    c.page_tokens = PAGE;
    for (int i = 0; i < 2; i++) {
        rig_open(&r[i], &c);
        seq[i] = rig_seq(&r[i]);
        rig_append(&r[i], seq[i], 0, TOKENS, rows, rows);
        memcpy(rows + ((size_t)token * HEADS + head) * dim, other, dim * sizeof *rows);
    }
    for (uint32_t page = 0; page < PAGES; page++)
        for (uint32_t h = 0; h < HEADS; h++) {
            void *a = page_bytes(&r[0], seq[0], 0, page, h, &size);
            struct guarded b = guard_make(size, page);
            OK(tq_read_page(r[1].cache, seq[1], 0, page, h, b.data, size, &written));
            assert_int_equal(written, size);
            int same = memcmp(a, b.data, size) == 0;
            CHECK(same == !(page == token / PAGE && h == head), "page %u, head %u", page, h);
            free(a);
            guard_free(&b);
        }
    free(rows);
    free(other);
    rig_close(&r[0]);
    rig_close(&r[1]);
}

static void test_b7_slots(void **state) {
    (void)state;
    for (uint32_t i = 0; i < tq_variant_count(); i++)
        for (uint32_t j = 0; j < 4; j++)
            check_slots(variant_at(i).id, j % 2 ? 128 : 96, j * 21, (j * 5 + 2) % 8);
}

/* B10: writes beyond the rows. Inputs end where memory ends, outputs lie between canaries. */
static void check_bounds(tq_variant variant, uint32_t dim, uint32_t n) {
    enum { HEADS = 3, GROUP = 2, QUERIES = 2 };
    struct rng rng = {n};
    struct rig r = {0};
    tq_cache_config c = plain_config(variant, dim, HEADS, GROUP);
    size_t kv = (size_t)n * HEADS * dim, qs = (size_t)QUERIES * HEADS * GROUP * dim;
    float *rows = random_rows(&rng, kv > qs ? kv : qs, 1);
    struct fenced k = fence_copy(rows, kv * 4), v = fence_copy(rows, kv * 4);
    struct fenced q = fence_copy(rows, qs * 4);
    struct guarded out = guard_make(qs * 4, 0), lse = guard_make(QUERIES * HEADS * GROUP * 4, 0);
    struct guarded k_read = guard_make(kv * 4, 4), v_read = guard_make(kv * 4, 8);
    rig_open(&r, &c);
    tq_seq seq = rig_seq(&r);
    rig_append(&r, seq, 0, n, k.data, v.data);
    tq_rows_in q_rows = rows_in(q.data);
    tq_rows_out o_rows = rows_out(out.data);
    OK(tq_attend(r.cache, seq, 0, QUERIES, NULL, &q_rows, &o_rows, lse.data, NULL));
    rig_read(&r, seq, 0, 0, n, k_read.data, v_read.data);
    for (size_t i = 0; i < qs; i++)
        CHECK(isfinite(((float *)out.data)[i]), "output %zu was not written", i);
    for (size_t i = 0; i < kv; i++)
        CHECK(isfinite(((float *)k_read.data)[i]) && isfinite(((float *)v_read.data)[i]),
              "row element %zu was not written", i);
    guard_free(&out);
    guard_free(&lse);
    guard_free(&k_read);
    guard_free(&v_read);
    fence_free(&k);
    fence_free(&v);
    fence_free(&q);
    free(rows);
    rig_close(&r);
}

static void test_b10_bounds(void **state) {
    (void)state;
    static const uint32_t lengths[] = {1, 31, 32, 33, 127, 129};
    for (uint32_t i = 0; i < tq_variant_count(); i++)
        for (size_t j = 0; j < COUNT(lengths); j++)
            check_bounds(variant_at(i).id, j % 2 ? 80 : 64, lengths[j]);
}

/* ---- values come back ------------------------------------------------------------------ */

/* A bf16 gain is off by up to 2^-9, and the row with it; info.mse is without. */
#define GAIN_ROUNDING 0x1p-18

/* Mean of ||got - want||^2 / ||want||^2 and its standard error. */
static double distortion(const float *got, const float *want, uint32_t n, uint32_t dim,
                         double *error) {
    double sum = 0, squares = 0;
    for (uint32_t r = 0; r < n; r++) {
        double e = 0;
        for (uint32_t i = 0; i < dim; i++) {
            double d = (double)got[(size_t)r * dim + i] - (double)want[(size_t)r * dim + i];
            e += d * d;
        }
        e /= energy(want + (size_t)r * dim, 1, dim, 0);
        sum += e;
        squares += e * e;
    }
    *error = sqrt((squares / n - sum / n * (sum / n)) / n);
    return sum / n;
}

/* B16: values came back rotated, or rotated twice. One token: the output is its value. */
static void test_b16_one_token(void **state) {
    (void)state;
    enum { DIM = 128, HEADS = 400 };
    struct rng rng = {16};
    float *v = random_rows(&rng, HEADS * DIM, 1);
    for (uint32_t i = 0; i < tq_variant_count(); i++) {
        struct rig r = {0};
        tq_cache_config c = plain_config(variant_at(i).id, DIM, HEADS, 1);
        double mse = format_of(variant_at(i).v_format).mse, error;
        c.page_tokens = 16;
        rig_open(&r, &c);
        tq_seq seq = rig_seq(&r);
        rig_append(&r, seq, 0, 1, v, v);
        struct asked a = ask_make(&r, 1, 0, &rng);
        ask(&r, seq, 0, &a);
        double got = distortion(a.out, v, HEADS, DIM, &error);
        AT_MOST(got, mse * 1.01 + GAIN_ROUNDING + 3 * error, "%s", variant_at(i).name);
        ask_free(&a);
        rig_close(&r);
    }
    free(v);
}

/* B17: DeepSeek's latent, keys of 576 dims and values of 512. Values are rows of their own
 * here, so that loud RoPE dims of the keys do not drown a quiet latent: it is coded as well
 * as a loud one. */
static void check_latent(tq_variant_info variant) {
    enum { K_DIM = 576, V_DIM = 512, TOKENS = 40 };
    struct rng rng = {17};
    struct rig r = {0};
    tq_cache_config c = plain_config(variant.id, K_DIM, 1, 16);
    float *k = random_rows(&rng, TOKENS * K_DIM, 1), *v = random_rows(&rng, TOKENS * V_DIM, 1);
    float *read = must_alloc(TOKENS * V_DIM, sizeof *read);
    double found[2], error;
    c.v_head_dim = V_DIM;
    rig_open(&r, &c);
    for (int quiet = 0; quiet < 2; quiet++) {
        tq_seq seq = rig_seq(&r);
        for (uint32_t i = 0; quiet && i < TOKENS * V_DIM; i++) {
            v[i] *= 0.01f;
            k[i / V_DIM * K_DIM + i % V_DIM] = v[i];
        }
        rig_append(&r, seq, 0, TOKENS, k, v);
        rig_read(&r, seq, 0, 0, TOKENS, NULL, read);
        found[quiet] = distortion(read, v, TOKENS, V_DIM, &error);
        check_attention(&r, seq, 0, 2, &rng, variant.name);
    }
    if (variant.v_format != TQ_FORMAT_FP8) /* 0.01 is an e4m3 subnormal */
        AT_MOST(found[1], found[0] * 1.01 + GAIN_ROUNDING, "%s: latent", variant.name);
    free(k);
    free(v);
    free(read);
    rig_close(&r);
}

static void test_b17_latent(void **state) {
    (void)state;
    for (uint32_t i = 0; i < tq_variant_count(); i++)
        check_latent(variant_at(i));
}

/* B26: head_dim was taken for model width over heads. Here the caller says all three. */
static void test_b26_odd_shapes(void **state) {
    (void)state;
    static const uint32_t shapes[][3] = {{80, 7, 1}, {256, 3, 5}, {64, 1, 71}, {96, 5, 3}};
    for (size_t i = 0; i < COUNT(shapes); i++) {
        struct rng rng = {i};
        struct rig r = {0};
        tq_cache_config c =
            plain_config(TQ_VARIANT_K3V4_NC, shapes[i][0], shapes[i][1], shapes[i][2]);
        rig_open(&r, &c);
        tq_seq seq = rig_seq(&r);
        rig_append_random(&r, seq, 0, 20, &rng);
        check_attention(&r, seq, 0, 2, &rng, "odd shape");
        rig_close(&r);
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_b3_upper_half),      cmocka_unit_test(test_b4_last_dims),
        cmocka_unit_test(test_b4_variants_differ), cmocka_unit_test(test_b7_slots),
        cmocka_unit_test(test_b10_bounds),         cmocka_unit_test(test_b16_one_token),
        cmocka_unit_test(test_b17_latent),         cmocka_unit_test(test_b26_odd_shapes),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
