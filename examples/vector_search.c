/*
 * Vector search on codes: how often the nearest vector is among the k best by coded inner product.
 *
 *     vector_search [VECTORS.f32 DIM [QUERIES]]
 *
 * The file holds rows of DIM floats; the last QUERIES rows (200) ask. Without one, clustered random
 * rows are made. Rows are normalised, and padded with zeros to a length that can be rotated.
 * Formats with a + have gains without bias (TQ_CODEC_UNBIASED). bench/peers_faiss.py asks product
 * quantization the same.
 */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "tq/tq.h"

enum {
    QUERIES = 200,
    MOST_QUERIES = 5000,
    ROWS = 1000,
    DIM = 96,
    CENTRES = 100,
    LIST = 64,
    CUTS = 7
};

struct rows {
    size_t n, queries; /* the last ones */
    uint32_t dim;      /* padded */
    float *x;
};

static const size_t cuts[CUTS] = {1, 2, 4, 8, 16, 32, LIST};

static void die(const char *what, const char *why) {
    fprintf(stderr, "vector_search: %s: %s\n", what, why);
    exit(1);
}

static void must(tq_status status) {
    if (status != TQ_OK)
        die(tq_status_name(status), tq_last_error());
}

static void *take(size_t n, size_t size) {
    void *p = calloc(n ? n : 1, size);
    if (!p)
        die("memory", "not enough");
    return p;
}

/* Of the processor, of one thread. */
static double seconds(void) {
    return (double)clock() / CLOCKS_PER_SEC;
}

/* ---- rows ------------------------------------------------------------------------------ */

static tq_codec *codec_of(tq_context *ctx, tq_format format, uint32_t flags, uint32_t dim) {
    tq_codec_config config = {
        .struct_size = sizeof config, .format = format, .dim = dim, .flags = flags, .seed = 1};
    tq_codec *codec = NULL;
    return tq_codec_create(ctx, &config, &codec) == TQ_OK ? codec : NULL;
}

/* The next length that the formats can rotate. */
static uint32_t padded(tq_context *ctx, uint32_t dim) {
    for (uint32_t d = (dim + 15) / 16 * 16; d <= 4096; d += 16) {
        tq_codec *codec = codec_of(ctx, TQ_FORMAT_LM4, 0, d);
        tq_codec_destroy(codec);
        if (codec)
            return d;
    }
    die("dim", "too long");
    return 0;
}

static void normalise(struct rows *r) {
    for (size_t i = 0; i < r->n; i++) {
        float *x = r->x + i * r->dim;
        double norm = 0;
        for (uint32_t d = 0; d < r->dim; d++)
            norm += (double)x[d] * (double)x[d];
        for (uint32_t d = 0; norm > 0 && d < r->dim; d++)
            x[d] = (float)((double)x[d] / sqrt(norm));
    }
}

static struct rows read_rows(tq_context *ctx, const char *path, uint32_t dim, size_t queries) {
    FILE *file = fopen(path, "rb");
    if (!file || dim == 0 || fseek(file, 0, SEEK_END))
        die(path, "can't be read");
    struct rows r = {.n = (size_t)ftell(file) / (dim * sizeof(float)),
                     .queries = queries,
                     .dim = padded(ctx, dim)};
    if (queries == 0 || queries > MOST_QUERIES || r.n <= 2 * queries || fseek(file, 0, SEEK_SET))
        die(path, "too few rows, or too many queries");
    r.x = take(r.n * r.dim, sizeof *r.x);
    for (size_t i = 0; i < r.n; i++)
        if (fread(r.x + i * r.dim, sizeof(float), dim, file) != dim)
            die(path, "can't be read");
    (void)fclose(file);
    normalise(&r);
    return r;
}

static float random_number(void) {
    static uint64_t state = 1;
    double sum = 0;
    for (int i = 0; i < 6; i++) {
        state = state * UINT64_C(6364136223846793005) + UINT64_C(1442695040888963407);
        sum += (double)(state >> 40) * 0x1p-24 - 0.5;
    }
    return (float)sum;
}

static struct rows make_rows(void) {
    struct rows r = {.n = ROWS + QUERIES, .queries = QUERIES, .dim = DIM};
    float *centres = take((size_t)CENTRES * DIM, sizeof *centres);
    r.x = take(r.n * DIM, sizeof *r.x);
    for (int i = 0; i < CENTRES * DIM; i++)
        centres[i] = random_number();
    for (size_t i = 0; i < r.n * DIM; i++)
        r.x[i] = centres[i / DIM % CENTRES * DIM + i % DIM] + 0.7f * random_number();
    free(centres);
    normalise(&r);
    return r;
}

/* ---- search ---------------------------------------------------------------------------- */

static size_t best_of(const float *scores, size_t n) {
    size_t best = 0;
    for (size_t i = 1; i < n; i++)
        if (scores[i] > scores[best])
            best = i;
    return best;
}

static size_t exact_best(const struct rows *r, size_t n, const float *query) {
    float *scores = take(n, sizeof *scores);
    for (size_t i = 0; i < n; i++)
        for (uint32_t d = 0; d < r->dim; d++)
            scores[i] += query[d] * r->x[i * r->dim + d];
    size_t best = best_of(scores, n);
    free(scores);
    return best;
}

/* Place of a row in the order of its estimates. */
static size_t rank_of(const float *scores, size_t n, size_t row) {
    size_t rank = 0;
    for (size_t i = 0; i < n; i++)
        rank += scores[i] > scores[row] || (scores[i] == scores[row] && i < row);
    return rank;
}

struct result {
    double recall[CUTS], encode_seconds, search_seconds;
    size_t row_bytes;
};

static struct result search(tq_context *ctx, const struct rows *r, tq_format format, uint32_t flags,
                            const size_t *truth) {
    struct result s = {.row_bytes = 0};
    size_t n = r->n - r->queries;
    tq_codec *codec = codec_of(ctx, format, flags, r->dim);
    if (!codec)
        die("format", tq_last_error());
    s.row_bytes = tq_codec_row_bytes(codec);
    void *codes = take(n, s.row_bytes);
    float *scores = take(n, sizeof *scores);
    tq_rows_in rows = {.data = r->x};
    double start = seconds();
    must(tq_codec_encode(codec, n, &rows, codes));
    s.encode_seconds = seconds() - start;
    for (size_t q = 0; q < r->queries; q++) {
        tq_rows_in query = {.data = r->x + (n + q) * r->dim};
        start = seconds();
        must(tq_codec_dot(codec, &query, n, codes, scores));
        s.search_seconds += seconds() - start;
        size_t rank = rank_of(scores, n, truth[q]);
        for (int c = 0; c < CUTS; c++)
            s.recall[c] += rank < cuts[c] ? 1.0 / (double)r->queries : 0;
    }
    tq_codec_destroy(codec);
    free(codes);
    free(scores);
    return s;
}

static void print_header(const struct rows *r) {
    printf("%zu rows of %u dims, %zu queries: how often the nearest is among the first k\n",
           r->n - r->queries, r->dim, r->queries);
    printf("format    bytes  encode us  dot ns");
    for (int c = 0; c < CUTS; c++)
        printf("   k=%-3zu", cuts[c]);
    printf("\n");
}

static void print_result(const struct rows *r, const char *name, const struct result *s) {
    double n = (double)(r->n - r->queries);
    printf("%-9s %5zu %10.2f %7.1f", name, s->row_bytes, s->encode_seconds * 1e6 / n,
           s->search_seconds * 1e9 / n / (double)r->queries);
    for (int c = 0; c < CUTS; c++)
        printf("  %6.3f", s->recall[c]);
    printf("\n");
}

int main(int argc, char **argv) {
    static const char *const names[] = {"int8", "lm4",     "lm4+", "lm3_qjl", "lm3",
                                        "lm3+", "lm2_qjl", "lm2",  "lm2+"};
    static size_t truth[MOST_QUERIES];
    tq_context *ctx;
    double first = 0;
    int wrong = 0;
    must(tq_context_create(NULL, &ctx));
    struct rows r = argc < 3 ? make_rows()
                             : read_rows(ctx, argv[1], (uint32_t)strtoul(argv[2], NULL, 10),
                                         argc > 3 ? strtoul(argv[3], NULL, 10) : QUERIES);
    size_t n = r.n - r.queries;
    for (size_t q = 0; q < r.queries; q++)
        truth[q] = exact_best(&r, n, r.x + (n + q) * r.dim);
    print_header(&r);
    for (size_t f = 0; f < sizeof names / sizeof *names; f++) {
        char name[16] = {0};
        size_t length = strcspn(names[f], "+");
        tq_format format;
        memcpy(name, names[f], length);
        must(tq_format_find(name, &format));
        struct result s = search(ctx, &r, format, names[f][length] ? TQ_CODEC_UNBIASED : 0, truth);
        print_result(&r, names[f], &s);
        first = f == 0 ? s.recall[0] : first; /* int8 is closest */
        wrong += s.recall[CUTS - 1] < 0.9 || s.recall[0] > first;
    }
    free(r.x);
    tq_context_destroy(ctx);
    return argc < 3 ? wrong : 0;
}
