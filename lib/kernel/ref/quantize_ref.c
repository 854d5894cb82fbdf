/* Stage quantize: rotated coordinates to codes (TurboQuant, arXiv 2504.19874, Alg. 1). */
#include <math.h>

#include "kernel/ref/ref.h"

uint32_t tqk_quantize_lm_ref(const struct tqi_book *book, const float *u, uint32_t dim, float inv,
                             uint8_t *codes) {
    uint32_t sum = 0;
    for (uint32_t i = 0; i < dim; i++) {
        float y = u[i] * inv, magnitude = fabsf(y);
        uint32_t level = 0;
        for (uint32_t t = 0; t + 1 < book->levels; t++)
            level += magnitude > book->threshold[t];
        codes[i] = (uint8_t)tqi_book_code(book, level, signbit(y) ? 1 : 0);
        sum += (uint32_t)(book->v2[level] * book->v2[level]);
    }
    return sum;
}

uint32_t tqk_quantize_int8_ref(const float *u, uint32_t dim, int8_t *codes) {
    float largest = 0;
    for (uint32_t i = 0; i < dim; i++)
        largest = fmaxf(largest, fabsf(u[i]));
    float inv = largest > 0 ? 127.0f / largest : 0;
    uint32_t sum = 0;
    for (uint32_t i = 0; i < dim; i++) {
        int code = (int)rintf(u[i] * inv);
        codes[i] = (int8_t)code;
        sum += (uint32_t)(code * code);
    }
    return sum;
}
