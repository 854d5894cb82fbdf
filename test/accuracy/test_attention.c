/* Attention end to end for every variant: 1024 Gaussian keys and values of dim 128, four
 * query heads for a kv head, logits with standard deviation 3.
 *
 * Against double attention over the decoded rows the kernels are exact to 1e-6. Against
 * the original rows the error is that of the formats. The logit of key t errs by e_t of
 * variance s_t^2 = (scale ||q|| ||k_t|| dot_error)^2 / d. To first order the weights then
 * diverge by sum p_t (1 - p_t) s_t^2 / 2, and the output moves by sum p_t e_t (v_t - out)
 * and by the errors of the values, D_v p_t^2 ||v_t||^2 each. */
#include "accuracy/accuracy.h"
#include "accuracy/model.h"

enum { TOKENS = 1024, D = 128, KV_HEADS = 2, Q_HEADS = 8, QUERIES = 16 };
#define SEED 5
#define LOGIT_STD 3.0

static const orc_shape shape = {.n_queries = QUERIES,
                                .n_keys = TOKENS,
                                .n_q_heads = Q_HEADS,
                                .n_kv_heads = KV_HEADS,
                                .dim_k = D,
                                .dim_v = D,
                                .scale = 0.08838834764831845, /* 1 / sqrt(D) */
                                .causal = true};

enum { ROWS = TOKENS * KV_HEADS, OUTS = QUERIES * Q_HEADS };

/* Result of double attention. */
struct result {
    double *out, *lse, *weights;
};

/* Inputs and what exact attention makes of them. */
struct data {
    float *k, *v, *q;
    double *k64, *v64, *q64;
    struct result exact;
};

static struct result attend(const double *q, const double *k, const double *v) {
    struct result r = {orc_alloc(OUTS * D, sizeof(double)), orc_alloc(OUTS, sizeof(double)),
                       orc_alloc(OUTS * TOKENS, sizeof(double))};
    orc_attend(&shape, q, k, v, r.out, r.lse, r.weights);
    return r;
}

static struct result attend_floats(const double *q, const float *k, const float *v) {
    double *k64 = acc_doubles(ROWS * D, k), *v64 = acc_doubles(ROWS * D, v);
    struct result r = attend(q, k64, v64);
    free(k64);
    free(v64);
    return r;
}

static void free_result(struct result *r) {
    free(r->out);
    free(r->lse);
    free(r->weights);
}

static int make_data(void **state) {
    static struct data data;
    data.k = acc_gaussian(ROWS, D, 1);
    data.v = acc_gaussian(ROWS, D, 2);
    data.q = acc_gaussian(OUTS, D, 3);
    for (size_t i = 0; i < (size_t)OUTS * D; i++)
        data.q[i] *= (float)LOGIT_STD;
    data.k64 = acc_doubles(ROWS * D, data.k);
    data.v64 = acc_doubles(ROWS * D, data.v);
    data.q64 = acc_doubles(OUTS * D, data.q);
    data.exact = attend(data.q64, data.k64, data.v64);
    *state = &data;
    return 0;
}

static int free_data(void **state) {
    struct data *data = *state;
    free(data->k);
    free(data->v);
    free(data->q);
    free(data->k64);
    free(data->v64);
    free(data->q64);
    free_result(&data->exact);
    return 0;
}

/* ---- errors against exact attention ---- */

struct errors {
    double out, divergence;
};

static struct errors errors_of(const struct data *data, const struct result *r) {
    struct errors e = {orc_relative_l2(OUTS * D, r->out, data->exact.out), 0};
    for (size_t i = 0; i < OUTS; i++)
        e.divergence +=
            orc_divergence(TOKENS, data->exact.weights + i * TOKENS, r->weights + i * TOKENS) /
            OUTS;
    return e;
}

/* Squared error of an output row and its divergence, to first order. */
static struct errors expected_row(const struct data *data, size_t i, double dot, double mse) {
    struct errors e = {0, 0};
    const double *q = data->q64 + i * D, *out = data->exact.out + i * D;
    double unit = shape.scale * dot / sqrt(D) * orc_norm(D, q);
    size_t head = i % Q_HEADS / (Q_HEADS / KV_HEADS);
    for (size_t t = 0; t < TOKENS; t++) {
        const double *k = data->k64 + (t * KV_HEADS + head) * D;
        const double *v = data->v64 + (t * KV_HEADS + head) * D;
        double p = data->exact.weights[i * TOKENS + t], s2 = unit * unit * orc_dot(D, k, k);
        e.out += p * p * (s2 * acc_distance2(D, v, out) + mse * orc_dot(D, v, v));
        e.divergence += p * (1 - p) * s2 / 2;
    }
    return e;
}

/* What the errors of the two formats, as tq_format_info tells them, lead to. */
static struct errors expected(const struct data *data, tq_format k, tq_format v) {
    double dot = 0, mse = 0, out2 = 0;
    struct errors sum = {0, 0};
    for (uint32_t i = 0; i < tq_format_count(); i++) {
        tq_format_info info = acc_format_at(i);
        dot = info.id == k ? info.dot_error : dot;
        mse = info.id == v ? info.mse : mse;
    }
    for (size_t i = 0; i < OUTS; i++) {
        struct errors row = expected_row(data, i, dot, mse);
        sum.out += row.out;
        sum.divergence += row.divergence / OUTS;
        out2 += orc_dot(D, data->exact.out + i * D, data->exact.out + i * D);
    }
    return (struct errors){sqrt(sum.out / out2), sum.divergence};
}

static double *oracle_rows(tq_format format, enum acc_side side, const float *rows) {
    struct acc_model m;
    double *x = acc_doubles(ROWS * D, rows);
    acc_model_make(&m, format, side, ACC_POLAR_INTEGER, D, SEED);
    for (size_t i = 0; i < ROWS; i++)
        acc_model_roundtrip(&m, x + i * D, x + i * D);
    acc_model_free(&m);
    return x;
}

static struct errors oracle_errors(const struct data *data, tq_format k, tq_format v) {
    double *k64 = oracle_rows(k, ACC_K, data->k), *v64 = oracle_rows(v, ACC_V, data->v);
    struct result r = attend(data->q64, k64, v64);
    struct errors e = errors_of(data, &r);
    free_result(&r);
    free(k64);
    free(v64);
    return e;
}

/* ---- the library ---- */

/* The output of attention, and what double attention makes of the decoded rows. */
struct run {
    float *out, *lse;
    struct result decoded;
};

static struct run run_library(const struct data *data, const tq_variant_info *variant) {
    struct run r = {acc_floats(OUTS * D), acc_floats(OUTS), {NULL, NULL, NULL}};
    float *k = acc_floats(ROWS * D), *v = acc_floats(ROWS * D);
    struct acc_cache c;
    acc_cache_make(&c, variant->k_format, variant->v_format, D, KV_HEADS, Q_HEADS, SEED);
    acc_append(&c, TOKENS, data->k, data->v);
    acc_attend(&c, QUERIES, 0, data->q, r.out, r.lse);
    acc_read(&c, TOKENS, k, v);
    r.decoded = attend_floats(data->q64, k, v);
    acc_cache_free(&c);
    free(k);
    free(v);
    return r;
}

static void free_run(struct run *r) {
    free(r->out);
    free(r->lse);
    free_result(&r->decoded);
}

static double lse_difference(size_t n, const float *got, const double *want) {
    double worst = 0;
    for (size_t i = 0; i < n; i++)
        worst = fmax(worst, fabs((double)got[i] - want[i]) / fmax(1, fabs(want[i])));
    return worst;
}

static void check_variant(const struct data *data, const tq_variant_info *variant) {
    struct run r = run_library(data, variant);
    double *out = acc_doubles(OUTS * D, r.out);
    double exact = orc_relative_l2(OUTS * D, out, r.decoded.out);
    double lse = lse_difference(OUTS, r.lse, r.decoded.lse);
    struct errors got = errors_of(data, &r.decoded);
    got.out = orc_relative_l2(OUTS * D, out, data->exact.out);
    struct errors oracle = oracle_errors(data, variant->k_format, variant->v_format);
    struct errors budget = expected(data, variant->k_format, variant->v_format);
    print_message("  %-9s kernel %.1e lse %.1e  out %.2e oracle %.2e expected %.2e  "
                  "KL %.2e oracle %.2e expected %.2e\n",
                  variant->name, exact, lse, got.out, oracle.out, budget.out, got.divergence,
                  oracle.divergence, budget.divergence);
    AT_MOST(exact, 1e-6, "%s: against attention over decoded rows", variant->name);
    AT_MOST(lse, 1e-6, "%s: lse", variant->name);
    AT_MOST(got.out, 1.3 * oracle.out, "%s: output error", variant->name);
    AT_MOST(got.divergence, 1.3 * oracle.divergence, "%s: KL", variant->name);
    AT_MOST(got.out, 1.3 * budget.out, "%s: output error against the formula", variant->name);
    AT_MOST(got.divergence, 1.3 * budget.divergence, "%s: KL against the formula", variant->name);
    free(out);
    free_run(&r);
}

static void test_variants(void **state) {
    for (uint32_t i = 0; i < tq_variant_count(); i++) {
        tq_variant_info variant = acc_variant_at(i);
        check_variant(*state, &variant);
    }
}

/* ---- position in the page ---- */

enum { TURN_TOKENS = 160 }; /* two and a half pages */

/* The rows, `shift` tokens later, the last ones first. */
static float *turned(const float *rows, size_t shift) {
    size_t row = (size_t)KV_HEADS * D, left = TURN_TOKENS - shift;
    float *out = acc_floats(TURN_TOKENS * row);
    memcpy(out + shift * row, rows, left * row * sizeof *rows);
    memcpy(out, rows + left * row, shift * row * sizeof *rows);
    return out;
}

/* Output, and decoded rows turned back. */
struct turn {
    float *out, *k, *v;
};

static struct turn run_turn(const struct data *data, const tq_variant_info *variant, size_t shift) {
    size_t n = TURN_TOKENS * KV_HEADS * D;
    float *k = turned(data->k, shift), *v = turned(data->v, shift);
    struct turn t;
    struct acc_cache c;
    acc_cache_make(&c, variant->k_format, variant->v_format, D, KV_HEADS, Q_HEADS, SEED);
    acc_append(&c, TURN_TOKENS, k, v);
    t.out = acc_floats(Q_HEADS * D);
    acc_attend(&c, 1, 0, data->q, t.out, NULL);
    memset(k, 0, n * sizeof *k);
    memset(v, 0, n * sizeof *v);
    acc_read(&c, TURN_TOKENS, k, v);
    t.k = turned(k, (TURN_TOKENS - shift) % TURN_TOKENS);
    t.v = turned(v, (TURN_TOKENS - shift) % TURN_TOKENS);
    acc_cache_free(&c);
    free(k);
    free(v);
    return t;
}

static void free_turn(struct turn *t) {
    free(t->out);
    free(t->k);
    free(t->v);
}

static void compare_turns(const char *name, size_t shift, const struct turn *a,
                          const struct turn *b) {
    size_t bytes = sizeof(float) * TURN_TOKENS * KV_HEADS * D;
    double *want = acc_doubles(Q_HEADS * D, a->out), *got = acc_doubles(Q_HEADS * D, b->out);
    if (memcmp(a->k, b->k, bytes) != 0 || memcmp(a->v, b->v, bytes) != 0)
        fail_msg("%s: rows decode otherwise %zu tokens later", name, shift);
    AT_MOST(orc_relative_l2(Q_HEADS * D, got, want), 1e-6, "%s: output %zu tokens later", name,
            shift);
    free(want);
    free(got);
}

/* One query sees all tokens: their order must not matter. */
static void test_position(void **state) {
    static const size_t shifts[] = {1, 7, 31, 32, 33, 63, 64, 100};
    const struct data *data = *state;
    for (uint32_t i = 0; i < tq_variant_count(); i++) {
        tq_variant_info variant = acc_variant_at(i);
        struct turn base = run_turn(data, &variant, 0);
        for (size_t s = 0; s < COUNT(shifts); s++) {
            struct turn later = run_turn(data, &variant, shifts[s]);
            compare_turns(variant.name, shifts[s], &base, &later);
            free_turn(&later);
        }
        free_turn(&base);
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_variants),
                                       cmocka_unit_test(test_position)};
    return cmocka_run_group_tests(tests, make_data, free_data);
}
