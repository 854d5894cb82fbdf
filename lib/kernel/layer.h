/* One layer of a cache as the drivers see it: formats, kernels, means and scales. */
#ifndef TQI_KERNEL_LAYER_H
#define TQI_KERNEL_LAYER_H

#include "kernel/kernel.h"

/* Number of tq_op values. */
enum { TQI_OP_LIMIT = 5 };

struct tqi_layer {
    uint32_t n_kv_heads;
    struct tqi_page_layout page;
    struct tqi_rows k, v;
    const float *k_mean, *v_mean;                         /* [n_kv_heads][dim], NULL = none */
    const float *k_scale, *v_scale;                       /* [n_kv_heads] of fp8, 1 elsewhere */
    const float *k_inv_scale, *v_inv_scale;               /* their reciprocals */
    const float *sinks;                                   /* [n_q_heads] logits, NULL = none */
    const struct tqi_level *encode_k, *encode_v, *attend; /* CPU */
    const struct tqi_layer *exact;         /* 16-bit formats of tokens that are kept, NULL = none */
    uint32_t rounds;                       /* codes are made of rows rounded to those formats */
    const char *kernel_name[TQI_OP_LIMIT]; /* by tq_op */
    void *device;                          /* what the device keeps about the layer */
};

/* Mean of one head; NULL = none. */
static inline const float *tqi_layer_mean(const float *mean, uint32_t head, uint32_t dim) {
    return mean ? mean + (size_t)head * dim : NULL;
}

#endif
