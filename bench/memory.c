#define _GNU_SOURCE
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <time.h>

#include "bench.h"

enum { HUGE_PAGE = 1 << 21, PIECE = 1 << 20 };

double now(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

static void *take(void *user, size_t size, size_t alignment, tq_memory space) {
    (void)user;
    (void)space;
    size_t align = size >= HUGE_PAGE ? HUGE_PAGE : alignment;
    void *p = aligned_alloc(align, (size + align - 1) / align * align);
    if (p && size >= HUGE_PAGE)
        madvise(p, size / HUGE_PAGE * HUGE_PAGE, MADV_HUGEPAGE);
    return p;
}

static void give(void *user, void *p, size_t size, size_t alignment, tq_memory space) {
    (void)user;
    (void)size;
    (void)alignment;
    (void)space;
    free(p);
}

const tq_allocator huge_pages = {sizeof huge_pages, 0, NULL, take, give};

struct reading {
    const char *data;
    uint64_t sums[64];
};

/* Wide enough to be bound by memory on any machine, without instruction flags. */
static void read_piece(void *arg, uint32_t index, uint32_t worker) {
    struct reading *r = arg;
    const uint64_t *p = (const void *)(r->data + (size_t)index * PIECE);
    uint64_t s[8] = {0};
    for (size_t i = 0; i < PIECE / 8; i += 8)
        for (int k = 0; k < 8; k++)
            s[k] += p[i + (size_t)k];
    for (int k = 0; k < 8; k++)
        r->sums[worker % 64] += s[k];
}

double plain_read(struct pool *pool, uint32_t threads, size_t bytes) {
    struct reading r = {0};
    const uint32_t part = 32; /* pieces that are timed together, as long as a decode call */
    size_t size = bytes / PIECE / part * part * PIECE;
    char *data = take(NULL, size, 64, TQ_MEM_HOST);
    double best = 1e9;
    memset(data, 1, size);
    for (int i = 0; i < 10; i++)
        for (size_t at = 0; at < size; at += (size_t)part * PIECE) {
            r.data = data + at;
            double t = now();
            if (threads > 1)
                pool_run(pool, part, read_piece, &r);
            else
                for (uint32_t k = 0; k < part; k++)
                    read_piece(&r, k, 0);
            t = now() - t;
            best = t < best ? t : best;
        }
    volatile uint64_t keep = r.sums[0];
    (void)keep;
    free(data);
    return (double)part * PIECE / best * 1e-9;
}
