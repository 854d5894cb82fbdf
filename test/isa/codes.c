/* Prints a hash of the codes of every format at several dims, made by the best kernels of this
 * machine and by the reference: the same text on every machine. */
#include <math.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>

#include "tq/tq.h"

enum { ROWS = 200, LONGEST = 256 };

static const uint32_t dims[] = {32, 64, 80, 96, 112, 128, 160, 192, 256};

static void must(tq_status status) {
    if (status == TQ_OK)
        return;
    fprintf(stderr, "%s\n", tq_last_error());
    exit(1);
}

/* Sums of a simple generator's numbers, some rows huge, tiny or 0. */
static void make_rows(float *x, uint32_t dim) {
    uint32_t s = dim;
    for (uint32_t r = 0; r < ROWS; r++)
        for (uint32_t i = 0; i < dim; i++) {
            float sum = -2;
            for (int k = 0; k < 4; k++) {
                s = s * 1664525u + 1013904223u;
                sum += (float)(s >> 8) * 0x1p-24f;
            }
            x[r * dim + i] = r == 7 ? 0 : ldexpf(sum, r % 10 == 3 ? 90 : r % 10 == 4 ? -90 : 0);
        }
}

static uint64_t hash(const unsigned char *bytes, size_t n) {
    uint64_t h = UINT64_C(14695981039346656037);
    for (size_t i = 0; i < n; i++)
        h = (h ^ bytes[i]) * UINT64_C(1099511628211);
    return h;
}

/* 0 where the format cannot rotate that dim. */
static uint64_t hash_codes(tq_context *ctx, tq_format format, uint32_t dim, const float *x) {
    tq_codec_config config = {
        .struct_size = sizeof config, .format = format, .dim = dim, .seed = 3};
    tq_codec *codec;
    tq_rows_in rows = {.data = x};
    if (tq_codec_create(ctx, &config, &codec) != TQ_OK)
        return 0;
    size_t bytes = tq_codec_row_bytes(codec) * ROWS;
    unsigned char *codes = malloc(bytes);
    must(tq_codec_encode(codec, ROWS, &rows, codes));
    uint64_t h = hash(codes, bytes);
    free(codes);
    tq_codec_destroy(codec);
    return h;
}

int main(void) {
    static float x[ROWS * LONGEST];
    tq_context_config plain = {.struct_size = sizeof plain, .cpu_features_disabled = UINT64_MAX};
    tq_context *best, *ref;
    must(tq_context_create(NULL, &best));
    must(tq_context_create(&plain, &ref));
    for (uint32_t i = 0; i < tq_format_count(); i++) {
        tq_format_info f = {.struct_size = sizeof f};
        must(tq_format_get(i, &f));
        for (size_t d = 0; d < sizeof dims / sizeof *dims; d++) {
            make_rows(x, dims[d]);
            printf("%s %u %016llx %016llx\n", f.name, dims[d],
                   (unsigned long long)hash_codes(best, f.id, dims[d], x),
                   (unsigned long long)hash_codes(ref, f.id, dims[d], x));
        }
    }
    tq_context_destroy(best);
    tq_context_destroy(ref);
    return 0;
}
