/* Jobs for a tq_executor that look at its rules: every task once, worker numbers in range and
 * in one hand. Safe in any thread: what went wrong is counted, not asserted. */
#ifndef TEST_COMMON_JOBS_H
#define TEST_COMMON_JOBS_H

#include <stdint.h>

#include "tq/tq.h"

enum { JOB_WORKERS = 64, JOB_TASKS = 4096 };

struct job {
    uint32_t n_workers, n_tasks;
    uint32_t meet; /* tasks that wait for each other, at most 10 s; 0 = none */
    uint32_t spin; /* rounds of work in a task */
    int nest;      /* tasks run jobs of their own */
    const tq_executor *executor;
    _Atomic uint32_t met;
    _Atomic uint32_t inside[JOB_WORKERS]; /* tasks that run under a worker number */
    _Atomic uint32_t done[JOB_TASKS];
    _Atomic uint32_t errors;
};

/* Runs a zeroed job with its sizes set; returns the number of errors. */
uint32_t job_run(struct job *j, const tq_executor *executor, uint32_t n_tasks);

#endif
