/* tq-check [--bench] [--seed N] [--level NAME] [--kernel TEXT]: those of a level, those with
 * TEXT in their names (--bench: in those of their formats). */
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "check.h"
#include "device/device.h"

enum stage { ENCODE, SCORE, ACCUMULATE };

struct kernel {
    enum stage stage;
    tq_format format;
    const char *level, *name;
};

static const struct kernel kernels[] = {
#define TQI_ENCODE(id, format, level) {ENCODE, id, #level, "encode_" #format "_" #level},
#define TQI_SCORE(id, format, level) {SCORE, id, #level, "score_" #format "_" #level},
#define TQI_ACCUMULATE(id, format, level) \
    {ACCUMULATE, id, #level, "accumulate_" #format "_" #level},
#include "kernel/kernels.def"
};

void judge(struct result *r, bool ok, const char *format, ...) {
    r->passed += ok;
    r->failed += !ok;
    if (ok || r->failed > 10)
        return;
    va_list args;
    va_start(args, format);
    printf("  FAILED ");
    vprintf(format, args);
    printf("\n");
    va_end(args);
}

const struct tqi_level *find_level(const char *name) {
    struct tqi_kernels all;
    tqi_kernels_select(&all, tqi_cpu_features(UINT64_MAX));
    for (uint32_t i = 0; i < all.n_levels; i++)
        if (strcmp(all.level[i]->name, name) == 0)
            return all.level[i];
    return NULL;
}

/* The other side of the pair: the kernel's own format where both sides can have it; polar values
 * for keys with a sketch and polar angles, so that the tolerance is that of floats. */
static tq_format values_for(const struct tqi_level *level, tq_format k) {
    if (level->accumulate[k].run)
        return k;
    return k == TQ_FORMAT_POLAR_QJL ? TQ_FORMAT_POLAR : TQ_FORMAT_LM4;
}

static void check_kernel(struct result *r, const struct kernel *k, const struct tqi_level *level) {
    if (k->stage == ENCODE)
        check_encode(r, level, k->format, 2000);
    else if (k->stage == SCORE)
        check_attend(r, level, k->format, values_for(level, k->format));
    else
        check_attend(r, level, TQ_FORMAT_LM4, k->format);
}

static unsigned check_all(const char *only, const char *text, unsigned *passed) {
    unsigned failed = 0, skipped = 0;
    for (size_t i = 0; i < sizeof kernels / sizeof *kernels; i++) {
        const struct kernel *k = &kernels[i];
        struct result r = {0, 0, 0};
        if (strcmp(k->level, "ref") == 0 || (only && strcmp(only, k->level) != 0) ||
            !strstr(k->name, text))
            continue;
        const struct tqi_level *level = find_level(k->level);
        if (!level) {
            skipped++;
            continue;
        }
        check_kernel(&r, k, level);
        printf("%-28s %6u passed %4u failed", k->name, r.passed, r.failed);
        if (k->stage != ENCODE)
            printf("  worst error %.2f of the tolerance", r.worst);
        printf("\n");
        *passed += r.passed;
        failed += r.failed;
    }
    if (skipped)
        printf("%u kernels skipped: this CPU lacks their instructions\n", skipped);
    return failed;
}

/* What the kernels of a level share. */
static unsigned check_levels(const char *only, const char *text, unsigned *passed) {
    struct tqi_kernels all;
    unsigned failed = 0;
    tqi_kernels_select(&all, tqi_cpu_features(UINT64_MAX));
    for (uint32_t i = 0; i < all.n_levels; i++) {
        const struct tqi_level *level = all.level[i];
        struct result r = {0, 0, 0};
        char name[64];
        (void)snprintf(name, sizeof name, "widen_store_%s", level->name);
        if (strcmp(level->name, "ref") == 0 || (only && strcmp(only, level->name) != 0) ||
            !strstr(name, text))
            continue;
        check_caller_rows(&r, level);
        printf("%-28s %6u passed %4u failed\n", name, r.passed, r.failed);
        *passed += r.passed;
        failed += r.failed;
    }
    return failed;
}

int main(int argc, char **argv) {
    uint64_t seed = 1; /* a run is repeatable; --seed looks further */
    const char *only = NULL, *text = "";
    bool bench = false;
    for (int i = 1; i < argc; i++) {
        if (strcmp(argv[i], "--bench") == 0)
            bench = true;
        else if (strcmp(argv[i], "--seed") == 0 && i + 1 < argc)
            seed = strtoull(argv[++i], NULL, 0);
        else if (strcmp(argv[i], "--level") == 0 && i + 1 < argc)
            only = argv[++i];
        else if (strcmp(argv[i], "--kernel") == 0 && i + 1 < argc)
            text = argv[++i];
    }
    if (bench) {
        bench_kernels(only, text);
        return 0;
    }
    unsigned passed = 0;
    printf("seed %llu\n", (unsigned long long)seed);
    seed_random(seed);
    unsigned failed = check_all(only, text, &passed);
    failed += check_levels(only, text, &passed);
    printf("%u passed, %u failed\n", passed, failed);
    return failed ? 1 : 0;
}
