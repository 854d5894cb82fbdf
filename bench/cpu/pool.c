#define _POSIX_C_SOURCE 200809L
#include <pthread.h>
#include <stdatomic.h>
#include <stdlib.h>

#include "bench.h"

/* Workers sleep between jobs and take tasks off a common counter. */
struct pool {
    uint32_t n, ready;
    pthread_t *threads;
    pthread_mutex_t lock;
    pthread_cond_t start, end;
    uint64_t job;     /* number of the current job */
    uint32_t working; /* threads that have not finished it */
    int stop;
    void (*task)(void *arg, uint32_t index, uint32_t worker);
    void *arg;
    uint32_t n_tasks;
    atomic_uint next;
};

static void work(struct pool *p, uint32_t worker) {
    uint32_t i;
    while ((i = atomic_fetch_add(&p->next, 1)) < p->n_tasks)
        p->task(p->arg, i, worker);
}

static void *thread_main(void *arg) {
    struct pool *p = arg;
    uint64_t seen = 0;
    pthread_mutex_lock(&p->lock);
    uint32_t worker = ++p->ready;
    for (;;) {
        while (p->job == seen && !p->stop)
            pthread_cond_wait(&p->start, &p->lock);
        if (p->stop)
            break;
        seen = p->job;
        pthread_mutex_unlock(&p->lock);
        work(p, worker);
        pthread_mutex_lock(&p->lock);
        if (--p->working == 0)
            pthread_cond_signal(&p->end);
    }
    pthread_mutex_unlock(&p->lock);
    return NULL;
}

struct pool *pool_create(uint32_t n) {
    struct pool *p = calloc(1, sizeof *p);
    p->n = n;
    p->threads = calloc(n, sizeof *p->threads);
    pthread_mutex_init(&p->lock, NULL);
    pthread_cond_init(&p->start, NULL);
    pthread_cond_init(&p->end, NULL);
    for (uint32_t i = 1; i < n; i++)
        if (pthread_create(&p->threads[i], NULL, thread_main, p) != 0)
            abort();
    return p;
}

void pool_destroy(struct pool *p) {
    pthread_mutex_lock(&p->lock);
    p->stop = 1;
    pthread_cond_broadcast(&p->start);
    pthread_mutex_unlock(&p->lock);
    for (uint32_t i = 1; i < p->n; i++)
        pthread_join(p->threads[i], NULL);
    free(p->threads);
    free(p);
}

void pool_run(void *user, uint32_t n_tasks,
              void (*task)(void *arg, uint32_t index, uint32_t worker), void *arg) {
    struct pool *p = user;
    pthread_mutex_lock(&p->lock);
    p->task = task;
    p->arg = arg;
    p->n_tasks = n_tasks;
    atomic_store(&p->next, 0);
    p->working = p->n - 1;
    p->job++;
    pthread_cond_broadcast(&p->start);
    pthread_mutex_unlock(&p->lock);
    work(p, 0);
    pthread_mutex_lock(&p->lock);
    while (p->working > 0)
        pthread_cond_wait(&p->end, &p->lock);
    pthread_mutex_unlock(&p->lock);
}
