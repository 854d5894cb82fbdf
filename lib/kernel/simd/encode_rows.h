/* The write path of one row, written once for all SIMD levels: norm, rotate, quantize, pack, and
 * the sketch of formats that have one.
 *
 * A file includes this once, behind the registers of its level (vec_*.h), and has defined for its
 * level the stages sum_squares(), sum_abs(), quantize_lm(), quantize_int8() and split(), which
 * lays out its scratch: the row, as many floats for a residual, the rest. Rows outside the plain
 * range go to the reference. */
#include <math.h>

#include "kernel/simd/encode_sketch.h"

/* element: the token, or that of a polar block. */
static void put_gain(const struct tqi_layout *l, uint8_t *blob, uint32_t element, float gain) {
    uint8_t *at = blob + l->gains + (size_t)element * 2;
    tqi_store16(at, l->side == TQI_SIDE_V ? tqi_float_to_bf16(fminf(gain, 0x1.fep127f))
                                          : tqi_float_to_f16(fminf(gain, 65504.0f)));
}

static bool in_range(float sum) {
    return sum >= 0x1p-80f && sum <= 0x1p100f;
}

/* Codes of 8 bits are int8, of fewer Lloyd-Max. */
TQK_INLINE void encode_row(const struct tqi_rows *rows, uint32_t bits, bool sketch, float inv_scale,
                           float *x, uint8_t *blob, uint32_t token) {
    const struct tqi_layout *l = &rows->layout;
    struct scratch s = split(rows, x);
    float sum = sum_squares(x, l->dim, s.tree);
    if (!in_range(sum)) {
        tqi_level_ref()->encode[rows->format->id].run(rows, inv_scale, x, blob, token);
        return;
    }
    TQK_OF(rotate)(&rows->rotation, x);
    float norm = sqrtf(sum);
    uint32_t energy = bits == 8 ? quantize_int8(x, l->dim, s.codes)
                                : quantize_lm(&rows->book, bits, x, l->dim, 1.0f / norm, s.codes);
    put_gain(l, blob, token, energy ? norm * rows->gain_factor / sqrtf((float)energy) : 0);
    if (l->side == TQI_SIDE_V)
        TQK_OF(pack_v)(l, bits, s.codes, blob, token);
    else
        TQK_OF(pack_k)(l, bits, s.codes, blob, token);
    if (!sketch)
        return;
    float *residual = x + l->dim;
    residual_of_codes(rows, x, s.codes, stored_gain(l, blob, token), residual);
    encode_sketch(rows, residual, s.tree, blob, token);
}

#define ENCODE(format, bits, sketch)                                                     \
    void TQK_OF(encode_##format)(const struct tqi_rows *rows, float inv_scale, float *x, \
                                 uint8_t *blob, uint32_t token) {                        \
        encode_row(rows, bits, sketch, inv_scale, x, blob, token);                       \
    }
ENCODE(int8, 8, false)
ENCODE(lm4, 4, false)
ENCODE(lm3, 3, false)
ENCODE(lm2, 2, false)
ENCODE(lm3_qjl, 3, true)
ENCODE(lm2_qjl, 2, true)
#undef ENCODE
