#define _GNU_SOURCE /* sched_getaffinity */
#include "threads/pool.h"

#include <sched.h>
#include <signal.h>
#include <unistd.h>

/* Polling rounds before a thread sleeps: some ten microseconds, the time between the calls of
 * two layers. */
enum { SPINS = 1000 };

struct tqi_thread {
    struct tqi_threads *of;
    uint32_t worker;
    pthread_t id;
};

uint32_t tqi_threads_cpus(void) {
#ifdef __linux__
    cpu_set_t set;
    if (sched_getaffinity(0, sizeof set, &set) == 0 && CPU_COUNT(&set) > 0)
        return (uint32_t)CPU_COUNT(&set);
#endif
    long n = sysconf(_SC_NPROCESSORS_ONLN); /* also with more CPUs than a cpu_set_t holds */
    return n > 0 ? (uint32_t)n : 1;
}

/* ---- threads of its own ------------------------------------------------------------------- */

static void *thread_main(void *arg) {
    const struct tqi_thread *t = arg;
    tqi_crew_serve(&t->of->crew, t->worker, 0);
    return NULL;
}

static void stop(struct tqi_threads *threads) {
    pthread_mutex_lock(&threads->crew.lock);
    tqi_crew_end_shift(&threads->crew);
    pthread_mutex_unlock(&threads->crew.lock);
    for (uint32_t i = 0; i < threads->n_started; i++)
        pthread_join(threads->threads[i].id, NULL);
}

/* Signals of the process are for the threads that its author knows. */
static int start_one(struct tqi_thread *t) {
    sigset_t all, before;
    sigfillset(&all);
    int error = pthread_sigmask(SIG_SETMASK, &all, &before);
    if (error)
        return error;
    error = pthread_create(&t->id, NULL, thread_main, t);
    pthread_sigmask(SIG_SETMASK, &before, NULL);
    return error;
}

static tq_status start(struct tqi_threads *threads) {
    for (uint32_t i = 0; i + 1 < threads->n; i++) {
        struct tqi_thread *t = &threads->threads[i];
        t->of = threads;
        t->worker = i + 1;
        int error = start_one(t);
        if (error) {
            stop(threads);
            return tqi_fail(TQ_ERR_OUT_OF_MEMORY, "thread %u of %u could not be started (error %d)",
                            i + 1, threads->n - 1, error);
        }
        threads->n_started++;
    }
    return TQ_OK;
}

/* ---- open and close ----------------------------------------------------------------------- */

static void release(struct tqi_threads *threads) {
    tqi_free(threads->heap, threads->threads, threads->n, sizeof *threads->threads, TQ_MEM_HOST);
    tqi_free(threads->heap, threads->next_call, threads->n, sizeof *threads->next_call,
             TQ_MEM_HOST);
}

tq_status tqi_threads_open(struct tqi_threads *threads, struct tqi_heap *heap, uint32_t n,
                           int lent) {
    *threads = (struct tqi_threads){.heap = heap, .n = n, .process = (long)getpid()};
    if (lent)
        threads->next_call = tqi_calloc(heap, n, sizeof *threads->next_call);
    else
        threads->threads = tqi_calloc(heap, n, sizeof *threads->threads);
    if (!threads->threads && !threads->next_call)
        return TQ_ERR_OUT_OF_MEMORY;
    int error = tqi_crew_init(&threads->crew, n <= tqi_threads_cpus() ? SPINS : 0);
    if (error) {
        release(threads);
        return tqi_fail(TQ_ERR_OUT_OF_MEMORY, "locks could not be made (error %d)", error);
    }
    tq_status status = lent ? TQ_OK : start(threads);
    if (status != TQ_OK) {
        tqi_crew_destroy(&threads->crew);
        release(threads);
    }
    return status;
}

static int is_child(const struct tqi_threads *threads) {
    return (long)getpid() != threads->process;
}

void tqi_threads_close(struct tqi_threads *threads) {
    /* In a child, locks and conditions may remember threads that are not there. */
    if (!is_child(threads)) {
        stop(threads);
        tqi_crew_destroy(&threads->crew);
    }
    release(threads);
}

/* ---- work --------------------------------------------------------------------------------- */

void tqi_threads_run(void *user, uint32_t n_tasks, tqi_task_fn *task, void *arg) {
    struct tqi_threads *threads = user;
    if (!is_child(threads)) {
        tqi_crew_run(&threads->crew, n_tasks, task, arg);
        return;
    }
    for (uint32_t i = 0; i < n_tasks; i++)
        task(arg, i, 0);
}

/* Begins a call as its leader; the lock is held. */
static void begin(struct tqi_threads *threads, uint32_t ith, uint32_t nth) {
    threads->begun++;
    threads->n_lent = nth;
    threads->crew.runner = ith;
    threads->next_call[ith] = threads->begun;
    for (uint32_t i = nth; i < threads->n; i++) /* these do not take part */
        threads->next_call[i] = threads->begun;
}

static tq_status lead(struct tqi_threads *threads, void (*call)(void *arg), void *arg) {
    pthread_mutex_unlock(&threads->crew.lock);
    call(arg);
    pthread_mutex_lock(&threads->crew.lock);
    tqi_crew_end_shift(&threads->crew);
    pthread_mutex_unlock(&threads->crew.lock);
    return TQ_OK;
}

/* A member that comes later: the call runs, or has ended without it. */
static tq_status follow(struct tqi_threads *threads, uint32_t ith, uint32_t nth) {
    int current = threads->next_call[ith] + 1 == threads->begun;
    uint32_t want = threads->n_lent;
    if (current && nth != want) {
        pthread_mutex_unlock(&threads->crew.lock);
        return tqi_fail(TQ_ERR_INVALID_ARGUMENT, "nth: %u, but the call began with %u threads", nth,
                        want);
    }
    uint64_t call = threads->next_call[ith]++;
    pthread_mutex_unlock(&threads->crew.lock);
    tqi_crew_serve(&threads->crew, ith, call);
    return TQ_OK;
}

tq_status tqi_threads_lend(struct tqi_threads *threads, uint32_t ith, uint32_t nth,
                           void (*call)(void *arg), void *arg) {
    pthread_mutex_lock(&threads->crew.lock);
    if (threads->next_call[ith] < threads->begun)
        return follow(threads, ith, nth);
    if (atomic_load(&threads->crew.shifts) < threads->begun) {
        pthread_mutex_unlock(&threads->crew.lock);
        return tqi_fail(TQ_ERR_INVALID_STATE,
                        "the call before, of other threads, is still running");
    }
    begin(threads, ith, nth);
    return lead(threads, call, arg);
}
