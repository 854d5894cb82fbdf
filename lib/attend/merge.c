#include "attend/merge.h"

#include <math.h>
#include <string.h>

#include "base/half.h"
#include "kernel/kernel.h"

enum {
    TASK_ELEMENTS = 1 << 14, /* rows of a task: about as many elements */
    RUN = 64                 /* elements that are stored together */
};

static float load(const tq_rows_in *rows, int64_t at) {
    uint16_t h;
    float x;
    if (rows->dtype == TQ_F32) {
        memcpy(&x, (const char *)rows->data + at * 4, sizeof x);
        return x;
    }
    memcpy(&h, (const char *)rows->data + at * 2, sizeof h);
    return rows->dtype == TQ_F16 ? tqi_f16_to_float(h) : tqi_bf16_to_float(h);
}

/* Shares of the parts in the whole, and its lse. An empty part has none, so that nothing is
 * rounded where the other is all there is. */
static void shares(const double lse[2], double share[2], double *whole) {
    int high = lse[1] > lse[0], low = !high;
    if (lse[low] == -INFINITY) {
        share[high] = lse[high] == -INFINITY ? 0 : 1;
        share[low] = 0;
        *whole = lse[high];
        return;
    }
    double ratio = exp(lse[low] - lse[high]);
    share[high] = 1 / (1 + ratio);
    share[low] = ratio / (1 + ratio);
    *whole = lse[high] + log1p(ratio);
}

/* Element i of the whole. What an empty part holds does not matter, NaN included. */
static double weigh(const struct tqi_merge_job *job, const double share[2], const int64_t at[2],
                    uint32_t i) {
    double x = 0;
    for (int p = 0; p < 2; p++)
        if (share[p] != 0)
            x += share[p] * (double)load(&job->part[p], at[p] + i);
    return x;
}

static void merge_row(const struct tqi_merge_job *job, uint32_t token, uint32_t head) {
    size_t index = (size_t)token * job->n_heads + head;
    double share[2], whole, lse[2] = {(double)job->lse[0][index], (double)job->lse[1][index]};
    int64_t at[2];
    shares(lse, share, &whole);
    for (int p = 0; p < 2; p++)
        at[p] =
            (int64_t)token * job->part[p].token_stride + (int64_t)head * job->part[p].head_stride;
    int64_t to = (int64_t)token * job->out.token_stride + (int64_t)head * job->out.head_stride;
    int64_t size = job->out.dtype == TQ_F32 ? 4 : 2;
    for (uint32_t i = 0; i < job->dim; i += RUN) {
        uint32_t n = job->dim - i < RUN ? job->dim - i : RUN;
        double x[RUN];
        for (uint32_t j = 0; j < n; j++)
            x[j] = weigh(job, share, at, i + j);
        tqi_level_ref()->store(x, n, job->out.dtype, (char *)job->out.data + (to + i) * size);
    }
    if (job->lse_out)
        job->lse_out[index] = (float)whole;
}

static uint32_t task_tokens(const struct tqi_merge_job *job) {
    uint64_t elements = (uint64_t)job->n_heads * job->dim;
    return elements < TASK_ELEMENTS ? (uint32_t)(TASK_ELEMENTS / elements) : 1;
}

static void task(void *arg, uint32_t index, uint32_t worker) {
    const struct tqi_merge_job *job = arg;
    uint32_t first = index * task_tokens(job), left = job->n_tokens - first;
    uint32_t n = left < task_tokens(job) ? left : task_tokens(job);
    (void)worker;
    for (uint32_t t = first; t < first + n; t++)
        for (uint32_t h = 0; h < job->n_heads; h++)
            merge_row(job, t, h);
}

void tqi_merge(const struct tqi_merge_job *job) {
    uint32_t n = task_tokens(job);
    uint32_t tasks = job->n_tokens / n + (job->n_tokens % n != 0);
    tqi_executor_run(job->executor, tasks, task, (void *)(uintptr_t)job);
}
