#include "bench.h"

#include <stdlib.h>
#include <string.h>

#define COLD_BYTES 400e6 /* of all sets together, several times the L2 cache */
enum { CHUNK = 1024 };

uint32_t context_flags;
uint32_t sink_tokens, recent_tokens;

/* ---- sequences ------------------------------------------------------------------------------ */

static uint32_t queries_of(const struct bench *b) {
    return b->queries ? b->queries : 1;
}

uint64_t run_length(const struct bench *b, uint32_t index) {
    return b->ragged ? (b->tokens * (index + 1) + b->batch - 1) / b->batch : b->tokens;
}

/* Free pages in random order: appends take the last that was given back. */
static void shuffle_pages(struct run *r, uint64_t pages) {
    tq_seq *seqs = malloc(pages * sizeof *seqs);
    uint32_t s = 777;
    tq_rows_in k = rows_at(r->b.dim, 0);
    for (uint64_t i = 0; i < pages; i++) {
        TQ(tq_seq_create(r->cache, &seqs[i]));
        TQ(tq_append(r->cache, seqs[i], 0, 1, &k, &k, stream));
    }
    for (uint64_t i = pages; i > 1; i--) {
        s = s * 1664525u + 1013904223u;
        uint64_t j = ((uint64_t)s * i) >> 32;
        tq_seq t = seqs[i - 1];
        seqs[i - 1] = seqs[j];
        seqs[j] = t;
    }
    for (uint64_t i = 0; i < pages; i++)
        TQ(tq_seq_destroy(r->cache, seqs[i]));
    free(seqs);
}

tq_rows_in run_rows(const struct bench *b, uint64_t t, size_t salt, int is_v) {
    return is_v ? rows_at(b->dim, (t * 17 + salt * 1999 + 5000) % 65536 / 8 * 8)
                : rows_at(b->dim, (t * 31 + salt * 977) % 4096 / 8 * 8);
}

static void fill(struct run *r, tq_seq seq, uint64_t tokens, size_t salt) {
    for (uint64_t t = 0; t < tokens; t += CHUNK) {
        uint64_t left = tokens - t;
        uint32_t n = left < CHUNK ? (uint32_t)left : CHUNK;
        tq_rows_in k = run_rows(&r->b, t, salt, 0), v = run_rows(&r->b, t, salt, 1);
        TQ(tq_append(r->cache, seq, 0, n, &k, &v, stream));
    }
}

static void fill_sets(struct run *r) {
    r->seqs = malloc((size_t)r->sets * r->b.batch * sizeof *r->seqs);
    for (uint32_t i = 0; i < r->sets * r->b.batch; i++) {
        TQ(tq_seq_create(r->cache, &r->seqs[i]));
        fill(r, r->seqs[i], run_length(&r->b, i % r->b.batch), i);
    }
    CUDA(cudaStreamSynchronize(stream));
}

/* ---- steps ---------------------------------------------------------------------------------- */

/* A first step outside of any graph loads the code. */
static void plan_sets(struct run *r, uint32_t new_tokens) {
    uint32_t n = r->b.batch, *counts = malloc(2 * n * sizeof *counts);
    uint32_t most = new_tokens > queries_of(&r->b) ? new_tokens : queries_of(&r->b);
    for (uint32_t i = 0; i < n; i++) {
        counts[i] = new_tokens;
        counts[n + i] = queries_of(&r->b);
    }
    for (uint32_t set = 0; set < r->sets; set++) {
        tq_batch_desc desc = {.struct_size = sizeof desc,
                              .n_seqs = n,
                              .seqs = r->seqs + (size_t)set * n,
                              .n_append = counts,
                              .n_query = counts + n};
        TQ(tq_batch_create(r->cache, n, n * most, &r->batches[set]));
        TQ(tq_batch_plan(r->batches[set], &desc, stream));
        step_once(r, set);
        TQ(tq_batch_cancel(r->batches[set]));
        TQ(tq_batch_plan(r->batches[set], &desc, stream));
    }
    CUDA(cudaStreamSynchronize(stream));
    free(counts);
}

void append_once(void *arg, uint32_t set) {
    struct run *r = arg;
    size_t n = (size_t)r->b.batch * r->new_tokens * HEADS * r->b.dim;
    tq_rows_in k = fresh_rows(n, 2 * set), v = fresh_rows(n, 2 * set + 1);
    TQ(tq_batch_append(r->batches[set], 0, &k, &v, stream));
}

void attend_once(void *arg, uint32_t set) {
    struct run *r = arg;
    tq_attend_params params = {.struct_size = sizeof params,
                               .flags = r->b.queries ? TQ_ATTEND_CAUSAL : 0};
    TQ(tq_batch_attend(r->batches[set], 0, &params, &r->q, &r->out, NULL, stream));
}

void step_once(void *arg, uint32_t set) {
    struct run *r = arg;
    if (r->new_tokens)
        append_once(arg, set);
    attend_once(arg, set);
}

void call_once(void *arg, uint32_t set) {
    struct run *r = arg;
    TQ(tq_attend(r->cache, r->seqs[(size_t)set * r->b.batch], 0, 1, NULL, &r->q, &r->out, NULL,
                 stream));
}

/* ---- open and close ------------------------------------------------------------------------- */

static void create_cache(struct run *r, uint32_t new_tokens) {
    tq_footprint footprint = {.struct_size = sizeof footprint};
    uint64_t more = 0;
    tq_cache_config c = {.struct_size = sizeof c,
                         .n_layers = 1,
                         .n_kv_heads = HEADS,
                         .n_q_heads = HEADS * r->b.group,
                         .head_dim = r->b.dim,
                         .max_seqs = 1 << 20,
                         .max_pages = 1,
                         .seed = 1,
                         .sink_tokens = sink_tokens,
                         .recent_tokens = recent_tokens};
    TQ(tq_variant_find(r->b.variant, &c.variant));
    TQ(tq_cache_estimate(r->context, &c, &footprint));
    for (uint32_t i = 0; i < r->b.batch; i++) {
        r->pages += (run_length(&r->b, i) + footprint.page_tokens - 1) / footprint.page_tokens;
        more += new_tokens / footprint.page_tokens + 1;
    }
    r->blobs = r->pages * HEADS;
    r->blob = footprint.bytes_per_page / HEADS;
    r->bytes = (double)r->blobs * (double)r->blob;
    double moved = r->bytes + 4.0 * r->b.batch * new_tokens * HEADS * r->b.dim;
    r->sets = (uint32_t)(COLD_BYTES / moved) + 1;
    r->sets = r->sets > MAX_SETS ? MAX_SETS : r->sets;
    c.max_pages = (r->pages + more) * r->sets;
    TQ(tq_cache_create(r->context, &c, &r->cache));
    shuffle_pages(r, c.max_pages);
}

void open_run(struct run *r, struct bench b, uint32_t new_tokens) {
    tq_context_config context = {
        .struct_size = sizeof context, .flags = context_flags, .device = TQ_DEVICE_CUDA};
    memset(r, 0, sizeof *r);
    r->b = b;
    r->new_tokens = new_tokens;
    TQ(tq_context_create(&context, &r->context));
    create_cache(r, new_tokens);
    size_t elements = (size_t)b.batch * queries_of(&b) * HEADS * b.group * b.dim;
    r->q = (tq_rows_in){.data = copy_data(elements), .dtype = TQ_BF16};
    r->out = (tq_rows_out){.data = copy_data(elements), .dtype = TQ_BF16};
    fill_sets(r);
    plan_sets(r, new_tokens);
}

void close_run(struct run *r) {
    CUDA(cudaDeviceSynchronize());
    for (uint32_t set = 0; set < r->sets; set++)
        tq_batch_destroy(r->batches[set]);
    tq_cache_destroy(r->cache);
    tq_context_destroy(r->context);
    free(r->seqs);
    CUDA(cudaFree((void *)(uintptr_t)r->q.data));
    CUDA(cudaFree(r->out.data));
}
