/*
 * Sends the captured keys and values of a real model through every variant: create a
 * cache, append, attend causally with the captured queries, read the rows back, and
 * compare with exact attention over the 16-bit rows.
 *
 *     demo CAPTURE.safetensors
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "../common/safetensors.h"
#include "measure.h"
#include "tq/tq.h"

enum { MAX_LAYERS = 8 };

struct input {
    struct st_file *file;
    uint32_t n_layers;
    char names[MAX_LAYERS][16]; /* "layer0" */
    struct capture layers[MAX_LAYERS];
};

static void die(const char *what, const char *why) {
    fprintf(stderr, "demo: %s: %s\n", what, why);
    exit(1);
}

static void must(tq_status status, const char *what) {
    if (status != TQ_OK) {
        fprintf(stderr, "demo: %s: %s: %s\n", what, tq_status_name(status), tq_last_error());
        exit(1);
    }
}

static void *take(size_t bytes) {
    void *p = malloc(bytes);
    if (!p)
        die("memory", "not enough");
    return p;
}

/* ---- reading the capture --------------------------------------------------------------- */

static const uint16_t *tensor(const struct input *in, const char *layer, const char *what,
                              int64_t shape[3]) {
    char name[32];
    int64_t dims[ST_MAX_DIMS];
    int n;
    const char *dtype;
    snprintf(name, sizeof name, "%s.%s", layer, what);
    const void *data = st_tensor(in->file, name, dims, &n, &dtype);
    if (!data || n != 3 || strcmp(dtype, "F16") != 0)
        die(name, data ? "not three dimensions of f16" : st_error());
    memcpy(shape, dims, 3 * sizeof *shape);
    return data;
}

static void read_layer(struct input *in, const char *layer) {
    struct capture *c = &in->layers[in->n_layers];
    int64_t k[3], v[3], q[3];
    c->k = tensor(in, layer, "k", k);
    c->v = tensor(in, layer, "v", v);
    c->q = tensor(in, layer, "q", q);
    if (memcmp(k, v, sizeof k) != 0 || q[2] != k[2] || q[1] % k[1] != 0 || q[0] > k[0])
        die(layer, "shapes of k, v and q do not fit");
    c->n_tokens = (uint32_t)k[0];
    c->n_queries = (uint32_t)q[0];
    c->n_kv_heads = (uint32_t)k[1];
    c->n_q_heads = (uint32_t)q[1];
    c->head_dim = (uint32_t)k[2];
    c->exact_k = from_half(c->k, (size_t)(k[0] * k[1] * k[2]));
    c->exact_v = from_half(c->v, (size_t)(k[0] * k[1] * k[2]));
    c->exact_q = from_half(c->q, (size_t)(q[0] * q[1] * q[2]));
    snprintf(in->names[in->n_layers], sizeof in->names[0], "%s", layer);
    in->n_layers++;
}

/* Metadata "layers" lists layer numbers, for instance "0,15,29". */
static void read_layers(struct input *in) {
    const char *list = st_meta(in->file, "layers");
    char layer[16];
    if (!list)
        die("capture", "its metadata names no layers");
    while (*list && in->n_layers < MAX_LAYERS) {
        char *end;
        long number = strtol(list, &end, 10);
        if (end == list) { /* brackets, blanks, commas */
            list++;
            continue;
        }
        snprintf(layer, sizeof layer, "layer%ld", number);
        read_layer(in, layer);
        list = end;
    }
    if (in->n_layers == 0)
        die("capture", "its metadata names no layers");
}

/* ---- one layer through one variant ----------------------------------------------------- */

static tq_cache *new_cache(tq_context *ctx, const struct capture *c, tq_variant variant) {
    tq_cache *cache;
    tq_cache_config config = {.struct_size = sizeof config,
                              .n_layers = 1,
                              .n_kv_heads = c->n_kv_heads,
                              .n_q_heads = c->n_q_heads,
                              .head_dim = c->head_dim,
                              .variant = variant,
                              .seed = 1};
    must(tq_cache_create(ctx, &config, &cache), "tq_cache_create");
    return cache;
}

static void run(tq_context *ctx, const struct capture *c, tq_variant variant, int centre,
                struct errors *e) {
    size_t rows = (size_t)c->n_tokens * c->n_kv_heads * c->head_dim;
    size_t q_rows = (size_t)c->n_queries * c->n_q_heads * c->head_dim;
    float *k = take(rows * 4), *v = take(rows * 4), *out = take(q_rows * 4);
    tq_rows_in k_in = {.data = c->k, .dtype = TQ_F16}, v_in = {.data = c->v, .dtype = TQ_F16};
    tq_rows_in q_in = {.data = c->q, .dtype = TQ_F16};
    tq_rows_out k_out = {.data = k}, v_out = {.data = v}, o_out = {.data = out};
    tq_attend_params params = {.struct_size = sizeof params, .flags = TQ_ATTEND_CAUSAL};
    tq_cache *cache = new_cache(ctx, c, variant);
    tq_seq seq;
    if (centre)
        must(tq_cache_fit_means(cache, 0, c->n_tokens, &k_in, NULL), "tq_cache_fit_means");
    must(tq_seq_create(cache, &seq), "tq_seq_create");
    must(tq_append(cache, seq, 0, c->n_tokens, &k_in, &v_in, NULL), "tq_append");
    must(tq_attend(cache, seq, 0, c->n_queries, &params, &q_in, &o_out, NULL, NULL), "tq_attend");
    must(tq_read_rows(cache, seq, 0, 0, c->n_tokens, &k_out, &v_out), "tq_read_rows");
    measure(c, k, v, out, e);
    tq_cache_destroy(cache);
    free(k);
    free(v);
    free(out);
}

/* Means over the layers; the largest logit error over all. */
static struct errors run_all(tq_context *ctx, const struct input *in, tq_variant variant,
                             int centre) {
    struct errors all = {0, 0, 0, 0, 0}, e;
    for (uint32_t l = 0; l < in->n_layers; l++) {
        run(ctx, &in->layers[l], variant, centre, &e);
        all.key += e.key / in->n_layers;
        all.value += e.value / in->n_layers;
        all.output += e.output / in->n_layers;
        all.divergence += e.divergence / in->n_layers;
        all.logit = e.logit > all.logit ? e.logit : all.logit;
    }
    return all;
}

/* ---- the table -------------------------------------------------------------------------- */

static double bytes_per_token(tq_context *ctx, const struct capture *c, tq_variant variant) {
    tq_footprint f = {.struct_size = sizeof f};
    tq_cache_config config = {.struct_size = sizeof config,
                              .n_layers = 1,
                              .n_kv_heads = c->n_kv_heads,
                              .n_q_heads = c->n_q_heads,
                              .head_dim = c->head_dim,
                              .variant = variant};
    must(tq_cache_estimate(ctx, &config, &f), "tq_cache_estimate");
    return (double)f.bytes_per_page / f.page_tokens;
}

static void print_table(tq_context *ctx, const struct input *in, int centre) {
    const struct capture *c = &in->layers[0];
    double base = bytes_per_token(ctx, c, TQ_VARIANT_BF16);
    printf("\n%s\n\n",
           centre ? "Centred: channel means of K subtracted before coding" : "Plain: no options");
    printf("%-10s %11s %8s %9s %9s %9s %9s %9s\n", "variant", "bytes/token", "of bf16", "key err",
           "value err", "out err", "KL", "max logit");
    for (uint32_t i = 0; i < tq_variant_count(); i++) {
        tq_variant_info v = {.struct_size = sizeof v};
        must(tq_variant_get(i, &v), "tq_variant_get");
        struct errors e = run_all(ctx, in, v.id, centre);
        double bytes = bytes_per_token(ctx, c, v.id);
        printf("%-10s %11.1f %7.2fx %9.5f %9.5f %9.5f %9.6f %9.4f\n", v.name, bytes, base / bytes,
               e.key, e.value, e.output, e.divergence, e.logit);
    }
}

static const char *meta(const struct input *in, const char *key) {
    const char *text = st_meta(in->file, key);
    return text ? text : "?";
}

int main(int argc, char **argv) {
    static struct input in;
    tq_threadpool *threads;
    tq_context *ctx;
    if (argc != 2)
        die("usage", "demo CAPTURE.safetensors");
    if (st_open(argv[1], &in.file) != 0)
        die("capture", st_error());
    read_layers(&in);
    const struct capture *c = &in.layers[0];
    printf("libturboquant %s: keys and values of a real model through every variant\n\n",
           tq_version_string());
    printf("model    %s, layers %s\n", meta(&in, "model"), meta(&in, "layers"));
    printf("text     %s\n", meta(&in, "text"));
    printf("shape    %u tokens, %u kv heads of %u dims, %u query heads; the last %u tokens ask\n",
           c->n_tokens, c->n_kv_heads, c->head_dim, c->n_q_heads, c->n_queries);
    printf("errors   relative L2 against exact attention over the f16 rows, mean of the layers;\n"
           "         KL of the attention weights in nats; largest error of a logit\n");
    must(tq_threadpool_create(NULL, &threads), "tq_threadpool_create");
    tq_context_config config = {.struct_size = sizeof config,
                                .executor = tq_threadpool_executor(threads)};
    must(tq_context_create(&config, &ctx), "tq_context_create");
    print_table(ctx, &in, 0);
    print_table(ctx, &in, 1);
    tq_context_destroy(ctx);
    tq_threadpool_destroy(threads);
    for (uint32_t l = 0; l < in.n_layers; l++) {
        free(in.layers[l].exact_k);
        free(in.layers[l].exact_v);
        free(in.layers[l].exact_q);
    }
    st_close(in.file);
    return 0;
}
