/* Rows in 16 bits that go along with codes: from one sequence to another, to bytes and back. Pages
 * in bytes hold the rows that there are one after the other, the first ones of a range, then the
 * last ones. */
#ifndef TQI_API_KEPT_H
#define TQI_API_KEPT_H

#include "api/snapshot.h"
#include "api/transfer.h"
#include "page/exact_edit.h"

/* Rows of one layer for n tokens. */
struct tqi_kept {
    tq_format k_format, v_format; /* bf16 or f16; 0 where the layer has no type yet, or no rows */
    uint64_t n;
    struct tqi_exact_runs runs;
    struct tqi_page_layout layout;
    uint32_t n_heads;
    const uint8_t *bytes; /* pages in a row, or NULL: the part of a sequence */
    const tq_cache *cache;
    const struct tqi_exact *part;
    uint32_t layer;
    uint64_t head_at, tail_at; /* where in the pages the first token of each run is */
};
/* Of tokens [first, + n) of a sequence. */
struct tqi_kept tqi_kept_of_seq(const tq_cache *cache, const struct tqi_seq *seq, uint32_t layer,
                                uint64_t first, uint64_t n);

/* ---- bytes --------------------------------------------------------------------------- */

/* The rows section of a snapshot of these tokens. */
tq_status tqi_kept_bytes(const tq_cache *cache, const struct tqi_seq *seq, uint64_t first,
                         uint64_t n, size_t *out);
tq_status tqi_kept_save(const tq_cache *cache, const struct tqi_seq *seq, uint64_t first,
                        uint64_t n, const struct tqi_scratch *scratch, uint8_t *section);

/* Walks over the rows section of a snapshot, layer by layer; a snapshot without one keeps none. */
struct tqi_kept_reader {
    const struct tqi_container *snapshot;
    uint32_t layer;
    uint64_t at; /* in the section */
};
struct tqi_kept_reader tqi_kept_open(const struct tqi_container *snapshot);
/* TQ_ERR_CORRUPT when the section is too short, or speaks of what can't be. */
tq_status tqi_kept_next(struct tqi_kept_reader *r, struct tqi_kept *out);

/* ---- sequences ----------------------------------------------------------------------- */

/* TQ_ERR_MISMATCH when the layer holds rows of another 16-bit type. */
tq_status tqi_kept_match(const tq_cache *cache, uint32_t layer, const struct tqi_kept *kept,
                         const char *what);
/* A layer without a type takes the rows'. */
tq_status tqi_kept_set_type(tq_cache *cache, uint32_t layer, const struct tqi_kept *kept);
/* Puts the rows that the cache keeps behind the tokens of a sequence, which must have room. */
tq_status tqi_kept_join(tq_cache *cache, const struct tqi_seq *seq, uint32_t layer,
                        const struct tqi_kept *kept, const struct tqi_scratch *scratch);
/* Then, with all layers written and before lengths change: they are exact. */
void tqi_kept_joined(tq_cache *cache, struct tqi_seq *seq, uint32_t layer,
                     const struct tqi_kept *kept);
/* Moves rows to the pages of a sequence that tokens [first, first + n) leave. */
tq_status tqi_kept_cut(tq_cache *cache, const struct tqi_seq *seq, struct tqi_exact_cut *cut,
                       const struct tqi_scratch *scratch);

#endif
