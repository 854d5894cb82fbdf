/* Stage score: rotated queries times codes. <q, k> = <Rq, Rk>, so the key is never
 * rotated back; with a sketch the residual's share is added (QJL, Definition 3.1). */
#include <string.h>

#include "kernel/ref/ref.h"

/* A query row: the rotated row, then its projection for formats with a sketch. */
size_t tqk_query_bytes_ref(const struct tqi_rows *k) {
    return (size_t)k->layout.dim * (k->format->sketch ? 2 : 1) * sizeof(double);
}

size_t tqk_scratch_bytes_ref(const struct tqi_rows *rows) {
    return ((size_t)rows->layout.dim * 2 + 64) * sizeof(double);
}

void tqk_prepare_ref(const struct tqi_rows *k, const float *row, void *query) {
    uint32_t dim = k->layout.dim;
    double *q = query, line[36];
    for (uint32_t i = 0; i < dim; i++)
        q[i] = (double)row[i];
    if (tqi_format_rotates(k->format))
        tqk_rotate_exact_ref(&k->rotation, q, line);
    if (!k->format->sketch)
        return;
    memcpy(q + dim, q, dim * sizeof *q);
    tqk_rotate_exact_ref(&k->sketch[0], q + dim, line);
    tqk_rotate_exact_ref(&k->sketch[1], q + dim, line);
}

static double dot(const double *a, const double *b, uint32_t n) {
    double sum = 0;
    for (uint32_t i = 0; i < n; i++)
        sum += a[i] * b[i];
    return sum;
}

static void score(const struct tqi_rows *k, const struct tqi_tile *tile, const void *queries,
                  uint32_t n_rows, uint32_t score_stride, void *scores, void *scratch) {
    uint32_t dim = k->layout.dim, sketch = k->format->sketch;
    size_t query_size = tqk_query_bytes_ref(k) / sizeof(double);
    double *values = scratch, *signs = values + dim, factor, sketch_factor = 0;
    for (uint32_t token = tile->first; token < tile->last; token++) {
        tqk_unpack_ref(k, tile, token, values, &factor);
        if (sketch)
            tqk_unpack_sketch_ref(k, tile, token, signs, &sketch_factor);
        for (uint32_t r = 0; r < n_rows; r++) {
            const double *q = (const double *)queries + r * query_size;
            double s = factor * dot(q, values, dim);
            if (sketch)
                s += sketch_factor * dot(q + dim, signs, dim);
            ((double *)scores)[(size_t)r * score_stride + token - tile->first] = s;
        }
    }
}

#define TQI_ENCODE(id, format, level)
#define TQI_ACCUMULATE(id, format, level)
#define TQI_SCORE_ref(format)                                                                  \
    void tqk_score_##format##_ref(const struct tqi_rows *k, const struct tqi_tile *tile,       \
                                  const void *queries, uint32_t n_rows, uint32_t score_stride, \
                                  void *scores, void *scratch) {                               \
        score(k, tile, queries, n_rows, score_stride, scores, scratch);                        \
    }
#define TQI_SCORE_amx(format)
#define TQI_SCORE_avx512(format)
#define TQI_SCORE_avxvnni(format)
#define TQI_SCORE_avx2(format)
#define TQI_SCORE_i8mm(format)
#define TQI_SCORE_neon(format)
#define TQI_SCORE(id, format, level) TQI_SCORE_##level(format)
#include "kernel/kernels.def"
#undef TQI_ENCODE
#undef TQI_ACCUMULATE
#undef TQI_SCORE
