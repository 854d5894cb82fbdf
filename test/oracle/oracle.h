/*
 * The oracle: TurboQuant, PolarQuant, QJL and attention in double precision,
 * written from the papers to judge the library. It shares no code and no header
 * with the library. Everything is slow and obvious on purpose: rotations are
 * dense matrices, encoders search for the nearest value.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#ifndef ORC_ORACLE_H
#define ORC_ORACLE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/*
 * Rows are arrays of double. Matrices are row-major arrays of double; functions
 * that return one return memory for free(). No function fails for lack of
 * memory: the oracle aborts. Broken preconditions abort through assert().
 */

#define ORC_PI 3.14159265358979323846
#define ORC_MAX_DIM 1024 /* largest row, and most signs of a sketch */

/* ---- orc_matrix.c: vectors and matrices ---------------------------------- */

/* calloc that aborts instead of returning NULL. */
void *orc_alloc(size_t n, size_t size);
double orc_dot(size_t n, const double *a, const double *b);
double orc_norm(size_t n, const double *a);
/* y = M x and y = M^T x for M of rows x cols. */
void orc_apply(size_t rows, size_t cols, const double *m, const double *x, double *y);
void orc_apply_transposed(size_t rows, size_t cols, const double *m, const double *x, double *y);
/* New rows x cols matrix A B, A of rows x inner. */
double *orc_product(size_t rows, size_t inner, size_t cols, const double *a, const double *b);
/* Largest |(M M^T - I)_ij|: 0 when the rows are orthonormal. */
double orc_orthogonality_error(size_t rows, size_t cols, const double *m);

/* ---- orc_rng.c: random numbers ------------------------------------------- */

/* Number n of the stream `seed` of test data: splitmix64, uniform, Gaussian. */
uint64_t orc_random(uint64_t seed, uint64_t n);
double orc_uniform(uint64_t seed, uint64_t n); /* in (0, 1) */
double orc_gaussian(uint64_t seed, uint64_t n);
/* Row number `row` of an endless matrix of N(0,1) rows. */
void orc_gaussian_row(size_t d, uint64_t seed, uint64_t row, double *x);
/* A unit row with the given cosine to x, otherwise uniform on the sphere. */
void orc_query_row(size_t d, const double *x, double cosine, uint64_t seed, uint64_t row,
                   double *q);

/* Philox4x32-10 (Salmon et al. 2011). */
void orc_philox(const uint32_t counter[4], const uint32_t key[2], uint32_t out[4]);
/* Sign n (+1 or -1) of a stream of signs. */
double orc_sign(uint64_t seed, uint64_t stream, uint64_t n);

/* ---- orc_float.c: small floating point formats ---------------------------- */

/* Round to nearest, ties to even. f16 and bf16 overflow to infinity, e4m3
 * saturates at 448 (infinities too). NaN gives 0x7e00, 0x7fc0, 0x7f. */
uint16_t orc_f16_bits(double x);
uint16_t orc_bf16_bits(double x);
uint8_t orc_e4m3_bits(double x);
double orc_f16_value(uint16_t bits);
double orc_bf16_value(uint16_t bits);
double orc_e4m3_value(uint8_t bits);

/* How a stored scalar (gain, radius, residual norm) is kept. */
typedef enum {
    ORC_KEEP, /* as the double it is */
    ORC_F16,  /* rounded to fp16, clamped to +-65504 */
    ORC_BF16  /* rounded to bf16, clamped to its largest finite value */
} orc_rounding;

double orc_round(orc_rounding rounding, double x);

/* ---- orc_rotate.c: rotations and projections ------------------------------ */

/* Entry of the Hadamard matrix of order d: +1 or -1, and 0 where d is neither a
 * power of two nor {12, 20, 28, 36} times one. */
int orc_hadamard_entry(size_t d, size_t i, size_t j);
/* H diag(signs) / sqrt(d), the signs from Philox; NULL for an unsupported d. */
double *orc_rotation_hadamard(size_t d, uint64_t seed, uint64_t stream);
/* Haar measure: Gram-Schmidt of Gaussian rows, as in the papers. */
double *orc_rotation_haar(size_t d, uint64_t seed);
/* QJL's projection in the paper: iid N(0,1), rows x d. */
double *orc_projection_gaussian(size_t rows, size_t d, uint64_t seed);
/* Two signed rounds H D2 H D1 / d, D1 from stream 1 and D2 from stream 2. */
double *orc_projection_hadamard(size_t d, uint64_t seed);

/* ---- orc_lloyd.c: Lloyd-Max codebooks ------------------------------------- */

/* Each writes 2^bits centroids, ascending, and returns the mean squared error
 * over the variance (polar: the plain mean squared error of the angle). */
double orc_lloyd_gaussian(int bits, double *book);
/* Coordinate of a uniform unit row (TurboQuant, Lemma 1), times sqrt(d). */
double orc_lloyd_sphere(size_t d, int bits, double *book);
/* Angle of PolarQuant's level 2, 3, ... in [0, pi/2]. */
double orc_lloyd_angle(int level, int bits, double *book);

/* ---- formats of a row ----------------------------------------------------- */

typedef enum {
    ORC_ROW_F16,    /* element by element */
    ORC_ROW_BF16,   /* element by element */
    ORC_ROW_E4M3,   /* element by element, x / scale */
    ORC_ROW_INT8,   /* code = rint(127 y / max |y|), y the rotated row */
    ORC_ROW_SCALAR, /* TurboQuant_mse: nearest entry of the book */
    ORC_ROW_POLAR   /* PolarQuant: a radius and angles for each block */
} orc_kind;

/* The gain g of x^ = g Pi^T c; y = Pi x. */
typedef enum {
    ORC_GAIN_S1,      /* scalar: ||x|| (the paper); int8: max |y| / 127 */
    ORC_GAIN_NC,      /* ||x|| / ||c||: keeps the norm */
    ORC_GAIN_MMSE,    /* <y,c> / ||c||^2: least squares */
    ORC_GAIN_UNBIASED /* ||x||^2 / <y,c>: keeps <x^,x> */
} orc_gain;

/* The 1-bit sketch of the residual r = x - x^ and its stored scalar gamma:
 * x^ += constant gamma S^T sign(S r). */
typedef enum {
    ORC_SKETCH_NONE,
    ORC_SKETCH_GAUSSIAN,    /* constant sqrt(pi/2) / m,  gamma = ||r|| (paper) */
    ORC_SKETCH_ORTHONORMAL, /* constant 1 / (m E|u1|),   gamma = ||r|| */
    ORC_SKETCH_EXACT        /* the same constant, gamma = ||r||^2 / (constant ||S r||_1) */
} orc_sketch;

#define ORC_POLAR_BLOCK 16  /* coordinates of a block of 4 levels */
#define ORC_POLAR_ANGLES 15 /* its angles: 8 of level 1, then 4, 2, 1 */
#define ORC_POLAR_LEVELS 4
#define ORC_POLAR_MAX_LEVELS 6
#define ORC_POLAR_MAX_CODES 256 /* of an angle */

/* Entry [level - 1][code]. The encoder takes the nearest angle, the decoder
 * multiplies with (cosine, sine): a test may replace these by a library's. */
typedef struct {
    int levels;                     /* blocks have 2^levels coordinates */
    int size[ORC_POLAR_MAX_LEVELS]; /* 16, 4, 4, 4 in the paper */
    double angle[ORC_POLAR_MAX_LEVELS][ORC_POLAR_MAX_CODES];
    double cosine[ORC_POLAR_MAX_LEVELS][ORC_POLAR_MAX_CODES];
    double sine[ORC_POLAR_MAX_LEVELS][ORC_POLAR_MAX_CODES];
} orc_polar_book;

/* Zero is the plain choice everywhere; set kind, d and what the kind needs. */
typedef struct {
    orc_kind kind;
    size_t d;
    const double *rotation;      /* d x d; NULL: none */
    int bits;                    /* SCALAR */
    const double *book;          /* SCALAR: 2^bits ascending, for coordinates of variance 1 */
    const orc_polar_book *polar; /* POLAR */
    double scale;                /* E4M3; 0 means 1 */
    orc_gain gain;               /* INT8, SCALAR */
    orc_rounding rounding;       /* of the gain, or of the radii */
    orc_sketch sketch;
    const double *projection; /* S: n_signs x d, applied to the unrotated residual */
    size_t n_signs;
    orc_rounding gamma_rounding;
} orc_format;

/* An encoded row. */
typedef struct {
    int code[ORC_MAX_DIM]; /* bits (F16, BF16, E4M3), -127..127 (INT8), index (SCALAR, POLAR) */
    double gain;           /* INT8, SCALAR; in unit-sphere scale: c = book / sqrt(d) */
    double radius[ORC_MAX_DIM / 2]; /* POLAR */
    int sign[ORC_MAX_DIM];          /* of the sketch, +1 or -1 */
    double gamma;
} orc_row;

/* ---- orc_row.c ------------------------------------------------------------ */

void orc_encode(const orc_format *f, const double *x, orc_row *row);
void orc_decode(const orc_format *f, const orc_row *row, double *x);
void orc_roundtrip(const orc_format *f, const double *x, double *decoded);
/* Estimate of <q, x>: the query itself is not quantized. */
double orc_score(const orc_format *f, const orc_row *row, const double *q);

/* ---- the parts of a format ------------------------------------------------ */

/* orc_scalar.c: y is the rotated row; c has the scale of the gain. */
int orc_nearest(int n, const double *book, double y);
void orc_scalar_encode(const orc_format *f, const double *y, orc_row *row);
void orc_scalar_decode(const orc_format *f, const orc_row *row, double *y);
void orc_int8_encode(const orc_format *f, const double *y, orc_row *row);
void orc_int8_decode(const orc_format *f, const orc_row *row, double *y);
double orc_gain_value(orc_gain gain, size_t d, const double *y, const double *c, double s1);

/* orc_polar.c */
void orc_polar_book_make(orc_polar_book *book); /* 4 levels of 4, 2, 2, 2 bits */
/* Any levels; bits[i] of the angles of level i + 1. */
void orc_polar_book_split(orc_polar_book *book, int levels, const int *bits);
void orc_polar_encode(const orc_format *f, const double *y, orc_row *row);
void orc_polar_decode(const orc_format *f, const orc_row *row, double *y);
/* The transform alone: 15 angles and the radius of 16 coordinates; or of other levels. */
double orc_polar_forward(const double *y, double *angles);
double orc_polar_forward_levels(int levels, const double *y, double *angles);

/* orc_qjl.c */
double orc_mean_abs_coordinate(size_t d); /* E|u1| of a uniform unit row */
double orc_sketch_constant(orc_sketch kind, size_t n_signs, size_t d);
void orc_sketch_encode(const orc_format *f, const double *residual, orc_row *row);
/* Adds the reconstructed residual to x. */
void orc_sketch_decode(const orc_format *f, const orc_row *row, double *x);
/* Estimate of <q, residual>. */
double orc_sketch_score(const orc_format *f, const orc_row *row, const double *q);

/* ---- orc_attend.c: attention ---------------------------------------------- */

/* Query head h uses kv head h / (n_q_heads / n_kv_heads). Causal is bottom-right:
 * query i sees the first n_keys - n_queries + i + 1 keys, none if that is < 1. */
typedef struct {
    size_t n_queries, n_keys, n_q_heads, n_kv_heads, dim_k, dim_v;
    double scale;
    bool causal;
    size_t window;       /* a query sees only the last keys of those; 0: all */
    double softcap;      /* 0: none; else score = softcap tanh(scale q.k / softcap) */
    const double *sinks; /* NULL, or per query head the score of a key without value */
} orc_shape;

/* Layouts: q [query][q head][dim_k], k [key][kv head][dim_k], v likewise,
 * scores and weights [query][q head][key], out [query][q head][dim_v],
 * lse [query][q head]. Hidden keys score -infinity and weigh 0. */
size_t orc_visible_keys(const orc_shape *s, size_t query); /* those before are in sight, */
size_t orc_first_key(const orc_shape *s, size_t query);    /* from this one on */
void orc_scores(const orc_shape *s, const double *q, const double *k, double *scores);
/* Softmax of one row of scores; returns the natural log of the sum of exp. */
double orc_softmax(size_t n, const double *scores, double *weights);
/* No visible key: out 0, lse -infinity, whatever the sink. With a sink the weights add up to
 * less than 1. lse and weights may be NULL. */
void orc_attend(const orc_shape *s, const double *q, const double *k, const double *v, double *out,
                double *lse, double *weights);

/* ---- orc_measure.c: errors ------------------------------------------------ */

typedef struct {
    size_t n;
    double mean;
    double squares; /* sum of squared deviations from the mean */
} orc_stat;

void orc_stat_add(orc_stat *s, double value);
double orc_stat_error(const orc_stat *s); /* standard error of the mean */

/* ||got - want|| / ||want||; with want = 0: 0 if got = 0, else infinity. */
double orc_relative_l2(size_t n, const double *got, const double *want);
/* Kullback-Leibler divergence sum p ln(p / q) of two rows of weights. */
double orc_divergence(size_t n, const double *p, const double *q);
/* Largest |a - b|; two equal infinities differ by 0, a NaN gives infinity. */
double orc_max_difference(size_t n, const double *a, const double *b);

/* ||x - x^||^2 / ||x||^2 over given rows, and over n rows of N(0,1). */
void orc_distortion_rows(const orc_format *f, size_t n, const double *rows, orc_stat *distortion);
void orc_distortion(const orc_format *f, size_t n, uint64_t seed, orc_stat *distortion);
/* Error e of the inner product of unit q with the given cosine to a Gaussian x:
 * mean of e / ||x|| and of d e^2 / ||x||^2. */
void orc_score_error(const orc_format *f, double cosine, size_t n, uint64_t seed, orc_stat *bias,
                     orc_stat *square);

#endif
