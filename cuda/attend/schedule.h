/*
 * How attention over a ragged batch is cut into work. Plain C that the host and CUDA share:
 * test/unit/test_schedule.c proves the arithmetic without a GPU.
 *
 * A *segment* is a run of query tokens of one sequence, an *item* a kv head and a tile of
 * `rows` query rows of a segment, its *tiles* the pages that the rows can see. Items are
 * numbered segment first, then kv head, then tile of rows. A *worker* (a warp or a block of
 * threads) takes tiles; what it leaves of an item is a *piece*, a partial state of softmax,
 * and the pieces of an item are joined in order.
 *
 * Two ways to share the tiles out:
 *     row    the tiles of all items stand in a row that is cut evenly over the workers, where
 *            workers take several at a time between those of an item; entering an item counts
 *            as a tile or some
 *     block  every item is cut into parts, a worker per part: few items, or results that
 *            must not depend on what else is in the batch
 */
#ifndef TQI_CUDA_ATTEND_SCHEDULE_H
#define TQI_CUDA_ATTEND_SCHEDULE_H

#include <stdint.h>

#ifdef __CUDACC__
#define TQI_BOTH __host__ __device__ static inline
#else
#define TQI_BOTH static inline
#endif

/* Parts of an item where results must not depend on the batch. */
enum { TQI_FIXED_PARTS = 16, TQI_FIXED_TOKENS = 2048 };

struct tqi_segment {
    uint64_t length;     /* tokens of the sequence */
    int64_t ids;         /* of its first page in the table */
    uint32_t n_queries;  /* not 0 */
    uint32_t query_row;  /* of its first query in the callers' arrays */
    uint32_t behind;     /* query tokens of the sequence behind the last of the segment */
    uint32_t tiled : 1;  /* its sequence has so many rows that prefill kernels can take them */
    uint32_t n_new : 31; /* tokens at the end that kernels behind the plan may write */
    uint64_t front;      /* the first tokens, which are kept in 16 bits and seen there, */
    uint64_t back;       /* and the last ones */
};

/* What decides how a launch is cut, beside the segments. */
struct tqi_way {
    uint32_t rows;      /* of an item */
    uint32_t n_heads;   /* kv heads */
    uint32_t group;     /* query heads of a kv head */
    uint32_t n_blocks;  /* workers of the block way; 0 = row way only */
    uint32_t n_workers; /* workers of the row way */
    uint32_t page_tokens;
    uint32_t causal;
    uint32_t fixed;  /* parts depend on the segment alone */
    uint32_t whole;  /* block way, and items without tiles have a part as well */
    uint32_t skips;  /* tiled segments, which prefill kernels take */
    uint32_t hides;  /* front and back of segments */
    uint32_t turn;   /* tiles of an item that workers of the row way take at a time; 0 = 1 */
    uint32_t entry;  /* tiles that entering an item takes one of them as long as; 0 = 1 */
    uint64_t window; /* last tokens that a query sees; 0 = all */
};

/* A segment as it is cut. */
struct tqi_cut {
    uint64_t tiles_before;   /* tiles of all items of the segments in front */
    uint32_t first_tile;     /* page that the first query sees first */
    uint32_t n_tiles;        /* of an item */
    uint32_t items_per_head; /* tiles of rows */
    uint32_t first_item;
    uint32_t parts, first_piece; /* block way */
};

struct tqi_division {
    uint32_t by_block;  /* the way */
    uint32_t n_workers; /* that have something to do */
};

/* Where a worker begins. */
struct tqi_work {
    uint32_t segment; /* of the step */
    uint32_t item;    /* of the segment */
    uint32_t tile;    /* of the item */
    uint32_t n_tiles; /* in this item and those behind it */
    uint32_t here;    /* of them in this item */
    uint32_t kv_head; /* of the item */
    int64_t ids;      /* of the first tile's page, in the table */
};

/* Where the rows of a query token stand. */
struct tqi_row_place {
    uint32_t first_item; /* of its segment, in the launch */
    uint32_t items_per_head;
    uint32_t query; /* of the segment */
    uint32_t exists;
};

/* The pieces of an item lie one behind another. */
struct tqi_pieces {
    uint32_t first, n;
};

TQI_BOTH uint64_t tqi_least(uint64_t a, uint64_t b) {
    return a < b ? a : b;
}

/* A GPU divides 32 bits several times faster. */
TQI_BOTH uint64_t tqi_divide(uint64_t n, uint64_t by) {
    return (n | by) >> 32 ? n / by : (uint32_t)n / (uint32_t)by;
}

/* n / by where a GPU seldom has to divide: rows of one query token are one item. */
TQI_BOTH uint32_t tqi_quotient(uint32_t n, uint32_t by) {
    return n < by ? 0 : by == 1 ? n : n / by;
}

TQI_BOTH uint64_t tqi_ceil(uint64_t n, uint64_t by) {
    return n ? tqi_divide(n - 1, by) + 1 : 0;
}

/* ---- a segment ------------------------------------------------------------------------------ */

/* Tokens that query `query` of a segment sees: [*from, to). */
TQI_BOTH uint64_t tqi_visible(const struct tqi_segment *s, uint32_t causal, uint64_t window,
                              uint32_t query, uint64_t *from) {
    uint64_t later = causal ? (uint64_t)s->behind + (s->n_queries - 1 - query) : 0;
    uint64_t to = s->length > later ? s->length - later : 0;
    *from = window && to > window ? to - window : 0;
    to = tqi_least(to, s->length - s->back);
    *from = tqi_least(*from > s->front ? *from : s->front, to);
    return to;
}

TQI_BOTH uint32_t tqi_items_per_head(const struct tqi_way *way, uint32_t n_queries) {
    return (uint32_t)tqi_ceil((uint64_t)n_queries * way->group, way->rows);
}

TQI_BOTH uint32_t tqi_n_items(const struct tqi_way *way, const struct tqi_cut *cut) {
    return way->n_heads * cut->items_per_head;
}

TQI_BOTH uint64_t tqi_n_tiles(const struct tqi_way *way, const struct tqi_cut *cut) {
    return (uint64_t)tqi_n_items(way, cut) * cut->n_tiles;
}

/* Everything but what depends on other segments. */
TQI_BOTH struct tqi_cut tqi_cut_segment(const struct tqi_way *way, const struct tqi_segment *s) {
    struct tqi_cut cut = {0, 0, 0, 0, 0, 0, 0};
    struct tqi_segment seen = *s;
    uint64_t from, later;
    if (way->skips && s->tiled)
        return cut;
    if (!way->hides)
        seen.front = seen.back = 0;
    uint64_t to = tqi_visible(&seen, way->causal, way->window, s->n_queries - 1, &later);
    (void)tqi_visible(&seen, way->causal, way->window, 0, &from);
    cut.items_per_head = tqi_items_per_head(way, s->n_queries);
    if (from >= to)
        return cut;
    cut.first_tile = (uint32_t)tqi_divide(from, way->page_tokens);
    cut.n_tiles = (uint32_t)tqi_ceil(to, way->page_tokens) - cut.first_tile;
    return cut;
}

/* Parts of an item, of at most `size` tiles unless they must not depend on the batch. */
TQI_BOTH uint32_t tqi_parts(const struct tqi_way *way, uint32_t n_tiles, uint32_t size) {
    uint64_t fixed = tqi_ceil((uint64_t)n_tiles * way->page_tokens, TQI_FIXED_TOKENS);
    uint32_t parts =
        (uint32_t)(way->fixed ? tqi_least(fixed, TQI_FIXED_PARTS) : tqi_ceil(n_tiles, size));
    return way->whole && parts == 0 ? 1 : parts;
}

/* ---- the choice ------------------------------------------------------------------------------ */

/* Tiles that entering an item takes a worker of the row way as long as. */
TQI_BOTH uint32_t tqi_entry(const struct tqi_way *way) {
    return way->entry ? way->entry : 1;
}

/* Whether parts of at most `size` tiles finish before an even cut does; in times of a tile.
 * Joining costs about two of them, and in the row way pieces pile up in long items, and workers
 * enter a second one. */
TQI_BOTH uint32_t tqi_prefers_blocks(const struct tqi_way *way, uint64_t total, uint32_t longest,
                                     uint32_t size) {
    if (way->whole)
        return 1;
    uint64_t warps = way->n_workers / way->n_blocks;
    uint64_t by_block = tqi_ceil(size, warps);
    uint64_t in_row = tqi_ceil(total, way->n_workers);
    uint64_t pieces = longest / in_row + 1;
    return by_block <= in_row + pieces / 8 + (tqi_entry(way) - 1) / 2;
}

/* ---- shares --------------------------------------------------------------------------------- */

/* First of n things of a share when they are cut into `of` even shares. */
TQI_BOTH uint64_t tqi_share_begin(uint64_t n, uint64_t share, uint64_t of) {
    return tqi_divide(n * share, of); /* stays below 2^64: tiles below 2^40, shares below 2^20 */
}

/* The share that holds thing x: the inverse. */
TQI_BOTH uint64_t tqi_share_of(uint64_t x, uint64_t n, uint64_t of) {
    return tqi_divide((x + 1) * of - 1, n);
}

TQI_BOTH uint32_t tqi_segment_of_piece(const struct tqi_cut *cuts, uint32_t n, uint32_t x) {
    uint32_t low = 0;
    while (n > 1) {
        uint32_t half = n / 2;
        low = cuts[low + half].first_piece <= x ? low + half : low;
        n -= half;
    }
    return low;
}

TQI_BOTH uint32_t tqi_segment_of_item(const struct tqi_cut *cuts, uint32_t n, uint32_t x) {
    uint32_t low = 0;
    while (n > 1) {
        uint32_t half = n / 2;
        low = cuts[low + half].first_item <= x ? low + half : low;
        n -= half;
    }
    return low;
}

/* ---- the row ---------------------------------------------------------------------------------
 */

/* Entering an item takes its queries, and a piece more. Where it takes no longer than a tile it
 * counts from so many tiles of a worker on. */
enum { TQI_ENTRY_LEAST = 8 };

/* The row is cut by its tiles and by an entry in front of each item. */
struct tqi_row {
    uint64_t tiles;
    uint32_t n_items, n_workers;
    uint32_t entry; /* tiles that an item's entry counts as */
    uint32_t turn;  /* shares begin a multiple of so many tiles from the beginning of an item, so
                       that no worker takes fewer at a time but at the end of an item */
};

/* The row of items that all have tiles, or not (`busy` have). Every worker gets tiles. */
TQI_BOTH struct tqi_row tqi_row_of(const struct tqi_way *way, uint64_t tiles, uint32_t n_items,
                                   uint32_t busy, uint32_t n_workers) {
    struct tqi_row row = {tiles, n_items, n_workers, 0, 1};
    uint32_t entry = tqi_entry(way), turn = way->turn ? way->turn : 1;
    /* a share that is not longer than an entry and a turn could be without tiles */
    uint64_t units = tiles + (uint64_t)entry * n_items, least = entry + turn;
    if (busy == n_items && units >= least * n_workers &&
        (entry > 1 || tiles >= TQI_ENTRY_LEAST * (uint64_t)n_workers))
        row.entry = entry;
    if (tiles >= turn * (uint64_t)n_workers)
        row.turn = turn;
    return row;
}

TQI_BOTH uint64_t tqi_row_units(const struct tqi_row *row) {
    return row->tiles + (uint64_t)row->entry * row->n_items;
}

TQI_BOTH uint64_t tqi_units_before(const struct tqi_row *row, const struct tqi_cut *cut) {
    return cut->tiles_before + (uint64_t)row->entry * cut->first_item;
}

/* Segment of unit x of the row: the last that begins at or before it. */
TQI_BOTH uint32_t tqi_segment_of_unit(const struct tqi_row *row, const struct tqi_cut *cuts,
                                      uint32_t n, uint64_t x) {
    uint32_t low = 0;
    while (n > 1) {
        uint32_t half = n / 2;
        low = tqi_units_before(row, &cuts[low + half]) <= x ? low + half : low;
        n -= half;
    }
    return low;
}

/* Where a worker begins: segment, item of the segment, tile of the item. */
struct tqi_row_start {
    uint32_t segment, item, tile;
};
TQI_BOTH struct tqi_row_start tqi_row_begin(const struct tqi_row *row, const struct tqi_cut *cuts,
                                            uint32_t n, uint32_t worker) {
    uint64_t unit = tqi_share_begin(tqi_row_units(row), worker, row->n_workers);
    struct tqi_row_start at;
    at.segment = tqi_segment_of_unit(row, cuts, n, unit);
    const struct tqi_cut *cut = &cuts[at.segment];
    uint64_t inside = unit - tqi_units_before(row, cut), of_item = cut->n_tiles + row->entry;
    at.item = (uint32_t)tqi_divide(inside, of_item);
    uint32_t of = (uint32_t)(inside - at.item * of_item);
    at.tile = of < row->entry ? 0 : of - row->entry;
    at.tile -= at.tile % row->turn;
    return at;
}

/* Tiles of the row in front of a place. */
TQI_BOTH uint64_t tqi_tiles_before(const struct tqi_cut *cuts, const struct tqi_row_start *at) {
    const struct tqi_cut *cut = &cuts[at->segment];
    return cut->tiles_before + (uint64_t)at->item * cut->n_tiles + at->tile;
}

/* Work of a worker of the row way; cuts are those of the segments from `first` on. Its ids are
 * counted from the segment's. */
TQI_BOTH struct tqi_work tqi_row_work(const struct tqi_row *row, const struct tqi_cut *cuts,
                                      uint32_t first, uint32_t n, uint32_t worker) {
    struct tqi_row_start at = tqi_row_begin(row, cuts, n, worker), next;
    const struct tqi_cut *cut = &cuts[at.segment];
    uint64_t end = row->tiles;
    if (worker + 1 < row->n_workers) {
        next = tqi_row_begin(row, cuts, n, worker + 1);
        end = tqi_tiles_before(cuts, &next);
    }
    struct tqi_work work;
    work.segment = first + at.segment;
    work.item = at.item;
    work.tile = at.tile;
    work.n_tiles = (uint32_t)(end - tqi_tiles_before(cuts, &at));
    work.here = (uint32_t)tqi_least(work.n_tiles, cut->n_tiles - work.tile);
    work.kv_head = work.item / cut->items_per_head;
    work.ids = (int64_t)cut->first_tile + work.tile;
    return work;
}

TQI_BOTH struct tqi_work tqi_block_work(const struct tqi_cut *cuts, uint32_t first, uint32_t n,
                                        uint32_t worker) {
    uint32_t s = tqi_segment_of_piece(cuts, n, worker), parts = cuts[s].parts;
    uint32_t part = (worker - cuts[s].first_piece) % parts;
    struct tqi_work work;
    work.segment = first + s;
    work.item = (worker - cuts[s].first_piece) / parts;
    work.tile = (uint32_t)tqi_share_begin(cuts[s].n_tiles, part, parts);
    work.n_tiles = (uint32_t)tqi_share_begin(cuts[s].n_tiles, part + 1, parts) - work.tile;
    work.here = work.n_tiles;
    work.kv_head = work.item / cuts[s].items_per_head;
    work.ids = (int64_t)cuts[s].first_tile + work.tile;
    return work;
}

/* Piece of a worker in an item (of the launch): consecutive pieces differ in the worker, the
 * item or both, in either way. */
TQI_BOTH uint32_t tqi_piece_of(const struct tqi_division *share, uint32_t worker, uint32_t item) {
    return share->by_block ? worker : worker + item;
}

/* Pieces of an item of the launch; row: how it is cut where workers take shares of it. */
TQI_BOTH struct tqi_pieces tqi_pieces_of(const struct tqi_row *row,
                                         const struct tqi_division *share,
                                         const struct tqi_cut *cuts, uint32_t n, uint32_t item) {
    const struct tqi_cut *cut = &cuts[tqi_segment_of_item(cuts, n, item)];
    uint32_t inside = item - cut->first_item;
    struct tqi_pieces p = {0, 0};
    if (share->by_block) {
        p.first = cut->first_piece + inside * cut->parts;
        p.n = cut->parts;
        return p;
    }
    if (cut->n_tiles == 0)
        return p;
    uint64_t begin =
        tqi_units_before(row, cut) + row->entry + (uint64_t)inside * (cut->n_tiles + row->entry);
    /* who begins within the first turn has all of it */
    uint64_t turn = tqi_least(row->turn, cut->n_tiles), units = tqi_row_units(row);
    uint64_t first = tqi_share_of(begin + turn - 1, units, row->n_workers);
    uint64_t last = tqi_share_of(begin + cut->n_tiles - 1, units, row->n_workers);
    p.first = (uint32_t)first + item;
    p.n = (uint32_t)(last - first) + 1;
    return p;
}

#endif
