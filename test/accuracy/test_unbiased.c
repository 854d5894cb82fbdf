/* Inner products estimated from codes: with the sketch (QJL) they are unbiased, without
 * they shrink by D / 2. A wrong constant of the sketch, for instance that of Gaussian
 * projections with orthogonal ones, hides in the total, because the residual is small:
 * the part of the residual is regressed for itself.
 *
 * Bias is an average over rotations and projections, hence over seeds. Keys are Gaussian,
 * or sit on code values in the rotated basis but for a turn in the plane of two
 * coordinates: their residual has two entries, and its projection is far from Gaussian. */
#include "accuracy/accuracy.h"
#include "accuracy/model.h"

enum {
    SEEDS = 1000 / FEWER,
    KEYS = 8, /* for every seed */
    PAIRED_SEEDS = 160 / FEWER,
    MAX_D = 128
};

/* A sketch format and the format of its codes. */
struct pair {
    tq_format format, base;
    size_t d;
    bool sparse;
    uint32_t flags; /* of the format's codec */
};

struct sample {
    double key[MAX_D], residual[MAX_D]; /* residual: key less its codes without sketch */
    double share; /* of the residual's energy in its two largest rotated coordinates */
};

/* Library objects of one seed. */
struct codecs {
    tq_codec *format, *base;
};

static struct codecs open_codecs(const struct pair *p, uint64_t seed) {
    tq_codec_config c = {.struct_size = sizeof c,
                         .format = p->format,
                         .dim = (uint32_t)p->d,
                         .flags = p->flags,
                         .seed = seed};
    struct codecs opened = {NULL, acc_codec(p->base, p->d, seed)};
    OK(tq_codec_create(acc_context(), &c, &opened.format));
    return opened;
}

static void close_codecs(struct codecs *c) {
    tq_codec_destroy(c->format);
    tq_codec_destroy(c->base);
}

static void through_codec(const tq_codec *codec, size_t d, const double *x, double *decoded) {
    float row[MAX_D] = {0};
    for (size_t i = 0; i < d; i++)
        row[i] = (float)x[i];
    uint8_t *codes = acc_encode(codec, 1, row);
    tq_rows_out out = acc_out(row);
    OK(tq_codec_decode(codec, 1, codes, &out));
    free(codes);
    for (size_t i = 0; i < d; i++)
        decoded[i] = (double)row[i];
}

static void to_float(size_t d, double *x) {
    for (size_t i = 0; i < d; i++)
        x[i] = (double)(float)x[i];
}

/* A pair of neighbours (2 j, 2 j + 1) of different magnitude. */
static size_t choose_pair(size_t d, const double *y, uint64_t random) {
    size_t at = random % (d / 2) * 2;
    while (fabs(fabs(y[at]) - fabs(y[at + 1])) < 0.1 * fabs(y[at]))
        at = (at + 2) % d;
    return at;
}

/* A decoded row is on code values; turning a pair of neighbours keeps norm, radius and
 * codes. Neighbours are a pair of level 1 in polar, too.
 *
 * Two degenerate cases are left out, for which no sketch by Hadamard matrices is unbiased.
 * Of an exactly two-sparse residual 1 to 2 % of the projections are 0 at dim 64, and their
 * signs would tell the rounding errors of floats: a little noise settles them. Two entries
 * of the same magnitude cancel in a seventh of the projections at dim 64, and the small
 * part of the residual beside the diagonal comes out too large (by 0.5 % of ||r||). */
static void make_sparse(const struct pair *p, const struct codecs *c, uint64_t seed, uint64_t n,
                        double *key) {
    double y[MAX_D] = {0};
    through_codec(c->base, p->d, key, y);
    acc_signs(p->d, seed, 0, y);
    acc_hadamard(p->d, y);
    size_t at = choose_pair(p->d, y, orc_random(seed, n));
    double a = y[at], b = y[at + 1];
    y[at] = a * cos(0.08) - b * sin(0.08);
    y[at + 1] = a * sin(0.08) + b * cos(0.08);
    for (size_t i = 0; i < p->d; i++)
        y[i] += 0.0005 * orc_gaussian(11, (seed * KEYS + n) * p->d + i);
    acc_hadamard(p->d, y);
    acc_signs(p->d, seed, 0, y);
    memcpy(key, y, p->d * sizeof *key);
    to_float(p->d, key);
}

/* Share of the energy in the two largest rotated coordinates. */
static double concentration(size_t d, uint64_t seed, const double *residual) {
    double y[MAX_D] = {0}, largest = 0, second = 0;
    memcpy(y, residual, d * sizeof *y);
    acc_signs(d, seed, 0, y);
    acc_hadamard(d, y);
    for (size_t i = 0; i < d; i++) {
        double energy = y[i] * y[i];
        second = fmax(second, fmin(energy, largest));
        largest = fmax(largest, energy);
    }
    return (largest + second) / orc_dot(d, y, y);
}

static void make_sample(const struct pair *p, const struct codecs *c, uint64_t seed, uint64_t n,
                        struct sample *s) {
    double decoded[MAX_D] = {0};
    orc_gaussian_row(p->d, 7, seed * KEYS + n, s->key);
    to_float(p->d, s->key);
    if (p->sparse)
        make_sparse(p, c, seed, n, s->key);
    through_codec(c->base, p->d, s->key, decoded);
    for (size_t i = 0; i < p->d; i++)
        s->residual[i] = s->key[i] - decoded[i];
    s->share = concentration(p->d, seed, s->residual);
}

/* The library's estimate of <q, key>. */
static double estimate(const tq_codec *codec, size_t d, const double *key, const double *q) {
    float row[MAX_D] = {0}, query[MAX_D] = {0}, dot = 0;
    for (size_t i = 0; i < d; i++) {
        row[i] = (float)key[i];
        query[i] = (float)q[i];
    }
    uint8_t *codes = acc_encode(codec, 1, row);
    tq_rows_in in = acc_in(query);
    OK(tq_codec_dot(codec, &in, 1, codes, &dot));
    free(codes);
    return (double)dot;
}

/* Errors, and the regression of estimates on true values through the origin. */
struct tally {
    orc_stat error;
    double xy, xx, ee;
};

static void tally_add(struct tally *t, double estimated, double want) {
    double error = estimated - want;
    orc_stat_add(&t->error, error);
    t->xy += want * estimated;
    t->xx += want * want;
    t->ee += error * error;
}

static double slope_of(const struct tally *t) {
    return t->xy / t->xx;
}

static double slope_error(const struct tally *t) {
    return sqrt(t->ee / (double)t->error.n / t->xx);
}

/* Everything in units of the length of what is estimated. Queries have cosine 1/2 to the
 * key (total) or to the residual (residual). */
struct result {
    struct tally total, residual;
    orc_stat share;
};

static void add_sample(const struct pair *p, const struct codecs *c, uint64_t seed, uint64_t n,
                       struct result *r) {
    struct sample s;
    double q[MAX_D] = {0};
    make_sample(p, c, seed, n, &s);
    orc_stat_add(&r->share, s.share);
    double k_norm = orc_norm(p->d, s.key), r_norm = orc_norm(p->d, s.residual);
    orc_query_row(p->d, s.key, 0.5, 8, seed * KEYS + n, q);
    to_float(p->d, q);
    tally_add(&r->total, estimate(c->format, p->d, s.key, q) / k_norm,
              orc_dot(p->d, q, s.key) / k_norm);
    orc_query_row(p->d, s.residual, 0.5, 9, seed * KEYS + n, q);
    to_float(p->d, q);
    double coded = orc_dot(p->d, q, s.key) - orc_dot(p->d, q, s.residual);
    tally_add(&r->residual, (estimate(c->format, p->d, s.key, q) - coded) / r_norm,
              orc_dot(p->d, q, s.residual) / r_norm);
}

static struct result gather(const struct pair *p) {
    struct result r;
    memset(&r, 0, sizeof r);
    for (uint64_t seed = 1; seed <= SEEDS; seed++) {
        struct codecs c = open_codecs(p, seed);
        for (uint64_t n = 0; n < KEYS; n++)
            add_sample(p, &c, seed, n, &r);
        close_codecs(&c);
    }
    return r;
}

static void check_tally(const char *what, const char *part, const struct tally *t) {
    double bias = t->error.mean, error = orc_stat_error(&t->error);
    print_message("    %-8s bias %+.2e = %+.2f s.e., slope %.5f +- %.5f\n", part, bias,
                  bias / error, slope_of(t), slope_error(t));
    AT_MOST(fabs(bias), 3 * error, "%s, %s: bias in standard errors is %.2f", what, part,
            bias / error);
    AT_MOST(fabs(slope_of(t) - 1), fmax(0.01, FEWER > 1 ? 3 * slope_error(t) : 0),
            "%s, %s: slope is %.5f", what, part, slope_of(t));
}

/* B24: the estimate is unbiased. */
static void test_sketch(void **state) {
    const struct pair *p = *state;
    struct result r = gather(p);
    const char *name = acc_format_name(p->format);
    print_message("  %s d=%zu, %s keys: %.3f of the residual in two coordinates\n", name, p->d,
                  p->sparse ? "sparse" : "Gaussian", r.share.mean);
    if (p->sparse)
        AT_MOST(1 - r.share.mean, 0.05, "%s: energy outside of two coordinates", name);
    check_tally(name, "total", &r.total);
    check_tally(name, "residual", &r.residual);
}

/* Codes alone shrink <q, k> by D / 2, for the gain keeps the norm: ||x - x^||^2 =
 * 2 ||x||^2 - 2 <x, x^>. */
static void test_without_sketch(void **state) {
    static const tq_format formats[] = {TQ_FORMAT_LM4, TQ_FORMAT_LM3, TQ_FORMAT_LM2,
                                        TQ_FORMAT_POLAR};
    (void)state;
    for (size_t i = 0; i < 4; i++) {
        struct pair p = {formats[i], formats[i], 128, false, 0};
        struct result r = gather(&p);
        double mse = 0, slope = slope_of(&r.total), error = slope_error(&r.total);
        for (uint32_t f = 0; f < tq_format_count(); f++)
            if (acc_format_at(f).id == formats[i])
                mse = acc_format_at(f).mse;
        print_message("  %-6s slope %.5f +- %.5f, 1 - D/2 is %.5f\n", acc_format_name(formats[i]),
                      slope, error, 1 - mse / 2);
        AT_MOST(fabs(slope - (1 - mse / 2)), 4 * error + 0.015 * mse, "%s: slope",
                acc_format_name(formats[i]));
        if (FEWER == 1)
            AT_MOST(slope, 1 - 5 * error, "%s is biased", acc_format_name(formats[i]));
    }
}

/* Gains that make <x^, x> = ||x||^2 take the shrinking away, with less variance than a sketch. */
static void test_unbiased_gains(void **state) {
    static const tq_format formats[] = {TQ_FORMAT_LM4, TQ_FORMAT_LM3, TQ_FORMAT_LM2};
    (void)state;
    for (size_t i = 0; i < 3; i++) {
        struct pair p = {formats[i], formats[i], 128, false, TQ_CODEC_UNBIASED};
        struct result r = gather(&p);
        check_tally(acc_format_name(formats[i]), "gains", &r.total);
    }
}

static void test_flags(void **state) {
    (void)state;
    for (uint32_t i = 0; i < tq_format_count(); i++) {
        tq_format_info info = acc_format_at(i);
        bool unbiased = (info.flags & TQ_FORMAT_UNBIASED_DOT) != 0;
        assert_int_equal(unbiased, acc_recipe_of(info.id).sketch);
    }
}

/* ---- variance, against the oracle on the same keys, queries and signs ---- */

/* The formula of design notes 1.2 for orthonormal rows: D(b-1) (1 / (d E|u1|^2) - 1). */
static double expected_noise(tq_format base, size_t d) {
    float *rows = acc_gaussian(2000, d, 21), *decoded = acc_roundtrip(base, d, 1, 2000, rows);
    double *x = acc_doubles(2000 * d, rows), *y = acc_doubles(2000 * d, decoded);
    double sum = 0, mean = orc_mean_abs_coordinate(d);
    for (size_t i = 0; i < 2000; i++)
        sum += acc_distortion(d, x + i * d, y + i * d);
    free(rows);
    free(decoded);
    free(x);
    free(y);
    return sum / 2000 * (1 / ((double)d * mean * mean) - 1);
}

/* d e^2 of unit rows, by the library and by the oracle with both kinds of gain. */
struct noise {
    orc_stat library, exact, plain;
};

static void add_noise(const struct pair *p, const struct codecs *c, struct acc_model *m,
                      uint64_t seed, uint64_t n, struct noise *noise) {
    struct sample s;
    double q[MAX_D] = {0};
    orc_row row;
    make_sample(p, c, seed, n, &s);
    orc_gaussian_row(p->d, 10, seed * KEYS + n, q);
    to_float(p->d, q);
    double want = orc_dot(p->d, q, s.key);
    double unit = sqrt((double)p->d) / (orc_norm(p->d, q) * orc_norm(p->d, s.key));
    double error = unit * (estimate(c->format, p->d, s.key, q) - want);
    orc_stat_add(&noise->library, error * error);
    m->orc.sketch = ORC_SKETCH_EXACT;
    orc_encode(&m->orc, s.key, &row);
    error = unit * (orc_score(&m->orc, &row, q) - want);
    orc_stat_add(&noise->exact, error * error);
    m->orc.sketch = ORC_SKETCH_ORTHONORMAL;
    orc_encode(&m->orc, s.key, &row);
    error = unit * (orc_score(&m->orc, &row, q) - want);
    orc_stat_add(&noise->plain, error * error);
}

static struct noise gather_noise(const struct pair *p) {
    struct noise noise;
    memset(&noise, 0, sizeof noise);
    for (uint64_t seed = 1; seed <= PAIRED_SEEDS; seed++) {
        struct codecs c = open_codecs(p, seed);
        struct acc_model m;
        acc_model_make(&m, p->format, ACC_K, ACC_POLAR_INTEGER, p->d, seed);
        for (uint64_t n = 0; n < KEYS; n++)
            add_noise(p, &c, &m, seed, n, &noise);
        acc_model_free(&m);
        close_codecs(&c);
    }
    return noise;
}

static void test_variance(void **state) {
    const struct pair *p = *state;
    const char *name = acc_format_name(p->format);
    struct noise noise = gather_noise(p);
    double got = noise.library.mean, error = orc_stat_error(&noise.library);
    print_message("  %s d=%zu, %s keys: d e^2 %.3e +- %.1e, oracle %.3e, with gamma = ||r|| %.3e",
                  name, p->d, p->sparse ? "sparse" : "Gaussian", got, error, noise.exact.mean,
                  noise.plain.mean);
    if (!p->sparse)
        print_message(", formula %.3e", expected_noise(p->base, p->d));
    print_message("\n");
    AT_MOST(fabs(got / noise.exact.mean - 1), 0.01, "%s: variance against the oracle", name);
    AT_MOST(fabs(got - noise.plain.mean), 4 * error + 0.02 * got, "%s: gains of the sketch", name);
    if (!p->sparse) /* the exact gain costs a little: 3 (pi/2 - 1) / d of it */
        AT_MOST(fabs(got / expected_noise(p->base, p->d) - 1), 4 * error / got + 0.04,
                "%s: variance against the formula", name);
}

#define CASES(d, sparse)                                    \
    {TQ_FORMAT_POLAR_QJL, TQ_FORMAT_POLAR, d, sparse, 0},   \
        {TQ_FORMAT_LM3_QJL, TQ_FORMAT_LM3, d, sparse, 0}, { \
        TQ_FORMAT_LM2_QJL, TQ_FORMAT_LM2, d, sparse, 0      \
    }

#define ROW(name, at) \
    { "test_sketch_" name, test_sketch, NULL, NULL, &pairs[at] }
#define VARIANCE_ROW(name, at) \
    { "test_variance_" name, test_variance, NULL, NULL, &pairs[at] }
#define ROWS(row)                                                                                 \
    row("polar_64", 0), row("lm3_64", 1), row("lm2_64", 2), row("polar_128", 3),                  \
        row("lm3_128", 4), row("lm2_128", 5), row("polar_sparse_64", 6), row("lm3_sparse_64", 7), \
        row("lm2_sparse_64", 8), row("polar_sparse_128", 9), row("lm3_sparse_128", 10),           \
        row("lm2_sparse_128", 11)

int main(void) {
    static struct pair pairs[] = {CASES(64, false), CASES(128, false), CASES(64, true),
                                  CASES(128, true)};
    const struct CMUnitTest tests[] = {
        ROWS(ROW), ROWS(VARIANCE_ROW), cmocka_unit_test(test_without_sketch),
        cmocka_unit_test(test_unbiased_gains), cmocka_unit_test(test_flags)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
