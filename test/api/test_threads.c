/* Threads: const calls at the same time, contexts that know nothing of each other, messages
 * per thread. B51. A failed check must not leave its thread, so threads
 * hand back what they found and the test checks it. */
#include <pthread.h>
#include <stdlib.h>
#include <string.h>

#include "common/cache.h"

enum { THREADS = 4, ROUNDS = 24 / FEWER };

static void run_threads(size_t n, void *(*work)(void *arg), void *args, size_t size) {
    pthread_t threads[THREADS];
    assert_true(n <= THREADS);
    for (size_t i = 0; i < n; i++)
        assert_int_equal(pthread_create(&threads[i], NULL, work, (char *)args + i * size), 0);
    for (size_t i = 0; i < n; i++)
        assert_int_equal(pthread_join(threads[i], NULL), 0);
}

/* ---- one cache, many readers ----------------------------------------------------------- */

enum { SEQS = 3, LAYERS = 2, TOKENS = 150, QUERIES = 3 };

struct reader {
    const struct rig *rig;
    const tq_seq *seqs;
    const struct asked *want; /* [sequence][layer] */
    const float *keys;        /* of the first sequence and layer */
    uint32_t number;
    int failed; /* calls */
    int wrong;  /* answers */
};

/* Attends like ask(), into memory of the thread. */
static void read_once(struct reader *r, uint32_t which, float *out, float *lse) {
    const struct asked *want = &r->want[which];
    size_t n = want->n_queries * rig_out_row(r->rig);
    size_t n_lse = (size_t)want->n_queries * r->rig->c.n_q_heads;
    tq_attend_params params = {.struct_size = sizeof params, .flags = want->flags};
    tq_rows_in q = rows_in(want->q);
    tq_rows_out to = rows_out(out);
    r->failed += tq_attend(r->rig->cache, r->seqs[which / LAYERS], which % LAYERS, want->n_queries,
                           &params, &q, &to, lse, NULL) != TQ_OK;
    r->wrong += memcmp(out, want->out, n * sizeof *out) != 0;
    r->wrong += memcmp(lse, want->lse, n_lse * sizeof *lse) != 0;
}

/* The other const calls. */
static void look_around(struct reader *r, float *rows) {
    tq_rows_out keys = rows_out(rows);
    tq_cache_stats stats = {.struct_size = sizeof stats};
    size_t size = 0, bytes = TOKENS * rig_k_row(r->rig) * sizeof *rows;
    uint64_t length = 0;
    r->failed += tq_read_rows(r->rig->cache, r->seqs[0], 0, 0, TOKENS, &keys, NULL) != TQ_OK;
    r->wrong += memcmp(rows, r->keys, bytes) != 0;
    r->failed += tq_cache_get_stats(r->rig->cache, &stats) != TQ_OK;
    r->wrong += stats.tokens != SEQS * TOKENS;
    r->failed += tq_read_page(r->rig->cache, r->seqs[1], 1, 0, 0, NULL, 0, &size) != TQ_OK;
    r->failed += tq_seq_length(r->rig->cache, r->seqs[2], 1, &length) != TQ_OK;
    r->wrong += length != TOKENS || size == 0;
}

static void *read_all(void *arg) {
    struct reader *r = arg;
    float *out = must_alloc(QUERIES * rig_out_row(r->rig), sizeof *out);
    float *lse = must_alloc((size_t)QUERIES * r->rig->c.n_q_heads, sizeof *lse);
    float *rows = must_alloc(TOKENS * rig_k_row(r->rig), sizeof *rows);
    for (uint32_t round = 0; round < ROUNDS; round++) {
        for (uint32_t i = 0; i < SEQS * LAYERS; i++)
            read_once(r, (i + r->number) % (SEQS * LAYERS), out, lse);
        look_around(r, rows);
    }
    free(out);
    free(lse);
    free(rows);
    return NULL;
}

static void read_together(tq_variant variant, const tq_executor *executor) {
    struct rig r = {0};
    struct rng rng = {1};
    struct asked want[SEQS * LAYERS];
    struct reader readers[THREADS];
    tq_seq seqs[SEQS];
    tq_cache_config c = plain_config(variant, 64, 2, 3);
    c.n_layers = LAYERS;
    c.page_tokens = 32;
    rig_open_with(&r, &c, executor);
    for (uint32_t i = 0; i < SEQS * LAYERS; i++) {
        if (i % LAYERS == 0)
            seqs[i / LAYERS] = rig_seq(&r);
        rig_append_random(&r, seqs[i / LAYERS], i % LAYERS, TOKENS, &rng);
        want[i] = ask_make(&r, QUERIES, i % 3 ? TQ_ATTEND_CAUSAL : 0, &rng);
        ask(&r, seqs[i / LAYERS], i % LAYERS, &want[i]);
    }
    float *keys = must_alloc(TOKENS * rig_k_row(&r), sizeof *keys);
    rig_read(&r, seqs[0], 0, 0, TOKENS, keys, NULL);
    for (uint32_t i = 0; i < THREADS; i++)
        readers[i] = (struct reader){&r, seqs, want, keys, i, 0, 0};
    run_threads(THREADS, read_all, readers, sizeof *readers);
    for (uint32_t i = 0; i < THREADS; i++)
        CHECK(readers[i].failed == 0 && readers[i].wrong == 0, "thread %u: %d failed, %d wrong", i,
              readers[i].failed, readers[i].wrong);
    for (uint32_t i = 0; i < SEQS * LAYERS; i++)
        ask_free(&want[i]);
    free(keys);
    rig_close(&r);
}

static void test_readers_of_one_cache(void **state) {
    (void)state;
    read_together(TQ_VARIANT_BF16, NULL);
    read_together(TQ_VARIANT_4BIT_NC, NULL);
    read_together(TQ_VARIANT_POLAR_QJL, NULL);
}

/* Calls at the same time through one executor: workers of one call are not those of another. */
static void test_readers_with_an_executor(void **state) {
    (void)state;
    struct test_threads threads = {.n_workers = 2};
    tq_executor executor = test_executor(&threads);
    read_together(TQ_VARIANT_K8V4, &executor);
    assert_true(threads.tasks > 0);
}

/* ---- two caches ------------------------------------------------------------------------ */

enum { STEPS = 30 };

/* A cache that lives by itself; steps of several may be mixed in any way. */
struct life {
    struct rig r;
    struct rng rng;
    tq_seq seq;
    struct asked answers[STEPS];
};

static void life_open(struct life *l, tq_variant variant, uint32_t dim, uint32_t heads) {
    tq_cache_config c = plain_config(variant, dim, heads, 2);
    memset(l, 0, sizeof *l);
    c.page_tokens = 16;
    c.seed = dim;
    l->rng.state = dim;
    rig_open(&l->r, &c);
    l->seq = rig_seq(&l->r);
}

static void life_step(struct life *l, uint32_t step) {
    rig_append_random(&l->r, l->seq, 0, 1 + step % 5, &l->rng);
    l->answers[step] = ask_make(&l->r, 1 + step % 2, 0, &l->rng);
    ask(&l->r, l->seq, 0, &l->answers[step]);
}

static void life_compare(struct life *a, struct life *b) {
    for (uint32_t step = 0; step < STEPS; step++) {
        CHECK(same_answer(&a->r, &a->answers[step], &b->answers[step]), "step %u", step);
        ask_free(&a->answers[step]);
        ask_free(&b->answers[step]);
    }
    rig_close(&a->r);
    rig_close(&b->r);
}

static const struct {
    tq_variant variant;
    uint32_t dim, heads;
} pairs[][2] = {
    {{TQ_VARIANT_4BIT_NC, 128, 2}, {TQ_VARIANT_3BIT_NC, 64, 3}},
    {{TQ_VARIANT_FP8, 80, 1}, {TQ_VARIANT_INT8, 80, 1}},
    {{TQ_VARIANT_PROD3, 96, 1}, {TQ_VARIANT_POLAR_QJL, 192, 2}},
    {{TQ_VARIANT_2BIT_NC, 64, 2}, {TQ_VARIANT_2BIT_NC, 256, 1}},
};

/* B51: calls that alternate between caches of other variants and dims, each over a context
 * and an allocator of its own. */
static void test_b51_caches_in_turns(void **state) {
    (void)state;
    for (size_t i = 0; i < COUNT(pairs); i++) {
        static struct life alone[2], mixed[2];
        for (int j = 0; j < 2; j++) {
            life_open(&alone[j], pairs[i][j].variant, pairs[i][j].dim, pairs[i][j].heads);
            life_open(&mixed[j], pairs[i][j].variant, pairs[i][j].dim, pairs[i][j].heads);
            for (uint32_t step = 0; step < STEPS; step++)
                life_step(&alone[j], step);
        }
        for (uint32_t step = 0; step < STEPS; step++)
            for (int j = 0; j < 2; j++)
                life_step(&mixed[j], step);
        for (int j = 0; j < 2; j++)
            life_compare(&alone[j], &mixed[j]);
    }
}

/* ---- contexts in threads of their own -------------------------------------------------- */

/* A life in a thread: rows are made beforehand, calls only counted. */
struct worker {
    struct rig *r;
    tq_seq seq;
    const float *k, *v;
    struct asked *answer;
    int failed;
};

static void *append_and_attend(void *arg) {
    struct worker *w = arg;
    for (uint32_t t = 0; t < TOKENS; t++) {
        tq_rows_in k = rows_in(w->k + t * rig_k_row(w->r)), q = rows_in(w->answer->q);
        tq_rows_in v = rows_in(w->v + t * rig_v_row(w->r));
        tq_rows_out out = rows_out(w->answer->out);
        w->failed += tq_append(w->r->cache, w->seq, 0, 1, &k, &v, NULL) != TQ_OK;
        w->failed += tq_attend(w->r->cache, w->seq, 0, w->answer->n_queries, NULL, &q, &out,
                               w->answer->lse, NULL) != TQ_OK;
    }
    return NULL;
}

static void test_contexts_in_threads(void **state) {
    (void)state;
    static const tq_variant variants[THREADS] = {TQ_VARIANT_K3V4_NC, TQ_VARIANT_K8V4,
                                                 TQ_VARIANT_PROD4, TQ_VARIANT_K3V4_NC};
    static struct rig rigs[THREADS];
    struct worker workers[THREADS];
    struct rng rng = {9};
    for (uint32_t i = 0; i < THREADS; i++) {
        tq_cache_config c = plain_config(variants[i], 64, 2, 2);
        struct worker *w = &workers[i];
        memset(&rigs[i], 0, sizeof rigs[i]);
        rig_open(&rigs[i], &c);
        *w = (struct worker){.r = &rigs[i], .seq = rig_seq(&rigs[i])};
        w->k = random_rows(&rng, TOKENS * rig_k_row(w->r), 1);
        w->v = random_rows(&rng, TOKENS * rig_v_row(w->r), 1);
        w->answer = must_alloc(1, sizeof *w->answer);
        *w->answer = ask_make(w->r, QUERIES, 0, &rng);
    }
    run_threads(THREADS, append_and_attend, workers, sizeof *workers);
    for (uint32_t i = 0; i < THREADS; i++) {
        struct worker *w = &workers[i];
        assert_int_equal(w->failed, 0);
        tq_seq fresh = rig_seq(w->r); /* the same at once, in this thread */
        rig_append(w->r, fresh, 0, TOKENS, w->k, w->v);
        struct asked a = ask_with(w->r, fresh, 0, QUERIES, 0, w->answer->q);
        CHECK(same_answer(w->r, &a, w->answer), "thread %u", i);
        ask_free(&a);
        ask_free(w->answer);
        free(w->answer);
        free((void *)(uintptr_t)w->k);
        free((void *)(uintptr_t)w->v);
        rig_close(w->r);
    }
}

/* ---- one codec, many users ------------------------------------------------------------- */

struct coder {
    const tq_codec *codec;
    const float *rows;
    const unsigned char *want;
    size_t bytes;
    uint32_t dim;
    int failed, wrong;
};

static void *code_all(void *arg) {
    struct coder *c = arg;
    unsigned char *codes = must_alloc(ROUNDS, c->bytes);
    float *row = must_alloc(c->dim, sizeof *row);
    tq_rows_in in = rows_in(c->rows);
    tq_rows_out out = rows_out(row);
    for (int i = 0; i < 20; i++) {
        c->failed += tq_codec_encode(c->codec, ROUNDS, &in, codes) != TQ_OK;
        c->wrong += memcmp(codes, c->want, ROUNDS * c->bytes) != 0;
        c->failed += tq_codec_decode(c->codec, 1, codes, &out) != TQ_OK;
    }
    free(codes);
    free(row);
    return NULL;
}

static void test_users_of_one_codec(void **state) {
    (void)state;
    struct rng rng = {11};
    tq_context *ctx = NULL;
    tq_codec *codec = NULL;
    tq_codec_config config = {
        .struct_size = sizeof config, .format = TQ_FORMAT_LM3_QJL, .dim = 128, .seed = 5};
    struct coder coders[THREADS];
    OK(tq_context_create(NULL, &ctx));
    OK(tq_codec_create(ctx, &config, &codec));
    float *rows = random_rows(&rng, ROUNDS * 128, 1);
    tq_rows_in in = rows_in(rows);
    size_t bytes = tq_codec_row_bytes(codec);
    unsigned char *want = must_alloc(ROUNDS, bytes);
    OK(tq_codec_encode(codec, ROUNDS, &in, want));
    for (uint32_t i = 0; i < THREADS; i++)
        coders[i] = (struct coder){codec, rows, want, bytes, 128, 0, 0};
    run_threads(THREADS, code_all, coders, sizeof *coders);
    for (uint32_t i = 0; i < THREADS; i++)
        assert_int_equal(coders[i].failed + coders[i].wrong, 0);
    free(rows);
    free(want);
    tq_codec_destroy(codec);
    tq_context_destroy(ctx);
}

/* ---- messages -------------------------------------------------------------------------- */

static void *fail_here(void *arg) {
    char *found = arg;
    tq_variant id;
    found[0] = tq_last_error()[0] == '\0'; /* nothing has failed in this thread */
    found[1] = tq_variant_find("message of a thread", &id) == TQ_ERR_NOT_FOUND;
    found[2] = strstr(tq_last_error(), "message of a thread") != NULL;
    return NULL;
}

static void test_messages_per_thread(void **state) {
    (void)state;
    char found[THREADS][3] = {{0}};
    check_spoil_message();
    run_threads(THREADS, fail_here, found, sizeof *found);
    assert_non_null(strstr(tq_last_error(), "stale message"));
    for (uint32_t i = 0; i < THREADS; i++)
        assert_true(found[i][0] && found[i][1] && found[i][2]);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_readers_of_one_cache),
        cmocka_unit_test(test_readers_with_an_executor),
        cmocka_unit_test(test_b51_caches_in_turns),
        cmocka_unit_test(test_contexts_in_threads),
        cmocka_unit_test(test_users_of_one_codec),
        cmocka_unit_test(test_messages_per_thread),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
