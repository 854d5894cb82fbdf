/* What the accuracy tests share: rows, and the codec and the cache behind one call each.
 * Rows are floats, because the library gets them as such; the oracle gets the same
 * numbers as doubles. The functions that return memory abort instead of returning NULL. */
#ifndef TEST_ACCURACY_H
#define TEST_ACCURACY_H

#include <math.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "common/check.h"
#include "oracle/oracle.h"

/* ---- rows ---- */

static inline tq_rows_in acc_in(const float *data) {
    return (tq_rows_in){.data = data, .dtype = TQ_F32};
}

static inline tq_rows_out acc_out(float *data) {
    return (tq_rows_out){.data = data, .dtype = TQ_F32};
}

static inline float *acc_floats(size_t n) {
    return orc_alloc(n, sizeof(float));
}

static inline double *acc_doubles(size_t n, const float *from) {
    double *to = orc_alloc(n, sizeof *to);
    for (size_t i = 0; i < n; i++)
        to[i] = (double)from[i];
    return to;
}

/* n rows of N(0, 1). */
static inline float *acc_gaussian(size_t n, size_t d, uint64_t seed) {
    float *rows = acc_floats(n * d);
    for (size_t i = 0; i < n * d; i++)
        rows[i] = (float)orc_gaussian(seed, i);
    return rows;
}

static inline double acc_distance2(size_t d, const double *a, const double *b) {
    double sum = 0;
    for (size_t i = 0; i < d; i++)
        sum += (a[i] - b[i]) * (a[i] - b[i]);
    return sum;
}

/* ||x - y||^2 / ||x||^2 */
static inline double acc_distortion(size_t d, const double *x, const double *y) {
    return acc_distance2(d, x, y) / orc_dot(d, x, x);
}

/* ---- formats ---- */

static inline tq_format_info acc_format_at(uint32_t index) {
    tq_format_info info = {.struct_size = sizeof info};
    OK(tq_format_get(index, &info));
    return info;
}

static inline tq_variant_info acc_variant_at(uint32_t index) {
    tq_variant_info info = {.struct_size = sizeof info};
    OK(tq_variant_get(index, &info));
    return info;
}

static inline const char *acc_format_name(tq_format format) {
    for (uint32_t i = 0; i < tq_format_count(); i++)
        if (acc_format_at(i).id == format)
            return acc_format_at(i).name;
    return "?";
}

/* ---- codec ---- */

/* The CPU context that every test shares: reference kernels, whose codes are everyone's. */
static inline tq_context *acc_context(void) {
    static tq_context *ctx;
    tq_context_config config = {.struct_size = sizeof config, .cpu_features_disabled = UINT64_MAX};
    if (!ctx)
        OK(tq_context_create(&config, &ctx));
    return ctx;
}

static inline tq_codec *acc_codec(tq_format format, size_t d, uint64_t seed) {
    tq_codec_config config = {
        .struct_size = sizeof config, .format = format, .dim = (uint32_t)d, .seed = seed};
    tq_codec *codec = NULL;
    OK(tq_codec_create(acc_context(), &config, &codec));
    return codec;
}

static inline uint8_t *acc_encode(const tq_codec *codec, size_t n, const float *rows) {
    uint8_t *codes = orc_alloc(n, tq_codec_row_bytes(codec));
    tq_rows_in in = acc_in(rows);
    OK(tq_codec_encode(codec, n, &in, codes));
    return codes;
}

/* Rows through the codec of a format. */
static inline float *acc_roundtrip(tq_format format, size_t d, uint64_t seed, size_t n,
                                   const float *rows) {
    tq_codec *codec = acc_codec(format, d, seed);
    uint8_t *codes = acc_encode(codec, n, rows);
    float *decoded = acc_floats(n * d);
    tq_rows_out out = acc_out(decoded);
    OK(tq_codec_decode(codec, n, codes, &out));
    free(codes);
    tq_codec_destroy(codec);
    return decoded;
}

/* ---- cache ---- */

/* A cache of one layer and one sequence. */
struct acc_cache {
    size_t d, kv_heads, q_heads;
    tq_cache *cache;
    tq_seq seq;
};

/* With some of the first and last tokens in 16 bits. */
static inline void acc_cache_protect(struct acc_cache *c, const tq_layer_formats *formats, size_t d,
                                     size_t kv_heads, size_t q_heads, uint64_t seed, uint32_t sinks,
                                     uint32_t recent) {
    tq_cache_config config = {.struct_size = sizeof config,
                              .n_layers = 1,
                              .n_kv_heads = (uint32_t)kv_heads,
                              .n_q_heads = (uint32_t)q_heads,
                              .head_dim = (uint32_t)d,
                              .layer_formats = formats,
                              .seed = seed,
                              .sink_tokens = sinks,
                              .recent_tokens = recent};
    *c = (struct acc_cache){.d = d, .kv_heads = kv_heads, .q_heads = q_heads};
    OK(tq_cache_create(acc_context(), &config, &c->cache));
    OK(tq_seq_create(c->cache, &c->seq));
}

static inline void acc_cache_make(struct acc_cache *c, tq_format k, tq_format v, size_t d,
                                  size_t kv_heads, size_t q_heads, uint64_t seed) {
    acc_cache_protect(c, &(tq_layer_formats){k, v}, d, kv_heads, q_heads, seed, 0, 0);
}

static inline void acc_cache_free(struct acc_cache *c) {
    tq_cache_destroy(c->cache);
}

/* f16 numbers; allocated. */
static inline double *acc_widen(size_t n, const uint16_t *from) {
    double *to = orc_alloc(n, sizeof *to);
    for (size_t i = 0; i < n; i++)
        to[i] = orc_f16_value(from[i]);
    return to;
}

/* Of rows of n weights. */
static inline double acc_mean_divergence(size_t rows, size_t n, const double *want,
                                         const double *got) {
    double sum = 0;
    for (size_t i = 0; i < rows; i++)
        sum += orc_divergence(n, want + i * n, got + i * n);
    return sum / (double)rows;
}

static inline void acc_append(struct acc_cache *c, size_t n, const float *k, const float *v) {
    tq_rows_in k_rows = acc_in(k), v_rows = acc_in(v);
    OK(tq_append(c->cache, c->seq, 0, (uint32_t)n, &k_rows, &v_rows, NULL));
}

/* The first n tokens, [token][kv head][d]. */
static inline void acc_read(const struct acc_cache *c, size_t n, float *k, float *v) {
    tq_rows_out k_rows = acc_out(k), v_rows = acc_out(v);
    OK(tq_read_rows(c->cache, c->seq, 0, 0, (uint32_t)n, k ? &k_rows : NULL, v ? &v_rows : NULL));
}

static inline void acc_attend(const struct acc_cache *c, size_t n_queries, float scale,
                              const float *q, float *out, float *lse) {
    tq_attend_params params = {
        .struct_size = sizeof params, .flags = TQ_ATTEND_CAUSAL, .scale = scale};
    tq_rows_in q_rows = acc_in(q);
    tq_rows_out out_rows = acc_out(out);
    OK(tq_attend(c->cache, c->seq, 0, (uint32_t)n_queries, &params, &q_rows, &out_rows, lse, NULL));
}

#endif
