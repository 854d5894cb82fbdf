/*
 * How attention over a ragged batch is cut into work (cuda/attend/schedule.h), by walking the
 * cut as the kernels do: every tile of every item belongs to one worker, and the pieces of an
 * item lie one behind another in the order of its tiles.
 */
#include "unit/unit.h"

#include "../../cuda/attend/schedule.h"

enum { MAX_SEGMENTS = 64, MAX_ITEMS = 8192, MAX_PIECES = 1 << 16 };

static struct {
    struct tqi_way way;
    struct tqi_segment segments[MAX_SEGMENTS];
    struct tqi_cut cuts[MAX_SEGMENTS];
    struct tqi_division division;
    struct tqi_row row;
    uint32_t n, items, busy, longest;
    uint64_t tiles;
} plan;

/* ---- the plan, one segment after the other ----------------------------------------------------
 */

static void cut_segments(void) {
    plan.items = plan.busy = plan.longest = 0;
    plan.tiles = 0;
    for (uint32_t s = 0; s < plan.n; s++) {
        struct tqi_cut *cut = &plan.cuts[s];
        *cut = tqi_cut_segment(&plan.way, &plan.segments[s]);
        cut->first_item = plan.items;
        cut->tiles_before = plan.tiles;
        plan.items += tqi_n_items(&plan.way, cut);
        plan.busy += cut->n_tiles ? tqi_n_items(&plan.way, cut) : 0;
        plan.tiles += tqi_n_tiles(&plan.way, cut);
        plan.longest = cut->n_tiles > plan.longest ? cut->n_tiles : plan.longest;
    }
}

static uint64_t parts_of(uint32_t size) {
    uint64_t parts = 0;
    for (uint32_t s = 0; s < plan.n; s++)
        parts += (uint64_t)tqi_n_items(&plan.way, &plan.cuts[s]) *
                 tqi_parts(&plan.way, plan.cuts[s].n_tiles, size);
    return parts;
}

/* The smallest part with which every part has a block. */
static uint32_t smallest_size(void) {
    uint32_t size = 1;
    while (parts_of(size) > plan.way.n_blocks)
        size++;
    return size;
}

static void divide_by_block(uint32_t size) {
    uint32_t total = 0;
    for (uint32_t s = 0; s < plan.n; s++) {
        struct tqi_cut *cut = &plan.cuts[s];
        cut->parts = tqi_parts(&plan.way, cut->n_tiles, size);
        cut->first_piece = total;
        total += cut->parts * tqi_n_items(&plan.way, cut);
    }
    plan.division = (struct tqi_division){1, total};
}

static void divide_in_row(void) {
    plan.division = (struct tqi_division){0, (uint32_t)tqi_least(plan.tiles, plan.way.n_workers)};
    plan.row = tqi_row_of(&plan.way, plan.tiles, plan.items, plan.busy, plan.division.n_workers);
}

/* ---- walking it -------------------------------------------------------------------------------
 */

static uint32_t done[MAX_ITEMS];       /* tiles of an item so far */
static uint32_t next_piece[MAX_ITEMS]; /* the piece that the item's next worker must write */
static uint8_t written[MAX_PIECES];

static void take_tiles(uint32_t segment, uint32_t item, uint32_t tile, uint32_t n, uint32_t piece) {
    uint32_t index = plan.cuts[segment].first_item + item;
    CHECK(done[index] == tile, "item %u: tile %u follows %u", index, tile, done[index]);
    CHECK(next_piece[index] == piece, "item %u: piece %u, expected %u", index, piece,
          next_piece[index]);
    CHECK(piece < MAX_PIECES && !written[piece], "piece %u is written twice", piece);
    written[piece] = 1;
    done[index] += n;
    next_piece[index]++;
}

static void walk_worker(uint32_t worker) {
    struct tqi_work w = plan.division.by_block
                            ? tqi_block_work(plan.cuts, 0, plan.n, worker)
                            : tqi_row_work(&plan.row, plan.cuts, 0, plan.n, worker);
    CHECK(w.n_tiles > 0 || plan.way.whole, "worker %u has nothing to do", worker);
    CHECK(w.here == tqi_least(w.n_tiles, plan.cuts[w.segment].n_tiles - w.tile), "worker %u: here",
          worker);
    CHECK(w.kv_head == w.item / plan.cuts[w.segment].items_per_head, "worker %u: kv head", worker);
    CHECK(w.ids == plan.cuts[w.segment].first_tile + w.tile, "worker %u: ids", worker);
    if (w.n_tiles == 0) /* the part of an item without tiles */
        next_piece[plan.cuts[w.segment].first_item + w.item]++;
    while (w.n_tiles) {
        CHECK(plan.division.by_block || w.tile % plan.row.turn == 0,
              "worker %u begins within a turn", worker);
        CHECK(w.segment < plan.n, "worker %u walks beyond the last segment", worker);
        const struct tqi_cut *cut = &plan.cuts[w.segment];
        uint32_t n = (uint32_t)tqi_least(w.n_tiles, cut->n_tiles - w.tile);
        if (cut->n_tiles)
            take_tiles(w.segment, w.item, w.tile, n,
                       tqi_piece_of(&plan.division, worker, cut->first_item + w.item));
        w.n_tiles -= n;
        w.tile = 0;
        int last = cut->n_tiles == 0 || w.item + 1 == tqi_n_items(&plan.way, cut);
        w.item = last ? 0 : w.item + 1;
        w.segment += (uint32_t)last;
    }
}

/* Walks the division at hand and compares with the pieces that the merge reads. */
static void walk(void) {
    memset(done, 0, sizeof done);
    memset(written, 0, sizeof written);
    for (uint32_t i = 0; i < plan.items; i++)
        next_piece[i] = tqi_pieces_of(&plan.row, &plan.division, plan.cuts, plan.n, i).first;
    for (uint32_t w = 0; w < plan.division.n_workers; w++)
        walk_worker(w);
    for (uint32_t s = 0; s < plan.n; s++)
        for (uint32_t i = 0; i < tqi_n_items(&plan.way, &plan.cuts[s]); i++) {
            uint32_t item = plan.cuts[s].first_item + i;
            struct tqi_pieces p = tqi_pieces_of(&plan.row, &plan.division, plan.cuts, plan.n, item);
            CHECK(done[item] == plan.cuts[s].n_tiles, "item %u: %u of %u tiles", item, done[item],
                  plan.cuts[s].n_tiles);
            CHECK(next_piece[item] == p.first + p.n, "item %u has pieces that nobody joins", item);
        }
}

/* ---- tests --------------------------------------------------------------------------------------
 */

static struct tqi_way way_of(uint32_t group) {
    return (struct tqi_way){.rows = 8,
                            .n_heads = 8,
                            .group = group,
                            .n_blocks = 132,
                            .n_workers = 132 * 12,
                            .page_tokens = 64,
                            .causal = 1};
}

static struct tqi_segment segment_of(uint64_t length, uint32_t n_queries) {
    return (struct tqi_segment){.length = length, .n_queries = n_queries};
}

static void test_visible(void **state) {
    (void)state;
    uint64_t from;
    struct tqi_segment s = segment_of(10, 4);
    for (uint32_t q = 0; q < 4; q++) {
        assert_int_equal(tqi_visible(&s, 1, 0, q, &from), 7 + q);
        assert_int_equal(from, 0);
        assert_int_equal(tqi_visible(&s, 0, 0, q, &from), 10);
        assert_int_equal(tqi_visible(&s, 1, 3, q, &from), 7 + q);
        assert_int_equal(from, 4 + q);
        assert_int_equal(tqi_visible(&s, 0, 3, q, &from), 10);
        assert_int_equal(from, 7);
    }
    s.behind = 5; /* more of the sequence's queries in another segment */
    assert_int_equal(tqi_visible(&s, 1, 0, 0, &from), 2);
    s.length = 3; /* fewer tokens than queries: the first see nothing */
    assert_int_equal(tqi_visible(&s, 1, 0, 0, &from), 0);
    assert_int_equal(tqi_visible(&s, 1, 2, 3, &from), 0);
    assert_int_equal(from, 0);
}

/* Tokens in front and at the back that are kept in 16 bits: what is seen is what is left of the
 * range without them, and empty ranges have no tile. */
static void test_hidden(void **state) {
    (void)state;
    for (uint32_t front = 0; front <= 300; front += 50)
        for (uint32_t back = 0; front + back <= 300; back += 30)
            for (uint32_t window = 0; window <= 320; window += 40) {
                struct tqi_segment plain = segment_of(300, 6), s = plain;
                struct tqi_way way = way_of(8);
                s.front = front;
                s.back = back;
                way.window = window;
                way.hides = 1;
                uint64_t first, last, from, unused;
                for (uint32_t q = 0; q < 6; q++) {
                    uint64_t all = tqi_visible(&plain, 1, window, q, &first);
                    uint64_t to = tqi_visible(&s, 1, window, q, &from);
                    last = all < 300 - back ? all : 300 - back;
                    assert_int_equal(to, last);
                    first = first > front ? first : front;
                    assert_int_equal(from, first < last ? first : last);
                }
                struct tqi_cut cut = tqi_cut_segment(&way, &s);
                (void)tqi_visible(&s, 1, window, 0, &from);
                last = tqi_visible(&s, 1, window, 5, &unused);
                assert_int_equal(cut.n_tiles, from < last ? (last + 63) / 64 - from / 64 : 0);
                assert_int_equal(cut.items_per_head, tqi_items_per_head(&way, 6));
                way.hides = 0; /* for layers that keep none of them */
                struct tqi_cut all = tqi_cut_segment(&way, &plain);
                cut = tqi_cut_segment(&way, &s);
                assert_memory_equal(&cut, &all, sizeof cut);
            }
}

static void random_batch(uint64_t *seed) {
    static const uint32_t groups[] = {1, 3, 4, 8, 16, 71};
    plan.way = way_of(groups[unit_below(seed, COUNT(groups))]);
    plan.way.n_heads = 1 + unit_below(seed, 4);
    plan.way.causal = unit_below(seed, 2);
    plan.way.n_workers = 1 + unit_below(seed, 300);
    plan.way.n_blocks = 1 + unit_below(seed, 140);
    plan.way.turn = 1u << unit_below(seed, 3);
    plan.way.entry = unit_below(seed, 3) ? 1 + unit_below(seed, 12) : 0;
    plan.way.window = unit_below(seed, 3) ? 0 : 1 + unit_below(seed, 500);
    plan.way.rows = 4u << unit_below(seed, 3);
    plan.n = unit_below(seed, 12);
    for (uint32_t s = 0; s < plan.n; s++) {
        uint64_t length = unit_below(seed, 4) ? unit_below(seed, 4000) : 0;
        plan.segments[s] = segment_of(length, 1 + unit_below(seed, 9));
        plan.segments[s].behind = unit_below(seed, 4) ? 0 : unit_below(seed, 100);
    }
}

static void test_random_batches(void **state) {
    (void)state;
    uint64_t seed = 7;
    int with_entries = 0, with_long_entries = 0;
    for (int i = 0; i < 3000; i++) {
        random_batch(&seed);
        cut_segments();
        divide_in_row();
        with_entries += plan.row.entry && plan.row.turn > 1;
        with_long_entries += plan.row.entry > 4 && plan.row.turn == 4;
        walk();
        if (plan.busy && plan.busy <= plan.way.n_blocks) {
            divide_by_block(smallest_size());
            CHECK(plan.division.n_workers <= plan.way.n_blocks, "%u parts for %u blocks",
                  plan.division.n_workers, plan.way.n_blocks);
            walk();
        }
        plan.way.whole = 1;
        if (plan.items && plan.items <= plan.way.n_blocks) {
            divide_by_block(smallest_size());
            CHECK(plan.division.n_workers <= plan.way.n_blocks, "%u parts for %u blocks",
                  plan.division.n_workers, plan.way.n_blocks);
            walk();
        }
        plan.way.whole = 0;
        plan.way.fixed = 1;
        divide_by_block(0);
        walk();
    }
    assert_true(with_entries > 100);
    assert_true(with_long_entries > 20);
}

/* Very long sequences: 64-bit tiles, one segment with all the rest empty. */
static void test_long(void **state) {
    (void)state;
    plan.way = way_of(8);
    plan.n = 3;
    plan.segments[0] = segment_of(0, 1);
    plan.segments[1] = segment_of(UINT64_C(1) << 37, 1);
    plan.segments[2] = segment_of(5, 1);
    cut_segments();
    assert_true(plan.tiles > UINT32_MAX);
    divide_in_row();
    walk();
}

/* Parts of a segment do not depend on what is beside it. */
static void test_fixed(void **state) {
    (void)state;
    for (uint64_t length = 0; length < 100000; length += 777) {
        plan.way = way_of(8);
        plan.way.fixed = 1;
        plan.n = 1;
        plan.segments[0] = segment_of(length, 1);
        cut_segments();
        divide_by_block(0);
        struct tqi_cut alone = plan.cuts[0];
        plan.n = 3;
        plan.segments[2] = plan.segments[0];
        plan.segments[0] = segment_of(33, 2);
        plan.segments[1] = segment_of(32768, 1);
        cut_segments();
        divide_by_block(0);
        assert_int_equal(plan.cuts[2].parts, alone.parts);
        assert_int_equal(plan.cuts[2].n_tiles, alone.n_tiles);
        assert_int_equal(plan.cuts[2].first_tile, alone.first_tile);
        assert_true(alone.parts <= TQI_FIXED_PARTS);
    }
}

static uint32_t prefers_blocks(uint32_t batch, uint64_t shortest, uint64_t longest) {
    plan.way = way_of(8);
    plan.n = batch;
    for (uint32_t s = 0; s < batch; s++)
        plan.segments[s] = segment_of(shortest + (longest - shortest) * (s + 1) / batch, 1);
    cut_segments();
    if (plan.busy > plan.way.n_blocks)
        return 0;
    return tqi_prefers_blocks(&plan.way, plan.tiles, plan.longest, smallest_size());
}

/* The choice at shapes of the benchmark, for 132 multiprocessors. */
static void test_choice(void **state) {
    (void)state;
    assert_true(prefers_blocks(1, 32768, 32768));
    assert_true(prefers_blocks(4, 32768, 32768));
    assert_true(prefers_blocks(16, 32768, 32768));
    assert_true(prefers_blocks(1, 131072, 131072));
    assert_false(prefers_blocks(16, 0, 32768));
    assert_false(prefers_blocks(12, 32768, 32768));
    assert_false(prefers_blocks(64, 4096, 4096));
}

/* Entries that take long: a worker of many short items gets fewer tiles, and none gets nothing. */
static void test_entries(void **state) {
    (void)state;
    plan.way = way_of(8);
    plan.way.n_workers = 132 * 4;
    plan.way.turn = 4;
    plan.n = 64;
    for (uint32_t s = 0; s < plan.n; s++)
        plan.segments[s] = segment_of(512 * (s + 1), 1);
    uint32_t least = UINT32_MAX;
    for (uint32_t entry = 1; entry <= 16; entry *= 2) {
        plan.way.entry = entry;
        cut_segments();
        divide_in_row();
        assert_int_equal(plan.row.entry, entry);
        walk();
        struct tqi_work first = tqi_row_work(&plan.row, plan.cuts, 0, plan.n, 0);
        CHECK(first.n_tiles < least, "%u tiles, before %u", first.n_tiles, least);
        least = first.n_tiles;
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_visible),        cmocka_unit_test(test_hidden),
        cmocka_unit_test(test_random_batches), cmocka_unit_test(test_long),
        cmocka_unit_test(test_fixed),          cmocka_unit_test(test_choice),
        cmocka_unit_test(test_entries),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
