#include "encode/codec_study.h"

#include "encode/encode.h"

/* A row in floats, one in doubles, then the study's own. */
struct parts {
    float *x;
    double *row, *rest;
};

static struct parts parts_of(const struct tqi_study *study, void *scratch) {
    uint32_t dim = study->base.layout.dim; /* even */
    struct parts p = {.row = scratch};
    p.x = (float *)(p.row + dim);
    p.rest = p.row + dim + dim / 2;
    return p;
}

size_t tqi_codec_study_scratch(const struct tqi_study *study) {
    return (2 * (size_t)study->base.layout.dim + tqi_study_scratch(study)) * sizeof(double);
}

void tqi_codec_study_encode(const struct tqi_study *study, uint64_t n, const tq_rows_in *rows,
                            uint8_t *codes, void *scratch) {
    struct tqi_nonfinite ignored = {0, 0};
    struct parts p = parts_of(study, scratch);
    for (uint64_t i = 0; i < n; i++) {
        tqi_level_ref()->load(tqi_row_in(rows, i, 0), rows->dtype, study->base.layout.dim, NULL,
                              p.x, &ignored);
        tqi_study_encode(study, p.x, codes + i * study->row_bytes, p.rest);
    }
}

void tqi_codec_study_decode(const struct tqi_study *study, uint64_t n, const uint8_t *codes,
                            const tq_rows_out *rows, void *scratch) {
    struct parts p = parts_of(study, scratch);
    for (uint64_t i = 0; i < n; i++) {
        int64_t at = (int64_t)i * rows->token_stride * (rows->dtype == TQ_F32 ? 4 : 2);
        tqi_study_decode(study, codes + i * study->row_bytes, p.row, p.rest);
        tqi_level_ref()->store(p.row, study->base.layout.dim, rows->dtype, (char *)rows->data + at);
    }
}

void tqi_codec_study_dot(const struct tqi_study *study, const tq_rows_in *query, uint64_t n,
                         const uint8_t *codes, float *dots, void *scratch) {
    struct tqi_nonfinite ignored = {0, 0};
    struct parts p = parts_of(study, scratch);
    uint32_t dim = study->base.layout.dim;
    tqi_level_ref()->load(query->data, query->dtype, dim, NULL, p.x, &ignored);
    for (uint64_t i = 0; i < n; i++) {
        double dot = 0;
        tqi_study_decode(study, codes + i * study->row_bytes, p.row, p.rest);
        for (uint32_t d = 0; d < dim; d++)
            dot += (double)p.x[d] * p.row[d];
        dots[i] = (float)dot;
    }
}
