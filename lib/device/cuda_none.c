/* Stands in for the cuda folder in builds without it. */
#include "device/device.h"

const struct tqi_device *tqi_cuda_device(int32_t index) {
    (void)index;
    (void)tqi_fail(TQ_ERR_UNSUPPORTED, "device: this build of the library has no CUDA kernels");
    return NULL;
}
