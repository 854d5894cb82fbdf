/*
 * What a device does for a cache. The CPU is one implementation, CUDA another; the api
 * folder knows only this table. All functions get checked arguments.
 */
#ifndef TQI_DEVICE_DEVICE_H
#define TQI_DEVICE_DEVICE_H

#include "attend/attend.h"
#include "encode/decode.h"
#include "encode/encode.h"
#include "page/pool.h"

struct tqi_device {
    const char *name;
    tq_memory page_memory; /* where pages live */
    uint32_t can_grow;     /* pools without max_pages */
    tqi_copy_fn *copy;     /* inside page memory */
    /* TQ_ERR_UNSUPPORTED with the reason when the layer has no kernel here; else fills
     * the kernels of the layer. group: query heads per kv head. */
    tq_status (*select)(const struct tqi_kernels *kernels, struct tqi_layer *layer, uint32_t group);
    tq_status (*append)(const struct tqi_encode_job *job, tq_stream stream);
    tq_status (*attend)(const struct tqi_attend_job *job, tq_stream stream);
    tq_status (*decode)(const struct tqi_decode_job *job);
    /* Page bytes to host memory. */
    tq_status (*read)(void *to, const void *from, size_t bytes);
};

const struct tqi_device *tqi_cpu_device(void);
/* NULL with a message when this build, driver or machine has no usable CUDA device. */
const struct tqi_device *tqi_cuda_device(int32_t index);

/* TQ_CPU_* bits that this CPU and operating system offer. */
uint64_t tqi_cpu_features(void);

#endif
