#define _GNU_SOURCE /* nanosleep */
#include "bench.h"
#include "random.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

enum { REPLAYS = 7, ELEMENTS = 72 << 20 /* several times the L2 cache */ };

cudaStream_t stream;

void must(int ok, const char *what) {
    if (ok)
        return;
    fprintf(stderr, "bench_cuda: %s: %s, %s\n", what, tq_last_error(),
            cudaGetErrorString(cudaGetLastError()));
    exit(1);
}

/* ---- timing -------------------------------------------------------------------------------- */

static int ascending(const void *a, const void *b) {
    float x = *(const float *)a, y = *(const float *)b;
    return (x > y) - (x < y);
}

double time_graph(launch_fn *launch, void *arg, uint32_t sets, uint32_t n) {
    cudaGraph_t graph;
    cudaGraphExec_t run;
    cudaEvent_t begin, end;
    float ms[REPLAYS];
    /* A GPU under load for long lowers its clock: every time starts after the same rest. */
    const struct timespec rest = {.tv_nsec = 100000000};
    CUDA(cudaStreamBeginCapture(stream, cudaStreamCaptureModeThreadLocal));
    for (uint32_t i = 0; i < n; i++)
        launch(arg, i % sets);
    CUDA(cudaStreamEndCapture(stream, &graph));
    CUDA(cudaGraphInstantiate(&run, graph, 0));
    CUDA(cudaEventCreate(&begin));
    CUDA(cudaEventCreate(&end));
    CUDA(cudaStreamSynchronize(stream));
    nanosleep(&rest, NULL);
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

double time_read(uint64_t n, uint32_t bytes, uint32_t sets, uint32_t launches) {
    struct reader reader = {.n = n, .bytes = bytes};
    double best = INFINITY;
    CUDA(cudaMalloc((void **)&reader.memory, n * bytes * sets));
    CUDA(cudaMemset(reader.memory, 0x5a, n * bytes * sets));
    for (reader.way = 0; reader.way < PLAIN_READ_WAYS; reader.way++) {
        read_once(&reader, 0);
        CUDA(cudaStreamSynchronize(stream));
        best = fmin(best, time_graph(read_once, &reader, sets, launches));
    }
    CUDA(cudaFree(reader.memory));
    return best;
}

/* ---- data ---------------------------------------------------------------------------------- */

static uint16_t *device_rows;

void make_data(void) {
    CUDA(cudaMalloc((void **)&device_rows, ELEMENTS * sizeof *device_rows));
    CUDA(random_rows(device_rows, ELEMENTS, 12345, stream));
    CUDA(cudaStreamSynchronize(stream));
}

tq_rows_in rows_at(uint32_t dim, size_t offset) {
    tq_rows_in r = {
        .data = device_rows + offset, .token_stride = 1024, .head_stride = dim, .dtype = TQ_BF16};
    return r;
}

tq_rows_in fresh_rows(size_t n, uint32_t set) {
    size_t places = ELEMENTS / n;
    tq_rows_in r = {.data = device_rows + set % places * n, .dtype = TQ_BF16};
    return r;
}

void *copy_data(size_t n) {
    uint16_t *to;
    CUDA(cudaMalloc((void **)&to, n * sizeof *to));
    for (size_t i = 0; i < n; i += ELEMENTS) {
        size_t count = n - i < ELEMENTS ? n - i : ELEMENTS;
        CUDA(cudaMemcpy(to + i, device_rows, count * sizeof *to, cudaMemcpyDeviceToDevice));
    }
    return to;
}
