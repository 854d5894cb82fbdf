/*
 * What a device does for a cache. The CPU is one implementation, CUDA another; the api
 * folder knows only this table. All functions get checked arguments.
 *
 * A device keeps a state per cache: scratch memory and counters on the CPU, on a GPU also
 * its copies of the constants of every layer. Functions that take a state may set a message
 * and return TQ_ERR_DEVICE for an error of earlier work that surfaces in them.
 */
#ifndef TQI_DEVICE_DEVICE_H
#define TQI_DEVICE_DEVICE_H

#include "attend/attend.h"
#include "attend/merge.h"
#include "device/paged.h"
#include "device/step.h"
#include "encode/decode.h"
#include "encode/encode.h"
#include "page/pool.h"

/* Shape of the cache that a state is opened for. */
struct tqi_device_config {
    struct tqi_heap *heap; /* of the cache; outlives the state */
    const struct tqi_executor *executor;
    uint32_t n_kv_heads, n_q_heads;
    uint32_t head_dim, v_head_dim;
    uint64_t max_pages; /* of the pool */
    uint32_t n_layers, page_tokens;
    uint32_t keeps; /* some tokens are kept in 16 bits beside their codes */
};

/* Rows to measure the channel means of. */
struct tqi_means_job {
    const tq_rows_in *rows; /* strides resolved */
    uint32_t n_tokens, n_heads, dim;
    float *mean; /* [n_heads][dim], host memory */
};

struct tqi_device {
    const char *name;
    int32_t index;          /* ordinal of the GPU */
    tq_memory page_memory;  /* where pages live */
    uint32_t can_grow;      /* pools without max_pages */
    uint32_t flags;         /* TQ_CONTEXT_* */
    uint32_t arithmetics;   /* of CUDA: kinds of kernels that the GPU runs */
    uint32_t entry_bytes;   /* device memory that a state takes for every page of the pool */
    uint32_t kept_bytes;    /* and for every page of tokens in 16 bits that could be, where it keeps
                               some */
    tq_allocator allocator; /* hooks of contexts that bring none; alloc NULL = the C library's */
    /* TQ_ERR_UNSUPPORTED with the reason when the layer has no kernel here; else fills
     * kernels and names of the layer. group: query heads per kv head. */
    tq_status (*select)(const struct tqi_device *device, const struct tqi_kernels *kernels,
                        struct tqi_layer *layer, uint32_t group);
    tq_status (*open)(const struct tqi_device *device, const struct tqi_device_config *config,
                      void **state);
    /* Waits for the device; afterwards memory of the cache may be freed. NULL is allowed. */
    void (*close)(void *state);
    /* Takes in a layer's constants: at creation, and when means or scales have changed. */
    tq_status (*set_layer)(void *state, struct tqi_layer *layer);
    void (*unset_layer)(void *state, struct tqi_layer *layer);
    /* Takes in the types of the rows that a layer keeps in 16 bits, also before its set_layer().
     * Waits for nothing. */
    tq_status (*set_exact)(void *state, struct tqi_layer *layer);
    /* Counts of replaced elements since open or the last reset. Synchronizing. */
    tq_status (*counts)(void *state, struct tqi_nonfinite *out);
    tq_status (*reset)(void *state);
    /* Channel means of rows in the device's memory, as append would load them; sums in
     * double. Synchronizing. */
    tq_status (*measure_means)(void *state, const struct tqi_means_job *job);
    /* Copies inside page memory run on the stream named here. */
    void (*use_stream)(void *state, tq_stream stream);
    tqi_copy_fn *copy;
    tq_status (*append)(void *state, const struct tqi_encode_job *job, tq_stream stream);
    tq_status (*attend)(void *state, const struct tqi_attend_job *job, tq_stream stream);
    tq_status (*decode)(void *state, const struct tqi_decode_job *job);
    /* Steps over many sequences (step.h); all NULL on a device that has none. At most
     * max_seqs sequences and max_tokens append rows and query rows each. Several batches of
     * a state may be open. */
    tq_status (*open_batch)(void *state, uint32_t max_seqs, uint32_t max_tokens, void **batch);
    void (*close_batch)(void *batch); /* waits for the device; NULL is allowed */
    /* Readies the batch for a step, on the stream. May allocate. A failed plan leaves the
     * batch unplanned. */
    tq_status (*plan)(void *batch, const struct tqi_step *step, tq_stream stream);
    /* Neither allocate nor wait for the device. */
    tq_status (*batch_append)(void *batch, const struct tqi_step_append *job, tq_stream stream);
    tq_status (*batch_attend)(void *batch, const struct tqi_step_attend *job, tq_stream stream);
    /* Pages of the caller (paged.h); all NULL on a device that has no such kernels. They
     * neither allocate nor, unless checked, wait for the device. */
    tq_status (*paged_append)(void *state, const struct tqi_paged_append *job, tq_stream stream);
    tq_status (*paged_attend)(void *state, const struct tqi_paged_attend *job, tq_stream stream);
    size_t (*paged_workspace)(void *state, uint32_t max_seqs, uint32_t max_queries,
                              uint32_t max_length);
    /* Joins attention over disjoint tokens; NULL on a device that can't. */
    tq_status (*merge)(const struct tqi_device *device, const struct tqi_merge_job *job,
                       tq_stream stream);
    /* Whether calls on the stream are being captured into a graph; NULL = never. */
    int (*capturing)(void *state, tq_stream stream);
    /* Waits for all work on the device, whatever stream it is on, and tells its errors. */
    tq_status (*wait)(void *state);
    /* Page bytes to host memory. Synchronizing. */
    tq_status (*read)(void *state, void *to, const void *from, size_t bytes);
    /* Host memory to page bytes; fails too when a copy since use_stream() did. Synchronizing. */
    tq_status (*write)(void *state, void *to, const void *from, size_t bytes);
};

#ifdef __cplusplus
extern "C" {
#endif

void tqi_cpu_device(struct tqi_device *out);
/* flags: TQ_CONTEXT_*. TQ_ERR_UNSUPPORTED when build, driver or GPU can't, TQ_ERR_NOT_FOUND when
 * the machine has no GPU of that index. */
tq_status tqi_cuda_device(int32_t index, uint32_t flags, struct tqi_device *out);
/* Whether the CUDA kernels of this build know a format. */
int tqi_cuda_has_format(tq_format f);

/* TQ_CPU_* bits of `wanted` that this CPU and operating system offer. With TQ_CPU_AMX it asks
 * Linux for the use of tiles, on behalf of the process. */
uint64_t tqi_cpu_features(uint64_t wanted);

#ifdef __cplusplus
}
#endif

#endif
