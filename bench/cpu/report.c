#include <stdio.h>
#include <stdlib.h>

#include "bench.h"

static FILE *json;
static int count;

void report_open(const char *path) {
    if (path && !(json = fopen(path, "w"))) {
        perror(path);
        exit(2);
    }
    if (json)
        fprintf(json, "[\n");
    printf("%-8s %-7s %-10s %5s %7s %10s %8s %7s\n", "what", "level", "variant", "group", "threads",
           "ms", "GB/s", "% read");
}

void report(const char *what, const char *level, const char *variant, uint32_t group,
            uint32_t threads, double ms, double gbs, double percent) {
    printf("%-8s %-7s %-10s %5u %7u %10.4f %8.2f %7.1f\n", what, level, variant, group, threads, ms,
           gbs, percent);
    fflush(stdout);
    if (json)
        fprintf(json,
                "%s{\"what\": \"%s\", \"level\": \"%s\", \"variant\": \"%s\", \"group\": %u, "
                "\"threads\": %u, \"ms\": %.5f, \"gb_per_s\": %.3f, \"percent_of_read\": %.2f}",
                count++ ? ",\n" : "", what, level, variant, group, threads, ms, gbs, percent);
}

void report_close(void) {
    if (!json)
        return;
    fprintf(json, "\n]\n");
    fclose(json);
}
