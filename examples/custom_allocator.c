/* Memory from the caller: counts what the library takes, and sets a limit. */
#include <stdio.h>
#include <stdlib.h>

#include "tq/tq.h"

struct budget {
    size_t used, limit;
};

static void *take(void *user, size_t size, size_t alignment, tq_memory space) {
    struct budget *b = user;
    if (space != TQ_MEM_HOST || size > b->limit - b->used)
        return NULL;
    void *p = aligned_alloc(alignment, (size + alignment - 1) / alignment * alignment);
    if (p)
        b->used += size;
    return p;
}

static void give(void *user, void *ptr, size_t size, size_t alignment, tq_memory space) {
    struct budget *b = user;
    (void)alignment;
    (void)space;
    b->used -= size;
    free(ptr);
}

int main(void) {
    struct budget budget = {0, 200000};
    tq_allocator hooks = {
        .struct_size = sizeof hooks, .user = &budget, .alloc = take, .free = give};
    tq_context_config options = {.struct_size = sizeof options, .allocator = &hooks};
    tq_cache_config config = {.struct_size = sizeof config,
                              .n_layers = 2,
                              .n_kv_heads = 2,
                              .head_dim = 64,
                              .variant = TQ_VARIANT_4BIT_NC,
                              .max_pages = 4};
    tq_footprint need = {.struct_size = sizeof need};
    tq_context *ctx;
    tq_cache *cache;
    if (tq_context_create(&options, &ctx) != TQ_OK)
        return 1;
    if (tq_cache_estimate(ctx, &config, &need) != TQ_OK)
        return 1;
    printf("4 pages need %llu bytes\n", (unsigned long long)need.host_bytes);
    if (tq_cache_create(ctx, &config, &cache) != TQ_OK)
        return 1;
    tq_cache_destroy(cache);
    config.max_pages = 1000;
    tq_status status = tq_cache_create(ctx, &config, &cache);
    printf("1000 pages: %s: %s\n", tq_status_name(status), tq_last_error());
    tq_context_destroy(ctx);
    printf("%zu bytes left over\n", budget.used);
    return status == TQ_ERR_OUT_OF_MEMORY && budget.used == 0 ? 0 : 1;
}
