/* What attention must give for inputs whose answer is known, in every variant and at every
 * usual head_dim. B2: one-hot values read the weights. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>

#include "common/cache.h"

static const uint32_t dims[] = {64, 80, 96, 112, 128, 160, 192, 256, 512, 576};

enum { KV_HEADS = 2, GROUP = 2 };

/* A cache with an empty sequence. */
struct fixture {
    struct rig rig;
    tq_variant_info variant;
    tq_seq seq;
    struct rng rng;
    char name[64];
};

typedef void check_fn(struct fixture *f);

static void for_every_variant_and_dim(check_fn *check) {
    for (uint32_t i = 0; i < tq_variant_count(); i++)
        for (size_t d = 0; d < COUNT(dims); d++) {
            struct fixture f = {.variant = variant_at(i), .rng = {dims[d] * 100 + i}};
            tq_cache_config c = plain_config(f.variant.id, dims[d], KV_HEADS, GROUP);
            c.page_tokens = 32;
            rig_open(&f.rig, &c);
            f.seq = rig_seq(&f.rig);
            (void)snprintf(f.name, sizeof f.name, "%s, dim %u", f.variant.name, dims[d]);
            check(&f);
            rig_close(&f.rig);
        }
}

/* Three pages, or two of long rows. */
static uint32_t usual_tokens(const struct fixture *f) {
    return f->rig.c.head_dim <= 192 ? 75 : 41;
}

/* ---- equal to attention in double ------------------------------------------------------ */

static void equals_double(struct fixture *f) {
    rig_append_random(&f->rig, f->seq, 0, usual_tokens(f), &f->rng);
    check_attention(&f->rig, f->seq, 0, 3, &f->rng, f->name);
}

static void test_equals_double_attention(void **state) {
    (void)state;
    for_every_variant_and_dim(equals_double);
}

/* ---- a negative scale ------------------------------------------------------------------ */

/* The least score is the largest logit: taken for the least, its exponential would overflow. */
static void negative_scale(struct fixture *f) {
    struct rig *r = &f->rig;
    rig_append_random(r, f->seq, 0, usual_tokens(f), &f->rng);
    struct asked a = ask_make(r, 2, 0, &f->rng), b = ask_make(r, 2, 0, &f->rng);
    a.scale = -20 / sqrtf((float)r->c.head_dim);
    b.scale = -a.scale;
    for (size_t i = 0; i < 2 * rig_q_row(r); i++)
        b.q[i] = -a.q[i];
    ask(r, f->seq, 0, &a);
    ask(r, f->seq, 0, &b);
    JUSTIFIED(judge(r, f->seq, 0, &a), "%s: negative scale", f->name);
    CHECK(same_answer(r, &a, &b), "%s: -scale and -q", f->name);
    ask_free(&a);
    ask_free(&b);
}

static void test_negative_scale(void **state) {
    (void)state;
    for_every_variant_and_dim(negative_scale);
}

/* ---- q = 0 ----------------------------------------------------------------------------- */

static void zero_query(struct fixture *f) {
    struct rig *r = &f->rig;
    uint32_t n = usual_tokens(f), dim = r->c.head_dim, heads = KV_HEADS * GROUP;
    float *q = must_alloc(rig_q_row(r), sizeof *q), *v = must_alloc(n * rig_v_row(r), sizeof *v);
    double *mean = must_alloc(rig_out_row(r), sizeof *mean), lse[KV_HEADS * GROUP];
    rig_append_random(r, f->seq, 0, n, &f->rng);
    rig_read(r, f->seq, 0, 0, n, NULL, v);
    struct asked a = ask_with(r, f->seq, 0, 1, 0, q);
    for (uint32_t h = 0; h < heads; h++) {
        lse[h] = log(n);
        for (uint32_t t = 0; t < n; t++)
            for (uint32_t i = 0; i < dim; i++)
                mean[h * dim + i] += (double)v[t * rig_v_row(r) + h / GROUP * dim + i] / n;
    }
    AT_MOST(relative_error(a.out, mean, rig_out_row(r)), ATTEND_TOLERANCE, "%s: mean", f->name);
    AT_MOST(largest_difference(a.lse, lse, heads), ATTEND_TOLERANCE, "%s: lse", f->name);
    ask_free(&a);
    free(q);
    free(v);
    free(mean);
}

static void test_zero_query_is_the_mean(void **state) {
    (void)state;
    for_every_variant_and_dim(zero_query);
}

/* ---- one-hot rows ---------------------------------------------------------------------- */

/* More tokens than dims, so that several share a dim; not under sanitizers. */
static uint32_t hot_tokens(const struct fixture *f) {
    return f->rig.c.head_dim / FEWER + 7;
}

/* [token][head][dim]: one at dim t mod D. */
static float *one_hot(const struct fixture *f) {
    uint32_t dim = f->rig.c.head_dim;
    float *rows = must_alloc(hot_tokens(f) * rig_k_row(&f->rig), sizeof *rows);
    for (uint32_t t = 0; t < hot_tokens(f); t++)
        for (uint32_t h = 0; h < KV_HEADS; h++)
            rows[((size_t)t * KV_HEADS + h) * dim + t % dim] = 1;
    return rows;
}

/* Decoded unit vectors, all together. */
static void check_unit_rows(const struct fixture *f, const float *got, const float *want,
                            double limit, const char *what) {
    size_t n = hot_tokens(f) * rig_k_row(&f->rig);
    double *exact = must_alloc(n, sizeof *exact);
    for (size_t i = 0; i < n; i++)
        exact[i] = (double)want[i];
    AT_MOST(relative_error(got, exact, n), limit, "%s: decoded unit %s", f->name, what);
    free(exact);
}

static void one_hot_values(struct fixture *f) {
    struct rig *r = &f->rig;
    uint32_t n = hot_tokens(f);
    double limit = ATTEND_TOLERANCE + one_hot_error(f->variant.v_format, TQ_ROLE_V);
    float *v = one_hot(f), *k = random_rows(&f->rng, n * rig_k_row(r), 1);
    float *q = random_rows(&f->rng, rig_q_row(r), 1);
    float *k_read = must_alloc(n * rig_k_row(r), sizeof *k_read);
    float *v_read = must_alloc(n * rig_v_row(r), sizeof *v_read);
    rig_append(r, f->seq, 0, n, k, v);
    rig_read(r, f->seq, 0, 0, n, k_read, v_read);
    check_unit_rows(f, v_read, v, limit, "values");
    struct asked a = ask_with(r, f->seq, 0, 1, 0, q);
    check_against_rows(r, &a, n, k_read, v, limit, f->name);
    ask_free(&a);
    free(k);
    free(v);
    free(q);
    free(k_read);
    free(v_read);
}

static void test_one_hot_values_read_the_weights(void **state) {
    (void)state;
    for_every_variant_and_dim(one_hot_values);
}

/* Token t picks dim t mod D of the query, which is scaled so that its scores are those of
 * random keys. An error of a key moves a score by at most max |q| / sqrt(D) = 4 times it,
 * and the output by twice that. Polar codes do not meet unit vectors: decoded ones then. */
static void one_hot_keys(struct fixture *f) {
    struct rig *r = &f->rig;
    uint32_t n = hot_tokens(f);
    double limit = one_hot_error(f->variant.k_format, TQ_ROLE_K);
    float *k = one_hot(f), *v = random_rows(&f->rng, n * rig_v_row(r), 1);
    float *q = random_rows(&f->rng, rig_q_row(r), sqrt(r->c.head_dim));
    float *k_read = must_alloc(n * rig_k_row(r), sizeof *k_read);
    float *v_read = must_alloc(n * rig_v_row(r), sizeof *v_read);
    rig_append(r, f->seq, 0, n, k, v);
    rig_read(r, f->seq, 0, 0, n, k_read, v_read);
    check_unit_rows(f, k_read, k, ATTEND_TOLERANCE + limit, "keys");
    struct asked a = ask_with(r, f->seq, 0, 1, 0, q);
    if (limit < 0.01)
        check_against_rows(r, &a, n, k, v_read, ATTEND_TOLERANCE + 8 * limit, f->name);
    else
        check_against_rows(r, &a, n, k_read, v_read, ATTEND_TOLERANCE, f->name);
    ask_free(&a);
    free(k);
    free(v);
    free(q);
    free(k_read);
    free(v_read);
}

static void test_one_hot_keys_pick_the_query(void **state) {
    (void)state;
    for_every_variant_and_dim(one_hot_keys);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_equals_double_attention),
        cmocka_unit_test(test_negative_scale),
        cmocka_unit_test(test_zero_query_is_the_mean),
        cmocka_unit_test(test_one_hot_values_read_the_weights),
        cmocka_unit_test(test_one_hot_keys_pick_the_query),
    };
    return cmocka_run_group_tests_name("properties", tests, NULL, NULL);
}
