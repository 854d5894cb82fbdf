/* api/struct_size.c: structs of callers with an older or a newer header, both ways. */
#include "unit/unit.h"

#include "api/objects.h"

/* A struct in three versions; this library knows the second. */
struct known {
    uint32_t struct_size, a;
    uint64_t b;
};

enum { FIRST = 8, KNOWN = sizeof(struct known), LIMIT = TQI_STRUCT_SIZE_LIMIT };

/* A caller's struct of any size: words 1, 2, 3 .. behind the size. */
static uint32_t caller[LIMIT / 4 + 4];

static void fill(uint32_t size) {
    for (uint32_t i = 0; i < COUNT(caller); i++)
        caller[i] = i;
    caller[0] = size;
}

static void clear_tail(uint32_t size) {
    memset((char *)caller + KNOWN, 0, size - KNOWN);
}

static void test_in_same(void **state) {
    struct known to;
    (void)state;
    fill(KNOWN);
    assert_int_equal(tqi_struct_in("thing", &to, KNOWN, FIRST, caller), TQ_OK);
    assert_memory_equal(&to, caller, KNOWN);
}

/* An older caller: what it does not have is zero, and nothing behind it is read. */
static void test_in_older(void **state) {
    (void)state;
    for (uint32_t size = FIRST; size < KNOWN; size++) {
        struct known to;
        char expected[KNOWN] = {0};
        fill(size);
        memset(&to, 0xff, sizeof to);
        memcpy(expected, caller, size);
        assert_int_equal(tqi_struct_in("thing", &to, KNOWN, FIRST, caller), TQ_OK);
        assert_memory_equal(&to, expected, KNOWN);
    }
}

/* A newer caller: fine while it sets nothing that this library does not know. */
static void test_in_newer(void **state) {
    static const uint32_t sizes[] = {KNOWN + 1, KNOWN + 4, 100, 1000, LIMIT};
    (void)state;
    for (size_t i = 0; i < COUNT(sizes); i++) {
        struct known to;
        fill(sizes[i]);
        clear_tail(sizes[i]);
        assert_int_equal(tqi_struct_in("thing", &to, KNOWN, FIRST, caller), TQ_OK);
        assert_memory_equal(&to, caller, KNOWN);
        for (uint32_t byte = KNOWN; byte < sizes[i]; byte += byte < 40 ? 1 : 37) {
            struct known untouched;
            memset(&to, 0x77, sizeof to);
            memcpy(&untouched, &to, sizeof to);
            ((char *)caller)[byte] = 1;
            assert_int_equal(tqi_struct_in("thing", &to, KNOWN, FIRST, caller), TQ_ERR_VERSION);
            assert_memory_equal(&to, &untouched, sizeof to);
            ((char *)caller)[byte] = 0;
        }
    }
    /* The last byte counts, the one behind it does not. */
    fill(100);
    clear_tail(100);
    struct known to;
    ((char *)caller)[100] = 1;
    assert_int_equal(tqi_struct_in("thing", &to, KNOWN, FIRST, caller), TQ_OK);
    ((char *)caller)[99] = 1;
    assert_int_equal(tqi_struct_in("thing", &to, KNOWN, FIRST, caller), TQ_ERR_VERSION);
}

static void test_bad_sizes(void **state) {
    static const uint32_t sizes[] = {0, 1, FIRST - 1, LIMIT + 1, 1u << 20, UINT32_MAX};
    (void)state;
    for (size_t i = 0; i < COUNT(sizes); i++) {
        struct known to = {1, 2, 3};
        caller[0] = sizes[i];
        assert_int_equal(tqi_struct_in("thing", &to, KNOWN, FIRST, caller),
                         TQ_ERR_INVALID_ARGUMENT);
        assert_true(to.struct_size == 1 && to.a == 2 && to.b == 3);
        assert_non_null(strstr(tqi_last_message(), "thing"));
        assert_int_equal(tqi_struct_check_out("thing", FIRST, caller), TQ_ERR_INVALID_ARGUMENT);
    }
    caller[0] = FIRST;
    assert_int_equal(tqi_struct_check_out("thing", FIRST, caller), TQ_OK);
    caller[0] = LIMIT;
    assert_int_equal(tqi_struct_check_out("thing", FIRST, caller), TQ_OK);
}

/* Outputs: what fits, zeros for a tail that is not known, no byte more, the caller's size. */
static void test_out(void **state) {
    const struct known from = {12345, 0x11111111, 0x2222222222222222};
    (void)state;
    for (uint32_t size = FIRST; size <= 200; size++) {
        unsigned char out[220];
        memset(out, 0xee, sizeof out);
        memcpy(out, &size, sizeof size);
        tqi_struct_out(out, &from, KNOWN);
        for (uint32_t i = 0; i < sizeof out; i++) {
            unsigned char expected = i >= size    ? 0xee
                                     : i >= KNOWN ? 0
                                     : i >= 8     ? 0x22
                                     : i >= 4     ? 0x11
                                                  : ((unsigned char *)&size)[i];
            CHECK(out[i] == expected, "size %u byte %u: 0x%02x", size, i, out[i]);
        }
    }
}

/* The caller's struct need not be aligned. */
static void test_unaligned(void **state) {
    char room[64] = {0};
    struct known from = {KNOWN, 7, 9}, to;
    (void)state;
    memcpy(room + 1, &from, sizeof from);
    assert_int_equal(tqi_struct_in("thing", &to, KNOWN, FIRST, room + 1), TQ_OK);
    assert_true(to.a == 7 && to.b == 9);
    from.a = 8;
    tqi_struct_out(room + 1, &from, KNOWN);
    memcpy(&to, room + 1, sizeof to);
    assert_true(to.a == 8 && to.struct_size == KNOWN);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_in_same),  cmocka_unit_test(test_in_older),
        cmocka_unit_test(test_in_newer), cmocka_unit_test(test_bad_sizes),
        cmocka_unit_test(test_out),      cmocka_unit_test(test_unaligned),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
