#define _GNU_SOURCE
#include <stdio.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <unistd.h>

#include "check.h"

static size_t whole_pages(size_t bytes) {
    size_t page = (size_t)sysconf(_SC_PAGESIZE);
    return (bytes + page - 1) / page * page;
}

void *guard_alloc(size_t bytes) {
    size_t page = (size_t)sysconf(_SC_PAGESIZE), size = whole_pages(bytes);
    char *map = mmap(NULL, size + 2 * page, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (map == MAP_FAILED || mprotect(map + page, size, PROT_READ | PROT_WRITE) != 0) {
        perror("mmap");
        exit(2);
    }
    return map + page + size - bytes;
}

void guard_free(void *memory, size_t bytes) {
    size_t page = (size_t)sysconf(_SC_PAGESIZE), size = whole_pages(bytes);
    munmap((char *)memory + bytes - size - page, size + 2 * page);
}
