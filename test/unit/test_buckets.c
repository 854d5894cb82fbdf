/* The buckets by which the GPU finds the levels of codes (cuda/encode/buckets.h). */
#include "unit/unit.h"

#include <math.h>
#include <string.h>

#include "../../cuda/encode/buckets.h"
#include "spec/book.h"

enum { DIM = 256 }; /* the largest head dim with these kernels */

static uint32_t bits_of(float x) {
    uint32_t bits;
    memcpy(&bits, &x, 4);
    return bits;
}

/* Of |y|: a lane of the warp, or else the last buckets are one. */
static uint32_t bucket_of(float a, int bits, int fits) {
    uint32_t bucket = (uint32_t)(a * tqi_bucket_scale(bits));
    return fits || bucket < TQI_LAST_BUCKET ? bucket : TQI_LAST_BUCKET;
}

/* Level and sign as the top bits of the sum say. */
static uint32_t code_by_bucket(const struct tqi_book *book, float y, int fits) {
    uint32_t bucket = book->bits == 2 ? 0 : bucket_of(fabsf(y), (int)book->bits, fits);
    uint32_t lane = bucket < TQI_LAST_BUCKET ? bucket : TQI_LAST_BUCKET;
    return (bits_of(y * 0x1p-95f) + tqi_bucket_step(book->threshold, book->levels - 2, lane)) >> 28;
}

static uint32_t code_of(const struct tqi_book *book, float y) {
    uint32_t level = 0;
    for (uint32_t t = 0; t + 1 < book->levels; t++)
        level += fabsf(y) > book->threshold[t];
    return level | bits_of(y) >> 31 << 3;
}

static void check_number(const struct tqi_book *book, float a) {
    for (int fits = 0; fits < 2; fits++)
        for (float y = -a; y != 0; y = y < 0 ? a : 0)
            CHECK(code_by_bucket(book, y, fits) == code_of(book, y), "%u bits, y = %a", book->bits,
                  (double)y);
}

static void test_codes(void **state) {
    (void)state;
    for (uint32_t bits = 2; bits <= 4; bits++) {
        struct tqi_book book;
        tqi_book_make(&book, bits);
        for (uint32_t i = 0; i <= 1 << 19; i++)
            check_number(&book, (float)i * 0x1p-15f);
        for (int e = -149; e < 4; e++)
            check_number(&book, ldexpf(1.3f, e));
        for (uint32_t t = 0; t + 1 < book.levels; t++) {
            float th = book.threshold[t];
            check_number(&book, th);
            check_number(&book, nextafterf(th, 0));
            check_number(&book, nextafterf(th, 100));
        }
        for (int fits = 0; fits < 2; fits++) {
            CHECK(code_by_bucket(&book, 0.0f, fits) == 0, "%u bits, 0", bits);
            CHECK(code_by_bucket(&book, -0.0f, fits) == 8, "%u bits, -0", bits);
        }
    }
}

/* Room around the bounds: no rounding of the GPU's matters. */
static void test_margins(void **state) {
    (void)state;
    for (uint32_t bits = 3; bits <= 4; bits++) {
        struct tqi_book book;
        tqi_book_make(&book, bits);
        for (uint32_t t = 0; t + 1 < book.levels; t++) {
            double place = (double)book.threshold[t] * (double)tqi_bucket_scale((int)bits);
            CHECK(t == 0 || place > t + 1e-3, "threshold %u lies at %.4f", t, place);
            CHECK(t + 2 == book.levels || place < t + 1 - 1e-3, "threshold %u lies at %.4f", t,
                  place);
        }
        for (int dim = 8; dim <= DIM; dim += 8)
            if (tqi_buckets_fit(dim, (int)bits)) {
                double last = sqrt(dim) * (double)tqi_bucket_scale((int)bits);
                CHECK(last < TQI_BUCKET_LANES - 1e-3, "dim %d: up to bucket %.4f", dim, last);
            }
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_codes),
                                       cmocka_unit_test(test_margins)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
