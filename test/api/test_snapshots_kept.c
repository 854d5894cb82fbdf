/* Tokens kept in 16 bits go along with their codes: what is saved, copied or cut out of a sequence
 * answers bit for bit as the sequence that stayed. B58, B63. */
#include <stdlib.h>
#include <string.h>

#include "common/blob.h"
#include "common/cache.h"
#include "common/numbers.h"

enum { DIM = 32, V_DIM = 64, HEADS = 2, LAYERS = 3, PAGE = 16, TOKENS = 140, MORE = 20 };

/* The last one is in 16 bits itself: it has no rows beside it. */
static const tq_layer_formats formats[LAYERS] = {{TQ_FORMAT_LM3, TQ_FORMAT_LM4},
                                                 {TQ_FORMAT_LM2_QJL, TQ_FORMAT_FP8},
                                                 {TQ_FORMAT_BF16, TQ_FORMAT_F16}};

static const uint32_t settings[][2] = {{16, 24}, {32, 0}, {0, 20}, {48, 1}, {0, 1}, {16, 200}};

static float *k_rows, *v_rows;

static int make_rows(void **state) {
    struct rng rng = {63};
    (void)state;
    k_rows = random_rows(&rng, (size_t)TOKENS * HEADS * DIM, 1);
    v_rows = random_rows(&rng, (size_t)TOKENS * HEADS * V_DIM, 1);
    return 0;
}

static int free_rows(void **state) {
    (void)state;
    free(k_rows);
    free(v_rows);
    return 0;
}

static tq_cache_config config_of(const uint32_t setting[2]) {
    tq_cache_config c = pair_config(formats, DIM, HEADS, 2);
    c.v_head_dim = V_DIM;
    c.n_layers = LAYERS;
    c.page_tokens = PAGE;
    c.sink_tokens = setting[0];
    c.recent_tokens = setting[1];
    return c;
}

/* Tokens [first, first + n) of the list, as rows of a type. */
static void append_as(struct rig *r, tq_seq seq, uint32_t first, uint32_t n, tq_dtype dtype) {
    size_t k_row = rig_k_row(r), v_row = rig_v_row(r);
    void *k = convert_rows(k_rows + first * k_row, n * k_row, dtype);
    void *v = convert_rows(v_rows + first * v_row, n * v_row, dtype);
    tq_rows_in keys = {.data = k, .dtype = dtype}, values = {.data = v, .dtype = dtype};
    for (uint32_t l = 0; l < LAYERS; l++)
        OK(tq_append(r->cache, seq, l, n, &keys, &values, NULL));
    free(k);
    free(v);
}

static tq_seq seq_of(struct rig *r, uint32_t n) {
    tq_seq seq = rig_seq(r);
    append_as(r, seq, 0, n, TQ_F32);
    return seq;
}

/* Lengths, codes, rows and answers. */
static void check_same(struct rig *a, tq_seq a_seq, struct rig *b, tq_seq b_seq, const char *what) {
    struct rng rng = {5};
    for (uint32_t l = 0; l < LAYERS; l++) {
        uint32_t n = (uint32_t)rig_length(a, a_seq, l);
        assert_int_equal(rig_length(b, b_seq, l), n);
        check_same_pages(a, a_seq, b, b_seq, l, n, what);
        size_t k_bytes = n * rig_k_row(a) * sizeof(float), v_bytes = k_bytes / DIM * V_DIM;
        float *k = must_alloc(2, k_bytes + 1), *v = must_alloc(2, v_bytes + 1);
        float *k_there = k + k_bytes / sizeof *k, *v_there = v + v_bytes / sizeof *v;
        rig_read(a, a_seq, l, 0, n, k, v);
        rig_read(b, b_seq, l, 0, n, k_there, v_there);
        CHECK(memcmp(k, k_there, k_bytes) == 0, "%s: keys of layer %u", what, l);
        CHECK(memcmp(v, v_there, v_bytes) == 0, "%s: values of layer %u", what, l);
        free(k);
        free(v);
        struct asked asked = ask_make(a, 2, TQ_ATTEND_CAUSAL, &rng);
        ask(a, a_seq, l, &asked);
        check_answer(b, b_seq, l, &asked, what);
        ask_free(&asked);
    }
}

/* One token and some more behind both, and a cut: they stay the same. */
static void check_continuation(struct rig *a, tq_seq a_seq, struct rig *b, tq_seq b_seq,
                               uint32_t from, const char *what) {
    check_same(a, a_seq, b, b_seq, what);
    append_as(a, a_seq, from, 1, TQ_F32);
    append_as(b, b_seq, from, 1, TQ_F32);
    check_same(a, a_seq, b, b_seq, what);
    append_as(a, a_seq, from + 1, MORE - 1, TQ_F32);
    append_as(b, b_seq, from + 1, MORE - 1, TQ_F32);
    check_same(a, a_seq, b, b_seq, what);
    uint64_t length = rig_length(a, a_seq, 0), less = length < 30 ? 0 : length - 30;
    OK(tq_seq_truncate(a->cache, a_seq, less));
    OK(tq_seq_truncate(b->cache, b_seq, less));
    append_as(a, a_seq, from, 3, TQ_F32);
    append_as(b, b_seq, from, 3, TQ_F32);
    check_same(a, a_seq, b, b_seq, what);
}

/* ---- whole sequences ------------------------------------------------------------------- */

/* B63, at every length around the borders of pages, sinks and windows: through bytes and by a copy,
 * to memory that is noise. */
static void test_b63_every_length(void **state) {
    (void)state;
    for (size_t i = 0; i < COUNT(settings); i++)
        for (uint32_t n = 0; n <= 72; n += FEWER) {
            struct rig a = {0}, b = {0};
            tq_cache_config c = config_of(settings[i]);
            rig_open(&a, &c);
            rig_open(&b, &c);
            tq_seq seq = seq_of(&a, n), fork = rig_fork(&a, seq, n), copy = 0;
            struct blob blob = blob_save(&a, seq);
            tq_seq loaded = blob_load(&b, &blob);
            OK(tq_seq_copy(b.cache, a.cache, seq, 0, UINT64_MAX, &copy));
            struct blob again = blob_save(&b, loaded), third = blob_save(&b, copy);
            blob_check_same(&blob, &again, "saved again");
            blob_check_same(&blob, &third, "copied and saved");
            check_continuation(&a, seq, &b, loaded, n, "loaded");
            check_continuation(&a, fork, &b, copy, n, "copied");
            blob_free(&blob);
            blob_free(&again);
            blob_free(&third);
            rig_close(&a);
            rig_close(&b);
        }
}

/* Every variant and 16-bit type, also of layers which keep nothing. */
static void test_variants_and_types(void **state) {
    static const tq_dtype types[] = {TQ_BF16, TQ_F16};
    (void)state;
    for (uint32_t i = 0; i < tq_variant_count(); i++)
        for (size_t j = 0; j < COUNT(types); j++) {
            struct rig a = {0}, b = {0};
            tq_cache_config c = config_of(settings[0]);
            tq_variant_info info = variant_at(i);
            tq_layer_formats pairs[LAYERS];
            for (int l = 0; l < LAYERS; l++)
                pairs[l] = (tq_layer_formats){info.k_format, info.v_format};
            c.layer_formats = pairs;
            rig_open(&a, &c);
            rig_open(&b, &c);
            tq_seq seq = rig_seq(&a);
            append_as(&a, seq, 0, 55, types[j]);
            struct blob blob = blob_save(&a, seq);
            tq_seq loaded = blob_load(&b, &blob);
            check_continuation(&a, seq, &b, loaded, 55, info.name);
            blob_free(&blob);
            rig_close(&a);
            rig_close(&b);
        }
}

/* ---- ranges ---------------------------------------------------------------------------- */

/* A range is what is left when all else has been cut off and out, with the same bytes. */
static void check_range(struct rig *a, struct rig *b, tq_seq seq, uint32_t first, uint32_t n) {
    tq_seq cut = rig_fork(a, seq, first + n), copy = 0;
    OK(tq_seq_remove(a->cache, cut, 0, first));
    struct blob blob = blob_save_range(a, seq, first, n), same = blob_save(a, cut);
    tq_seq loaded = blob_load(b, &blob);
    OK(tq_seq_copy(b->cache, a->cache, seq, first, n, &copy));
    check_same(a, cut, b, loaded, "range");
    check_same(a, cut, b, copy, "copied range");
    assert_int_equal(blob.size, same.size);
    struct blob again = blob_save(b, loaded), third = blob_save(b, copy);
    blob_check_same(&same, &again, "range, saved again");
    blob_check_same(&same, &third, "range, copied and saved");
    append_as(a, cut, 100, 30, TQ_F32);
    append_as(b, loaded, 100, 30, TQ_F32);
    check_same(a, cut, b, loaded, "range, gone on with");
    OK(tq_seq_destroy(a->cache, cut));
    OK(tq_seq_destroy(b->cache, loaded));
    OK(tq_seq_destroy(b->cache, copy));
    blob_free(&blob);
    blob_free(&same);
    blob_free(&again);
    blob_free(&third);
}

static void test_ranges(void **state) {
    static const uint32_t firsts[] = {0, 1, 5, 15, 16, 17, 30, 36, 37, 44, 59};
    static const uint32_t sizes[] = {1, 3, 16, 23, 32, 60};
    (void)state;
    for (size_t s = 0; s < COUNT(settings); s++) {
        struct rig a = {0}, b = {0};
        tq_cache_config c = config_of(settings[s]);
        rig_open(&a, &c);
        rig_open(&b, &c);
        tq_seq seq = seq_of(&a, 60);
        for (size_t i = 0; i < COUNT(firsts); i++)
            for (size_t j = 0; j < COUNT(sizes); j++)
                check_range(&a, &b, seq, firsts[i],
                            firsts[i] + sizes[j] < 60 ? sizes[j] : 60 - firsts[i]);
        rig_close(&a);
        rig_close(&b);
    }
}

/* Ranges of any length that are put together again are the whole. */
static void test_pieces_make_the_whole(void **state) {
    static const uint32_t pieces[] = {1, 7, 16, 17, 40, 64};
    (void)state;
    for (size_t s = 0; s < COUNT(settings); s++)
        for (size_t j = 0; j < COUNT(pieces); j++) {
            struct rig a = {0}, b = {0};
            tq_cache_config c = config_of(settings[s]);
            rig_open(&a, &c);
            rig_open(&b, &c);
            tq_seq seq = seq_of(&a, 90), joined = rig_seq(&b);
            for (uint32_t at = 0, n; at < 90; at += n) {
                n = 90 - at < pieces[j] ? 90 - at : pieces[j];
                struct blob piece = blob_save_range(&a, seq, at, n);
                OK(tq_seq_load_append(b.cache, joined, piece.bytes, piece.size));
                blob_free(&piece);
            }
            check_continuation(&a, seq, &b, joined, 90, "pieces");
            rig_close(&a);
            rig_close(&b);
        }
}

/* ---- other caches ---------------------------------------------------------------------- */

/* Which tokens a layer keeps, found out by comparison with their rows in bf16. */
static void find_exact(const struct rig *r, tq_seq seq, uint32_t n, uint8_t *exact) {
    size_t row = rig_k_row(r);
    float *k = must_alloc(n, row * sizeof *k);
    void *narrow = convert_rows(k_rows, n * row, TQ_BF16);
    float *half = widen_rows(narrow, n * row, TQ_BF16);
    rig_read(r, seq, 0, 0, n, k, NULL);
    for (uint32_t t = 0; t < n; t++)
        exact[t] = memcmp(k + t * row, half + t * row, row * sizeof *k) == 0;
    free(k);
    free(half);
    free(narrow);
}

/* Rows that the other cache keeps too come along, the others are codes. */
static void test_other_settings(void **state) {
    static const uint32_t none[2] = {0, 0};
    enum { N = 90 };
    (void)state;
    for (size_t i = 0; i < COUNT(settings); i++)
        for (size_t j = 0; j <= COUNT(settings); j++) {
            const uint32_t *there = settings[i], *here = j < COUNT(settings) ? settings[j] : none;
            struct rig a = {0}, b = {0};
            tq_cache_config c = config_of(there), d = config_of(here);
            uint8_t exact[N];
            tq_seq copy = 0;
            rig_open(&a, &c);
            rig_open(&b, &d);
            tq_seq seq = seq_of(&a, N);
            struct blob blob = blob_save(&a, seq);
            tq_seq loaded = blob_load(&b, &blob);
            OK(tq_seq_copy(b.cache, a.cache, seq, 0, N, &copy));
            check_same(&b, copy, &b, loaded, "copied and loaded");
            find_exact(&b, loaded, N, exact);
            int all = there[1] >= N; /* then even more sinks than there can be taken */
            for (uint32_t t = 0; t < N; t++)
                CHECK(exact[t] == ((t < here[0] && (t < there[0] || all)) ||
                                   (t + here[1] >= N && (t + there[1] >= N))),
                      "%u %u to %u %u: token %u", there[0], there[1], here[0], here[1], t);
            for (uint32_t l = 0; l < LAYERS; l++)
                check_same_pages(&a, seq, &b, loaded, l, N, "codes");
            blob_free(&blob);
            rig_close(&a);
            rig_close(&b);
        }
}

/* A cache whose rows have another 16-bit type refuses; one without rows takes over the type. */
static void test_types(void **state) {
    struct rig a = {0}, b = {0};
    tq_cache_config c = config_of(settings[0]);
    tq_seq untouched = 9;
    (void)state;
    rig_open(&a, &c);
    rig_open(&b, &c);
    tq_seq seq = rig_seq(&a), other = rig_seq(&b), middle = 0;
    append_as(&a, seq, 0, 50, TQ_F16);
    append_as(&b, other, 0, 9, TQ_BF16);
    struct blob blob = blob_save(&a, seq), codes = blob_save_range(&a, seq, 17, 5);
    struct snapshot before = snapshot_take(&b, other);
    FAILS(tq_seq_load(b.cache, blob.bytes, blob.size, &untouched), TQ_ERR_MISMATCH,
          "layer 0: tokens are kept as f16 and f16 there and as bf16 and bf16");
    FAILS(tq_seq_load_append(b.cache, other, blob.bytes, blob.size), TQ_ERR_MISMATCH, "f16");
    FAILS(tq_seq_copy(b.cache, a.cache, seq, 0, 50, &untouched), TQ_ERR_MISMATCH, "f16");
    assert_int_equal(untouched, 9);
    snapshot_check(&b, &before, "refused");
    snapshot_free(&b, &before);
    (void)blob_load(&b, &codes); /* no row, no type */
    OK(tq_seq_copy(b.cache, a.cache, seq, 17, 5, &middle));
    OK(tq_cache_reset(b.cache));
    tq_seq loaded = blob_load(&b, &blob);
    append_as(&a, seq, 50, 10, TQ_F32); /* rounded to f16 in both */
    append_as(&b, loaded, 50, 10, TQ_F32);
    check_same(&a, seq, &b, loaded, "took over the type");
    blob_free(&blob);
    blob_free(&codes);
    rig_close(&a);
    rig_close(&b);
}

/* A cache that is made from a snapshot alone. */
static void test_inspect(void **state) {
    struct rig a = {0}, b = {0};
    tq_cache_config c = config_of(settings[0]);
    tq_blob_info info = {.struct_size = sizeof info};
    tq_layer_formats pairs[LAYERS];
    (void)state;
    rig_open(&a, &c);
    tq_seq seq = seq_of(&a, 70);
    struct blob blob = blob_save(&a, seq);
    OK(tq_blob_inspect(blob.bytes, 128, &info));
    assert_int_equal(info.sink_tokens, 16);
    assert_int_equal(info.recent_tokens, 24);
    blob_open(&b, &blob, pairs);
    tq_seq loaded = blob_load(&b, &blob);
    check_continuation(&a, seq, &b, loaded, 70, "made from the snapshot");
    blob_free(&blob);
    rig_close(&a);
    rig_close(&b);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_b63_every_length), cmocka_unit_test(test_variants_and_types),
        cmocka_unit_test(test_ranges),           cmocka_unit_test(test_pieces_make_the_whole),
        cmocka_unit_test(test_other_settings),   cmocka_unit_test(test_types),
        cmocka_unit_test(test_inspect),
    };
    return cmocka_run_group_tests_name("snapshots with rows in 16 bits", tests, make_rows,
                                       free_rows);
}
