/* Sink tokens and a recent window in 16 bits: single rules, memory, refusals. */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "common/blob.h"
#include "common/cache.h"
#include "common/numbers.h"

enum { DIM = 64, V_DIM = 32, HEADS = 2, GROUP = 2, LAYERS = 2, SEQS = 5 };

static float *halves(const float *rows, size_t n, tq_dtype dtype) {
    void *half = convert_rows(rows, n, dtype);
    float *wide = widen_rows(half, n, dtype);
    free(half);
    return wide;
}

static const tq_layer_formats formats[LAYERS] = {{TQ_FORMAT_LM3, TQ_FORMAT_LM4},
                                                 {TQ_FORMAT_LM2_QJL, TQ_FORMAT_FP8}};

static tq_cache_config config_of(uint32_t sinks, uint32_t recent) {
    tq_cache_config c = pair_config(formats, DIM, HEADS, GROUP);
    c.v_head_dim = V_DIM;
    c.n_layers = LAYERS;
    c.page_tokens = 32;
    c.max_seqs = SEQS;
    c.sink_tokens = sinks;
    c.recent_tokens = recent;
    return c;
}

/* ---- single rules ---------------------------------------------------------------------- */

/* B58: window 8, 20 tokens; cut to 15, then to 5, inside of what is coded. */
static void test_b58_cut_below_the_window(void **state) {
    static const uint32_t lengths[] = {15, 5};
    struct rig r = {0};
    struct rng rng = {58};
    tq_cache_config c = plain_config(TQ_VARIANT_3BIT_NC, DIM, 1, 1);
    (void)state;
    c.recent_tokens = 8;
    rig_open(&r, &c);
    tq_seq seq = rig_seq(&r);
    float *k = random_rows(&rng, 23 * DIM, 1), *half = halves(k, 23 * DIM, TQ_BF16), got[23 * DIM];
    rig_append(&r, seq, 0, 20, k, k);
    for (size_t i = 0; i < COUNT(lengths); i++) {
        OK(tq_seq_truncate(r.cache, seq, lengths[i]));
        FAILS(tq_seq_truncate(r.cache, seq, lengths[i] + 1), TQ_ERR_INVALID_ARGUMENT, "n_tokens");
        rig_read(&r, seq, 0, 0, lengths[i], got, NULL);
        for (uint32_t t = 0; t < lengths[i]; t++) {
            int exact = memcmp(got + t * DIM, half + t * DIM, DIM * sizeof *got) == 0;
            assert_int_equal(exact, t >= 12);
        }
    }
    rig_append(&r, seq, 0, 3, k + 5 * DIM, k);
    rig_read(&r, seq, 0, 0, 8, got, NULL);
    assert_true(memcmp(got + 4 * DIM, half + 4 * DIM, DIM * sizeof *got) != 0);
    assert_memory_equal(got + 5 * DIM, half + 5 * DIM, 3 * DIM * sizeof *got);
    free(k);
    free(half);
    rig_close(&r);
}

/* With every token exact nothing but 16-bit rounding is left, whatever the means and sinks. */
static void test_all_exact_equals_bf16(void **state) {
    (void)state;
    for (uint32_t i = 0; i < tq_variant_count(); i++) {
        struct rig r = {0};
        struct rng rng = {i};
        tq_cache_config c = plain_config(variant_at(i).id, DIM, HEADS, GROUP);
        if (variant_at(i).id == TQ_VARIANT_BF16 || variant_at(i).id == TQ_VARIANT_F16)
            continue; /* keep nothing beside the rows, which lose their means */
        c.recent_tokens = 100;
        rig_open(&r, &c);
        float *mean = random_rows(&rng, HEADS * DIM, 2),
              *k = random_rows(&rng, 90 * HEADS * DIM, 1);
        float *half = halves(k, 90 * HEADS * DIM, TQ_BF16);
        OK(tq_cache_set_means(r.cache, 0, mean, mean));
        tq_seq seq = rig_seq(&r);
        rig_append(&r, seq, 0, 90, k, k);
        struct asked a = ask_make(&r, 3, TQ_ATTEND_CAUSAL, &rng);
        ask(&r, seq, 0, &a);
        check_against_rows(&r, &a, 90, half, half, ATTEND_TOLERANCE, variant_at(i).name);
        ask_free(&a);
        free(mean);
        free(k);
        free(half);
        rig_close(&r);
    }
}

/* Rows at the end of the range saturate at the 16-bit type, NaN and infinity count once. */
static void test_extreme_rows(void **state) {
    static const float bad[] = {NAN, INFINITY, -INFINITY, 3.4e38f};
    struct rig r = {0};
    tq_cache_config c = plain_config(TQ_VARIANT_4BIT_NC, DIM, 1, 1);
    float k[DIM] = {0}, got[DIM];
    (void)state;
    c.sink_tokens = 1;
    c.recent_tokens = 1;
    memcpy(k, bad, sizeof bad);
    rig_open(&r, &c);
    tq_seq seq = rig_seq(&r);
    rig_append(&r, seq, 0, 1, k, k);
    rig_read(&r, seq, 0, 0, 1, got, NULL);
    assert_true(got[0] == 0 && got[1] == 0x1.fep127f && got[2] == -0x1.fep127f);
    assert_true(got[3] == 0x1.fep127f);
    assert_int_equal(rig_stats(&r).nan_values, 2);
    assert_int_equal(rig_stats(&r).inf_values, 4);
    rig_close(&r);
}

/* ---- memory ---------------------------------------------------------------------------- */

static void test_footprint(void **state) {
    struct rig r = {0}, plain = {0};
    tq_cache_config c = config_of(16, 100);
    tq_footprint f = {.struct_size = sizeof f};
    (void)state;
    c.max_pages = 64;
    rig_open(&r, &c);
    OK(tq_cache_estimate(r.ctx, &c, &f));
    /* a page of sinks, eight of a window for each sequence and one more; K and V, both layers, 16
     * tokens */
    assert_int_equal(f.protected_bytes, (SEQS + 1) * 9 * 16 * (DIM + V_DIM) * 2 * HEADS * LAYERS);
    assert_int_equal(f.host_bytes, rig_stats(&r).host_bytes);
    assert_int_equal(rig_stats(&r).protected_bytes, 0);
    tq_seq seq = rig_seq(&r);
    rig_append_random(&r, seq, 0, 20, &(struct rng){1});
    assert_int_equal(rig_stats(&r).protected_bytes, 2 * 16 * (DIM + V_DIM) * 2 * HEADS * LAYERS);
    rig_close(&r);
    c = plain_config(TQ_VARIANT_BF16, DIM, 1, 1); /* is exact without */
    c.recent_tokens = 100;
    c.max_pages = 4;
    rig_open(&plain, &c);
    OK(tq_cache_estimate(plain.ctx, &c, &f));
    assert_int_equal(f.protected_bytes, 0);
    rig_close(&plain);
}

/* Every allocation of create, append, fork and plan fails once: nothing changes or leaks. */
static void test_allocations_fail(void **state) {
    struct rig r = {0};
    tq_cache_config c = config_of(16, 600);
    struct rng rng = {3};
    (void)state;
    rig_open(&r, &c);
    for (uint64_t fail = 1;; fail++) {
        tq_cache *cache;
        test_heap_fail(&r.heap, fail);
        tq_status status = tq_cache_create(r.ctx, &c, &cache);
        test_heap_fail(&r.heap, 0);
        if (status == TQ_OK) {
            tq_cache_destroy(cache);
            break;
        }
        assert_int_equal(status, TQ_ERR_OUT_OF_MEMORY);
    }
    tq_seq seq = rig_seq(&r), other;
    rig_append_random(&r, seq, 0, 50, &rng);
    rig_append_random(&r, seq, 1, 50, &rng);
    struct snapshot before = snapshot_take(&r, seq);
    float *k = random_rows(&rng, 500 * HEADS * DIM, 1);
    tq_rows_in rows = rows_in(k);
    for (uint64_t fail = 1;; fail++) {
        test_heap_fail(&r.heap, fail);
        tq_status status = tq_append(r.cache, seq, 0, 500, &rows, &rows, NULL);
        test_heap_fail(&r.heap, 0);
        if (status == TQ_OK)
            break;
        assert_int_equal(status, TQ_ERR_OUT_OF_MEMORY);
        snapshot_check_content(&r, &before, "append");
    }
    for (uint64_t fail = 1;; fail++) {
        test_heap_fail(&r.heap, fail);
        tq_status status = tq_seq_fork(r.cache, seq, 40, &other);
        test_heap_fail(&r.heap, 0);
        if (status == TQ_OK)
            break;
        assert_int_equal(status, TQ_ERR_OUT_OF_MEMORY);
    }
    snapshot_free(&r, &before);
    free(k);
    rig_close(&r);
}

/* Every allocation of a read fails once: no row of the outputs is written, whatever the tokens
 * are kept as. */
static void test_failed_reads(void **state) {
    enum { N = 70, K = N * HEADS * DIM, V = N * HEADS * V_DIM };
    struct rig r = {0};
    struct rng rng = {61};
    tq_cache_config c = config_of(16, 20);
    static float want_k[K], want_v[V], k[K], v[V], untouched[K];
    tq_rows_out k_rows = {.data = k, .dtype = TQ_F32}, v_rows = {.data = v, .dtype = TQ_F32};
    (void)state;
    rig_open(&r, &c);
    tq_seq seq = rig_seq(&r);
    rig_append_random(&r, seq, 0, N, &rng);
    rig_read(&r, seq, 0, 0, N, want_k, want_v);
    memset(untouched, 0xa5, sizeof untouched);
    uint64_t fail = 1;
    for (;; fail++) {
        memcpy(k, untouched, sizeof k);
        memcpy(v, untouched, sizeof v);
        test_heap_fail(&r.heap, fail);
        tq_status status = tq_read_rows(r.cache, seq, 0, 0, N, &k_rows, &v_rows);
        test_heap_fail(&r.heap, 0);
        if (status == TQ_OK)
            break;
        assert_int_equal(status, TQ_ERR_OUT_OF_MEMORY);
        assert_memory_equal(k, untouched, sizeof k);
        assert_memory_equal(v, untouched, sizeof v);
    }
    assert_true(fail > 1);
    assert_memory_equal(k, want_k, sizeof k);
    assert_memory_equal(v, want_v, sizeof v);
    rig_close(&r);
}

/* Shared pages of codes can't be copied: the rows in 16 bits stay too. */
static void test_failed_remove(void **state) {
    struct rig r = {0};
    struct rng rng = {59};
    enum { N = 60 };
    float before[2][N * HEADS * DIM], after[N * HEADS * DIM];
    tq_cache_config c = config_of(16, 8);
    (void)state;
    c.max_pages = 2;
    rig_open(&r, &c);
    tq_seq seq = rig_seq(&r);
    for (uint32_t l = 0; l < LAYERS; l++) {
        rig_append_random(&r, seq, l, N, &rng);
        rig_read(&r, seq, l, 0, N, before[l], NULL);
    }
    tq_seq fork = rig_fork(&r, seq, UINT64_MAX);
    FAILS(tq_seq_remove(r.cache, seq, 5, 3), TQ_ERR_OUT_OF_PAGES, "out of pages");
    for (uint32_t l = 0; l < LAYERS; l++) {
        assert_int_equal(rig_length(&r, seq, l), N);
        rig_read(&r, seq, l, 0, N, after, NULL);
        assert_memory_equal(after, before[l], sizeof after);
    }
    OK(tq_seq_destroy(r.cache, fork));
    OK(tq_seq_remove(r.cache, seq, 5, 3));
    rig_close(&r);
}

/* The type in 16 bits is that of the sequence that was saved. */
static void test_type_after_load(void **state) {
    static const tq_dtype types[] = {TQ_F16, TQ_BF16, TQ_F32};
    enum { N = 40, MORE = 50 };
    (void)state;
    for (size_t i = 0; i < COUNT(types); i++) {
        struct rig a = {0}, b = {0};
        struct rng rng = {60};
        tq_cache_config c = config_of(0, 16);
        rig_open(&a, &c);
        rig_open(&b, &c);
        tq_seq saved = rig_seq(&a);
        size_t n = (N + MORE) * HEADS * DIM;
        float *rows = random_rows(&rng, n, 1);
        unsigned char *data = types[i] == TQ_F32 ? NULL : convert_rows(rows, n, types[i]);
        size_t skip = (size_t)N * HEADS * DIM * 2;
        tq_rows_in first = {data, HEADS * DIM, DIM, types[i], 0}, more = first;
        first.data = data ? (void *)data : (void *)rows;
        more.data = data ? (void *)(data + skip) : (void *)(rows + skip / 2);
        for (uint32_t l = 0; l < LAYERS; l++)
            OK(tq_append(a.cache, saved, l, N, &first, &first, NULL));
        struct blob blob = blob_save(&a, saved);
        tq_seq loaded = blob_load(&b, &blob);
        for (uint32_t l = 0; l < LAYERS; l++) {
            float left[16 * HEADS * DIM], right[16 * HEADS * DIM];
            OK(tq_append(a.cache, saved, l, MORE, &more, &more, NULL));
            OK(tq_append(b.cache, loaded, l, MORE, &more, &more, NULL));
            check_same_pages(&a, saved, &b, loaded, l, N + MORE, "after load");
            rig_read(&a, saved, l, N + MORE - 16, 16, left, NULL);
            rig_read(&b, loaded, l, N + MORE - 16, 16, right, NULL);
            assert_memory_equal(left, right, sizeof left);
        }
        blob_free(&blob);
        free(data);
        free(rows);
        rig_close(&a);
        rig_close(&b);
    }
}

static void test_refused(void **state) {
    struct rig r = {0};
    tq_cache_config c = config_of((1 << 20) + 1, 0), mla = plain_config(TQ_VARIANT_BF16, 576, 1, 1);
    tq_cache *cache;
    (void)state;
    tq_cache_config plain = config_of(0, 0);
    rig_open(&r, &plain);
    FAILS(tq_cache_create(r.ctx, &c, &cache), TQ_ERR_INVALID_ARGUMENT, "sink_tokens");
    c = config_of(0, (1 << 20) + 1);
    FAILS(tq_cache_create(r.ctx, &c, &cache), TQ_ERR_INVALID_ARGUMENT, "recent_tokens");
    mla.v_head_dim = 512;
    mla.flags = TQ_CACHE_MLA;
    FAILS(tq_cache_create(r.ctx, &mla, &cache), TQ_ERR_UNSUPPORTED, "MLA");
    mla.flags = 0; /* as the message says */
    OK(tq_cache_create(r.ctx, &mla, &cache));
    tq_cache_destroy(cache);
    rig_close(&r);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_b58_cut_below_the_window),
        cmocka_unit_test(test_all_exact_equals_bf16),
        cmocka_unit_test(test_extreme_rows),
        cmocka_unit_test(test_footprint),
        cmocka_unit_test(test_allocations_fail),
        cmocka_unit_test(test_failed_reads),
        cmocka_unit_test(test_failed_remove),
        cmocka_unit_test(test_type_after_load),
        cmocka_unit_test(test_refused),
    };
    return cmocka_run_group_tests_name("protected tokens", tests, NULL, NULL);
}
