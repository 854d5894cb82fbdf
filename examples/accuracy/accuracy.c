/*
 * Errors of key formats in attention, on synthetic keys and on captured ones: what coded keys do to
 * scores and weights, with exact values. Prints one line of numbers for each case and format, which
 * tables.py makes into tables and figures.
 *
 *     accuracy CAPTURE.safetensors...
 */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "../common/safetensors.h"
#include "../demo/measure.h"
#include "tq/tq.h"

enum { SYNTHETIC_DIM = 128, SYNTHETIC_QUERIES = 8, VALUE_DIM = 16 };

static const char *const formats[] = {"bf16", "fp8",   "int8",      "lm4",     "lm3",
                                      "lm2",  "polar", "polar_qjl", "lm3_qjl", "lm2_qjl"};
enum { FORMATS = sizeof formats / sizeof *formats };

static void die(const char *what, const char *why) {
    fprintf(stderr, "accuracy: %s: %s\n", what, why);
    exit(1);
}

static void must(tq_status status) {
    if (status != TQ_OK)
        die(tq_status_name(status), tq_last_error());
}

static void *take(size_t n, size_t size) {
    void *p = calloc(n, size);
    if (!p)
        die("memory", "not enough");
    return p;
}

/* ---- one head -------------------------------------------------------------------------- */

/* Keys and values of a head and the queries that ask it; query i sees those before visible[i], or
 * the last `window` of them. */
struct head {
    uint32_t n, n_queries, dim, v_dim, window; /* window: 0 = all */
    float *k, *q;
    double *v;
    uint32_t *visible;
    double scale;
};

/* Sums over heads. Of a query, scores count from their mean, which softmax does not see. */
struct sums {
    double score2, error2, product, divergence, output, count;
    uint32_t queries, same_top, row_bytes;
};

static void free_head(struct head *h) {
    free(h->k);
    free(h->q);
    free(h->v);
    free(h->visible);
}

static void softmax(const double *scores, uint32_t n, double *weights) {
    double top = scores[0], total = 0;
    for (uint32_t t = 1; t < n; t++)
        top = fmax(top, scores[t]);
    for (uint32_t t = 0; t < n; t++)
        total += weights[t] = exp(scores[t] - top);
    for (uint32_t t = 0; t < n; t++)
        weights[t] /= total;
}

static uint32_t first_of(const struct head *h, uint32_t i) {
    return h->window && h->visible[i] > h->window ? h->visible[i] - h->window : 0;
}

/* v: the values of the n keys that p and coded weigh. */
static double output_error(const struct head *h, const double *v, const double *p,
                           const double *coded, uint32_t n) {
    double error = 0, norm = 0;
    for (uint32_t d = 0; d < h->v_dim; d++) {
        double exact = 0, difference = 0;
        for (uint32_t t = 0; t < n; t++) {
            exact += p[t] * v[(size_t)t * h->v_dim + d];
            difference += (coded[t] - p[t]) * v[(size_t)t * h->v_dim + d];
        }
        error += difference * difference;
        norm += exact * exact;
    }
    return norm > 0 ? sqrt(error / norm) : 0;
}

static uint32_t largest(const double *p, uint32_t n) {
    uint32_t best = 0;
    for (uint32_t t = 1; t < n; t++)
        if (p[t] > p[best])
            best = t;
    return best;
}

/* A query: exact scores, those of coded keys, and what the difference does. */
static void add_query(const struct head *h, uint32_t i, const float *dots, double *work,
                      struct sums *s) {
    uint32_t first = first_of(h, i), n = h->visible[i] - first;
    const float *k = h->k + (size_t)first * h->dim;
    double *exact = work, *coded = work + h->n, *p = work + 2 * (size_t)h->n, *q = p + h->n;
    double mean = 0, middle = 0, divergence = 0;
    for (uint32_t t = 0; t < n; t++) {
        double dot = 0;
        for (uint32_t d = 0; d < h->dim; d++)
            dot += (double)h->q[(size_t)i * h->dim + d] * (double)k[(size_t)t * h->dim + d];
        exact[t] = h->scale * dot;
        coded[t] = h->scale * (double)dots[t];
        mean += (coded[t] - exact[t]) / n;
        middle += exact[t] / n;
    }
    for (uint32_t t = 0; t < n; t++) {
        double error = coded[t] - exact[t] - mean, score = exact[t] - middle;
        s->error2 += error * error;
        s->score2 += score * score;
        s->product += score * (score + error);
    }
    softmax(exact, n, p);
    softmax(coded, n, q);
    for (uint32_t t = 0; t < n; t++)
        divergence += p[t] > 0 ? p[t] * log(p[t] / fmax(q[t], 1e-300)) : 0;
    s->count += n;
    s->divergence += divergence;
    s->output += output_error(h, h->v + (size_t)first * h->v_dim, p, q, n);
    s->same_top += largest(p, n) == largest(q, n);
    s->queries++;
}

/* Subtracts the mean key from all keys: scores move by one number per query. */
static void centre(struct head *h) {
    for (uint32_t d = 0; d < h->dim; d++) {
        double mean = 0;
        for (uint32_t t = 0; t < h->n; t++)
            mean += (double)h->k[(size_t)t * h->dim + d] / h->n;
        for (uint32_t t = 0; t < h->n; t++)
            h->k[(size_t)t * h->dim + d] -= (float)mean;
    }
}

static void add_head(tq_context *ctx, const struct head *h, const char *format, struct sums *s) {
    tq_codec_config config = {.struct_size = sizeof config, .dim = h->dim, .seed = 1};
    tq_codec *codec;
    must(tq_format_find(format, &config.format));
    must(tq_codec_create(ctx, &config, &codec));
    s->row_bytes = (uint32_t)tq_codec_row_bytes(codec);
    uint8_t *codes = take(h->n, s->row_bytes);
    float *dots = take(h->n, sizeof *dots);
    double *work = take(4 * (size_t)h->n, sizeof *work);
    tq_rows_in keys = {.data = h->k};
    must(tq_codec_encode(codec, h->n, &keys, codes));
    for (uint32_t i = 0; i < h->n_queries; i++) {
        tq_rows_in query = {.data = h->q + (size_t)i * h->dim};
        uint32_t first = first_of(h, i);
        must(tq_codec_dot(codec, &query, h->visible[i] - first,
                          codes + (size_t)first * s->row_bytes, dots));
        add_query(h, i, dots, work, s);
    }
    tq_codec_destroy(codec);
    free(codes);
    free(dots);
    free(work);
}

static void print_sums(const char *what, uint32_t tokens, const char *format, int centred,
                       uint32_t dim, const struct sums *s) {
    printf("%s\t%u\t%s\t%d\t%.3f\t%.5f\t%.5f\t%.3g\t%.4f\t%.5f\n", what, tokens, format, centred,
           8.0 * s->row_bytes / dim, s->product / s->score2, sqrt(s->error2 / s->count),
           s->divergence / s->queries, (double)s->same_top / s->queries, s->output / s->queries);
    (void)fflush(stdout);
}

/* ---- synthetic ------------------------------------------------------------------------- */

static uint64_t state = 1;

static double uniform(void) {
    state = state * UINT64_C(6364136223846793005) + UINT64_C(1442695040888963407);
    return ((double)(state >> 11) + 0.5) * 0x1p-53;
}

static double gauss(void) {
    return sqrt(-2 * log(uniform())) * cos(2 * acos(-1) * uniform());
}

/* Gaussian keys, and queries that look for one of them: its score is 2 above what the others weigh
 * together, however many they are. The keys have a common part of `mean` times the norm of their
 * own, which no query sees differently from key to key. */
static struct head synthetic(uint32_t n, double mean) {
    struct head h = {.n = n,
                     .n_queries = SYNTHETIC_QUERIES,
                     .dim = SYNTHETIC_DIM,
                     .v_dim = VALUE_DIM,
                     .scale = 1 / sqrt(SYNTHETIC_DIM)};
    h.k = take((size_t)n * h.dim, sizeof *h.k);
    h.q = take((size_t)h.n_queries * h.dim, sizeof *h.q);
    h.v = take((size_t)n * h.v_dim, sizeof *h.v);
    h.visible = take(h.n_queries, sizeof *h.visible);
    for (size_t i = 0; i < (size_t)n * h.dim; i++)
        h.k[i] = (float)gauss();
    for (size_t i = 0; i < (size_t)n * h.v_dim; i++)
        h.v[i] = gauss();
    for (uint32_t i = 0; i < h.n_queries; i++) {
        const float *wanted = h.k + (size_t)(uniform() * n) * h.dim;
        double pull = (log(n) + 0.5 + 2) / sqrt(h.dim);
        h.visible[i] = n;
        for (uint32_t d = 0; d < h.dim; d++)
            h.q[(size_t)i * h.dim + d] = (float)(gauss() + pull * (double)wanted[d]);
    }
    for (uint32_t d = 0; d < h.dim && mean > 0; d++) {
        float common = (float)(mean * gauss());
        for (uint32_t t = 0; t < h.n; t++)
            h.k[(size_t)t * h.dim + d] += common;
    }
    return h;
}

static void run_length(tq_context *ctx, const char *what, uint32_t tokens, double mean) {
    struct head h = synthetic(tokens, mean);
    for (int centred = 0; centred < (mean > 0 ? 2 : 1); centred++) {
        if (centred)
            centre(&h);
        for (int f = 0; f < FORMATS; f++) {
            struct sums s = {0};
            add_head(ctx, &h, formats[f], &s);
            print_sums(what, tokens, formats[f], centred, h.dim, &s);
        }
    }
    free_head(&h);
}

static void run_synthetic(tq_context *ctx) {
    static const uint32_t lengths[] = {1024, 8192, 65536, 262144};
    for (size_t i = 0; i < sizeof lengths / sizeof *lengths; i++) {
        run_length(ctx, "synthetic", lengths[i], 0);
        run_length(ctx, "shifted", lengths[i], 4);
    }
}

/* ---- captured -------------------------------------------------------------------------- */

static double *tensor(const struct st_file *file, long layer, const char *what, int64_t *shape) {
    char name[32];
    int n;
    const char *dtype;
    (void)snprintf(name, sizeof name, "layer%ld.%s", layer, what);
    const void *data = st_tensor(file, name, shape, &n, &dtype);
    if (!data || n != 3 || strcmp(dtype, "F16") != 0)
        die(name, data ? "not three dimensions of f16" : st_error());
    return from_half(data, (size_t)(shape[0] * shape[1] * shape[2]));
}

/* Rows of one head out of [token][head][dim]. */
static float *rows_of(const double *from, const int64_t *shape, int64_t head) {
    float *out = take((size_t)(shape[0] * shape[2]), sizeof *out);
    for (int64_t t = 0; t < shape[0]; t++)
        for (int64_t d = 0; d < shape[2]; d++)
            out[t * shape[2] + d] = (float)from[(t * shape[1] + head) * shape[2] + d];
    return out;
}

/* The kv head that a query head reads, as seen from it. */
static struct head captured(const struct st_file *file, long layer, uint32_t window,
                            int64_t q_head) {
    int64_t ks[ST_MAX_DIMS], vs[ST_MAX_DIMS], qs[ST_MAX_DIMS];
    double *k = tensor(file, layer, "k", ks), *v = tensor(file, layer, "v", vs);
    double *q = tensor(file, layer, "q", qs);
    int64_t kv_head = q_head / (qs[1] / ks[1]);
    struct head h = {.n = (uint32_t)ks[0],
                     .n_queries = (uint32_t)qs[0],
                     .dim = (uint32_t)ks[2],
                     .v_dim = (uint32_t)vs[2],
                     .window = window,
                     .scale = 1 / sqrt((double)ks[2])};
    float *values = rows_of(v, vs, kv_head);
    h.k = rows_of(k, ks, kv_head);
    h.q = rows_of(q, qs, q_head);
    h.v = take((size_t)(vs[0] * vs[2]), sizeof *h.v);
    h.visible = take(h.n_queries, sizeof *h.visible);
    for (int64_t i = 0; i < vs[0] * vs[2]; i++)
        h.v[i] = (double)values[i];
    for (uint32_t i = 0; i < h.n_queries; i++)
        h.visible[i] = h.n - h.n_queries + i + 1;
    free(values);
    free(k);
    free(v);
    free(q);
    return h;
}

static void run_layer(tq_context *ctx, const struct st_file *file, const char *model, long layer,
                      uint32_t window, int64_t n_q_heads) {
    char what[64];
    (void)snprintf(what, sizeof what, "%s layer %ld", model, layer);
    for (int centred = 0; centred < 2; centred++)
        for (int f = 0; f < FORMATS; f++) {
            struct sums s = {0};
            struct head h = {0};
            for (int64_t head = 0; head < n_q_heads; head++) {
                free_head(&h);
                h = captured(file, layer, window, head);
                if (centred)
                    centre(&h);
                add_head(ctx, &h, formats[f], &s);
            }
            print_sums(what, h.n, formats[f], centred, h.dim, &s);
            free_head(&h);
        }
}

static void run_capture(tq_context *ctx, const char *path) {
    struct st_file *file;
    if (st_open(path, &file))
        die(path, st_error());
    const char *model = st_meta(file, "model"), *list = st_meta(file, "layers");
    const char *heads = st_meta(file, "n_q_heads");
    const char *windows = st_meta(file, "window"); /* one for each of the layers */
    if (!model || !list || !heads || !windows)
        die(path, "its metadata lacks model, layers, window or n_q_heads");
    long window = 0;
    while (*list) {
        char *end;
        long layer = strtol(list, &end, 10);
        if (end == list) {
            list++;
            continue;
        }
        list = end;
        if (*windows) { /* one number may stand for all layers */
            window = strtol(windows, &end, 10);
            windows = *end ? end + 1 : end;
        }
        run_layer(ctx, file, model, layer, (uint32_t)window, strtol(heads, NULL, 10));
    }
    st_close(file);
}

int main(int argc, char **argv) {
    tq_context *ctx;
    must(tq_context_create(NULL, &ctx));
    printf("# case\ttokens\tformat\tcentred\tbits\tslope\trms\tkl\ttop1\toutput\n");
    run_synthetic(ctx);
    for (int i = 1; i < argc; i++)
        run_capture(ctx, argv[i]);
    tq_context_destroy(ctx);
    return 0;
}
