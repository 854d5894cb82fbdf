#define _POSIX_C_SOURCE 200809L
/* Runs a fuzz target over files, without an engine: every file that is named, or every file of
 * a folder that is named; without arguments the target's corpus. The lines are those of CMocka,
 * so that tools/make/run_tests.py counts them. An input that fails ends the program; the line
 * before says which it was. */
#include <dirent.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "fuzz/fuzz.h"

enum { MAX_FILES = 4096, MAX_BYTES = 1 << 20, MAX_PATH = 1024 };

struct results {
    unsigned passed, failed;
};

/* -1 when the file can't be read. */
static long read_file(const char *path, uint8_t *to) {
    FILE *file = fopen(path, "rb");
    if (!file)
        return -1;
    size_t n = fread(to, 1, MAX_BYTES, file);
    int bad = ferror(file) || (n == MAX_BYTES && fgetc(file) != EOF);
    return fclose(file) != 0 || bad ? -1 : (long)n;
}

static void run_file(struct results *r, const char *path) {
    static uint8_t bytes[MAX_BYTES];
    long n = read_file(path, bytes);
    printf("[ RUN      ] %s\n", path);
    (void)fflush(stdout);
    if (n < 0) {
        printf("[  FAILED  ] %s\n", path);
        r->failed++;
        return;
    }
    uint8_t *exact = fuzz_alloc((size_t)n); /* so that reading beyond the end is seen */
    memcpy(exact, bytes, (size_t)n);
    (void)LLVMFuzzerTestOneInput(exact, (size_t)n);
    free(exact);
    printf("[       OK ] %s\n", path);
    r->passed++;
}

static int by_name(const void *a, const void *b) {
    return strcmp(*(char *const *)a, *(char *const *)b);
}

/* Names of a folder in an order that does not depend on the file system. */
static size_t list(const char *folder, char **names) {
    size_t n = 0;
    DIR *dir = opendir(folder);
    if (!dir)
        return 0;
    for (struct dirent *entry; (entry = readdir(dir)) && n < MAX_FILES;) {
        if (entry->d_name[0] == '.')
            continue;
        names[n] = fuzz_alloc(strlen(entry->d_name) + 1);
        strcpy(names[n++], entry->d_name);
    }
    (void)closedir(dir);
    qsort(names, n, sizeof *names, by_name);
    return n;
}

static void run(struct results *r, const char *path) {
    static char *names[MAX_FILES];
    size_t n = list(path, names);
    if (n == 0)
        run_file(r, path);
    for (size_t i = 0; i < n; i++) {
        char file[MAX_PATH];
        (void)snprintf(file, sizeof file, "%s/%s", path, names[i]);
        run_file(r, file);
        free(names[i]);
    }
}

int main(int argc, char **argv) {
    struct results r = {0, 0};
    char corpus[MAX_PATH];
    (void)snprintf(corpus, sizeof corpus, "test/fuzz/corpus/%s", fuzz_name);
    if (argc < 2)
        run(&r, corpus);
    for (int i = 1; i < argc; i++)
        run(&r, argv[i]);
    printf("%u passed, %u failed\n", r.passed, r.failed);
    return r.failed || !r.passed;
}
