/* Rows with polar angles of any levels and bits, and sketches of any length, see kernel/study.h.
 * A row: fp16 radii and angles bit by bit, or the row of a scalar format; then signs and the fp16
 * gain of the sketch. The sketch is that of the residual in the caller's basis. */
#include "kernel/study.h"

#include <math.h>
#include <string.h>

#include "base/half.h"
#include "kernel/ref/ref.h"

enum { BLOCK_LIMIT = 1 << TQI_STUDY_LEVELS };

static uint32_t parts_of(const struct tqi_study *s, uint32_t dim) {
    return (s->signs + dim - 1) / dim;
}

/* Angles of a block in bits. */
static uint32_t block_bits(const struct tqi_study *s) {
    uint32_t bits = 0;
    for (uint32_t l = 0; l < s->levels; l++)
        bits += s->bits[l] << (s->levels - 1 - l);
    return bits;
}

static uint32_t blocks_of(const struct tqi_study *s) {
    return s->base.layout.dim >> s->levels;
}

size_t tqi_study_flips(const struct tqi_study *study, uint32_t dim) {
    return (size_t)dim * (1 + 2 * parts_of(study, dim));
}

void tqi_study_init(struct tqi_study *study, const struct tqi_format *format, uint32_t dim,
                    uint64_t seed, uint32_t *flips) {
    bool polar = format->kind == TQI_KIND_POLAR;
    tq_format plain = polar ? TQ_FORMAT_POLAR : format->bits == 3 ? TQ_FORMAT_LM3 : TQ_FORMAT_LM2;
    struct tqi_layout layout;
    size_t scalar = tqi_row_layout_make(&layout, tqi_format_by_id(plain), dim);
    tqi_rows_init(&study->base, tqi_format_by_id(plain), &layout, seed, flips);
    size_t angles = ((size_t)blocks_of(study) * block_bits(study) + 7) / 8;
    study->sketch_at = polar ? blocks_of(study) * sizeof(uint16_t) + angles : scalar;
    study->row_bytes = study->sketch_at + (study->signs ? study->signs / 8 + 2 : 0);
    for (uint32_t l = 0; l < study->levels; l++)
        tqi_study_book(&study->book[l], l + 1, study->bits[l]);
    for (uint32_t i = 0; i < 2 * parts_of(study, dim); i++) {
        uint32_t *own = flips + (size_t)dim * (1 + i);
        (void)tqi_rotation_split(dim, &study->sketch[i]);
        tqi_rotation_signs(seed, (enum tqi_sign_stream)(TQI_STREAM_SKETCH_1 + i), dim, own);
        study->sketch[i].flips = own;
    }
    if (study->signs)
        study->sketch_unit = 1 / (study->signs * tqi_mean_abs_coordinate(dim));
}

/* ---- bits --------------------------------------------------------------------------------- */

static void put_bits(uint8_t *at, size_t *bit, uint32_t n, uint32_t value) {
    for (uint32_t i = 0; i < n; i++, ++*bit)
        tqi_put_bit8(at + *bit / 8, (uint32_t)(*bit % 8), value >> i & 1u);
}

static uint32_t get_bits(const uint8_t *at, size_t *bit, uint32_t n) {
    uint32_t value = 0;
    for (uint32_t i = 0; i < n; i++, ++*bit)
        value |= (uint32_t)(at[*bit / 8] >> *bit % 8 & 1) << i;
    return value;
}

static void put_half(uint8_t *at, double x) {
    tqi_store16(at, tqi_float_to_f16((float)fmin(x, 65504)));
}

static double get_half(const uint8_t *at) {
    return (double)tqi_f16_to_float(tqi_load16(at));
}

/* ---- polar -------------------------------------------------------------------------------- */

static uint32_t code_of(const struct tqi_study_book *book, double a, double b) {
    double psi = atan2(b, a);
    uint32_t code = 0;
    psi = psi < 0 ? psi + 6.28318530717958647692 : psi;
    while (code + 1 < book->codes && psi > book->bound[code])
        code++;
    return code;
}

/* One block of coordinates, destroyed: angles as they are made, returns the radius. */
static double put_block(const struct tqi_study *s, double *r, uint8_t *angles, size_t *bit) {
    for (uint32_t l = 0, n = 1u << s->levels; l < s->levels; l++, n /= 2)
        for (uint32_t j = 0; j < n / 2; j++) {
            double a = r[2 * j], b = r[2 * j + 1];
            put_bits(angles, bit, s->bits[l], code_of(&s->book[l], a, b));
            r[j] = sqrt(a * a + b * b);
        }
    return r[0];
}

static void get_block(const struct tqi_study *s, double radius, const uint8_t *angles, size_t *bit,
                      double *r) {
    uint32_t code[TQI_STUDY_LEVELS][BLOCK_LIMIT / 2];
    for (uint32_t l = 0; l < s->levels; l++)
        for (uint32_t j = 0; j < 1u << (s->levels - 1 - l); j++)
            code[l][j] = get_bits(angles, bit, s->bits[l]);
    r[0] = radius;
    for (uint32_t l = s->levels; l-- > 0;)
        for (uint32_t j = 1u << (s->levels - 1 - l); j-- > 0;) {
            double whole = r[j];
            r[2 * j + 1] = whole * s->book[l].sine[code[l][j]];
            r[2 * j] = whole * s->book[l].cosine[code[l][j]];
        }
}

static void encode_polar(const struct tqi_study *s, const float *x, uint8_t *row, double *y,
                         double *line) {
    uint8_t *angles = row + blocks_of(s) * sizeof(uint16_t);
    size_t bit = 0;
    for (uint32_t i = 0; i < s->base.layout.dim; i++)
        y[i] = (double)x[i];
    tqk_rotate_exact_ref(&s->base.rotation, y, line);
    for (uint32_t b = 0; b < blocks_of(s); b++)
        put_half(row + (size_t)b * 2, put_block(s, y + ((size_t)b << s->levels), angles, &bit));
}

static void decode_polar(const struct tqi_study *s, const uint8_t *row, double *out, double *line) {
    const uint8_t *angles = row + blocks_of(s) * sizeof(uint16_t);
    size_t bit = 0;
    for (uint32_t b = 0; b < blocks_of(s); b++)
        get_block(s, get_half(row + (size_t)b * 2), angles, &bit, out + ((size_t)b << s->levels));
    tqk_unrotate_exact_ref(&s->base.rotation, out, line);
}

/* ---- scalar codes ------------------------------------------------------------------------- */

static void encode_scalar(const struct tqi_study *s, const float *x, uint8_t *row, float *copy) {
    memcpy(copy, x, s->base.layout.dim * sizeof *copy);
    tqi_level_ref()->encode[s->base.format->id].run(&s->base, 1, copy, row, 0);
}

static void decode_base(const struct tqi_study *s, const uint8_t *row, double *out,
                        double *scratch) {
    struct tqi_tile tile = {.blob = row, .last = 1, .scale = 1};
    if (s->levels)
        decode_polar(s, row, out, scratch);
    else
        tqi_level_ref()->decode(&s->base, &tile, 0, out, scratch);
}

/* ---- sketch ------------------------------------------------------------------------------- */

static uint32_t signs_of_part(const struct tqi_study *s, uint32_t part) {
    uint32_t dim = s->base.layout.dim, left = s->signs - part * dim;
    return left < dim ? left : dim;
}

/* r: the residual; p: room for a projection. The gain makes the estimate exact along r. */
static void put_sketch(const struct tqi_study *s, const double *r, double *p, double *line,
                       uint8_t *at) {
    uint32_t dim = s->base.layout.dim;
    double energy = 0, sum = 0;
    size_t bit = 0;
    for (uint32_t i = 0; i < dim; i++)
        energy += r[i] * r[i];
    for (uint32_t part = 0; part < parts_of(s, dim); part++) {
        memcpy(p, r, dim * sizeof *p);
        tqk_rotate_exact_ref(&s->sketch[2 * part], p, line);
        tqk_rotate_exact_ref(&s->sketch[2 * part + 1], p, line);
        for (uint32_t i = 0; i < signs_of_part(s, part); i++) {
            put_bits(at, &bit, 1, signbit(p[i]) ? 1 : 0);
            sum += fabs(p[i]);
        }
    }
    put_half(at + s->signs / 8, sum > 0 ? energy / (s->sketch_unit * sum) : 0);
}

static void add_sketch(const struct tqi_study *s, const uint8_t *at, double *out, double *p,
                       double *line) {
    uint32_t dim = s->base.layout.dim;
    double factor = get_half(at + s->signs / 8) * s->sketch_unit;
    size_t bit = 0;
    for (uint32_t part = 0; part < parts_of(s, dim); part++) {
        uint32_t n = signs_of_part(s, part);
        for (uint32_t i = 0; i < dim; i++)
            p[i] = i >= n ? 0 : get_bits(at, &bit, 1) ? -1 : 1;
        tqk_unrotate_exact_ref(&s->sketch[2 * part + 1], p, line);
        tqk_unrotate_exact_ref(&s->sketch[2 * part], p, line);
        for (uint32_t i = 0; i < dim; i++)
            out[i] += factor * p[i];
    }
}

/* ---- rows --------------------------------------------------------------------------------- */

/* A row, a projection, then what the stages of the reference take. */
size_t tqi_study_scratch(const struct tqi_study *study) {
    const struct tqi_level *ref = tqi_level_ref();
    size_t decode = ref->scratch_bytes(&study->base) / sizeof(double) + 1;
    size_t encode = ref->encode_scratch(&study->base);
    return 2 * (size_t)study->base.layout.dim + (decode > encode ? decode : encode);
}

void tqi_study_encode(const struct tqi_study *study, const float *x, uint8_t *row,
                      double *scratch) {
    uint32_t dim = study->base.layout.dim;
    double *r = scratch, *p = r + dim, *rest = p + dim;
    memset(row, 0, study->row_bytes);
    if (study->levels)
        encode_polar(study, x, row, r, rest);
    else
        encode_scalar(study, x, row, (float *)rest);
    if (!study->signs)
        return;
    decode_base(study, row, r, rest);
    for (uint32_t i = 0; i < dim; i++)
        r[i] = (double)x[i] - r[i];
    put_sketch(study, r, p, rest, row + study->sketch_at);
}

void tqi_study_decode(const struct tqi_study *study, const uint8_t *row, double *out,
                      double *scratch) {
    decode_base(study, row, out, scratch + study->base.layout.dim);
    if (study->signs)
        add_sketch(study, row + study->sketch_at, out, scratch, scratch + study->base.layout.dim);
}
