/* Forks and layers: pages that several sequences share are copied by the first who writes,
 * with all their layers, once. What a sequence must hold is a list of tokens of a table; see
 * common/table.h. */
#include <stdlib.h>
#include <string.h>

#include "common/table.h"

enum { DIM = 32, HEADS = 2, GROUP = 2, PAGE = 16, TOKENS = 400 };

static struct table table;
static uint32_t list[TOKENS];  /* token i is i */
static uint32_t other[TOKENS]; /* other tokens */

static tq_cache_config config(uint32_t n_layers) {
    tq_cache_config c = plain_config(TQ_VARIANT_K3V4_NC, DIM, HEADS, GROUP);
    c.page_tokens = PAGE;
    c.n_layers = n_layers;
    return c;
}

static int make_table(void **state) {
    (void)state;
    tq_cache_config c = config(1);
    table = table_make(&c, 0, TOKENS, 1);
    for (uint32_t i = 0; i < TOKENS; i++) {
        list[i] = i;
        other[i] = TOKENS - 1 - i;
    }
    return 0;
}

static int free_table(void **state) {
    (void)state;
    table_free(&table);
    return 0;
}

/* A sequence and what each of its layers must hold. */
struct story {
    tq_seq seq;
    uint32_t have[3][TOKENS], n[3];
};

static void append(struct rig *r, struct story *s, uint32_t layer, const uint32_t *more,
                   uint32_t count) {
    OK(table_append(&table, r->cache, s->seq, layer, more, count));
    memcpy(s->have[layer] + s->n[layer], more, count * sizeof *more);
    s->n[layer] += count;
}

static void fork(struct rig *r, const struct story *from, uint32_t n, struct story *to) {
    *to = *from;
    to->seq = rig_fork(r, from->seq, n);
    for (uint32_t l = 0; l < r->c.n_layers; l++)
        to->n[l] = n;
}

static void expect(const struct rig *r, const struct story *s, const char *what) {
    for (uint32_t l = 0; l < r->c.n_layers; l++) {
        struct rng rng = {l};
        table_check(&table, r, s->seq, l, s->have[l], s->n[l], what);
        table_attend(&table, r, s->seq, l, s->have[l], s->n[l], 2, 0, &rng, what);
    }
}

static void expect_pages(const struct rig *r, uint64_t used, uint64_t shared) {
    tq_cache_stats s = rig_stats(r);
    assert_int_equal(s.pages_used, used);
    assert_int_equal(s.pages_shared, shared);
}

static uint32_t pages_of(uint32_t tokens) {
    return (tokens + PAGE - 1) / PAGE;
}

/* Fork after n of 40 tokens, then append to both in either order: neither sees the other. */
static void fork_and_append(uint32_t n, int source_first) {
    struct rig r = {0};
    struct story source = {0}, copy;
    tq_cache_config c = config(1);
    rig_open(&r, &c);
    source.seq = rig_seq(&r);
    append(&r, &source, 0, list, 40);
    fork(&r, &source, n, &copy);
    expect_pages(&r, pages_of(40), pages_of(n));
    expect(&r, &copy, "fork");
    for (int turn = 0; turn < 2; turn++) {
        if ((turn == 0) == source_first)
            append(&r, &source, 0, other, 7);
        else
            append(&r, &copy, 0, other + 50, 9);
        expect(&r, &source, "source");
        expect(&r, &copy, "fork with a tail");
    }
    OK(tq_seq_destroy(r.cache, source.seq));
    expect(&r, &copy, "fork without its source");
    expect_pages(&r, pages_of(n + 9), 0);
    rig_close(&r);
}

static void test_fork_then_append(void **state) {
    (void)state;
    static const uint32_t lengths[] = {0, 1, 15, 16, 17, 31, 32, 33, 39, 40};
    for (size_t i = 0; i < COUNT(lengths); i++)
        for (int first = 0; first < 2; first++)
            fork_and_append(lengths[i], first);
}

/* A shared page that is full is never copied; a partial one once, by who writes first. */
static void test_who_copies(void **state) {
    (void)state;
    struct rig r = {0};
    struct story source = {0}, full, partial, first, second;
    tq_cache_config c = config(1);
    rig_open(&r, &c);
    source.seq = rig_seq(&r);
    append(&r, &source, 0, list, 40);
    fork(&r, &source, 32, &full);
    fork(&r, &source, 40, &partial);
    expect_pages(&r, 3, 3);
    append(&r, &full, 0, other, 1); /* a new page */
    expect_pages(&r, 4, 3);
    append(&r, &partial, 0, other, 1); /* copies the third */
    expect_pages(&r, 5, 2);
    append(&r, &source, 0, other + 9, 1); /* owns the third alone again */
    expect_pages(&r, 5, 2);
    fork(&r, &partial, 41, &first);
    fork(&r, &first, 41, &second);
    expect_pages(&r, 5, 3);
    OK(tq_seq_destroy(r.cache, partial.seq));
    OK(tq_seq_destroy(r.cache, source.seq));
    append(&r, &second, 0, other + 20, 1);
    expect(&r, &first, "fork");
    expect(&r, &second, "fork of a fork");
    expect(&r, &full, "fork at the border of a page");
    rig_close(&r);
}

/* A shared page holds all layers: who writes in one layer must not lose the others, nor may
 * tokens that a layer had beyond the fork come back. */
static void test_layers_of_a_shared_page(void **state) {
    (void)state;
    struct rig r = {0};
    struct story s[2] = {{0}};
    tq_cache_config c = config(3);
    rig_open(&r, &c);
    s[0].seq = rig_seq(&r);
    for (uint32_t l = 0; l < 3; l++)
        append(&r, &s[0], l, list, 20 + l);
    fork(&r, &s[0], 20, &s[1]);
    for (uint32_t step = 0; step < 12; step++) {
        append(&r, &s[step / 3 % 2], (step * 2 + step / 3) % 3, other + 20 * step, 3 + step % 4);
        expect(&r, &s[0], "source");
        expect(&r, &s[1], "fork");
    }
    rig_close(&r);
}

/* A layer that is ahead has taken pages that the others fill later, also when a fork shares
 * some of them in between. */
static void test_layers_behind(void **state) {
    (void)state;
    struct rig r = {0};
    struct story s[2] = {{0}};
    tq_cache_config c = config(3);
    rig_open(&r, &c);
    s[0].seq = rig_seq(&r);
    append(&r, &s[0], 1, list, 100);
    append(&r, &s[0], 0, list, 16);
    append(&r, &s[0], 2, list, 33);
    assert_int_equal(rig_stats(&r).tokens, 16);
    fork(&r, &s[0], 16, &s[1]);
    expect_pages(&r, 7, 1);
    append(&r, &s[0], 0, other, 30);
    append(&r, &s[1], 2, other, 50);
    append(&r, &s[1], 0, other + 60, 40);
    append(&r, &s[0], 2, other + 120, 10);
    append(&r, &s[1], 1, other + 200, 17);
    expect(&r, &s[0], "source");
    expect(&r, &s[1], "fork");
    expect_pages(&r, 7 + 4, 1);
    assert_int_equal(rig_stats(&r).tokens, 43 + 33);
    rig_close(&r);
}

/* To every length of a shared sequence and on with other tokens. */
static void test_truncate_shared(void **state) {
    (void)state;
    struct rig r = {0};
    struct story s = {0}, shared;
    tq_cache_config c = config(1);
    rig_open(&r, &c);
    s.seq = rig_seq(&r);
    append(&r, &s, 0, list, 70);
    fork(&r, &s, 70, &shared);
    for (uint32_t to = 71; to-- > 0;) {
        OK(tq_seq_truncate(r.cache, s.seq, to));
        s.n[0] = to;
        append(&r, &s, 0, other + to, 5 + to % 20);
        expect(&r, &s, "on with other tokens");
        OK(tq_seq_truncate(r.cache, s.seq, to));
        s.n[0] = to;
        expect(&r, &s, "truncated");
    }
    expect_pages(&r, 5, 0);
    expect(&r, &shared, "fork of before");
    rig_close(&r);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_fork_then_append),        cmocka_unit_test(test_who_copies),
        cmocka_unit_test(test_layers_of_a_shared_page), cmocka_unit_test(test_layers_behind),
        cmocka_unit_test(test_truncate_shared),
    };
    return cmocka_run_group_tests(tests, make_table, free_table);
}
