/* Members of a crew: threads of its own, or those that an engine lends for a call. */
#ifndef TQI_THREADS_POOL_H
#define TQI_THREADS_POOL_H

#include "base/heap.h"
#include "threads/crew.h"

enum { TQI_THREADS_LIMIT = 1024 };

struct tqi_threads {
    struct tqi_heap *heap;
    struct tqi_crew crew;
    uint32_t n;         /* members, the caller included */
    uint32_t n_started; /* threads of its own */
    struct tqi_thread *threads;
    long process; /* that started them: a child of fork() has none of them */
    /* Lent: call number of every member's next call, calls begun, members of the last. */
    uint64_t *next_call;
    uint64_t begun;
    uint32_t n_lent;
};

/* CPUs that this process may run on; at least 1. */
uint32_t tqi_threads_cpus(void);

/* Starts n - 1 threads, or none when members are lent. Changes nothing on failure. */
tq_status tqi_threads_open(struct tqi_threads *threads, struct tqi_heap *heap, uint32_t n,
                           int lent);
/* Ends and joins the threads. No job may be running. */
void tqi_threads_close(struct tqi_threads *threads);

/* tq_executor::parallel_for; user is the struct. */
void tqi_threads_run(void *user, uint32_t n_tasks, tqi_task_fn *task, void *arg);
/* Member ith of nth lends its thread to call(arg): see tq_threadpool_lend(). */
tq_status tqi_threads_lend(struct tqi_threads *threads, uint32_t ith, uint32_t nth,
                           void (*call)(void *arg), void *arg);

#endif
