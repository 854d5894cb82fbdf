/* What an example needs of a GPU beside the library: memory, copies, and a graph of calls that is
 * captured once. In a build without CUDA there is none. */
#ifndef EXAMPLES_COMMON_GPU_H
#define EXAMPLES_COMMON_GPU_H

#include <stddef.h>

/* Why there is no GPU here, NULL when there is one. */
const char *gpu_missing(void);
/* The stream that everything runs on. */
void *gpu_stream(void);

/* Memory of the GPU or of the host, aligned to 64 bytes, and copies to it and from it: in the order
 * of the stream, done when they return. */
void *place_alloc(int on_gpu, size_t bytes);
void place_free(int on_gpu, void *memory);
void place_put(int on_gpu, void *to, const void *from, size_t bytes);
void place_get(int on_gpu, void *to, const void *from, size_t bytes);

/* Runs calls that put work on the stream: the first time as they are, the second time captured into
 * a graph, afterwards the graph, without the calls. Start: {0}. */
struct gpu_graph {
    void *exec;
    int runs;
};
void gpu_run(struct gpu_graph *graph, void (*calls)(void *), void *arg);
void gpu_graph_free(struct gpu_graph *graph);

#endif
