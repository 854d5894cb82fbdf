/* page/seq.c: ids, lengths and pages; what a refused or failing call
 * leaves behind. */
#include "unit/unit.h"

#include "unit/seqs.h"

enum { PAGE = UNIT_PAGE_TOKENS, LAYERS = UNIT_LAYERS };

static struct unit_seqs s;

/* ---- ids ------------------------------------------------------------------------------------- */

static void test_ids(void **state) {
    tq_seq ids[300];
    (void)state;
    unit_seqs_init(&s, 8, 256);
    for (int i = 0; i < 300; i++) {
        ids[i] = unit_create(&s);
        assert_int_not_equal(ids[i], 0);
        for (int j = 0; j < i; j++)
            assert_true(ids[i] != ids[j]);
        if (i % 2)
            tqi_seqs_end(&s.seqs, unit_find(&s, ids[i]));
    }
    for (int i = 0; i < 300; i++)
        assert_int_equal(tqi_seq_find(&s.seqs, ids[i]) == NULL, i % 2);
    assert_int_equal(s.seqs.n_alive, 150);
    unit_seqs_end(&s);
}

static void test_unknown_ids(void **state) {
    (void)state;
    unit_seqs_init(&s, 8, 256);
    tq_seq id = unit_create(&s);
    const tq_seq wrong[] = {0,          id + 1,     id | (tq_seq)1 << 32, id | (tq_seq)1 << 63,
                            UINT64_MAX, UINT32_MAX, (tq_seq)1 << 32};
    for (size_t i = 0; i < COUNT(wrong); i++) {
        assert_null(tqi_seq_find(&s.seqs, wrong[i]));
        assert_non_null(strstr(tqi_last_message(), "no sequence"));
    }
    assert_non_null(tqi_seq_find(&s.seqs, id));
    unit_seqs_end(&s);
}

/* Slots are used again, their ids are not. */
static void test_ids_never_return(void **state) {
    enum { ROUNDS = 20000 };
    static tq_seq seen[ROUNDS];
    (void)state;
    unit_seqs_init(&s, 8, 4);
    for (int i = 0; i < ROUNDS; i++) {
        seen[i] = unit_create(&s);
        assert_true(i == 0 || seen[i] != seen[i - 1]);
        if (i % 100 == 50)
            tqi_seqs_reset(&s.seqs);
        else
            tqi_seqs_end(&s.seqs, unit_find(&s, seen[i]));
        assert_null(tqi_seq_find(&s.seqs, seen[i]));
    }
    tq_seq last = unit_create(&s);
    for (int i = 0; i < ROUNDS; i++) {
        assert_true(seen[i] != last);
        assert_null(tqi_seq_find(&s.seqs, seen[i]));
    }
    assert_true(s.seqs.n_slots <= 4);
    unit_seqs_end(&s);
}

/* A slot that has used up its generations is not used again. */
static void test_generations_do_not_wrap(void **state) {
    (void)state;
    unit_seqs_init(&s, 8, 2);
    tq_seq first = unit_create(&s);
    tqi_seqs_end(&s.seqs, unit_find(&s, first));
    s.seqs.slots[0].generation = UINT32_MAX;
    tq_seq last = unit_create(&s);
    assert_int_equal(last >> 32, UINT32_MAX);
    tqi_seqs_end(&s.seqs, unit_find(&s, last));
    for (int i = 0; i < 100; i++) {
        tq_seq id = unit_create(&s);
        assert_true(id != first && id != last);
        assert_null(tqi_seq_find(&s.seqs, first));
        assert_null(tqi_seq_find(&s.seqs, last));
        tqi_seqs_end(&s.seqs, unit_find(&s, id));
    }
    assert_int_equal(s.seqs.n_alive, 0);
    assert_int_equal(s.seqs.n_slots, 2);
    unit_seqs_end(&s);
}

static void test_max_seqs(void **state) {
    tq_seq ids[3], extra = 77;
    (void)state;
    unit_seqs_init(&s, 8, 3);
    for (int i = 0; i < 3; i++)
        ids[i] = unit_create(&s);
    uint64_t bytes = s.pool.heap.host_bytes;
    assert_int_equal(tqi_seqs_create(&s.seqs, &extra), TQ_ERR_INVALID_STATE);
    assert_int_equal(tqi_seqs_fork(&s.seqs, unit_find(&s, ids[0]), 0, &extra),
                     TQ_ERR_INVALID_STATE);
    assert_int_equal(extra, 77);
    assert_int_equal(s.pool.heap.host_bytes, bytes);
    tqi_seqs_end(&s.seqs, unit_find(&s, ids[1]));
    assert_int_equal(tqi_seqs_create(&s.seqs, &extra), TQ_OK);
    unit_seqs_end(&s);
}

/* ---- append --------------------------------------------------------------------------------- */

static void test_append(void **state) {
    (void)state;
    unit_seqs_init(&s, 0, 4);
    tq_seq id = unit_create(&s);
    uint32_t length = 0;
    for (uint32_t n = 0; n < 40; n++) {
        unit_append_all(&s, id, n % 23, length);
        length += n % 23;
        for (uint32_t l = 0; l < LAYERS; l++) {
            assert_int_equal(unit_find(&s, id)->lengths[l], length);
            unit_check_tags(&s, id, l, 0, length, 1000 * l);
        }
        assert_int_equal(unit_find(&s, id)->n_pages, (length + PAGE - 1) / PAGE);
    }
    assert_int_equal(unit_used_pages(&s), unit_find(&s, id)->n_pages);
    unit_seqs_end(&s);
}

/* Layers are appended to one after the other; pages are for all of them. */
static void test_lengths_per_layer(void **state) {
    (void)state;
    unit_seqs_init(&s, 0, 4);
    tq_seq id = unit_create(&s);
    assert_int_equal(unit_append_run(&s, id, 1, 40, 500), TQ_OK);
    assert_int_equal(unit_append_run(&s, id, 0, 17, 900), TQ_OK);
    assert_int_equal(unit_find(&s, id)->n_pages, 3);
    assert_int_equal(tqi_seq_shortest(&s.seqs, unit_find(&s, id)), 0);
    assert_int_equal(tqi_seq_longest(&s.seqs, unit_find(&s, id)), 40);
    assert_int_equal(unit_append_run(&s, id, 2, 33, 0), TQ_OK);
    assert_int_equal(tqi_seq_shortest(&s.seqs, unit_find(&s, id)), 17);
    unit_check_tags(&s, id, 1, 0, 40, 500);
    unit_check_tags(&s, id, 0, 0, 17, 900);
    unit_seqs_end(&s);
}

/* Out of pages: nothing happens, and the rest of the pool can still be used. */
static void test_out_of_pages(void **state) {
    (void)state;
    unit_seqs_init(&s, 4, 4);
    tq_seq a = unit_create(&s), b = unit_create(&s);
    unit_append_all(&s, a, 2 * PAGE + 1, 10);
    assert_int_equal(unit_append_run(&s, b, 0, 2 * PAGE, 0), TQ_ERR_OUT_OF_PAGES);
    assert_int_equal(unit_append_run(&s, a, 0, PAGE + PAGE, 0), TQ_ERR_OUT_OF_PAGES);
    assert_int_equal(unit_find(&s, b)->n_pages, 0);
    assert_int_equal(unit_find(&s, b)->lengths[0], 0);
    assert_int_equal(unit_find(&s, a)->n_pages, 3);
    assert_int_equal(unit_find(&s, a)->lengths[0], 2 * PAGE + 1);
    assert_int_equal(unit_used_pages(&s), 3);
    assert_int_equal(unit_append_run(&s, b, 0, PAGE, 70), TQ_OK);
    assert_int_equal(unit_append_run(&s, a, 0, PAGE - 1, 10 + 2 * PAGE + 1),
                     TQ_OK); /* needs no page */
    unit_check_tags(&s, a, 0, 0, 3 * PAGE, 10);
    unit_check_tags(&s, b, 0, 0, PAGE, 70);
    unit_seqs_end(&s);
}

static void test_length_overflow(void **state) {
    (void)state;
    unit_seqs_init(&s, 4, 4);
    tq_seq id = unit_create(&s);
    unit_append_all(&s, id, 5, 0);
    assert_int_equal(tqi_seq_make_room(&s.seqs, unit_find(&s, id), 0, UINT64_MAX - 4),
                     TQ_ERR_INVALID_ARGUMENT);
    assert_int_not_equal(tqi_seq_make_room(&s.seqs, unit_find(&s, id), 0, UINT64_MAX - 5), TQ_OK);
    assert_int_equal(unit_find(&s, id)->n_pages, 1);
    unit_seqs_end(&s);
}

/* What a refused append asked for is not kept: neither tables nor chunks. */
static void test_refused_append_keeps_nothing(void **state) {
    (void)state;
    unit_seqs_init(&s, 4, 4);
    tq_seq id = unit_create(&s);
    uint64_t bytes = s.pool.heap.host_bytes, calls = s.pool.unit.calls;
    assert_int_equal(tqi_seq_make_room(&s.seqs, unit_find(&s, id), 0, 1 << 24),
                     TQ_ERR_OUT_OF_PAGES);
    assert_int_equal(tqi_seq_make_room(&s.seqs, unit_find(&s, id), 0, UINT64_MAX / 2),
                     TQ_ERR_OUT_OF_PAGES);
    assert_int_equal(s.pool.heap.host_bytes, bytes);
    assert_int_equal(s.pool.unit.calls, calls);
    unit_seqs_end(&s);
    /* More pages than any pool can have; pages that come, but whose table does not. */
    unit_seqs_init(&s, 0, 4);
    id = unit_create(&s);
    unit_append_all(&s, id, 5, 0);
    bytes = s.pool.heap.host_bytes;
    uint64_t pages = s.pool.pool.n_pages;
    assert_int_equal(tqi_seq_make_room(&s.seqs, unit_find(&s, id), 0, UINT64_MAX / 2),
                     TQ_ERR_OUT_OF_PAGES);
    assert_int_equal(s.pool.heap.host_bytes, bytes);
    s.pool.unit.fail_at = s.pool.unit.calls + 4; /* two tables of the pool, a chunk */
    assert_int_equal(tqi_seq_make_room(&s.seqs, unit_find(&s, id), 0, (pages + 1) * PAGE),
                     TQ_ERR_OUT_OF_MEMORY);
    assert_int_equal(s.pool.pool.n_pages, pages);
    assert_int_equal(unit_used_pages(&s), 1);
    assert_int_equal(unit_find(&s, id)->n_pages, 1);
    s.pool.unit.fail_at = 0;
    assert_int_equal(tqi_seq_make_room(&s.seqs, unit_find(&s, id), 0, (pages + 1) * PAGE), TQ_OK);
    unit_seqs_end(&s);
}

/* ---- allocation failures ------------------------------------------------------------------------
 */

/* One step that allocates, tried with a failure at every call in turn. */
static tq_status grow_step(int which, tq_seq a, tq_seq *made) {
    if (which == 0)
        return tqi_seqs_create(&s.seqs, made);
    if (which == 1)
        return tqi_seqs_fork(&s.seqs, unit_find(&s, a), UINT64_MAX, made);
    return unit_append_run(&s, a, 0, 200, 3 * PAGE + 2);
}

static void check_unchanged(tq_seq a, tq_seq b) {
    for (uint32_t l = 0; l < LAYERS; l++) {
        assert_int_equal(unit_find(&s, a)->lengths[l], 3 * PAGE + 2);
        unit_check_tags(&s, a, l, 0, 3 * PAGE + 2, 1000 * l);
        unit_check_tags(&s, b, l, 0, 3 * PAGE + 2, 1000 * l);
    }
    assert_int_equal(unit_find(&s, a)->n_pages, 4);
    assert_int_equal(unit_used_pages(&s), 4);
    assert_int_equal(s.seqs.n_alive, 16);
    assert_int_equal(s.pool.heap.host_bytes, s.pool.unit.bytes);
}

/* 16 sequences fill the slots, so that another one has to make room for itself. */
static void test_failing_allocator(void **state) {
    (void)state;
    for (int which = 0; which < 3; which++) {
        uint64_t fail = 1;
        for (;; fail++) {
            tq_seq made = 123;
            unit_seqs_init(&s, 0, 64);
            tq_seq a = unit_create(&s);
            unit_append_all(&s, a, 3 * PAGE + 2, 0);
            tq_seq b = unit_fork(&s, a, UINT64_MAX);
            for (int i = 0; i < 14; i++)
                (void)unit_create(&s);
            s.pool.unit.fail_at = s.pool.unit.calls + fail;
            tq_status status = grow_step(which, a, &made);
            int failed = s.pool.unit.calls >= s.pool.unit.fail_at;
            if (failed) {
                assert_int_equal(status, TQ_ERR_OUT_OF_MEMORY);
                assert_int_equal(made, 123);
                check_unchanged(a, b);
            }
            s.pool.unit.fail_at = 0; /* there is memory again */
            assert_int_equal(grow_step(which, a, &made), TQ_OK);
            unit_seqs_end(&s);
            if (!failed)
                break;
        }
        assert_int_equal(fail, which == 0 ? 3 : which == 1 ? 4 : 2);
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_ids),
        cmocka_unit_test(test_unknown_ids),
        cmocka_unit_test(test_ids_never_return),
        cmocka_unit_test(test_generations_do_not_wrap),
        cmocka_unit_test(test_max_seqs),
        cmocka_unit_test(test_append),
        cmocka_unit_test(test_lengths_per_layer),
        cmocka_unit_test(test_out_of_pages),
        cmocka_unit_test(test_length_overflow),
        cmocka_unit_test(test_refused_append_keeps_nothing),
        cmocka_unit_test(test_failing_allocator),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
