/* Sequences to host memory and back, and to the other device, beside plain copies of as many bytes.
 */
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "bench.h"
#include "snapshots.h"
#include "tq/snapshot.h"

enum { LAYERS = 4, TOKENS = 32768, DIM = 128, CHUNK = 4096, TRIES = 7 };

static double ms(void) {
    struct timespec t;
    (void)timespec_get(&t, TIME_UTC);
    return (double)t.tv_sec * 1e3 + (double)t.tv_nsec * 1e-6;
}

static tq_cache *open_cache(tq_device device, const char *variant, tq_context **context) {
    tq_context_config context_config = {.struct_size = sizeof context_config, .device = device};
    tq_variant id = 0;
    tq_cache *cache = NULL;
    TQ(tq_context_create(&context_config, context));
    TQ(tq_variant_find(variant, &id));
    tq_cache_config c = {.struct_size = sizeof c,
                         .n_layers = LAYERS,
                         .n_kv_heads = HEADS,
                         .head_dim = DIM,
                         .variant = id,
                         .max_pages = 2 * TOKENS / 64};
    TQ(tq_cache_create(*context, &c, &cache));
    return cache;
}

static tq_seq fill(tq_cache *cache) {
    tq_seq seq = 0;
    TQ(tq_seq_create(cache, &seq));
    for (uint32_t l = 0; l < LAYERS; l++)
        for (uint32_t t = 0; t < TOKENS; t += CHUNK) {
            tq_rows_in k = rows_at(DIM, t), v = rows_at(DIM, t + 1);
            TQ(tq_append(cache, seq, l, CHUNK, &k, &v, NULL));
        }
    CUDA(cudaDeviceSynchronize());
    return seq;
}

static double fastest(double best, double start) {
    double now = ms() - start;
    return best == 0 || now < best ? now : best;
}

/* cudaMemcpy both ways, with host memory as malloc gives it. */
static void time_plain(void *host, size_t bytes, double *from, double *to) {
    void *device = NULL;
    CUDA(cudaMalloc(&device, bytes));
    for (int i = 0; i < TRIES; i++) {
        double start = ms();
        CUDA(cudaMemcpy(host, device, bytes, cudaMemcpyDeviceToHost));
        *from = fastest(*from, start);
        start = ms();
        CUDA(cudaMemcpy(device, host, bytes, cudaMemcpyHostToDevice));
        CUDA(cudaDeviceSynchronize());
        *to = fastest(*to, start);
    }
    CUDA(cudaFree(device));
}

struct times {
    double save, load, to_cpu, to_gpu, save_cpu, load_cpu, plain_from, plain_to;
};

static void time_calls(tq_cache *gpu, tq_cache *cpu, tq_seq seq, struct times *t) {
    size_t size = 0;
    TQ(tq_seq_blob_size(gpu, seq, &size));
    void *bytes = malloc(size);
    must(bytes != NULL, "memory");
    memset(bytes, 1, size);
    for (int i = 0; i < TRIES; i++) {
        tq_seq loaded = 0, there = 0, back = 0, on_cpu = 0;
        double start = ms();
        TQ(tq_seq_save(gpu, seq, bytes, size, &size));
        t->save = fastest(t->save, start);
        start = ms();
        TQ(tq_seq_load(gpu, bytes, size, &loaded));
        t->load = fastest(t->load, start);
        TQ(tq_seq_destroy(gpu, loaded));
        start = ms();
        TQ(tq_seq_copy(cpu, gpu, seq, 0, UINT64_MAX, &there));
        t->to_cpu = fastest(t->to_cpu, start);
        start = ms();
        TQ(tq_seq_copy(gpu, cpu, there, 0, UINT64_MAX, &back));
        t->to_gpu = fastest(t->to_gpu, start);
        TQ(tq_seq_destroy(gpu, back));
        start = ms();
        TQ(tq_seq_save(cpu, there, bytes, size, &size));
        t->save_cpu = fastest(t->save_cpu, start);
        TQ(tq_seq_destroy(cpu, there));
        start = ms();
        TQ(tq_seq_load(cpu, bytes, size, &on_cpu));
        t->load_cpu = fastest(t->load_cpu, start);
        TQ(tq_seq_destroy(cpu, on_cpu));
    }
    time_plain(bytes, size, &t->plain_from, &t->plain_to);
    free(bytes);
}

static void time_variant(const char *variant) {
    tq_context *gpu_context, *cpu_context;
    tq_cache *gpu = open_cache(TQ_DEVICE_CUDA, variant, &gpu_context);
    tq_cache *cpu = open_cache(TQ_DEVICE_CPU, variant, &cpu_context);
    struct times t = {0};
    size_t size = 0;
    tq_seq seq = fill(gpu);
    TQ(tq_seq_blob_size(gpu, seq, &size));
    time_calls(gpu, cpu, seq, &t);
    printf(
        "%-8s %d layers x %d tokens, %.0f MB, ms: save %.2f load %.2f, to CPU %.2f from CPU %.2f; "
        "cudaMemcpy from %.2f to %.2f; CPU cache save %.2f load %.2f\n",
        variant, LAYERS, TOKENS, (double)size / 1e6, t.save, t.load, t.to_cpu, t.to_gpu,
        t.plain_from, t.plain_to, t.save_cpu, t.load_cpu);
    fflush(stdout);
    tq_cache_destroy(gpu);
    tq_cache_destroy(cpu);
    tq_context_destroy(gpu_context);
    tq_context_destroy(cpu_context);
}

void time_snapshots(void) {
    time_variant("4bit_nc");
    time_variant("3bit_nc");
    time_variant("bf16");
}
