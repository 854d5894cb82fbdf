#define _POSIX_C_SOURCE 200809L
#include "common/jobs.h"

#include <stdatomic.h>
#include <string.h>
#include <time.h>

static double seconds(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

/* Waits until as many tasks run as shall meet. */
static void meet(struct job *j) {
    struct timespec nap = {0, 100000};
    double start = seconds();
    atomic_fetch_add(&j->met, 1);
    while (atomic_load(&j->met) < j->meet) {
        if (seconds() - start > 10) {
            atomic_fetch_add(&j->errors, 1);
            return;
        }
        nanosleep(&nap, NULL);
    }
}

struct sum {
    _Atomic uint32_t value;
};

static void inner_task(void *arg, uint32_t index, uint32_t worker) {
    struct sum *sum = arg;
    (void)worker;
    atomic_fetch_add(&sum->value, index + 1);
}

static void task(void *arg, uint32_t index, uint32_t worker) {
    struct job *j = arg;
    if (worker >= j->n_workers || index >= j->n_tasks) {
        atomic_fetch_add(&j->errors, 1);
        return;
    }
    if (atomic_fetch_add(&j->inside[worker], 1) != 0)
        atomic_fetch_add(&j->errors, 1);
    if (j->meet)
        meet(j);
    for (volatile uint32_t i = 0; i < j->spin; i++) {
    }
    if (j->nest) {
        struct sum sum = {0};
        j->executor->parallel_for(j->executor->user, 10, inner_task, &sum);
        if (atomic_load(&sum.value) != 55)
            atomic_fetch_add(&j->errors, 1);
    }
    atomic_fetch_add(&j->done[index], 1);
    atomic_fetch_sub(&j->inside[worker], 1);
}

uint32_t job_run(struct job *j, const tq_executor *executor, uint32_t n_tasks) {
    j->executor = executor;
    j->n_workers = executor->n_workers;
    j->n_tasks = n_tasks;
    atomic_store(&j->met, 0);
    for (uint32_t i = 0; i < JOB_TASKS; i++)
        atomic_store(&j->done[i], 0);
    executor->parallel_for(executor->user, n_tasks, task, j);
    for (uint32_t i = 0; i < JOB_TASKS; i++)
        if (atomic_load(&j->done[i]) != (i < n_tasks))
            atomic_fetch_add(&j->errors, 1);
    return atomic_load(&j->errors);
}
