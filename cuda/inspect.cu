/* Functions of the device that wait for it: reading and writing pages, rows, counters, means. */
#include "inspect/inspect.h"
#include "state.h"

namespace tqi {

tq_status wait_for_device(void *opened) {
    DeviceGuard guard(state_of(opened)->index);
    TQI_TRY(guard.status());
    return check(cudaDeviceSynchronize(), "waiting for the GPU");
}

tq_status read_bytes(void *opened, void *to, const void *from, size_t bytes) {
    State *s = state_of(opened);
    DeviceGuard guard(s->index);
    TQI_TRY(guard.status());
    TQI_CUDA(cudaDeviceSynchronize());
    return check(cudaMemcpy(to, from, bytes, cudaMemcpyDeviceToHost), "reading from the GPU");
}

tq_status write_bytes(void *opened, void *to, const void *from, size_t bytes) {
    State *s = state_of(opened);
    DeviceGuard guard(s->index);
    TQI_TRY(guard.status());
    TQI_CUDA(cudaDeviceSynchronize()); /* the page may still be read on some stream */
    TQI_TRY(check(s->copy_error, "copying a shared page"));
    TQI_CUDA(cudaMemcpy(to, from, bytes, cudaMemcpyHostToDevice));
    return settle("writing to the GPU");
}

tq_status read_counts(void *opened, tqi_nonfinite *out) {
    uint64_t counts[2];
    TQI_TRY(read_bytes(opened, counts, state_of(opened)->counts, sizeof counts));
    out->nan = counts[0];
    out->inf = counts[1];
    return TQ_OK;
}

tq_status reset_counts(void *opened) {
    State *s = state_of(opened);
    DeviceGuard guard(s->index);
    TQI_TRY(guard.status());
    TQI_CUDA(cudaDeviceSynchronize());
    TQI_CUDA(cudaMemset(s->counts, 0, 2 * sizeof(uint64_t)));
    return settle("clearing the counters");
}

static tq_status run_means(State *s, const tqi_means_job *from, float *mean) {
    DeviceGuard guard(s->index);
    TQI_TRY(guard.status());
    TQI_CUDA(cudaDeviceSynchronize()); /* rows may still be written on some stream */
    MeansJob job = {rows_in(*from->rows), from->n_tokens, from->n_heads, from->dim, mean};
    TQI_TRY(channel_means(job, nullptr));
    return read_bytes(s, from->mean, mean, (size_t)from->n_heads * from->dim * sizeof(float));
}

tq_status measure_means(void *opened, const tqi_means_job *from) {
    State *s = state_of(opened);
    size_t row = from->dim * sizeof(float);
    void *mean = tqi_alloc(s->heap, from->n_heads, row, TQ_MEM_DEVICE);
    if (!mean)
        return TQ_ERR_OUT_OF_MEMORY;
    tq_status status = run_means(s, from, static_cast<float *>(mean));
    tqi_free(s->heap, mean, from->n_heads, row, TQ_MEM_DEVICE);
    return status;
}

static tq_status decode_side(const State *s, const tqi_decode_job *from, const Side &side,
                             const tq_rows_out &rows) {
    DecodeJob job = {};
    job.side = side;
    job.rows = rows_out(rows);
    job.pages = pages_of(from->view);
    job.n_heads = s->n_kv_heads;
    job.first = from->first;
    job.end = from->first + from->n_tokens;
    uint64_t page_tokens = from->view.page_tokens;
    uint64_t last = (job.end + page_tokens - 1) / page_tokens;
    for (job.first_page = job.first / page_tokens; job.first_page < last;
         job.first_page += job.n_pages) {
        uint64_t left = last - job.first_page;
        job.n_pages = left < ID_CHUNK ? (uint32_t)left : ID_CHUNK;
        set_ids(&job.ids, from->view, job.first_page, job.n_pages);
        TQI_TRY(decode_rows(job, nullptr));
    }
    return TQ_OK;
}

/* Tokens [first, last) that are kept in 16 bits, over what their codes gave; a page at a time. */
static tq_status decode_kept(const State *s, const tqi_decode_job *from, const Side &side,
                             const tq_rows_out &rows, uint64_t first, uint64_t last) {
    const uint64_t end = from->first + from->n_tokens;
    DecodeJob job = {};
    job.side = side;
    job.rows = rows_out(rows);
    job.pages.page_bytes = from->exact_view.layer_bytes;
    job.pages.blob_bytes = (uint32_t)from->exact_view.blob_bytes;
    job.pages.page_tokens = TQI_EXACT_TOKENS;
    job.n_heads = s->n_kv_heads;
    job.n_pages = 1;
    first = first > from->first ? first : from->first;
    last = last < end ? last : end;
    const int64_t size = rows.dtype == TQ_F32 ? 4 : 2;
    for (; first < last; first = job.end) {
        job.first_page = first / TQI_EXACT_TOKENS;
        job.first = first;
        job.end = tqi_least(last, (job.first_page + 1) * TQI_EXACT_TOKENS);
        job.pages.base =
            tqi_view_page(&from->exact_view, tqi_exact_page(from->exact, job.first_page));
        job.rows.data = static_cast<uint8_t *>(rows.data) +
                        (int64_t)(first - from->first) * rows.token_stride * size;
        TQI_TRY(decode_rows(job, nullptr));
    }
    return TQ_OK;
}

/* Keys or values as attention sees them. */
static tq_status decode_all(const State *s, const tqi_decode_job *from, int side,
                            const tq_rows_out &rows) {
    const LayerState *layer = layer_of(from->layer);
    TQI_TRY(decode_side(s, from, layer->side[side], rows));
    if (!from->exact)
        return TQ_OK;
    TQI_TRY(decode_kept(s, from, layer->exact[side], rows, 0, from->exact->sinks));
    return decode_kept(s, from, layer->exact[side], rows, from->exact->start, UINT64_MAX);
}

tq_status decode(void *opened, const tqi_decode_job *from) {
    State *s = state_of(opened);
    DeviceGuard guard(s->index);
    TQI_TRY(guard.status());
    TQI_CUDA(cudaDeviceSynchronize());
    if (from->n_tokens && from->k)
        TQI_TRY(decode_all(s, from, 0, *from->k));
    if (from->n_tokens && from->v)
        TQI_TRY(decode_all(s, from, 1, *from->v));
    return check(cudaDeviceSynchronize(), "decoding rows");
}

} /* namespace tqi */
