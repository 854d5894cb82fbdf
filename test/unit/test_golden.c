/*
 * Portable codes: hashes of the bytes that every compiler, optimisation level and kernel
 * level must write. Rows are made of integers, so that no libm has a part in them.
 *
 *     test_golden           compares with test/golden/codes.txt, run from the root
 *     test_golden --write   writes that file again: a change of the byte format
 */
#include "unit/unit.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>

#include "base/half.h"
#include "device/device.h"
#include "unit/rows.h"

#define GOLDEN "test/golden/codes.txt"

enum { ROWS = 1000, TOKENS = 64, MAX = 256, SEED = 20261129, BYTES = 1 << 17, LINES = 200 };

static const uint32_t dims[] = {64, 96, 128, 256};

/* ---- rows --------------------------------------------------------------------------------------
 */

/* 2^e as bits, -126 <= e <= 127. */
static float power(int e) {
    return tqi_bits_float((uint32_t)(e + 127) << 23);
}

/* Rows at the edges of what encoders see. */
static void extreme_row(uint32_t n, uint32_t dim, float *x) {
    uint64_t seed = n;
    for (uint32_t i = 0; i < dim; i++) {
        float bell = unit_bell(&seed);
        switch (n % 8) {
        case 0:
            x[i] = i & 1 ? -0.0f : 0.0f;
            break;
        case 1:
            x[i] = bell * power(-126) * power(-12); /* subnormal */
            break;
        case 2:
            x[i] = bell * power(124);
            break;
        case 3:
            x[i] = bell * power(-45); /* squares below the range */
            break;
        case 4:
            x[i] = 1.5f; /* the rotation makes many zeros and ties */
            break;
        case 5:
            x[i] = i == n % dim ? -3.0f : 0.0f;
            break;
        case 6:
            x[i] = (float)((int)(i % 5) - 2);
            break;
        default:
            x[i] = bell * power((int)unit_below(&seed, 200) - 100);
        }
    }
}

static void golden_row(uint32_t n, uint32_t dim, float *x) {
    uint64_t seed = (uint64_t)n * 4096 + dim;
    if (n % 8 == 7) {
        extreme_row(n / 8, dim, x);
        return;
    }
    float scale = power((int)(n % 13) - 6), offset = n % 3 == 2 ? 2.5f : 0;
    for (uint32_t i = 0; i < dim; i++) {
        float tail = n % 8 == 6 ? power((int)unit_below(&seed, 24) - 12) : 1;
        x[i] = (unit_bell(&seed) * tail + offset) * scale;
    }
}

/* ---- hashes ------------------------------------------------------------------------------------
 */

/* FNV-1a, 64 bits. */
static uint64_t fnv(uint64_t hash, const uint8_t *bytes, size_t n) {
    for (size_t i = 0; i < n; i++)
        hash = (hash ^ bytes[i]) * UINT64_C(0x100000001b3);
    return hash;
}

static const uint64_t fnv_start = UINT64_C(0xcbf29ce484222325);
static uint8_t blob[BYTES];

/* A row through the load and encode stages of a level. */
static void encode(const struct tqi_level *level, const struct tqi_rows *rows, uint32_t n,
                   uint32_t token) {
    float row[MAX], scratch[8 * MAX];
    struct tqi_nonfinite count = {0, 0};
    assert_true(level->encode_scratch(rows) <= COUNT(scratch));
    golden_row(n, rows->layout.dim, row);
    level->load(row, TQ_F32, rows->layout.dim, NULL, scratch, &count);
    level->encode[rows->format->id].run(rows, 1, scratch, blob, token);
}

/* Row form, which the reference level alone writes. */
static uint64_t hash_rows(const struct tqi_format *f, uint32_t dim) {
    struct unit_rows u;
    uint64_t hash = fnv_start;
    unit_row_form(&u, f->id, dim, SEED);
    for (uint32_t n = 0; n < ROWS; n++) {
        memset(blob, 0, u.bytes);
        encode(tqi_level_ref(), &u.rows, n, 0);
        hash = fnv(hash, blob, u.bytes);
    }
    return hash;
}

/* The level itself where it has the kernel, else the reference, as a cache would do. */
static const struct tqi_level *encoder(const struct tqi_level *level, tq_format id) {
    return level->encode[id].run ? level : tqi_level_ref();
}

/* A full page. */
static uint64_t hash_page(const struct tqi_level *level, const struct tqi_variant *variant,
                          uint32_t dim) {
    static struct unit_rows k, v;
    unit_page(&k, variant->k_format, &v, variant->v_format, dim, TOKENS, SEED);
    assert_true(k.bytes <= BYTES);
    memset(blob, 0, k.bytes);
    for (uint32_t t = 0; t < TOKENS; t++) {
        encode(encoder(level, variant->k_format), &k.rows, t, t);
        encode(encoder(level, variant->v_format), &v.rows, t + TOKENS, t);
    }
    return fnv(fnv_start, blob, k.bytes);
}

/* ---- the file ----------------------------------------------------------------------------------
 */

struct line {
    char what[40]; /* "row lm4 64", "page 4bit_nc 64" */
    uint64_t hash;
};

static struct line found[LINES];
static size_t n_found;

static void add(const char *kind, const char *name, uint32_t dim, uint64_t hash) {
    assert_true(n_found < LINES);
    (void)snprintf(found[n_found].what, sizeof found->what, "%s %s %u", kind, name, dim);
    found[n_found++].hash = hash;
}

/* All lines, pages by the reference. */
static void compute(void) {
    n_found = 0;
    for (uint32_t i = 0; i < tqi_format_total(); i++)
        for (size_t d = 0; d < COUNT(dims); d++)
            add("row", tqi_format_at(i)->name, dims[d], hash_rows(tqi_format_at(i), dims[d]));
    for (uint32_t i = 0; i < tqi_variant_total(); i++)
        for (size_t d = 0; d < COUNT(dims); d++)
            add("page", tqi_variant_at(i)->name, dims[d],
                hash_page(tqi_level_ref(), tqi_variant_at(i), dims[d]));
}

static int write_file(void) {
    FILE *file = fopen(GOLDEN, "w");
    if (!file) {
        perror(GOLDEN);
        return EXIT_FAILURE;
    }
    compute();
    fputs("# FNV-1a hashes of codes, written by test_golden --write. A change here is a change of "
          "the byte format.\n",
          file);
    for (size_t i = 0; i < n_found; i++)
        fprintf(file, "%s %016" PRIx64 "\n", found[i].what, found[i].hash);
    return fclose(file) == 0 ? EXIT_SUCCESS : EXIT_FAILURE;
}

static struct line stored[LINES];
static size_t n_stored;

static int read_file(void **state) {
    char text[256], kind[8], name[24];
    unsigned dim;
    FILE *file = fopen(GOLDEN, "r");
    (void)state;
    if (!file) {
        print_error("%s: not found; tests run from the root of the tree\n", GOLDEN);
        return -1;
    }
    while (fgets(text, sizeof text, file)) {
        struct line *line = &stored[n_stored];
        if (text[0] == '#')
            continue;
        if (n_stored == LINES ||
            sscanf(text, "%7s %23s %u %" SCNx64, kind, name, &dim, &line->hash) != 4) {
            print_error("%s: cannot read: %s", GOLDEN, text);
            return -1;
        }
        (void)snprintf(line->what, sizeof line->what, "%s %s %u", kind, name, dim);
        n_stored++;
    }
    return fclose(file);
}

static const struct line *stored_line(const char *what) {
    for (size_t i = 0; i < n_stored; i++)
        if (strcmp(stored[i].what, what) == 0)
            return &stored[i];
    return NULL;
}

/* ---- tests -------------------------------------------------------------------------------------
 */

/* Every line of the file, no line missing, none too many. */
static void test_codes(void **state) {
    size_t wrong = 0;
    (void)state;
    compute();
    for (size_t i = 0; i < n_found; i++) {
        const struct line *line = stored_line(found[i].what);
        if (line && line->hash == found[i].hash)
            continue;
        print_error("%s: %016" PRIx64 ", not %016" PRIx64 "\n", found[i].what, found[i].hash,
                    line ? line->hash : 0);
        wrong++;
    }
    assert_int_equal(wrong, 0);
    assert_int_equal(n_stored, n_found);
}

/* Every level that this machine can run writes the pages of the reference. */
static void test_levels(void **state) {
    struct tqi_kernels kernels;
    char what[40];
    (void)state;
    tqi_kernels_select(&kernels, tqi_cpu_features(UINT64_MAX));
    for (uint32_t l = 0; l < kernels.n_levels; l++)
        for (uint32_t i = 0; i < tqi_variant_total(); i++)
            for (size_t d = 0; d < COUNT(dims); d++) {
                const struct tqi_variant *variant = tqi_variant_at(i);
                uint64_t hash = hash_page(kernels.level[l], variant, dims[d]);
                (void)snprintf(what, sizeof what, "page %s %u", variant->name, dims[d]);
                CHECK(stored_line(what) && hash == stored_line(what)->hash, "level %s, %s",
                      kernels.level[l]->name, what);
            }
    assert_ptr_equal(kernels.level[kernels.n_levels - 1], tqi_level_ref());
}

/* The hash is the published one. */
static void test_hash(void **state) {
    (void)state;
    assert_true(fnv(fnv_start, (const uint8_t *)"", 0) == UINT64_C(0xcbf29ce484222325));
    assert_true(fnv(fnv_start, (const uint8_t *)"a", 1) == UINT64_C(0xaf63dc4c8601ec8c));
    assert_true(fnv(fnv_start, (const uint8_t *)"foobar", 6) == UINT64_C(0x85944171f73967e8));
}

int main(int argc, char **argv) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_hash),
        cmocka_unit_test(test_codes),
        cmocka_unit_test(test_levels),
    };
    if (argc == 2 && strcmp(argv[1], "--write") == 0)
        return write_file();
    return cmocka_run_group_tests(tests, read_file, NULL);
}
