#include <string.h>

#include "api/objects.h"

enum { FP8_FLAGS = TQ_CONTEXT_FP8_NATIVE | TQ_CONTEXT_FP8_CONVERTED };

/* Copies a hook struct that the configuration points at. */
static tq_status hooks(const tq_context_config *config, const struct tqi_device *device,
                       struct tqi_heap *heap, struct tqi_executor *executor) {
    tq_allocator allocator = device->allocator;
    tq_executor parallel;
    if (config->allocator)
        TQI_TRY(tqi_struct_in("allocator", &allocator, sizeof allocator, sizeof allocator,
                              config->allocator));
    if (config->executor)
        TQI_TRY(tqi_struct_in("executor", &parallel, sizeof parallel, sizeof parallel,
                              config->executor));
    TQI_TRY(tqi_heap_init(heap, allocator.alloc || config->allocator ? &allocator : NULL));
    return tqi_executor_init(executor, config->executor ? &parallel : NULL);
}

static tq_status find_device(const tq_context_config *config, struct tqi_device *out) {
    TQI_REQUIRE(config->device == TQ_DEVICE_CPU || config->device == TQ_DEVICE_CUDA,
                "device: %d is neither TQ_DEVICE_CPU nor TQ_DEVICE_CUDA", config->device);
    if (config->device == TQ_DEVICE_CUDA)
        return tqi_cuda_device(config->device_index, config->flags, out);
    TQI_REQUIRE(config->device_index == 0, "device_index: %d, but there is one CPU device, 0",
                config->device_index);
    tqi_cpu_device(out);
    return TQ_OK;
}

tq_status tq_context_create(const tq_context_config *config, tq_context **out) {
    tq_context_config c = {.struct_size = sizeof c};
    struct tqi_heap heap;
    struct tqi_executor executor;
    struct tqi_device device;
    TQI_REQUIRE(out != NULL, "out: must not be NULL");
    if (config)
        TQI_TRY(tqi_struct_in("context config", &c, sizeof c, sizeof c, config));
    TQI_REQUIRE((c.flags & ~(uint32_t)FP8_FLAGS) == 0, "context config: unknown flags 0x%x",
                c.flags);
    TQI_REQUIRE(c.flags != FP8_FLAGS, "context config: flags ask for fp8 in both ways");
    TQI_TRY(find_device(&c, &device));
    TQI_TRY(hooks(&c, &device, &heap, &executor));
    tq_context *ctx = tqi_calloc(&heap, 1, sizeof *ctx);
    if (!ctx)
        return TQ_ERR_OUT_OF_MEMORY;
    ctx->heap = heap;
    ctx->executor = executor;
    ctx->device = device;
    ctx->cpu_features = tqi_cpu_features(~c.cpu_features_disabled);
    tqi_kernels_select(&ctx->kernels, ctx->cpu_features);
    *out = ctx;
    return TQ_OK;
}

void tq_context_destroy(tq_context *ctx) {
    if (!ctx)
        return;
    struct tqi_heap heap = ctx->heap;
    tqi_free(&heap, ctx, 1, sizeof *ctx, TQ_MEM_HOST);
}

uint64_t tq_context_cpu_features(const tq_context *ctx) {
    return ctx ? ctx->cpu_features : 0;
}
