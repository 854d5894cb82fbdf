/* Snapshots with rows in 16 bits that are cut off, changed or made up. */
#include <stdlib.h>
#include <string.h>

#include "common/cache.h"
#include "common/victim.h"

/* Sinks, a gap of one coded token, a window. */
enum { DIM = 32, LAYERS = 2, SINKS = 16, GAP = 1, RECENT = 2, TOKENS = SINKS + GAP + RECENT };
enum { KEPT = SINKS + RECENT, PAGE_BYTES = 16 * 2 * DIM * 2, ROW_PAGES = 2 };

static const tq_layer_formats formats[LAYERS] = {{TQ_FORMAT_LM2, TQ_FORMAT_LM2},
                                                 {TQ_FORMAT_BF16, TQ_FORMAT_BF16}};

static tq_cache_config config_of(void) {
    tq_cache_config c = pair_config(formats, DIM, 1, 1);
    c.n_layers = LAYERS;
    c.page_tokens = 32;
    c.sink_tokens = SINKS;
    c.recent_tokens = RECENT;
    return c;
}

static struct victim v;

static int open_victim(void **state) {
    tq_cache_config c = config_of();
    (void)state;
    victim_open(&v, &c, TOKENS, NULL);
    return 0;
}

static int close_victim(void **state) {
    (void)state;
    victim_close(&v);
    return 0;
}

static unsigned char *entry_of(const struct blob *b, uint32_t section) {
    return b->bytes + 128 + (size_t)(section - 1) * 32;
}

/* Offset of the rows section. */
static size_t rows_at(void) {
    return (size_t)blob_get(entry_of(&v.blob, 4) + 8);
}

static void test_the_section(void **state) {
    (void)state;
    assert_int_equal(blob_get(entry_of(&v.blob, 4) + 16), 64 + ROW_PAGES * PAGE_BYTES);
    assert_int_equal(rows_at() + 64 + ROW_PAGES * PAGE_BYTES, v.blob.size);
    assert_int_equal(blob_get(v.blob.bytes + rows_at() + 8), SINKS);
    assert_int_equal(blob_get(v.blob.bytes + rows_at() + 16), RECENT);
}

static void test_every_truncation(void **state) {
    (void)state;
    victim_refuses_truncations(&v);
}

static void test_every_flipped_bit(void **state) {
    (void)state;
    victim_refuses_flips(&v);
}

/* Counts and formats with right checksums. */
static void test_forged_rows(void **state) {
    size_t at = rows_at();
    const struct forgery forgeries[] = {
        {24, 4, 3, TQ_ERR_VERSION, "sections"},
        {at, 4, 0, TQ_ERR_CORRUPT, "formats 0"},
        {at, 4, TQ_FORMAT_LM3, TQ_ERR_CORRUPT, "layer 0 keeps"},
        {at, 4, TQ_FORMAT_F16, TQ_ERR_MISMATCH, "f16"},
        {at + 4, 4, 99, TQ_ERR_CORRUPT, "99"},
        {at + 8, 8, 0, TQ_ERR_CORRUPT, "needed"},
        {at + 8, 8, SINKS + 1, TQ_ERR_CORRUPT, "keeps 17 and 2 rows of 19"},
        {at + 8, 8, TOKENS, TQ_ERR_CORRUPT, "keeps 19 and 2"},
        {at + 8, 8, TOKENS + 1, TQ_ERR_CORRUPT, "keeps"},
        {at + 8, 8, UINT64_MAX, TQ_ERR_CORRUPT, "keeps"},
        {at + 8, 8, UINT64_MAX - RECENT + 1, TQ_ERR_CORRUPT, "keeps"},
        {at + 8, 8, UINT64_C(1) << 62, TQ_ERR_CORRUPT, "keeps"},
        {at + 16, 8, 0, TQ_ERR_CORRUPT, "needed"},
        {at + 16, 8, RECENT + 1, TQ_ERR_CORRUPT, "keeps 16 and 3"},
        {at + 16, 8, UINT64_MAX, TQ_ERR_CORRUPT, "keeps"},
        {at + 24, 4, TQ_FORMAT_BF16, TQ_ERR_CORRUPT, "layer 1 keeps"},
        {at + 24 + 8, 8, 1, TQ_ERR_CORRUPT, "layer 1 keeps 1"},
        {at + 48, 1, 1, TQ_ERR_CORRUPT, "byte 48"}, /* behind the last layer's entry */
    };
    (void)state;
    victim_refuses_forgeries(&v, forgeries, COUNT(forgeries));
}

/* More layers' worth of rows than there are bytes: a second layer that keeps some too. */
static void test_rows_that_end_early(void **state) {
    struct blob b = {must_alloc(v.blob.size, 1), v.blob.size};
    unsigned char *entry = b.bytes + rows_at() + 24;
    (void)state;
    memcpy(b.bytes, v.blob.bytes, b.size);
    blob_put(entry, TQ_FORMAT_BF16, 4);
    blob_put(entry + 4, TQ_FORMAT_BF16, 4);
    for (uint64_t head = 1; head <= 16; head += 5) {
        blob_put(entry + 8, head, 8);
        blob_reseal(&b);
        victim_refuses(&v, b.bytes, b.size, "rows of the second layer", (size_t)head);
    }
    blob_free(&b);
}

/* The section cut off by blocks, or longer by one, with a table that agrees. */
static void test_sizes_of_the_section(void **state) {
    uint64_t bytes = blob_get(entry_of(&v.blob, 4) + 16);
    (void)state;
    for (uint64_t n = 0; n <= bytes + 128; n += 64) {
        struct blob b = {must_alloc(rows_at() + n, 1), rows_at() + n};
        memcpy(b.bytes, v.blob.bytes, n < bytes ? b.size : v.blob.size);
        blob_put(b.bytes + 16, b.size, 8);
        blob_put(entry_of(&b, 4) + 16, n, 8);
        blob_reseal(&b);
        if (n != bytes)
            victim_refuses(&v, b.bytes, b.size, "rows of blocks", n / 64);
        blob_free(&b);
    }
}

/* Settings are told and not compared: any that keep something are taken, none means no section. */
static void test_settings(void **state) {
    struct blob b = {must_alloc(v.blob.size, 1), v.blob.size};
    (void)state;
    memcpy(b.bytes, v.blob.bytes, b.size);
    blob_put(b.bytes + 80, 0, 4);
    blob_reseal(&b);
    tq_seq loaded = blob_load(&v.r, &b);
    OK(tq_seq_destroy(v.r.cache, loaded));
    blob_put(b.bytes + 84, 0, 4);
    blob_reseal(&b);
    victim_refuses(&v, b.bytes, b.size, "four sections and no setting", 0);
    blob_put(b.bytes + 24, 3, 4);
    blob_reseal(&b);
    victim_refuses(&v, b.bytes, b.size, "bytes behind the third section", 0);
    blob_free(&b);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_the_section),
        cmocka_unit_test(test_every_truncation),
        cmocka_unit_test(test_every_flipped_bit),
        cmocka_unit_test(test_forged_rows),
        cmocka_unit_test(test_rows_that_end_early),
        cmocka_unit_test(test_sizes_of_the_section),
        cmocka_unit_test(test_settings),
    };
    return cmocka_run_group_tests_name("bad snapshots with rows in 16 bits", tests, open_victim,
                                       close_victim);
}
