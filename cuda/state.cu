/* Opening and closing the state of a cache; the constants of a layer. */
#include "state.h"

#include "attend/fast_job.h"
#include "encode/encode_job.h"

namespace tqi {

static void *device_alloc(State *s, size_t bytes) {
    return tqi_alloc(s->heap, 1, bytes, TQ_MEM_DEVICE);
}

enum { N_COUNTS = 3 /* and the fault */ };

static tq_status allocate(State *s) {
    s->counts = static_cast<uint64_t *>(device_alloc(s, N_COUNTS * sizeof(uint64_t)));
    s->fault = s->counts + 2;
    if (s->max_pages)
        s->table = static_cast<uint32_t *>(device_alloc(s, s->max_pages * sizeof(uint32_t)));
    if (s->max_kept)
        s->kept_table = static_cast<KeptPage *>(device_alloc(s, s->max_kept * sizeof(KeptPage)));
    if (s->keeps)
        s->no_sinks = static_cast<float *>(device_alloc(s, s->n_q_heads * sizeof(float)));
    if (!s->counts || (s->max_pages && !s->table) || (s->max_kept && !s->kept_table) ||
        (s->keeps && !s->no_sinks))
        return TQ_ERR_OUT_OF_MEMORY;
    if (s->keeps)
        TQI_CUDA(cudaMemset(s->no_sinks, 0xff, s->n_q_heads * sizeof(float)));
    TQI_CUDA(cudaMemset(s->counts, 0, N_COUNTS * sizeof(uint64_t)));
    return settle("clearing the counters");
}

static tq_status fill_state(State *s, const tqi_device_config *config) {
    DeviceGuard guard(s->index);
    int n_sms = 0, limit = 0;
    TQI_TRY(guard.status());
    TQI_CUDA(cudaDeviceGetAttribute(&n_sms, cudaDevAttrMultiProcessorCount, s->index));
    TQI_CUDA(cudaDeviceGetAttribute(&limit, cudaDevAttrMaxSharedMemoryPerBlockOptin, s->index));
    s->n_sms = (uint32_t)n_sms;
    s->shared_limit = (uint32_t)limit;
    s->overlap = code_overlaps();
    s->n_kv_heads = config->n_kv_heads;
    s->n_q_heads = config->n_q_heads;
    s->k_dim = config->head_dim;
    s->v_dim = config->v_head_dim;
    s->max_pages = config->max_pages;
    s->n_layers = config->n_layers;
    s->keeps = config->keeps != 0;
    s->max_kept = s->keeps ? s->max_pages * (config->page_tokens / TQI_EXACT_TOKENS) : 0;
    uint32_t dim = s->k_dim > s->v_dim ? s->k_dim : s->v_dim;
    TQI_TRY(encode_any_prepare(dim));
    TQI_TRY(attend_any_prepare(s->k_dim, s->v_dim));
    return allocate(s);
}

tq_status open_state(const tqi_device *device, const tqi_device_config *config, void **out) {
    State *s = static_cast<State *>(tqi_calloc(config->heap, 1, sizeof(State)));
    if (!s)
        return TQ_ERR_OUT_OF_MEMORY;
    s->heap = config->heap;
    s->index = device->index;
    s->choice = KernelChoice{device->arithmetics, device->flags};
    tq_status status = fill_state(s, config);
    if (status != TQ_OK) {
        close_state(s);
        return status;
    }
    *out = s;
    return TQ_OK;
}

void close_state(void *opened) {
    State *s = state_of(opened);
    if (!s)
        return;
    {
        DeviceGuard guard(s->index);
        /* Nobody is left to tell of an error; memory must not be freed under a kernel. */
        (void)cudaDeviceSynchronize();
        close_room(s, &s->one);
    }
    tqi_free(s->heap, s->counts, 1, N_COUNTS * sizeof(uint64_t), TQ_MEM_DEVICE);
    tqi_free(s->heap, s->table, 1, s->max_pages * sizeof(uint32_t), TQ_MEM_DEVICE);
    tqi_free(s->heap, s->kept_table, 1, s->max_kept * sizeof(KeptPage), TQ_MEM_DEVICE);
    tqi_free(s->heap, s->no_sinks, 1, s->keeps ? s->n_q_heads * sizeof(float) : 0, TQ_MEM_DEVICE);
    tqi_free(s->heap, s, 1, sizeof *s, TQ_MEM_HOST);
}

/* ---- layers --------------------------------------------------------------------------------- */

/* Sections of a layer's block, per side: Hadamard rows first, for their alignment. */
struct Section {
    const void *from;
    size_t bytes, at;
};
enum { SECTIONS = 7 };

static size_t lay_out(const tqi_layer *layer, int side, size_t at, Section *sections) {
    const tqi_rows *rows = side ? &layer->v : &layer->k;
    size_t heads = layer->n_kv_heads, dim = rows->layout.dim;
    bool rotates = tqi_format_rotates(rows->format), mixes = rotates && rows->rotation.order > 1;
    bool sketch = rows->format->sketch, polar = rows->format->kind == TQI_KIND_POLAR;
    const float *scale = side ? layer->v_scale : layer->k_scale;
    const float *inverse = side ? layer->v_inv_scale : layer->k_inv_scale;
    const Section all[SECTIONS] = {
        {mixes ? rows->rotation.rows : nullptr, mixes ? rows->rotation.order * sizeof(uint64_t) : 0,
         0},
        {rotates ? rows->rotation.flips : nullptr, rotates ? dim * sizeof(uint32_t) : 0, 0},
        {side ? layer->v_mean : layer->k_mean, heads * dim * sizeof(float), 0},
        {scale, heads * sizeof(float), 0},
        {inverse, heads * sizeof(float), 0},
        {sketch ? rows->sketch[0].flips : nullptr, sketch ? 2 * dim * sizeof(uint32_t) : 0, 0},
        {polar ? rows->polar : nullptr, polar ? sizeof rows->polar : 0, 0}};
    for (int i = 0; i < SECTIONS; i++) {
        sections[i] = all[i];
        sections[i].at = at;
        at = (at + all[i].bytes + 15) & ~(size_t)15;
    }
    return at;
}

static void fill_sketch_and_polar(const tqi_rows *rows, const uint8_t *flips, const uint8_t *books,
                                  Side *out) {
    out->sketch_flips = reinterpret_cast<const uint32_t *>(flips);
    out->polar = reinterpret_cast<const tqi_polar_book *>(books);
    for (uint32_t i = 0; i < rows->book.levels; i++)
        out->value[i] = rows->book.code_value[tqi_book_code(&rows->book, i, 0)];
    out->sqrt_dim = rows->sqrt_dim;
    out->inv_sqrt_dim = rows->inv_sqrt_dim;
    out->sketch_factor = rows->sketch_factor;
    out->sketch_unit = rows->sketch_unit;
}

static void fill_side(const tqi_rows *rows, const uint8_t *block, const Section *sections,
                      Side *out) {
    auto at = [&](int i) { return sections[i].from ? block + sections[i].at : nullptr; };
    memset(out, 0, sizeof *out);
    out->layout = rows->layout;
    out->format = rows->format->id;
    out->rotates = tqi_format_rotates(rows->format);
    out->order = rows->rotation.order;
    out->log2_block = rows->rotation.log2_block;
    out->rows = reinterpret_cast<const uint64_t *>(at(0));
    out->flips = reinterpret_cast<const uint32_t *>(at(1));
    out->mean = reinterpret_cast<const float *>(at(2));
    out->scale = reinterpret_cast<const float *>(at(3));
    out->inv_scale = reinterpret_cast<const float *>(at(4));
    out->levels = rows->book.levels;
    memcpy(out->threshold, rows->book.threshold, sizeof out->threshold);
    memcpy(out->v2, rows->book.v2, sizeof out->v2);
    out->gain_factor = rows->gain_factor;
    out->unit = (float)rows->unit;
    out->unit_exact = rows->unit;
    fill_sketch_and_polar(rows, at(5), at(6), out);
}

/* Signed bytes in the order in which a byte permute finds them: levels of 4-bit codes, whose
 * halves and signs are added later, codes of smaller ones. */
static void fill_byte_table(const tqi_rows *rows, uint32_t out[2]) {
    const tqi_book *book = &rows->book;
    out[0] = out[1] = 0;
    if (rows->format->kind != TQI_KIND_LM)
        return;
    uint32_t n = book->bits == 4 ? book->levels : 2 * book->levels;
    for (uint32_t i = 0; i < n; i++) {
        int v = book->bits == 4 ? (book->v2[i] - 1) / 2 : book->code_v2[i] / 2;
        out[i / 4] |= (uint32_t)(v & 255) << 8 * (i % 4);
    }
}

/* Behind the sections: logits of the sinks, all NaN where there are none. */
static tq_status set_sinks(State *s, LayerState *l, size_t at, const float *sinks) {
    DeviceGuard guard(s->index);
    TQI_TRY(guard.status());
    size_t bytes = s->n_q_heads * sizeof(float);
    uint8_t *to = l->block + at;
    l->sinks = reinterpret_cast<const float *>(to);
    if (sinks)
        TQI_CUDA(cudaMemcpy(to, sinks, bytes, cudaMemcpyHostToDevice));
    else
        TQI_CUDA(cudaMemset(to, 0xff, bytes));
    return settle("setting the sinks");
}

static tq_status upload(State *s, LayerState *l, const Section *sections) {
    DeviceGuard guard(s->index);
    TQI_TRY(guard.status());
    TQI_CUDA(cudaDeviceSynchronize()); /* kernels of an earlier use of the cache read the block */
    for (int i = 0; i < 2 * SECTIONS; i++)
        if (sections[i].from && sections[i].bytes)
            TQI_CUDA(cudaMemcpy(l->block + sections[i].at, sections[i].from, sections[i].bytes,
                                cudaMemcpyHostToDevice));
    return settle("copying the constants of a layer");
}

static tq_status new_layer(State *s, tqi_layer *layer, size_t bytes) {
    LayerState *l = static_cast<LayerState *>(tqi_calloc(s->heap, 1, sizeof(LayerState)));
    if (!l)
        return TQ_ERR_OUT_OF_MEMORY;
    layer->device = l;
    l->block_bytes = bytes;
    l->block = static_cast<uint8_t *>(device_alloc(s, bytes));
    return l->block ? TQ_OK : TQ_ERR_OUT_OF_MEMORY; /* unset_layer() cleans up */
}

/* Single calls of many query tokens go in blocks. */
static Limits limits_of_one(const State *s) {
    const uint32_t most_rows = 16384, most_queries = 8;
    uint32_t queries = most_rows / s->n_q_heads;
    queries = queries < 1 ? 1 : queries > most_queries ? most_queries : queries;
    return Limits{1, queries, queries, queries, 0, 0, has_prefill() ? 1u : 0u};
}

/* Whether the layers so far need less memory than one with this kernel. */
static bool add_shape(State *s, const KernelShape &shape) {
    KernelShape *same = s->shapes;
    while (same < s->shapes + s->n_shapes && same->item_rows != shape.item_rows)
        same++;
    if (same < s->shapes + s->n_shapes && same->workers >= shape.workers)
        return false;
    if (same == s->shapes + s->n_shapes)
        s->n_shapes++;
    *same = shape;
    return true;
}

/* The same with a kernel of the table and the one that stands in for it. */
static bool add_kernel(State *s, const FastKernel *kernel) {
    bool is_new = false;
    for (; kernel; kernel = kernel->few)
        is_new |= add_shape(s, KernelShape{kernel->heads, s->n_sms * kernel->warps});
    return is_new;
}

/* Memory for calls on the layer; upload() has waited for the device. */
static tq_status make_room(State *s, const tqi_layer *layer) {
    DeviceGuard guard(s->index);
    TQI_TRY(guard.status());
    const Side *side = layer_of(layer)->side;
    s->page_tokens = side[0].layout.tokens;
    TQI_TRY(encode_fast_prepare(side));
    TQI_TRY(prepare_fast(side[0], side[1]));
    const FastKernel *fast = find_fast(side[0].format, side[1].format, side[0].layout,
                                       side[1].layout, s->n_q_heads / s->n_kv_heads, s->choice);
    const KernelShape any = {ANY_ROWS, s->n_sms * ANY_BLOCKS_PER_SM};
    bool is_new = add_shape(s, any);
    if (side[0].sketch_flips && !s->sketches)
        is_new = s->sketches = true;
    is_new |= add_kernel(s, fast);
    /* windows and softcap may need another kernel */
    fast = find_fast(side[0].format, side[1].format, side[0].layout, side[1].layout,
                     s->n_q_heads / s->n_kv_heads, without_native(s->choice));
    is_new |= add_kernel(s, fast);
    if (!is_new)
        return TQ_OK;
    close_room(s, &s->one);
    return open_room(s, limits_of_one(s), &s->one);
}

/* The kernel for many query rows, where the GPU has one. */
static tq_status make_prefill_ready(const State *s, tqi_layer *layer) {
    LayerState *l = layer_of(layer);
    DeviceGuard guard(s->index);
    TQI_TRY(guard.status());
    TQI_TRY(open_prefill(l->side[0], l->side[1], &l->prefill));
    layer->kernel_name[TQ_OP_PREFILL] =
        l->prefill ? l->prefill->name : layer->kernel_name[TQ_OP_SCORE];
    return TQ_OK;
}

/* Their attention is a launch of its own, which joins: what it joins with has edges. */
tq_status set_exact(void *opened, tqi_layer *layer) {
    const State *s = state_of(opened);
    const Section none[SECTIONS] = {};
    LayerState *l = layer_of(layer);
    if (!l || !layer->exact)
        return TQ_OK;
    fill_side(&layer->exact->k, nullptr, none, &l->exact[0]);
    fill_side(&layer->exact->v, nullptr, none, &l->exact[1]);
    const FastKernel *fast =
        find_fast(l->side[0].format, l->side[1].format, l->side[0].layout, l->side[1].layout,
                  s->n_q_heads / s->n_kv_heads, without_native(s->choice));
    layer->kernel_name[TQ_OP_SCORE] = fast ? fast->name : "tqk_attend_any";
    layer->kernel_name[TQ_OP_ACCUMULATE] = layer->kernel_name[TQ_OP_SCORE];
    layer->kernel_name[TQ_OP_PREFILL] = layer->kernel_name[TQ_OP_SCORE];
    return TQ_OK;
}

tq_status set_layer(void *opened, tqi_layer *layer) {
    State *s = state_of(opened);
    Section sections[2 * SECTIONS];
    size_t bytes = lay_out(layer, 0, 0, sections);
    bytes = lay_out(layer, 1, bytes, sections + SECTIONS);
    if (!layer->device)
        TQI_TRY(new_layer(s, layer, bytes + s->n_q_heads * sizeof(float)));
    LayerState *l = layer_of(layer);
    TQI_TRY(upload(s, l, sections));
    fill_side(&layer->k, l->block, sections, &l->side[0]);
    fill_side(&layer->v, l->block, sections + SECTIONS, &l->side[1]);
    fill_byte_table(&layer->k, l->table[0]);
    fill_byte_table(&layer->v, l->table[1]);
    TQI_TRY(set_sinks(s, l, bytes, layer->sinks));
    TQI_TRY(make_prefill_ready(s, layer));
    TQI_TRY(make_room(s, layer));
    return set_exact(s, layer);
}

void unset_layer(void *opened, tqi_layer *layer) {
    State *s = state_of(opened);
    LayerState *l = layer_of(layer);
    if (!l)
        return;
    {
        DeviceGuard guard(s->index);
        (void)cudaDeviceSynchronize(); /* as in close_state() */
    }
    tqi_free(s->heap, l->block, 1, l->block_bytes, TQ_MEM_DEVICE);
    tqi_free(s->heap, l, 1, sizeof *l, TQ_MEM_HOST);
    layer->device = nullptr;
}

} /* namespace tqi */
