/*
 * Layers of a step that share its plan (tq_paged_step): the same bits as calls that plan for
 * themselves, also where the way to cut the work changes in between, and a new plan for new
 * lengths.
 */
#include <cuda_runtime.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "engine.h"

struct layers {
    struct engine *e;
    uint32_t n_seqs, rows;
    size_t n; /* numbers of an output */
    float *alone, *shared;
};

static void attend(const struct layers *l, tq_paged_step *step, uint32_t window, float *got) {
    struct engine *e = l->e;
    tq_attend_params params = {.struct_size = sizeof params, .window = window};
    tq_paged_pool pool = engine_pool(e, 1, 0);
    tq_paged_seqs seqs = engine_seqs(e, 1, l->n_seqs, l->rows);
    tq_rows_in q = {.data = e->q, .dtype = TQ_BF16};
    tq_rows_out out = {.data = e->out, .dtype = TQ_F32};
    seqs.step = step;
    GPU_CUDA(cudaMemset(e->out, 0xff, l->n * sizeof *got));
    GPU_CUDA(cudaDeviceSynchronize());
    GPU_OK(tq_paged_attend(e->pair->gpu, 0, &pool, &seqs, &params, &q, &out, NULL, e->work,
                           e->work_size, NULL));
    gpu_download(got, e->out, l->n * sizeof *got);
}

static void compare(const struct layers *l, tq_paged_step *step, uint32_t window,
                    const char *what) {
    attend(l, step, window, l->shared);
    int planned = step->planned[0] != 0;
    /* what stands in the workspace must not matter to a call of its own */
    tq_paged_step none = {.struct_size = sizeof none};
    void *kept = malloc(l->e->work_size);
    gpu_download(kept, l->e->work, l->e->work_size);
    attend(l, &none, window, l->alone);
    gpu_write(l->e->work, kept, l->e->work_size);
    free(kept);
    gpu_expect(planned && memcmp(l->alone, l->shared, l->n * sizeof *l->alone) == 0,
               "%s: other bits than a call that plans for itself", what);
}

static void one_shape(tq_layer_formats f, uint32_t n_q_heads, uint32_t dim) {
    tq_cache_config config = {.n_kv_heads = 2, .n_q_heads = n_q_heads, .head_dim = dim};
    struct pair p;
    struct engine e;
    char what[96];
    if (pair_create(&p, config, f.k_format, f.v_format) && engine_open(&e, &p, 60, 20, 600)) {
        struct engine_step s = {
            .n_seqs = 5, .n_append = {300, 1, 64, 0, 100}, .n_query = {1, 1, 1, 1, 1}};
        struct layers l = {.e = &e, .n_seqs = 5, .rows = 5, .n = (size_t)5 * n_q_heads * dim};
        tq_paged_step step = {.struct_size = sizeof step};
        s.params.struct_size = sizeof s.params;
        snprintf(what, sizeof what, "layers of a step, K %u V %u, %u heads, dim %u", f.k_format,
                 f.v_format, n_q_heads, dim);
        engine_step(&e, &s, 0, 0, what);
        l.alone = malloc(l.n * sizeof *l.alone);
        l.shared = malloc(l.n * sizeof *l.shared);
        GPU_CUDA(cudaMemset(e.work, 0xff, e.work_size));
        for (int layer = 0; layer < 3; layer++)
            compare(&l, &step, 0, what);
        compare(&l, &step, 40, what); /* another way */
        compare(&l, &step, 0, what);
        e.host_lengths[0] -= 170, e.host_lengths[2] = 0;
        gpu_write(e.lengths, e.host_lengths, sizeof e.host_lengths);
        memset(step.planned, 0, sizeof step.planned);
        for (int layer = 0; layer < 2; layer++)
            compare(&l, &step, 0, what);
        free(l.alone);
        free(l.shared);
        engine_close(&e);
    }
    pair_destroy(&p);
}

void check_steps(void) {
    one_shape((tq_layer_formats){.k_format = TQ_FORMAT_LM4, .v_format = TQ_FORMAT_LM4}, 16, 128);
    one_shape((tq_layer_formats){.k_format = TQ_FORMAT_LM4, .v_format = TQ_FORMAT_LM4}, 120, 128);
    one_shape((tq_layer_formats){.k_format = TQ_FORMAT_FP8, .v_format = TQ_FORMAT_LM4}, 8, 128);
    one_shape((tq_layer_formats){.k_format = TQ_FORMAT_INT8, .v_format = TQ_FORMAT_INT8}, 4, 80);
}
