/* Probabilities times polar values, written once for all SIMD levels. A block of 16 dims of all
 * tokens of a tile is decoded once, tokens in lanes, and serves all rows.
 *
 * A file includes this once, last, behind polar.h. */

enum { TOGETHER = LANES == 16 ? 2 : 1 }; /* rows that share loads of a block: registers decide */

struct sum_job {
    const struct tqi_rows *v;
    const struct tqi_tile *tile;
    char *states;
    size_t state_bytes;
    uint32_t from, n_tokens; /* whole registers of tokens that cover the tile */
    float *block;            /* [16][n_tokens] */
    float *weights;          /* [row][n_tokens] */
};

/* Probabilities of a row; 0 outside the tile. */
static void fill_weights(const struct sum_job *j, const float *p, float *to) {
    uint32_t first = j->tile->first - j->from, n = j->tile->last - j->tile->first;
    memset(to, 0, j->n_tokens * sizeof *to);
    for (uint32_t i = 0; i < n; i++)
        to[first + i] = p[i] * (1 / (float)TQK_VALUE_UNIT);
}

/* The radii of tokens outside the tile may be NaN, which a probability of 0 does not silence. */
static vec in_tile(const struct tqi_tile *tile, uint32_t token, vec radius) {
    float x[LANES];
    v_store(x, radius);
    for (uint32_t i = 0; i < LANES; i++)
        x[i] = token + i < tile->first || token + i >= tile->last ? 0 : x[i];
    return v_load(x);
}

/* Numbers of the 16 directions: by the whole code or, in tables of eight, by the quadrant code and
 * the sign that matters. */
struct directions {
    float cosine[TABLE], sine[TABLE];
};

static struct directions directions_of(const struct tqi_polar_book *book) {
    float cosine[16], sine[16];
    struct directions d;
    polar_directions(book, cosine, sine);
    memcpy(d.cosine, cosine, sizeof d.cosine);
    for (uint32_t i = 0; i < TABLE; i++)
        d.sine[i] = sine[TQK_TABLE_BITS == 4 ? i : (i & 3u) | (i & 4u) << 1];
    return d;
}

TQK_INLINE ivec codes_of_sines(ivec words) {
    if (TQK_TABLE_BITS == 4)
        return words;
    return i_or(i_and(words, i_all(0x33333333)), i_and(i_down(words, 1), i_all(0x44444444)));
}

TQK_INLINE void decode_block(const struct sum_job *j, const struct polar_books *books,
                             const struct directions *directions, uint32_t block, uint32_t token) {
    struct polar_quad quad = polar_quad_at(&j->v->layout, j->tile->blob, token, block / 4);
    ivec words = polar_words(&quad, block % 4), sines = codes_of_sines(words);
    vec w[8], radius = polar_radius(&quad, block % 4);
    float *to = j->block + (token - j->from);
    if (token < j->tile->first || token + LANES > j->tile->last)
        radius = in_tile(j->tile, token, radius);
    polar_radii(books, &quad, block % 4, radius, w);
    TQK_UNROLL
    for (uint32_t i = 0; i < 8; i++) {
        vec c = v_of_table(directions->cosine, i_table_index(words, 4 * i));
        vec s = v_of_table(directions->sine, i_table_index(sines, 4 * i));
        v_store(to + (size_t)(2 * i) * j->n_tokens, v_mul(w[i], c));
        v_store(to + (size_t)(2 * i + 1) * j->n_tokens, v_mul(w[i], s));
    }
}

/* Half a block for some rows. */
TQK_INLINE void sum_half(const struct sum_job *j, uint32_t dim, uint32_t half, uint32_t row,
                         uint32_t rows) {
    const float *block = j->block + (size_t)half * 8 * j->n_tokens;
    const float *weights = j->weights + (size_t)row * j->n_tokens;
    vec sum[8 * TOGETHER];
    TQK_UNROLL
    for (uint32_t i = 0; i < 8 * rows; i++) {
        sum[i] = v_all(0);
    }
    for (uint32_t t = 0; t < j->n_tokens; t += LANES) {
        TQK_UNROLL
        for (uint32_t i = 0; i < 8; i++) {
            vec x = v_load(block + (size_t)i * j->n_tokens + t);
            TQK_UNROLL
            for (uint32_t r = 0; r < rows; r++) {
                vec w = v_load(weights + (size_t)r * j->n_tokens + t);
                sum[8 * r + i] = v_fma(w, x, sum[8 * r + i]);
            }
        }
    }
    TQK_UNROLL
    for (uint32_t r = 0; r < rows; r++) {
        state_head *s = (void *)(j->states + (row + r) * j->state_bytes);
        float x[8], *acc = s->acc + dim + 8 * half;
        v_sums_of_eight(sum + 8 * r, x);
        for (uint32_t i = 0; i < 8; i++)
            acc[i] = acc[i] * s->factor + x[i];
    }
}

static void sum_block(const struct sum_job *j, uint32_t dim, uint32_t n_rows) {
    for (uint32_t half = 0; half < 2; half++) {
        uint32_t r = 0;
        for (; r + TOGETHER <= n_rows; r += TOGETHER)
            sum_half(j, dim, half, r, TOGETHER);
        for (; r < n_rows; r++)
            sum_half(j, dim, half, r, 1);
    }
}

void TQK_OF(accumulate_polar)(const struct tqi_rows *v, const struct tqi_tile *tile,
                              const void *probabilities, uint32_t n_rows, uint32_t score_stride,
                              void *states, size_t state_bytes, void *scratch) {
    const struct polar_books books = polar_books_of(v);
    struct sum_job j = {.v = v,
                        .tile = tile,
                        .states = states,
                        .state_bytes = state_bytes,
                        .from = tile->first / LANES * LANES,
                        .block = scratch};
    const struct directions directions = directions_of(&v->polar[0]);
    j.n_tokens = (tile->last - j.from + LANES - 1) / LANES * LANES;
    j.weights = j.block + (size_t)TQI_POLAR_BLOCK * j.n_tokens;
    for (uint32_t r = 0; r < n_rows; r++)
        fill_weights(&j, (const float *)probabilities + (size_t)r * score_stride,
                     j.weights + (size_t)r * j.n_tokens);
    for (uint32_t block = 0; block < v->layout.dim / TQI_POLAR_BLOCK; block++) {
        for (uint32_t t = 0; t < j.n_tokens; t += LANES)
            decode_block(&j, &books, &directions, block, j.from + t);
        sum_block(&j, block * TQI_POLAR_BLOCK, n_rows);
    }
}
