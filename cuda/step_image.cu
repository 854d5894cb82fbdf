/* Writing a step: segments of query rows, pieces of appends, page ids. */
#include "step_image.h"

namespace tqi {
namespace {

/* Query rows of a sequence as segments that end at multiples of block_rows. */
uint32_t write_segments(const StepImage &image, const tqi_step_seq &seq, uint32_t ids,
                        uint32_t tiled, Hidden hidden, uint32_t n) {
    const uint32_t block = image.room->limits.block_rows;
    tqi_segment *segments = image.at(image.room->step.segments);
    uint32_t *row_segment = image.at(image.room->step.row_segment);
    for (uint32_t first = 0, count; first < seq.n_query; first += count) {
        uint32_t row = seq.query_row + first;
        count = (uint32_t)tqi_least(seq.n_query - first, block - row % block);
        segments[n] = tqi_segment{seq.length + seq.n_append,
                                  ids,
                                  count,
                                  row,
                                  seq.n_query - first - count,
                                  tiled,
                                  seq.n_append,
                                  hidden.front,
                                  hidden.back};
        for (uint32_t i = 0; i < count; i++)
            row_segment[row + i] = n;
        n++;
    }
    return n;
}

/* All query tokens of a sequence in tiles. */
uint32_t write_tiles(RowTile *to, const tqi_step_seq &seq, uint32_t ids, uint32_t group,
                     uint32_t n) {
    tqi_segment segment = {
        seq.length + seq.n_append, ids, seq.n_query, seq.query_row, 0, 1, seq.n_append, 0, 0};
    for (uint64_t row = 0; row < (uint64_t)seq.n_query * group; row += TILE_ROWS)
        to[n++] = RowTile{segment, (uint32_t)row, {0, 0, 0}};
    return n;
}

/* For every block of rows its first segment. */
void write_blocks(const StepImage &image, uint32_t n_rows, uint32_t n_segments) {
    const Limits &l = image.room->limits;
    const uint32_t *row_segment = image.at(image.room->step.row_segment);
    uint32_t *blocks = image.at(image.room->step.block_segment);
    uint32_t n = launches_of(l, l.rows) * (l.launch_rows / l.block_rows) + 1;
    for (uint32_t i = 0; i < n; i++) {
        uint64_t row = (uint64_t)i * l.block_rows;
        blocks[i] = row < n_rows ? row_segment[row] : n_segments;
    }
}

/* New tokens of a sequence, cut at multiples of `unit` tokens of a page. */
uint32_t write_pieces(AppendPiece *to, const tqi_step_seq &seq, uint64_t page_tokens, uint32_t unit,
                      uint32_t n) {
    for (uint32_t done = 0, count; done < seq.n_append; done += count) {
        uint64_t token = seq.length + done;
        uint32_t slot = (uint32_t)(token % page_tokens);
        count = (uint32_t)tqi_least(seq.n_append - done, unit - slot % unit);
        to[n++] = AppendPiece{seq.pages[token / page_tokens], slot, count, seq.append_row + done};
    }
    return n;
}

/* Pages of kept tokens stand behind the ids of all sequences, at a multiple of their size. */
uint64_t ids_of_step(const tqi_step &step, uint64_t page_tokens) {
    const uint64_t unit = sizeof(KeptPage) / sizeof(uint32_t);
    uint64_t n = 0;
    for (uint32_t i = 0; i < step.n_seqs; i++)
        n += pages_of_step(step.seqs[i], page_tokens);
    return tqi_ceil(n, unit) * unit;
}

} /* namespace */

uint64_t table_words(const tqi_step &step, uint32_t n_layers, uint64_t page_tokens) {
    uint64_t pages = 0;
    for (uint32_t i = 0; i < step.n_seqs; i++) {
        KeptSpan span = kept_span_of(step.seqs[i], n_layers);
        pages += span.n_head + (span.last - span.first);
    }
    return ids_of_step(step, page_tokens) + pages * (sizeof(KeptPage) / sizeof(uint32_t));
}

StepCounts write_step(const StepImage &image, const tqi_step &step, uint64_t page_tokens,
                      uint32_t group) {
    const Room &room = *image.room;
    uint32_t *table = reinterpret_cast<uint32_t *>(image.memory + room.step_bytes);
    uint32_t n_segments = 0, n_ids = 0;
    StepCounts counts = {};
    uint64_t kept_at = ids_of_step(step, page_tokens) * sizeof(uint32_t) / sizeof(KeptPage);
    for (uint32_t i = 0; i < step.n_seqs; i++) {
        const tqi_step_seq &seq = step.seqs[i];
        uint64_t n_pages = pages_of_step(seq, page_tokens);
        bool tiled = room.limits.tiles && takes_tiles(seq.n_query, group);
        KeptSpan kept = kept_span_of(seq, image.n_layers);
        uint32_t segment = n_segments;
        n_segments = write_segments(image, seq, n_ids, tiled, kept.hidden, n_segments);
        if (seq.exact) {
            counts.kept =
                write_kept(image, seq, *step.exact_pool, segment, n_segments, kept_at, counts.kept);
            kept_at += kept.n_head + (kept.last - kept.first);
        }
        if (tiled)
            counts.tiles = write_tiles(image.at(room.tiles), seq, n_ids, group, counts.tiles);
        else
            counts.plain_rows += seq.n_query;
        counts.appended += seq.n_append;
        counts.longest = max(counts.longest, seq.length + seq.n_append);
        for (int unit = 0; unit < 2; unit++)
            counts.pieces[unit] = write_pieces(
                image.at(room.pieces[unit]), seq, page_tokens,
                unit ? (uint32_t)page_tokens : group_tokens(page_tokens), counts.pieces[unit]);
        memcpy(table + n_ids, seq.pages, n_pages * sizeof *table);
        n_ids += (uint32_t)n_pages;
    }
    write_blocks(image, step.query_rows, n_segments);
    *image.at(room.step.head) = StepHead{image.table,
                                         step.query_rows,
                                         counts.pieces[0],
                                         counts.pieces[1],
                                         counts.tiles,
                                         counts.kept,
                                         0};
    return counts;
}

} /* namespace tqi */
