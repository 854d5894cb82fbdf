/* A step as plan() writes it to staging memory, in the places that it will have in a room. */
#ifndef TQI_CUDA_STEP_IMAGE_H
#define TQI_CUDA_STEP_IMAGE_H

#include "room.h"

extern "C" {
#include "device/device.h"
}

namespace tqi {

/* Page ids stand behind the room's part of the step. */
struct StepImage {
    const Room *room;
    uint8_t *memory;
    const uint32_t *table; /* where the page ids will be on the device */
    uint32_t n_layers;

    template <class T> T *at(T *place) const {
        return reinterpret_cast<T *>(memory + (reinterpret_cast<uint8_t *>(place) - room->memory));
    }
};

/* Pages of a sequence that the step reads or writes. */
static inline uint64_t pages_of_step(const tqi_step_seq &seq, uint64_t page_tokens) {
    return tqi_ceil(seq.length + seq.n_append, page_tokens);
}

/* Words of the table that a step takes: page ids, then pages of tokens kept in 16 bits. */
uint64_t table_words(const tqi_step &step, uint32_t n_layers, uint64_t page_tokens);

/* Tokens of a page that share words. */
static inline uint32_t group_tokens(uint64_t page_tokens) {
    return (uint32_t)tqi_least(page_tokens, TQI_GROUP_MAX);
}

struct StepCounts {
    uint32_t pieces[2];  /* of the appends, cut at token groups and at pages */
    uint32_t appended;   /* tokens */
    uint32_t tiles;      /* of query rows that prefill kernels can take */
    uint32_t plain_rows; /* query tokens of the other sequences */
    uint32_t kept;       /* runs of tokens kept in 16 bits */
    uint64_t longest;    /* tokens of a sequence, those of the step included */
};

/* Tokens of a sequence that are kept in 16 bits: in every layer at least `hidden`, with the numbers
 * of the pages that some layer has tokens in: [0, n_head) and [first, last). */
struct KeptSpan {
    Hidden hidden;
    uint32_t n_head;
    uint64_t first, last;
};
KeptSpan kept_span_of(const tqi_step_seq &seq, uint32_t n_layers);
/* kept_image.cu: what is kept of sequence `seq`, for its segments [first, last) and its runs from
 * number n_runs on; returns their number. at: of its first page in the table, counted in those. */
uint32_t write_kept(const StepImage &image, const tqi_step_seq &seq, const tqi_pool &pool,
                    uint32_t first, uint32_t last, uint64_t at, uint32_t n_runs);

/* group: query heads of a kv head. */
StepCounts write_step(const StepImage &image, const tqi_step &step, uint64_t page_tokens,
                      uint32_t group);

} /* namespace tqi */

#endif
