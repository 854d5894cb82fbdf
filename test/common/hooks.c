#include "common/hooks.h"

#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "common/memory.h"

/* Set while a thread runs a task: the library promises not to allocate there. */
static _Thread_local int in_task;

/* ---- allocator ------------------------------------------------------------------------- */

/* In front of every block; the rest up to the block's alignment is unused. */
struct header {
    size_t size, alignment;
    uint64_t magic;
};

enum { CANARY = 0xa5, NOISE = 0xff, TAIL = 64 };
#define MAGIC UINT64_C(0x7471616c6c6f6331)

static size_t front(size_t alignment) {
    return alignment > sizeof(struct header) ? alignment : 64;
}

static size_t whole_size(size_t size, size_t alignment) {
    return (front(alignment) + size + TAIL + alignment - 1) / alignment * alignment;
}

static int bad_request(size_t size, size_t alignment, tq_memory space) {
    return in_task || space != TQ_MEM_HOST || size == 0 || alignment < 16 ||
           (alignment & (alignment - 1)) != 0;
}

static int must_fail(struct test_heap *h) {
    h->calls++;
    return h->fail_at && (h->calls == h->fail_at || (h->fail_for_ever && h->calls > h->fail_at));
}

static void *take(struct test_heap *h, size_t size, size_t alignment, tq_memory space) {
    if (bad_request(size, alignment, space)) {
        h->errors++;
        return NULL;
    }
    /* No test needs a block of 4 GiB; this keeps sizes that overflowed from being tried. */
    char *base = size >> 32 ? NULL : aligned_alloc(alignment, whole_size(size, alignment));
    if (!base)
        return NULL;
    struct header head = {size, alignment, MAGIC};
    memcpy(base, &head, sizeof head);
    base += front(alignment);
    memset(base, h->zero_fill ? 0 : NOISE, size);
    memset(base + size, CANARY, TAIL);
    h->live_blocks++;
    h->live_bytes += size;
    return base;
}

static void *heap_alloc(void *user, size_t size, size_t alignment, tq_memory space) {
    struct test_heap *h = user;
    pthread_mutex_lock(&h->lock);
    void *block = must_fail(h) ? NULL : take(h, size, alignment, space);
    pthread_mutex_unlock(&h->lock);
    return block;
}

static int canary_alive(const unsigned char *end) {
    for (size_t i = 0; i < TAIL; i++)
        if (end[i] != CANARY)
            return 0;
    return 1;
}

static void give(struct test_heap *h, char *ptr, size_t size, size_t alignment, tq_memory space) {
    struct header head;
    char *base = ptr - front(alignment);
    memcpy(&head, base, sizeof head);
    if (in_task || space != TQ_MEM_HOST || head.magic != MAGIC || head.size != size ||
        head.alignment != alignment) {
        h->errors++;
        return;
    }
    if (!canary_alive((unsigned char *)ptr + size))
        h->errors++;
    h->live_blocks--;
    h->live_bytes -= size;
    memset(base, NOISE, sizeof head + size);
    free(base);
}

static void heap_free(void *user, void *ptr, size_t size, size_t alignment, tq_memory space) {
    struct test_heap *h = user;
    pthread_mutex_lock(&h->lock);
    give(h, ptr, size, alignment, space);
    pthread_mutex_unlock(&h->lock);
}

tq_allocator test_allocator(struct test_heap *h) {
    tq_allocator hooks = {
        .struct_size = sizeof hooks, .user = h, .alloc = heap_alloc, .free = heap_free};
    pthread_mutex_init(&h->lock, NULL);
    return hooks;
}

void test_heap_fail(struct test_heap *h, uint64_t n) {
    h->fail_at = n ? h->calls + n : 0;
}

/* ---- sparse memory --------------------------------------------------------------------- */

static void *map_alloc(void *user, size_t size, size_t alignment, tq_memory space) {
    (void)user;
    return space == TQ_MEM_HOST && alignment <= 4096 ? sparse_alloc(size) : NULL;
}

static void map_free(void *user, void *ptr, size_t size, size_t alignment, tq_memory space) {
    (void)user;
    (void)alignment;
    (void)space;
    sparse_free(ptr, size);
}

tq_allocator sparse_allocator(void) {
    tq_allocator hooks = {.struct_size = sizeof hooks, .alloc = map_alloc, .free = map_free};
    return hooks;
}

/* ---- executor -------------------------------------------------------------------------- */

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
    in_task = 1;
    for (uint32_t i; (i = atomic_fetch_add(&w->run->next, 1)) < w->run->n_tasks;)
        w->run->task(w->run->arg, (i + w->run->shift) % w->run->n_tasks, w->number);
    in_task = 0;
    return NULL;
}

/* Also with one worker in a thread of its own: the library must not care. */
static void run_all(void *user, uint32_t n_tasks,
                    void (*task)(void *arg, uint32_t index, uint32_t worker), void *arg) {
    struct test_threads *t = user;
    struct run run = {.task = task, .arg = arg, .n_tasks = n_tasks};
    pthread_t *threads = must_alloc(t->n_workers, sizeof *threads);
    struct worker *workers = must_alloc(t->n_workers, sizeof *workers);
    run.shift = (uint32_t)(++t->calls * 7919u % n_tasks);
    t->tasks += n_tasks;
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

uint64_t test_features_disabled(void) {
    static const struct {
        const char *name;
        uint64_t disabled;
    } levels[] = {
        {"best", 0},
        {"avx512", TQ_CPU_AMX},
        {"avxvnni", TQ_CPU_AVX512 | TQ_CPU_AVX512VNNI | TQ_CPU_AMX},
        {"avx2", TQ_CPU_AVX512 | TQ_CPU_AVX512VNNI | TQ_CPU_AMX | TQ_CPU_AVXVNNI},
        {"ref", UINT64_MAX},
    };
    const char *level = getenv("TQ_TEST_LEVEL");
    if (!level || !*level)
        level = "ref";
    for (size_t i = 0; i < sizeof levels / sizeof levels[0]; i++)
        if (strcmp(level, levels[i].name) == 0)
            return levels[i].disabled;
    fprintf(stderr, "TQ_TEST_LEVEL=%s: best, avx512, avxvnni, avx2 and ref are known\n", level);
    exit(1);
}

double test_attend_tolerance(void) {
    return test_features_disabled() == UINT64_MAX ? 1e-6 : 2e-4;
}
