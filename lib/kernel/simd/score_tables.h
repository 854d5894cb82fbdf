/* Scores of polar keys and of sketches by the tables of query_tables.h, written once for all SIMD
 * levels. Tokens stand in lanes, so that no sum steps across.
 *
 * A file includes this once, last, behind query_tables.h and polar.h. Sums have a fixed order:
 * the bits of a row do not depend on the rows beside it. */

/* Rows that are taken together: they share the radii of a block, and registers end somewhere. */
enum { ROWS_MOST = 8 };

/* ---- sums --------------------------------------------------------------------------------- */

/* Query rows `stride` floats apart. */
struct tables {
    const float *at;
    size_t stride;
};

TQK_INLINE void sum_polar(const struct tqi_rows *k, const struct polar_books *books,
                          const uint8_t *blob, uint32_t token, struct tables q, uint32_t rows,
                          vec *sum) {
    const struct tqi_layout *l = &k->layout;
    const uint32_t quads = (l->dim / TQI_POLAR_BLOCK + 3) / 4;
    for (uint32_t i = 0; i < quads; i++) {
        struct polar_quad quad = polar_quad_at(l, blob, token, i);
        for (uint32_t b = 0; b < quad.blocks; b++, q.at += 8 * TABLE) {
            vec w[8];
            struct table_codes codes = codes_of_directions(polar_words(&quad, b));
            polar_radii(books, &quad, b, polar_radius(&quad, b), w);
            TQK_UNROLL
            for (uint32_t j = 0; j < 8; j++) {
                ivec index = i_table_index(codes.index, 4 * j);
                w[j] = v_signed(w[j], &codes, 4 * j);
                TQK_UNROLL
                for (uint32_t r = 0; r < rows; r++) {
                    const float *table = q.at + r * q.stride + j * TABLE;
                    sum[r] = v_fma(w[j], v_of_table(table, index), sum[r]);
                }
            }
        }
    }
}

/* The signs of 8 dims, from bit `at` of every lane on. */
TQK_INLINE void sum_signs(const struct table_codes *codes, uint32_t at, struct tables q,
                          uint32_t rows, vec *sum) {
    TQK_UNROLL
    for (uint32_t half = 0; half < 2; half++) {
        ivec index = i_table_index(codes->index, at + 4 * half);
        vec one = v_signed(v_all(1), codes, at + 4 * half);
        TQK_UNROLL
        for (uint32_t r = 0; r < rows; r++) {
            vec x = v_of_table(q.at + r * q.stride + half * TABLE, index);
            sum[r] = TQK_TABLE_BITS == 4 ? v_add(sum[r], x) : v_fma(one, x, sum[r]);
        }
    }
}

/* Bytes of LANES tokens of a slab of bytes, which lie by fours 16 apart. */
static ivec spread_bytes(const uint8_t *at) {
    uint8_t bytes[LANES];
    for (uint32_t i = 0; i < LANES; i += 4)
        memcpy(bytes + i, at + i * 4, 4);
    return i_bytes(bytes);
}

/* Words of the sketch lie in fours, byte by byte in a word of a slab, those left over in slabs of
 * bytes (spec/layout.h). */
TQK_INLINE void sum_sketch(const struct tqi_layout *l, const uint8_t *blob, uint32_t token,
                           struct tables q, uint32_t rows, vec *sum) {
    uint32_t columns = l->dim_pad / 32, first = token / l->group * columns,
             slab = tqi_slab_lanes(l);
    size_t in_slab = (size_t)(token % l->group) * 4;
    const uint8_t *at = blob + l->sketch;
    for (uint32_t t = 0; t < 4; t++) {
        for (uint32_t word = first; word < first + columns;) {
            uint32_t quad = word / 4, member = word % 4;
            size_t lane = in_slab + (size_t)t * 4;
            if (quad == l->words / 4) {
                struct table_codes codes =
                    codes_of_signs(spread_bytes(at + (size_t)word * slab + lane));
                sum_signs(&codes, 0, q, rows, sum);
                q.at += 2 * TABLE;
                word++;
                continue;
            }
            struct table_codes codes =
                codes_of_signs(i_pieces16(at + ((size_t)quad * slab + lane) * 4, 64));
            if (member == 0 && word + 4 <= first + columns) {
                TQK_UNROLL
                for (uint32_t i = 0; i < 4; i++, q.at += 2 * TABLE) {
                    sum_signs(&codes, 8 * i, q, rows, sum);
                }
                word += 4;
                continue;
            }
            for (; word < first + columns && word / 4 == quad; word++, q.at += 2 * TABLE) {
                struct table_codes here = {i_down(codes.index, 8 * (word % 4)),
                                           i_down(codes.minus, 8 * (word % 4))};
                sum_signs(&here, 0, q, rows, sum);
            }
        }
    }
}

/* ---- scores ------------------------------------------------------------------------------- */

/* One row of a tile: what it is given and what there was, if `add`. What leaves binary32
 * saturates, so that finite rows stay finite; NaN stays. */
TQK_INLINE void put_row(const struct tqi_tile *tile, float *to, uint32_t token, bool add, vec s) {
    float x[LANES];
    bool whole = token >= tile->first && token + LANES <= tile->last;
    float *first = to + ((int64_t)token - tile->first);
    if (whole) {
        s = add ? v_add(s, v_load(first)) : s;
        v_store(first, v_max(v_all(-FLT_MAX), v_min(v_all(FLT_MAX), s)));
        return;
    }
    v_store(x, s);
    for (uint32_t i = 0; i < LANES; i++) {
        if (token + i < tile->first || token + i >= tile->last)
            continue;
        float y = add ? x[i] + to[token + i - tile->first] : x[i];
        to[token + i - tile->first] = y > FLT_MAX ? FLT_MAX : y < -FLT_MAX ? -FLT_MAX : y;
    }
}

struct score_job {
    const struct tqi_rows *k;
    const struct tqi_tile *tile;
    const char *queries;
    size_t query_bytes;
    size_t sketch_at; /* of the tables of a sketch in a query */
    float *scores;
    uint32_t stride;
    struct polar_books books;
};

TQK_INLINE void score_rows(const struct score_job *j, bool polar, bool sketch, uint32_t token,
                           uint32_t first, uint32_t rows) {
    const struct tqi_layout *l = &j->k->layout;
    const uint8_t *blob = j->tile->blob;
    const char *query = j->queries + first * j->query_bytes;
    const float *data = (const float *)(const void *)(query + offsetof(query_head, data));
    struct tables q = {data, j->query_bytes / sizeof(float)};
    vec sum[ROWS_MOST], signs[ROWS_MOST], gain = v_all(0);
    TQK_UNROLL
    for (uint32_t r = 0; r < rows; r++) {
        sum[r] = signs[r] = v_all(0);
    }
    if (polar)
        sum_polar(j->k, &j->books, blob, token, q, rows, sum);
    if (sketch) {
        q.at = data + j->sketch_at / sizeof(float);
        sum_sketch(l, blob, token, q, rows, signs);
        gain = v_ieee_halves(blob + l->sketch_gains + (size_t)token * 2);
    }
    TQK_UNROLL
    for (uint32_t r = 0; r < rows; r++) {
        const query_head *head = (const void *)(query + r * j->query_bytes);
        vec s = v_mul(sum[r], v_all(polar ? head->scale : 0));
        if (sketch)
            s = v_fma(v_mul(signs[r], v_all(head->sketch_scale)), gain, s);
        put_row(j->tile, j->scores + (size_t)(first + r) * j->stride, token, !polar, s);
    }
}

TQK_INLINE void score_tokens(const struct score_job *j, bool polar, bool sketch, uint32_t n_rows) {
    for (uint32_t token = j->tile->first / LANES * LANES; token < j->tile->last; token += LANES) {
        uint32_t r = 0;
        for (; polar && r + ROWS_MOST <= n_rows; r += ROWS_MOST)
            score_rows(j, polar, sketch, token, r, ROWS_MOST);
        for (; r + 4 <= n_rows; r += 4)
            score_rows(j, polar, sketch, token, r, 4);
        if (n_rows - r == 3)
            score_rows(j, polar, sketch, token, r, 3);
        else if (n_rows - r == 2)
            score_rows(j, polar, sketch, token, r, 2);
        else if (n_rows - r == 1)
            score_rows(j, polar, sketch, token, r, 1);
    }
}

static struct score_job job_of(const struct tqi_rows *k, const struct tqi_tile *tile,
                               const void *queries, uint32_t score_stride, void *scores,
                               size_t sketch_at) {
    struct score_job j = {.k = k,
                          .tile = tile,
                          .queries = queries,
                          .query_bytes = TQK_OF(query_bytes)(k),
                          .sketch_at = sketch_at,
                          .scores = scores,
                          .stride = score_stride};
    return j;
}

/* Adds the share of the sketch to the scores of the codes. */
void TQK_OF(add_sketch)(const struct tqi_rows *k, const struct tqi_tile *tile, const void *queries,
                        uint32_t n_rows, uint32_t score_stride, void *scores, size_t sketch_at) {
    struct score_job j = job_of(k, tile, queries, score_stride, scores, sketch_at);
    score_tokens(&j, false, true, n_rows);
}

#define SCORE(format, sketch)                                                                      \
    void TQK_OF(score_##format)(const struct tqi_rows *k, const struct tqi_tile *tile,             \
                                const void *queries, uint32_t n_rows, uint32_t score_stride,       \
                                void *scores, void *scratch) {                                     \
        struct score_job j = job_of(k, tile, queries, score_stride, scores, polar_table_bytes(k)); \
        (void)scratch;                                                                             \
        j.books = polar_books_of(k);                                                               \
        score_tokens(&j, true, sketch, n_rows);                                                    \
    }
SCORE(polar, false)
SCORE(polar_qjl, true)
#undef SCORE
