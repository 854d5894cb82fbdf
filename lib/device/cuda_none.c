/* Stands in for the cuda folder in builds without it. */
#include "device/device.h"

tq_status tqi_cuda_device(int32_t index, uint32_t flags, struct tqi_device *out) {
    (void)index;
    (void)flags;
    (void)out;
    return tqi_fail(TQ_ERR_UNSUPPORTED, "device: this build of the library has no CUDA kernels");
}

int tqi_cuda_has_format(tq_format f) {
    (void)f;
    return 0;
}
