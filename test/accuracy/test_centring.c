/* Centring: keys and values whose channels have large means, with and without means
 * subtracted before coding. 4096 tokens of dim 128, logits with standard deviation 3, as
 * in design notes 3.6; "DC" is the energy of the mean over that of the centred rows. */
#include "accuracy/accuracy.h"

enum {
    TOKENS = FEWER > 1 ? 1024 : 4096,
    D = 128,
    QUERIES = FEWER > 1 ? 8 : 32, /* query heads of one query and one kv head */
    FIT_TOKENS = 512,
    DATA_SETS = FEWER > 1 ? 1 : 8 /* each with its own means and signs */
};

static const orc_shape shape = {.n_queries = 1,
                                .n_keys = TOKENS,
                                .n_q_heads = QUERIES,
                                .n_kv_heads = 1,
                                .dim_k = D,
                                .dim_v = D,
                                .scale = 0.08838834764831845, /* 1 / sqrt(D) */
                                .causal = true};

struct result {
    double out[QUERIES * D], lse[QUERIES], weights[QUERIES * TOKENS];
};

struct data {
    uint64_t seed; /* of everything */
    float *k, *v, *q;
    float k_mean[D], v_mean[D]; /* what was added */
    struct result *exact;
};

enum means { MEANS_NONE, MEANS_SET, MEANS_FITTED, MEANS_K, MEANS_V };

static struct result *attend(const float *q, const float *k, const float *v) {
    struct result *r = orc_alloc(1, sizeof *r);
    double *q64 = acc_doubles(QUERIES * D, q);
    double *k64 = acc_doubles(TOKENS * D, k), *v64 = acc_doubles(TOKENS * D, v);
    orc_attend(&shape, q64, k64, v64, r->out, r->lse, r->weights);
    free(q64);
    free(k64);
    free(v64);
    return r;
}

/* Centred rows of variance 1 and a mean of energy dc * D. */
static float *make_rows(double dc, uint64_t seed, float *mean) {
    float *rows = acc_gaussian(TOKENS, D, seed);
    double direction[D], norm;
    orc_gaussian_row(D, seed, TOKENS, direction);
    norm = orc_norm(D, direction);
    for (size_t i = 0; i < D; i++)
        mean[i] = (float)(direction[i] / norm * sqrt(dc * D));
    for (size_t i = 0; i < (size_t)TOKENS * D; i++)
        rows[i] += mean[i % D];
    return rows;
}

static void make_data(struct data *data, double dc, uint64_t seed) {
    data->seed = seed;
    data->k = make_rows(dc, 3 * seed, data->k_mean);
    data->v = make_rows(dc, 3 * seed + 1, data->v_mean);
    data->q = acc_gaussian(QUERIES, D, 3 * seed + 2);
    for (size_t i = 0; i < (size_t)QUERIES * D; i++)
        data->q[i] *= 3;
    data->exact = attend(data->q, data->k, data->v);
}

static void free_data(struct data *data) {
    free(data->k);
    free(data->v);
    free(data->q);
    free(data->exact);
}

/* What a cache does with the data. */
struct run {
    double divergence; /* of the weights */
    double out;        /* ||out - exact|| / ||exact - v mean|| */
    double kernel;     /* out against double attention over the decoded rows */
    double lse;
};

static void set_means(const struct acc_cache *c, const struct data *data, enum means means) {
    tq_rows_in k = acc_in(data->k), v = acc_in(data->v);
    if (means == MEANS_SET || means == MEANS_K || means == MEANS_V)
        OK(tq_cache_set_means(c->cache, 0, means == MEANS_V ? NULL : data->k_mean,
                              means == MEANS_K ? NULL : data->v_mean));
    if (means == MEANS_FITTED)
        OK(tq_cache_fit_means(c->cache, 0, FIT_TOKENS, &k, &v));
}

/* What a difference of lse is relative to: lse is a sum with scale * q.mean, and decoded
 * rows are rounded to floats with the mean in them. */
static double lse_size(const struct data *data, size_t query, double lse) {
    double sum = 0;
    for (size_t i = 0; i < D; i++)
        sum += (double)data->q[query * D + i] * (double)data->k_mean[i];
    return fmax(1, fmax(fabs(lse), fabs(shape.scale * sum)));
}

static struct run judge(const struct data *data, const struct result *decoded, const float *out,
                        const float *lse) {
    struct run r = {0, 0, 0, 0};
    double *got = acc_doubles(QUERIES * D, out), error = 0, part = 0;
    r.kernel = orc_relative_l2(QUERIES * D, got, decoded->out);
    for (size_t i = 0; i < QUERIES; i++) {
        double want = decoded->lse[i];
        r.lse = fmax(r.lse, fabs((double)lse[i] - want) / lse_size(data, i, want));
        r.divergence += orc_divergence(TOKENS, data->exact->weights + i * TOKENS,
                                       decoded->weights + i * TOKENS) /
                        QUERIES;
    }
    for (size_t i = 0; i < (size_t)QUERIES * D; i++) {
        double exact = data->exact->out[i], centred = exact - (double)data->v_mean[i % D];
        error += (got[i] - exact) * (got[i] - exact);
        part += centred * centred;
    }
    r.out = sqrt(error / part);
    free(got);
    return r;
}

static struct run run(const struct data *data, tq_format k, tq_format v, enum means means) {
    float *k_rows = acc_floats(TOKENS * D), *v_rows = acc_floats(TOKENS * D);
    float *out = acc_floats(QUERIES * D), lse[QUERIES];
    struct acc_cache c;
    acc_cache_make(&c, k, v, D, 1, QUERIES, data->seed);
    set_means(&c, data, means);
    acc_append(&c, TOKENS, data->k, data->v);
    acc_attend(&c, 1, 0, data->q, out, lse);
    acc_read(&c, TOKENS, k_rows, v_rows);
    struct result *decoded = attend(data->q, k_rows, v_rows);
    struct run r = judge(data, decoded, out, lse);
    free(decoded);
    acc_cache_free(&c);
    free(k_rows);
    free(v_rows);
    free(out);
    return r;
}

/* ---- tests ---- */

/* Mean divergence with the keys alone coded. */
static orc_stat divergence(double dc, tq_format format, enum means means) {
    orc_stat s = {0, 0, 0};
    for (uint64_t seed = 1; seed <= DATA_SETS; seed++) {
        struct data data;
        make_data(&data, dc, seed);
        orc_stat_add(&s, run(&data, format, TQ_FORMAT_BF16, means).divergence);
        free_data(&data);
    }
    return s;
}

/* Numbers of design notes 3.6, reproduced to 15 %. */
static void test_published(void **state) {
    static const struct {
        double dc, divergence;
        tq_format format;
        enum means means;
    } all[] = {{4, 0.571, TQ_FORMAT_LM3, MEANS_NONE},
               {4, 0.152, TQ_FORMAT_LM3, MEANS_SET},
               {4, 0.166, TQ_FORMAT_LM4, MEANS_NONE},
               {1, 0.294, TQ_FORMAT_LM3, MEANS_NONE},
               {1, 0.157, TQ_FORMAT_LM3, MEANS_SET}};
    (void)state;
    for (size_t i = 0; i < COUNT(all); i++) {
        orc_stat s = divergence(all[i].dc, all[i].format, all[i].means);
        print_message("  DC %gx, %s, %-8s KL %.3f +- %.3f, published %.3f\n", all[i].dc,
                      acc_format_name(all[i].format),
                      all[i].means == MEANS_NONE ? "plain" : "centred", s.mean, orc_stat_error(&s),
                      all[i].divergence);
        if (FEWER == 1)
            AT_MOST(fabs(s.mean / all[i].divergence - 1), 0.15, "KL as published");
    }
}

static void check_gain(const struct data *data, double dc, tq_format format, double factor) {
    const char *name = acc_format_name(format);
    struct run plain = run(data, format, format, MEANS_NONE);
    struct run set = run(data, format, format, MEANS_SET);
    struct run fitted = run(data, format, format, MEANS_FITTED);
    print_message("  DC %gx %s: KL plain %.3f set %.4f fitted %.4f (%.1fx)  "
                  "out plain %.3f set %.3f fitted %.3f (%.1fx)\n",
                  dc, name, plain.divergence, set.divergence, fitted.divergence,
                  plain.divergence / fitted.divergence, plain.out, set.out, fitted.out,
                  plain.out / fitted.out);
    AT_MOST(factor * set.divergence, plain.divergence, "%s: KL with means set", name);
    AT_MOST(factor * fitted.divergence, plain.divergence, "%s: KL with fitted means", name);
    AT_MOST(sqrt(factor) * fitted.out, plain.out, "%s: output error", name);
}

static void test_gain(void **state) {
    static const struct {
        double dc, lm3, lm4; /* least factor between the divergences */
    } all[] = {{4, 3.5, 3.5}, {100, 35, 50}};
    (void)state;
    for (size_t i = 0; i < 2; i++) {
        struct data data;
        make_data(&data, all[i].dc, 1);
        check_gain(&data, all[i].dc, TQ_FORMAT_LM3, all[i].lm3);
        check_gain(&data, all[i].dc, TQ_FORMAT_LM4, all[i].lm4);
        free_data(&data);
    }
}

/* Means are given back exactly: q.mean to lse, the mean of V to the output. */
static void check_exact(const struct data *data, double dc, const tq_variant_info *variant,
                        enum means means) {
    static const char *const names[] = {"no", "both", "fitted", "K", "V"};
    struct run r = run(data, variant->k_format, variant->v_format, means);
    print_message("  DC %3gx %-9s %-6s means, against decoded rows: out %.1e, lse %.1e\n", dc,
                  variant->name, names[means], r.kernel, r.lse);
    AT_MOST(r.kernel, 1e-6, "%s: output", variant->name);
    AT_MOST(r.lse, 1e-6, "%s: lse", variant->name);
}

static void test_exact(void **state) {
    static const double dcs[] = {4, 100};
    (void)state;
    for (size_t i = 0; i < 2; i++) {
        struct data data;
        make_data(&data, dcs[i], 1);
        for (uint32_t v = 0; v < tq_variant_count(); v++) {
            tq_variant_info info = acc_variant_at(v);
            check_exact(&data, dcs[i], &info, MEANS_SET);
            if (info.id == TQ_VARIANT_3BIT_NC)
                for (int means = MEANS_NONE; means <= MEANS_V; means++)
                    check_exact(&data, dcs[i], &info, (enum means)means);
        }
        free_data(&data);
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_published),
        cmocka_unit_test(test_gain),
        cmocka_unit_test(test_exact),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
