/* The formats and variants, one line each in formats.def and variants.def. */
#ifndef TQI_SPEC_FORMATS_H
#define TQI_SPEC_FORMATS_H

#include <stdint.h>

#include "tq/tq.h"

/* How the value of one dim is stored. */
enum tqi_kind {
    TQI_KIND_F16BIT, /* 16-bit float, bf16 or f16 */
    TQI_KIND_FP8,    /* e4m3 with a scale per head */
    TQI_KIND_INT8,   /* rotated, integers, gain */
    TQI_KIND_LM,     /* rotated, Lloyd-Max codes, gain */
    TQI_KIND_POLAR   /* rotated, polar angles, radius per block */
};

struct tqi_format {
    tq_format id;
    const char *name;
    enum tqi_kind kind;
    uint32_t bits;   /* of one code; 4 for polar's first level */
    uint32_t sketch; /* 1: carries the QJL sign sketch of the residual */
    uint32_t roles;
    double mse;       /* at head_dim 128, see docs/FORMAT.md */
    double dot_error; /* at head_dim 128 */
    const char *summary;
};

struct tqi_variant {
    tq_variant id;
    const char *name;
    tq_format k_format, v_format;
    const char *summary;
};

/* Largest format id plus one: the size of tables indexed by format. */
enum { TQI_FORMAT_LIMIT = 16 };

uint32_t tqi_format_total(void);
uint32_t tqi_variant_total(void);
const struct tqi_format *tqi_format_at(uint32_t index);
const struct tqi_variant *tqi_variant_at(uint32_t index);
/* NULL when there is none. */
const struct tqi_format *tqi_format_by_id(tq_format id);
const struct tqi_variant *tqi_variant_by_id(tq_variant id);

static inline int tqi_format_rotates(const struct tqi_format *f) {
    return f->kind == TQI_KIND_INT8 || f->kind == TQI_KIND_LM || f->kind == TQI_KIND_POLAR;
}

#endif
