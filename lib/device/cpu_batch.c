/* Steps over many sequences on the CPU: one call of the drivers for all of them. What they
 * need is allocated by plan, so that the layers can't fail. */
#include "device/cpu.h"

#include <string.h>

struct batch {
    struct tqi_cpu_state *state;
    uint32_t max_seqs;
    const struct tqi_step *step;
    struct tqi_encode_seq *encode; /* [max_seqs] */
    struct tqi_attend_seq *attend; /* [max_seqs] */
    uint32_t n_items;              /* pages that the step's append writes */
    void *memory;                  /* of attend */
    size_t memory_bytes;
};

void tqi_cpu_close_batch(void *opened) {
    struct batch *b = opened;
    if (!b)
        return;
    struct tqi_heap *heap = b->state->heap;
    tqi_free(heap, b->encode, b->max_seqs, sizeof *b->encode, TQ_MEM_HOST);
    tqi_free(heap, b->attend, b->max_seqs, sizeof *b->attend, TQ_MEM_HOST);
    tqi_free(heap, b->memory, b->memory_bytes, 1, TQ_MEM_HOST);
    tqi_free(heap, b, 1, sizeof *b, TQ_MEM_HOST);
}

tq_status tqi_cpu_open_batch(void *state, uint32_t max_seqs, uint32_t max_tokens, void **out) {
    struct tqi_cpu_state *s = state;
    struct batch *b = tqi_calloc(s->heap, 1, sizeof *b);
    (void)max_tokens; /* memory follows what is planned */
    if (!b)
        return TQ_ERR_OUT_OF_MEMORY;
    b->state = s;
    b->max_seqs = max_seqs;
    b->encode = tqi_calloc(s->heap, max_seqs, sizeof *b->encode);
    b->attend = tqi_calloc(s->heap, max_seqs, sizeof *b->attend);
    if (!b->encode || !b->attend) {
        tqi_cpu_close_batch(b);
        return TQ_ERR_OUT_OF_MEMORY;
    }
    *out = b;
    return TQ_OK;
}

/* The memory grows by half at least, so that decoding does not ask for more at every step. */
static tq_status reserve(struct batch *b, size_t bytes) {
    if (bytes <= b->memory_bytes)
        return TQ_OK;
    size_t more = b->memory_bytes + b->memory_bytes / 2;
    bytes = more > bytes ? more : bytes;
    void *memory = tqi_alloc(b->state->heap, bytes, 1, TQ_MEM_HOST);
    if (!memory)
        return TQ_ERR_OUT_OF_MEMORY;
    tqi_free(b->state->heap, b->memory, b->memory_bytes, 1, TQ_MEM_HOST);
    b->memory = memory;
    b->memory_bytes = bytes;
    return TQ_OK;
}

/* What is kept in 16 bits differs by layer. */
static void use_layer(struct batch *b, uint32_t layer) {
    for (uint32_t i = 0; i < b->step->n_seqs; i++) {
        const struct tqi_exact_view *exact = b->step->seqs[i].exact;
        b->encode[i].exact = b->attend[i].exact = exact ? exact + layer : NULL;
    }
}

tq_status tqi_cpu_plan(void *opened, const struct tqi_step *step, tq_stream stream) {
    struct batch *b = opened;
    const struct tqi_cpu_state *s = b->state;
    (void)stream;
    for (uint32_t i = 0; i < step->n_seqs; i++) {
        const struct tqi_step_seq *seq = &step->seqs[i];
        struct tqi_encode_seq encode = {.pages = seq->pages,
                                        .length = seq->length,
                                        .n_tokens = seq->n_append,
                                        .first_row = seq->append_row,
                                        .keep_until = seq->keep_until,
                                        .keep_from = seq->keep_from};
        struct tqi_attend_seq attend = {.pages = seq->pages,
                                        .length = seq->length + seq->n_append,
                                        .n_queries = seq->n_query,
                                        .first_row = seq->query_row,
                                        .n_exact = seq->n_exact};
        b->encode[i] = encode;
        b->attend[i] = attend;
    }
    b->step = step;
    use_layer(b, 0);
    b->n_items = tqi_encode_number(b->encode, step->n_seqs, s->page_tokens);
    return reserve(b, tqi_attend_memory(&s->attend, s->n_q_heads, b->attend, step->n_seqs,
                                        s->executor->n_workers));
}

tq_status tqi_cpu_batch_append(void *opened, const struct tqi_step_append *job, tq_stream stream) {
    struct batch *b = opened;
    struct tqi_encode_job full = {.layer = job->layer,
                                  .view = job->view,
                                  .exact_view = job->exact_view,
                                  .k = job->k,
                                  .v = job->v};
    (void)stream;
    use_layer(b, job->layer_index);
    tqi_cpu_encode(b->state, &full, b->encode, b->step->n_seqs, b->n_items);
    return TQ_OK;
}

tq_status tqi_cpu_batch_attend(void *opened, const struct tqi_step_attend *job, tq_stream stream) {
    struct batch *b = opened;
    struct tqi_attend_job full = {.call = job->call,
                                  .seqs = b->attend,
                                  .n_seqs = b->step->n_seqs,
                                  .executor = b->state->executor,
                                  .memory = b->memory};
    (void)stream;
    use_layer(b, job->layer_index);
    tqi_attend(&full);
    return TQ_OK;
}
