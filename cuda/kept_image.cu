/* Tokens kept in 16 bits, in the image of a step. */
#include "step_image.h"

namespace tqi {

KeptSpan kept_span_of(const tqi_step_seq &seq, uint32_t n_layers) {
    KeptSpan span = {};
    const uint64_t end = seq.length + seq.n_append;
    uint64_t least_sinks = UINT64_MAX, most_sinks = 0, first = end, last_start = 0;
    if (!seq.exact)
        return span;
    for (uint32_t l = 0; l < n_layers; l++) {
        const tqi_exact_view &e = seq.exact[l];
        least_sinks = tqi_least(least_sinks, e.sinks);
        most_sinks = e.sinks > most_sinks ? e.sinks : most_sinks;
        first = tqi_least(first, e.start);
        last_start = e.start > last_start ? e.start : last_start;
    }
    span.hidden = Hidden{(uint32_t)least_sinks, (uint32_t)(end - last_start)};
    span.n_head = (uint32_t)tqi_ceil(most_sinks, TQI_EXACT_TOKENS);
    span.first = first / TQI_EXACT_TOKENS;
    span.first = span.first > span.n_head ? span.first : span.n_head;
    span.last = first < end ? tqi_ceil(end, TQI_EXACT_TOKENS) : 0;
    span.last = span.last > span.first ? span.last : span.first;
    return span;
}

namespace {

KeptPage page_at(const tqi_pool &pool, const tqi_exact_view &e, uint64_t number) {
    uint32_t page = tqi_exact_page(&e, number);
    /* a page that is shorter in some layers than in others may have a hole in front */
    if (page >= pool.n_pages)
        return KeptPage{};
    return KeptPage{(uint64_t)(uintptr_t)pool.chunks[page / pool.chunk_pages],
                    page % pool.chunk_pages};
}

/* New tokens [from, to). */
uint32_t write_runs(KeptRun *to_runs, const tqi_step_seq &seq, const tqi_pool &pool, uint64_t from,
                    uint64_t to, uint32_t n) {
    for (uint64_t count; from < to; from += count) {
        uint32_t slot = (uint32_t)(from % TQI_EXACT_TOKENS);
        count = tqi_least(to - from, TQI_EXACT_TOKENS - slot);
        to_runs[n++] = KeptRun{page_at(pool, *seq.exact, from / TQI_EXACT_TOKENS), slot,
                               (uint32_t)count, seq.append_row + (uint32_t)(from - seq.length), 0};
    }
    return n;
}

} /* namespace */

uint32_t write_kept(const StepImage &image, const tqi_step_seq &seq, const tqi_pool &pool,
                    uint32_t first, uint32_t last, uint64_t at, uint32_t n_runs) {
    const Room &room = *image.room;
    const KeptSpan span = kept_span_of(seq, image.n_layers);
    const uint64_t end = seq.length + seq.n_append;
    KeptPage *table = reinterpret_cast<KeptPage *>(image.memory + room.step_bytes) + at;
    for (uint64_t i = 0; i < span.n_head; i++)
        *table++ = page_at(pool, *seq.exact, i);
    for (uint64_t i = span.first; i < span.last; i++)
        *table++ = page_at(pool, *seq.exact, i);
    for (uint32_t s = first; s < last; s++) {
        image.at(room.kept_seqs)[s] = KeptSeq{(int64_t)at, span.first, span.n_head, {0, 0, 0}};
        Hidden *hidden = image.at(room.hidden) + s;
        for (uint32_t l = 0; l < image.n_layers; l++, hidden += room.limits.segments)
            *hidden = Hidden{(uint32_t)seq.exact[l].sinks, (uint32_t)(end - seq.exact[l].start)};
        *hidden = Hidden{0, 0};
    }
    uint64_t until = tqi_least(end, seq.keep_until);
    n_runs = write_runs(image.at(room.kept_runs), seq, pool, seq.length, until, n_runs);
    uint64_t rest = until > seq.length ? until : seq.length;
    return write_runs(image.at(room.kept_runs), seq, pool,
                      seq.keep_from > rest ? seq.keep_from : rest, end, n_runs);
}

} /* namespace tqi */
