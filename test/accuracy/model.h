/* The library's formats as formats of the oracle, with the numbers that docs/FORMAT.md
 * states. Written out here a second time on purpose: a wrong number in the library
 * shows as a difference. */
#ifndef TEST_ACCURACY_MODEL_H
#define TEST_ACCURACY_MODEL_H

#include "accuracy/accuracy.h"

enum acc_polar {
    ACC_POLAR_INTEGER, /* the library's integer directions */
    ACC_POLAR_FLOAT    /* the paper's angles */
};

/* Side of a row: gains of keys are fp16, of values bf16. */
enum acc_side { ACC_K, ACC_V };

struct acc_model {
    orc_format orc;
    double scale; /* the oracle codes the row times this */
    double book[16];
    orc_polar_book polar;
    double *rotation, *projection; /* owned */
};

struct acc_recipe {
    tq_format format;
    orc_kind kind;
    int bits;
    bool sketch;
};

static inline struct acc_recipe acc_recipe_of(tq_format format) {
    static const struct acc_recipe all[] = {
        {TQ_FORMAT_BF16, ORC_ROW_BF16, 0, false},      {TQ_FORMAT_F16, ORC_ROW_F16, 0, false},
        {TQ_FORMAT_FP8, ORC_ROW_E4M3, 0, false},       {TQ_FORMAT_INT8, ORC_ROW_INT8, 0, false},
        {TQ_FORMAT_LM4, ORC_ROW_SCALAR, 4, false},     {TQ_FORMAT_LM3, ORC_ROW_SCALAR, 3, false},
        {TQ_FORMAT_LM2, ORC_ROW_SCALAR, 2, false},     {TQ_FORMAT_POLAR, ORC_ROW_POLAR, 0, false},
        {TQ_FORMAT_POLAR_QJL, ORC_ROW_POLAR, 0, true}, {TQ_FORMAT_LM3_QJL, ORC_ROW_SCALAR, 3, true},
        {TQ_FORMAT_LM2_QJL, ORC_ROW_SCALAR, 2, true},
    };
    for (size_t i = 0; i < COUNT(all); i++)
        if (all[i].format == format)
            return all[i];
    fail_msg("format %u: the oracle has no recipe for it", format);
    return all[0];
}

/* Both halves of a symmetric book, ascending. */
static inline void acc_book(double *book, int bits) {
    static const double lm4[] = {5.5, 16.5, 27.5, 39.5, 52.5, 67.5, 86.5, 114.5};
    static const double lm3[] = {10, 31, 55, 88};
    static const double lm2[] = {3, 10};
    const double *half = bits == 4 ? lm4 : bits == 3 ? lm3 : lm2;
    double step = bits == 4 ? 0.0238895761 : bits == 3 ? 0.0244461384 : 0.151034978;
    int n = 1 << (bits - 1);
    for (int i = 0; i < n; i++) {
        book[n + i] = half[i] * step;
        book[n - 1 - i] = -half[i] * step;
    }
}

/* Integer directions of the first quadrant by ascending angle; the sine is the cosine
 * backwards. Level 1 has their images in all quadrants and keeps its 16 equal cells. */
static inline void acc_polar_integer(orc_polar_book *book) {
    static const double cosine[ORC_POLAR_LEVELS][4] = {
        {106, 90, 60, 21}, {103, 87, 64, 33}, {99, 85, 68, 45}, {116, 102, 87, 67}};
    static const double step[ORC_POLAR_LEVELS] = {0.00924955011, 0.00925232103, 0.00919115318,
                                                  0.00746206323};
    for (int level = 0; level < ORC_POLAR_LEVELS; level++)
        for (int i = 0; i < book->size[level]; i++) {
            int quadrant = i / 4, at = quadrant % 2 == 0 ? i % 4 : 3 - i % 4;
            double x = cosine[level][at] * step[level], y = cosine[level][3 - at] * step[level];
            book->cosine[level][i] = quadrant == 1 || quadrant == 2 ? -x : x;
            book->sine[level][i] = quadrant >= 2 ? -y : y;
            if (level > 0)
                book->angle[level][i] = atan2(y, x);
        }
}

/* The projection of the rotated residual: S Pi. */
static inline double *acc_projection(size_t d, uint64_t seed, const double *rotation) {
    double *s = orc_projection_hadamard(d, seed);
    double *both = orc_product(d, d, d, s, rotation);
    free(s);
    return both;
}

static inline void acc_model_make(struct acc_model *m, tq_format format, enum acc_side side,
                                  enum acc_polar polar, size_t d, uint64_t seed) {
    struct acc_recipe r = acc_recipe_of(format);
    memset(m, 0, sizeof *m);
    m->scale = 1;
    m->orc = (orc_format){.kind = r.kind, .d = d, .bits = r.bits, .gain = ORC_GAIN_NC};
    m->orc.rounding = side == ACC_K ? ORC_F16 : ORC_BF16;
    if (r.kind == ORC_ROW_SCALAR) {
        acc_book(m->book, r.bits);
        m->orc.book = m->book;
    } else if (r.kind == ORC_ROW_POLAR) {
        orc_polar_book_make(&m->polar);
        if (polar == ACC_POLAR_INTEGER)
            acc_polar_integer(&m->polar);
        m->orc.polar = &m->polar;
    } else if (r.kind == ORC_ROW_INT8) {
        m->scale = 32 * sqrt((double)d); /* codes count in 1/32 of the RMS coordinate */
    } else {
        return;
    }
    m->orc.rotation = m->rotation = orc_rotation_hadamard(d, seed, 0);
    if (r.sketch) {
        m->orc.projection = m->projection = acc_projection(d, seed, m->rotation);
        m->orc.sketch = ORC_SKETCH_EXACT;
        m->orc.n_signs = d;
        m->orc.gamma_rounding = ORC_F16;
    }
}

static inline void acc_model_free(struct acc_model *m) {
    free(m->rotation);
    free(m->projection);
}

/* A row through the oracle. */
static inline void acc_model_roundtrip(const struct acc_model *m, const double *x,
                                       double *decoded) {
    double scaled[ORC_MAX_DIM] = {0};
    for (size_t i = 0; i < m->orc.d; i++)
        scaled[i] = x[i] * m->scale;
    orc_roundtrip(&m->orc, scaled, decoded);
    for (size_t i = 0; i < m->orc.d; i++)
        decoded[i] /= m->scale;
}

/* The rotation without its matrix, H diag(signs) x / sqrt(d), for powers of two: tests
 * that change the seed a thousand times have no time for the matrix. */
static inline void acc_hadamard(size_t d, double *x) {
    for (size_t stride = 1; stride < d; stride *= 2)
        for (size_t i = 0; i < d; i++)
            if ((i & stride) == 0) {
                double a = x[i], b = x[i + stride];
                x[i] = a + b;
                x[i + stride] = a - b;
            }
    for (size_t i = 0; i < d; i++)
        x[i] /= sqrt((double)d);
}

static inline void acc_signs(size_t d, uint64_t seed, uint64_t stream, double *x) {
    for (size_t i = 0; i < d; i++)
        x[i] *= orc_sign(seed, stream, i);
}

#endif
