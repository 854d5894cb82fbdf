/*
 * Threads that share out the tasks of one job after another. A crew starts none: its members
 * are the thread that runs a job and whoever serves meanwhile. A member who does not come is
 * not waited for, so that a job ends with any number of them.
 */
#ifndef TQI_THREADS_CREW_H
#define TQI_THREADS_CREW_H

#include <pthread.h>
#include <stdatomic.h>

#include "base/executor.h"

struct tqi_crew {
    pthread_mutex_t lock; /* of all that is not atomic, and of every change */
    pthread_cond_t news;  /* a job was posted, a shift has ended */
    pthread_cond_t empty; /* the last member has left a closed job */
    uint32_t spins;       /* rounds of polling before a thread sleeps */
    uint32_t sleepers;    /* members waiting for news */
    uint32_t runner;      /* worker number of the thread that runs jobs */
    int open;             /* members may still join the job */
    atomic_uint helpers;  /* members inside the job, without its runner */
    atomic_bool busy;     /* a job runs */
    atomic_ullong posted; /* jobs so far */
    atomic_ullong shifts; /* shifts that have ended */
    tqi_task_fn *task;
    void *arg;
    uint32_t n_tasks;
    atomic_ullong next; /* task to take */
};

/* 0, or an error number. spins: 0 where threads are more than CPUs. */
int tqi_crew_init(struct tqi_crew *crew, uint32_t spins);
void tqi_crew_destroy(struct tqi_crew *crew);

/* Runs a job; returns when all its tasks have finished. While another job runs, the calling
 * thread does all the work of this one, so that calls may be nested or come at once. */
void tqi_crew_run(struct tqi_crew *crew, uint32_t n_tasks, tqi_task_fn *task, void *arg);
/* Helps with jobs until more than `shift` shifts have ended. */
void tqi_crew_serve(struct tqi_crew *crew, uint32_t worker, uint64_t shift);
/* Ends a shift; the lock must be held. */
void tqi_crew_end_shift(struct tqi_crew *crew);

#endif
