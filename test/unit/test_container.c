/* The container of snapshots: numbers, checksum, places of sections, and what it refuses. */
#include "unit/unit.h"

#include "base/hash.h"
#include "snapshot/container.h"

enum { BYTES = 4096 };

static uint8_t buf[BYTES];

/* Values published with XXH3. */
static void test_hash(void **state) {
    uint8_t bytes[300];
    (void)state;
    for (int i = 0; i < 300; i++)
        bytes[i] = (uint8_t)i;
    assert_true(tqi_hash64("", 0) == UINT64_C(0x2d06800538d394c2));
    assert_true(tqi_hash64("a", 1) == UINT64_C(0xe6c632b61e964e1f));
    assert_true(tqi_hash64("abc", 3) == UINT64_C(0x78af5f94892f3950));
    assert_true(tqi_hash64(bytes, 300) == tqi_hash64(bytes, 300));
    assert_true(tqi_hash64(bytes, 300) != tqi_hash64(bytes, 299));
}

static void test_numbers(void **state) {
    static const uint8_t want[9] = {0x08, 0x07, 0x06, 0x05, 0x04, 0x03, 0x02, 0x01, 0x5a};
    uint8_t at[9] = {0, 0, 0, 0, 0, 0, 0, 0, 0x5a};
    (void)state;
    tqi_put_le64(at, UINT64_C(0x0102030405060708));
    assert_memory_equal(at, want, sizeof want);
    assert_true(tqi_get_le64(at) == UINT64_C(0x0102030405060708));
    assert_true(tqi_get_le32(at + 1) == 0x04050607);
    tqi_put_le32(at, UINT32_MAX);
    assert_true(tqi_get_le32(at) == UINT32_MAX && at[4] == 0x04);
}

/* recent_tokens: with a section of rows, else without. */
static struct tqi_container sealed(uint32_t recent_tokens) {
    struct tqi_container c = {.header = {.format_version = 3,
                                         .n_layers = 1,
                                         .n_kv_heads = 2,
                                         .head_dim = 3,
                                         .v_head_dim = 4,
                                         .page_tokens = 5,
                                         .variant = 6,
                                         .seed = UINT64_MAX - 1,
                                         .n_tokens = 8,
                                         .first_token = 9,
                                         .recent_tokens = recent_tokens}};
    c.sections[TQI_SECTION_FORMATS].bytes = 8;
    c.sections[TQI_SECTION_CONSTANTS].bytes = 65;
    c.sections[TQI_SECTION_PAGES].bytes = 0;
    c.sections[TQI_SECTION_ROWS].bytes = recent_tokens ? 130 : 0;
    memset(buf, 0, BYTES);
    assert_int_equal(tqi_container_place(&c), TQ_OK);
    for (uint64_t i = c.sections[1].offset; i < c.header.total; i++)
        buf[i] = (uint8_t)(i * 7);
    tqi_container_seal(&c, buf);
    return c;
}

static void test_round_trip(void **state) {
    (void)state;
    for (uint32_t recent = 0; recent < 2; recent++) {
        struct tqi_container c = sealed(recent), read;
        assert_int_equal(c.header.total, 256 + 64 + 128 + (recent ? 192 : 0));
        assert_int_equal(tqi_sections_of(&c.header), 3 + recent);
        assert_int_equal(tqi_container_open(buf, (size_t)c.header.total, &read), TQ_OK);
        assert_memory_equal(&read.header, &c.header, sizeof c.header);
        for (uint32_t kind = 1; kind <= 3 + recent; kind++) {
            assert_int_equal(read.sections[kind].offset, c.sections[kind].offset);
            assert_int_equal(read.sections[kind].bytes, c.sections[kind].bytes);
            assert_int_equal(tqi_container_check(&read, (enum tqi_section_kind)kind), TQ_OK);
            assert_ptr_equal(tqi_section_bytes(&read, (enum tqi_section_kind)kind),
                             buf + c.sections[kind].offset);
        }
        buf[256 + 64 + 100] ^= 4;
        assert_int_equal(tqi_container_check(&read, TQI_SECTION_FORMATS), TQ_OK);
        assert_int_equal(tqi_container_check(&read, TQI_SECTION_CONSTANTS), TQ_ERR_CORRUPT);
    }
}

/* Sections end with the zeros that round them up: not a block more, and no other byte. */
static void test_ends(void **state) {
    struct tqi_container c = sealed(1);
    uint8_t *rows = buf + c.sections[TQI_SECTION_ROWS].offset;
    (void)state;
    memset(rows + 130, 0, 62);
    for (uint64_t used = 0; used < 300; used++) {
        tq_status status = tqi_container_check_end(&c, TQI_SECTION_ROWS, used);
        assert_int_equal(status, used >= 130 && used <= 192 ? TQ_OK : TQ_ERR_CORRUPT);
    }
    rows[191] = 1;
    assert_int_equal(tqi_container_check_end(&c, TQI_SECTION_ROWS, 191), TQ_ERR_CORRUPT);
    assert_int_equal(tqi_container_check_end(&c, TQI_SECTION_ROWS, 192), TQ_OK);
}

/* Sizes that no memory has. */
static void test_sizes_overflow(void **state) {
    static const uint64_t sizes[][4] = {{UINT64_MAX, 0, 0, 0},
                                        {UINT64_MAX - 64, 0, 0, 0},
                                        {8, UINT64_MAX - 200, 0, 0},
                                        {8, 8, 8, UINT64_MAX - 300},
                                        {UINT64_MAX / 2, UINT64_MAX / 2, 200, 0}};
    (void)state;
    for (size_t i = 0; i < COUNT(sizes); i++) {
        struct tqi_container c = {.header = {.sink_tokens = 16}};
        for (int s = 0; s < 4; s++)
            c.sections[s + 1].bytes = sizes[i][s];
        assert_int_equal(tqi_container_place(&c), TQ_ERR_OUT_OF_MEMORY);
    }
}

/* Every size but the right one, and header reads that need the header only. */
static void test_sizes_refused(void **state) {
    struct tqi_container c = sealed(0), untouched = c;
    struct tqi_snapshot_header h;
    (void)state;
    for (size_t n = 0; n < BYTES; n++) {
        tq_status want = n < TQI_CONTAINER_HEADER ? TQ_ERR_CORRUPT : TQ_OK;
        assert_int_equal(tqi_container_header(buf, n, &h), want);
        want = n == c.header.total ? TQ_OK : TQ_ERR_CORRUPT;
        if (want != TQ_OK)
            assert_int_equal(tqi_container_open(buf, n, &c), want);
    }
    assert_memory_equal(&c, &untouched, sizeof c);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_hash),           cmocka_unit_test(test_numbers),
        cmocka_unit_test(test_round_trip),     cmocka_unit_test(test_ends),
        cmocka_unit_test(test_sizes_overflow), cmocka_unit_test(test_sizes_refused),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
