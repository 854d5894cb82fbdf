/* The flash attention of ggml's CPU backend over the same shapes: keys and values in f16, q8_0
 * and q4_0, queries and output in f32, as its engines call it. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "../cpu/bench.h"
#include <ggml-cpu.h>
#include <ggml.h>

const char *peer_version(void) {
    static char text[64];
    snprintf(text, sizeof text, "ggml %s", ggml_version());
    return text;
}

static const enum ggml_type types[] = {GGML_TYPE_F16, GGML_TYPE_Q8_0, GGML_TYPE_Q4_0};

struct peer {
    struct shape shape;
    enum ggml_type type;
    struct ggml_context *ctx;
    struct ggml_cgraph **graphs; /* one a layer */
    struct ggml_threadpool *threads;
    struct ggml_cplan plan;
    uint32_t layers;
    size_t layer_bytes;
    char *data;     /* K and V of all layers */
    uint16_t *seen; /* causal mask of several queries */
};

static void *or_die(void *p) {
    if (!p) {
        fprintf(stderr, "bench: ggml: out of memory\n");
        exit(1);
    }
    return p;
}

/* Rows of one block in the type, for all blocks. */
static void fill(struct peer *p) {
    uint32_t block = p->shape.context < BLOCK ? p->shape.context : BLOCK;
    size_t n = (size_t)block * p->shape.dim, bytes = ggml_row_size(p->type, (int64_t)n);
    uint16_t *rows = make_rows(n);
    float *wide = must_take(n * sizeof *wide);
    char *coded = must_take(bytes);
    for (size_t i = 0; i < n; i++) {
        uint32_t bits = (uint32_t)rows[i] << 16;
        memcpy(&wide[i], &bits, sizeof bits);
    }
    ggml_quantize_chunk(p->type, wide, coded, 0, block, p->shape.dim, NULL);
    for (size_t at = 0; at < p->layers * p->layer_bytes; at += bytes)
        memcpy(p->data + at, coded, bytes);
    give(rows);
    give(wide);
    give(coded);
}

/* Keys or values [dim][context][heads]: the tokens of a head lie side by side, which suits it
 * best. */
static struct ggml_tensor *tensor(struct peer *p, uint32_t layer, int side) {
    struct ggml_tensor *t =
        or_die(ggml_new_tensor_3d(p->ctx, p->type, p->shape.dim, p->shape.context, p->shape.heads));
    t->data = p->data + layer * p->layer_bytes + (size_t)side * p->layer_bytes / 2;
    return t;
}

/* Query i sees all tokens but the last queries - 1 - i; none for one query, which sees all. */
static struct ggml_tensor *make_mask(struct peer *p) {
    const struct shape *s = &p->shape;
    const uint16_t minus_infinity = 0xfc00;
    if (s->queries == 1)
        return NULL;
    struct ggml_tensor *mask =
        or_die(ggml_new_tensor_2d(p->ctx, GGML_TYPE_F16, s->context, s->queries));
    p->seen = must_take((size_t)s->context * s->queries * sizeof *p->seen);
    for (uint32_t i = 0; i < s->queries; i++)
        for (uint32_t t = 0; t < s->context; t++)
            p->seen[(size_t)i * s->context + t] =
                t + s->queries > s->context + i ? minus_infinity : 0;
    mask->data = p->seen;
    return mask;
}

static void make_graphs(struct peer *p) {
    const struct shape *s = &p->shape;
    uint32_t q_heads = s->heads * s->group;
    struct ggml_tensor *mask = make_mask(p);
    struct ggml_tensor *q =
        or_die(ggml_new_tensor_3d(p->ctx, GGML_TYPE_F32, s->dim, s->queries, q_heads));
    size_t n = (size_t)s->dim * s->queries * q_heads;
    uint16_t *rows = make_rows(n);
    float *queries = must_take(2 * n * sizeof *queries);
    for (size_t i = 0; i < n; i++) {
        uint32_t bits = (uint32_t)rows[i] << 16;
        memcpy(&queries[i], &bits, sizeof bits);
    }
    q->data = queries;
    give(rows);
    for (uint32_t l = 0; l < p->layers; l++) {
        p->graphs[l] = or_die(ggml_new_graph_custom(p->ctx, 8, false));
        struct ggml_tensor *out = or_die(ggml_flash_attn_ext(
            p->ctx, q, tensor(p, l, 0), tensor(p, l, 1), mask, 1 / sqrtf((float)s->dim), 0, 0));
        out->data = queries + n;
        ggml_build_forward_expand(p->graphs[l], out);
    }
}

static void open_peer(struct peer *p) {
    const struct shape *s = &p->shape;
    p->layer_bytes = 2 * ggml_row_size(p->type, s->dim) * s->context * s->heads;
    p->layers = (uint32_t)(WORKING_SET / p->layer_bytes) + 1;
    p->data = must_take(p->layers * p->layer_bytes);
    fill(p);
    struct ggml_init_params init = {.mem_size = (size_t)(p->layers + 1) * 16384, .no_alloc = true};
    p->ctx = or_die(ggml_init(init));
    p->graphs = or_die(calloc(p->layers, sizeof *p->graphs));
    make_graphs(p);
    struct ggml_threadpool_params params = ggml_threadpool_params_default((int)s->threads);
    p->threads = or_die(ggml_threadpool_new(&params));
    p->plan = ggml_graph_plan(p->graphs[0], (int)s->threads, p->threads);
    p->plan.work_data = must_take(p->plan.work_size + 64);
}

static void close_peer(struct peer *p) {
    ggml_threadpool_free(p->threads);
    give(p->plan.work_data);
    give(ggml_graph_node(p->graphs[0], 0)->src[0]->data);
    if (p->seen)
        give(p->seen);
    free(p->graphs);
    ggml_free(p->ctx);
    give(p->data);
}

static void compute(void *arg, uint32_t layer) {
    struct peer *p = arg;
    if (ggml_graph_compute(p->graphs[layer], &p->plan) != GGML_STATUS_SUCCESS) {
        fprintf(stderr, "bench: ggml could not compute\n");
        exit(1);
    }
}

/* ggml's level is that of its build. */
void bench_peer(const struct selection *selection, const struct shape *shape) {
    ggml_cpu_init();
    for (size_t i = 0; i < sizeof types / sizeof *types; i++) {
        struct peer p = {.shape = *shape, .type = types[i]};
        if (selection->levels && !is_listed(selection->levels, "best"))
            continue;
        open_peer(&p);
        report(attention_of(shape), "ggml", ggml_type_name(p.type), shape,
               fastest(compute, &p, p.layers), (double)p.layer_bytes);
        close_peer(&p);
    }
}
