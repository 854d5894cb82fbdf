/* page/seq.c: fork, truncate and copies on write, by looking at bytes. */
#include "unit/unit.h"

#include "unit/seqs.h"

enum { PAGE = UNIT_PAGE_TOKENS, LAYERS = UNIT_LAYERS };

static struct unit_seqs s;

/* ---- fork and copy on write -------------------------------------------------------------------
 */

/* Pages are shared until someone writes; the copy has all layers; the original stays. */
static void test_fork_copies_on_write(void **state) {
    (void)state;
    unit_seqs_init(&s, 0, 8);
    tq_seq a = unit_create(&s);
    unit_append_all(&s, a, 2 * PAGE + 5, 0);
    tq_seq b = unit_fork(&s, a, UINT64_MAX);
    assert_int_equal(unit_used_pages(&s), 3);
    assert_int_equal(s.pool.copies, 0);
    for (uint32_t l = 0; l < LAYERS; l++)
        unit_check_tags(&s, b, l, 0, 2 * PAGE + 5, 1000 * l);
    assert_int_equal(unit_append_run(&s, b, 1, 2, 777), TQ_OK);
    assert_int_equal(s.pool.copies, LAYERS); /* one page, all its layers */
    assert_int_equal(unit_used_pages(&s), 4);
    assert_int_equal(unit_append_run(&s, b, 0, 1, 888), TQ_OK); /* its own by now */
    assert_int_equal(s.pool.copies, LAYERS);
    assert_int_equal(unit_append_run(&s, a, 0, 3, 999), TQ_OK); /* the only owner again */
    assert_int_equal(s.pool.copies, LAYERS);
    for (uint32_t l = 0; l < LAYERS; l++) {
        unit_check_tags(&s, a, l, 0, 2 * PAGE + 5, 1000 * l);
        unit_check_tags(&s, b, l, 0, 2 * PAGE + 5, 1000 * l);
    }
    unit_check_tags(&s, b, 1, 2 * PAGE + 5, 2 * PAGE + 7, 777);
    unit_check_tags(&s, b, 0, 2 * PAGE + 5, 2 * PAGE + 6, 888);
    unit_check_tags(&s, a, 0, 2 * PAGE + 5, 2 * PAGE + 8, 999);
    assert_ptr_equal(unit_slot(&s, a, 0, 0), unit_slot(&s, b, 0, 0));
    unit_seqs_end(&s);
}

/* At a page border there is nothing to copy. */
static void test_fork_at_page_border(void **state) {
    (void)state;
    unit_seqs_init(&s, 0, 8);
    tq_seq a = unit_create(&s);
    unit_append_all(&s, a, 3 * PAGE, 0);
    tq_seq b = unit_fork(&s, a, 2 * PAGE), c = unit_fork(&s, a, 0);
    assert_int_equal(unit_find(&s, b)->n_pages, 2);
    assert_int_equal(unit_find(&s, c)->n_pages, 0);
    unit_append_all(&s, b, 4, 5000);
    unit_append_all(&s, c, 4, 7000);
    assert_int_equal(s.pool.copies, 0);
    assert_int_equal(unit_used_pages(&s), 5);
    unit_check_tags(&s, a, 0, 0, 3 * PAGE, 0);
    unit_check_tags(&s, b, 0, 2 * PAGE, 2 * PAGE + 4, 5000);
    unit_seqs_end(&s);
}

/* The parent's end leaves the child's tokens; a chain of forks frees everything at last. */
static void test_fork_chain(void **state) {
    tq_seq ids[6];
    (void)state;
    unit_seqs_init(&s, 0, 8);
    ids[0] = unit_create(&s);
    unit_append_all(&s, ids[0], 20, 0);
    for (int i = 1; i < 6; i++) {
        ids[i] = unit_fork(&s, ids[i - 1], UINT64_MAX);
        unit_append_all(&s, ids[i], 7, (uint32_t)(20 + 7 * (i - 1)));
        tqi_seqs_end(&s.seqs, unit_find(&s, ids[i - 1]));
    }
    unit_check_tags(&s, ids[5], 0, 0, 55, 0);
    unit_check_tags(&s, ids[5], 2, 0, 55, 2000);
    assert_int_equal(unit_used_pages(&s), 4);
    tqi_seqs_end(&s.seqs, unit_find(&s, ids[5]));
    assert_int_equal(unit_used_pages(&s), 0);
    unit_seqs_end(&s);
}

/* Forking may move the slots that the source lives in. */
static void test_fork_while_slots_grow(void **state) {
    (void)state;
    unit_seqs_init(&s, 0, 1000);
    tq_seq first = unit_create(&s);
    unit_append_all(&s, first, PAGE + 3, 0);
    for (int i = 0; i < 200; i++) {
        tq_seq id = unit_fork(&s, first, PAGE + 1);
        unit_check_tags(&s, id, 0, 0, PAGE + 1, 0);
    }
    assert_int_equal(s.pool.pool.references[unit_find(&s, first)->pages[0]], 201);
    assert_int_equal(unit_used_pages(&s), 2);
    unit_seqs_end(&s);
}

/* ---- truncate -------------------------------------------------------------------------------- */

static void test_truncate(void **state) {
    (void)state;
    unit_seqs_init(&s, 0, 8);
    tq_seq a = unit_create(&s);
    unit_append_all(&s, a, 5 * PAGE, 0);
    tq_seq b = unit_fork(&s, a, UINT64_MAX);
    assert_int_equal(tqi_seqs_truncate(&s.seqs, unit_find(&s, b), 2 * PAGE + 3), TQ_OK);
    assert_int_equal(unit_find(&s, b)->n_pages, 3);
    assert_int_equal(unit_used_pages(&s), 5);
    unit_append_all(&s, b, 2, 9000); /* into a page that a still has */
    unit_check_tags(&s, a, 0, 0, 5 * PAGE, 0);
    unit_check_tags(&s, b, 0, 0, 2 * PAGE + 3, 0);
    unit_check_tags(&s, b, 0, 2 * PAGE + 3, 2 * PAGE + 5, 9000);
    assert_int_equal(tqi_seqs_truncate(&s.seqs, unit_find(&s, b), 0), TQ_OK);
    assert_int_equal(unit_find(&s, b)->n_pages, 0);
    assert_int_equal(unit_used_pages(&s), 5);
    unit_seqs_end(&s);
}

/* Prefixes must be complete in all layers, and exist. */
static void test_prefixes(void **state) {
    tq_seq out = 5;
    (void)state;
    unit_seqs_init(&s, 0, 8);
    tq_seq a = unit_create(&s);
    unit_append_all(&s, a, 10, 0);
    assert_int_equal(unit_append_run(&s, a, 0, 4, 10), TQ_OK);
    uint64_t pages = unit_used_pages(&s);
    assert_int_equal(tqi_seqs_truncate(&s.seqs, unit_find(&s, a), 15), TQ_ERR_INVALID_ARGUMENT);
    assert_int_equal(tqi_seqs_truncate(&s.seqs, unit_find(&s, a), 11), TQ_ERR_INVALID_STATE);
    assert_int_equal(tqi_seqs_fork(&s.seqs, unit_find(&s, a), 15, &out), TQ_ERR_INVALID_ARGUMENT);
    assert_int_equal(tqi_seqs_fork(&s.seqs, unit_find(&s, a), 14, &out), TQ_ERR_INVALID_STATE);
    assert_int_equal(tqi_seqs_fork(&s.seqs, unit_find(&s, a), UINT64_MAX, &out),
                     TQ_ERR_INVALID_STATE);
    assert_int_equal(out, 5);
    assert_int_equal(s.seqs.n_alive, 1);
    assert_int_equal(unit_used_pages(&s), pages);
    assert_int_equal(unit_find(&s, a)->lengths[0], 14);
    /* The first ten are complete; the child's copy has only those of layer 0 too. */
    tq_seq b = unit_fork(&s, a, 10);
    assert_int_equal(unit_find(&s, b)->lengths[0], 10);
    assert_int_equal(unit_append_run(&s, b, 0, 4, 60), TQ_OK);
    unit_check_tags(&s, a, 0, 0, 14, 0);
    unit_check_tags(&s, b, 0, 10, 14, 60);
    assert_int_equal(tqi_seqs_truncate(&s.seqs, unit_find(&s, a), 10), TQ_OK);
    assert_int_equal(unit_find(&s, a)->lengths[0], 10);
    unit_seqs_end(&s);
}

static void test_reset(void **state) {
    (void)state;
    unit_seqs_init(&s, 0, 8);
    tq_seq a = unit_create(&s);
    unit_append_all(&s, a, 50, 0);
    tq_seq b = unit_fork(&s, a, UINT64_MAX);
    tqi_seqs_reset(&s.seqs);
    assert_null(tqi_seq_find(&s.seqs, a));
    assert_null(tqi_seq_find(&s.seqs, b));
    assert_int_equal(s.seqs.n_alive, 0);
    assert_int_equal(unit_used_pages(&s), 0);
    tq_seq c = unit_create(&s);
    assert_true(c != a && c != b);
    unit_append_all(&s, c, 3, 0);
    unit_seqs_end(&s);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_fork_copies_on_write),
        cmocka_unit_test(test_fork_at_page_border),
        cmocka_unit_test(test_fork_chain),
        cmocka_unit_test(test_fork_while_slots_grow),
        cmocka_unit_test(test_truncate),
        cmocka_unit_test(test_prefixes),
        cmocka_unit_test(test_reset),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
