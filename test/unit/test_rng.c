/* base/rng.c and the signs made from it: Philox4x32-10 known answers, balance, streams. */
#include "unit/unit.h"

#include <math.h>

#include "base/rng.h"
#include "spec/rotation.h"

/* The generator again, from Salmon et al., SC 2011: ten rounds, keys bumped in between. */
static void philox(const uint32_t counter[4], const uint32_t key[2], uint32_t out[4]) {
    uint32_t x[4], k0 = key[0], k1 = key[1];
    memcpy(x, counter, sizeof x);
    for (int round = 0; round < 10; round++) {
        uint64_t a = (uint64_t)0xD2511F53u * x[0], b = (uint64_t)0xCD9E8D57u * x[2];
        uint32_t next[4] = {(uint32_t)(b >> 32) ^ x[1] ^ k0, (uint32_t)b,
                            (uint32_t)(a >> 32) ^ x[3] ^ k1, (uint32_t)a};
        memcpy(x, next, sizeof x);
        k0 += 0x9E3779B9u;
        k1 += 0xBB67AE85u;
    }
    memcpy(out, x, sizeof x);
}

/* The vectors that come with Random123. */
static void test_known_answers(void **state) {
    static const struct {
        uint32_t counter[4], key[2], out[4];
    } known[] = {
        {{0, 0, 0, 0}, {0, 0}, {0x6627e8d5, 0xe169c58d, 0xbc57ac4c, 0x9b00dbd8}},
        {{0xffffffff, 0xffffffff, 0xffffffff, 0xffffffff},
         {0xffffffff, 0xffffffff},
         {0x408f276d, 0x41c83b0e, 0xa20bc7c6, 0x6d5451fd}},
        {{0x243f6a88, 0x85a308d3, 0x13198a2e, 0x03707344},
         {0xa4093822, 0x299f31d0},
         {0xd16cfe09, 0x94fdcceb, 0x5001e420, 0x24126ea1}},
    };
    uint32_t out[4];
    (void)state;
    for (size_t i = 0; i < COUNT(known); i++) {
        philox(known[i].counter, known[i].key, out);
        assert_memory_equal(out, known[i].out, sizeof out);
    }
    /* The first one is in reach of the library's function; the others' counters are not. */
    for (uint64_t n = 0; n < 4; n++)
        assert_int_equal(tqi_philox(0, 0, n), known[0].out[n]);
}

/* Words of counter and key as rng.h says, for all of their bits. */
static void test_counter_and_key(void **state) {
    uint64_t seed = 3;
    (void)state;
    for (int i = 0; i < 20000; i++) {
        uint64_t key = unit_random(&seed), subsequence = unit_random(&seed);
        uint64_t n = unit_random(&seed) >> (i % 64), block = n / 4;
        uint32_t counter[4] = {(uint32_t)block, (uint32_t)(block >> 32), (uint32_t)subsequence,
                               (uint32_t)(subsequence >> 32)};
        uint32_t keys[2] = {(uint32_t)key, (uint32_t)(key >> 32)}, out[4];
        philox(counter, keys, out);
        CHECK(tqi_philox(key, subsequence, n) == out[n % 4], "seed %llx", (unsigned long long)key);
    }
}

static void test_flips_come_from_the_stream(void **state) {
    static const enum tqi_sign_stream streams[] = {TQI_STREAM_ROTATION, TQI_STREAM_SKETCH_1,
                                                   TQI_STREAM_SKETCH_2};
    uint32_t flips[577];
    uint64_t seed = 5;
    (void)state;
    for (size_t s = 0; s < COUNT(streams); s++) {
        uint64_t key = unit_random(&seed);
        flips[576] = 12345;
        tqi_rotation_signs(key, streams[s], 576, flips);
        for (uint32_t i = 0; i < 576; i++)
            assert_int_equal(flips[i], tqi_philox(key, s, i) & 0x80000000u);
        assert_int_equal(flips[576], 12345);
    }
}

/* Agreements of two sign vectors minus disagreements, in standard deviations. */
static double correlation(const uint32_t *a, const uint32_t *b, uint32_t n) {
    int sum = 0;
    for (uint32_t i = 0; i < n; i++)
        sum += a[i] == b[i] ? 1 : -1;
    return sum / sqrt((double)n);
}

enum { LONG = 1 << 16 };
static uint32_t first[LONG + 1], second[LONG + 1];

/* As many minus as plus, in every stream, and no relation between streams, neighbouring
 * seeds or neighbouring signs: within 5 standard deviations. */
static void test_balance(void **state) {
    uint32_t zero[LONG] = {0};
    (void)state;
    for (uint64_t key = 0; key < 8; key++)
        for (uint32_t s = 0; s < 3; s++) {
            tqi_rotation_signs(key, (enum tqi_sign_stream)s, LONG + 1, first);
            CHECK(fabs(correlation(first, zero, LONG)) < 5, "seed %d stream %u", (int)key, s);
            CHECK(fabs(correlation(first, first + 1, LONG)) < 5, "seed %d", (int)key);
            CHECK(fabs(correlation(first, first + 4, LONG - 4)) < 5, "seed %d", (int)key);
            tqi_rotation_signs(key + 1, (enum tqi_sign_stream)s, LONG, second);
            CHECK(fabs(correlation(first, second, LONG)) < 5, "seed %d and the next", (int)key);
            tqi_rotation_signs(key, (enum tqi_sign_stream)((s + 1) % 3), LONG, second);
            CHECK(fabs(correlation(first, second, LONG)) < 5, "streams of seed %d", (int)key);
        }
}

/* A longer row begins with the signs of a shorter one, so that seeds mean one thing. */
static void test_prefix(void **state) {
    (void)state;
    tqi_rotation_signs(9, TQI_STREAM_ROTATION, 1024, first);
    tqi_rotation_signs(9, TQI_STREAM_ROTATION, 80, second);
    assert_memory_equal(first, second, 80 * sizeof *first);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_known_answers),
        cmocka_unit_test(test_counter_and_key),
        cmocka_unit_test(test_flips_come_from_the_stream),
        cmocka_unit_test(test_balance),
        cmocka_unit_test(test_prefix),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
