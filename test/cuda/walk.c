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

int walk_append(struct walk *w, tq_seq id, uint32_t layer, const uint32_t *list, uint32_t n) {
    uint16_t *k = gather(w, layer, 0, list, n), *v = gather(w, layer, 1, list, n);
    void *k_gpu = gpu_upload(k, n * row_of(w, 0) * 2), *v_gpu = gpu_upload(v, n * row_of(w, 1) * 2);
    tq_rows_in k_cpu = {.data = k, .dtype = TQ_BF16}, v_cpu = {.data = v, .dtype = TQ_BF16};
    tq_rows_in k_in = {.data = k_gpu, .dtype = TQ_BF16}, v_in = {.data = v_gpu, .dtype = TQ_BF16};
    tq_status cpu = tq_append(w->cpu, id, layer, n, &k_cpu, &v_cpu, NULL);
    tq_status gpu = tq_append(w->gpu, id, layer, n, &k_in, &v_in, NULL);
    gpu_release(k_gpu); /* waits for the append */
    gpu_release(v_gpu);
    free(k);
    free(v);
    return walk_agreed(w, cpu, gpu);
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

static void check_side(struct walk *w, const struct list *s, uint32_t layer, int side) {
    const float *want = side ? w->rows[layer].v_read : w->rows[layer].k_read;
    float *got = read_side(w, s->id, layer, side, s->n[layer]);
    size_t row = row_of(w, side), wrong = 0;
    for (uint32_t i = 0; i < s->n[layer]; i++)
        wrong += memcmp(got + i * row, want + s->token[layer][i] * row, row * sizeof *got) != 0;
    gpu_expect(wrong == 0, "%s: %zu of %u tokens of layer %u are others", w->what, wrong,
               s->n[layer], layer);
    free(got);
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
                   a.tokens == b.tokens && a.n_seqs == b.n_seqs,
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

void walk_check_attend(struct walk *w, const struct list *s, uint32_t layer) {
    size_t row = (size_t)HEADS * GROUP, n_q = QUERIES * row * w->c.head_dim;
    size_t n_out = QUERIES * row * w->c.v_head_dim, n_lse = QUERIES * row;
    tq_attend_params params = {.struct_size = sizeof params, .flags = TQ_ATTEND_CAUSAL};
    uint16_t *q = gpu_rows(TQ_BF16, n_q, w->c.head_dim);
    float *out = calloc(n_out, 4), *lse = calloc(n_lse, 4), *got = calloc(n_out, 4),
          *got_lse = calloc(n_lse, 4);
    void *q_gpu = gpu_upload(q, n_q * 2);
    float *out_gpu = gpu_buffer(n_out * 4), *lse_gpu = gpu_buffer(n_lse * 4);
    tq_rows_in q_cpu = {.data = q, .dtype = TQ_BF16}, q_in = {.data = q_gpu, .dtype = TQ_BF16};
    tq_rows_out o_cpu = {.data = out}, o_gpu = {.data = out_gpu};
    GPU_OK(tq_attend(w->cpu, s->id, layer, QUERIES, &params, &q_cpu, &o_cpu, lse, NULL));
    GPU_OK(tq_attend(w->gpu, s->id, layer, QUERIES, &params, &q_in, &o_gpu, lse_gpu, NULL));
    gpu_download(got, out_gpu, n_out * 4);
    gpu_download(got_lse, lse_gpu, n_lse * 4);
    double error = gpu_error(got, out, n_out);
    for (size_t i = 0; i < n_lse; i++) /* equal infinities where nothing is seen */
        if (got_lse[i] != lse[i])
            error = fmax(error, fabs((double)got_lse[i] - lse[i]) / fmax(1, fabs((double)lse[i])));
    gpu_expect(error <= w->p.tolerance, "%s: attention differs by %.2e (at most %.0e)", w->what,
               error, w->p.tolerance);
    gpu_release(q_gpu);
    gpu_release(out_gpu);
    gpu_release(lse_gpu);
    free(q);
    free(out);
    free(lse);
    free(got);
    free(got_lse);
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

int walk_open(struct walk *w, const tq_layer_formats formats[LAYERS], uint32_t dim,
              uint32_t page_tokens, uint32_t max_pages) {
    tq_cache_config shape = {.n_kv_heads = HEADS,
                             .n_q_heads = HEADS * GROUP,
                             .head_dim = dim,
                             .page_tokens = page_tokens};
    memset(w, 0, sizeof *w);
    memcpy(w->formats, formats, sizeof w->formats);
    if (!pair_create(&w->p, shape, formats[0].k_format, formats[0].v_format))
        return 0;
    tq_cache_config c = shape;
    c.struct_size = sizeof c;
    c.n_layers = LAYERS;
    c.layer_formats = w->formats;
    c.max_pages = max_pages;
    c.max_seqs = SEQS;
    c.seed = 9;
    GPU_OK(tq_cache_create(w->p.cpu_context, &c, &w->cpu));
    GPU_OK(tq_cache_create(w->p.gpu_context, &c, &w->gpu));
    w->c.struct_size = sizeof w->c;
    if (!w->cpu || !w->gpu)
        return 0;
    GPU_OK(tq_cache_get_config(w->gpu, &w->c));
    for (uint32_t l = 0; l < LAYERS; l++)
        make_rows(w, l);
    return 1;
}

void walk_close(struct walk *w) {
    for (int l = 0; l < LAYERS; l++) {
        free(w->rows[l].k);
        free(w->rows[l].v);
        free(w->rows[l].k_read);
        free(w->rows[l].v_read);
    }
    tq_cache_destroy(w->cpu);
    tq_cache_destroy(w->gpu);
    pair_destroy(&w->p);
}
