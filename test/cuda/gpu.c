#include "gpu.h"

#include <cuda_runtime.h>
#include <math.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* ---- results ------------------------------------------------------------------------------- */

static unsigned long passed, failed;

int gpu_expect(int ok, const char *format, ...) {
    va_list args;
    if (ok) {
        passed++;
        return 1;
    }
    failed++;
    printf("FAILED: ");
    va_start(args, format);
    vprintf(format, args);
    va_end(args);
    printf("\n");
    fflush(stdout);
    return 0;
}

void gpu_ok(tq_status status, const char *call) {
    if (status != TQ_OK)
        gpu_expect(0, "%s: %s: %s", call, tq_status_name(status), tq_last_error());
}

void gpu_cuda(int error, const char *call) {
    if (error == cudaSuccess)
        return;
    gpu_expect(0, "%s: %s", call, cudaGetErrorString((cudaError_t)error));
    exit(gpu_report());
}

static double worst[32][32]; /* by key and value format */

void gpu_error_seen(tq_format k, tq_format v, double error) {
    worst[k][v] = fmax(worst[k][v], error);
}

void gpu_worst(const char *what) {
    for (int k = 0; k < 32; k++)
        for (int v = 0; v < 32; v++)
            if (worst[k][v] > 0)
                printf("%s: K %d V %d: attention differs by at most %.1e\n", what, k, v,
                       worst[k][v]);
    memset(worst, 0, sizeof worst);
}

static uint32_t my_part, n_parts = 1;

void gpu_take_part(uint32_t part, uint32_t n) {
    my_part = part;
    n_parts = n;
}

int gpu_has(uint32_t i) {
    return i % n_parts == my_part;
}

int gpu_report(void) {
    gpu_worst("in all");
    printf("%lu passed, %lu failed\n", passed, failed);
    return failed || !passed ? 1 : 0;
}

/* ---- data ---------------------------------------------------------------------------------- */

static uint64_t random_state = 88172645463325252u;

uint32_t gpu_random(void) {
    random_state ^= random_state << 13;
    random_state ^= random_state >> 7;
    random_state ^= random_state << 17;
    return (uint32_t)(random_state >> 16);
}

float gpu_gauss(void) {
    float sum = 0;
    for (int i = 0; i < 6; i++)
        sum += (float)(int)(gpu_random() & 0xffff) - 32767.5f;
    return sum / 46340.0f;
}

size_t gpu_size(tq_dtype dtype) {
    return dtype == TQ_F32 ? 4 : 2;
}

static uint16_t to_bf16(float f) {
    uint32_t u;
    memcpy(&u, &f, 4);
    if ((u & 0x7fffffffu) > 0x7f800000u)
        return 0x7fc0;
    return (uint16_t)((u + 0x7fff + (u >> 16 & 1)) >> 16);
}

/* Values of the tests are normal or special in f16; others become zero. */
static uint16_t to_f16(float f) {
    uint32_t u, sign, a;
    memcpy(&u, &f, 4);
    sign = u >> 16 & 0x8000u;
    a = u & 0x7fffffffu;
    if (a > 0x7f800000u)
        return 0x7e00;
    if (a >= 0x477ff000u)
        return (uint16_t)(sign | 0x7c00);
    if (a < 0x38800000u)
        return (uint16_t)sign;
    a -= 112u << 23;
    return (uint16_t)(sign | (a + 0xfff + (a >> 13 & 1)) >> 13);
}

void gpu_set(void *rows, tq_dtype dtype, size_t i, float value) {
    if (dtype == TQ_F32)
        ((float *)rows)[i] = value;
    else
        ((uint16_t *)rows)[i] = dtype == TQ_F16 ? to_f16(value) : to_bf16(value);
}

static float from_f16(uint16_t h) {
    uint32_t sign = (uint32_t)(h & 0x8000u) << 16, e = h >> 10 & 31u, m = h & 0x3ffu, u;
    float f;
    if (e == 0) {
        f = (float)m / 16777216.0f;
        return sign ? -f : f;
    }
    u = sign | (e == 31 ? 0x7f800000u : (e + 112) << 23) | m << 13;
    memcpy(&f, &u, 4);
    return f;
}

float gpu_get(const void *rows, tq_dtype dtype, size_t i) {
    if (dtype == TQ_F32)
        return ((const float *)rows)[i];
    uint16_t h = ((const uint16_t *)rows)[i];
    if (dtype == TQ_F16)
        return from_f16(h);
    uint32_t u = (uint32_t)h << 16;
    float f;
    memcpy(&f, &u, 4);
    return f;
}

void *gpu_rows(tq_dtype dtype, size_t n, uint32_t dim) {
    void *rows = malloc(n ? n * gpu_size(dtype) : 1);
    for (size_t i = 0; rows && i < n; i++)
        gpu_set(rows, dtype, i, gpu_gauss() * (i % dim == 5 ? 12.0f : 1.0f));
    return rows;
}

void *gpu_buffer(size_t bytes) {
    void *device = NULL;
    GPU_CUDA(cudaMalloc(&device, bytes ? bytes : 1));
    GPU_CUDA(cudaMemset(device, 0xff, bytes));
    GPU_CUDA(cudaDeviceSynchronize());
    return device;
}

void gpu_write(void *device, const void *from, size_t bytes) {
    GPU_CUDA(cudaMemcpy(device, from, bytes, cudaMemcpyHostToDevice));
    /* A copy from pageable memory may return before its last bytes have arrived, and a stream that
     * does not block with the default one would not wait for them. */
    GPU_CUDA(cudaDeviceSynchronize());
}

void *gpu_fill_rows(void *device, size_t n, uint32_t dim) {
    void *host = gpu_rows(TQ_BF16, n, dim);
    gpu_write(device, host, n * 2);
    return host;
}

void *gpu_upload(const void *from, size_t bytes) {
    void *device = gpu_buffer(bytes);
    gpu_write(device, from, bytes);
    return device;
}

void gpu_download(void *to, const void *from, size_t bytes) {
    GPU_CUDA(cudaDeviceSynchronize());
    GPU_CUDA(cudaMemcpy(to, from, bytes, cudaMemcpyDeviceToHost));
}

void gpu_release(void *device) {
    GPU_CUDA(cudaFree(device));
}

double gpu_error(const float *a, const float *b, size_t n) {
    double difference = 0, norm = 0;
    for (size_t i = 0; i < n; i++) {
        double d = (double)a[i] - (double)b[i];
        if (!isfinite(a[i]) && !(isinf(a[i]) && a[i] == b[i]))
            return INFINITY;
        if (isinf(a[i]))
            continue;
        difference += d * d;
        norm += (double)b[i] * (double)b[i];
    }
    return norm > 0 ? sqrt(difference / norm) : sqrt(difference);
}
