/* Pages of the caller on the CPU: everything is checked, then the drivers run. */
#include "attend/plan.h"
#include "base/checked.h"
#include "device/cpu.h"
#include "encode/slots.h"

/* ---- append ------------------------------------------------------------------------------ */

static tq_status check_slots(const struct tqi_paged_append *job) {
    uint64_t n_slots = job->n_pages * job->view.page_tokens;
    for (uint32_t i = 0; i < job->n_tokens; i++)
        TQI_REQUIRE(job->slots[i] < 0 || (uint64_t)job->slots[i] < n_slots,
                    "slots[%u]: %lld, the pool has %llu", i, (long long)job->slots[i],
                    (unsigned long long)n_slots);
    return TQ_OK;
}

tq_status tqi_cpu_paged_append(void *state, const struct tqi_paged_append *job, tq_stream stream) {
    const struct tqi_cpu_state *s = state;
    struct tqi_encode_job full = {.layer = job->layer,
                                  .view = job->view,
                                  .k = job->k,
                                  .v = job->v,
                                  .executor = s->executor,
                                  .scratch = s->scratch,
                                  .scratch_floats = s->scratch_floats,
                                  .counts = s->counts};
    (void)stream;
    TQI_TRY(check_slots(job));
    tqi_encode_slots(&full, job->slots, job->n_tokens);
    return TQ_OK;
}

/* ---- attend ------------------------------------------------------------------------------ */

static size_t seqs_bytes(uint32_t n_seqs) {
    return tqi_align_up(n_seqs * sizeof(struct tqi_attend_seq), TQI_ALIGNMENT);
}

size_t tqi_cpu_paged_workspace(void *state, uint32_t max_seqs, uint32_t max_queries,
                               uint32_t max_length) {
    const struct tqi_cpu_state *s = state;
    return seqs_bytes(max_seqs) + tqi_attend_memory_bound(&s->attend, s->n_q_heads, max_seqs,
                                                          max_queries, max_length,
                                                          s->executor->n_workers);
}

static tq_status check_rows(const struct tqi_paged_attend *job) {
    TQI_REQUIRE(job->starts[0] == 0, "query_starts[0]: must be 0, not %d", job->starts[0]);
    for (uint32_t i = 0; i < job->n_seqs; i++) {
        TQI_REQUIRE(job->starts[i + 1] >= job->starts[i] &&
                        (uint32_t)job->starts[i + 1] <= job->n_queries,
                    "query_starts[%u]: %d after %d, of %u rows", i + 1, job->starts[i + 1],
                    job->starts[i], job->n_queries);
        TQI_REQUIRE(job->lengths[i] >= 0 && (uint32_t)job->lengths[i] <= job->max_length,
                    "seq_lens[%u]: %d, max_seq_len is %u", i, job->lengths[i], job->max_length);
    }
    return TQ_OK;
}

/* Ids of the pages that some row sees. */
static tq_status check_pages(const struct tqi_paged_attend *job, const struct tqi_attend_job *full,
                             uint32_t index, const struct tqi_attend_seq *seq) {
    uint32_t page_tokens = job->call.view.page_tokens;
    if (!seq->n_queries)
        return TQ_OK;
    uint64_t first = tqi_seen_by(full, seq, 0).first / page_tokens;
    for (uint64_t page = first; page * page_tokens < seq->length; page++)
        TQI_REQUIRE(seq->pages[page] < job->n_pages,
                    "block_table: page %llu of sequence %u is %d, the pool has %llu",
                    (unsigned long long)page, index, (int)seq->pages[page],
                    (unsigned long long)job->n_pages);
    return TQ_OK;
}

static tq_status set_seqs(const struct tqi_paged_attend *job, const struct tqi_attend_job *full,
                          struct tqi_attend_seq *seqs) {
    TQI_TRY(check_rows(job));
    for (uint32_t i = 0; i < job->n_seqs; i++) {
        const int32_t *row = job->table + (int64_t)i * job->table_stride;
        struct tqi_attend_seq seq = {.pages = (const uint32_t *)(const void *)row,
                                     .length = (uint32_t)job->lengths[i],
                                     .n_queries = (uint32_t)(job->starts[i + 1] - job->starts[i]),
                                     .first_row = (uint32_t)job->starts[i]};
        TQI_TRY(check_pages(job, full, i, &seq));
        seqs[i] = seq;
    }
    return TQ_OK;
}

tq_status tqi_cpu_paged_attend(void *state, const struct tqi_paged_attend *job, tq_stream stream) {
    const struct tqi_cpu_state *s = state;
    struct tqi_attend_seq *seqs = job->workspace;
    struct tqi_attend_job full = {.call = job->call,
                                  .seqs = seqs,
                                  .n_seqs = job->n_seqs,
                                  .executor = s->executor,
                                  .memory = (char *)job->workspace + seqs_bytes(job->n_seqs)};
    (void)stream;
    TQI_TRY(set_seqs(job, &full, seqs));
    tqi_attend(&full);
    return TQ_OK;
}
