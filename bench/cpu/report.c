#include <stdio.h>
#include <stdlib.h>

#include "bench.h"

static FILE *json;
static int count;
static double read_speed[THREADS_LIMIT + 1]; /* GB/s, by threads */

void report_open(const char *path) {
    if (path && !(json = fopen(path, "w"))) {
        perror(path);
        exit(2);
    }
    if (json)
        fprintf(json, "{\"library\": \"%s\", \"peer\": \"%s\", \"rows\": [\n", tq_version_string(),
                peer_version() ? peer_version() : "");
    printf("peer: %s\n", peer_version() ? peer_version() : "none (make peers)");
    printf("%-7s %-7s %-10s %5s %8s %6s %8s %7s %11s %8s %7s %8s\n", "what", "level", "variant",
           "dim", "context", "group", "threads", "queries", "ms", "GB/s", "% read", "GFLOP/s");
}

static void put(const char *what, const char *level, const char *variant, const struct shape *s,
                double ms, double gbs, double percent) {
    /* Pairs of query and key that see each other, two products of `dim` numbers each. */
    double pairs = s->queries * (s->context - (s->queries - 1) / 2.0) * s->heads * s->group;
    printf("%-7s %-7s %-10s %5u %8u %6u %8u %7u %11.4f %8.2f %7.1f %8.1f\n", what, level, variant,
           s->dim, s->context, s->group, s->threads, s->queries, ms, gbs, percent,
           4e-6 * pairs * s->dim / ms);
    fflush(stdout);
    if (json)
        fprintf(json,
                "%s{\"what\": \"%s\", \"level\": \"%s\", \"variant\": \"%s\", \"dim\": %u, "
                "\"context\": %u, \"heads\": %u, \"group\": %u, \"threads\": %u, \"queries\": %u, "
                "\"ms\": %.5f, "
                "\"gb_per_s\": %.3f, \"percent_of_read\": %.2f}",
                count++ ? ",\n" : "", what, level, variant, s->dim, s->context, s->heads, s->group,
                s->threads, s->queries, ms, gbs, percent);
}

const char *attention_of(const struct shape *shape) {
    return shape->queries > 1 ? "prefill" : "decode";
}

void report_read(uint32_t threads, double gbs) {
    struct shape s = {.threads = threads};
    read_speed[threads] = gbs;
    put("read", "-", "-", &s, WORKING_SET / gbs * 1e-6, gbs, 100);
}

void report(const char *what, const char *level, const char *variant, const struct shape *shape,
            double seconds, double bytes) {
    double gbs = bytes / seconds * 1e-9;
    put(what, level, variant, shape, seconds * 1e3, gbs, gbs * 100 / read_speed[shape->threads]);
}

void report_close(void) {
    if (!json)
        return;
    fprintf(json, "\n]}\n");
    fclose(json);
}
