#include "walk.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

uint32_t walk_below(uint32_t n) {
    return n ? gpu_random() % n : 0;
}

static size_t row_of(const struct walk *w, int side) {
    return (size_t)HEADS * (side ? w->c.v_head_dim : w->c.head_dim);
}

/* ---- results --------------------------------------------------------------------------- */

int walk_agreed(struct walk *w, tq_status cpu, tq_status gpu) {
    gpu_expect(cpu == gpu, "%s: %s on the CPU, %s on the GPU", w->what, tq_status_name(cpu),
               tq_status_name(gpu));
    w->without_pages += gpu == TQ_ERR_OUT_OF_PAGES;
    w->refused += gpu != TQ_OK && gpu != TQ_ERR_OUT_OF_PAGES;
    return cpu == TQ_OK && gpu == TQ_OK;
}

int walk_agreed_on(struct walk *w, tq_status cpu, tq_status gpu, tq_seq a, tq_seq b,
                   struct list *to) {
    if (!walk_agreed(w, cpu, gpu))
        return 0;
    gpu_expect(a == b && to, "%s: ids differ", w->what);
    if (to)
        to->id = b;
    return to != NULL;
}

/* ---- rows ------------------------------------------------------------------------------ */

static uint16_t *gather(const struct walk *w, uint32_t layer, int side, const uint32_t *list,
                        uint32_t n) {
    const uint16_t *rows = side ? w->rows[layer].v : w->rows[layer].k;
    size_t row = row_of(w, side);
    uint16_t *out = malloc((n + 1) * row * sizeof *out);
    for (uint32_t i = 0; out && i < n; i++)
        memcpy(out + i * row, rows + list[i] * row, row * sizeof *out);
    return out;
}

/* Rows of tokens on both devices. */
struct both {
    uint16_t *k, *v;
    void *k_gpu, *v_gpu;
    tq_rows_in k_cpu, v_cpu, k_in, v_in;
};

static struct both make_both(const struct walk *w, uint32_t layer, const uint32_t *list,
                             uint32_t n) {
    struct both b = {gather(w, layer, 0, list, n),
                     gather(w, layer, 1, list, n),
                     NULL,
                     NULL,
                     {.dtype = TQ_BF16},
                     {.dtype = TQ_BF16},
                     {.dtype = TQ_BF16},
                     {.dtype = TQ_BF16}};
    b.k_gpu = gpu_upload(b.k, n * row_of(w, 0) * 2);
    b.v_gpu = gpu_upload(b.v, n * row_of(w, 1) * 2);
    b.k_cpu.data = b.k;
    b.v_cpu.data = b.v;
    b.k_in.data = b.k_gpu;
    b.v_in.data = b.v_gpu;
    return b;
}

static void drop_both(struct both *b) {
    gpu_release(b->k_gpu); /* waits for the append */
    gpu_release(b->v_gpu);
    free(b->k);
    free(b->v);
}

int walk_append(struct walk *w, tq_seq id, uint32_t layer, const uint32_t *list, uint32_t n) {
    struct both b = make_both(w, layer, list, n);
    tq_status cpu = tq_append(w->cpu, id, layer, n, &b.k_cpu, &b.v_cpu, NULL);
    tq_status gpu = tq_append(w->gpu, id, layer, n, &b.k_in, &b.v_in, NULL);
    drop_both(&b);
    return walk_agreed(w, cpu, gpu);
}

void walk_append_step(struct walk *w, uint32_t layer, const uint32_t *list, uint32_t n) {
    struct both b = make_both(w, layer, list, n);
    GPU_OK(tq_batch_append(w->cpu_batch, layer, &b.k_cpu, &b.v_cpu, NULL));
    GPU_OK(tq_batch_append(w->gpu_batch, layer, &b.k_in, &b.v_in, NULL));
    drop_both(&b);
}

/* Rows of a side of a sequence on the GPU. */
static float *read_side(struct walk *w, tq_seq id, uint32_t layer, int side, uint32_t n) {
    size_t count = (n + 1) * row_of(w, side);
    float *out = malloc(count * sizeof *out), *device = gpu_buffer(count * sizeof *out);
    tq_rows_out rows = {.data = device, .dtype = TQ_F32};
    GPU_OK(tq_read_rows(w->gpu, id, layer, 0, n, side ? NULL : &rows, side ? &rows : NULL));
    gpu_download(out, device, count * sizeof *out);
    gpu_release(device);
    return out;
}

static float *read_cpu(struct walk *w, tq_seq id, uint32_t layer, int side, uint32_t n) {
    float *out = malloc((n + 1) * row_of(w, side) * sizeof *out);
    tq_rows_out rows = {.data = out, .dtype = TQ_F32};
    GPU_OK(tq_read_rows(w->cpu, id, layer, 0, n, side ? NULL : &rows, side ? &rows : NULL));
    return out;
}

/* Whether a row is what was appended. */
static int is_kept(const uint16_t *appended, const float *row, size_t n) {
    for (size_t i = 0; i < n; i++)
        if (gpu_get(appended, TQ_BF16, i) != row[i])
            return 0;
    return 1;
}

/* Every token is what the list says, kept where it is on the CPU and coded elsewhere. */
static void check_side(struct walk *w, const struct list *s, uint32_t layer, int side) {
    const float *want = side ? w->rows[layer].v_read : w->rows[layer].k_read;
    const uint16_t *appended = side ? w->rows[layer].v : w->rows[layer].k;
    float *got = read_side(w, s->id, layer, side, s->n[layer]);
    float *cpu = read_cpu(w, s->id, layer, side, s->n[layer]);
    size_t row = row_of(w, side), wrong = 0;
    for (uint32_t i = 0; i < s->n[layer]; i++) {
        size_t token = s->token[layer][i] * row;
        int kept = is_kept(appended + token, cpu + i * row, row);
        wrong += kept ? memcmp(got + i * row, cpu + i * row, row * sizeof *got) != 0
                      : memcmp(got + i * row, want + token, row * sizeof *got) != 0;
        w->kept += (uint32_t)kept;
    }
    gpu_expect(wrong == 0, "%s: %zu of %u tokens of layer %u are others", w->what, wrong,
               s->n[layer], layer);
    free(got);
    free(cpu);
}

void walk_check_contents(struct walk *w) {
    tq_cache_stats a = {.struct_size = sizeof a}, b = a;
    for (int i = 0; i < SEQS; i++)
        for (uint32_t l = 0; w->seqs[i].id && l < LAYERS; l++)
            for (int side = 0; side < 2; side++)
                check_side(w, &w->seqs[i], l, side);
    GPU_OK(tq_cache_get_stats(w->cpu, &a));
    GPU_OK(tq_cache_get_stats(w->gpu, &b));
    gpu_expect(a.pages_used == b.pages_used && a.pages_shared == b.pages_shared &&
                   a.tokens == b.tokens && a.n_seqs == b.n_seqs &&
                   a.protected_bytes == b.protected_bytes,
               "%s: other counters", w->what);
}

/* ---- picks ----------------------------------------------------------------------------- */

struct list *walk_pick(struct walk *w, int alive) {
    uint32_t first = walk_below(SEQS);
    for (uint32_t i = 0; i < SEQS; i++) {
        struct list *s = &w->seqs[(first + i) % SEQS];
        if ((s->id != 0) == alive)
            return s;
    }
    return NULL;
}

void walk_pick_range(const struct walk *w, const struct list *s, uint32_t *first, uint32_t *n) {
    uint32_t P = w->c.page_tokens;
    *first = walk_below(s->n[0] + 1);
    if (walk_below(3) == 0)
        *first = *first / P * P;
    *n = walk_below(s->n[0] - *first + (walk_below(16) ? 1 : 4));
    if (walk_below(3) == 0 && *n > P)
        *n = *n / P * P;
}

void walk_add_range(struct list *to, const struct list *from, uint32_t first, uint32_t n) {
    for (uint32_t l = 0; l < LAYERS; l++) {
        memmove(to->token[l] + to->n[l], from->token[l] + first, n * sizeof **to->token);
        to->n[l] += n;
    }
}

/* ---- attention ------------------------------------------------------------------------- */

/* Queries on both devices, and places for what they give. */
struct asked {
    size_t n_out, n_lse;
    uint16_t *q;
    float *out, *lse, *out_gpu, *lse_gpu;
    tq_rows_in q_cpu, q_in;
    tq_rows_out o_cpu, o_gpu;
};

static struct asked make_asked(const struct walk *w, uint32_t n) {
    size_t row = (size_t)HEADS * GROUP, n_q = n * row * w->c.head_dim;
    struct asked a = {.n_out = n * row * w->c.v_head_dim, .n_lse = n * row};
    a.q = gpu_rows(TQ_BF16, n_q, w->c.head_dim);
    a.out = calloc(a.n_out, 4);
    a.lse = calloc(a.n_lse, 4);
    a.out_gpu = gpu_buffer(a.n_out * 4);
    a.lse_gpu = gpu_buffer(a.n_lse * 4);
    a.q_cpu = a.q_in = (tq_rows_in){.data = a.q, .dtype = TQ_BF16};
    a.q_in.data = gpu_upload(a.q, n_q * 2);
    a.o_cpu.data = a.out;
    a.o_gpu.data = a.out_gpu;
    return a;
}

static void compare_asked(struct walk *w, struct asked *a) {
    float *got = malloc(a->n_out * 4), *got_lse = malloc(a->n_lse * 4);
    gpu_download(got, a->out_gpu, a->n_out * 4);
    gpu_download(got_lse, a->lse_gpu, a->n_lse * 4);
    double error = gpu_error(got, a->out, a->n_out);
    for (size_t i = 0; i < a->n_lse; i++) /* equal infinities where nothing is seen */
        if (got_lse[i] != a->lse[i])
            error = fmax(error,
                         fabs((double)got_lse[i] - a->lse[i]) / fmax(1, fabs((double)a->lse[i])));
    gpu_expect(error <= w->p.tolerance, "%s: attention differs by %.2e (at most %.0e)", w->what,
               error, w->p.tolerance);
    gpu_release((void *)(uintptr_t)a->q_in.data);
    gpu_release(a->out_gpu);
    gpu_release(a->lse_gpu);
    free(a->q);
    free(a->out);
    free(a->lse);
    free(got);
    free(got_lse);
}

void walk_check_attend(struct walk *w, const struct list *s, uint32_t layer) {
    tq_attend_params params = {.struct_size = sizeof params, .flags = TQ_ATTEND_CAUSAL};
    struct asked a = make_asked(w, QUERIES);
    GPU_OK(tq_attend(w->cpu, s->id, layer, QUERIES, &params, &a.q_cpu, &a.o_cpu, a.lse, NULL));
    GPU_OK(tq_attend(w->gpu, s->id, layer, QUERIES, &params, &a.q_in, &a.o_gpu, a.lse_gpu, NULL));
    compare_asked(w, &a);
}

void walk_attend_step(struct walk *w, uint32_t layer, uint32_t n) {
    tq_attend_params params = {.struct_size = sizeof params, .flags = TQ_ATTEND_CAUSAL};
    struct asked a = make_asked(w, n);
    GPU_OK(tq_batch_attend(w->cpu_batch, layer, &params, &a.q_cpu, &a.o_cpu, a.lse, NULL));
    GPU_OK(tq_batch_attend(w->gpu_batch, layer, &params, &a.q_in, &a.o_gpu, a.lse_gpu, NULL));
    compare_asked(w, &a);
}

/* ---- life ------------------------------------------------------------------------------ */

/* Random tokens, and what the GPU makes of them. */
static void make_rows(struct walk *w, uint32_t layer) {
    struct rows *r = &w->rows[layer];
    uint32_t all[TOKENS];
    tq_seq a = 0, b = 0;
    r->k = gpu_rows(TQ_BF16, TOKENS * row_of(w, 0), w->c.head_dim);
    r->v = gpu_rows(TQ_BF16, TOKENS * row_of(w, 1), w->c.v_head_dim);
    for (uint32_t i = 0; i < TOKENS; i++)
        all[i] = i;
    GPU_OK(tq_seq_create(w->cpu, &a));
    GPU_OK(tq_seq_create(w->gpu, &b));
    (void)walk_append(w, b, layer, all, TOKENS);
    r->k_read = read_side(w, b, layer, 0, TOKENS);
    r->v_read = read_side(w, b, layer, 1, TOKENS);
    GPU_OK(tq_seq_destroy(w->cpu, a));
    GPU_OK(tq_seq_destroy(w->gpu, b));
}

static int open_caches(struct walk *w, const tq_cache_config *c) {
    GPU_OK(tq_cache_create(w->p.cpu_context, c, &w->cpu));
    GPU_OK(tq_cache_create(w->p.gpu_context, c, &w->gpu));
    return w->cpu && w->gpu;
}

int walk_open(struct walk *w, const tq_layer_formats formats[LAYERS],
              const tq_cache_config *shape) {
    tq_cache_config c = *shape;
    memset(w, 0, sizeof *w);
    memcpy(w->formats, formats, sizeof w->formats);
    c.n_kv_heads = HEADS;
    c.n_q_heads = HEADS * GROUP;
    c.max_pages = 0;
    if (!pair_create(&w->p, c, formats[0].k_format, formats[0].v_format))
        return 0;
    c.struct_size = sizeof c;
    c.n_layers = LAYERS;
    c.layer_formats = w->formats;
    c.max_pages = shape->max_pages;
    c.max_seqs = SEQS;
    c.seed = 9;
    c.sink_tokens = c.recent_tokens = 0; /* codes only */
    w->c.struct_size = sizeof w->c;
    if (!open_caches(w, &c))
        return 0;
    GPU_OK(tq_cache_get_config(w->gpu, &w->c));
    for (uint32_t l = 0; l < LAYERS; l++)
        make_rows(w, l);
    tq_cache_destroy(w->cpu);
    tq_cache_destroy(w->gpu);
    w->cpu = w->gpu = NULL;
    c.sink_tokens = shape->sink_tokens;
    c.recent_tokens = shape->recent_tokens;
    if (!open_caches(w, &c))
        return 0;
    GPU_OK(tq_batch_create(w->cpu, SEQS, STEP_TOKENS, &w->cpu_batch));
    GPU_OK(tq_batch_create(w->gpu, SEQS, STEP_TOKENS, &w->gpu_batch));
    return w->cpu_batch && w->gpu_batch;
}

void walk_close(struct walk *w) {
    for (int l = 0; l < LAYERS; l++) {
        free(w->rows[l].k);
        free(w->rows[l].v);
        free(w->rows[l].k_read);
        free(w->rows[l].v_read);
    }
    tq_batch_destroy(w->cpu_batch);
    tq_batch_destroy(w->gpu_batch);
    tq_cache_destroy(w->cpu);
    tq_cache_destroy(w->gpu);
    pair_destroy(&w->p);
}
