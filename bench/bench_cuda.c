/*
 * bench_cuda [--json FILE] [--quick]: decode attention and append on a GPU through tq.h, against a
 * plain read of the same bytes in the same run.
 *
 * A batch of B sequences of one length stands as B times the kv heads of one sequence: the
 * same pages' bytes, the same work, one launch. Sets of pages are rotated so that no call
 * finds its pages in the L2 cache. Times are medians over replays of a graph of back-to-back
 * calls, everything included: query rotation, page table, attention, inverse rotation.
 */
#include <cuda_runtime.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "plain_read.h"
#include "tq/tq.h"

#define COLD_BYTES 400e6 /* of all sets together, several times the L2 cache */
enum { HEADS = 8, MAX_SETS = 16, CHUNK = 1024, REPLAYS = 7 };

static void must(int ok, const char *what) {
    if (ok)
        return;
    fprintf(stderr, "bench_cuda: %s: %s, %s\n", what, tq_last_error(),
            cudaGetErrorString(cudaGetLastError()));
    exit(1);
}
#define TQ(call) must((call) == TQ_OK, #call)
#define CUDA(call) must((call) == cudaSuccess, #call)

/* ---- timing -------------------------------------------------------------------------------- */

static cudaStream_t stream;

typedef void launch_fn(void *arg, uint32_t set);

static int ascending(const void *a, const void *b) {
    float x = *(const float *)a, y = *(const float *)b;
    return (x > y) - (x < y);
}

/* Milliseconds of a launch inside a graph of n, and of one alone. */
static double time_graph(launch_fn *launch, void *arg, uint32_t sets, uint32_t n) {
    cudaGraph_t graph;
    cudaGraphExec_t run;
    cudaEvent_t begin, end;
    float ms[REPLAYS];
    launch(arg, 0);
    CUDA(cudaStreamSynchronize(stream));
    CUDA(cudaStreamBeginCapture(stream, cudaStreamCaptureModeThreadLocal));
    for (uint32_t i = 0; i < n; i++)
        launch(arg, i % sets);
    CUDA(cudaStreamEndCapture(stream, &graph));
    CUDA(cudaGraphInstantiate(&run, graph, 0));
    CUDA(cudaEventCreate(&begin));
    CUDA(cudaEventCreate(&end));
    CUDA(cudaGraphLaunch(run, stream));
    for (int i = 0; i < REPLAYS; i++) {
        CUDA(cudaEventRecord(begin, stream));
        CUDA(cudaGraphLaunch(run, stream));
        CUDA(cudaEventRecord(end, stream));
        CUDA(cudaEventSynchronize(end));
        CUDA(cudaEventElapsedTime(&ms[i], begin, end));
    }
    qsort(ms, REPLAYS, sizeof *ms, ascending);
    CUDA(cudaGraphExecDestroy(run));
    CUDA(cudaGraphDestroy(graph));
    CUDA(cudaEventDestroy(begin));
    CUDA(cudaEventDestroy(end));
    return ms[REPLAYS / 2] / (double)n;
}

/* ---- data ---------------------------------------------------------------------------------- */

static void *device_rows; /* Gaussian bf16, read with small strides: rows overlap */
static size_t n_elements;

static float gauss(void) {
    static uint32_t s = 12345;
    float sum = 0;
    for (int i = 0; i < 6; i++) {
        s = s * 1664525u + 1013904223u;
        sum += (float)(s >> 16) - 32767.5f;
    }
    return sum / 46340.0f;
}

static void make_data(void) {
    n_elements = (size_t)12 << 20; /* 8192 tokens of the append cases, and offsets */
    uint16_t *host = malloc(n_elements * 2);
    for (size_t i = 0; i < n_elements; i++) {
        float f = gauss();
        uint32_t u;
        memcpy(&u, &f, 4);
        host[i] = (uint16_t)(u >> 16);
    }
    CUDA(cudaMalloc(&device_rows, n_elements * 2));
    CUDA(cudaMemcpy(device_rows, host, n_elements * 2, cudaMemcpyHostToDevice));
    free(host);
}

static tq_rows_in rows_at(uint32_t dim, size_t offset) {
    tq_rows_in r = {.data = (uint16_t *)device_rows + offset,
                    .token_stride = 1024,
                    .head_stride = dim,
                    .dtype = TQ_BF16};
    return r;
}

/* ---- one case ------------------------------------------------------------------------------ */

struct bench {
    const char *variant;
    uint32_t batch, group, dim;
    uint64_t tokens;
};

struct run {
    struct bench b;
    tq_context *context;
    tq_cache *cache;
    tq_seq seqs[MAX_SETS];
    uint32_t sets, heads;
    size_t blob;
    double bytes; /* of a call */
    tq_rows_in q;
    tq_rows_out out;
};

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

static void fill(struct run *r) {
    for (uint32_t set = 0; set < r->sets; set++) {
        TQ(tq_seq_create(r->cache, &r->seqs[set]));
        for (uint64_t t = 0; t < r->b.tokens; t += CHUNK) {
            uint64_t left = r->b.tokens - t;
            uint32_t n = left < CHUNK ? (uint32_t)left : CHUNK;
            tq_rows_in k = rows_at(r->b.dim, (t * 31 + set * 977) % 4096);
            tq_rows_in v = rows_at(r->b.dim, (t * 17 + set * 1999 + 5000) % 65536 / 2 * 2);
            TQ(tq_append(r->cache, r->seqs[set], 0, n, &k, &v, stream));
        }
    }
    CUDA(cudaStreamSynchronize(stream));
}

static void open_run(struct run *r, struct bench b) {
    tq_context_config context = {.struct_size = sizeof context, .device = TQ_DEVICE_CUDA};
    tq_footprint footprint = {.struct_size = sizeof footprint};
    memset(r, 0, sizeof *r);
    r->b = b;
    r->heads = HEADS * b.batch;
    TQ(tq_context_create(&context, &r->context));
    tq_cache_config c = {.struct_size = sizeof c,
                         .n_layers = 1,
                         .n_kv_heads = r->heads,
                         .n_q_heads = r->heads * b.group,
                         .head_dim = b.dim,
                         .max_seqs = 1 << 20,
                         .max_pages = 1,
                         .seed = 1};
    TQ(tq_variant_find(b.variant, &c.variant));
    TQ(tq_cache_estimate(r->context, &c, &footprint));
    uint64_t pages = (b.tokens + footprint.page_tokens - 1) / footprint.page_tokens;
    r->bytes = (double)pages * (double)footprint.bytes_per_page;
    r->blob = footprint.bytes_per_page / r->heads;
    r->sets = (uint32_t)(COLD_BYTES / r->bytes) + 1;
    r->sets = r->sets > MAX_SETS ? MAX_SETS : r->sets;
    c.max_pages = pages * r->sets;
    TQ(tq_cache_create(r->context, &c, &r->cache));
    if (b.batch <= 4)
        shuffle_pages(r, c.max_pages);
    fill(r);
    void *q, *out;
    size_t elements = (size_t)c.n_q_heads * b.dim;
    CUDA(cudaMalloc(&q, elements * 2));
    CUDA(cudaMalloc(&out, elements * 2));
    for (size_t i = 0; i < elements; i += 65536)
        CUDA(cudaMemcpy((uint16_t *)q + i, device_rows,
                        (elements - i < 65536 ? elements - i : 65536) * 2,
                        cudaMemcpyDeviceToDevice));
    r->q = (tq_rows_in){.data = q, .dtype = TQ_BF16};
    r->out = (tq_rows_out){.data = out, .dtype = TQ_BF16};
}

static void close_run(struct run *r) {
    CUDA(cudaDeviceSynchronize());
    tq_cache_destroy(r->cache);
    tq_context_destroy(r->context);
    CUDA(cudaFree((void *)(uintptr_t)r->q.data));
    CUDA(cudaFree(r->out.data));
}

static void attend_once(void *arg, uint32_t set) {
    struct run *r = arg;
    TQ(tq_attend(r->cache, r->seqs[set], 0, 1, NULL, &r->q, &r->out, NULL, stream));
}

/* ---- plain read ----------------------------------------------------------------------------- */

struct reader {
    uint8_t *memory;
    uint64_t n;
    uint32_t bytes;
    int way;
};

static void read_once(void *arg, uint32_t set) {
    struct reader *r = arg;
    CUDA(plain_read(r->memory + set * r->n * r->bytes, r->n, r->bytes, r->way, stream));
}

/* The fastest way to read as many blobs, in memory of its own. */
static double time_read(const struct run *r, uint32_t launches) {
    struct reader reader = {.n = (uint64_t)(r->bytes / (double)r->blob),
                            .bytes = (uint32_t)r->blob};
    double best = INFINITY;
    CUDA(cudaMalloc((void **)&reader.memory, reader.n * reader.bytes * r->sets));
    CUDA(cudaMemset(reader.memory, 0x5a, reader.n * reader.bytes * r->sets));
    for (reader.way = 0; reader.way < PLAIN_READ_WAYS; reader.way++)
        best = fmin(best, time_graph(read_once, &reader, r->sets, launches));
    CUDA(cudaFree(reader.memory));
    return best;
}

/* ---- the table --------------------------------------------------------------------------------
 */

static FILE *json;
static int json_rows;

static void run_attend(struct bench b) {
    struct run r;
    open_run(&r, b);
    double guess = r.bytes / 4e9 + 0.01; /* ms at 4 TB/s */
    uint32_t launches = (uint32_t)fmin(60, fmax(r.sets, 4 / guess)) + 1;
    double read = time_read(&r, launches);
    double ms = time_graph(attend_once, &r, r.sets, launches);
    const char *kernel = tq_cache_kernel_name(r.cache, 0, TQ_OP_SCORE);
    printf(
        "%-8s %3u x %6llu  group %2u dim %3u  %8.4f ms  %5.0f GB/s  read %8.4f ms  %5.1f %%  %s\n",
        b.variant, b.batch, (unsigned long long)b.tokens, b.group, b.dim, ms, r.bytes / ms / 1e6,
        read, 100 * read / ms, kernel);
    fflush(stdout);
    if (json)
        fprintf(json,
                "%s\n{\"op\": \"attend\", \"variant\": \"%s\", \"batch\": %u, \"tokens\": %llu, "
                "\"group\": %u, \"dim\": %u, \"kv_heads\": %d, \"ms\": %.6f, \"bytes\": %.0f, "
                "\"read_ms\": %.6f, \"kernel\": \"%s\"}",
                json_rows++ ? "," : "[", b.variant, b.batch, (unsigned long long)b.tokens, b.group,
                b.dim, HEADS, ms, r.bytes, read, kernel);
    close_run(&r);
}

struct appender {
    struct run run;
    uint32_t tokens;
};

static void append_once(void *arg, uint32_t set) {
    struct appender *a = arg;
    tq_rows_in k = rows_at(a->run.b.dim, 0), v = rows_at(a->run.b.dim, 128 + set * 2);
    TQ(tq_append(a->run.cache, a->run.seqs[0], 0, a->tokens, &k, &v, stream));
    TQ(tq_seq_truncate(a->run.cache, a->run.seqs[0], 0));
}

static void run_append(const char *variant, uint32_t batch, uint32_t tokens) {
    struct appender a = {.tokens = tokens};
    open_run(&a.run, (struct bench){variant, batch, 1, 128, tokens});
    TQ(tq_seq_truncate(a.run.cache, a.run.seqs[0], 0));
    double ms = time_graph(append_once, &a, 1, 20);
    double in = 2.0 * tokens * HEADS * batch * 128 * 2;
    printf("append %-8s %3u x %5u tokens, 8 heads  %8.4f ms  %5.0f GB/s of rows\n", variant, batch,
           tokens, ms, in / ms / 1e6);
    fflush(stdout);
    if (json)
        fprintf(json,
                "%s\n{\"op\": \"append\", \"variant\": \"%s\", \"batch\": %u, \"tokens\": %u, "
                "\"ms\": %.6f}",
                json_rows++ ? "," : "[", variant, batch, tokens, ms);
    close_run(&a.run);
}

static void run_all(int quick) {
    static const char *const variants[] = {"bf16",    "fp8",     "int8",   "k8v4",
                                           "4bit_nc", "k3v4_nc", "3bit_nc"};
    static const uint32_t groups[] = {1, 4, 16};
    for (size_t v = 0; v < sizeof variants / sizeof *variants; v++) {
        run_attend((struct bench){variants[v], 1, 8, 128, 32768});
        run_attend((struct bench){variants[v], 16, 8, 128, 32768});
        run_attend((struct bench){variants[v], 64, 8, 128, 32768});
        if (!quick)
            run_attend((struct bench){variants[v], 64, 8, 128, 4096});
    }
    for (size_t v = 4; v < sizeof variants / sizeof *variants && !quick; v += 2) {
        for (size_t g = 0; g < sizeof groups / sizeof *groups; g++)
            run_attend((struct bench){variants[v], 64, groups[g], 128, 32768});
        run_attend((struct bench){variants[v], 4, 8, 128, 32768});
        run_attend((struct bench){variants[v], 1, 8, 128, 131072});
    }
    for (uint32_t dim = 64; dim <= 256 && !quick; dim += dim < 128 ? 32 : 64)
        if (dim != 128)
            run_attend((struct bench){"4bit_nc", 32, 8, dim, 32768});
    run_append("4bit_nc", 1, 8192);
    run_append("3bit_nc", 1, 8192);
    run_append("4bit_nc", 64, 1);
}

int main(int argc, char **argv) {
    int n = 0, quick = 0;
    for (int i = 1; i < argc; i++) {
        quick |= strcmp(argv[i], "--quick") == 0;
        if (strcmp(argv[i], "--json") == 0 && i + 1 < argc)
            json = fopen(argv[++i], "w");
    }
    if (cudaGetDeviceCount(&n) != cudaSuccess || n == 0) {
        printf("bench_cuda: SKIPPED, this machine has no usable GPU\n");
        return 0;
    }
    struct cudaDeviceProp properties;
    CUDA(cudaGetDeviceProperties(&properties, 0));
    printf("%s, %d multiprocessors; ms per call inside a graph, all rotations included\n",
           properties.name, properties.multiProcessorCount);
    CUDA(cudaStreamCreate(&stream));
    make_data();
    run_all(quick);
    if (json) {
        fprintf(json, "\n]\n");
        fclose(json);
    }
    return 0;
}
