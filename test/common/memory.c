#define _GNU_SOURCE
#include "common/memory.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "common/check.h"

enum { CANARY = 0xa5, ZONE = 128 };

static void *not_null(void *p) {
    if (!p || p == MAP_FAILED) {
        fprintf(stderr, "test: out of memory\n");
        abort();
    }
    return p;
}

void *must_alloc(size_t n, size_t size) {
    return not_null(calloc(n ? n : 1, size ? size : 1));
}

/* ---- canaries -------------------------------------------------------------------------- */

struct guarded guard_make(size_t bytes, size_t offset) {
    size_t whole = ZONE + offset + bytes + ZONE;
    struct guarded g = {.bytes = bytes};
    g.block = not_null(aligned_alloc(64, (whole + 63) / 64 * 64));
    memset(g.block, CANARY, whole);
    g.data = g.block + ZONE + offset;
    guard_fill(&g);
    return g;
}

void guard_fill(struct guarded *g) {
    memset(g->data, GUARD_FILL, g->bytes);
}

void guard_unwritten(const struct guarded *g) {
    for (size_t i = 0; i < g->bytes; i++)
        CHECK(((const unsigned char *)g->data)[i] == GUARD_FILL, "byte %zu was written", i);
}

void guard_free(struct guarded *g) {
    const unsigned char *end = (unsigned char *)g->data + g->bytes;
    for (const unsigned char *p = g->block; p < (unsigned char *)g->data; p++)
        CHECK(*p == CANARY, "written %td bytes before a buffer", (unsigned char *)g->data - p);
    for (size_t i = 0; i < ZONE; i++)
        CHECK(end[i] == CANARY, "written %zu bytes behind a buffer of %zu", i, g->bytes);
    free(g->block);
    g->data = NULL;
}

/* ---- pages ----------------------------------------------------------------------------- */

void *sparse_alloc(size_t bytes) {
    return not_null(mmap(NULL, bytes, PROT_READ | PROT_WRITE,
                         MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0));
}

void sparse_free(void *ptr, size_t bytes) {
    munmap(ptr, bytes);
}

struct fenced fence_copy(const void *from, size_t bytes) {
    size_t page = (size_t)sysconf(_SC_PAGESIZE), body = (bytes + page - 1) / page * page;
    struct fenced f = {.map_bytes = body + page};
    f.map = sparse_alloc(f.map_bytes);
    if (mprotect((char *)f.map + body, page, PROT_NONE) != 0)
        abort();
    f.data = (char *)f.map + body - bytes;
    memcpy(f.data, from, bytes);
    return f;
}

void fence_free(struct fenced *f) {
    sparse_free(f->map, f->map_bytes);
    f->data = NULL;
}
