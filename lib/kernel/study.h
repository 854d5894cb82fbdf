/* Rows of polar angles and sketches with parameters that no format has, in double precision: for
 * the public study of them (tq/study.h). */
#ifndef TQI_KERNEL_STUDY_H
#define TQI_KERNEL_STUDY_H

#include "kernel/kernel.h"

enum {
    TQI_STUDY_LEVELS = 6,
    TQI_STUDY_CODES = 256, /* of an angle at most */
    TQI_STUDY_PARTS = 4    /* projections of dim signs each at most */
};

/* Angles of a polar level: directions, and the boundaries between those above level 1. */
struct tqi_study_book {
    uint32_t codes;
    double bound[TQI_STUDY_CODES], cosine[TQI_STUDY_CODES], sine[TQI_STUDY_CODES];
};

struct tqi_study {
    struct tqi_rows base; /* of the rows without sketch, row form */
    uint32_t levels;      /* polar; 0 = scalar codes of the base format */
    uint32_t bits[TQI_STUDY_LEVELS];
    uint32_t signs; /* of the sketch; 0 = none */
    size_t sketch_at, row_bytes;
    double sketch_unit; /* 1 / (signs E|u1|) */
    struct tqi_rotation sketch[2 * TQI_STUDY_PARTS];
    struct tqi_study_book book[TQI_STUDY_LEVELS];
};

/* levels, bits and signs of `study` are set and have been checked; the rest is filled. flips has
 * room for tqi_study_flips() words and must live as long. */
size_t tqi_study_flips(const struct tqi_study *study, uint32_t dim);
void tqi_study_init(struct tqi_study *study, const struct tqi_format *format, uint32_t dim,
                    uint64_t seed, uint32_t *flips);
/* Books of one level: uniform cells round the circle, and Lloyd-Max on sin(2 psi)^(2^(level-1)-1)
 * in [0, pi/2]. */
void tqi_study_book(struct tqi_study_book *book, uint32_t level, uint32_t bits);

/* Doubles of scratch for the calls below. */
size_t tqi_study_scratch(const struct tqi_study *study);
void tqi_study_encode(const struct tqi_study *study, const float *x, uint8_t *row, double *scratch);
void tqi_study_decode(const struct tqi_study *study, const uint8_t *row, double *out,
                      double *scratch);

#endif
