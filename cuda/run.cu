/* Append and attend: from the jobs of the api to launches. */
#include "attend/attend_job.h"
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
        TQI_TRY(encode_any(job, static_cast<cudaStream_t>(stream)));
    }
    return TQ_OK;
}

/* ---- attend --------------------------------------------------------------------------------- */

static uint64_t div_up(uint64_t n, uint64_t by) {
    return n / by + (n % by != 0);
}

static uint64_t clamp(uint64_t n, uint64_t low, uint64_t high) {
    return n < low ? low : n > high ? high : n;
}

/* Splits so that every multiprocessor has work, none of less than a few pages. */
static void split_any(const State *s, AttendJob *job) {
    const uint64_t blocks_per_sm = 4, least_tokens = 256, tile_rows = 8;
    uint64_t blocks = job->n_heads * div_up(job->rows, tile_rows);
    uint64_t most = s->row_splits / ((uint64_t)job->rows * job->n_heads);
    uint64_t want = clamp(div_up(s->n_sms * blocks_per_sm, blocks), 1, MAX_SPLITS);
    want = clamp(want, 1, clamp(div_up(job->length, least_tokens), 1, most));
    job->split_tokens = div_up(div_up(job->length, want), job->pages.page_tokens);
    job->split_tokens = clamp(job->split_tokens, 1, UINT64_MAX) * job->pages.page_tokens;
    job->n_splits = (uint32_t)clamp(div_up(job->length, job->split_tokens), 1, want);
}

/* Lays the workspace out for the block of queries at hand. */
static void lay_out_any(const State *s, AttendJob *job) {
    uint64_t rows = (uint64_t)job->rows * job->n_heads;
    job->table = s->table;
    job->queries = reinterpret_cast<float *>(s->workspace);
    job->shift = job->queries + rows * s->k_dim;
    job->states = job->shift + rows;
}

static AttendJob attend_job(const State *s, const tqi_attend_job *from) {
    const LayerState *layer = layer_of(from->layer);
    AttendJob job = {};
    job.k = layer->side[0];
    job.v = layer->side[1];
    job.pages = pages_of(from->view);
    job.q = rows_in(from->q);
    job.out = rows_out(from->out);
    job.lse = from->lse;
    job.n_heads = s->n_kv_heads;
    job.group = from->group;
    job.n_queries = from->n_queries;
    job.causal = from->causal;
    job.length = from->view.length;
    job.scale = (float)from->scale;
    return job;
}

/* Queries go in blocks whose states fit into the workspace. */
static tq_status attend_blocks(const State *s, AttendJob *job, cudaStream_t stream) {
    uint64_t per_query = (uint64_t)job->group * job->n_heads;
    uint64_t block = clamp(s->row_splits / per_query, 1, job->n_queries);
    for (uint64_t first = 0; first < job->n_queries; first += block) {
        job->first_query = (uint32_t)first;
        job->rows = (uint32_t)clamp(job->n_queries - first, 1, block) * job->group;
        split_any(s, job);
        lay_out_any(s, job);
        TQI_TRY(attend_any(*job, stream));
    }
    return TQ_OK;
}

tq_status attend(void *opened, const tqi_attend_job *from, tq_stream on) {
    State *s = state_of(opened);
    cudaStream_t stream = static_cast<cudaStream_t>(on);
    DeviceGuard guard(s->index);
    TQI_TRY(guard.status());
    AttendJob job = attend_job(s, from);
    uint64_t n_pages = div_up(job.length, job.pages.page_tokens);
    TQI_TRY(take_workspace(s, stream));
    tq_status status = upload_table(from->view.pages, n_pages, s->table, stream);
    if (status == TQ_OK)
        status = attend_blocks(s, &job, stream);
    tq_status marked = give_workspace(s, stream);
    return status == TQ_OK ? marked : status;
}

} /* namespace tqi */
