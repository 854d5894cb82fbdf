#include "base/executor.h"

#include <stddef.h>

tq_status tqi_executor_init(struct tqi_executor *executor, const tq_executor *config) {
    executor->n_workers = 1;
    executor->user = NULL;
    executor->parallel_for = NULL;
    if (!config)
        return TQ_OK;
    TQI_REQUIRE(config->parallel_for, "executor: parallel_for must be given");
    TQI_REQUIRE(config->n_workers >= 1 && config->n_workers <= 65536,
                "executor: n_workers must be 1 to 65536, not %u", config->n_workers);
    executor->n_workers = config->n_workers;
    executor->user = config->user;
    executor->parallel_for = config->parallel_for;
    return TQ_OK;
}

void tqi_executor_run(const struct tqi_executor *executor, uint32_t n_tasks, tqi_task_fn *task,
                      void *arg) {
    if (executor->parallel_for && n_tasks > 1) {
        executor->parallel_for(executor->user, n_tasks, task, arg);
        return;
    }
    for (uint32_t i = 0; i < n_tasks; i++)
        task(arg, i, 0);
}
