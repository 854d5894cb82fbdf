/* Stage accumulate, float formats. */
#include "kernel/neon/float_neon.h"

/* What all rows of a tile share. */
struct job {
    const struct tqi_layout *l;
    const struct tqi_tile *tile;
    char *states;
    size_t state_bytes;
    const char *left;  /* probabilities by row, tokens as values have them */
    size_t left_bytes; /* of a row */
    float scale;
    uint32_t dim; /* of 16 */
};

/* Token of an octet that stands at a step of its values. */
TQK_INLINE uint32_t token_at(enum tqk_source_neon source, uint32_t step) {
    return source == TQK_E4M3_NEON ? step / 2 + step % 2 * 4 : step;
}

/* Probabilities of a row for whole octets of the page; 0 outside the tile. */
TQK_INLINE void fill_row(const struct tqi_tile *t, enum tqk_source_neon source, const float *p,
                         uint32_t n_tokens, float *to) {
    float all[TQK_PAGE_LIMIT_NEON];
    memset(all, 0, n_tokens * sizeof *all);
    memcpy(all + t->first, p, (t->last - t->first) * sizeof *all);
    for (uint32_t i = t->first & ~7u; i < n_tokens; i += 8) {
        float32x4_t a = vmulq_n_f32(vld1q_f32(all + i), 1 / (float)TQK_VALUE_UNIT);
        float32x4_t b = vmulq_n_f32(vld1q_f32(all + i + 4), 1 / (float)TQK_VALUE_UNIT);
        vst1q_f32(to + i, source == TQK_E4M3_NEON ? vzip1q_f32(a, b) : a);
        vst1q_f32(to + i + 4, source == TQK_E4M3_NEON ? vzip2q_f32(a, b) : b);
    }
}

/* Octets that lie somewhere: those whole in the tile where the page has them, others copied. */
struct stretch {
    const uint8_t *at[4]; /* by columns */
    uint32_t octet, end;  /* of the page */
    uint32_t octets;      /* of a group */
    size_t group, step;   /* bytes from a group to the next, from a slab to the next */
};

/* An octet that is not whole in the tile, other tokens 0: they may hold NaN, which a probability
 * of 0 does not silence. */
static void copy_octet(const struct job *j, enum tqk_source_neon source, struct stretch *s,
                       const struct stretch *page, uint32_t columns, uint8_t *to) {
    uint32_t slabs = 2 * tqk_slabs_neon(source), size = source == TQK_E4M3_NEON ? 1 : 2;
    size_t offset = s->octet / page->octets * page->group + s->octet % page->octets * 16;
    for (uint32_t c = 0; c < columns; c++, to += 64)
        for (uint32_t i = 0; i < slabs * 16; i++) {
            uint32_t step = i / 16 * (4 / size) + i % 4 / size;
            uint32_t token = s->octet * 8 + token_at(source, step);
            bool in = token >= j->tile->first && token < j->tile->last;
            to[i] = in ? page->at[c][offset + i / 16 * page->step + i % 16] : 0;
            s->at[c] = to - (size_t)s->octet * 16;
        }
    s->octets = UINT32_MAX; /* so that octet * 16 leads to the copy */
    s->group = 0;
    s->step = 16;
}

/* The octets of the tile in three stretches, for `columns` times 4 dims from `dim` on. */
TQK_INLINE void cut_tile(const struct job *j, enum tqk_source_neon source, uint32_t dim,
                         uint32_t columns, struct stretch s[3], uint8_t *copies) {
    const struct tqi_layout *l = j->l;
    uint32_t per_lane = l->dim_pad / 32, first = j->tile->first, last = j->tile->last;
    size_t slab = (size_t)tqi_slab_lanes(l) * 4;
    struct stretch page = {.octet = (first + 7) / 8, .end = last / 8, .octets = l->group / 8};
    page.step = per_lane * slab;
    page.group = 2 * tqk_slabs_neon(source) * page.step;
    TQK_UNROLL
    for (uint32_t c = 0; c < columns; c++) {
        uint32_t quad = dim / 4 + c;
        page.at[c] = j->tile->blob + l->codes + (size_t)(quad / per_lane) * l->group * 2 +
                     quad % per_lane * slab;
    }
    s[0] = s[1] = s[2] = page;
    s[0].octet = first / 8;
    s[0].end = page.octet;
    s[2].octet = page.end > page.octet ? page.end : page.octet;
    s[2].end = (last + 7) / 8;
    if (s[0].octet < s[0].end)
        copy_octet(j, source, &s[0], &page, columns, copies);
    if (s[2].octet < s[2].end)
        copy_octet(j, source, &s[2], &page, columns, copies + 256);
}

/* A block of rows and `columns` times 4 dims from `dim` on. */
TQK_INLINE void sum_values(const struct job *j, enum tqk_source_neon source, uint32_t dim,
                           const char *const *left, uint32_t rows, float32x4_t *sum) {
    const uint32_t half = tqk_slabs_neon(source);
    struct stretch stretches[3];
    uint8_t copies[512];
    cut_tile(j, source, dim, tqk_columns_neon(rows), stretches, copies);
    for (const struct stretch *s = stretches; s < stretches + 3; s++) {
        const uint8_t *const at[4] = {s->at[0], s->at[1], s->at[2], s->at[3]};
        size_t step = s->step;
        for (uint32_t octet = s->octet; octet < s->end; octet++) {
            size_t offset = octet / s->octets * s->group + (size_t)(octet % s->octets) * 16;
            size_t p = octet * 8 * sizeof(float);
            tqk_multiply_neon(source, at, offset, step, left, p, rows, sum);
            tqk_multiply_neon(source, at, offset + half * step, step, left, p + 16, rows, sum);
        }
    }
}

TQK_INLINE void sum_block(const struct job *j, enum tqk_source_neon source, uint32_t first_row,
                          uint32_t rows) {
    const uint32_t columns = tqk_columns_neon(rows);
    const char *left[TQK_ROWS_NEON];
    TQK_UNROLL
    for (uint32_t r = 0; r < rows; r++) {
        left[r] = j->left + (first_row + r) * j->left_bytes;
    }
    for (uint32_t dim = j->dim; dim < j->dim + 16; dim += columns * 4) {
        float32x4_t sum[TQK_SUMS_NEON];
        TQK_UNROLL
        for (uint32_t i = 0; i < rows * columns; i++) {
            sum[i] = vdupq_n_f32(0);
        }
        sum_values(j, source, dim, left, rows, sum);
        TQK_UNROLL
        for (uint32_t r = 0; r < rows; r++) {
            struct tqk_state_neon *s = (void *)(j->states + (first_row + r) * j->state_bytes);
            const float factor = s->factor, scale = j->scale;
            float *acc = s->acc + dim;
            TQK_UNROLL
            for (uint32_t c = 0; c < columns; c++) {
                float32x4_t x = vmulq_n_f32(sum[r * columns + c], tqk_missing_neon(source));
                float32x4_t old = vmulq_n_f32(vld1q_f32(acc + c * 4), factor);
                vst1q_f32(acc + c * 4, vfmaq_n_f32(old, x, scale));
            }
        }
    }
}

typedef void rows_fn(const struct job *j, uint32_t n_rows);

TQK_INLINE void accumulate(const struct tqi_rows *v, const struct tqi_tile *tile,
                           enum tqk_source_neon source, const float *probabilities, uint32_t n_rows,
                           uint32_t score_stride, char *states, size_t state_bytes, float *scratch,
                           rows_fn *rows) {
    uint32_t n_tokens = (tile->last + 7) / 8 * 8;
    struct job j = {.l = &v->layout,
                    .tile = tile,
                    .states = states,
                    .state_bytes = state_bytes,
                    .left = (const char *)scratch,
                    .left_bytes = n_tokens * sizeof *scratch,
                    .scale = source == TQK_E4M3_NEON ? tile->scale : 1};
    for (uint32_t r = 0; r < n_rows; r++)
        fill_row(tile, source, probabilities + (size_t)r * score_stride, n_tokens,
                 scratch + (size_t)r * n_tokens);
    for (; j.dim < v->layout.dim_pad; j.dim += 16)
        rows(&j, n_rows);
}

#define ACCUMULATE(format, source)                                                                 \
    TQK_INLINE void block_##format(const struct job *j, uint32_t first_row, uint32_t rows) {       \
        sum_block(j, source, first_row, rows);                                                     \
    }                                                                                              \
    TQK_ROW_BLOCKS_NEON(rows_##format, block_##format, TQK_ROWS_NEON)                              \
    void tqk_accumulate_##format##_neon(                                                           \
        const struct tqi_rows *v, const struct tqi_tile *tile, const void *probabilities,          \
        uint32_t n_rows, uint32_t score_stride, void *states, size_t state_bytes, void *scratch) { \
        accumulate(v, tile, source, probabilities, n_rows, score_stride, states, state_bytes,      \
                   scratch, rows_##format);                                                        \
    }
ACCUMULATE(fp8, TQK_E4M3_NEON)
ACCUMULATE(bf16, TQK_BF16_NEON)
ACCUMULATE(f16, TQK_F16_NEON)
