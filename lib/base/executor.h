/* The caller's parallel-for, or a plain loop. */
#ifndef TQI_BASE_EXECUTOR_H
#define TQI_BASE_EXECUTOR_H

#include "base/status.h"

/* Between the memories of workers: hardware fetches ahead of what it sees a thread read, up to the
 * end of 4 KB, and what another thread writes there would travel to and fro. */
enum { TQI_APART_BYTES = 4096 };

typedef void tqi_task_fn(void *arg, uint32_t index, uint32_t worker);

/* A copy of the hook; n_workers is 1 and parallel_for NULL without one. */
struct tqi_executor {
    uint32_t n_workers;
    void *user;
    void (*parallel_for)(void *user, uint32_t n_tasks, tqi_task_fn *task, void *arg);
};

tq_status tqi_executor_init(struct tqi_executor *executor, const tq_executor *config);
void tqi_executor_run(const struct tqi_executor *executor, uint32_t n_tasks, tqi_task_fn *task,
                      void *arg);

#endif
