/* What the host side of the CUDA device shares: errors, launches. Every kernel is compiled with
 * it, so that it includes nothing of lib that changes often. */
#ifndef TQI_CUDA_HOST_H
#define TQI_CUDA_HOST_H

#include <cuda_runtime.h>
#include <math.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include "base/status.h"

namespace tqi {

/* Names a failure of the runtime; TQ_OK for success. */
tq_status check(cudaError_t error, const char *what);

#define TQI_CUDA(call) TQI_TRY(tqi::check((call), #call))

/* Makes a GPU current and restores the caller's. */
class DeviceGuard {
  public:
    explicit DeviceGuard(int index) {
        error_ = cudaGetDevice(&previous_);
        if (error_ == cudaSuccess && previous_ != index) {
            error_ = cudaSetDevice(index);
            changed_ = error_ == cudaSuccess;
        }
    }
    ~DeviceGuard() {
        if (changed_)
            (void)cudaSetDevice(previous_); /* it was current a moment ago */
    }
    DeviceGuard(const DeviceGuard &) = delete;
    DeviceGuard &operator=(const DeviceGuard &) = delete;
    tq_status status() const {
        return check(error_, "selecting the GPU");
    }

  private:
    int previous_ = 0;
    bool changed_ = false;
    cudaError_t error_;
};

/* Behind a cudaMemset or a copy from pageable memory: either may return before its last bytes are
 * there, and a stream of the caller that does not block with the default one would not wait. */
inline tq_status settle(const char *what) {
    return check(cudaStreamSynchronize(nullptr), what);
}

struct LaunchShape {
    uint64_t blocks;
    uint32_t threads;
    size_t shared;
    cudaStream_t stream;
    bool overlap; /* may start before the kernel in front has finished; it waits itself */
};

/* Launches and reports errors of this launch only. */
template <class... Params, class... Args>
tq_status launch(void (*kernel)(Params...), const LaunchShape &shape, const char *name,
                 const Args &...args) {
    if (shape.blocks == 0)
        return TQ_OK;
    if (shape.blocks > 0x7fffffffu)
        return tqi_fail(TQ_ERR_UNSUPPORTED, "%s: %llu blocks exceed a grid", name,
                        (unsigned long long)shape.blocks);
    cudaLaunchConfig_t config = {};
    cudaLaunchAttribute attribute[1];
    config.gridDim = dim3((unsigned)shape.blocks);
    config.blockDim = dim3(shape.threads);
    config.dynamicSmemBytes = shape.shared;
    config.stream = shape.stream;
    config.attrs = attribute;
    if (shape.overlap) {
        attribute[0].id = cudaLaunchAttributeProgrammaticStreamSerialization;
        attribute[0].val.programmaticStreamSerializationAllowed = 1;
        config.numAttrs = 1;
    }
    return check(cudaLaunchKernelEx(&config, kernel, args...), name);
}

} /* namespace tqi */

#endif
