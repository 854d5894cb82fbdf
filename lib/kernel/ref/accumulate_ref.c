/* Stage accumulate: probabilities times value codes, in the rotated basis; the output is
 * rotated back once per query row, not once per token. */
#include <math.h>
#include <string.h>

#include "kernel/ref/ref.h"

static void accumulate(const struct tqi_rows *v, const struct tqi_tile *tile,
                       const void *probabilities, uint32_t n_rows, uint32_t score_stride,
                       void *states, size_t state_bytes, void *scratch) {
    uint32_t dim = v->layout.dim;
    double *values = scratch, factor;
    for (uint32_t r = 0; r < n_rows; r++) {
        struct tqk_state_ref *s = (void *)((char *)states + r * state_bytes);
        for (uint32_t i = 0; i < dim; i++)
            s->acc[i] *= s->factor;
    }
    for (uint32_t token = tile->first; token < tile->last; token++) {
        tqk_unpack_ref(v, tile, token, values, &factor);
        for (uint32_t r = 0; r < n_rows; r++) {
            struct tqk_state_ref *s = (void *)((char *)states + r * state_bytes);
            const double *p = (const double *)probabilities + (size_t)r * score_stride;
            double weight = p[token - tile->first] * factor;
            if (weight == 0)
                continue;
            for (uint32_t i = 0; i < dim; i++)
                s->acc[i] += weight * values[i];
        }
    }
}

void tqk_state_finish_ref(const struct tqi_rows *v, const void *state, const float *mean,
                          double *out, double *lse, void *scratch) {
    const struct tqk_state_ref *s = state;
    uint32_t dim = v->layout.dim;
    if (s->max == -INFINITY) {
        memset(out, 0, dim * sizeof *out);
        *lse = -INFINITY;
        return;
    }
    for (uint32_t i = 0; i < dim; i++)
        out[i] = s->acc[i] / s->sum;
    if (tqi_format_rotates(v->format))
        tqk_unrotate_exact_ref(&v->rotation, out, scratch);
    for (uint32_t i = 0; mean && i < dim; i++)
        out[i] += (double)mean[i];
    *lse = s->max + log(s->sum);
}

#define TQI_ENCODE(id, format, level)
#define TQI_SCORE(id, format, level)
#define TQI_ACCUMULATE_ref(format)                                                                 \
    void tqk_accumulate_##format##_ref(                                                            \
        const struct tqi_rows *v, const struct tqi_tile *tile, const void *probabilities,          \
        uint32_t n_rows, uint32_t score_stride, void *states, size_t state_bytes, void *scratch) { \
        accumulate(v, tile, probabilities, n_rows, score_stride, states, state_bytes, scratch);    \
    }
#define TQI_ACCUMULATE_amx(format)
#define TQI_ACCUMULATE_avx512(format)
#define TQI_ACCUMULATE_avxvnni(format)
#define TQI_ACCUMULATE_avx2(format)
#define TQI_ACCUMULATE_i8mm(format)
#define TQI_ACCUMULATE_neon(format)
#define TQI_ACCUMULATE(id, format, level) TQI_ACCUMULATE_##level(format)
#include "kernel/kernels.def"
#undef TQI_ENCODE
#undef TQI_SCORE
#undef TQI_ACCUMULATE
