#include "common/numbers.h"

#include <float.h>
#include <math.h>
#include <string.h>

#include "common/memory.h"

const tq_dtype all_dtypes[3] = {TQ_F32, TQ_F16, TQ_BF16};

/* A binary format: digits behind the point, least exponent of a normal number, largest. */
struct binary {
    int digits, least;
    double largest;
};

static struct binary binary_of(tq_dtype dtype) {
    static const struct binary f32 = {23, -126, FLT_MAX}, f16 = {10, -14, 65504},
                               bf16 = {7, -126, 0x1.fep127};
    return dtype == TQ_F32 ? f32 : dtype == TQ_F16 ? f16 : bf16;
}

const char *dtype_name(tq_dtype dtype) {
    return dtype == TQ_F32 ? "f32" : dtype == TQ_F16 ? "f16" : "bf16";
}

size_t dtype_size(tq_dtype dtype) {
    return dtype == TQ_F32 ? 4 : 2;
}

double dtype_largest(tq_dtype dtype) {
    return binary_of(dtype).largest;
}

static double half_value(uint16_t bits) {
    int exponent = bits >> 10 & 31, mantissa = bits & 1023;
    double m = exponent == 31 ? (mantissa ? NAN : INFINITY)
               : exponent     ? ldexp(1024 + mantissa, exponent - 25)
                              : ldexp(mantissa, -24);
    return bits & 0x8000 ? -m : m;
}

double value_of(const void *element, tq_dtype dtype) {
    uint16_t h;
    uint32_t u;
    float f;
    if (dtype == TQ_F32) {
        memcpy(&f, element, sizeof f);
        return (double)f;
    }
    memcpy(&h, element, sizeof h);
    if (dtype == TQ_F16)
        return half_value(h);
    u = (uint32_t)h << 16; /* bfloat16 is the upper half of binary32 */
    memcpy(&f, &u, sizeof f);
    return (double)f;
}

/* Distance between neighbours at magnitude a. */
static double unit_at(double a, struct binary b) {
    int exponent = b.least;
    if (a > 0 && isfinite(a))
        exponent = ilogb(a) < b.least ? b.least : ilogb(a);
    return ldexp(1, exponent - b.digits);
}

double half_unit(double x, tq_dtype dtype) {
    return unit_at(fabs(x), binary_of(dtype)) / 2;
}

/* Bits of a 16-bit number without its sign. A magnitude is a whole number of units; added
 * to the exponent field, a mantissa that rounded up to the next binade carries by itself. */
static uint16_t small_bits(double a, struct binary b) {
    int shift = b.digits;
    uint32_t infinity = b.least == -14 ? 0x7c00 : 0x7f80;
    if (isnan(a))
        return (uint16_t)(infinity | 1u << (shift - 1));
    double unit = unit_at(a, b);
    if (isinf(a) || nearbyint(a / unit) * unit > b.largest)
        return (uint16_t)infinity;
    int exponent = (int)lrint(log2(unit)) + b.digits;
    return (uint16_t)(((uint32_t)(exponent - b.least) << shift) + (uint32_t)nearbyint(a / unit));
}

void store_value(void *element, tq_dtype dtype, double x) {
    float f = (float)x;
    if (dtype == TQ_F32) {
        memcpy(element, &f, sizeof f);
        return;
    }
    uint16_t h = small_bits(fabs(x), binary_of(dtype));
    h = (uint16_t)(h | (signbit(x) ? 0x8000u : 0u));
    memcpy(element, &h, sizeof h);
}

void *convert_rows(const float *rows, size_t n, tq_dtype dtype) {
    char *out = must_alloc(n, dtype_size(dtype));
    for (size_t i = 0; i < n; i++)
        store_value(out + i * dtype_size(dtype), dtype, (double)rows[i]);
    return out;
}

float *widen_rows(const void *rows, size_t n, tq_dtype dtype) {
    float *out = must_alloc(n, sizeof *out);
    for (size_t i = 0; i < n; i++)
        out[i] = (float)value_of((const char *)rows + i * dtype_size(dtype), dtype);
    return out;
}
