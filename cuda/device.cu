/* Finding a GPU, and its entry in the table of lib/device. */
#include "attend/fast_job.h"
#include "encode/encode_job.h"
#include "encode/key_job.h"
#include "state.h"

namespace tqi {

tq_status check(cudaError_t error, const char *what) {
    if (error == cudaSuccess)
        return TQ_OK;
    (void)cudaGetLastError(); /* reported here: must not surface in the caller's next check */
    tq_status status = error == cudaErrorMemoryAllocation ? TQ_ERR_OUT_OF_MEMORY : TQ_ERR_DEVICE;
    return tqi_fail(status, "%s: %s (%s)", what, cudaGetErrorString(error),
                    cudaGetErrorName(error));
}

/* ---- memory of contexts without an allocator ----------------------------------------------- */

static void *device_alloc(int index, size_t size, tq_memory space) {
    void *ptr = nullptr;
    DeviceGuard guard(index);
    cudaError_t error =
        space == TQ_MEM_DEVICE ? cudaMalloc(&ptr, size) : cudaMallocHost(&ptr, size);
    if (error != cudaSuccess)
        (void)cudaGetLastError(); /* NULL says it */
    return error == cudaSuccess ? ptr : nullptr;
}

/* user is the index of the GPU. Both allocators of the runtime align to 256 bytes or more. */
static void *alloc_hook(void *user, size_t size, size_t alignment, tq_memory space) {
    if (space == TQ_MEM_HOST)
        return tqi_host_alloc(nullptr, size, alignment, space);
    return device_alloc((int)(intptr_t)user, size, space);
}

static void free_hook(void *user, void *ptr, size_t size, size_t alignment, tq_memory space) {
    if (space == TQ_MEM_HOST) {
        tqi_host_free(nullptr, ptr, size, alignment, space);
        return;
    }
    DeviceGuard guard((int)(intptr_t)user);
    /* A failure here is one of earlier work, which its own call has reported. */
    (void)(space == TQ_MEM_DEVICE ? cudaFree(ptr) : cudaFreeHost(ptr));
}

/* ---- what this device can do ---------------------------------------------------------------- */

static tq_status select_kernels(const tqi_device *device, const tqi_kernels *kernels,
                                tqi_layer *layer, uint32_t group) {
    (void)device;
    (void)kernels;
    const FastKernel *fast =
        find_fast(layer->k.format->id, layer->v.format->id, layer->k.layout, layer->v.layout, group,
                  KernelChoice{device->arithmetics, device->flags});
    const char *encoder = fast_encoder_name(layer->k.format->id, layer->v.format->id,
                                            layer->k.layout, layer->v.layout);
    layer->kernel_name[TQ_OP_ENCODE_K] = encoder ? encoder : "tqk_encode_any";
    layer->kernel_name[TQ_OP_ENCODE_V] = layer->kernel_name[TQ_OP_ENCODE_K];
    if (encoder && takes_keys(layer->k.layout))
        layer->kernel_name[TQ_OP_ENCODE_K] = key_encoder_name(layer->k.layout);
    layer->kernel_name[TQ_OP_SCORE] = fast ? fast->name : "tqk_attend_any";
    layer->kernel_name[TQ_OP_ACCUMULATE] = layer->kernel_name[TQ_OP_SCORE];
    return TQ_OK;
}

/* ---- finding it ----------------------------------------------------------------------------- */

static tq_status find_driver(int *n_devices) {
    int driver = 0, runtime = 0;
    *n_devices = 0;
    cudaError_t error = cudaDriverGetVersion(&driver);
    if (error != cudaSuccess || driver == 0)
        return tqi_fail(TQ_ERR_UNSUPPORTED, "device: no NVIDIA driver on this machine");
    (void)cudaRuntimeGetVersion(&runtime);
    error = cudaGetDeviceCount(n_devices);
    if (error == cudaErrorInsufficientDriver)
        return tqi_fail(TQ_ERR_UNSUPPORTED,
                        "device: the NVIDIA driver supports CUDA %d.%d, this build needs %d.%d",
                        driver / 1000, driver % 1000 / 10, runtime / 1000, runtime % 1000 / 10);
    if (error == cudaErrorNoDevice)
        *n_devices = 0;
    else if (error != cudaSuccess)
        return tqi_fail(TQ_ERR_UNSUPPORTED, "device: %s (%s)", cudaGetErrorString(error),
                        cudaGetErrorName(error));
    return TQ_OK;
}

static tq_status check_architecture(int index) {
    int major = 0, minor = 0;
    TQI_CUDA(cudaDeviceGetAttribute(&major, cudaDevAttrComputeCapabilityMajor, index));
    TQI_CUDA(cudaDeviceGetAttribute(&minor, cudaDevAttrComputeCapabilityMinor, index));
    if (major < 8)
        return tqi_fail(TQ_ERR_UNSUPPORTED,
                        "device_index: GPU %d has compute capability %d.%d, 8.0 is the least",
                        index, major, minor);
    DeviceGuard guard(index);
    TQI_TRY(guard.status());
    if (!encode_any_runs())
        return tqi_fail(TQ_ERR_UNSUPPORTED,
                        "device_index: this build has no code for compute capability %d.%d of "
                        "GPU %d",
                        major, minor, index);
    return TQ_OK;
}

static tq_status find_device(int32_t index) {
    int n_devices;
    tq_status status = find_driver(&n_devices);
    (void)cudaGetLastError(); /* the search leaves errors behind that are answers */
    TQI_TRY(status);
    if (index < 0 || index >= n_devices)
        return tqi_fail(TQ_ERR_NOT_FOUND, "device_index: %d, this machine has %d GPU%s", index,
                        n_devices, n_devices == 1 ? "" : "s");
    return check_architecture(index);
}

static void fill_device(int32_t index, tqi_device *out) {
    memset(out, 0, sizeof *out);
    out->name = "cuda";
    out->index = index;
    out->page_memory = TQ_MEM_DEVICE;
    out->entry_bytes = sizeof(uint32_t);
    out->kept_bytes = sizeof(KeptPage);
    out->allocator.struct_size = sizeof out->allocator;
    out->allocator.user = (void *)(intptr_t)index;
    out->allocator.alloc = alloc_hook;
    out->allocator.free = free_hook;
    out->select = select_kernels;
    out->open = open_state;
    out->close = close_state;
    out->set_layer = set_layer;
    out->unset_layer = unset_layer;
    out->set_exact = set_exact;
    out->counts = read_counts;
    out->reset = reset_counts;
    out->measure_means = measure_means;
    out->use_stream = use_stream;
    out->copy = copy_bytes;
    out->append = append;
    out->attend = attend;
    out->decode = decode;
    out->open_batch = open_batch;
    out->close_batch = close_batch;
    out->plan = plan_batch;
    out->batch_append = batch_append;
    out->batch_attend = batch_attend;
    out->paged_append = paged_append;
    out->paged_attend = paged_attend;
    out->paged_workspace = paged_workspace;
    out->merge = merge;
    out->capturing = capturing;
    out->wait = wait_for_device;
    out->read = read_bytes;
    out->write = write_bytes;
}

} /* namespace tqi */

tq_status tqi_cuda_device(int32_t index, uint32_t flags, tqi_device *out) {
    TQI_TRY(tqi::find_device(index));
    tqi::DeviceGuard guard(index);
    TQI_TRY(guard.status());
    tqi::fill_device(index, out);
    out->flags = flags;
    out->arithmetics = tqi::arithmetics_that_run();
    return TQ_OK;
}

int tqi_cuda_has_format(tq_format id) {
    return tqi_format_by_id(id) != nullptr;
}
