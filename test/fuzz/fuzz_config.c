/* Configurations: whatever the bytes say is refused with a message or works, estimates tell
 * what creation takes, and nothing is left behind. */
#include <stdlib.h>
#include <string.h>

#include "fuzz/fuzz.h"

const char fuzz_name[] = "config";

enum { HEAP_LIMIT = 1 << 22, MAX_PAIRS = 16, SIZE_LIMIT = 4096 };

/* Mostly one of the values that mean something, sometimes any number. */
static uint32_t pick(struct input *in, const uint32_t *values, uint32_t n) {
    uint8_t choice = take8(in);
    return choice >= 240 ? take32(in) : values[choice % n];
}
#define PICK(in, ...)                           \
    pick((in), (const uint32_t[]){__VA_ARGS__}, \
         sizeof((uint32_t[]){__VA_ARGS__}) / sizeof(uint32_t))

/* A block of just struct_size bytes, so that reading beyond is seen; what does not fit into
 * the struct of this header is noise. */
static void *sized(struct input *in, const void *known, uint32_t size) {
    uint8_t choice = take8(in);
    uint32_t given = choice < 192 ? size : choice < 224 ? take16(in) % 160 : take32(in);
    uint32_t bytes = given > SIZE_LIMIT ? SIZE_LIMIT : given;
    uint8_t *block = fuzz_alloc(bytes < sizeof given ? sizeof given : bytes);
    memcpy(block, known, bytes < size ? bytes : size);
    for (uint32_t i = size; i < bytes; i++)
        block[i] = choice & 1 ? take8(in) : 0;
    memcpy(block, &given, sizeof given);
    return block;
}

/* ---- cache ----------------------------------------------------------------------------- */

static tq_cache_config read_config(struct input *in, const tq_layer_formats *pairs) {
    tq_cache_config c = {.struct_size = sizeof c};
    c.n_layers = PICK(in, 1, 2, 3, 8, 0, 65536, 65537);
    c.n_kv_heads = PICK(in, 1, 2, 8, 0, 65536, 65537);
    c.n_q_heads = PICK(in, 0, 1, 2, 8, 16, 128, 256, 3);
    c.head_dim = PICK(in, 128, 32, 64, 80, 96, 256, 576, 1024, 0, 16, 33, 1040, 144);
    c.v_head_dim = PICK(in, 0, 64, 128, 80, 512, 15);
    c.variant = PICK(in, 6, 1, 2, 3, 4, 5, 7, 8, 9, 10, 11, 12, 13, 14, 0, 15);
    c.boundary_layers = PICK(in, 0, 0, 0, 1, 2, 70000, UINT32_MAX);
    c.page_tokens = PICK(in, 0, 16, 32, 64, 128, 256, 8, 48, 512);
    c.max_seqs = PICK(in, 0, 1, 2, 1 << 24, UINT32_MAX);
    c.max_pages = PICK(in, 0, 0, 1, 2, 7, 1000, UINT32_MAX);
    uint8_t odd = take8(in);
    c.flags = odd == 1;
    c.reserved = odd == 2;
    c.max_pages |= odd == 3 ? take64(in) : 0;
    /* Only where the list is as long as the library may read it. */
    if (odd & 0x80 && c.n_layers <= MAX_PAIRS) {
        c.layer_formats = pairs;
        c.variant = odd & 0x40 ? c.variant : 0;
    }
    c.seed = take64(in);
    return c;
}

static void read_pairs(struct input *in, tq_layer_formats *pairs) {
    for (uint32_t l = 0; l < MAX_PAIRS; l++) {
        pairs[l].k_format = PICK(in, 5, 1, 2, 3, 4, 6, 7, 11, 12, 13, 14, 0, 8, 15);
        pairs[l].v_format = PICK(in, 5, 1, 2, 3, 4, 6, 7, 11, 12, 13, 14, 0, 8, 15);
    }
}

static void check_made(const tq_cache *cache, size_t held, const tq_footprint *need) {
    tq_cache_config got = {.struct_size = sizeof got};
    tq_cache_stats stats = {.struct_size = sizeof stats};
    MUST(tq_cache_get_config(cache, &got) == TQ_OK);
    MUST(got.n_q_heads % got.n_kv_heads == 0 && got.v_head_dim && got.page_tokens);
    MUST(got.layer_formats && got.max_seqs);
    MUST(tq_cache_get_stats(cache, &stats) == TQ_OK);
    MUST(stats.host_bytes == held && stats.device_bytes == 0);
    MUST(stats.n_seqs == 0 && stats.pages_used == 0 && stats.tokens == 0);
    MUST(need->page_tokens == got.page_tokens);
    MUST(need->host_bytes == held && need->device_bytes == 0);
    MUST(need->bytes_per_token * got.page_tokens >= need->bytes_per_page);
    for (tq_op op = TQ_OP_ENCODE_K; op <= TQ_OP_PREFILL; op++)
        MUST(tq_cache_kernel_name(cache, got.n_layers - 1, op) != NULL);
    MUST(tq_cache_kernel_name(cache, got.n_layers, TQ_OP_SCORE) == NULL);
}

/* Creation and estimate agree but for memory, of which creation needs more. */
static void check_verdicts(tq_status created, tq_status estimated) {
    MUST(created == estimated || created == TQ_ERR_OUT_OF_MEMORY);
}

static void try_cache(struct input *in, struct fuzz_heap *heap, tq_context *ctx) {
    tq_layer_formats pairs[MAX_PAIRS];
    read_pairs(in, pairs);
    tq_cache_config known = read_config(in, pairs);
    tq_cache_config *config = sized(in, &known, sizeof known);
    size_t before = heap->live;
    tq_footprint need = {.struct_size = sizeof need};
    tq_cache *cache = NULL;
    tq_status estimated = tq_cache_estimate(ctx, config, &need);
    MUST(heap->live == before);
    heap->refuse_at = take_below(in, 32);
    tq_status created = tq_cache_create(ctx, config, &cache);
    heap->refuse_at = 0;
    check_verdicts(created, estimated);
    MUST((created == TQ_OK) == (cache != NULL));
    MUST(created == TQ_OK || *tq_last_error());
    if (cache && estimated == TQ_OK && known.max_pages)
        check_made(cache, heap->live - before, &need);
    tq_cache_destroy(cache);
    MUST(heap->live == before);
    free(config);
}

/* ---- codec ----------------------------------------------------------------------------- */

static void try_codec(struct input *in, struct fuzz_heap *heap, tq_context *ctx) {
    tq_codec_config known = {.struct_size = sizeof known};
    known.format = PICK(in, 1, 2, 3, 4, 5, 6, 7, 11, 12, 13, 14, 0, 15, 8);
    known.dim = PICK(in, 128, 32, 64, 80, 96, 576, 4096, 0, 16, 33, 48, 4112);
    known.flags = take8(in) == 1;
    known.seed = take64(in);
    tq_codec_config *config = sized(in, &known, sizeof known);
    size_t before = heap->live;
    tq_codec *codec = NULL;
    heap->refuse_at = take_below(in, 6);
    tq_status status = tq_codec_create(ctx, config, &codec);
    heap->refuse_at = 0;
    MUST((status == TQ_OK) == (codec != NULL));
    MUST(status == TQ_OK || *tq_last_error());
    MUST((status == TQ_OK) == (tq_codec_row_bytes(codec) > 0));
    tq_codec_destroy(codec);
    MUST(heap->live == before);
    free(config);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    struct input in = input_of(data, size);
    struct fuzz_heap heap = {.limit = HEAP_LIMIT};
    tq_context *ctx = fuzz_context(&heap, NULL, fuzz_features_disabled(take8(&in) % 4));
    if (take8(&in) & 1)
        try_codec(&in, &heap, ctx);
    else
        try_cache(&in, &heap, ctx);
    tq_context_destroy(ctx);
    MUST(heap.live == 0 && heap.blocks == 0);
    return 0;
}
