/* Rows at the ends of the number range, in every type and format: everything stays finite,
 * zero stays zero, and no row disturbs another. */
#include <float.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "common/rig.h"

/* Extreme rows are every third token; the others are Gaussian. */
enum { N_TOKENS = 30, EVERY = 3, KV_HEADS = 2, GROUP = 2 };

/* ---- kinds of rows --------------------------------------------------------------------- */

/* The least and the largest positive number of a type. */
static double least(tq_dtype dtype) {
    return dtype == TQ_F16 ? 0x1p-24 : dtype == TQ_BF16 ? 0x1p-133 : 0x1p-149;
}

static double sign(uint32_t i) {
    return i * 2654435761u >> 31 ? -1 : 1;
}

static double zero(tq_dtype dtype, uint32_t i) {
    (void)dtype;
    return i % 2 ? 0.0 : -0.0;
}

static double one_hot(tq_dtype dtype, uint32_t i) {
    (void)dtype;
    return i == 17;
}

static double huge_one_hot(tq_dtype dtype, uint32_t i) {
    return i == 17 ? -dtype_largest(dtype) : 0;
}

static double constant(tq_dtype dtype, uint32_t i) {
    (void)dtype;
    (void)i;
    return -1.5;
}

static double largest(tq_dtype dtype, uint32_t i) {
    (void)i;
    return dtype_largest(dtype);
}

static double largest_signs(tq_dtype dtype, uint32_t i) {
    return sign(i) * dtype_largest(dtype);
}

static double huge(tq_dtype dtype, uint32_t i) {
    return sign(i) * (dtype == TQ_F16 ? 3.5e4 : 1e30) * (1 + i % 7 / 8.0);
}

static double f16_largest(tq_dtype dtype, uint32_t i) {
    (void)dtype;
    return sign(i) * 65504;
}

static double smallest(tq_dtype dtype, uint32_t i) {
    return sign(i) * least(dtype);
}

static double subnormal(tq_dtype dtype, uint32_t i) {
    return sign(i) * (dtype == TQ_F16 ? 6e-8 : 1e-40) * (1 + i % 5);
}

static double tiny(tq_dtype dtype, uint32_t i) {
    return sign(i) * (dtype == TQ_F16 ? 1e-4 : 1e-30) * (1 + i % 5);
}

static double mixed(tq_dtype dtype, uint32_t i) {
    static const double f32[] = {1e30, 1e-30, 1, -1e30, 1e-40, -1, 0};
    static const double f16[] = {6e4, 6e-8, 1, -6e4, 1e-4, -1, 0};
    return (dtype == TQ_F16 ? f16 : f32)[i % COUNT(f32)];
}

/* The whole range of exponents of a type, one after the other. */
static double ladder(tq_dtype dtype, uint32_t i) {
    return sign(i) *
           (dtype == TQ_F16 ? ldexp(1, (int)(i % 39) - 23) : ldexp(1, (int)(i * 5 % 250) - 126));
}

static const struct kind {
    const char *name;
    double (*value)(tq_dtype dtype, uint32_t i);
} kinds[] = {
    {"zero", zero},           {"one-hot", one_hot},   {"largest one-hot", huge_one_hot},
    {"constant", constant},   {"largest", largest},   {"largest with signs", largest_signs},
    {"huge", huge},           {"65504", f16_largest}, {"smallest", smallest},
    {"subnormal", subnormal}, {"tiny", tiny},         {"mixed", mixed},
    {"ladder", ladder}};

/* ---- caches with such rows ------------------------------------------------------------- */

struct check {
    tq_layer_formats pair;
    tq_format_info format;
    tq_cache_config c;
    tq_dtype dtype;
    const struct kind *kind;
    struct rng rng;
    struct rig rig;
    tq_seq seq;
    float *k, *v; /* decoded */
    char name[96];
};

/* [token][head][dim] of Gaussians, every third row of the kind, which may be NULL. */
static void *rows_make(const struct check *c, const struct kind *kind, uint64_t seed) {
    uint32_t dim = c->c.head_dim;
    struct rng rng = {seed};
    size_t n = (size_t)N_TOKENS * KV_HEADS * dim;
    float *random = random_rows(&rng, n, 1);
    char *rows = convert_rows(random, n, c->dtype);
    for (size_t i = 0; kind && i < n; i++)
        if (i / dim % EVERY == 0)
            store_value(rows + i * dtype_size(c->dtype), c->dtype,
                        kind->value(c->dtype, (uint32_t)(i % dim)));
    free(random);
    return rows;
}

static void open_with(struct check *c, const struct kind *kind) {
    void *k = rows_make(c, kind, 1), *v = rows_make(c, kind, 2);
    tq_rows_in k_rows = {.data = k, .dtype = c->dtype}, v_rows = {.data = v, .dtype = c->dtype};
    memset(&c->rig, 0, sizeof c->rig);
    rig_open(&c->rig, &c->c);
    c->seq = rig_seq(&c->rig);
    OK(tq_append(c->rig.cache, c->seq, 0, N_TOKENS, &k_rows, &v_rows, NULL));
    c->k = must_alloc(N_TOKENS * rig_k_row(&c->rig), sizeof *c->k);
    c->v = must_alloc(N_TOKENS * rig_v_row(&c->rig), sizeof *c->v);
    rig_read(&c->rig, c->seq, 0, 0, N_TOKENS, c->k, c->v);
    free(k);
    free(v);
}

static void close_it(struct check *c) {
    rig_close(&c->rig);
    free(c->k);
    free(c->v);
}

/* Keys of every format; values of the same, or of one that can hold them. */
static void for_every_format(void (*check)(struct check *c)) {
    static const uint32_t dims[] = {64, 80};
    for (uint32_t f = 0; f < tq_format_count(); f++)
        for (size_t i = 0; i < COUNT(dims) * COUNT(all_dtypes); i++) {
            struct check c = {.dtype = all_dtypes[i / COUNT(dims)], .rng = {f * 100 + i}};
            if (FEWER > 1 && (f + i + i / COUNT(dims)) % 2)
                continue; /* one dim for each type, in turns */
            c.format = format_at(f);
            c.pair.k_format = c.format.id;
            c.pair.v_format = c.format.roles & TQ_ROLE_V ? c.format.id : TQ_FORMAT_LM2;
            c.c = pair_config(&c.pair, dims[i % COUNT(dims)], KV_HEADS, GROUP);
            c.c.page_tokens = 16;
            check(&c);
        }
}

static void for_every_kind(void (*check)(struct check *c), struct check *c) {
    for (size_t i = 0; i < COUNT(kinds); i++) {
        c->kind = &kinds[i];
        (void)snprintf(c->name, sizeof c->name, "%s, %s, %s, dim %u", kinds[i].name, c->format.name,
                       dtype_name(c->dtype), c->c.head_dim);
        open_with(c, c->kind);
        check(c);
        close_it(c);
    }
}

/* ---- decoded rows ---------------------------------------------------------------------- */

static void check_finite(const float *x, size_t n, const char *what, const char *name) {
    for (size_t i = 0; i < n; i++)
        CHECK(isfinite(x[i]), "%s: %s %zu is %g", name, what, i, (double)x[i]);
}

static void finite(struct check *c) {
    check_finite(c->k, N_TOKENS * rig_k_row(&c->rig), "key", c->name);
    check_finite(c->v, N_TOKENS * rig_v_row(&c->rig), "value", c->name);
    tq_cache_stats stats = rig_stats(&c->rig);
    CHECK(stats.nan_values == 0 && stats.inf_values == 0, "%s: counted as not finite", c->name);
}

static void every_kind_finite(struct check *c) {
    for_every_kind(finite, c);
}

static void test_finite(void **state) {
    (void)state;
    for_every_format(every_kind_finite);
}

/* Rows between the extreme ones are what they are in a cache without those. */
static void neighbours(struct check *c) {
    struct check plain = *c;
    size_t dim = c->c.head_dim;
    open_with(&plain, NULL);
    for (size_t row = 0; row < N_TOKENS * KV_HEADS; row++) {
        int same = memcmp(c->k + row * dim, plain.k + row * dim, dim * sizeof(float)) == 0 &&
                   memcmp(c->v + row * dim, plain.v + row * dim, dim * sizeof(float)) == 0;
        CHECK(same == (row % EVERY != 0), "%s: row %zu", c->name, row);
    }
    close_it(&plain);
}

static void every_kind_alone(struct check *c) {
    for_every_kind(neighbours, c);
}

static void test_neighbours(void **state) {
    (void)state;
    for_every_format(every_kind_alone);
}

/* ---- zero ------------------------------------------------------------------------------ */

static void zero_rows(struct check *c) {
    size_t dim = c->c.head_dim;
    c->kind = &kinds[0];
    open_with(c, c->kind);
    for (size_t row = 0; row < N_TOKENS * KV_HEADS; row += EVERY)
        for (size_t i = row * dim; i < (row + 1) * dim; i++)
            CHECK(c->k[i] == 0 && c->v[i] == 0, "%s, %s: %g, %g", c->format.name,
                  dtype_name(c->dtype), (double)c->k[i], (double)c->v[i]);
    close_it(c);
}

static void test_zero_rows(void **state) {
    (void)state;
    for_every_format(zero_rows);
}

/* A cache of nothing but zeros: the mean of its values is zero, the sum of n times e^0 is n. */
static void all_zero(struct check *c) {
    struct rig rig = {.ctx = NULL};
    rig_open(&rig, &c->c);
    tq_seq seq = rig_seq(&rig);
    float *zeros = must_alloc(N_TOKENS * rig_k_row(&rig), sizeof *zeros);
    rig_append(&rig, seq, 0, N_TOKENS, zeros, zeros);
    struct asked a = ask_make(&rig, 3, 0, &c->rng);
    ask(&rig, seq, 0, &a);
    for (size_t i = 0; i < 3 * rig_out_row(&rig); i++)
        CHECK(a.out[i] == 0, "%s: %g", c->format.name, (double)a.out[i]);
    for (size_t i = 0; i < (size_t)3 * KV_HEADS * GROUP; i++)
        AT_MOST(fabs((double)a.lse[i] - log(N_TOKENS)), ATTEND_TOLERANCE, "%s", c->format.name);
    ask_free(&a);
    free(zeros);
    rig_close(&rig);
}

static void test_all_zero(void **state) {
    (void)state;
    for_every_format(all_zero);
}

/* ---- attention ------------------------------------------------------------------------- */

/* Scores of huge keys may leave the range of f32, and lse with them; outputs may not. */
static void check_answer(const struct check *c, struct asked *a, const char *what) {
    ask(&c->rig, c->seq, 0, a);
    check_finite(a->out, a->n_queries * rig_out_row(&c->rig), what, c->name);
    for (size_t i = 0; i < (size_t)a->n_queries * KV_HEADS * GROUP; i++)
        CHECK(!isnan(a->lse[i]), "%s, %s: lse", c->name, what);
}

/* Squares of the error of one output row and of what its terms allow. */
static void judge_row(const struct check *c, const double *weights, double lse, size_t head,
                      const float *q, const float *out, double *error, double *scale) {
    double allows[N_TOKENS];
    for (size_t t = 0; t < N_TOKENS; t++)
        allows[t] = plain_condition(weights[t], lse, q,
                                    c->k + (t * KV_HEADS + head) * c->c.head_dim, c->c.head_dim);
    for (uint32_t i = 0; i < c->c.head_dim; i++) {
        double want = 0, terms = 0;
        for (size_t t = 0; t < N_TOKENS; t++) {
            double x = weights[t] * (double)c->v[(t * KV_HEADS + head) * c->c.head_dim + i];
            want += x;
            terms += fabs(x) * allows[t];
        }
        *error += pow((double)out[i] - want, 2);
        *scale += pow(terms, 2);
    }
}

/* As judge(), for rows of any size. */
static double judge_out(const struct check *c, const struct asked *a) {
    struct shape s = {.n_tokens = N_TOKENS,
                      .n_queries = a->n_queries,
                      .n_kv_heads = KV_HEADS,
                      .group = GROUP,
                      .k_dim = c->c.head_dim,
                      .v_dim = c->c.head_dim,
                      .causal = a->flags == TQ_ATTEND_CAUSAL};
    double error = 0, scale = 0, lse;
    for (uint32_t row = 0; row < a->n_queries * KV_HEADS * GROUP; row++) {
        uint32_t head = row % (KV_HEADS * GROUP);
        double weights[N_TOKENS] = {0};
        plain_weights(&s, a->q, c->k, row / (KV_HEADS * GROUP), head, weights, &lse);
        size_t at = (size_t)row * c->c.head_dim;
        judge_row(c, weights, lse, head / GROUP, a->q + at, a->out + at, &error, &scale);
    }
    return scale > 0 ? sqrt(error / scale) : sqrt(error);
}

static void attended(struct check *c) {
    for (uint32_t flags = 0; flags <= TQ_ATTEND_CAUSAL; flags++) {
        struct asked a = ask_make(&c->rig, 3, flags, &c->rng);
        check_answer(c, &a, "output");
        AT_MOST(judge_out(c, &a), ATTEND_TOLERANCE, "%s, flags %u", c->name, flags);
        ask_free(&a);
    }
}

static void every_kind_attended(struct check *c) {
    for_every_kind(attended, c);
}

static void test_attended(void **state) {
    (void)state;
    for_every_format(every_kind_attended);
}

/* Queries of the kinds, too. */
static void queried(struct check *c) {
    struct asked a = ask_make(&c->rig, COUNT(kinds), 0, &c->rng);
    size_t row = rig_q_row(&c->rig);
    for (size_t i = 0; i < COUNT(kinds) * row; i++)
        a.q[i] = (float)kinds[i / row].value(TQ_F32, (uint32_t)(i % c->c.head_dim));
    check_answer(c, &a, "output of extreme queries");
    ask_free(&a);
}

static void every_kind_queried(struct check *c) {
    if (c->dtype == TQ_F32)
        for_every_kind(queried, c);
}

static void test_queried(void **state) {
    (void)state;
    for_every_format(every_kind_queried);
}

/* ---- means ----------------------------------------------------------------------------- */

/* The difference of row and mean is out of range. What is stored saturates. */
static void centred(struct check *c) {
    size_t n = rig_k_row(&c->rig);
    float *mean = must_alloc(n, sizeof *mean), *row = must_alloc(n, sizeof *row);
    float *k = must_alloc(n, sizeof *k), *v = must_alloc(n, sizeof *v);
    struct rig rig = {.ctx = NULL};
    for (size_t i = 0; i < n; i++) {
        mean[i] = FLT_MAX / 2;
        row[i] = -FLT_MAX;
    }
    rig_open(&rig, &c->c);
    OK(tq_cache_set_means(rig.cache, 0, mean, mean));
    tq_seq seq = rig_seq(&rig);
    rig_append(&rig, seq, 0, 1, row, row);
    rig_read(&rig, seq, 0, 0, 1, k, v);
    check_finite(k, n, "centred key", c->format.name);
    check_finite(v, n, "centred value", c->format.name);
    struct asked a = ask_make(&rig, 1, 0, &c->rng);
    ask(&rig, seq, 0, &a);
    check_finite(a.out, rig_out_row(&rig), "output", c->format.name);
    ask_free(&a);
    rig_close(&rig);
    free(mean);
    free(row);
    free(k);
    free(v);
}

static void centred_f32(struct check *c) {
    if (c->dtype != TQ_F32)
        return;
    open_with(c, NULL);
    centred(c);
    close_it(c);
}

static void test_centred(void **state) {
    (void)state;
    for_every_format(centred_f32);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_finite),    cmocka_unit_test(test_neighbours),
        cmocka_unit_test(test_zero_rows), cmocka_unit_test(test_all_zero),
        cmocka_unit_test(test_attended),  cmocka_unit_test(test_queried),
        cmocka_unit_test(test_centred),
    };
    return cmocka_run_group_tests_name("extreme rows", tests, NULL, NULL);
}
