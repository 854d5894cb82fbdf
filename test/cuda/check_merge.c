/* tq_merge() against the CPU: all types, dims, strides, empty parts, in place, on a stream. */
#include <cuda_runtime.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "gpu.h"

static const tq_dtype types[] = {TQ_F32, TQ_F16, TQ_BF16};

struct shape {
    uint32_t tokens, heads, dim, gap; /* gap: elements behind each row */
    tq_dtype a, b, out;
    int in_place; /* the result over part a */
};

struct part {
    void *host, *device;
    float *host_lse, *lse;
    size_t elements, rows;
    tq_dtype dtype;
};

/* Rows that are empty have the lse -infinity and hold NaN. */
static struct part make_part(const struct shape *s, tq_dtype dtype, uint32_t empty) {
    struct part p = {.dtype = dtype, .rows = (size_t)s->tokens * s->heads};
    size_t pitch = s->dim + s->gap;
    p.elements = p.rows * pitch;
    p.host = gpu_rows(dtype, p.elements, s->dim);
    p.host_lse = malloc(p.rows * sizeof *p.host_lse);
    for (size_t i = 0; i < p.rows; i++) {
        int is_empty = i % 4 == empty || i % 7 == 6;
        p.host_lse[i] = is_empty ? -INFINITY : 20 * gpu_gauss();
        for (uint32_t d = 0; is_empty && d < s->dim; d++)
            gpu_set(p.host, dtype, i * pitch + d, NAN);
    }
    p.device = gpu_upload(p.host, p.elements * gpu_size(dtype));
    p.lse = gpu_upload(p.host_lse, p.rows * sizeof *p.lse);
    return p;
}

static void drop_part(struct part *p) {
    gpu_release(p->device);
    gpu_release(p->lse);
    free(p->host);
    free(p->host_lse);
}

static tq_rows_in in_of(const struct shape *s, const struct part *p, int on_gpu) {
    int64_t row = s->dim + s->gap;
    return (tq_rows_in){on_gpu ? p->device : p->host, row * s->heads, row, p->dtype, 0};
}

static void merge_on(const struct shape *s, tq_context *ctx, struct part *parts, int on_gpu,
                     tq_stream stream) {
    int64_t row = s->dim + s->gap;
    struct part *to = &parts[s->in_place ? 0 : 2];
    tq_rows_in a = in_of(s, &parts[0], on_gpu), b = in_of(s, &parts[1], on_gpu);
    tq_rows_out out = {on_gpu ? to->device : to->host, row * s->heads, row, to->dtype, 0};
    GPU_OK(tq_merge(ctx, s->tokens, s->heads, s->dim, &a, on_gpu ? parts[0].lse : parts[0].host_lse,
                    &b, on_gpu ? parts[1].lse : parts[1].host_lse, &out,
                    on_gpu ? to->lse : to->host_lse, stream));
}

/* Elements in which two results differ by more than rounding; rows with one part or none, and
 * what lies behind rows, not by a bit. */
static size_t wrong_elements(const struct shape *s, const struct part *to, const void *got,
                             const char *alone) {
    size_t pitch = s->dim + s->gap, wrong = 0;
    double step = to->dtype == TQ_F32 ? 1e-6 : to->dtype == TQ_F16 ? 0x1p-10 : 0x1p-7;
    for (size_t i = 0; i < to->elements; i++) {
        double x = (double)gpu_get(got, to->dtype, i), y = (double)gpu_get(to->host, to->dtype, i);
        int exact = alone[i / pitch] || i % pitch >= s->dim;
        int same =
            memcmp((const char *)got + i * gpu_size(to->dtype),
                   (const char *)to->host + i * gpu_size(to->dtype), gpu_size(to->dtype)) == 0;
        wrong += exact ? !same : !(fabs(x - y) <= step * (fabs(y) + 1e-3));
    }
    return wrong;
}

static void check_shape(const struct shape *s, tq_context **ctx) {
    struct part parts[3] = {make_part(s, s->a, 1), make_part(s, s->b, 2), make_part(s, s->out, 9)};
    struct part *to = &parts[s->in_place ? 0 : 2];
    void *got = malloc(to->elements * gpu_size(to->dtype));
    float *lse = malloc(to->rows * sizeof *lse);
    char *alone = malloc(to->rows);
    cudaStream_t stream;
    GPU_CUDA(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking));
    for (size_t i = 0; i < to->rows; i++)
        alone[i] = isinf(parts[0].host_lse[i]) || isinf(parts[1].host_lse[i]);
    merge_on(s, ctx[1], parts, 1, stream);
    merge_on(s, ctx[0], parts, 0, NULL);
    GPU_CUDA(cudaStreamSynchronize(stream));
    gpu_download(got, to->device, to->elements * gpu_size(to->dtype));
    gpu_download(lse, to->lse, to->rows * sizeof *lse);
    size_t wrong = wrong_elements(s, to, got, alone);
    for (size_t i = 0; i < to->rows; i++)
        wrong += alone[i] ? lse[i] != to->host_lse[i]
                          : !(fabsf(lse[i] - to->host_lse[i]) <= 1e-6f * (1 + fabsf(lse[i])));
    gpu_expect(wrong == 0, "merge of types %d and %d to %d, dim %u, gap %u: %zu elements are wrong",
               (int)s->a, (int)s->b, (int)to->dtype, s->dim, s->gap, wrong);
    GPU_CUDA(cudaStreamDestroy(stream));
    for (int i = 0; i < 3; i++)
        drop_part(&parts[i]);
    free(got);
    free(lse);
    free(alone);
}

void check_merge(void) {
    static const uint32_t dims[] = {128, 64, 80, 33, 1, 576};
    tq_context *ctx[2] = {NULL, NULL};
    tq_context_config cpu = {.struct_size = sizeof cpu};
    tq_context_config gpu = {.struct_size = sizeof gpu, .device = TQ_DEVICE_CUDA};
    GPU_OK(tq_context_create(&cpu, &ctx[0]));
    GPU_OK(tq_context_create(&gpu, &ctx[1]));
    for (int i = 0; i < 27; i++)
        for (int d = 0; d < 6; d++) {
            struct shape s = {.tokens = 9,
                              .heads = 5,
                              .dim = dims[d],
                              .gap = (uint32_t)(i % 3) * 4 + (uint32_t)(i % 2),
                              .a = types[i % 3],
                              .b = types[i / 3 % 3],
                              .out = types[i / 9]};
            check_shape(&s, ctx);
            s.in_place = 1;
            check_shape(&s, ctx);
        }
    tq_context_destroy(ctx[0]);
    tq_context_destroy(ctx[1]);
}
