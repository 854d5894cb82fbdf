/* Conversions between binary32 and the small float types, bit by bit, so that they
 * give the same result on every machine. All round to nearest, ties to even. */
#ifndef TQI_BASE_HALF_H
#define TQI_BASE_HALF_H

#include <stdint.h>
#include <string.h>

static inline uint32_t tqi_float_bits(float f) {
    uint32_t u;
    memcpy(&u, &f, sizeof u);
    return u;
}

static inline float tqi_bits_float(uint32_t u) {
    float f;
    memcpy(&f, &u, sizeof f);
    return f;
}

static inline float tqi_bf16_to_float(uint16_t h) {
    return tqi_bits_float((uint32_t)h << 16);
}

/* Infinity where the value exceeds the range, NaN stays NaN. */
static inline uint16_t tqi_float_to_bf16(float f) {
    uint32_t u = tqi_float_bits(f);
    if ((u & 0x7fffffffu) > 0x7f800000u)
        return (uint16_t)(u >> 16 | 0x40u);
    return (uint16_t)((u + 0x7fffu + (u >> 16 & 1u)) >> 16);
}

static inline float tqi_f16_to_float(uint16_t h) {
    uint32_t sign = (uint32_t)(h & 0x8000u) << 16, exponent = h >> 10 & 31u, mantissa = h & 0x3ffu;
    if (exponent == 31u)
        return tqi_bits_float(sign | 0x7f800000u | mantissa << 13);
    if (exponent)
        return tqi_bits_float(sign | (exponent + 112u) << 23 | mantissa << 13);
    /* Subnormal: mantissa * 2^-24, exact in binary32. */
    float magnitude = (float)mantissa * 0x1p-24f;
    return tqi_bits_float(tqi_float_bits(magnitude) | sign);
}

/* Rounds the low `shift` bits of u away, to nearest, ties to even. */
static inline uint32_t tqi_round_shift(uint32_t u, uint32_t shift) {
    uint32_t half = 1u << (shift - 1), odd = u >> shift & 1u;
    return (u + half - 1u + odd) >> shift;
}

/* Infinity where the value exceeds the range, NaN stays NaN. */
static inline uint16_t tqi_float_to_f16(float f) {
    uint32_t u = tqi_float_bits(f), sign = u >> 16 & 0x8000u, a = u & 0x7fffffffu;
    if (a > 0x7f800000u)
        return (uint16_t)(sign | 0x7e00u);
    if (a >= 0x477ff000u) /* 65520 and more round to infinity */
        return (uint16_t)(sign | 0x7c00u);
    if (a >= 0x38800000u) /* normal: rebias the exponent by 112 */
        return (uint16_t)(sign | tqi_round_shift(a - (112u << 23), 13));
    if (a < 0x33000000u) /* below half of the smallest subnormal */
        return (uint16_t)sign;
    uint32_t mantissa = (a & 0x7fffffu) | 0x800000u;
    return (uint16_t)(sign | tqi_round_shift(mantissa, 126u - (a >> 23)));
}

/* fp8 e4m3 without infinities: exponent bias 7, largest 448, NaN is 0x7f. */
static inline float tqi_e4m3_to_float(uint8_t c) {
    uint32_t sign = (uint32_t)(c & 0x80u) << 24, exponent = c >> 3 & 15u, mantissa = c & 7u;
    if (exponent == 15u && mantissa == 7u)
        return tqi_bits_float(sign | 0x7fc00000u);
    if (exponent)
        return tqi_bits_float(sign | (exponent + 120u) << 23 | mantissa << 20);
    float magnitude = (float)mantissa * 0x1p-9f;
    return tqi_bits_float(tqi_float_bits(magnitude) | sign);
}

/* Saturates at 448; the caller has removed NaN. */
static inline uint8_t tqi_float_to_e4m3(float f) {
    uint32_t u = tqi_float_bits(f), sign = u >> 24 & 0x80u, a = u & 0x7fffffffu;
    if (a > 0x7f800000u)
        return (uint8_t)(sign | 0x7fu);
    if (a >= 0x43e00000u) /* 448 and more */
        return (uint8_t)(sign | 0x7eu);
    if (a >= 0x3c800000u) { /* 2^-6 and more: normal; rebias by 120 */
        uint32_t r = tqi_round_shift(a - (120u << 23), 20);
        return (uint8_t)(sign | r);
    }
    if (a < 0x3a800000u) /* below half of the smallest subnormal 2^-9 */
        return (uint8_t)sign;
    uint32_t mantissa = (a & 0x7fffffu) | 0x800000u;
    return (uint8_t)(sign | tqi_round_shift(mantissa, 141u - (a >> 23)));
}

#endif
