/* The scheduler of bench/replay: its books, whatever the load. */
#include "unit/unit.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "../../bench/replay/replay.h"

/* ---- an engine that keeps its own books ------------------------------------------------------ */

enum { REQUESTS = 300 };

struct books {
    const struct limits *limits;
    const struct request *requests;
    uint64_t stored[REQUESTS], answered[REQUESTS];
    uint32_t wrong, too_much;
};

static double run_step(void *arg, const struct step *step) {
    struct books *b = arg;
    uint64_t pages = 0, tokens = 0;
    for (uint32_t i = 0; i < step->n; i++) {
        const struct item *item = &step->items[i];
        const struct request *r = &b->requests[item->request];
        b->wrong += item->before != b->stored[item->request] || item->append == 0;
        b->wrong += item->answers !=
                    (item->before + item->append == r->prompt + b->answered[item->request]);
        b->stored[item->request] += item->append;
        b->answered[item->request] += item->answers;
        tokens += item->append;
    }
    for (uint32_t i = 0; i < REQUESTS; i++)
        pages += pages_for(b->limits, b->stored[i]);
    b->too_much += pages > b->limits->pages || tokens > b->limits->step_tokens;
    return 0.001 + 1e-6 * (double)tokens;
}

static void forget(void *arg, uint32_t request) {
    struct books *b = arg;
    b->stored[request] = 0;
}

/* ---- loads ----------------------------------------------------------------------------------- */

static struct load load_of(double rate, uint64_t seed) {
    struct load l = {"", rate, REQUESTS, {60, 1.0, 400}, {30, 0.8, 200}, seed};
    return l;
}

static struct limits limits_of(uint64_t pages) {
    struct limits l = {pages, pages / 100, 16, 24, 96};
    return l;
}

static struct outcome run(const struct load *load, uint64_t pages, struct request *requests) {
    struct limits limits = limits_of(pages);
    static struct books books;
    struct engine engine = {run_step, forget, &books};
    struct outcome o;
    memset(&books, 0, sizeof books);
    books.limits = &limits;
    books.requests = requests;
    assert_int_equal(replay(&limits, requests, load->n, &engine, &o), 0);
    assert_int_equal(books.wrong, 0);
    assert_int_equal(books.too_much, 0);
    uint64_t answers = 0;
    for (uint32_t i = 0; i < load->n; i++) {
        assert_int_equal(books.answered[i], requests[i].refused ? 0 : requests[i].answer);
        assert_int_equal(books.stored[i], 0);
        answers += books.answered[i];
    }
    assert_int_equal(answers, o.answers);
    return o;
}

static void requests_arrive_in_order(void **state) {
    struct load load = load_of(5, 3);
    (void)state;
    struct request *r = make_requests(&load);
    double sum = 0;
    assert_non_null(r);
    for (uint32_t i = 0; i < load.n; i++) {
        assert_true(i == 0 || r[i].arrival >= r[i - 1].arrival);
        assert_true(r[i].prompt >= 1 && r[i].prompt <= 400);
        assert_true(r[i].answer >= 1 && r[i].answer <= 200);
        sum += log(r[i].prompt);
    }
    /* the median of the logarithms, five standard errors of a mean wide, clipping aside */
    assert_true(fabs(sum / load.n - log(60)) < 0.3);
    assert_true(fabs(r[load.n - 1].arrival - load.n / 5.0) < 5 * sqrt(load.n) / 5.0);
    free(r);
}

static void nothing_is_lost(void **state) {
    static const double rates[] = {0, 5, 50, 5000};
    static const uint64_t pools[] = {8, 20, 40, 100, 5000};
    uint32_t refused = 0, preempted = 0;
    (void)state;
    for (size_t p = 0; p < sizeof pools / sizeof *pools; p++)
        for (size_t i = 0; i < sizeof rates / sizeof *rates; i++) {
            struct load load = load_of(rates[i], 10 + p);
            struct request *r = make_requests(&load);
            struct outcome o = run(&load, pools[p], r);
            assert_int_equal(o.finished + o.refused, load.n);
            assert_int_equal(o.pages_left, 0);
            assert_true(o.most_pages <= pools[p]);
            assert_true(o.most_running <= 24 && o.mean_running <= 24);
            for (uint32_t k = 0; k < load.n; k++)
                if (!r[k].refused)
                    assert_true(r[k].first >= r[k].arrival && r[k].last >= r[k].first &&
                                r[k].last <= o.seconds);
            refused += o.refused;
            preempted += o.preemptions;
            free(r);
        }
    assert_true(refused > 0 && preempted > 0); /* both have been tried */
}

static void same_seed_same_replay(void **state) {
    struct outcome o[3];
    (void)state;
    for (int i = 0; i < 3; i++) {
        struct load load = load_of(50, i < 2 ? 7 : 8);
        struct request *r = make_requests(&load);
        o[i] = run(&load, 60, r);
        free(r);
    }
    assert_memory_equal(&o[0], &o[1], sizeof o[0]);
    assert_true(o[0].seconds < o[2].seconds || o[0].seconds > o[2].seconds);
}

/* More memory never makes anybody give way more often than in a pool that holds everything. */
static void enough_memory_preempts_nobody(void **state) {
    struct load load = load_of(0, 4);
    (void)state;
    struct request *r = make_requests(&load);
    struct outcome o = run(&load, 24 * 40, r); /* 24 requests of 600 tokens at most */
    assert_int_equal(o.preemptions, 0);
    assert_int_equal(o.refused, 0);
    free(r);
}

static void latencies_are_quantiles(void **state) {
    struct request r[4] = {{.arrival = 0, .answer = 3, .first = 1, .last = 5},
                           {.arrival = 1, .answer = 2, .first = 3, .last = 4},
                           {.arrival = 1, .answer = 1, .first = 5, .last = 5},
                           {.arrival = 2, .answer = 9, .refused = 1}};
    struct outcome o = {.answers = 6, .seconds = 5};
    struct latency l;
    (void)state;
    assert_int_equal(latency_of(r, 4, &o, &l), 0);
    assert_true(l.first_p50 > 1.99 && l.first_p50 < 2.01 && l.first_p99 > 3.99 &&
                l.first_p99 < 4.01);
    assert_true(l.token_p50 > 0.99 && l.token_p50 < 1.01 && l.token_p99 > 1.99 &&
                l.token_p99 < 2.01);
    assert_true(l.tokens_per_second > 1.19 && l.tokens_per_second < 1.21);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(requests_arrive_in_order), cmocka_unit_test(nothing_is_lost),
        cmocka_unit_test(same_seed_same_replay),    cmocka_unit_test(enough_memory_preempts_nobody),
        cmocka_unit_test(latencies_are_quantiles),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
