/* Behaviour cases of cutting, sharing, saving: B53 B55 B58 B60 B63, and that what is gone can't be
 * read any more. docs/TESTING.md lists the tests of all such cases. */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "common/blob.h"
#include "common/cache.h"
#include "common/seq_model.h"
#include "common/table.h"

enum { DIM = 64, LAYERS = MODEL_LAYERS, PAGE = 16, TOKENS = 128 };

static tq_cache_config config_of(tq_variant variant, uint32_t sinks, uint32_t recent) {
    tq_cache_config c = plain_config(variant, DIM, 2, 2);
    c.n_layers = LAYERS;
    c.page_tokens = PAGE;
    c.sink_tokens = sinks;
    c.recent_tokens = recent;
    return c;
}

/* A cache beside lists. */
struct twin {
    struct rig r;
    struct table table[LAYERS];
    struct model_pool pool;
    struct model_seq seqs[4];
};

static void open_twin(struct twin *t, const tq_cache_config *c) {
    memset(t, 0, sizeof *t);
    rig_open(&t->r, c);
    t->pool = (struct model_pool){.page_tokens = PAGE,
                                  .sink_tokens = t->r.c.sink_tokens,
                                  .recent_tokens = t->r.c.recent_tokens};
    for (uint32_t l = 0; l < LAYERS; l++)
        t->table[l] = table_make(c, l, TOKENS, l + 1);
}

static void close_twin(struct twin *t) {
    for (uint32_t l = 0; l < LAYERS; l++)
        table_free(&t->table[l]);
    rig_close(&t->r);
}

static void twin_append(struct twin *t, uint32_t seq, uint32_t first, uint32_t n) {
    struct model_seq *s = &t->seqs[seq];
    uint32_t list[TOKENS];
    for (uint32_t i = 0; i < n; i++)
        list[i] = (first + i) % TOKENS;
    assert_true(
        model_make_room(&t->pool, s, s->n[0] / PAGE, model_pages_for(&t->pool, s->n[0] + n)));
    for (uint32_t l = 0; l < LAYERS; l++) {
        OK(table_append(&t->table[l], t->r.cache, s->id, l, list, n));
        model_append(&t->pool, s, l, list, n);
    }
}

static void twin_check(struct twin *t, const char *what) {
    for (uint32_t i = 0; i < COUNT(t->seqs); i++)
        for (uint32_t l = 0; t->seqs[i].id && l < LAYERS; l++)
            table_check_kept(&t->table[l], &t->r, t->seqs[i].id, l, t->seqs[i].list[l],
                             t->seqs[i].exact[l], t->seqs[i].n[l], what);
    assert_int_equal(rig_stats(&t->r).pages_used, model_pages_used(&t->pool));
}

/* ---- B53 ------------------------------------------------------------------------------- */

/* Dims i and i + DIM/2 turn with the position. */
static void turn(float *row, double positions) {
    for (int i = 0; i < DIM / 2; i++) {
        double angle = positions * pow(10000, -2.0 * i / DIM), c = cos(angle), s = sin(angle);
        double x = (double)row[i], y = (double)row[i + DIM / 2];
        row[i] = (float)(x * c - y * s);
        row[i + DIM / 2] = (float)(x * s + y * c);
    }
}

static double squares(const float *a, const float *b, size_t n) {
    double sum = 0;
    for (size_t i = 0; i < n; i++)
        sum += pow((double)a[i] - (b ? (double)b[i] : 0), 2);
    return sum;
}

/* 64 tokens, 16 go, the keys of the others are decoded, turned back by 16 and coded again: what a
 * second coding adds is not more than the first one's error again, against the keys that a model
 * would have computed. tq_seq_remove() alone leaves keys where they were. */
static void test_b53_shift(void **state) {
    enum { ALL = 64, GONE = 16, LEFT = ALL - GONE, ROW = 2 * DIM };
    (void)state;
    for (uint32_t i = 0; i < tq_variant_count(); i++) {
        struct rig r = {0};
        struct rng rng = {53};
        tq_cache_config c = config_of(variant_at(i).id, 0, 0);
        float *k = random_rows(&rng, ALL * ROW, 1), *want = must_alloc(LEFT * ROW, sizeof *want);
        float *got = must_alloc(LEFT * ROW, sizeof *got),
              *old = must_alloc(LEFT * ROW, sizeof *old);
        c.n_layers = 1;
        rig_open(&r, &c);
        memcpy(want, k + GONE * ROW, LEFT * ROW * sizeof *k);
        for (int h = 0; h < ALL * 2; h++)
            turn(k + h * DIM, h / 2);
        for (int h = 0; h < LEFT * 2; h++)
            turn(want + h * DIM, h / 2);
        tq_seq seq = rig_seq(&r), shifted = rig_seq(&r);
        rig_append(&r, seq, 0, ALL, k, k);
        rig_read(&r, seq, 0, GONE, LEFT, got, NULL);
        OK(tq_seq_remove(r.cache, seq, 0, GONE));
        rig_read(&r, seq, 0, 0, LEFT, old, NULL);
        assert_memory_equal(old, got, LEFT * ROW * sizeof *got);
        for (int h = 0; h < LEFT * 2; h++)
            turn(got + h * DIM, -GONE);
        rig_append(&r, shifted, 0, LEFT, got, got);
        rig_read(&r, shifted, 0, 0, LEFT, got, NULL);
        double norm = squares(want, NULL, LEFT * ROW), mse = format_of(variant_at(i).k_format).mse;
        AT_MOST(squares(got, want, LEFT * ROW) / norm, 4.6 * mse + 1e-12, "%s", variant_at(i).name);
        CHECK(squares(old, want, LEFT * ROW) / norm > 0.1, "%s: old positions are no answer",
              variant_at(i).name);
        free(k);
        free(want);
        free(got);
        free(old);
        rig_close(&r);
    }
}

/* ---- B55, B58 -------------------------------------------------------------------------- */

/* Four sequences in turns over one pool; the middle of one goes, all go on. */
static void test_b55_interleaved(void **state) {
    static const uint32_t settings[][2] = {{0, 0}, {16, 20}};
    (void)state;
    for (size_t i = 0; i < COUNT(settings); i++) {
        struct twin t;
        tq_cache_config c = config_of(TQ_VARIANT_K3V4_NC, settings[i][0], settings[i][1]);
        open_twin(&t, &c);
        for (uint32_t s = 0; s < 4; s++)
            t.seqs[s].id = rig_seq(&t.r);
        for (uint32_t round = 0; round < 9; round++)
            for (uint32_t s = 0; s < 4; s++)
                twin_append(&t, s, round * 4 + s * 31, 1 + (round + s) % 9);
        OK(tq_seq_remove(t.r.cache, t.seqs[2].id, 7, 19));
        assert_true(model_remove(&t.pool, &t.seqs[2], 7, 19));
        twin_check(&t, "removed");
        for (uint32_t s = 0; s < 4; s++)
            twin_append(&t, s, 77, 12);
        twin_check(&t, "gone on");
        close_twin(&t);
    }
}

/* Window 8, 20 tokens, fork, [1, 0], cut to 15, to 5, 3 more: codes and rows in 16 bits move
 * together. */
static void test_b58_reorder_and_cut(void **state) {
    static const uint32_t parents[2] = {1, 0}, lengths[2] = {15, 5};
    struct twin t;
    tq_cache_config c = config_of(TQ_VARIANT_3BIT_NC, 0, 8);
    (void)state;
    open_twin(&t, &c);
    t.seqs[0].id = rig_seq(&t.r);
    twin_append(&t, 0, 0, 20);
    model_share(&t.pool, &t.seqs[0], &t.seqs[1], 20);
    t.seqs[1].id = rig_fork(&t.r, t.seqs[0].id, 20);
    twin_append(&t, 1, 60, 2); /* so that they differ */
    const tq_seq ids[2] = {t.seqs[0].id, t.seqs[1].id};
    struct model_seq *seqs[2] = {&t.seqs[0], &t.seqs[1]};
    OK(tq_seq_reorder(t.r.cache, 2, ids, parents));
    model_reorder(&t.pool, 2, seqs, parents);
    twin_check(&t, "reordered");
    for (uint32_t s = 0; s < 2; s++)
        for (uint32_t i = 0; i < COUNT(lengths); i++) {
            uint32_t n = lengths[i];
            OK(tq_seq_truncate(t.r.cache, ids[s], n));
            model_truncate(&t.pool, seqs[s], n);
            FAILS(tq_seq_truncate(t.r.cache, ids[s], n + 4), TQ_ERR_INVALID_ARGUMENT, "n_tokens");
            twin_check(&t, "cut");
        }
    twin_append(&t, 0, 90, 3);
    twin_check(&t, "gone on");
    close_twin(&t);
}

/* ---- B60, B63 -------------------------------------------------------------------------- */

/* Rows in 16 bits of a shared prefix are counted once too: eight forks add a tail each. */
static void test_b60_rows_counted_once(void **state) {
    struct rig r = {0};
    struct rng rng = {60};
    tq_cache_config c = config_of(TQ_VARIANT_4BIT_NC, 32, 128);
    (void)state;
    c.n_layers = 1;
    rig_open(&r, &c);
    tq_seq prompt = rig_seq(&r);
    rig_append_random(&r, prompt, 0, 1000, &rng);
    uint64_t page = 16 * 2 * DIM * 2 * 2, alone = rig_stats(&r).protected_bytes;
    assert_int_equal(alone, (2 + 9) * page); /* the window begins inside a page */
    for (int i = 0; i < 8; i++) {
        tq_seq fork = rig_fork(&r, prompt, UINT64_MAX);
        assert_int_equal(rig_stats(&r).protected_bytes, alone + (uint64_t)i * 2 * page);
        rig_append_random(&r, fork, 0, 20, &rng); /* to a copy of the last page, and a new one */
    }
    rig_close(&r);
}

/* A sliding window of attention that has passed most tokens, saved and loaded: as the sequence that
 * stayed. */
static void test_b63_sliding_window(void **state) {
    static const uint32_t settings[][2] = {{0, 0}, {16, 8}};
    (void)state;
    for (size_t i = 0; i < COUNT(settings); i++) {
        struct rig a = {0}, b = {0};
        struct rng rng = {63}, same = {64}, again = {64};
        tq_cache_config c = config_of(TQ_VARIANT_4BIT_NC, settings[i][0], settings[i][1]);
        c.n_layers = 1;
        rig_open(&a, &c);
        rig_open(&b, &c);
        tq_seq seq = rig_seq(&a);
        rig_append_random(&a, seq, 0, 40, &rng);
        struct blob blob = blob_save(&a, seq);
        tq_seq loaded = blob_load(&b, &blob);
        for (int n = 0; n < 20; n++) {
            rig_append_random(&a, seq, 0, 1, &same);
            rig_append_random(&b, loaded, 0, 1, &again);
            struct asked here = ask_make(&a, 1, TQ_ATTEND_CAUSAL, &rng), there = here;
            here.window = 16;
            ask(&a, seq, 0, &here);
            there = ask_make(&b, 1, TQ_ATTEND_CAUSAL, &rng);
            there.window = 16;
            memcpy(there.q, here.q, rig_q_row(&a) * sizeof *here.q);
            ask(&b, loaded, 0, &there);
            assert_true(same_answer(&a, &here, &there));
            ask_free(&here);
            ask_free(&there);
        }
        blob_free(&blob);
        rig_close(&a);
        rig_close(&b);
    }
}

/* ---- what is gone ---------------------------------------------------------------------- */

/* 16-bit numbers of a value that marks rows; none may turn up. */
static void check_no_mark(const void *bytes, size_t size, const char *what) {
    const unsigned char *at = bytes;
    for (size_t i = 0; i + 1 < size; i += 2)
        CHECK(at[i] != 0x97 || at[i + 1] != 0x42, "%s: a token that is gone, at byte %zu", what, i);
}

static void check_nothing_left(struct rig *r, tq_seq seq, const char *what) {
    struct blob b = blob_save(r, seq);
    check_no_mark(b.bytes + 256, b.size - 256, what);
    for (uint64_t page = 0; page * PAGE < rig_length(r, seq, 0); page++) {
        size_t size;
        void *bytes = page_bytes(r, seq, 0, page, 0, &size);
        check_no_mark(bytes, size, what);
        free(bytes);
    }
    blob_free(&b);
}

/* Pages whose tokens were freed, cut off or taken out are used again, partly filled: bytes that
 * leave the library hold none of what was there, in codes that are bf16 rows and in rows beside
 * codes. */
static void test_freed_tokens_are_gone(void **state) {
    static const tq_layer_formats pair = {TQ_FORMAT_BF16, TQ_FORMAT_LM4};
    enum { N = 40, ROW = 2 * DIM };
    (void)state;
    for (uint32_t way = 0; way < 5; way++) {
        struct rig r = {0};
        tq_cache_config c = pair_config(&pair, DIM, 2, 2);
        float marked[N * ROW], plain[N * ROW];
        c.page_tokens = PAGE;
        c.max_pages = 4;
        c.sink_tokens = 16;
        c.recent_tokens = 24;
        rig_open(&r, &c);
        for (int i = 0; i < N * ROW; i++) {
            marked[i] = 75.5f; /* 0x4297 in bf16 */
            plain[i] = (float)(i % 5) - 2;
        }
        tq_seq seq = rig_seq(&r);
        rig_append(&r, seq, 0, N, marked, marked);
        struct blob before = blob_save(&r, seq);
        size_t marks = 0;
        for (size_t i = 256; i + 1 < before.size; i += 2)
            marks += before.bytes[i] == 0x97 && before.bytes[i + 1] == 0x42;
        assert_true(marks >= 2 * N * ROW); /* the search does find them */
        blob_free(&before);
        if (way == 0) {
            OK(tq_seq_destroy(r.cache, seq));
            seq = rig_seq(&r);
        } else if (way == 1) {
            OK(tq_seq_truncate(r.cache, seq, 0));
        } else if (way == 4) { /* in the middle of pages that stay */
            OK(tq_seq_truncate(r.cache, seq, 0));
            rig_append(&r, seq, 0, 3, plain, plain);
            rig_append(&r, seq, 0, N - 3, marked, marked);
            OK(tq_seq_truncate(r.cache, seq, 3));
            check_nothing_left(&r, seq, "cut off");
        } else if (way == 2) {
            OK(tq_cache_reset(r.cache));
            seq = rig_seq(&r);
        }
        rig_append(&r, seq, 0, 21, plain, plain);
        if (way == 3)
            OK(tq_seq_remove(r.cache, seq, 0, N));
        check_nothing_left(&r, seq, "used again");
        tq_seq fork = rig_fork(&r, seq, 5);
        check_nothing_left(&r, fork, "forked");
        rig_append(&r, fork, 0, 1, plain, plain);
        check_nothing_left(&r, fork, "a copied page");
        rig_close(&r);
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_b53_shift),           cmocka_unit_test(test_b55_interleaved),
        cmocka_unit_test(test_b58_reorder_and_cut), cmocka_unit_test(test_b60_rows_counted_once),
        cmocka_unit_test(test_b63_sliding_window),  cmocka_unit_test(test_freed_tokens_are_gone),
    };
    return cmocka_run_group_tests_name("cases of surgery", tests, NULL, NULL);
}
