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

EncodeJob encode_job_of(const State *s, const tqi_layer *from, const tqi_page_view &view,
                        const tq_rows_in &k, const tq_rows_in &v) {
    const LayerState *layer = layer_of(from);
    EncodeJob job = {};
    for (int i = 0; i < 2; i++)
        job.side[i] = layer->side[i];
    job.rows[0] = rows_in(k);
    job.rows[1] = rows_in(v);
    job.pages = pages_of(view);
    job.n_heads = s->n_kv_heads;
    job.n_sms = s->n_sms;
    job.overlap = s->overlap;
    job.counts = s->counts;
    for (int i = 0; from->exact && from->rounds && i < 2; i++) {
        uint32_t format = layer->exact[i].format;
        if (job.rows[i].dtype != (format == TQ_FORMAT_F16 ? TQ_F16 : TQ_BF16))
            job.rounds[i] = format;
    }
    return job;
}

tq_status append(void *opened, const tqi_encode_job *from, tq_stream stream) {
    State *s = state_of(opened);
    DeviceGuard guard(s->index);
    TQI_TRY(guard.status());
    TQI_TRY(check(s->copy_error, "copying a shared page"));
    EncodeJob job = encode_job_of(s, from->layer, from->view, from->k, from->v);
    job.length = from->view.length;
    job.end = job.length + from->n_tokens;
    job.max_rows = from->n_tokens;
    uint64_t page_tokens = from->view.page_tokens;
    uint64_t last = (job.end + page_tokens - 1) / page_tokens;
    for (job.first_page = job.length / page_tokens; job.first_page < last;
         job.first_page += job.n_pages) {
        uint64_t left = last - job.first_page;
        job.n_pages = left < ID_CHUNK ? (uint32_t)left : ID_CHUNK;
        set_ids(&job.ids, from->view, job.first_page, job.n_pages);
        TQI_TRY(encode(job, static_cast<cudaStream_t>(stream)));
    }
    return keep_appended(s, from, static_cast<cudaStream_t>(stream));
}

} /* namespace tqi */
