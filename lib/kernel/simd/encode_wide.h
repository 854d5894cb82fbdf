/* The write path of rows that are not rotated (bf16, f16, fp8), written once for all SIMD levels:
 * round in dim order, then place.
 *
 * A file includes this once, last, behind the registers of its level (vec_*.h) and its stage
 * pack. The code of a token takes 4 bytes of every line that it touches, whatever its bits: a row
 * is placed four dims at a time. */
#include "spec/codes.h"

TQK_INLINE vec clamped(vec x, float most) {
    return v_max(v_min(x, v_all(most)), v_all(-most));
}

/* As tqi_float_to_bf16() of finite values. */
TQK_INLINE void put_bf16(uint8_t *to, vec x) {
    ivec u = v_bits(clamped(x, 0x1.fep127f)), odd = i_and(i_down(u, 16), i_all(1));
    i_put_halves(to, i_down(i_add(i_add(u, i_all(0x7fff)), odd), 16));
}

TQK_INLINE void put_f16(uint8_t *to, vec x) {
    v_put_ieee_halves(to, clamped(x, 65504.0f));
}

/* As tqi_float_to_e4m3(): the exponent is rebiased by 120 and 20 bits are rounded away; below the
 * least normal number 2^-6 a code counts in steps of 2^-9. */
TQK_INLINE void put_e4m3(uint8_t *to, vec x) {
    ivec sign = i_and(i_down(v_bits(x), 24), i_all(0x80));
    vec magnitude = v_min(i_float(i_and(v_bits(x), i_all(0x7fffffff))), v_all(448));
    ivec u = v_bits(magnitude), odd = i_and(i_down(u, 20), i_all(1));
    ivec normal = i_add(i_add(u, i_all(0x7ffff - (120u << 23))), odd);
    ivec small = v_nearest(v_mul(magnitude, v_all(512)));
    ivec code = i_where_less(magnitude, v_all(0x1p-6f), small, i_down(normal, 20));
    i_put_bytes(to, i_or(code, sign));
}

/* The codes of the row take the place of its copy in the scratch. */
TQK_INLINE void encode_wide(const struct tqi_rows *rows, tq_format format, float inv_scale,
                            float *x, uint8_t *blob, uint32_t token) {
    const struct tqi_layout *l = &rows->layout;
    uint32_t size = format == TQ_FORMAT_FP8 ? 1 : 2;
    uint8_t *codes = (uint8_t *)(x + l->dim);
    memset(codes + l->dim * size, 0, (l->dim_pad - l->dim) * size);
    for (uint32_t i = 0; i < l->dim; i += LANES) {
        vec v = v_load(x + i);
        if (format == TQ_FORMAT_FP8)
            put_e4m3(codes + i, v_mul(v, v_all(inv_scale)));
        else if (format == TQ_FORMAT_F16)
            put_f16(codes + i * 2, v);
        else
            put_bf16(codes + i * 2, v);
    }
    if (l->side == TQI_SIDE_V)
        TQK_OF(pack_v)(l, size * 8, codes, blob, token);
    else
        TQK_OF(pack_k)(l, size * 8, codes, blob, token);
}

#define ENCODE(name, format)                                                           \
    void TQK_OF(encode_##name)(const struct tqi_rows *rows, float inv_scale, float *x, \
                               uint8_t *blob, uint32_t token) {                        \
        encode_wide(rows, format, inv_scale, x, blob, token);                          \
    }
ENCODE(bf16, TQ_FORMAT_BF16)
ENCODE(f16, TQ_FORMAT_F16)
ENCODE(fp8, TQ_FORMAT_FP8)
#undef ENCODE
