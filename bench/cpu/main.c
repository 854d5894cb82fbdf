/* Decode attention and append of every variant at every instruction level, and the attention
 * of ggml where `make peers` has brought it.
 *
 *   bench [--json FILE] [--context LIST] [--dim LIST] [--group LIST] [--threads LIST]
 *         [--heads N] [--queries N] [--variant LIST] [--level best,avx512,avx2,ref]
 *
 * Lists are separated by commas; all combinations are run. One query token, or the last N, over
 * `context` tokens in several layers, taken in turn. GB/s are of the stored bytes, read once; "%
 * read" compares with a plain read by as many threads in the same run. Times are of the fastest
 * call of many, for all. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "bench.h"

enum { LIST = 16 };

struct list {
    uint32_t n, at[LIST];
};

static struct options {
    const char *json;
    struct selection selection;
    struct list contexts, dims, groups, threads;
    uint32_t heads, queries;
} opt = {.contexts = {1, {32768}},
         .dims = {1, {128}},
         .groups = {4, {1, 2, 4, 8}},
         .threads = {2, {1, 2}},
         .heads = 8,
         .queries = 1};

static void usage(const char *what) {
    fprintf(stderr, "bench: %s; see the head of bench/cpu/main.c\n", what);
    exit(2);
}

/* "1K" is 1024. */
static struct list parse_list(const char *text, uint32_t most) {
    struct list l = {0, {0}};
    while (*text && l.n < LIST) {
        char *end;
        unsigned long n = strtoul(text, &end, 10);
        n = *end == 'K' ? n * 1024 : n;
        end += *end == 'K';
        if (end == text || (*end && *end != ',') || n < 1 || n > most)
            usage(text);
        l.at[l.n++] = (uint32_t)n;
        text = *end ? end + 1 : end;
    }
    return l;
}

static void parse(int argc, char **argv) {
    for (int i = 1; i < argc; i += 2) {
        const char *name = argv[i], *value = i + 1 < argc ? argv[i + 1] : NULL;
        if (!value)
            usage(name);
        if (strcmp(name, "--json") == 0)
            opt.json = value;
        else if (strcmp(name, "--variant") == 0)
            opt.selection.variants = value;
        else if (strcmp(name, "--level") == 0)
            opt.selection.levels = value;
        else if (strcmp(name, "--context") == 0)
            opt.contexts = parse_list(value, 1 << 24);
        else if (strcmp(name, "--dim") == 0)
            opt.dims = parse_list(value, 1024);
        else if (strcmp(name, "--group") == 0)
            opt.groups = parse_list(value, 64);
        else if (strcmp(name, "--heads") == 0)
            opt.heads = parse_list(value, 1024).at[0];
        else if (strcmp(name, "--queries") == 0)
            opt.queries = parse_list(value, 1 << 20).at[0];
        else if (strcmp(name, "--threads") == 0)
            opt.threads = parse_list(value, THREADS_LIMIT);
        else
            usage(name);
    }
}

/* All groups and numbers of threads at one dim and context. */
static void bench_shapes(uint32_t dim, uint32_t context) {
    for (uint32_t t = 0; t < opt.threads.n; t++)
        for (uint32_t g = 0; g < opt.groups.n; g++) {
            struct shape shape = {.dim = dim,
                                  .context = context,
                                  .heads = opt.heads,
                                  .group = opt.groups.at[g],
                                  .threads = opt.threads.at[t],
                                  .queries = opt.queries};
            if (shape.queries > context)
                usage("more queries than context");
            bench_ours(&opt.selection, &shape, g == 0 && shape.queries == 1);
            if (peer_version())
                bench_peer(&opt.selection, &shape);
        }
}

int main(int argc, char **argv) {
    parse(argc, argv);
    report_open(opt.json);
    for (uint32_t t = 0; t < opt.threads.n; t++)
        report_read(opt.threads.at[t], plain_read(executor_of(opt.threads.at[t]), WORKING_SET));
    for (uint32_t d = 0; d < opt.dims.n; d++)
        for (uint32_t c = 0; c < opt.contexts.n; c++)
            bench_shapes(opt.dims.at[d], opt.contexts.at[c]);
    report_close();
    ours_close();
    return 0;
}
