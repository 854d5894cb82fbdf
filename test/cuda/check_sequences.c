/* Page orders: fork, truncate, reuse of pages, copies of shared ones, in random order. */
#include <stdio.h>

#include "gpu.h"

enum { MAX_SEQS = 6 };

static void step(struct pair *p, tq_seq *seqs, uint32_t *n) {
    uint32_t i = *n ? gpu_random() % *n : 0;
    uint64_t length = 0;
    if (*n)
        GPU_OK(tq_seq_length(p->gpu, seqs[i], 0, &length));
    switch (*n ? gpu_random() % 6 : 0) {
    case 0:
        if (*n < MAX_SEQS)
            seqs[(*n)++] = pair_seq(p);
        break;
    case 1:
        if (*n < MAX_SEQS) {
            uint64_t keep = length ? gpu_random() % (length + 1) : 0;
            tq_seq a = 0, b = 0;
            GPU_OK(tq_seq_fork(p->cpu, seqs[i], keep, &a));
            GPU_OK(tq_seq_fork(p->gpu, seqs[i], keep, &b));
            gpu_expect(a == b, "forks have different ids");
            seqs[(*n)++] = b;
        }
        break;
    case 2: {
        uint64_t keep = length ? gpu_random() % (length + 1) : 0;
        GPU_OK(tq_seq_truncate(p->cpu, seqs[i], keep));
        GPU_OK(tq_seq_truncate(p->gpu, seqs[i], keep));
        break;
    }
    case 3:
        if (*n > 2) {
            GPU_OK(tq_seq_destroy(p->cpu, seqs[i]));
            GPU_OK(tq_seq_destroy(p->gpu, seqs[i]));
            seqs[i] = seqs[--*n];
        }
        break;
    case 4: {
        uint64_t first = gpu_random() % (length + 1), gone = gpu_random() % (length - first + 1);
        GPU_OK(tq_seq_remove(p->cpu, seqs[i], first, gone));
        GPU_OK(tq_seq_remove(p->gpu, seqs[i], first, gone));
        break;
    }
    default:
        if (length < 400)
            pair_append(p, seqs[i], 1 + gpu_random() % 90, TQ_BF16, 0);
    }
}

static void walk(tq_format k, tq_format v, uint32_t dim) {
    tq_cache_config config = {.n_kv_heads = 2, .n_q_heads = 16, .head_dim = dim};
    struct pair p;
    tq_seq seqs[MAX_SEQS] = {0};
    uint32_t n = 0;
    char what[64];
    snprintf(what, sizeof what, "random sequences, K %u V %u dim %u", k, v, dim);
    config.max_pages = 100;
    if (pair_create(&p, config, k, v)) {
        for (int i = 0; i < 75; i++)
            step(&p, seqs, &n);
        for (uint32_t i = 0; i < n; i++) {
            pair_check_pages(&p, seqs[i], what);
            pair_check_attend(&p, seqs[i], 1, 0, what);
        }
    }
    pair_destroy(&p);
}

void check_sequences(void) {
    walk(TQ_FORMAT_LM4, TQ_FORMAT_LM4, 128);
    walk(TQ_FORMAT_LM3, TQ_FORMAT_LM3, 128);
    walk(TQ_FORMAT_INT8, TQ_FORMAT_INT8, 128);
    walk(TQ_FORMAT_FP8, TQ_FORMAT_LM4, 128);
    walk(TQ_FORMAT_BF16, TQ_FORMAT_BF16, 128);
    walk(TQ_FORMAT_LM3, TQ_FORMAT_LM4, 64);
    walk(TQ_FORMAT_LM3, TQ_FORMAT_LM2, 96);
    walk(TQ_FORMAT_POLAR_QJL, TQ_FORMAT_LM4, 128);
    walk(TQ_FORMAT_LM3_QJL, TQ_FORMAT_LM4, 64);
    walk(TQ_FORMAT_LM2_QJL, TQ_FORMAT_LM3, 80);
}
