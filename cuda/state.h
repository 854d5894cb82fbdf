/* What the CUDA device keeps: per cache a workspace and counters, per layer its constants. */
#ifndef TQI_CUDA_STATE_H
#define TQI_CUDA_STATE_H

#include "host.h"
#include "params.h"
#include "prefill/prefill_job.h"
#include "room.h"

extern "C" {
#include "device/device.h"
}

namespace tqi {

struct State {
    tqi_heap *heap;
    int index; /* of the GPU */
    uint32_t n_sms;
    uint32_t n_kv_heads, n_q_heads, k_dim, v_dim;
    uint32_t page_tokens; /* known with the first layer */
    uint64_t *counts;     /* device: replaced NaNs, infinities */
    uint64_t *fault;      /* device: of a checked call, behind the counts */
    char fault_busy;
    Room one; /* of calls for a single sequence; opened with the first layer */
    KernelShape shapes[MAX_SHAPES];
    uint32_t n_shapes;
    bool sketches;         /* a layer has a sketch: queries carry their projection */
    uint32_t shared_limit; /* bytes of a block */
    uint32_t overlap;      /* launches may overlap */
    KernelChoice choice;
    uint32_t *table; /* page ids of the sequence at hand, [max_pages] */
    uint64_t max_pages;
    uint32_t n_layers;
    /* Where tokens are kept in 16 bits: */
    bool keeps;
    KeptPage *kept_table; /* pages of those of the sequence at hand, [max_kept] */
    uint64_t max_kept;
    float *no_sinks; /* [n_q_heads] NaN */
    /* Copies of shared pages, between use_stream() and append(). */
    cudaStream_t copy_stream;
    cudaError_t copy_error;
};

struct LayerState {
    Side side[2];
    const float *sinks;           /* device: [n_q_heads] logits, NaN = none; the address stays */
    uint32_t table[2][2];         /* K, V: values of the book as bytes */
    const PrefillKernel *prefill; /* for many query rows; NULL = none */
    Side exact[2];                /* of rows kept in 16 bits; their pointers are NULL */
    uint8_t *block;               /* device: signs, matrices, means, scales */
    size_t block_bytes;
};

static inline State *state_of(void *state) {
    return static_cast<State *>(state);
}

static inline LayerState *layer_of(const tqi_layer *layer) {
    return static_cast<LayerState *>(layer->device);
}

tq_status open_state(const tqi_device *device, const tqi_device_config *config, void **out);
void close_state(void *state);
tq_status set_layer(void *state, tqi_layer *layer);
void unset_layer(void *state, tqi_layer *layer);
tq_status set_exact(void *state, tqi_layer *layer);

/* ---- run_exact.cu: tokens kept in 16 bits ------------------------------------------------- */

/* The kept rows of an append to one sequence; of a step. */
tq_status keep_appended(const State *s, const tqi_encode_job *from, cudaStream_t stream);
tq_status keep_step(const State *s, const Room &room, const tqi_step_append *from, uint32_t runs,
                    cudaStream_t stream);
/* The pages of one sequence; to kept_table where they are many. */
tq_status list_kept(const State *s, const tqi_attend_job *from, KeptOnly *out, cudaStream_t stream);

/* ---- run.cu, inspect.cu: the functions of struct tqi_device ------------------------------- */

tq_status append(void *state, const tqi_encode_job *job, tq_stream stream);
tq_status attend(void *state, const tqi_attend_job *job, tq_stream stream);
void use_stream(void *state, tq_stream stream);
/* batch.cu */
tq_status open_batch(void *state, uint32_t max_seqs, uint32_t max_tokens, void **batch);
void close_batch(void *batch);
tq_status plan_batch(void *batch, const tqi_step *step, tq_stream stream);
tq_status batch_append(void *batch, const tqi_step_append *job, tq_stream stream);
tq_status batch_attend(void *batch, const tqi_step_attend *job, tq_stream stream);
int capturing(void *state, tq_stream stream);
/* paged.cu */
tq_status paged_append(void *state, const tqi_paged_append *job, tq_stream stream);
tq_status paged_attend(void *state, const tqi_paged_attend *job, tq_stream stream);
/* merge.cu */
tq_status merge(const tqi_device *device, const tqi_merge_job *job, tq_stream stream);
size_t paged_workspace(void *state, uint32_t max_seqs, uint32_t max_queries, uint32_t max_length);
void copy_bytes(void *state, void *to, const void *from, size_t bytes);
tq_status wait_for_device(void *state);
tq_status read_bytes(void *state, void *to, const void *from, size_t bytes);
tq_status write_bytes(void *state, void *to, const void *from, size_t bytes);
tq_status read_counts(void *state, tqi_nonfinite *out);
tq_status reset_counts(void *state);
tq_status measure_means(void *state, const tqi_means_job *job);
tq_status decode(void *state, const tqi_decode_job *job);

static inline Pages pages_of(const tqi_page_view &view) {
    return Pages{view.chunks[0] + view.layer_offset, view.layer_bytes, (uint32_t)view.blob_bytes,
                 view.page_tokens};
}

static inline RowsIn rows_in(const tq_rows_in &r) {
    return RowsIn{r.data, r.token_stride, r.head_stride, r.dtype};
}

static inline RowsOut rows_out(const tq_rows_out &r) {
    return RowsOut{r.data, r.token_stride, r.head_stride, r.dtype};
}

/* Whether four elements of every row can be read or written at a time. */
template <class Rows> static inline uint32_t takes_quads(const Rows &q) {
    uint64_t size = q.dtype == TQ_F32 ? 4 : 2;
    uint64_t all =
        (uint64_t)q.data | (uint64_t)q.token_stride * size | (uint64_t)q.head_stride * size;
    return all % (4 * size) == 0;
}

/* Pages of [first, first + n) to a launch's list. */
static inline void set_ids(PageIds *ids, const tqi_page_view &view, uint64_t first, uint32_t n) {
    memcpy(ids->id, view.pages + first, n * sizeof *view.pages);
}

} /* namespace tqi */

#endif
