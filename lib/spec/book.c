#include "spec/book.h"

#include <string.h>

#include "spec/codebook_data.h"

static const int16_t lm4[] = TQI_LM4_V2;
static const int16_t lm3[] = TQI_LM3_V2;
static const int16_t lm2[] = TQI_LM2_V2;

void tqi_book_make(struct tqi_book *b, uint32_t bits) {
    const int16_t *v2 = bits == 4 ? lm4 : bits == 3 ? lm3 : lm2;
    memset(b, 0, sizeof *b);
    b->bits = bits;
    b->levels = 1u << (bits - 1);
    b->step = bits == 4 ? TQI_LM4_STEP : bits == 3 ? TQI_LM3_STEP : TQI_LM2_STEP;
    for (uint32_t i = 0; i < b->levels; i++) {
        /* Bits are 2, 3 or 4. NOLINTNEXTLINE(clang-analyzer-core.uninitialized.Assign) */
        b->v2[i] = v2[i];
        b->code_v2[tqi_book_code(b, i, 0)] = v2[i];
        b->code_v2[tqi_book_code(b, i, 1)] = (int16_t)-v2[i];
    }
    for (uint32_t i = 0; i + 1 < b->levels; i++)
        b->threshold[i] = (float)(b->step * (v2[i] + v2[i + 1]) / 4);
    for (uint32_t c = 0; c < 2 * b->levels; c++)
        b->code_value[c] = (float)(b->step * b->code_v2[c] / 2);
}

struct level_data {
    int8_t cosine[TQI_POLAR_CODES], sine[TQI_POLAR_CODES];
    float bound_cosine[TQI_POLAR_CODES - 1], bound_sine[TQI_POLAR_CODES - 1];
    double step;
};

static const struct level_data polar[TQI_POLAR_LEVELS] = {
    {TQI_POLAR1_COS, TQI_POLAR1_SIN, TQI_POLAR1_BOUND_COS, TQI_POLAR1_BOUND_SIN, TQI_POLAR1_STEP},
    {TQI_POLAR2_COS, TQI_POLAR2_SIN, TQI_POLAR2_BOUND_COS, TQI_POLAR2_BOUND_SIN, TQI_POLAR2_STEP},
    {TQI_POLAR3_COS, TQI_POLAR3_SIN, TQI_POLAR3_BOUND_COS, TQI_POLAR3_BOUND_SIN, TQI_POLAR3_STEP},
    {TQI_POLAR4_COS, TQI_POLAR4_SIN, TQI_POLAR4_BOUND_COS, TQI_POLAR4_BOUND_SIN, TQI_POLAR4_STEP},
};

void tqi_polar_books_make(struct tqi_polar_book book[TQI_POLAR_LEVELS]) {
    for (int l = 0; l < TQI_POLAR_LEVELS; l++) {
        const struct level_data *from = &polar[l];
        for (int c = 0; c < TQI_POLAR_CODES; c++) {
            book[l].cosine[c] = (float)(from->cosine[c] * from->step);
            book[l].sine[c] = (float)(from->sine[c] * from->step);
        }
        memcpy(book[l].bound_cosine, from->bound_cosine, sizeof from->bound_cosine);
        memcpy(book[l].bound_sine, from->bound_sine, sizeof from->bound_sine);
    }
}
