/* The same sequences in pages of an engine: attention and appends by tq/paged.h. */
#include <stdlib.h>
#include <string.h>

#include "bench.h"

enum { CHUNK = 1024 };

static void *to_device(void *host, size_t bytes) {
    void *device;
    CUDA(cudaMalloc(&device, bytes));
    CUDA(cudaMemcpy(device, host, bytes, cudaMemcpyHostToDevice));
    free(host);
    return device;
}

/* Pages of all sequences in one random order. */
static int32_t *random_table(uint32_t n) {
    int32_t *ids = malloc(n * sizeof *ids);
    uint32_t s = 99;
    for (uint32_t i = 0; i < n; i++) {
        s = s * 1664525u + 1013904223u;
        uint32_t at = (uint32_t)(((uint64_t)s * (i + 1)) >> 32);
        ids[i] = ids[at];
        ids[at] = (int32_t)i;
    }
    return ids;
}

static int64_t slot_at(const struct paged *p, const int32_t *table, uint32_t seq, uint64_t token) {
    return (int64_t)table[(size_t)seq * p->stride + token / p->page_tokens] * p->page_tokens +
           (int64_t)(token % p->page_tokens);
}

static void fill(struct paged *p, const int32_t *table, uint32_t seq, uint64_t tokens) {
    for (uint64_t t = 0; t < tokens; t += CHUNK) {
        uint32_t n = tokens - t < CHUNK ? (uint32_t)(tokens - t) : CHUNK;
        int64_t *slots = malloc(n * sizeof *slots);
        for (uint32_t i = 0; i < n; i++)
            slots[i] = slot_at(p, table, seq, t + i);
        int64_t *device = to_device(slots, n * sizeof *slots);
        tq_rows_in k = run_rows(&p->run->b, t, seq, 0), v = run_rows(&p->run->b, t, seq, 1);
        TQ(tq_paged_append(p->run->cache, 0, &p->pool, device, n, &k, &v, stream));
        CUDA(cudaFree(device));
    }
}

/* Slots of a step's new tokens, behind what there is; lengths and rows of the step. */
static void make_step(struct paged *p, const int32_t *table, uint32_t all) {
    uint32_t n = p->run->b.batch, new_tokens = p->run->new_tokens;
    int64_t *slots = malloc((size_t)all * new_tokens * sizeof *slots);
    int32_t *lengths = malloc(all * sizeof *lengths), *starts = malloc((n + 1) * sizeof *starts);
    for (uint32_t i = 0; i < all; i++) {
        uint64_t length = run_length(&p->run->b, i % n);
        for (uint32_t t = 0; t < new_tokens; t++)
            slots[(size_t)i * new_tokens + t] = slot_at(p, table, i, length + t);
        lengths[i] = (int32_t)(length + new_tokens);
    }
    for (uint32_t i = 0; i <= n; i++)
        starts[i] = (int32_t)i;
    p->slots = to_device(slots, (size_t)all * new_tokens * sizeof *slots);
    p->lengths = to_device(lengths, all * sizeof *lengths);
    p->starts = to_device(starts, (n + 1) * sizeof *starts);
}

void open_paged(struct paged *p, struct run *r) {
    tq_cache_config config = {.struct_size = sizeof config};
    uint32_t n = r->b.batch, all = r->sets * n;
    memset(p, 0, sizeof *p);
    p->run = r;
    TQ(tq_cache_get_config(r->cache, &config));
    p->page_tokens = config.page_tokens;
    p->stride = (uint32_t)((r->b.tokens + r->new_tokens) / p->page_tokens + 1);
    p->pool = (tq_paged_pool){.struct_size = sizeof p->pool, .n_pages = (uint64_t)all * p->stride};
    CUDA(cudaMalloc(&p->pool.pages, tq_paged_page_bytes(r->cache, 0) * p->pool.n_pages));
    int32_t *table = random_table(all * p->stride);
    for (uint32_t i = 0; i < all; i++)
        fill(p, table, i, run_length(&r->b, i % n));
    make_step(p, table, all);
    p->table = to_device(table, (size_t)all * p->stride * sizeof *table);
    TQ(tq_paged_workspace(r->cache, n, n, (uint32_t)(r->b.tokens + r->new_tokens), &p->work_size));
    p->work_size = (p->work_size + 63) / 64 * 64;
    CUDA(cudaMalloc((void **)&p->work, p->work_size * (r->sets + 1)));
    paged_step_once(p, 0); /* loads the code, outside of any graph */
    for (uint32_t set = 0; set < r->sets; set++) {
        p->steps[set] = (tq_paged_step){.struct_size = sizeof *p->steps};
        paged_layer_once(p, set); /* plans */
    }
    CUDA(cudaStreamSynchronize(stream));
}

void close_paged(struct paged *p) {
    void *all[] = {p->pool.pages, p->table, p->lengths, p->starts, p->slots, p->work};
    CUDA(cudaDeviceSynchronize());
    for (size_t i = 0; i < sizeof all / sizeof *all; i++)
        CUDA(cudaFree(all[i]));
}

void paged_append_once(void *arg, uint32_t set) {
    struct paged *p = arg;
    uint32_t tokens = p->run->b.batch * p->run->new_tokens;
    size_t n = (size_t)tokens * HEADS * p->run->b.dim;
    tq_rows_in k = fresh_rows(n, 2 * set), v = fresh_rows(n, 2 * set + 1);
    TQ(tq_paged_append(p->run->cache, 0, &p->pool, p->slots + (size_t)set * tokens, tokens, &k, &v,
                       stream));
}

/* step: of the set, planned by an earlier call; NULL: a step of its own. */
static void attend_set(struct paged *p, uint32_t set, tq_paged_step *step) {
    struct run *r = p->run;
    uint32_t n = r->b.batch;
    tq_paged_seqs seqs = {.struct_size = sizeof seqs,
                          .n_seqs = n,
                          .block_table = p->table + (size_t)set * n * p->stride,
                          .table_stride = p->stride,
                          .seq_lens = p->lengths + (size_t)set * n,
                          .query_starts = p->starts,
                          .n_queries = n,
                          .max_seq_len = (uint32_t)(r->b.tokens + r->new_tokens),
                          .step = step};
    TQ(tq_paged_attend(r->cache, 0, &p->pool, &seqs, NULL, &r->q, &r->out, NULL,
                       p->work + (step ? set + 1 : 0) * p->work_size, p->work_size, stream));
}

void paged_attend_once(void *arg, uint32_t set) {
    attend_set(arg, set, NULL);
}

/* A layer behind others of its step. */
void paged_layer_once(void *arg, uint32_t set) {
    struct paged *p = arg;
    attend_set(p, set, &p->steps[set]);
}

void paged_step_once(void *arg, uint32_t set) {
    paged_append_once(arg, set);
    paged_attend_once(arg, set);
}
