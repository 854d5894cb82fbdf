/* Query rows of polar keys and of sketches, written once for all SIMD levels.
 *
 * Four bits of a code stand for one of 16 numbers that depend on the query alone, and these, or the
 * first half of them (polar.h), are prepared once per row: for each pair of dims of a polar block
 *
 *     q[2j] * (+-cos) + q[2j+1] * (+-sin)    by the level-1 code, two bits of angle, two of sign,
 *
 * and for each four dims of a sketch
 *
 *     +-s[4j] +-s[4j+1] +-s[4j+2] +-s[4j+3]  by the signs.
 *
 * So no key is ever decoded to coordinates, and one look-up takes in 2 or 4 dims of a token.
 *
 * A file includes this once, behind polar.h. */
#include "kernel/simd/range.h"

static void put_polar_tables(const struct tqi_rows *k, const float *x, float *to) {
    float cosine[16], sine[16];
    polar_directions(&k->polar[0], cosine, sine);
    for (uint32_t i = 0; i < k->layout.dim; i += 2)
        for (uint32_t c = 0; c < TABLE; c += LANES, to += LANES) {
            vec first = v_mul(v_all(x[i]), v_load(cosine + c));
            v_store(to, v_fma(v_all(x[i + 1]), v_load(sine + c), first));
        }
}

static void put_sketch_tables(const float *x, uint32_t dim_pad, float *to) {
    float sign[4][TABLE];
    for (uint32_t i = 0; i < 4; i++)
        for (uint32_t c = 0; c < TABLE; c++)
            sign[i][c] = c >> i & 1u ? -1.0f : 1.0f;
    for (uint32_t d = 0; d < dim_pad; d += 4)
        for (uint32_t c = 0; c < TABLE; c += LANES, to += LANES) {
            vec sum = v_mul(v_all(x[d]), v_load(sign[0] + c));
            for (uint32_t i = 1; i < 4; i++)
                sum = v_fma(v_all(x[d + i]), v_load(sign[i] + c), sum);
            v_store(to, sum);
        }
}

/* Tables of the projection of a rotated row, which is destroyed; 2^e times the row is meant. */
void TQK_OF(prepare_sketch)(const struct tqi_rows *k, float *x, int e, void *query, uint8_t *to) {
    query_head *q = query;
    double dim = k->layout.dim;
    TQK_OF(rotate)(&k->sketch[0], x);
    TQK_OF(rotate)(&k->sketch[1], x);
    put_sketch_tables(x, k->layout.dim_pad, (float *)(void *)to);
    q->sketch_scale = (float)(ldexp(k->sketch_unit, e) / (dim * sqrt(dim)) / TQK_SCORE_UNIT);
}

static size_t polar_table_bytes(const struct tqi_rows *k) {
    return (size_t)k->layout.dim_pad / 2 * TABLE * sizeof(float);
}

size_t TQK_OF(table_bytes)(const struct tqi_rows *k) {
    size_t sketch = k->format->sketch ? (size_t)k->layout.dim_pad / 4 * TABLE * sizeof(float) : 0;
    return sketch + (k->format->kind == TQI_KIND_POLAR ? polar_table_bytes(k) : 0);
}

void TQK_OF(prepare_polar)(const struct tqi_rows *k, const float *row, void *query) {
    const struct tqi_layout *l = &k->layout;
    query_head *q = query;
    float x[4096];
    memset(x + l->dim, 0, (l->dim_pad - l->dim) * sizeof *x);
    memcpy(x, row, l->dim * sizeof *x);
    int e = to_range(x, l->dim);
    if (e == INT_MIN) {
        memset(q->data, 0, TQK_OF(table_bytes)(k));
        q->sketch_scale = 0;
        q->scale = NAN; /* the whole row of the output must show it */
        return;
    }
    TQK_OF(rotate)(&k->rotation, x);
    put_polar_tables(k, x, (float *)(void *)q->data);
    q->scale = (float)(ldexp(1 / sqrt((double)l->dim), e) / TQK_SCORE_UNIT);
    if (k->format->sketch)
        TQK_OF(prepare_sketch)(k, x, e, query, (uint8_t *)q->data + polar_table_bytes(k));
}
