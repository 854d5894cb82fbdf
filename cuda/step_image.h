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

    template <class T> T *at(T *place) const {
        return reinterpret_cast<T *>(memory + (reinterpret_cast<uint8_t *>(place) - room->memory));
    }
};

/* Pages of a sequence that the step reads or writes. */
static inline uint64_t pages_of_step(const tqi_step_seq &seq, uint64_t page_tokens) {
    return tqi_ceil(seq.length + seq.n_append, page_tokens);
}

/* Tokens of a page that share words. */
static inline uint32_t group_tokens(uint64_t page_tokens) {
    return (uint32_t)tqi_least(page_tokens, TQI_GROUP_MAX);
}

struct StepCounts {
    uint32_t pieces[2];  /* of the appends, cut at token groups and at pages */
    uint32_t appended;   /* tokens */
    uint32_t tiles;      /* of query rows that prefill kernels can take */
    uint32_t plain_rows; /* query tokens of the other sequences */
};

/* group: query heads of a kv head. */
StepCounts write_step(const StepImage &image, const tqi_step &step, uint64_t page_tokens,
                      uint32_t group);

} /* namespace tqi */

#endif
