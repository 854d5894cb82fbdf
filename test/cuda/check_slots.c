/*
 * Append into slots of an engine's pages, byte for byte with the CPU: formats, head dims, page
 * sizes and row types; runs of slots that begin anywhere, tokens of a page in any order, slots that
 * skip, few rows and more than a launch has warps for.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "gpu.h"
#include "tq/paged.h"

enum order { IN_ORDER, BEHIND, MIXED, SCATTERED };

struct slots_case {
    tq_format k, v;
    uint32_t dim, page_tokens, n;
    tq_dtype dtype;
    enum order order;
    uint32_t gap; /* elements between rows: an odd number keeps them from being aligned */
};

static void swap(int64_t *a, int64_t *b) {
    int64_t t = *a;
    *a = *b;
    *b = t;
}

/* Slots for n rows; pages are taken in a random order. */
static int64_t *make_slots(const struct slots_case *c, uint32_t n_pages) {
    int64_t *slots = malloc(c->n * sizeof *slots), *pages = malloc(n_pages * sizeof *pages);
    uint32_t page = c->page_tokens, first = c->order == BEHIND ? page - 5 : 0;
    for (uint32_t i = 0; i < n_pages; i++)
        pages[i] = i;
    for (uint32_t i = n_pages; i > 1; i--)
        swap(&pages[i - 1], &pages[gpu_random() % i]);
    for (uint32_t i = 0; i < c->n; i++)
        slots[i] = pages[(first + i) / page] * page + (first + i) % page;
    for (uint32_t i = 0; i + 1 < c->n && c->order >= MIXED; i++) { /* near ones, or all */
        uint32_t left = c->n - i, reach = c->order == MIXED && left > 7 ? 7 : left;
        if (c->order == SCATTERED || gpu_random() % 4 == 0)
            swap(&slots[i], &slots[i + gpu_random() % reach]);
    }
    for (uint32_t i = 0; i < c->n && c->order == MIXED; i++)
        if (gpu_random() % 13 == 0)
            slots[i] = gpu_random() % 2 ? -1 : (int64_t)n_pages * page;
    free(pages);
    return slots;
}

/* The CPU refuses slots beyond the pool, CUDA leaves them out. */
static void leave_out(int64_t *slots, uint32_t n, int64_t n_slots) {
    for (uint32_t i = 0; i < n; i++)
        if (slots[i] >= n_slots)
            slots[i] = -1;
}

static void append_and_compare(struct pair *p, const struct slots_case *c, const char *what) {
    uint32_t heads = p->config.n_kv_heads, n_pages = c->n / c->page_tokens + 3;
    size_t size = gpu_size(c->dtype), row = heads * (size_t)c->dim + c->gap, n = c->n * row + 1;
    size_t bytes = tq_paged_page_bytes(p->cpu, 0) * n_pages, wrong = 0;
    uint8_t *want = malloc(bytes), *got = malloc(bytes), *pool = gpu_buffer(bytes);
    memset(want, 0xff, bytes);
    int64_t *slots = make_slots(c, n_pages), *device = gpu_upload(slots, c->n * sizeof *slots);
    leave_out(slots, c->n, (int64_t)n_pages * c->page_tokens);
    void *rows = gpu_rows(c->dtype, n, c->dim);
    for (uint32_t i = 0; i < c->n; i += 50) /* zeros and a NaN now and then */
        for (uint32_t d = 0; d < c->dim; d++)
            gpu_set(rows, c->dtype, i * row + d, i % 100 && d == 3 ? 0.0f / 0.0f : 0);
    uint8_t *rows_on_gpu = gpu_upload(rows, n * size);
    tq_rows_in cpu = {.data = (uint8_t *)rows + c->gap % 2 * size,
                      .token_stride = (int64_t)row,
                      .head_stride = c->dim,
                      .dtype = c->dtype};
    tq_rows_in gpu = cpu;
    gpu.data = rows_on_gpu + c->gap % 2 * size;
    tq_paged_pool host_pool = {sizeof host_pool, 0, want, 0, n_pages};
    tq_paged_pool gpu_pool = {sizeof gpu_pool, 0, pool, 0, n_pages};
    GPU_OK(tq_paged_append(p->cpu, 0, &host_pool, slots, c->n, &cpu, &cpu, NULL));
    GPU_OK(tq_paged_append(p->gpu, 0, &gpu_pool, device, c->n, &gpu, &gpu, NULL));
    gpu_download(got, pool, bytes);
    for (size_t i = 0; i < bytes; i++)
        wrong += got[i] != want[i];
    gpu_expect(wrong == 0, "%s: %zu of %zu bytes differ from the CPU", what, wrong, bytes);
    gpu_release(pool);
    gpu_release(device);
    gpu_release(rows_on_gpu);
    free(rows);
    free(slots);
    free(want);
    free(got);
}

static void one_case(struct slots_case c) {
    tq_cache_config config = {.n_kv_heads = 2, .head_dim = c.dim, .page_tokens = c.page_tokens};
    struct pair p;
    char what[128];
    snprintf(what, sizeof what, "K %u V %u dim %u page %u type %d, %u slots, order %d, gap %u", c.k,
             c.v, c.dim, c.page_tokens, c.dtype, c.n, c.order, c.gap);
    if (pair_create(&p, config, c.k, c.v))
        append_and_compare(&p, &c, what);
    pair_destroy(&p);
}

static const struct {
    tq_format k, v;
} pairs[] = {{TQ_FORMAT_BF16, TQ_FORMAT_F16},    {TQ_FORMAT_FP8, TQ_FORMAT_FP8},
             {TQ_FORMAT_INT8, TQ_FORMAT_INT8},   {TQ_FORMAT_FP8, TQ_FORMAT_LM4},
             {TQ_FORMAT_LM4, TQ_FORMAT_LM4},     {TQ_FORMAT_LM3, TQ_FORMAT_LM3},
             {TQ_FORMAT_LM3, TQ_FORMAT_LM2},     {TQ_FORMAT_POLAR_QJL, TQ_FORMAT_LM4},
             {TQ_FORMAT_LM3_QJL, TQ_FORMAT_LM4}, {TQ_FORMAT_LM2_QJL, TQ_FORMAT_LM3}};
enum { N_PAIRS = sizeof pairs / sizeof *pairs };

void check_slots(void) {
    static const uint32_t dims[] = {64, 96, 128, 192, 256};
    static const tq_dtype types[] = {TQ_BF16, TQ_F16, TQ_F32};
    for (size_t f = 0; f < N_PAIRS; f++)
        for (size_t d = 0; d < 5; d++)
            for (uint32_t order = IN_ORDER; order <= SCATTERED; order++) {
                struct slots_case c = {pairs[f].k,
                                       pairs[f].v,
                                       dims[d],
                                       32u << (d + order) % 3,
                                       order == IN_ORDER ? 9 : 230,
                                       types[(f + d + order) % 3],
                                       (enum order)order,
                                       (f + order) % 4 == 0 ? 3 : 8};
                one_case(c);
            }
    for (uint32_t order = IN_ORDER; order <= SCATTERED; order++) {
        one_case((struct slots_case){TQ_FORMAT_LM4, TQ_FORMAT_LM4, 128, 64, 6000, TQ_BF16,
                                     (enum order)order, 0});
        one_case((struct slots_case){TQ_FORMAT_FP8, TQ_FORMAT_LM4, 64, 64, 3000, TQ_F16,
                                     (enum order)order, 0});
    }
    one_case((struct slots_case){TQ_FORMAT_LM4, TQ_FORMAT_LM4, 80, 16, 100, TQ_BF16, MIXED, 0});
}
