/* Append: from the job of the api to launches. */
#include "encode/encode_job.h"
#include "state.h"

namespace tqi {

/* ---- append --------------------------------------------------------------------------------- */

void use_stream(void *opened, tq_stream stream) {
    State *s = state_of(opened);
    s->copy_stream = static_cast<cudaStream_t>(stream);
    s->copy_error = cudaSuccess;
}

/* A copy cannot report; append() does it. */
void copy_bytes(void *opened, void *to, const void *from, size_t bytes) {
    State *s = state_of(opened);
    DeviceGuard guard(s->index);
    cudaError_t error = cudaMemcpyAsync(to, from, bytes, cudaMemcpyDeviceToDevice, s->copy_stream);
    if (error != cudaSuccess)
        s->copy_error = error;
}

tq_status append(void *opened, const tqi_encode_job *from, tq_stream stream) {
    State *s = state_of(opened);
    const LayerState *layer = layer_of(from->layer);
    DeviceGuard guard(s->index);
    TQI_TRY(guard.status());
    TQI_TRY(check(s->copy_error, "copying a shared page"));
    EncodeJob job = {};
    job.side[0] = layer->side[0];
    job.side[1] = layer->side[1];
    job.rows[0] = rows_in(from->k);
    job.rows[1] = rows_in(from->v);
    job.pages = pages_of(from->view);
    job.n_heads = s->n_kv_heads;
    job.length = from->view.length;
    job.end = job.length + from->n_tokens;
    job.counts = s->counts;
    uint64_t page_tokens = from->view.page_tokens;
    uint64_t last = (job.end + page_tokens - 1) / page_tokens;
    for (job.first_page = job.length / page_tokens; job.first_page < last;
         job.first_page += job.n_pages) {
        uint64_t left = last - job.first_page;
        job.n_pages = left < ID_CHUNK ? (uint32_t)left : ID_CHUNK;
        set_ids(&job.ids, from->view, job.first_page, job.n_pages);
        TQI_TRY(encode(job, static_cast<cudaStream_t>(stream)));
    }
    return TQ_OK;
}

} /* namespace tqi */
