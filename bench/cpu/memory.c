#define _GNU_SOURCE
#include <stdio.h>
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

/* At least 6 rounds or 0.2 s, at least 2 calls. */
double fastest(void (*call)(void *arg, uint32_t i), void *arg, uint32_t n) {
    double best = 1e9, start = now();
    for (uint32_t i = 0; i < 6 * n; i++) {
        double t = now();
        call(arg, i % n);
        t = now() - t;
        best = t < best ? t : best;
        if (i > 0 && i + 1 >= n && now() - start > 0.2)
            break;
    }
    return best;
}

/* ---- memory ------------------------------------------------------------------------------- */

static void *take(void *user, size_t size, size_t alignment, tq_memory space) {
    (void)user;
    (void)space;
    size_t align = size >= HUGE_PAGE ? HUGE_PAGE : alignment;
    void *p = aligned_alloc(align, (size + align - 1) / align * align);
    if (p && size >= HUGE_PAGE)
        madvise(p, size / HUGE_PAGE * HUGE_PAGE, MADV_HUGEPAGE);
    return p;
}

static void take_back(void *user, void *p, size_t size, size_t alignment, tq_memory space) {
    (void)user;
    (void)size;
    (void)alignment;
    (void)space;
    free(p);
}

const tq_allocator huge_pages = {sizeof huge_pages, 0, NULL, take, take_back};

void *must_take(size_t bytes) {
    void *p = take(NULL, bytes, 64, TQ_MEM_HOST);
    if (!p) {
        fprintf(stderr, "bench: no memory for %zu bytes\n", bytes);
        exit(1);
    }
    return p;
}

void give(void *p) {
    free(p);
}

uint16_t *make_rows(size_t n) {
    uint16_t *x = must_take(n * 2);
    uint32_t s = 1;
    for (size_t i = 0; i < n; i++) {
        float sum = -2;
        for (int k = 0; k < 4; k++) {
            s = s * 1664525u + 1013904223u;
            sum += (float)(s >> 8) * 0x1p-24f;
        }
        uint32_t bits;
        sum *= 1.7f;
        memcpy(&bits, &sum, sizeof bits);
        x[i] = (uint16_t)(bits >> 16);
    }
    return x;
}

/* ---- plain read --------------------------------------------------------------------------- */

struct reading {
    const char *data;
    uint64_t sums[THREADS_LIMIT];
};

typedef uint64_t lanes __attribute__((vector_size(64)));

#if defined(__x86_64__) && defined(__GNUC__) && !defined(__clang__)
__attribute__((target_clones("avx512f", "avx2", "default")))
#endif
static uint64_t
sum_piece(const char *data) {
    const lanes *p = (const void *)data;
    lanes s[4] = {{0}};
    for (size_t i = 0; i < PIECE / sizeof *p; i += 4)
        for (size_t k = 0; k < 4; k++)
            s[k] += p[i + k];
    s[0] += s[1] + s[2] + s[3];
    return s[0][0] + s[0][1] + s[0][2] + s[0][3] + s[0][4] + s[0][5] + s[0][6] + s[0][7];
}

static void read_piece(void *arg, uint32_t index, uint32_t worker) {
    struct reading *r = arg;
    r->sums[worker % THREADS_LIMIT] += sum_piece(r->data + (size_t)index * PIECE);
}

double plain_read(const tq_executor *executor, size_t bytes) {
    struct reading r = {0};
    const uint32_t part = 32; /* pieces that are timed together, as long as a decode call */
    size_t size = bytes / PIECE / part * part * PIECE;
    char *data = must_take(size);
    double best = 1e9;
    memset(data, 1, size);
    for (int i = 0; i < 10; i++)
        for (size_t at = 0; at < size; at += (size_t)part * PIECE) {
            r.data = data + at;
            double t = now();
            executor->parallel_for(executor->user, part, read_piece, &r);
            t = now() - t;
            best = t < best ? t : best;
        }
    volatile uint64_t keep = r.sums[0];
    (void)keep;
    give(data);
    return (double)part * PIECE / best * 1e-9;
}
