/* How an append is cut into tasks: every token of every sequence and head once, in its slot of
 * its page, whatever the numbers of sequences, heads and workers. */
#include "unit/unit.h"

#include "encode/encode.h"

/* ---- tasks that note what they are asked to code ----------------------------------------- */

enum { PAGE = 16, MOST_PAGES = 40, MOST_HEADS = 9, MOST_ROWS = 300 };

static uint8_t blobs[MOST_PAGES * MOST_HEADS];              /* one byte stands for a blob */
static uint32_t coded[MOST_PAGES * MOST_HEADS][PAGE];       /* row + 1, by blob and slot */
static uint32_t heads_coded[MOST_PAGES * MOST_HEADS][PAGE]; /* head + 1 */
static float numbers[MOST_ROWS * MOST_HEADS]; /* row * heads + head, in a row of one element */

static void note_load(const void *row, tq_dtype dtype, uint32_t dim, const float *mean, float *out,
                      struct tqi_nonfinite *count) {
    (void)mean;
    assert_int_equal(dtype, TQ_F32);
    assert_int_equal(dim, 1);
    count->nan++;
    out[0] = *(const float *)row;
}

static uint32_t n_heads;

static void note_encode(const struct tqi_rows *rows, float inv_scale, float *x, uint8_t *blob,
                        uint32_t token) {
    size_t index = (size_t)(blob - blobs);
    (void)inv_scale;
    assert_true(index < sizeof blobs && token < PAGE);
    if (rows->layout.side != TQI_SIDE_K)
        return;
    assert_int_equal(coded[index][token], 0); /* once */
    coded[index][token] = (uint32_t)x[0] / n_heads + 1;
    heads_coded[index][token] = (uint32_t)x[0] % n_heads + 1;
}

static const struct tqi_level noting = {.load = note_load, .encode[1] = {note_encode, "noting"}};
static const struct tqi_format format = {.id = 1};

static void run_backwards(void *user, uint32_t n_tasks, tqi_task_fn *task, void *arg) {
    *(uint32_t *)user += n_tasks;
    for (uint32_t i = n_tasks; i-- > 0;)
        task(arg, i, i % 2);
}

/* Codes the tokens of sequences; returns the number of tasks. */
static uint32_t run(struct tqi_encode_seq *seqs, uint32_t n_seqs, uint32_t workers) {
    static uint8_t *const chunk = blobs;
    static const float ones[MOST_HEADS] = {1, 1, 1, 1, 1, 1, 1, 1, 1};
    uint32_t tasks = 0;
    float scratch[8] = {0};
    struct tqi_nonfinite counts[8] = {{0, 0}};
    struct tqi_executor executor = {
        .n_workers = workers, .user = &tasks, .parallel_for = run_backwards};
    struct tqi_layer layer = {.n_kv_heads = n_heads,
                              .k = {.format = &format, .layout = {.dim = 1, .side = TQI_SIDE_K}},
                              .v = {.format = &format, .layout = {.dim = 1, .side = TQI_SIDE_V}},
                              .k_inv_scale = ones,
                              .v_inv_scale = ones,
                              .encode_k = &noting,
                              .encode_v = &noting};
    struct tqi_encode_job job = {.layer = &layer,
                                 .view = {.chunks = &chunk,
                                          .chunk_pages = MOST_PAGES,
                                          .layer_bytes = n_heads,
                                          .blob_bytes = 1,
                                          .page_tokens = PAGE},
                                 .k = {numbers, n_heads, 1, TQ_F32, 0},
                                 .v = {numbers, n_heads, 1, TQ_F32, 0},
                                 .seqs = seqs,
                                 .n_seqs = n_seqs,
                                 .n_items = tqi_encode_number(seqs, n_seqs, PAGE),
                                 .executor = &executor,
                                 .scratch = scratch,
                                 .scratch_floats = 1,
                                 .counts = counts};
    memset(coded, 0, sizeof coded);
    for (uint32_t i = 0; i < MOST_ROWS * n_heads; i++)
        numbers[i] = (float)i;
    tqi_encode(&job);
    return tasks;
}

/* ---- every token once -------------------------------------------------------------------- */

static const struct {
    uint64_t length;
    uint32_t n_tokens;
} lists[][5] = {
    {{0, 1}},
    {{0, 16}, {16, 16}, {15, 2}},
    {{3, 0}, {31, 1}, {0, 0}, {17, 50}, {5, 0}},
    {{0, 0}, {0, 0}},
    {{0, 100}, {0, 1}, {64, 64}, {1, 15}, {16, 1}},
};

static void check_list(size_t list, uint32_t workers) {
    uint32_t pages[MOST_PAGES], n_seqs = COUNT(lists[list]), row = 0, page = 0, total = 0;
    struct tqi_encode_seq seqs[COUNT(lists[list])];
    for (uint32_t i = 0; i < MOST_PAGES; i++)
        pages[i] = MOST_PAGES - 1 - i;
    for (uint32_t i = 0; i < n_seqs; i++) {
        struct tqi_encode_seq s = {.pages = pages + page,
                                   .length = lists[list][i].length,
                                   .n_tokens = lists[list][i].n_tokens,
                                   .first_row = row};
        seqs[i] = s;
        row += s.n_tokens;
        page += (uint32_t)(s.length + s.n_tokens + PAGE - 1) / PAGE;
        assert_true(page <= MOST_PAGES && row <= MOST_ROWS);
    }
    uint32_t tasks = run(seqs, n_seqs, workers);
    for (uint32_t i = 0; i < n_seqs; i++)
        for (uint64_t t = seqs[i].length; t < seqs[i].length + seqs[i].n_tokens; t++)
            for (uint32_t h = 0; h < n_heads; h++) {
                size_t index = (size_t)seqs[i].pages[t / PAGE] * n_heads + h;
                assert_int_equal(coded[index][t % PAGE],
                                 seqs[i].first_row + (t - seqs[i].length) + 1);
                assert_int_equal(heads_coded[index][t % PAGE], h + 1);
            }
    for (size_t i = 0; i < COUNT(coded); i++)
        for (uint32_t t = 0; t < PAGE; t++)
            total += coded[i][t] != 0;
    assert_int_equal(total, row * n_heads); /* and nothing else */
    /* A single task is not given to the executor. */
    assert_true(row == 0 || workers == 1 || tasks >= 4 * workers || tasks >= n_heads || !tasks);
}

static void test_every_token_once(void **state) {
    (void)state;
    for (n_heads = 1; n_heads <= MOST_HEADS; n_heads++)
        for (size_t list = 0; list < COUNT(lists); list++)
            for (uint32_t workers = 1; workers <= 8; workers++)
                check_list(list, workers);
}

/* ---- numbers that do not fit ------------------------------------------------------------- */

static void count_tasks(void *user, uint32_t n_tasks, tqi_task_fn *task, void *arg) {
    (void)task;
    (void)arg;
    *(uint64_t *)user += n_tasks;
}

/* Pages times heads would be more tasks than an executor can count; nothing is coded here. */
static void test_huge(void **state) {
    (void)state;
    static const uint32_t heads[] = {1, 3, 17, 64, 1000, 65536};
    static const uint32_t page_tokens[] = {16, 64, 256};
    for (size_t h = 0; h < COUNT(heads); h++)
        for (size_t p = 0; p < COUNT(page_tokens); p++) {
            uint64_t length = UINT64_C(1) << 40 | 5, tokens = page_tokens[p], tasks = 0;
            uint64_t pages = (length + UINT32_MAX + tokens - 1) / tokens - length / tokens;
            struct tqi_executor executor = {
                .n_workers = 2, .user = &tasks, .parallel_for = count_tasks};
            struct tqi_layer layer = {.n_kv_heads = heads[h]};
            struct tqi_encode_seq seq = {.length = length, .n_tokens = UINT32_MAX};
            struct tqi_encode_job job = {.layer = &layer,
                                         .view = {.page_tokens = page_tokens[p]},
                                         .seqs = &seq,
                                         .n_seqs = 1,
                                         .n_items = tqi_encode_number(&seq, 1, page_tokens[p]),
                                         .executor = &executor};
            tqi_encode(&job);
            assert_int_equal(tasks, pages);
        }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_every_token_once),
        cmocka_unit_test(test_huge),
    };
    return cmocka_run_group_tests_name("encode tasks", tests, NULL, NULL);
}
