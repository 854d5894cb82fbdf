#include "threads/crew.h"

#include <stdbool.h>

static void relax(void) {
#if defined(__x86_64__)
    __asm__ volatile("pause");
#elif defined(__aarch64__)
    __asm__ volatile("isb");
#endif
}

int tqi_crew_init(struct tqi_crew *crew, uint32_t spins) {
    int error = pthread_mutex_init(&crew->lock, NULL);
    if (error)
        return error;
    error = pthread_cond_init(&crew->news, NULL);
    if (error) {
        pthread_mutex_destroy(&crew->lock);
        return error;
    }
    error = pthread_cond_init(&crew->empty, NULL);
    if (error) {
        pthread_cond_destroy(&crew->news);
        pthread_mutex_destroy(&crew->lock);
        return error;
    }
    crew->spins = spins;
    crew->sleepers = crew->runner = 0;
    crew->open = 0;
    atomic_init(&crew->helpers, 0);
    atomic_init(&crew->busy, false);
    atomic_init(&crew->posted, 0);
    atomic_init(&crew->shifts, 0);
    atomic_init(&crew->next, 0);
    return 0;
}

void tqi_crew_destroy(struct tqi_crew *crew) {
    pthread_cond_destroy(&crew->empty);
    pthread_cond_destroy(&crew->news);
    pthread_mutex_destroy(&crew->lock);
}

static void take_tasks(struct tqi_crew *crew, uint32_t worker) {
    uint64_t i;
    while ((i = atomic_fetch_add_explicit(&crew->next, 1, memory_order_relaxed)) < crew->n_tasks)
        crew->task(crew->arg, (uint32_t)i, worker);
}

/* ---- the runner --------------------------------------------------------------------------- */

static void wake(struct tqi_crew *crew, uint32_t wanted) {
    if (crew->sleepers <= wanted) {
        if (crew->sleepers)
            pthread_cond_broadcast(&crew->news);
        return;
    }
    for (uint32_t i = 0; i < wanted; i++)
        pthread_cond_signal(&crew->news);
}

static uint32_t post(struct tqi_crew *crew, uint32_t n_tasks, tqi_task_fn *task, void *arg) {
    pthread_mutex_lock(&crew->lock);
    crew->task = task;
    crew->arg = arg;
    crew->n_tasks = n_tasks;
    atomic_store(&crew->next, 0);
    crew->open = 1;
    atomic_fetch_add(&crew->posted, 1);
    wake(crew, n_tasks - 1);
    uint32_t runner = crew->runner;
    pthread_mutex_unlock(&crew->lock);
    return runner;
}

/* A runner polls this many times as long for members who are at work on their last task: that is
 * shorter than a task, and to be woken takes some 40 microseconds. */
enum { PATIENCE = 10 };

/* Nobody may join any more; waits for those who have. */
static void finish(struct tqi_crew *crew) {
    pthread_mutex_lock(&crew->lock);
    crew->open = 0;
    pthread_mutex_unlock(&crew->lock);
    for (uint32_t i = 0; i < PATIENCE * crew->spins && atomic_load(&crew->helpers); i++)
        relax();
    pthread_mutex_lock(&crew->lock);
    while (atomic_load(&crew->helpers))
        pthread_cond_wait(&crew->empty, &crew->lock);
    pthread_mutex_unlock(&crew->lock);
}

void tqi_crew_run(struct tqi_crew *crew, uint32_t n_tasks, tqi_task_fn *task, void *arg) {
    if (n_tasks < 2 || atomic_exchange(&crew->busy, true)) {
        for (uint32_t i = 0; i < n_tasks; i++)
            task(arg, i, 0);
        return;
    }
    take_tasks(crew, post(crew, n_tasks, task, arg));
    finish(crew);
    atomic_store(&crew->busy, false);
}

/* ---- members ------------------------------------------------------------------------------ */

static void help(struct tqi_crew *crew, uint32_t worker) {
    atomic_fetch_add(&crew->helpers, 1);
    pthread_mutex_unlock(&crew->lock);
    take_tasks(crew, worker);
    pthread_mutex_lock(&crew->lock);
    if (atomic_fetch_sub(&crew->helpers, 1) == 1 && !crew->open)
        pthread_cond_signal(&crew->empty);
}

static bool nothing_new(struct tqi_crew *crew, uint64_t seen, uint64_t shift) {
    return atomic_load(&crew->posted) == seen && atomic_load(&crew->shifts) <= shift;
}

/* Polls for a while, then sleeps. */
static void await_news(struct tqi_crew *crew, uint64_t seen, uint64_t shift) {
    pthread_mutex_unlock(&crew->lock);
    for (uint32_t i = 0; i < crew->spins && nothing_new(crew, seen, shift); i++)
        relax();
    pthread_mutex_lock(&crew->lock);
    while (nothing_new(crew, seen, shift)) {
        crew->sleepers++;
        pthread_cond_wait(&crew->news, &crew->lock);
        crew->sleepers--;
    }
}

void tqi_crew_serve(struct tqi_crew *crew, uint32_t worker, uint64_t shift) {
    uint64_t seen = 0;
    pthread_mutex_lock(&crew->lock);
    while (atomic_load(&crew->shifts) <= shift) {
        uint64_t posted = atomic_load(&crew->posted);
        if (posted == seen) {
            await_news(crew, seen, shift);
            continue;
        }
        seen = posted;
        if (crew->open)
            help(crew, worker);
    }
    pthread_mutex_unlock(&crew->lock);
}

void tqi_crew_end_shift(struct tqi_crew *crew) {
    atomic_fetch_add(&crew->shifts, 1);
    if (crew->sleepers)
        pthread_cond_broadcast(&crew->news);
}
