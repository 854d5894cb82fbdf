/*
 * Oracle: a row through any format: rotate, code, sketch the residual, and back.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#include "oracle.h"

#include <assert.h>

static double element_scale(const orc_format *f) {
    return f->kind == ORC_ROW_E4M3 && f->scale > 0.0 ? f->scale : 1.0;
}

static void elements_encode(const orc_format *f, const double *y, orc_row *row) {
    for (size_t i = 0; i < f->d; i++) {
        double v = y[i] / element_scale(f);
        row->code[i] = f->kind == ORC_ROW_F16    ? orc_f16_bits(v)
                       : f->kind == ORC_ROW_BF16 ? orc_bf16_bits(v)
                                                 : orc_e4m3_bits(v);
    }
}

static void elements_decode(const orc_format *f, const orc_row *row, double *y) {
    for (size_t i = 0; i < f->d; i++) {
        int bits = row->code[i];
        double v = f->kind == ORC_ROW_F16    ? orc_f16_value((uint16_t)bits)
                   : f->kind == ORC_ROW_BF16 ? orc_bf16_value((uint16_t)bits)
                                             : orc_e4m3_value((uint8_t)bits);
        y[i] = v * element_scale(f);
    }
}

static void rotate(const orc_format *f, const double *x, double *y) {
    if (f->rotation != NULL) {
        orc_apply(f->d, f->d, f->rotation, x, y);
        return;
    }
    for (size_t i = 0; i < f->d; i++) {
        y[i] = x[i];
    }
}

/* The row without its sketch. */
static void decode_base(const orc_format *f, const orc_row *row, double *x) {
    double y[ORC_MAX_DIM];
    switch (f->kind) {
    case ORC_ROW_INT8:
        orc_int8_decode(f, row, y);
        break;
    case ORC_ROW_SCALAR:
        orc_scalar_decode(f, row, y);
        break;
    case ORC_ROW_POLAR:
        orc_polar_decode(f, row, y);
        break;
    case ORC_ROW_F16:
    case ORC_ROW_BF16:
    case ORC_ROW_E4M3:
        elements_decode(f, row, y);
        break;
    }
    if (f->rotation != NULL) {
        orc_apply_transposed(f->d, f->d, f->rotation, y, x);
        return;
    }
    for (size_t i = 0; i < f->d; i++) {
        x[i] = y[i];
    }
}

void orc_encode(const orc_format *f, const double *x, orc_row *row) {
    double y[ORC_MAX_DIM];
    assert(f->d >= 1 && f->d <= ORC_MAX_DIM);
    rotate(f, x, y);
    switch (f->kind) {
    case ORC_ROW_INT8:
        orc_int8_encode(f, y, row);
        break;
    case ORC_ROW_SCALAR:
        orc_scalar_encode(f, y, row);
        break;
    case ORC_ROW_POLAR:
        orc_polar_encode(f, y, row);
        break;
    case ORC_ROW_F16:
    case ORC_ROW_BF16:
    case ORC_ROW_E4M3:
        elements_encode(f, y, row);
        break;
    }
    if (f->sketch != ORC_SKETCH_NONE) {
        double residual[ORC_MAX_DIM];
        decode_base(f, row, residual);
        for (size_t i = 0; i < f->d; i++) {
            residual[i] = x[i] - residual[i];
        }
        orc_sketch_encode(f, residual, row);
    }
}

void orc_decode(const orc_format *f, const orc_row *row, double *x) {
    decode_base(f, row, x);
    if (f->sketch != ORC_SKETCH_NONE) {
        orc_sketch_decode(f, row, x);
    }
}

void orc_roundtrip(const orc_format *f, const double *x, double *decoded) {
    orc_row row;
    orc_encode(f, x, &row);
    orc_decode(f, &row, decoded);
}

double orc_score(const orc_format *f, const orc_row *row, const double *q) {
    double x[ORC_MAX_DIM];
    decode_base(f, row, x);
    double score = orc_dot(f->d, q, x);
    return f->sketch != ORC_SKETCH_NONE ? score + orc_sketch_score(f, row, q) : score;
}
