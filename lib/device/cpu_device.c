#include <string.h>

#include "device/device.h"

static void copy(void *user, void *to, const void *from, size_t bytes) {
    (void)user;
    memcpy(to, from, bytes);
}

static tq_status select_kernels(const struct tqi_kernels *kernels, struct tqi_layer *layer,
                                uint32_t group) {
    const struct tqi_format *k = layer->k.format, *v = layer->v.format;
    (void)group; /* the CPU tiles query rows: every group works */
    layer->encode_k = tqi_kernels_encode(kernels, k->id);
    layer->encode_v = tqi_kernels_encode(kernels, v->id);
    layer->attend = tqi_kernels_attend(kernels, k->id, v->id);
    if (!layer->encode_k || !layer->encode_v || !layer->attend)
        return tqi_fail(TQ_ERR_UNSUPPORTED, "no CPU kernel for K format %s with V format %s",
                        k->name, v->name);
    return TQ_OK;
}

static tq_status append(const struct tqi_encode_job *job, tq_stream stream) {
    (void)stream;
    tqi_encode(job);
    return TQ_OK;
}

static tq_status attend(const struct tqi_attend_job *job, tq_stream stream) {
    (void)stream;
    return tqi_attend(job);
}

static tq_status read_bytes(void *to, const void *from, size_t bytes) {
    memcpy(to, from, bytes);
    return TQ_OK;
}

static const struct tqi_device device = {
    .name = "cpu",
    .page_memory = TQ_MEM_HOST,
    .can_grow = 1,
    .copy = copy,
    .select = select_kernels,
    .append = append,
    .attend = attend,
    .decode = tqi_decode,
    .read = read_bytes,
};

const struct tqi_device *tqi_cpu_device(void) {
    return &device;
}
