/* The device around the kernels: refusals, current device, streams, repeatability. */
#include <cuda_runtime.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "gpu.h"

static void refusals(void) {
    int n = 0;
    tq_context *context = NULL;
    tq_context_config config = {.struct_size = sizeof config, .device = TQ_DEVICE_CUDA};
    GPU_CUDA(cudaGetDeviceCount(&n));
    config.device_index = n;
    gpu_expect(tq_context_create(&config, &context) == TQ_ERR_NOT_FOUND, "GPU %d exists", n);
    config.device_index = -1;
    gpu_expect(tq_context_create(&config, &context) == TQ_ERR_NOT_FOUND, "GPU -1 exists");
    config.device_index = 0;
    GPU_OK(tq_context_create(&config, &context));
    if (!context)
        return;
    tq_cache *cache = NULL;
    tq_cache_config shape = {.struct_size = sizeof shape,
                             .n_layers = 1,
                             .n_kv_heads = 1,
                             .head_dim = 128,
                             .variant = TQ_VARIANT_4BIT_NC};
    gpu_expect(tq_cache_create(context, &shape, &cache) == TQ_ERR_INVALID_ARGUMENT,
               "a growing pool was taken");
    shape.max_pages = 3;
    tq_footprint footprint = {.struct_size = sizeof footprint};
    tq_cache_stats stats = {.struct_size = sizeof stats};
    GPU_OK(tq_cache_estimate(context, &shape, &footprint));
    GPU_OK(tq_cache_create(context, &shape, &cache));
    GPU_OK(tq_cache_get_stats(cache, &stats));
    gpu_expect(footprint.device_bytes == stats.device_bytes &&
                   footprint.host_bytes == stats.host_bytes,
               "estimate: %llu + %llu bytes, the cache has %llu + %llu",
               (unsigned long long)footprint.host_bytes, (unsigned long long)footprint.device_bytes,
               (unsigned long long)stats.host_bytes, (unsigned long long)stats.device_bytes);
    tq_cache_destroy(cache);
    tq_context_destroy(context);
}

/* A call must leave the caller's current device alone. */
static void current_device(void) {
    int n = 0, current = -1;
    GPU_CUDA(cudaGetDeviceCount(&n));
    GPU_CUDA(cudaSetDevice(n - 1));
    struct pair p;
    tq_cache_config config = {.n_kv_heads = 1, .head_dim = 64};
    if (pair_create(&p, config, TQ_FORMAT_LM4, TQ_FORMAT_LM4)) {
        tq_seq seq = pair_seq(&p);
        GPU_CUDA(cudaGetDevice(&current));
        gpu_expect(current == n - 1, "the current device is %d, it was %d", current, n - 1);
        if (n == 1) {
            pair_append(&p, seq, 10, TQ_F32, 0);
            pair_check_attend(&p, seq, 1, 0, "current device");
        }
    }
    pair_destroy(&p);
    GPU_CUDA(cudaGetDevice(&current));
    gpu_expect(current == n - 1, "the current device is %d, it was %d", current, n - 1);
    GPU_CUDA(cudaSetDevice(0));
}

static void other_stream(void) {
    struct pair p;
    cudaStream_t stream;
    tq_cache_config config = {.n_kv_heads = 2, .n_q_heads = 8, .head_dim = 128};
    GPU_CUDA(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking));
    if (pair_create(&p, config, TQ_FORMAT_LM4, TQ_FORMAT_LM4)) {
        p.stream = stream;
        tq_seq seq = pair_seq(&p);
        for (uint32_t i = 0; i < 5; i++)
            pair_append(&p, seq, 100, TQ_BF16, 0);
        pair_check_pages(&p, seq, "on a stream");
        pair_check_attend(&p, seq, 1, 0, "on a stream");
    }
    pair_destroy(&p);
    GPU_CUDA(cudaStreamDestroy(stream));
}

/* The same call gives the same bits; a query that is not finite spoils its own row only. */
void check_repeated(tq_format k, tq_format v) {
    enum { Q_HEADS = 16, DIM = 128, N = Q_HEADS * DIM, RUNS = 200 };
    tq_cache_config config = {.n_kv_heads = 2, .n_q_heads = Q_HEADS, .head_dim = DIM};
    struct pair p;
    if (pair_create(&p, config, k, v)) {
        static float first[N], again[N];
        tq_seq seq = pair_seq(&p);
        pair_append(&p, seq, 3000, TQ_BF16, 0);
        float *q = gpu_rows(TQ_F32, N, DIM);
        float *device_q = gpu_upload(q, sizeof first), *out = gpu_buffer(sizeof first);
        tq_rows_in q_rows = {.data = device_q};
        tq_rows_out rows = {.data = out};
        int same = 1;
        for (int run = 0; run < RUNS; run++) {
            GPU_OK(tq_attend(p.gpu, seq, 0, 1, NULL, &q_rows, &rows, NULL, NULL));
            gpu_download(run ? again : first, out, sizeof first);
            same &= run == 0 || memcmp(first, again, sizeof first) == 0;
        }
        gpu_expect(same, "K %u V %u: %d identical calls gave different bits", k, v, RUNS);
        q[3 * DIM + 5] = NAN;
        q[9 * DIM] = INFINITY;
        gpu_release(device_q);
        device_q = gpu_upload(q, sizeof first);
        q_rows.data = device_q;
        GPU_OK(tq_attend(p.gpu, seq, 0, 1, NULL, &q_rows, &rows, NULL, NULL));
        gpu_download(again, out, sizeof first);
        int clean = 1, spoilt = 1;
        for (int i = 0; i < N; i++) {
            if (i / DIM == 3 || i / DIM == 9)
                spoilt &= !isfinite(again[i]);
            else
                clean &= again[i] == first[i];
        }
        gpu_expect(clean, "K %u V %u: a bad query changed other rows", k, v);
        gpu_expect(spoilt, "K %u V %u: a bad query gave a finite row", k, v);
        gpu_release(device_q);
        gpu_release(out);
        free(q);
    }
    pair_destroy(&p);
}

/* Sequences on two GPUs in turn: the same bits as on one. */
static void two_devices(void) {
    enum { HEADS = 2, DIM = 128, TOKENS = 300, ROW = HEADS * DIM };
    static float got[2][ROW];
    tq_context *contexts[2] = {NULL, NULL};
    tq_cache *caches[2] = {NULL, NULL};
    tq_seq seqs[2];
    int n = 0, current = -1;
    GPU_CUDA(cudaGetDeviceCount(&n));
    if (n < 2)
        return;
    void *rows = gpu_rows(TQ_BF16, (size_t)TOKENS * ROW, DIM), *device[2], *out[2];
    for (int g = 0; g < 2; g++) {
        tq_context_config on = {
            .struct_size = sizeof on, .device = TQ_DEVICE_CUDA, .device_index = g};
        tq_cache_config shape = {.struct_size = sizeof shape,
                                 .n_layers = 1,
                                 .n_kv_heads = HEADS,
                                 .head_dim = DIM,
                                 .variant = TQ_VARIANT_4BIT_NC,
                                 .max_pages = 8};
        GPU_OK(tq_context_create(&on, &contexts[g]));
        GPU_OK(tq_cache_create(contexts[g], &shape, &caches[g]));
        GPU_OK(tq_seq_create(caches[g], &seqs[g]));
        GPU_CUDA(cudaSetDevice(g));
        device[g] = gpu_upload(rows, (size_t)TOKENS * ROW * 2);
        out[g] = gpu_buffer(sizeof got[g]);
    }
    GPU_CUDA(cudaSetDevice(0));
    for (int g = 0; g < 2; g++) {
        tq_rows_in in = {.data = device[g], .dtype = TQ_BF16};
        GPU_OK(tq_append(caches[g], seqs[g], 0, TOKENS, &in, &in, NULL));
    }
    for (int g = 0; g < 2; g++) {
        tq_rows_in in = {.data = device[g], .dtype = TQ_BF16};
        tq_rows_out to = {.data = out[g], .dtype = TQ_F32};
        GPU_OK(tq_attend(caches[g], seqs[g], 0, 1, NULL, &in, &to, NULL, NULL));
        GPU_CUDA(cudaGetDevice(&current));
        gpu_expect(current == 0, "a call for GPU %d left GPU %d current", g, current);
    }
    for (int g = 0; g < 2; g++) {
        GPU_CUDA(cudaSetDevice(g));
        gpu_download(got[g], out[g], sizeof got[g]);
        gpu_release(device[g]);
        gpu_release(out[g]);
        tq_cache_destroy(caches[g]);
        tq_context_destroy(contexts[g]);
    }
    GPU_CUDA(cudaSetDevice(0));
    gpu_expect(memcmp(got[0], got[1], sizeof got[0]) == 0, "two GPUs give different bits");
    free(rows);
}

void check_device(void) {
    two_devices();
    refusals();
    current_device();
    other_stream();
    check_repeated(TQ_FORMAT_LM4, TQ_FORMAT_LM4);
    check_repeated(TQ_FORMAT_LM3, TQ_FORMAT_LM3);
    check_repeated(TQ_FORMAT_INT8, TQ_FORMAT_INT8);
    check_repeated(TQ_FORMAT_FP8, TQ_FORMAT_FP8);
    check_repeated(TQ_FORMAT_BF16, TQ_FORMAT_BF16);
}
