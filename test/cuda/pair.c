/* A CPU cache and a GPU cache that see the same calls. */
#include <cuda_runtime.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "gpu.h"

/* ---- memory that starts as 0xFF bytes ------------------------------------------------------ */

static void *host_alloc(void *user, size_t size, size_t alignment, tq_memory space) {
    (void)user;
    if (space != TQ_MEM_HOST)
        return NULL;
    void *p = aligned_alloc(alignment, (size + alignment - 1) / alignment * alignment);
    if (p)
        memset(p, 0xff, size);
    return p;
}

static void *any_alloc(void *user, size_t size, size_t alignment, tq_memory space) {
    void *p = NULL;
    int current = 0;
    if (space == TQ_MEM_HOST)
        return host_alloc(user, size, alignment, space);
    if (space != TQ_MEM_DEVICE)
        return NULL;
    GPU_CUDA(cudaGetDevice(&current));
    GPU_CUDA(cudaSetDevice(0)); /* the contexts' */
    if (cudaMalloc(&p, size) == cudaSuccess)
        GPU_CUDA(cudaMemset(p, 0xff, size));
    GPU_CUDA(cudaSetDevice(current));
    return p;
}

static void any_free(void *user, void *p, size_t size, size_t alignment, tq_memory space) {
    (void)user;
    (void)size;
    (void)alignment;
    if (space == TQ_MEM_HOST)
        free(p);
    else
        GPU_CUDA(cudaFree(p));
}

static uint32_t context_flags;

void pair_use_flags(uint32_t flags) {
    context_flags = flags;
}

static tq_status create_context(tq_device device, tq_context **out) {
    tq_allocator memory = {.struct_size = sizeof memory, .alloc = any_alloc, .free = any_free};
    tq_context_config config = {.struct_size = sizeof config,
                                .flags = context_flags,
                                .device = device,
                                .cpu_features_disabled = UINT64_MAX,
                                .allocator = &memory};
    return tq_context_create(&config, out);
}

/* By the kernel that runs: generic, tensor cores on e4m3, on integers or 16-bit floats. */
static double tolerance_of(const struct pair *p) {
    int any = strstr(tq_cache_kernel_name(p->gpu, 0, TQ_OP_SCORE), "_any") != NULL;
    int fp8 = p->formats.k_format == TQ_FORMAT_FP8 || p->formats.v_format == TQ_FORMAT_FP8;
    if (any) /* tokens kept in 16 bits go to tensor cores always */
        return p->config.sink_tokens || p->config.recent_tokens ? 2e-4 : 1e-5;
    return fp8 ? 2e-3 : 2e-4;
}

double pair_tolerance(const struct pair *p, uint32_t n_queries) {
    const char *few = tq_cache_kernel_name(p->gpu, 0, TQ_OP_SCORE);
    const char *many = tq_cache_kernel_name(p->gpu, 0, TQ_OP_PREFILL);
    uint32_t rows = n_queries * (p->config.n_q_heads / p->config.n_kv_heads);
    int tiles = strcmp(few, many) != 0 && rows >= 128;
    return tiles && p->tolerance < 2e-3 ? 2e-3 : p->tolerance;
}

int pair_create(struct pair *p, tq_cache_config config, tq_format k, tq_format v) {
    memset(p, 0, sizeof *p);
    p->formats.k_format = k;
    p->formats.v_format = v;
    config.struct_size = sizeof config;
    config.n_layers = 1;
    config.layer_formats = &p->formats;
    config.max_pages = config.max_pages ? config.max_pages : 64;
    config.seed = 42;
    GPU_OK(create_context(TQ_DEVICE_CPU, &p->cpu_context));
    GPU_OK(create_context(TQ_DEVICE_CUDA, &p->gpu_context));
    if (!p->cpu_context || !p->gpu_context)
        return 0;
    GPU_OK(tq_cache_create(p->cpu_context, &config, &p->cpu));
    GPU_OK(tq_cache_create(p->gpu_context, &config, &p->gpu));
    if (!p->cpu || !p->gpu)
        return 0;
    p->config.struct_size = sizeof p->config;
    GPU_OK(tq_cache_get_config(p->gpu, &p->config));
    p->tolerance = tolerance_of(p);
    p->q_dtype = TQ_BF16;
    return 1;
}

void pair_destroy(struct pair *p) {
    tq_cache_destroy(p->cpu);
    tq_cache_destroy(p->gpu);
    tq_context_destroy(p->cpu_context);
    tq_context_destroy(p->gpu_context);
}

tq_seq pair_seq(struct pair *p) {
    tq_seq a = 0, b = 0;
    GPU_OK(tq_seq_create(p->cpu, &a));
    GPU_OK(tq_seq_create(p->gpu, &b));
    gpu_expect(a == b, "sequence ids differ");
    return b;
}

/* ---- append -------------------------------------------------------------------------------- */

static void fill_row(void *rows, tq_dtype dtype, size_t row, uint32_t dim, float value) {
    for (uint32_t i = 0; i < dim; i++)
        gpu_set(rows, dtype, row * dim + i, value * (i % 3 ? 1.0f : -0.5f));
}

/* Rows that need care, one after the other as far as they last. */
static void spoil(void *rows, tq_dtype dtype, size_t n_rows, uint32_t dim) {
    const float tiny = dtype == TQ_F16 ? 0x1p-13f : 0x1p-70f;
    const float large = dtype == TQ_F16 ? 0x1p15f : 0x1p120f;
    for (size_t r = 0; r < n_rows; r += 3) {
        size_t at = r * dim;
        switch (r / 3 % 9) {
        case 0:
            fill_row(rows, dtype, r, dim, 0);
            break;
        case 1:
            gpu_set(rows, dtype, at + 1, NAN);
            break;
        case 2:
            gpu_set(rows, dtype, at, INFINITY);
            gpu_set(rows, dtype, at + dim - 1, -INFINITY);
            break;
        case 3:
            fill_row(rows, dtype, r, dim, tiny);
            break;
        case 4:
            fill_row(rows, dtype, r, dim, large);
            break;
        case 5: /* one hot */
            fill_row(rows, dtype, r, dim, 0);
            gpu_set(rows, dtype, at + 7, 3);
            break;
        case 6: /* beyond the range of half the formats */
            fill_row(rows, dtype, r, dim, dtype == TQ_F16 ? 60000.0f : 70000.0f);
            break;
        case 7: /* subnormal squares, and subnormal elements of f32 */
            fill_row(rows, dtype, r, dim, dtype == TQ_F32 ? 0x1p-140f : tiny);
            break;
        default:
            gpu_set(rows, dtype, at + 2, dtype == TQ_F32 ? 0x1.fffffep127f : large);
        }
    }
}

struct both {
    tq_rows_in cpu, gpu;
    void *device;
};

/* Random rows on both sides, freed by drop(). */
static struct both make_rows(tq_dtype dtype, uint32_t n, uint32_t heads, uint32_t dim, int bad) {
    size_t count = (size_t)n * heads * dim, bytes = count * gpu_size(dtype);
    struct both b = {.cpu = {.dtype = dtype}, .gpu = {.dtype = dtype}};
    void *rows = gpu_rows(dtype, count, dim);
    if (bad)
        spoil(rows, dtype, (size_t)n * heads, dim);
    b.device = gpu_upload(rows, bytes);
    b.cpu.data = rows;
    b.gpu.data = b.device;
    return b;
}

static void drop(struct both *b) {
    free((void *)(uintptr_t)b->cpu.data);
    GPU_CUDA(cudaDeviceSynchronize());
    gpu_release(b->device);
}

void pair_append(struct pair *p, tq_seq seq, uint32_t n, tq_dtype dtype, int bad) {
    const tq_cache_config *c = &p->config;
    struct both k = make_rows(dtype, n, c->n_kv_heads, c->head_dim, bad);
    struct both v = make_rows(dtype, n, c->n_kv_heads, c->v_head_dim, bad);
    GPU_OK(tq_append(p->cpu, seq, 0, n, &k.cpu, &v.cpu, NULL));
    GPU_OK(tq_append(p->gpu, seq, 0, n, &k.gpu, &v.gpu, p->stream));
    drop(&k);
    drop(&v);
}

/* ---- comparing ----------------------------------------------------------------------------- */

struct difference {
    size_t size, at; /* of the page's blob */
    uint64_t page;
    uint32_t head;
    uint8_t cpu, gpu;
};

/* Bytes that differ; *first: where, when it was unset. */
static size_t page_differs(struct pair *p, tq_seq seq, uint64_t page, uint32_t head,
                           struct difference *first) {
    size_t size = 0, n = 0;
    GPU_OK(tq_read_page(p->cpu, seq, 0, page, head, NULL, 0, &size));
    uint8_t *a = malloc(size), *b = malloc(size);
    GPU_OK(tq_read_page(p->cpu, seq, 0, page, head, a, size, &size));
    GPU_OK(tq_read_page(p->gpu, seq, 0, page, head, b, size, &size));
    for (size_t i = 0; i < size; i++) {
        if (a[i] != b[i] && !first->size)
            *first = (struct difference){size, i, page, head, a[i], b[i]};
        n += a[i] != b[i];
    }
    free(a);
    free(b);
    return n;
}

void pair_check_pages(struct pair *p, tq_seq seq, const char *what) {
    uint64_t length = 0;
    GPU_OK(tq_seq_length(p->gpu, seq, 0, &length));
    uint64_t pages = (length + p->config.page_tokens - 1) / p->config.page_tokens;
    size_t n = 0;
    struct difference d = {0};
    for (uint64_t page = 0; page < pages; page++)
        for (uint32_t head = 0; head < p->config.n_kv_heads; head++)
            n += page_differs(p, seq, page, head, &d);
    gpu_expect(n == 0,
               "%s: %zu bytes of pages differ from the CPU, first byte %zu of %zu of page %llu "
               "head %u: %02x, not %02x",
               what, n, d.at, d.size, (unsigned long long)d.page, d.head, d.gpu, d.cpu);
}

void pair_check_rows(struct pair *p, tq_seq seq, const char *what) {
    const tq_cache_config *c = &p->config;
    uint64_t length = 0;
    GPU_OK(tq_seq_length(p->gpu, seq, 0, &length));
    double worst = 0;
    for (int side = 0; side < 2; side++) {
        size_t n = (size_t)length * c->n_kv_heads * (side ? c->v_head_dim : c->head_dim);
        float *a = calloc(n + 1, sizeof *a), *b = calloc(n + 1, sizeof *b);
        void *device = gpu_buffer(n * sizeof *b);
        tq_rows_out cpu = {.data = a, .dtype = TQ_F32}, gpu = {.data = device, .dtype = TQ_F32};
        GPU_OK(tq_read_rows(p->cpu, seq, 0, 0, (uint32_t)length, side ? NULL : &cpu,
                            side ? &cpu : NULL));
        GPU_OK(tq_read_rows(p->gpu, seq, 0, 0, (uint32_t)length, side ? NULL : &gpu,
                            side ? &gpu : NULL));
        gpu_download(b, device, n * sizeof *b);
        double error = gpu_error(b, a, n);
        worst = error > worst ? error : worst;
        gpu_release(device);
        free(a);
        free(b);
    }
    gpu_expect(worst <= 1e-7, "%s: decoded rows differ by %.2e", what, worst);
}

/* Out and lse of one call on one side, into host memory. */
struct result {
    float *out, *lse;
};

/* Fixed point has a relative error, so that the error of a logit is in proportion to scale |q| |k|,
 * whatever the logit itself is: beyond 16 the tolerance is too (docs/TESTING.md), up to 8 times. Of
 * the keys the root mean square is taken, as make_rows() draws them. */
static double stretch_of(const struct pair *p, const tq_attend_params *params, const tq_rows_in *q,
                         uint32_t n_queries) {
    const uint32_t dim = p->config.head_dim;
    double scale = params->scale != 0 ? fabs((double)params->scale) : 1 / sqrt(dim), largest = 0;
    if (pair_tolerance(p, n_queries) != 2e-4) /* not fixed point, or wide enough */
        return 1;
    for (size_t row = 0; row < (size_t)n_queries * p->config.n_q_heads; row++) {
        double sum = 0;
        for (uint32_t i = 0; i < dim; i++) {
            double x = (double)gpu_get(q->data, q->dtype, row * dim + i);
            sum += x * x;
        }
        largest = fmax(largest, sqrt(sum));
    }
    return fmin(fmax(1, scale * largest * sqrt(dim + 143.0) / 16), 8);
}

static struct result run_gpu(struct pair *p, tq_seq seq, uint32_t n, tq_attend_params *params,
                             const tq_rows_in *q, size_t n_out, size_t n_lse) {
    struct result r = {calloc(n_out, 4), calloc(n_lse, 4)};
    float *out = gpu_buffer(n_out * 4), *lse = gpu_buffer(n_lse * 4);
    tq_rows_out rows = {.data = out, .dtype = TQ_F32};
    GPU_OK(tq_attend(p->gpu, seq, 0, n, params, q, &rows, lse, p->stream));
    gpu_download(r.out, out, n_out * 4);
    gpu_download(r.lse, lse, n_lse * 4);
    gpu_release(out);
    gpu_release(lse);
    return r;
}

static void compare_attention(struct pair *p, tq_seq seq, uint32_t n_queries,
                              const tq_attend_params *given, const struct both *q,
                              const char *what) {
    const tq_cache_config *c = &p->config;
    tq_attend_params params = *given;
    size_t n_lse = (size_t)n_queries * c->n_q_heads, n_out = n_lse * c->v_head_dim;
    struct result a = {calloc(n_out, 4), calloc(n_lse, 4)};
    tq_rows_out rows = {.data = a.out, .dtype = TQ_F32};
    GPU_OK(tq_attend(p->cpu, seq, 0, n_queries, &params, &q->cpu, &rows, a.lse, NULL));
    struct result b = run_gpu(p, seq, n_queries, &params, &q->gpu, n_out, n_lse);
    double out = gpu_error(b.out, a.out, n_out), lse = gpu_error(b.lse, a.lse, n_lse);
    double tolerance = pair_tolerance(p, n_queries) * stretch_of(p, &params, &q->cpu, n_queries);
    gpu_error_seen(p->formats.k_format, p->formats.v_format, fmax(out, lse));
    gpu_expect(out <= tolerance && lse <= tolerance,
               "%s: attention differs by %.2e, lse by %.2e (at most %.1e)", what, out, lse,
               tolerance);
    free(a.out);
    free(a.lse);
    free(b.out);
    free(b.lse);
}

void pair_check_params(struct pair *p, tq_seq seq, uint32_t n_queries,
                       const tq_attend_params *params, const char *what) {
    const tq_cache_config *c = &p->config;
    struct both q = make_rows(p->q_dtype, n_queries, c->n_q_heads, c->head_dim, 0);
    compare_attention(p, seq, n_queries, params, &q, what);
    drop(&q);
}

void pair_check_query(struct pair *p, tq_seq seq, const float *query,
                      const tq_attend_params *params, const char *what) {
    size_t bytes = (size_t)p->config.n_q_heads * p->config.head_dim * sizeof *query;
    struct both q = {.cpu = {.data = query, .dtype = TQ_F32}, .gpu = {.dtype = TQ_F32}};
    q.gpu.data = q.device = gpu_upload(query, bytes);
    compare_attention(p, seq, 1, params, &q, what);
    gpu_release(q.device);
}

/* The same rows on both sides. */
void pair_append_rows(struct pair *p, tq_seq seq, uint32_t n, const float *rows) {
    const tq_cache_config *c = &p->config;
    size_t bytes = (size_t)n * c->n_kv_heads * c->head_dim * sizeof *rows;
    void *device = gpu_upload(rows, bytes);
    tq_rows_in cpu = {.data = rows, .dtype = TQ_F32}, gpu = {.data = device, .dtype = TQ_F32};
    GPU_OK(tq_append(p->cpu, seq, 0, n, &cpu, &cpu, NULL));
    GPU_OK(tq_append(p->gpu, seq, 0, n, &gpu, &gpu, p->stream));
    GPU_CUDA(cudaDeviceSynchronize());
    gpu_release(device);
}

void pair_check_attend(struct pair *p, tq_seq seq, uint32_t n_queries, uint32_t flags,
                       const char *what) {
    tq_attend_params params = {.struct_size = sizeof params, .flags = flags};
    pair_check_params(p, seq, n_queries, &params, what);
}
