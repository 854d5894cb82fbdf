/* The write path of one row: range, rotate, quantize, pack; polar and sketch for the
 * formats that have them. The contract is spec/rows.h. */
#include <float.h>
#include <math.h>
#include <string.h>

#include "base/half.h"
#include "kernel/ref/ref.h"
#include "spec/codes.h"

/* Scratch behind the row: a tree, a copy of the rotated row, codes. */
struct scratch {
    float *tree, *residual;
    uint8_t *codes;
};

size_t tqk_encode_scratch_ref(const struct tqi_rows *rows) {
    uint32_t dim = rows->layout.dim;
    return (size_t)dim * 2 + tqk_tree_floats(dim) + (dim + 3) / 4;
}

static struct scratch split(const struct tqi_rows *rows, float *x) {
    uint32_t dim = rows->layout.dim;
    struct scratch s;
    s.residual = x + dim;
    s.tree = s.residual + dim;
    s.codes = (uint8_t *)(s.tree + tqk_tree_floats(dim));
    return s;
}

/* The 16-bit gain as it was stored, in the range of the row at hand. */
static float stored_gain(const struct tqi_layout *l, const uint8_t *at, int e) {
    return tqk_scale_exponent_ref(tqk_get_gain_ref(l, at), -e);
}

static void put_sketch(const struct tqi_rows *rows, int e, uint8_t *blob, uint32_t token,
                       struct scratch s) {
    float gain = tqk_sketch_ref(rows, s.residual, blob, token, s.tree);
    tqk_put_gain_ref(&rows->layout, blob + rows->layout.sketch_gains + (size_t)token * 2,
                     tqk_scale_exponent_ref(gain, e));
}

static void encode_lm(const struct tqi_rows *rows, float inv_scale, float *x, uint8_t *blob,
                      uint32_t token) {
    (void)inv_scale;
    const struct tqi_layout *l = &rows->layout;
    struct scratch s = split(rows, x);
    uint8_t *gain_at = blob + l->gains + (size_t)token * 2;
    float sum_squares;
    int e = tqk_range_ref(x, l->dim, s.tree, &sum_squares);
    tqk_rotate_ref(&rows->rotation, x, s.tree);
    float norm = sqrtf(sum_squares), inv = norm > 0 ? 1.0f / norm : 0;
    uint32_t sum = tqk_quantize_lm_ref(&rows->book, x, l->dim, inv, s.codes);
    float gain = norm * rows->gain_factor / sqrtf((float)sum);
    tqk_put_gain_ref(l, gain_at, tqk_scale_exponent_ref(gain, e));
    for (uint32_t i = 0; i < l->dim_pad; i++)
        tqi_put_code(l, blob, token, i, i < l->dim ? s.codes[i] : 0);
    if (!rows->format->sketch)
        return;
    float stored = stored_gain(l, gain_at, e);
    for (uint32_t i = 0; i < l->dim; i++) {
        float decoded = stored * rows->book.code_value[s.codes[i]];
        s.residual[i] = x[i] - decoded;
    }
    put_sketch(rows, e, blob, token, s);
}

static void encode_int8(const struct tqi_rows *rows, float inv_scale, float *x, uint8_t *blob,
                        uint32_t token) {
    (void)inv_scale;
    const struct tqi_layout *l = &rows->layout;
    struct scratch s = split(rows, x);
    float sum_squares;
    int e = tqk_range_ref(x, l->dim, s.tree, &sum_squares);
    tqk_rotate_ref(&rows->rotation, x, s.tree);
    int8_t *codes = (int8_t *)s.codes;
    uint32_t sum = tqk_quantize_int8_ref(x, l->dim, codes);
    float gain = sum ? sqrtf(sum_squares) * rows->gain_factor / sqrtf((float)sum) : 0;
    tqk_put_gain_ref(l, blob + l->gains + (size_t)token * 2, tqk_scale_exponent_ref(gain, e));
    for (uint32_t i = 0; i < l->dim_pad; i++)
        blob[tqi_wide_offset(l, token, i)] = i < l->dim ? s.codes[i] : 0;
}

/* A block of padding dims: radius 0. */
static void put_empty_block(const struct tqi_layout *l, uint8_t *blob, uint32_t token,
                            uint32_t block) {
    struct tqi_polar_codes zero = {0, 0, 0, 0};
    tqi_put_polar(l, blob, token, block, zero);
    tqi_store16(blob + l->gains + (size_t)tqi_polar_element(l, token, block) * 2, 0);
}

static void encode_polar(const struct tqi_rows *rows, float inv_scale, float *x, uint8_t *blob,
                         uint32_t token) {
    (void)inv_scale;
    const struct tqi_layout *l = &rows->layout;
    struct scratch s = split(rows, x);
    float sum_squares;
    int e = tqk_range_ref(x, l->dim, s.tree, &sum_squares);
    tqk_rotate_ref(&rows->rotation, x, s.tree);
    for (uint32_t block = 0; block < l->dim / TQI_POLAR_BLOCK; block++) {
        float radius, decoded[TQI_POLAR_BLOCK], *u = x + block * TQI_POLAR_BLOCK;
        uint8_t *gain_at = blob + l->gains + (size_t)tqi_polar_element(l, token, block) * 2;
        struct tqi_polar_codes codes = tqk_polar_forward_ref(rows->polar, u, &radius);
        tqk_put_gain_ref(l, gain_at, tqk_scale_exponent_ref(radius * rows->inv_sqrt_dim, e));
        tqi_put_polar(l, blob, token, block, codes);
        float stored = stored_gain(l, gain_at, e) * rows->sqrt_dim;
        tqk_polar_inverse_ref(rows->polar, codes, stored, decoded);
        for (uint32_t i = 0; i < TQI_POLAR_BLOCK; i++)
            s.residual[block * TQI_POLAR_BLOCK + i] = u[i] - decoded[i];
    }
    for (uint32_t block = l->dim / TQI_POLAR_BLOCK; block < l->dim_pad / TQI_POLAR_BLOCK; block++)
        put_empty_block(l, blob, token, block);
    if (rows->format->sketch)
        put_sketch(rows, e, blob, token, s);
}

static void encode_fp8(const struct tqi_rows *rows, float inv_scale, float *x, uint8_t *blob,
                       uint32_t token) {
    const struct tqi_layout *l = &rows->layout;
    for (uint32_t i = 0; i < l->dim_pad; i++)
        blob[tqi_wide_offset(l, token, i)] = i < l->dim ? tqi_float_to_e4m3(x[i] * inv_scale) : 0;
}

static float clamp(float x, float limit) {
    return x > limit ? limit : x < -limit ? -limit : x;
}

static void encode_16bit(const struct tqi_rows *rows, float inv_scale, float *x, uint8_t *blob,
                         uint32_t token) {
    (void)inv_scale;
    const struct tqi_layout *l = &rows->layout;
    int bf16 = rows->format->id == TQ_FORMAT_BF16;
    for (uint32_t i = 0; i < l->dim_pad; i++) {
        float value = i < l->dim ? x[i] : 0;
        uint16_t bits = bf16 ? tqi_float_to_bf16(clamp(value, 0x1.fep127f))
                             : tqi_float_to_f16(clamp(value, 65504.0f));
        tqi_store16(blob + tqi_wide_offset(l, token, i), bits);
    }
}

#define NAMED(format, body)                                                                \
    void tqk_encode_##format##_ref(const struct tqi_rows *rows, float inv_scale, float *x, \
                                   uint8_t *blob, uint32_t token) {                        \
        body(rows, inv_scale, x, blob, token);                                             \
    }
NAMED(bf16, encode_16bit)
NAMED(f16, encode_16bit)
NAMED(fp8, encode_fp8)
NAMED(int8, encode_int8)
NAMED(lm4, encode_lm)
NAMED(lm3, encode_lm)
NAMED(lm2, encode_lm)
NAMED(polar, encode_polar)
NAMED(polar_qjl, encode_polar)
NAMED(lm3_qjl, encode_lm)
NAMED(lm2_qjl, encode_lm)
