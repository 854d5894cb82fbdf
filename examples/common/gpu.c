#include "common/gpu.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#ifdef EXAMPLES_WITH_CUDA
#include <cuda_runtime.h>

static cudaStream_t stream;

static void must(cudaError_t error, const char *what) {
    if (error == cudaSuccess)
        return;
    fprintf(stderr, "%s: %s\n", what, cudaGetErrorString(error));
    exit(1);
}

const char *gpu_missing(void) {
    int n = 0;
    cudaError_t error = cudaGetDeviceCount(&n);
    if (error != cudaSuccess)
        return cudaGetErrorString(error);
    return n ? NULL : "this machine has no GPU";
}

void *gpu_stream(void) {
    if (!stream)
        must(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking), "a stream");
    return stream;
}

static void *gpu_alloc(size_t bytes) {
    void *memory = NULL;
    must(cudaMalloc(&memory, bytes), "GPU memory");
    return memory;
}

static void gpu_free(void *memory) {
    must(cudaFree(memory), "GPU memory");
}

static void copy(void *to, const void *from, size_t bytes, enum cudaMemcpyKind kind) {
    must(cudaMemcpyAsync(to, from, bytes, kind, gpu_stream()), "a copy");
    must(cudaStreamSynchronize(gpu_stream()), "a copy");
}

static void gpu_upload(void *to, const void *from, size_t bytes) {
    copy(to, from, bytes, cudaMemcpyHostToDevice);
}

static void gpu_download(void *to, const void *from, size_t bytes) {
    copy(to, from, bytes, cudaMemcpyDeviceToHost);
}

void gpu_run(struct gpu_graph *graph, void (*calls)(void *), void *arg) {
    cudaGraph_t captured;
    cudaGraphExec_t exec;
    if (graph->runs++ == 0) { /* loads code, which a capture can't */
        calls(arg);
        return;
    }
    if (!graph->exec) {
        must(cudaStreamBeginCapture(gpu_stream(), cudaStreamCaptureModeThreadLocal), "capturing");
        calls(arg);
        must(cudaStreamEndCapture(gpu_stream(), &captured), "capturing");
        must(cudaGraphInstantiate(&exec, captured, 0), "a graph");
        must(cudaGraphDestroy(captured), "a graph");
        graph->exec = exec;
    }
    must(cudaGraphLaunch(graph->exec, gpu_stream()), "a graph");
}

void gpu_graph_free(struct gpu_graph *graph) {
    if (graph->exec)
        must(cudaGraphExecDestroy(graph->exec), "a graph");
}

#else

static _Noreturn void none(void) {
    fprintf(stderr, "a GPU was used in a build without CUDA\n");
    exit(1);
}

const char *gpu_missing(void) {
    return "the examples were built without CUDA";
}

void *gpu_stream(void) {
    none();
}

static void *gpu_alloc(size_t bytes) {
    (void)bytes;
    none();
}

static void gpu_free(void *memory) {
    (void)memory;
    none();
}

static void gpu_upload(void *to, const void *from, size_t bytes) {
    (void)to;
    (void)from;
    (void)bytes;
    none();
}

static void gpu_download(void *to, const void *from, size_t bytes) {
    (void)to;
    (void)from;
    (void)bytes;
    none();
}

void gpu_run(struct gpu_graph *graph, void (*calls)(void *), void *arg) {
    (void)graph;
    (void)calls;
    (void)arg;
    none();
}

void gpu_graph_free(struct gpu_graph *graph) {
    (void)graph;
    none();
}

#endif

/* ---- either place -------------------------------------------------------------------------- */

void *place_alloc(int on_gpu, size_t bytes) {
    void *memory = on_gpu ? gpu_alloc(bytes) : aligned_alloc(64, (bytes + 63) / 64 * 64);
    if (memory)
        return memory;
    fprintf(stderr, "out of memory\n");
    exit(1);
}

void place_free(int on_gpu, void *memory) {
    if (on_gpu)
        gpu_free(memory);
    else
        free(memory);
}

void place_put(int on_gpu, void *to, const void *from, size_t bytes) {
    if (on_gpu)
        gpu_upload(to, from, bytes);
    else
        memcpy(to, from, bytes);
}

void place_get(int on_gpu, void *to, const void *from, size_t bytes) {
    if (on_gpu)
        gpu_download(to, from, bytes);
    else
        memcpy(to, from, bytes);
}
