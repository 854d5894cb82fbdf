/* Code bytes of append: formats, head dims, row types, page sizes, splits of the rows. */
#include <stdio.h>
#include <stdlib.h>

#include "gpu.h"

static const tq_format formats[] = {TQ_FORMAT_BF16,    TQ_FORMAT_F16,    TQ_FORMAT_FP8,
                                    TQ_FORMAT_INT8,    TQ_FORMAT_LM4,    TQ_FORMAT_LM3,
                                    TQ_FORMAT_LM2,     TQ_FORMAT_POLAR,  TQ_FORMAT_POLAR_QJL,
                                    TQ_FORMAT_LM3_QJL, TQ_FORMAT_LM2_QJL};
enum { N_FORMATS = sizeof formats / sizeof *formats };

/* Values beside keys of a format: the same, but for formats whose keys have kernels of their own.
 */
static tq_format value_format(tq_format f) {
    return f >= TQ_FORMAT_POLAR ? TQ_FORMAT_LM4 : f;
}

static void compare_stats(struct pair *p, const char *what) {
    tq_cache_stats a = {.struct_size = sizeof a}, b = {.struct_size = sizeof b};
    GPU_OK(tq_cache_get_stats(p->cpu, &a));
    GPU_OK(tq_cache_get_stats(p->gpu, &b));
    gpu_expect(a.nan_values == b.nan_values && a.inf_values == b.inf_values,
               "%s: %llu NaN and %llu infinite elements counted, the CPU has %llu and %llu", what,
               (unsigned long long)b.nan_values, (unsigned long long)b.inf_values,
               (unsigned long long)a.nan_values, (unsigned long long)a.inf_values);
    gpu_expect(a.tokens == b.tokens && a.pages_used == b.pages_used, "%s: stats differ", what);
}

static void two_formats(tq_format f, tq_format v, uint32_t dim, uint32_t page_tokens,
                        tq_dtype dtype) {
    static const uint32_t pieces[] = {1, 2, 5, 64, 1, 130, 31};
    tq_cache_config config = {.n_kv_heads = 3, .head_dim = dim, .page_tokens = page_tokens};
    struct pair p;
    char what[96];
    snprintf(what, sizeof what, "format %u dim %u page %u type %d", f, dim, page_tokens, dtype);
    if (pair_create(&p, config, f, v)) {
        tq_seq seq = pair_seq(&p);
        for (size_t i = 0; i < sizeof pieces / sizeof *pieces; i++)
            pair_append(&p, seq, pieces[i], dtype, i % 2 == 0);
        pair_check_pages(&p, seq, what);
        pair_check_rows(&p, seq, what);
        compare_stats(&p, what);
    }
    pair_destroy(&p);
}

static void one_shape(tq_format f, uint32_t dim, uint32_t page_tokens, tq_dtype dtype) {
    two_formats(f, value_format(f), dim, page_tokens, dtype);
}

/* Means and scales take part in the codes. */
static void centred(tq_format f) {
    tq_cache_config config = {.n_kv_heads = 2, .head_dim = 128};
    struct pair p;
    float mean[256], scale[2] = {0.25f, 3.0f};
    char what[64];
    snprintf(what, sizeof what, "format %u with means and scales", f);
    for (int i = 0; i < 256; i++)
        mean[i] = gpu_gauss() * 4;
    if (pair_create(&p, config, f, value_format(f))) {
        tq_cache *caches[2] = {p.cpu, p.gpu};
        for (int i = 0; i < 2; i++) {
            GPU_OK(tq_cache_set_means(caches[i], 0, mean, mean));
            if (f == TQ_FORMAT_FP8)
                GPU_OK(tq_cache_set_fp8_scales(caches[i], 0, scale, scale));
        }
        tq_seq seq = pair_seq(&p);
        pair_append(&p, seq, 100, TQ_BF16, 1);
        pair_check_pages(&p, seq, what);
        pair_check_rows(&p, seq, what);
    }
    pair_destroy(&p);
}

static void fitted(void) {
    tq_cache_config config = {.n_kv_heads = 2, .head_dim = 64};
    struct pair p;
    if (pair_create(&p, config, TQ_FORMAT_LM4, TQ_FORMAT_LM4)) {
        void *rows = gpu_rows(TQ_F32, 50 * 2 * 64, 64);
        void *device = gpu_upload(rows, 50 * 2 * 64 * 4);
        tq_rows_in cpu = {.data = rows}, gpu = {.data = device};
        GPU_OK(tq_cache_fit_means(p.cpu, 0, 50, &cpu, &cpu));
        GPU_OK(tq_cache_fit_means(p.gpu, 0, 50, &gpu, &gpu));
        tq_seq seq = pair_seq(&p);
        pair_append(&p, seq, 70, TQ_F32, 0);
        pair_check_pages(&p, seq, "fitted means");
        gpu_release(device);
    }
    pair_destroy(&p);
}

/* Rows with gaps that begin at odd places, so that none can be read 16 bytes at a time: few
 * tokens, then many. */
static void strided(tq_format f, uint32_t dim, tq_dtype type) {
    enum { TOKENS = 70, FEW = 3, HEADS = 2 };
    tq_cache_config config = {.n_kv_heads = HEADS, .head_dim = dim};
    struct pair p;
    char what[64];
    size_t size = gpu_size(type), stride = HEADS * (dim + 1) + 3, n = TOKENS * stride + 1;
    snprintf(what, sizeof what, "format %u dim %u type %d, odd strides", f, dim, type);
    if (pair_create(&p, config, f, value_format(f))) {
        void *rows = gpu_rows(type, n, dim), *device = gpu_upload(rows, n * size);
        tq_seq seq = pair_seq(&p);
        tq_rows_in cpu = {.data = (char *)rows + size,
                          .token_stride = (int64_t)stride,
                          .head_stride = dim + 1,
                          .dtype = type};
        tq_rows_in gpu = cpu;
        gpu.data = (char *)device + size;
        GPU_OK(tq_append(p.cpu, seq, 0, FEW, &cpu, &cpu, NULL));
        GPU_OK(tq_append(p.gpu, seq, 0, FEW, &gpu, &gpu, NULL));
        cpu.data = (const char *)cpu.data + FEW * stride * size;
        gpu.data = (const char *)gpu.data + FEW * stride * size;
        GPU_OK(tq_append(p.cpu, seq, 0, TOKENS - FEW, &cpu, &cpu, NULL));
        GPU_OK(tq_append(p.gpu, seq, 0, TOKENS - FEW, &gpu, &gpu, NULL));
        pair_check_pages(&p, seq, what);
        gpu_release(device);
        free(rows);
    }
    pair_destroy(&p);
}

/* Elements of rows in which sums cancel and zeros have either sign: whether a coordinate is 0 or -0
 * decides a bit of its code. */
static float zeros_element(uint32_t row, uint32_t i, uint32_t dim) {
    const float zero = gpu_gauss() < 0 ? -0.0f : 0.0f, one = gpu_gauss() < 0 ? -1.0f : 1.0f;
    const float some = gpu_gauss() < 0 ? zero : one;
    switch (row / 16 % 9) { /* a kind for rows that a warp takes at once */
    case 0:
        return some; /* small integers */
    case 1:
        return i < row % 40 ? zero : one; /* zeros in front */
    case 2:
        return i < row % 40 ? zero : gpu_gauss(); /* and numbers that cancel seldom */
    case 3:
        return i == row % dim || i == row * 7 % dim; /* two that are not zero */
    case 4:
        return zero;
    case 5:
        return i < dim / 2 ? zero : some; /* half a row */
    case 6:
        return i < 4 || i % 32 < 2 ? zero : 1.0f; /* equal neighbours */
    case 7:
        return i % 32 == 0 ? zero : gpu_gauss(); /* where lanes begin */
    default:
        return i % 8 < 4 ? -0.0f : (float)(i % 3) - 1; /* zeros of one sign */
    }
}

/* Whole token groups and parts of them. */
static void zeros(tq_format f, uint32_t dim, tq_dtype type) {
    enum { TOKENS = 203, HEADS = 2 };
    tq_cache_config config = {.n_kv_heads = HEADS, .head_dim = dim};
    struct pair p;
    char what[64];
    snprintf(what, sizeof what, "format %u dim %u type %d, zeros", f, dim, type);
    if (pair_create(&p, config, f, value_format(f))) {
        const size_t n = (size_t)TOKENS * HEADS * dim;
        void *rows = malloc(n * gpu_size(type));
        for (size_t i = 0; i < n; i++)
            gpu_set(rows, type, i, zeros_element((uint32_t)(i / dim), (uint32_t)(i % dim), dim));
        void *device = gpu_upload(rows, n * gpu_size(type));
        tq_seq seq = pair_seq(&p);
        tq_rows_in cpu = {.data = rows, .dtype = type}, gpu = {.data = device, .dtype = type};
        GPU_OK(tq_append(p.cpu, seq, 0, TOKENS, &cpu, &cpu, NULL));
        GPU_OK(tq_append(p.gpu, seq, 0, TOKENS, &gpu, &gpu, NULL));
        pair_check_pages(&p, seq, what);
        gpu_release(device);
        free(rows);
    }
    pair_destroy(&p);
}

/* A few tokens of what has kernels of its own, for tools that are slow: racecheck takes minutes for
 * a page of 64 tokens of 3 heads. */
void check_bytes_sanitize(void) {
    static const struct {
        tq_format format;
        uint32_t dim, page_tokens;
    } few[] = {{TQ_FORMAT_LM4, 128, 64},
               {TQ_FORMAT_LM3, 128, 64},
               {TQ_FORMAT_FP8, 64, 64},
               {TQ_FORMAT_LM4, 96, 32},
               {TQ_FORMAT_LM2, 80, 16}};
    for (size_t i = 0; i < sizeof few / sizeof *few; i++) {
        tq_cache_config config = {
            .n_kv_heads = 1, .head_dim = few[i].dim, .page_tokens = few[i].page_tokens};
        struct pair p;
        if (pair_create(&p, config, few[i].format, few[i].format)) {
            tq_seq seq = pair_seq(&p);
            pair_append(&p, seq, 2, TQ_BF16, 0);
            pair_append(&p, seq, 33, TQ_F32, 1);
            pair_check_pages(&p, seq, "sanitize");
        }
        pair_destroy(&p);
    }
}

void check_bytes(void) {
    static const uint32_t dims[] = {32,  64,  80,  96,  112, 128, 160,
                                    192, 224, 256, 320, 512, 576, 1024};
    static const uint32_t unrotated[] = {48, 144, 208};
    for (int f = 0; f < N_FORMATS; f++) {
        for (size_t d = 0; d < sizeof dims / sizeof *dims; d++)
            one_shape(formats[f], dims[d], 64, (tq_dtype)(d % 3));
        for (tq_dtype type = 0; type < 3; type++)
            one_shape(formats[f], 128, 64, type);
        for (uint32_t tokens = 16; tokens <= 256; tokens *= 2)
            one_shape(formats[f], 96, tokens, TQ_BF16);
        for (uint32_t tokens = 16; tokens <= 256 && formats[f] >= TQ_FORMAT_POLAR; tokens *= 2)
            one_shape(formats[f], 128, tokens, TQ_BF16);
        centred(formats[f]);
        for (uint32_t dim = 64; dim <= 256; dim += dim < 128 ? 32 : 64)
            strided(formats[f], dim, (tq_dtype)((dim / 32 + (uint32_t)f) % 3));
        for (uint32_t dim = 64; dim <= 256; dim += dim < 128 ? 32 : 64)
            for (tq_dtype type = 0; type < 3; type++)
                zeros(formats[f], dim, type);
    }
    for (int f = 0; f < 3; f++)
        for (int d = 0; d < 3; d++)
            one_shape(formats[f], unrotated[d], 64, TQ_F32);
    two_formats(TQ_FORMAT_POLAR, TQ_FORMAT_POLAR, 96, 16, TQ_BF16);
    two_formats(TQ_FORMAT_LM2_QJL, TQ_FORMAT_LM4, 64, 32, TQ_F16);
    two_formats(TQ_FORMAT_POLAR_QJL, TQ_FORMAT_LM4, 64, 128, TQ_F32);
    two_formats(TQ_FORMAT_LM3_QJL, TQ_FORMAT_LM4, 64, 256, TQ_BF16);
    fitted();
}
