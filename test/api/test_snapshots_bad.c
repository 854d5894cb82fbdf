/* Snapshots that are cut off, changed, made up or of another cache: each gives a status, and the
 * cache stays what it was. B54, B64. */
#include <stdlib.h>
#include <string.h>

#include "common/cache.h"
#include "common/victim.h"

enum { DIM = 32, PAGE = 16, TOKENS = 3 };

static tq_cache_config config_of(tq_variant variant) {
    tq_cache_config c = plain_config(variant, DIM, 1, 1);
    c.page_tokens = PAGE;
    c.seed = 5;
    return c;
}

static void set_constants(struct rig *r) {
    float mean[DIM], scale = 0.25f;
    for (int i = 0; i < DIM; i++)
        mean[i] = (float)i / 8;
    OK(tq_cache_set_means(r->cache, 0, mean, mean));
    if (r->c.variant == TQ_VARIANT_K8V4)
        OK(tq_cache_set_fp8_scales(r->cache, 0, &scale, NULL));
}

static const tq_variant variants[] = {TQ_VARIANT_K3V4_NC, TQ_VARIANT_K8V4, TQ_VARIANT_PROD3};

/* ---- chance ---------------------------------------------------------------------------- */

/* Cut off at every byte, and too long. */
static void test_every_truncation(void **state) {
    (void)state;
    for (size_t i = 0; i < COUNT(variants); i++) {
        struct victim v;
        tq_cache_config c = config_of(variants[i]);
        victim_open(&v, &c, TOKENS, set_constants);
        victim_refuses_truncations(&v);
        victim_close(&v);
    }
}

static void test_every_flipped_bit(void **state) {
    (void)state;
    for (size_t i = 0; i < COUNT(variants); i++) {
        struct victim v;
        tq_cache_config c = config_of(variants[i]);
        victim_open(&v, &c, TOKENS, set_constants);
        victim_refuses_flips(&v);
        victim_close(&v);
    }
}

/* The header alone has a checksum of its own. */
static void test_inspect_checks_the_header(void **state) {
    struct victim v;
    tq_cache_config c = config_of(TQ_VARIANT_INT8);
    tq_blob_info info = {.struct_size = sizeof info, .n_bytes = 4}, untouched = info;
    (void)state;
    victim_open(&v, &c, TOKENS, set_constants);
    for (size_t n = 0; n < 128; n++)
        FAILS(tq_blob_inspect(v.blob.bytes, n, &info), TQ_ERR_CORRUPT, "header");
    for (size_t bit = 0; bit < 128 * 8; bit++) {
        v.blob.bytes[bit / 8] ^= (unsigned char)(1u << bit % 8);
        if (bit / 8 < 112 || bit / 8 >= 120) /* the table's checksum is the table's business */
            CHECK(is_refusal(tq_blob_inspect(v.blob.bytes, 128, &info)), "bit %zu", bit);
        v.blob.bytes[bit / 8] ^= (unsigned char)(1u << bit % 8);
    }
    FAILS(tq_blob_inspect(NULL, 128, &info), TQ_ERR_INVALID_ARGUMENT, "buf");
    FAILS(tq_blob_inspect(v.blob.bytes, 128, NULL), TQ_ERR_INVALID_ARGUMENT, "out");
    assert_memory_equal(&info, &untouched, sizeof info);
    victim_close(&v);
}

/* ---- intent: checksums are right ------------------------------------------------------- */

static void check_forgeries(const struct forgery *list, size_t n) {
    struct victim v;
    tq_cache_config c = config_of(TQ_VARIANT_K8V4);
    victim_open(&v, &c, TOKENS, set_constants);
    victim_refuses_forgeries(&v, list, n);
    victim_close(&v);
}

static void test_forged_headers(void **state) {
    static const struct forgery forgeries[] = {
        {0, 1, 0x88, TQ_ERR_CORRUPT, "begins"},
        {8, 4, 2, TQ_ERR_VERSION, "version 2"},
        {8, 4, 0x01000000, TQ_ERR_VERSION, "version 16777216"}, /* the other byte order */
        {12, 4, 99, TQ_ERR_VERSION, "format 99"},
        {16, 8, 1000, TQ_ERR_CORRUPT, "1000"},
        {16, 8, UINT64_MAX, TQ_ERR_CORRUPT, "header"},
        {24, 4, 4, TQ_ERR_VERSION, "sections"},
        {24, 4, 0, TQ_ERR_VERSION, "sections"},
        {28, 4, 1, TQ_ERR_VERSION, "flags"},
        {32, 4, 2, TQ_ERR_MISMATCH, "n_layers is 2 there and 1"},
        {36, 4, 3, TQ_ERR_MISMATCH, "n_kv_heads"},
        {40, 4, 64, TQ_ERR_MISMATCH, "head_dim is 64 there and 32"},
        {44, 4, 0, TQ_ERR_MISMATCH, "v_head_dim"},
        {48, 4, 64, TQ_ERR_MISMATCH, "page_tokens"},
        {56, 8, 6, TQ_ERR_MISMATCH, "seed is 6 there and 5"},
        {64, 8, 0, TQ_ERR_CORRUPT, "tokens"},
        {64, 8, 17, TQ_ERR_CORRUPT, "tokens"},
        {64, 8, UINT64_MAX, TQ_ERR_CORRUPT, "tokens"},
        {64, 8, UINT64_C(1) << 62, TQ_ERR_CORRUPT, "tokens"},
        {24, 4, 5, TQ_ERR_VERSION, "sections"},
        {80, 4, 16, TQ_ERR_VERSION, "sections"},
        {84, 4, 1, TQ_ERR_VERSION, "sections"},
        {100, 1, 1, TQ_ERR_VERSION, "byte 100"},
    };
    (void)state;
    check_forgeries(forgeries, COUNT(forgeries));
}

static void test_forged_tables(void **state) {
    static const struct forgery forgeries[] = {
        {128, 4, 2, TQ_ERR_VERSION, "kind 2"},
        {160, 4, 7, TQ_ERR_VERSION, "kind 7"},
        {132, 4, 1, TQ_ERR_VERSION, "flags"},
        {136, 8, 0, TQ_ERR_CORRUPT, "section 1"},
        {136, 8, 320, TQ_ERR_CORRUPT, "section 1"},
        {136, 8, UINT64_MAX - 63, TQ_ERR_CORRUPT, "section 1"},
        {144, 8, 0, TQ_ERR_CORRUPT, "section 2"},
        {144, 8, 65, TQ_ERR_CORRUPT, "section 1"},
        {144, 8, UINT64_MAX - 255, TQ_ERR_CORRUPT, "section 1"},
        {208, 8, 0, TQ_ERR_CORRUPT, "behind"},
        {208, 8, UINT64_C(1) << 40, TQ_ERR_CORRUPT, "section 3"},
        {224, 4, 4, TQ_ERR_VERSION, "byte 224"},
        {255, 1, 1, TQ_ERR_VERSION, "byte 255"},
        {264, 1, 1, TQ_ERR_CORRUPT, "byte 8 of the formats"},
        {319, 1, 255, TQ_ERR_CORRUPT, "byte 63 of the formats"},
        {324 + 8 * DIM + 4, 1, 1, TQ_ERR_CORRUPT, "of the constants is no zero"},
        {256, 4, TQ_FORMAT_LM3, TQ_ERR_MISMATCH, "K format is lm3"},
        {260, 4, 12345, TQ_ERR_MISMATCH, "V format is unknown (12345)"},
        {320, 4, 6, TQ_ERR_MISMATCH, "k_mean is set in this cache"},
        {320, 4, 15, TQ_ERR_MISMATCH, "v_scale is set there"},
        {320, 4, 16, TQ_ERR_VERSION, "constants"},
        {324 + 8, 4, 0, TQ_ERR_MISMATCH, "k_mean differs in element 2"},
        {324 + 4 * DIM, 4, 1, TQ_ERR_MISMATCH, "v_mean differs in element 0"},
        {324 + 8 * DIM, 4, 1, TQ_ERR_MISMATCH, "k_scale differs"},
    };
    (void)state;
    check_forgeries(forgeries, COUNT(forgeries));
}

/* Blocks that nobody needs behind the last layer of a section. */
static void test_sections_that_go_on(void **state) {
    struct victim v;
    tq_cache_config c = config_of(TQ_VARIANT_K8V4);
    tq_layer_formats pair;
    (void)state;
    victim_open(&v, &c, TOKENS, set_constants);
    for (uint32_t section = 0; section < 3; section++) {
        struct blob longer = {must_alloc(v.blob.size + 64, 1), v.blob.size + 64};
        unsigned char *entry = longer.bytes + 128 + section * 32;
        size_t end = (size_t)(blob_get(v.blob.bytes + 128 + section * 32 + 8) +
                              blob_get(v.blob.bytes + 128 + section * 32 + 16));
        memcpy(longer.bytes, v.blob.bytes, end);
        memcpy(longer.bytes + end + 64, v.blob.bytes + end, v.blob.size - end);
        blob_put(entry + 16, blob_get(entry + 16) + 64, 8);
        for (uint32_t behind = section + 1; behind < 3; behind++)
            blob_put(longer.bytes + 128 + behind * 32 + 8,
                     blob_get(longer.bytes + 128 + behind * 32 + 8) + 64, 8);
        blob_put(longer.bytes + 16, longer.size, 8);
        blob_reseal(&longer);
        victim_refuses(&v, longer.bytes, longer.size, "one block more in section", section);
        if (section == 0)
            FAILS(tq_blob_formats(longer.bytes, longer.size, 1, &pair), TQ_ERR_CORRUPT, "formats");
        blob_free(&longer);
    }
    victim_close(&v);
}

/* Sections that are shorter than the layers of the header need. */
static void test_short_sections(void **state) {
    struct victim v;
    tq_cache_config c = config_of(TQ_VARIANT_INT8);
    tq_layer_formats formats[20];
    (void)state;
    c.n_layers = 20; /* formats of 160 bytes, constants of 80 and means */
    victim_open(&v, &c, TOKENS, set_constants);
    static const uint64_t sizes[][3] = {{64, 384, 0}, {128, 320, 0}, {192, 64, 0}, {192, 256, 0}};
    for (size_t i = 0; i < COUNT(sizes); i++) {
        struct blob forged = {must_alloc(v.blob.size, 1), v.blob.size};
        memcpy(forged.bytes, v.blob.bytes, forged.size);
        uint64_t at = 256;
        for (int s = 0; s < 3; s++) {
            uint64_t n = s < 2 ? sizes[i][s] : forged.size - at;
            blob_put(forged.bytes + 128 + s * 32 + 8, at, 8);
            blob_put(forged.bytes + 128 + s * 32 + 16, n, 8);
            at += n;
        }
        blob_reseal(&forged);
        victim_refuses(&v, forged.bytes, forged.size, "short sections", i);
        if (sizes[i][0] < 160)
            FAILS(tq_blob_formats(forged.bytes, forged.size, 20, formats), TQ_ERR_CORRUPT,
                  "formats");
        blob_free(&forged);
    }
    FAILS(tq_blob_formats(v.blob.bytes, v.blob.size, 19, formats), TQ_ERR_INVALID_ARGUMENT,
          "n_layers");
    FAILS(tq_blob_formats(NULL, 0, 20, formats), TQ_ERR_INVALID_ARGUMENT, "buf");
    FAILS(tq_blob_formats(v.blob.bytes, v.blob.size, 20, NULL), TQ_ERR_INVALID_ARGUMENT, "out");
    victim_close(&v);
}

/* Constants that no cache can have, in the last layer: no layer is set. */
static void test_forged_constants(void **state) {
    static const uint32_t words[] = {0x7fc00000, 0x7f800000, 0, 0xbf800000, 1};
    struct rig fresh = {0}, source = {0};
    tq_cache_config c = config_of(TQ_VARIANT_FP8);
    enum { LAYER = 4 + (2 * DIM + 2) * 4 }; /* bits, means, scales */
    float half = 0.5f, mean[DIM] = {1};
    (void)state;
    c.n_layers = 2;
    rig_open(&source, &c);
    for (uint32_t l = 0; l < 2; l++) {
        OK(tq_cache_set_means(source.cache, l, mean, mean));
        OK(tq_cache_set_fp8_scales(source.cache, l, &half, &half));
    }
    rig_open(&fresh, &c);
    tq_seq seq = rig_seq(&fresh);
    struct blob before = blob_save(&fresh, seq), forged = blob_save(&source, rig_seq(&source));
    unsigned char *last = forged.bytes + blob_get(forged.bytes + 128 + 32 + 8) + LAYER;
    for (size_t i = 0; i < COUNT(words); i++) {
        blob_put(last + (i < 2 ? 12 : LAYER - 4), words[i], 4); /* in a mean, in a scale */
        blob_reseal(&forged);
        FAILS(tq_cache_set_constants(fresh.cache, forged.bytes, forged.size), TQ_ERR_CORRUPT, "no");
        struct blob after = blob_save(&fresh, seq);
        blob_check_same(&before, &after, "forged constants");
        blob_free(&after);
        blob_put(last + (i < 2 ? 12 : LAYER - 4), i < 2 ? 0 : 0x3f000000, 4);
    }
    blob_reseal(&forged);
    OK(tq_cache_set_constants(fresh.cache, forged.bytes, forged.size));
    blob_free(&before);
    blob_free(&forged);
    rig_close(&source);
    rig_close(&fresh);
}

/* ---- other caches ---------------------------------------------------------------------- */

static void check_mismatch(const struct blob *b, tq_cache_config c, const char *word) {
    struct rig other = {0};
    tq_seq out = 1;
    rig_open(&other, &c);
    FAILS(tq_seq_load(other.cache, b->bytes, b->size, &out), TQ_ERR_MISMATCH, word);
    assert_int_equal(out, 1);
    assert_int_equal(rig_stats(&other).n_seqs + rig_stats(&other).pages_used, 0);
    rig_close(&other);
}

static void test_b64_other_caches(void **state) {
    struct victim v;
    tq_cache_config c = config_of(TQ_VARIANT_K8V4), d;
    (void)state;
    victim_open(&v, &c, TOKENS, set_constants);
    for (int field = 0; field < 7; field++) {
        static const char *const words[] = {"n_layers",    "n_kv_heads", "head_dim", "v_head_dim",
                                            "page_tokens", "seed",       "V format"};
        d = c;
        d.n_layers += field == 0;
        d.n_kv_heads += field == 1;
        d.n_q_heads = d.n_kv_heads;
        d.head_dim += field == 2 ? 32 : 0;
        d.v_head_dim = field == 3 ? 64 : DIM;
        d.page_tokens *= field == 4 ? 2 : 1;
        d.seed += field == 5;
        d.variant = field == 6 ? TQ_VARIANT_FP8 : c.variant;
        check_mismatch(&v.blob, d, words[field]);
    }
    check_mismatch(&v.blob, c, "k_mean");
    victim_close(&v);
}

/* Constants of a snapshot: only into a cache of its kind that has no tokens. */
static void test_set_constants_refused(void **state) {
    struct victim v;
    struct rig other = {0};
    tq_cache_config c = config_of(TQ_VARIANT_K8V4), d = c;
    (void)state;
    victim_open(&v, &c, TOKENS, set_constants);
    FAILS(tq_cache_set_constants(v.r.cache, v.blob.bytes, v.blob.size), TQ_ERR_INVALID_STATE,
          "frozen");
    d.variant = TQ_VARIANT_K3V4_NC;
    rig_open(&other, &d);
    FAILS(tq_cache_set_constants(other.cache, v.blob.bytes, v.blob.size), TQ_ERR_MISMATCH,
          "format");
    FAILS(tq_cache_set_constants(other.cache, v.blob.bytes, v.blob.size - 1), TQ_ERR_CORRUPT,
          "header");
    FAILS(tq_cache_set_constants(other.cache, NULL, 0), TQ_ERR_INVALID_ARGUMENT, "buf");
    FAILS(tq_cache_set_constants(NULL, v.blob.bytes, v.blob.size), TQ_ERR_INVALID_ARGUMENT,
          "cache");
    rig_close(&other);
    victim_close(&v);
}

/* A load freezes the constants, as an append does. */
static void test_load_freezes(void **state) {
    struct victim v;
    struct rig r = {0};
    tq_cache_config c = config_of(TQ_VARIANT_K8V4);
    (void)state;
    victim_open(&v, &c, TOKENS, set_constants);
    rig_open(&r, &c);
    OK(tq_cache_set_constants(r.cache, v.blob.bytes, v.blob.size));
    OK(tq_cache_set_constants(r.cache, v.blob.bytes, v.blob.size));
    (void)blob_load(&r, &v.blob);
    FAILS(tq_cache_set_means(r.cache, 0, NULL, NULL), TQ_ERR_INVALID_STATE, "frozen");
    FAILS(tq_seq_load(r.cache, NULL, 0, &v.seq), TQ_ERR_INVALID_ARGUMENT, "buf");
    FAILS(tq_seq_load(r.cache, v.blob.bytes, v.blob.size, NULL), TQ_ERR_INVALID_ARGUMENT, "out");
    FAILS(tq_seq_load(NULL, v.blob.bytes, v.blob.size, &v.seq), TQ_ERR_INVALID_ARGUMENT, "cache");
    rig_close(&r);
    victim_close(&v);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_every_truncation),
        cmocka_unit_test(test_every_flipped_bit),
        cmocka_unit_test(test_inspect_checks_the_header),
        cmocka_unit_test(test_forged_headers),
        cmocka_unit_test(test_forged_tables),
        cmocka_unit_test(test_sections_that_go_on),
        cmocka_unit_test(test_short_sections),
        cmocka_unit_test(test_forged_constants),
        cmocka_unit_test(test_b64_other_caches),
        cmocka_unit_test(test_set_constants_refused),
        cmocka_unit_test(test_load_freezes),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
