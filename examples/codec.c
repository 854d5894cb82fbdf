/* Rows to codes and back without a cache: what each format costs and how far it is off. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>

#include "tq/tq.h"

enum { DIM = 128, ROWS = 500 };

static void must(tq_status status) {
    if (status != TQ_OK) {
        fprintf(stderr, "%s: %s\n", tq_status_name(status), tq_last_error());
        exit(1);
    }
}

static double error_of(const float *x, const float *y) {
    double error = 0, energy = 0;
    for (int i = 0; i < ROWS * DIM; i++) {
        double d = (double)x[i] - (double)y[i];
        error += d * d;
        energy += (double)x[i] * (double)x[i];
    }
    return error / energy;
}

int main(void) {
    static float x[ROWS * DIM], y[ROWS * DIM];
    tq_context *ctx;
    for (int i = 0; i < ROWS * DIM; i++)
        x[i] = sinf((float)i * 12.9898f) * 0.5f + (i % DIM == 5 ? 3.0f : 0.0f);
    must(tq_context_create(NULL, &ctx));
    for (uint32_t i = 0; i < tq_format_count(); i++) {
        tq_format_info info = {.struct_size = sizeof info};
        tq_codec *codec;
        must(tq_format_get(i, &info));
        tq_codec_config config = {
            .struct_size = sizeof config, .format = info.id, .dim = DIM, .seed = 1};
        must(tq_codec_create(ctx, &config, &codec));
        size_t bytes = tq_codec_row_bytes(codec);
        void *codes = malloc(ROWS * bytes);
        tq_rows_in in = {.data = x};
        tq_rows_out out = {.data = y};
        if (!codes)
            return 1;
        must(tq_codec_encode(codec, ROWS, &in, codes));
        must(tq_codec_decode(codec, ROWS, codes, &out));
        printf("%-10s %4zu bytes a row, %.3f bits a value, squared error %.6f (expected %.6f)\n",
               info.name, bytes, info.millibits / 1000.0, error_of(x, y), info.mse);
        free(codes);
        tq_codec_destroy(codec);
    }
    tq_context_destroy(ctx);
    return 0;
}
