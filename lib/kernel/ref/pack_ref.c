/* Stage pack: 16-bit gains, and one token's codes back as numbers. Placement of codes is
 * spec/codes.h. */
#include <math.h>

#include "base/half.h"
#include "kernel/ref/ref.h"
#include "spec/codes.h"

#define F16_MAX 65504.0f
#define BF16_MAX 0x1.fep127f

void tqk_put_gain_ref(const struct tqi_layout *l, uint8_t *at, float gain) {
    if (l->side == TQI_SIDE_V)
        tqi_store16(at, tqi_float_to_bf16(fminf(gain, BF16_MAX)));
    else
        tqi_store16(at, tqi_float_to_f16(fminf(gain, F16_MAX)));
}

float tqk_get_gain_ref(const struct tqi_layout *l, const uint8_t *at) {
    uint16_t bits = tqi_load16(at);
    return l->side == TQI_SIDE_V ? tqi_bf16_to_float(bits) : tqi_f16_to_float(bits);
}

static void unpack_plain(const struct tqi_rows *rows, const struct tqi_tile *tile, uint32_t token,
                         double *values) {
    const struct tqi_layout *l = &rows->layout;
    for (uint32_t i = 0; i < l->dim; i++) {
        const uint8_t *at = tile->blob + tqi_wide_offset(l, token, i);
        if (l->kind == TQI_KIND_INT8)
            values[i] = (int8_t)*at;
        else if (l->kind == TQI_KIND_FP8)
            values[i] = (double)tqi_e4m3_to_float(*at);
        else if (rows->format->id == TQ_FORMAT_BF16)
            values[i] = (double)tqi_bf16_to_float(tqi_load16(at));
        else
            values[i] = (double)tqi_f16_to_float(tqi_load16(at));
    }
}

static void unpack_lm(const struct tqi_rows *rows, const struct tqi_tile *tile, uint32_t token,
                      double *values) {
    const struct tqi_layout *l = &rows->layout;
    for (uint32_t i = 0; i < l->dim; i++)
        values[i] = rows->book.code_v2[tqi_get_code(l, tile->blob, token, i)];
}

static void unpack_polar(const struct tqi_rows *rows, const struct tqi_tile *tile, uint32_t token,
                         double *values) {
    const struct tqi_layout *l = &rows->layout;
    for (uint32_t block = 0; block < l->dim / TQI_POLAR_BLOCK; block++) {
        float u[TQI_POLAR_BLOCK];
        uint32_t e = tqi_polar_element(l, token, block);
        float radius = tqk_get_gain_ref(l, tile->blob + l->gains + (size_t)e * 2);
        tqk_polar_inverse_ref(rows->polar, tqi_get_polar(l, tile->blob, token, block), radius, u);
        for (uint32_t i = 0; i < TQI_POLAR_BLOCK; i++)
            values[block * TQI_POLAR_BLOCK + i] = (double)u[i];
    }
}

void tqk_unpack_ref(const struct tqi_rows *rows, const struct tqi_tile *tile, uint32_t token,
                    double *values, double *factor) {
    const struct tqi_layout *l = &rows->layout;
    const uint8_t *gain = tile->blob + l->gains + (size_t)token * 2;
    *factor = 1;
    switch (rows->format->kind) {
    case TQI_KIND_F16BIT:
        unpack_plain(rows, tile, token, values);
        break;
    case TQI_KIND_FP8:
        unpack_plain(rows, tile, token, values);
        *factor = (double)tile->scale;
        break;
    case TQI_KIND_INT8:
        unpack_plain(rows, tile, token, values);
        *factor = (double)tqk_get_gain_ref(l, gain) * rows->unit;
        break;
    case TQI_KIND_LM:
        unpack_lm(rows, tile, token, values);
        *factor = (double)tqk_get_gain_ref(l, gain) * rows->unit;
        break;
    case TQI_KIND_POLAR:
        unpack_polar(rows, tile, token, values);
        break;
    }
}

void tqk_unpack_sketch_ref(const struct tqi_rows *rows, const struct tqi_tile *tile, uint32_t token,
                           double *signs, double *factor) {
    const struct tqi_layout *l = &rows->layout;
    for (uint32_t i = 0; i < l->dim; i++)
        signs[i] = tqi_get_sketch(l, tile->blob, token, i) ? -1 : 1;
    *factor = (double)tqk_get_gain_ref(l, tile->blob + l->sketch_gains + (size_t)token * 2) *
              rows->sketch_unit;
}
