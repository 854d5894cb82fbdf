/* The buckets by which the GPU finds the level of a 4-bit code (cuda/encode/buckets.h). */
#include "unit/unit.h"

#include <math.h>

#include "../../cuda/encode/buckets.h"
#include "spec/book.h"

static uint32_t level_by_bucket(const struct tqi_book *book, struct tqi_buckets b, float a) {
    float place = fmaf(a, b.scale, b.offset);
    place = place > 1 ? 1 : place > 0 ? place : 0;
    uint32_t bucket = (uint32_t)lrintf(place * (TQI_BUCKETS - 1));
    return bucket + (a > book->threshold[bucket]);
}

static uint32_t level_of(const struct tqi_book *book, float a) {
    uint32_t level = 0;
    for (uint32_t t = 0; t < TQI_BUCKETS; t++)
        level += a > book->threshold[t];
    return level;
}

static void check_number(const struct tqi_book *book, struct tqi_buckets b, float a) {
    CHECK(level_by_bucket(book, b, a) == level_of(book, a), "|y| = %a", (double)a);
}

static void test_levels(void **state) {
    (void)state;
    struct tqi_book book;
    tqi_book_make(&book, 4);
    struct tqi_buckets b = tqi_buckets_of(book.threshold);
    for (uint32_t i = 0; i <= 1 << 20; i++)
        check_number(&book, b, (float)i * 0x1p-18f);
    for (float a = 4; a < 40; a *= 1.25f)
        check_number(&book, b, a);
    for (uint32_t t = 0; t < TQI_BUCKETS; t++) {
        float th = book.threshold[t];
        check_number(&book, b, th);
        check_number(&book, b, nextafterf(th, 0));
        check_number(&book, b, nextafterf(th, 100));
    }
}

/* Room around the bounds: no rounding of the GPU's matters. */
static void test_margins(void **state) {
    (void)state;
    struct tqi_book book;
    tqi_book_make(&book, 4);
    struct tqi_buckets b = tqi_buckets_of(book.threshold);
    for (uint32_t t = 0; t < TQI_BUCKETS; t++) {
        double place = ((double)book.threshold[t] * (double)b.scale + (double)b.offset) * 6;
        CHECK(t == 0 || place > t - 0.49, "threshold %u lies at %.4f", t, place);
        CHECK(t == TQI_BUCKETS - 1 || place < t + 0.49, "threshold %u lies at %.4f", t, place);
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_levels),
                                       cmocka_unit_test(test_margins)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
