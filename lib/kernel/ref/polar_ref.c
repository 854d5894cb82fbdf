/* Stage polar: PolarQuant's recursive transform of one block of 16 coordinates
 * (arXiv 2502.02617, sections 2 and 4) with four levels. Angles are never computed: an
 * angle is beyond a boundary when a cross product is positive. */
#include <math.h>

#include "kernel/ref/ref.h"

/* First-quadrant code of the direction (a, b), a and b not negative. */
static uint32_t angle_code(const struct tqi_polar_book *book, float a, float b) {
    uint32_t code = 0;
    for (int i = 0; i < TQI_POLAR_CODES - 1; i++)
        code += b * book->bound_cosine[i] > a * book->bound_sine[i];
    return code;
}

static float radius_of(float a, float b) {
    float aa = a * a, bb = b * b;
    return sqrtf(aa + bb);
}

/* One level above the first: n radii become n/2, their codes 2 bits each. */
static uint8_t upper_level(const struct tqi_polar_book *book, float *r, uint32_t n) {
    uint32_t codes = 0;
    for (uint32_t j = 0; j < n / 2; j++) {
        float a = r[2 * j], b = r[2 * j + 1];
        codes |= angle_code(book, a, b) << 2 * j;
        r[j] = radius_of(a, b);
    }
    return (uint8_t)codes;
}

struct tqi_polar_codes tqk_polar_forward_ref(const struct tqi_polar_book *book, const float *u,
                                             float *radius) {
    struct tqi_polar_codes codes = {0, 0, 0, 0};
    float r[8];
    for (uint32_t j = 0; j < 8; j++) {
        float a = u[2 * j], b = u[2 * j + 1];
        uint32_t code = angle_code(&book[0], fabsf(a), fabsf(b));
        code |= (signbit(a) ? 4u : 0u) | (signbit(b) ? 8u : 0u);
        codes.level1 |= code << 4 * j;
        r[j] = radius_of(a, b);
    }
    codes.level2 = upper_level(&book[1], r, 8);
    codes.level3 = upper_level(&book[2], r, 4);
    codes.level4 = upper_level(&book[3], r, 2);
    *radius = r[0];
    return codes;
}

/* Splits n radii into 2n, top down; from the end, so that it works in place. */
static void split_level(const struct tqi_polar_book *book, uint32_t codes, float *r, uint32_t n) {
    for (uint32_t j = n; j-- > 0;) {
        uint32_t code = codes >> 2 * j & 3u;
        float whole = r[j];
        r[2 * j] = whole * book->cosine[code];
        r[2 * j + 1] = whole * book->sine[code];
    }
}

void tqk_polar_inverse_ref(const struct tqi_polar_book *book, struct tqi_polar_codes codes,
                           float radius, float *u) {
    float r[8];
    r[0] = radius;
    split_level(&book[3], codes.level4, r, 1);
    split_level(&book[2], codes.level3, r, 2);
    split_level(&book[1], codes.level2, r, 4);
    for (uint32_t j = 0; j < 8; j++) {
        uint32_t code = codes.level1 >> 4 * j & 15u;
        float a = r[j] * book[0].cosine[code & 3u], b = r[j] * book[0].sine[code & 3u];
        u[2 * j] = code & 4u ? -a : a;
        u[2 * j + 1] = code & 8u ? -b : b;
    }
}
