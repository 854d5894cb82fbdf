#include "common/hooks.h"

#include <pthread.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>

#include "common/rows.h"

/* In front of every block; the rest up to the block's alignment is canary. */
struct header {
    size_t size, alignment;
    uint64_t magic;
};

enum { CANARY = 0xa5, NOISE = 0xff, TAIL = 64 };
#define MAGIC UINT64_C(0x7471616c6c6f6331)

static size_t front(size_t alignment) {
    return alignment > sizeof(struct header) ? alignment : 64;
}

static void *heap_alloc(void *user, size_t size, size_t alignment, tq_memory space) {
    struct test_heap *h = user;
    h->calls++;
    if (h->fail_at && (h->calls == h->fail_at || (h->fail_for_ever && h->calls > h->fail_at)))
        return NULL;
    if (space != TQ_MEM_HOST || size == 0 || alignment < 16 || (alignment & (alignment - 1))) {
        h->errors++;
        return NULL;
    }
    size_t total = front(alignment) + size + TAIL;
    char *base = aligned_alloc(alignment, (total + alignment - 1) / alignment * alignment);
    if (!base)
        return NULL;
    struct header head = {size, alignment, MAGIC};
    memcpy(base, &head, sizeof head);
    memset(base + front(alignment), NOISE, size);
    memset(base + front(alignment) + size, CANARY, TAIL);
    h->live_blocks++;
    h->live_bytes += size;
    return base + front(alignment);
}

static void heap_free(void *user, void *ptr, size_t size, size_t alignment, tq_memory space) {
    struct test_heap *h = user;
    struct header head;
    char *base = (char *)ptr - front(alignment);
    memcpy(&head, base, sizeof head);
    if (space != TQ_MEM_HOST || head.magic != MAGIC || head.size != size ||
        head.alignment != alignment) {
        h->errors++;
        return;
    }
    for (size_t i = 0; i < TAIL; i++)
        if ((unsigned char)((char *)ptr)[size + i] != CANARY) {
            h->errors++;
            break;
        }
    h->live_blocks--;
    h->live_bytes -= size;
    memset(base, NOISE, sizeof head);
    free(base);
}

tq_allocator test_allocator(struct test_heap *h) {
    tq_allocator hooks = {
        .struct_size = sizeof hooks, .user = h, .alloc = heap_alloc, .free = heap_free};
    return hooks;
}

struct run {
    void (*task)(void *arg, uint32_t index, uint32_t worker);
    void *arg;
    uint32_t n_tasks, shift;
    atomic_uint next;
};

struct worker {
    struct run *run;
    uint32_t number;
};

static void *work(void *arg) {
    struct worker *w = arg;
    for (uint32_t i; (i = atomic_fetch_add(&w->run->next, 1)) < w->run->n_tasks;)
        w->run->task(w->run->arg, (i + w->run->shift) % w->run->n_tasks, w->number);
    return NULL;
}

static void run_all(void *user, uint32_t n_tasks,
                    void (*task)(void *arg, uint32_t index, uint32_t worker), void *arg) {
    static atomic_uint calls;
    struct test_threads *t = user;
    struct run run = {.task = task, .arg = arg, .n_tasks = n_tasks};
    pthread_t *threads = must_alloc(t->n_workers, sizeof *threads);
    struct worker *workers = must_alloc(t->n_workers, sizeof *workers);
    run.shift = atomic_fetch_add(&calls, 1) * 7919u % n_tasks;
    atomic_init(&run.next, 0);
    for (uint32_t i = 0; i < t->n_workers; i++) {
        workers[i] = (struct worker){&run, i};
        if (pthread_create(&threads[i], NULL, work, &workers[i]) != 0)
            abort();
    }
    for (uint32_t i = 0; i < t->n_workers; i++)
        pthread_join(threads[i], NULL);
    free(threads);
    free(workers);
}

tq_executor test_executor(struct test_threads *t) {
    tq_executor hooks = {
        .struct_size = sizeof hooks, .n_workers = t->n_workers, .user = t, .parallel_for = run_all};
    return hooks;
}
