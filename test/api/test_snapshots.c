/* What is saved comes back: the same bytes, the same answers, the same continuation, whatever
 * the memory held before. B29, B61, B69. */
#include <stdlib.h>
#include <string.h>

#include "common/blob.h"
#include "common/cache.h"
#include "common/table.h"

enum { PAGE = 16, TOKENS = 120 };

static uint32_t list[TOKENS];

static int make_list(void **state) {
    (void)state;
    for (uint32_t i = 0; i < TOKENS; i++)
        list[i] = (i * 7) % TOKENS;
    return 0;
}

static tq_cache_config config_of(tq_variant variant, uint32_t dim) {
    tq_cache_config c = plain_config(variant, dim, 2, 2);
    c.page_tokens = PAGE;
    c.seed = 77;
    return c;
}

/* A sequence with the first n tokens of the list. */
static tq_seq seq_of(const struct table *t, struct rig *r, uint32_t n) {
    tq_seq seq = rig_seq(r);
    for (uint32_t l = 0; l < r->c.n_layers; l++)
        OK(table_append(t, r->cache, seq, l, list, n));
    return seq;
}

/* Appends ten more tokens one by one to both; bytes and answers stay the same. */
static void check_continuation(const struct table *t, struct rig *a, tq_seq a_seq, struct rig *b,
                               tq_seq b_seq, uint32_t n, const char *what) {
    struct rng rng = {n};
    for (uint32_t i = 0; i < 10; i++)
        for (uint32_t l = 0; l < a->c.n_layers; l++) {
            OK(table_append(t, a->cache, a_seq, l, list + n + i, 1));
            OK(table_append(t, b->cache, b_seq, l, list + n + i, 1));
            struct asked asked = ask_make(a, 2, TQ_ATTEND_CAUSAL, &rng);
            ask(a, a_seq, l, &asked);
            check_answer(b, b_seq, l, &asked, what);
            ask_free(&asked);
        }
    for (uint32_t l = 0; l < a->c.n_layers; l++)
        check_same_pages(a, a_seq, b, b_seq, l, n + 10, what);
}

/* Saved, loaded into another cache whose memory is noise, saved again, gone on with. */
static void round_trip(const struct table *t, const tq_cache_config *c, uint32_t n,
                       const char *what) {
    struct rig a = {0}, b = {0};
    rig_open(&a, c);
    b.heap.zero_fill = n % 2;
    rig_open(&b, c);
    tq_seq saved = seq_of(t, &a, n);
    struct blob blob = blob_save(&a, saved);
    tq_seq loaded = blob_load(&b, &blob);
    assert_int_equal(rig_stats(&b).pages_used, (n + PAGE - 1) / PAGE);
    struct blob again = blob_save(&b, loaded);
    blob_check_same(&blob, &again, what);
    check_continuation(t, &a, saved, &b, loaded, n, what);
    blob_free(&blob);
    blob_free(&again);
    rig_close(&a);
    rig_close(&b);
}

static void test_every_variant(void **state) {
    static const uint32_t lengths[] = {0, 1, 15, 16, 17, 40, 48};
    (void)state;
    for (uint32_t i = 0; i < tq_variant_count(); i++) {
        tq_cache_config c = config_of(variant_at(i).id, 64);
        struct table t = table_make(&c, 0, TOKENS, 1);
        for (size_t j = 0; j < COUNT(lengths); j++)
            round_trip(&t, &c, lengths[j], variant_at(i).name);
        table_free(&t);
    }
}

static void test_every_length(void **state) {
    tq_cache_config c = config_of(TQ_VARIANT_3BIT_NC, 32);
    struct table t = table_make(&c, 0, TOKENS, 2);
    (void)state;
    for (uint32_t n = 0; n <= 2 * PAGE + 1; n++)
        round_trip(&t, &c, n, "every length");
    table_free(&t);
}

/* B61: dims that are no powers of two, and V of another length. */
static void test_b61_dims(void **state) {
    static const uint32_t dims[][2] = {{80, 0}, {192, 0}, {576, 0}, {96, 64}, {64, 128}};
    (void)state;
    for (size_t i = 0; i < COUNT(dims); i++) {
        tq_cache_config c = config_of(TQ_VARIANT_K3V4_NC, dims[i][0]);
        c.v_head_dim = dims[i][1];
        struct table t = table_make(&c, 0, TOKENS, 3);
        round_trip(&t, &c, 21, "dims");
        table_free(&t);
    }
}

/* B29: layers of different formats, 16 bits at both ends; means in some, scales in others. */
static void set_constants(struct rig *r, struct rng *rng) {
    float *mean = random_rows(rng, 2 * 64, 1), scales[2] = {0.5f, 2.0f};
    OK(tq_cache_set_means(r->cache, 1, mean, NULL));
    OK(tq_cache_set_means(r->cache, 2, mean, mean));
    OK(tq_cache_set_means(r->cache, 3, NULL, mean));
    OK(tq_cache_set_fp8_scales(r->cache, 2, scales, NULL));
    free(mean);
}

static const tq_layer_formats mixed[5] = {{TQ_FORMAT_LM4, TQ_FORMAT_LM4},
                                          {TQ_FORMAT_LM3_QJL, TQ_FORMAT_INT8},
                                          {TQ_FORMAT_FP8, TQ_FORMAT_FP8},
                                          {TQ_FORMAT_POLAR, TQ_FORMAT_LM2},
                                          {TQ_FORMAT_LM3, TQ_FORMAT_LM3}};

static tq_cache_config mixed_config(void) {
    tq_cache_config c = config_of(0, 64);
    c.layer_formats = mixed;
    c.n_layers = COUNT(mixed);
    c.boundary_layers = 1;
    return c;
}

static void test_b29_mixed_layers(void **state) {
    struct rig a = {0}, b = {0};
    struct rng rng = {4};
    tq_cache_config c = mixed_config();
    struct table t = table_make(&c, 0, TOKENS, 4);
    tq_layer_formats formats[5];
    (void)state;
    rig_open(&a, &c);
    set_constants(&a, &rng);
    tq_seq seq = seq_of(&t, &a, 37);
    struct blob blob = blob_save(&a, seq);
    blob_open(&b, &blob, formats);
    tq_seq loaded = blob_load(&b, &blob);
    check_continuation(&t, &a, seq, &b, loaded, 37, "mixed layers");
    blob_free(&blob);
    rig_close(&a);
    rig_close(&b);
    table_free(&t);
}

static void test_inspect(void **state) {
    struct rig a = {0};
    tq_cache_config c = config_of(TQ_VARIANT_K8V4, 96);
    c.v_head_dim = 64;
    c.n_layers = 3;
    tq_blob_info info = {.struct_size = sizeof info};
    tq_layer_formats formats[3];
    (void)state;
    rig_open(&a, &c);
    tq_seq seq = rig_seq(&a);
    struct rng rng = {5};
    for (uint32_t l = 0; l < 3; l++)
        rig_append_random(&a, seq, l, 50, &rng);
    struct blob blob = blob_save_range(&a, seq, 7, 40);
    OK(tq_blob_inspect(blob.bytes, blob.size, &info));
    assert_int_equal(info.format_version, TQ_FORMAT_VERSION);
    assert_int_equal(info.n_layers, 3);
    assert_int_equal(info.n_kv_heads, 2);
    assert_int_equal(info.head_dim, 96);
    assert_int_equal(info.v_head_dim, 64);
    assert_int_equal(info.page_tokens, PAGE);
    assert_int_equal(info.variant, TQ_VARIANT_K8V4);
    assert_int_equal(info.seed, 77);
    assert_int_equal(info.n_tokens, 40);
    assert_int_equal(info.first_token, 7);
    assert_int_equal(info.n_bytes, blob.size);
    OK(tq_blob_formats(blob.bytes, blob.size, 3, formats));
    for (uint32_t l = 0; l < 3; l++)
        assert_true(formats[l].k_format == TQ_FORMAT_FP8 && formats[l].v_format == TQ_FORMAT_LM4);
    blob_free(&blob);
    rig_close(&a);
}

/* ---- ranges ---------------------------------------------------------------------------- */

/* Pieces of any length, saved one by one and put together again, are the whole. */
static void test_pieces_make_the_whole(void **state) {
    static const uint32_t pieces[] = {1, 5, 16, 17, 31, 32, 33, 64};
    (void)state;
    for (uint32_t i = 0; i < tq_variant_count(); i++) {
        struct rig a = {0}, b = {0};
        tq_cache_config c = config_of(variant_at(i).id, 64);
        struct table t = table_make(&c, 0, TOKENS, 6);
        rig_open(&a, &c);
        rig_open(&b, &c);
        tq_seq seq = seq_of(&t, &a, 75), joined;
        for (size_t j = i % 2; j < COUNT(pieces); j += 2) {
            joined = rig_seq(&b);
            for (uint32_t at = 0, n; at < 75; at += n) {
                n = 75 - at < pieces[j] ? 75 - at : pieces[j];
                struct blob piece = blob_save_range(&a, seq, at, n);
                OK(tq_seq_load_append(b.cache, joined, piece.bytes, piece.size));
                blob_free(&piece);
            }
            check_same_pages(&a, seq, &b, joined, 0, 75, variant_at(i).name);
            table_check(&t, &b, joined, 0, list, 75, variant_at(i).name);
        }
        rig_close(&a);
        rig_close(&b);
        table_free(&t);
    }
}

/* A loaded prefix is shared and written to like any other. */
static void test_append_to_a_shared_page(void **state) {
    struct rig r = {0};
    tq_cache_config c = config_of(TQ_VARIANT_4BIT_NC, 64);
    struct table t = table_make(&c, 0, TOKENS, 7);
    uint32_t want[TOKENS];
    (void)state;
    rig_open(&r, &c);
    tq_seq seq = seq_of(&t, &r, 50);
    struct blob blob = blob_save_range(&r, seq, 10, 30);
    tq_seq loaded = blob_load(&r, &blob), fork = rig_fork(&r, loaded, UINT64_MAX);
    OK(tq_seq_load_append(r.cache, fork, blob.bytes, blob.size));
    memcpy(want, list + 10, 30 * sizeof *list);
    table_check(&t, &r, loaded, 0, want, 30, "beside its fork");
    memcpy(want + 30, list + 10, 30 * sizeof *list);
    table_check(&t, &r, fork, 0, want, 60, "twice the same");
    assert_int_equal(rig_stats(&r).pages_shared, 1);
    blob_free(&blob);
    rig_close(&r);
    table_free(&t);
}

/* Ranges of unequal layers: what all have can be saved. */
static void test_ranges_refused(void **state) {
    struct rig r = {0};
    tq_cache_config c = config_of(TQ_VARIANT_4BIT_NC, 64);
    c.n_layers = 2;
    struct table t = table_make(&c, 0, TOKENS, 8);
    size_t written = 9;
    (void)state;
    rig_open(&r, &c);
    tq_seq seq = seq_of(&t, &r, 20);
    OK(table_append(&t, r.cache, seq, 1, list, 3));
    FAILS(tq_seq_save(r.cache, seq, NULL, 0, &written), TQ_ERR_INVALID_STATE, "layers");
    FAILS(tq_seq_save_range(r.cache, seq, 5, 18, NULL, 0, &written), TQ_ERR_INVALID_STATE,
          "layers");
    FAILS(tq_seq_save_range(r.cache, seq, 5, 19, NULL, 0, &written), TQ_ERR_INVALID_ARGUMENT,
          "n_t");
    FAILS(tq_seq_save_range(r.cache, seq, 24, 0, NULL, 0, &written), TQ_ERR_INVALID_ARGUMENT,
          "n_t");
    FAILS(tq_seq_save_range(r.cache, seq, UINT64_MAX, 5, NULL, 0, &written),
          TQ_ERR_INVALID_ARGUMENT, "overflow");
    FAILS(tq_seq_save(r.cache, seq + 1, NULL, 0, &written), TQ_ERR_NOT_FOUND, "sequence");
    FAILS(tq_seq_save(NULL, seq, NULL, 0, &written), TQ_ERR_INVALID_ARGUMENT, "cache");
    FAILS(tq_seq_save(r.cache, seq, NULL, 0, NULL), TQ_ERR_INVALID_ARGUMENT, "written");
    FAILS(tq_seq_blob_size(r.cache, seq, NULL), TQ_ERR_INVALID_ARGUMENT, "out");
    assert_int_equal(written, 9);
    struct blob blob = blob_save_range(&r, seq, 5, 15);
    FAILS(tq_seq_load_append(r.cache, seq, blob.bytes, blob.size), TQ_ERR_INVALID_STATE, "layers");
    FAILS(tq_seq_load_append(r.cache, 0, blob.bytes, blob.size), TQ_ERR_NOT_FOUND, "sequence");
    memset(blob.bytes, 7, blob.size);
    FAILS(tq_seq_save_range(r.cache, seq, 5, 15, blob.bytes, blob.size - 1, &written),
          TQ_ERR_BUFFER_TOO_SMALL, "buf");
    assert_int_equal(written, blob.size);
    for (size_t i = 0; i < blob.size; i++)
        assert_int_equal(blob.bytes[i], 7);
    blob_free(&blob);
    rig_close(&r);
    table_free(&t);
}

/* ---- copies ---------------------------------------------------------------------------- */

static void test_copy(void **state) {
    struct rig a = {0}, b = {0};
    tq_cache_config c = mixed_config();
    struct table t = table_make(&c, 0, TOKENS, 9);
    struct rng rng = {9}, same = {9};
    tq_seq copy = 0, inside = 0;
    (void)state;
    rig_open(&a, &c);
    c.max_pages = 9;
    rig_open(&b, &c);
    set_constants(&a, &rng);
    set_constants(&b, &same);
    tq_seq seq = seq_of(&t, &a, 75);
    OK(tq_seq_copy(b.cache, a.cache, seq, 0, UINT64_MAX, &copy));
    for (uint32_t l = 0; l < a.c.n_layers; l++)
        check_same_pages(&a, seq, &b, copy, l, 75, "copy");
    for (int i = 0; i < 20; i++) /* the slots of the cache move while it copies from itself */
        (void)rig_seq(&a);
    OK(tq_seq_copy(a.cache, a.cache, seq, 9, 60, &inside));
    assert_int_equal(rig_stats(&a).pages_used, 5 + 4);
    assert_int_equal(rig_stats(&a).pages_shared, 0);
    struct blob range = blob_save_range(&a, seq, 9, 60), whole = blob_save(&a, inside);
    assert_int_equal(range.size, whole.size);
    tq_seq from_range = blob_load(&a, &range), from_whole = blob_load(&a, &whole);
    for (uint32_t l = 0; l < a.c.n_layers; l++) {
        check_same_pages(&a, from_range, &a, inside, l, 60, "range");
        check_same_pages(&a, from_whole, &a, inside, l, 60, "copy of a range");
    }
    struct snapshot before = snapshot_take(&b, copy);
    tq_seq untouched = 7;
    FAILS(tq_seq_copy(b.cache, a.cache, seq, 0, 75, &untouched), TQ_ERR_OUT_OF_PAGES, "pages");
    FAILS(tq_seq_copy(b.cache, a.cache, seq, 0, 76, &untouched), TQ_ERR_INVALID_ARGUMENT, "n_tok");
    FAILS(tq_seq_copy(b.cache, a.cache, 99, 0, 1, &untouched), TQ_ERR_NOT_FOUND, "sequence");
    FAILS(tq_seq_copy(b.cache, NULL, seq, 0, 1, &untouched), TQ_ERR_INVALID_ARGUMENT, "from");
    FAILS(tq_seq_copy(NULL, a.cache, seq, 0, 1, &untouched), TQ_ERR_INVALID_ARGUMENT, "cache");
    FAILS(tq_seq_copy(b.cache, a.cache, seq, 0, 1, NULL), TQ_ERR_INVALID_ARGUMENT, "out");
    assert_int_equal(untouched, 7);
    snapshot_check(&b, &before, "refused copies");
    snapshot_free(&b, &before);
    blob_free(&range);
    blob_free(&whole);
    rig_close(&a);
    rig_close(&b);
    table_free(&t);
}

/* Out of pages and sequences: nothing changes. */
static void test_load_without_room(void **state) {
    struct rig r = {0};
    tq_cache_config c = config_of(TQ_VARIANT_INT8, 64);
    struct table t = table_make(&c, 0, TOKENS, 10);
    tq_seq untouched = 5;
    (void)state;
    c.max_pages = 6;
    c.max_seqs = 2;
    rig_open(&r, &c);
    tq_seq seq = seq_of(&t, &r, 60);
    struct blob blob = blob_save(&r, seq);
    struct snapshot before = snapshot_take(&r, seq);
    FAILS(tq_seq_load(r.cache, blob.bytes, blob.size, &untouched), TQ_ERR_OUT_OF_PAGES, "pages");
    FAILS(tq_seq_load_append(r.cache, seq, blob.bytes, blob.size), TQ_ERR_OUT_OF_PAGES, "pages");
    tq_seq empty = rig_seq(&r);
    FAILS(tq_seq_load(r.cache, blob.bytes, blob.size, &untouched), TQ_ERR_INVALID_STATE,
          "max_seqs");
    OK(tq_seq_destroy(r.cache, empty));
    assert_int_equal(untouched, 5);
    snapshot_check_content(&r, &before, "no room");
    OK(tq_seq_truncate(r.cache, seq, 30));
    OK(tq_seq_load(r.cache, blob.bytes, blob.size, &untouched));
    table_check(&t, &r, untouched, 0, list, 60, "with room");
    snapshot_free(&r, &before);
    blob_free(&blob);
    rig_close(&r);
    table_free(&t);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_every_variant),
        cmocka_unit_test(test_every_length),
        cmocka_unit_test(test_b61_dims),
        cmocka_unit_test(test_b29_mixed_layers),
        cmocka_unit_test(test_inspect),
        cmocka_unit_test(test_pieces_make_the_whole),
        cmocka_unit_test(test_append_to_a_shared_page),
        cmocka_unit_test(test_ranges_refused),
        cmocka_unit_test(test_copy),
        cmocka_unit_test(test_load_without_room),
    };
    return cmocka_run_group_tests(tests, make_list, NULL);
}
