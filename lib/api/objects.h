/* The objects behind the public handles, and the checks that the api files share. */
#ifndef TQI_API_OBJECTS_H
#define TQI_API_OBJECTS_H

#include "base/executor.h"
#include "base/heap.h"
#include "device/device.h"
#include "page/room.h"

struct tq_context {
    struct tqi_heap heap; /* holds the context itself */
    struct tqi_executor executor;
    struct tqi_device device;
    uint64_t cpu_features;
    struct tqi_kernels kernels;
};

/* A layer, with what the drivers do not need to know. */
struct tqi_cache_layer {
    struct tqi_layer layer;
    struct tqi_layer exact; /* of tokens kept in 16 bits, if any are */
    uint32_t appended;      /* since create or reset; loaded and copied tokens count */
    uint32_t typed;         /* a row was appended since then: the type of exact stays */
    float *means[2];        /* K, V: owned, or NULL */
    float *scales[2];       /* K, V: [n_kv_heads] values, then reciprocals; owned */
    float *sinks;           /* [n_q_heads] logits, or NULL: owned */
};

struct tq_cache {
    tq_context *ctx;
    struct tqi_heap heap;   /* everything the cache holds, itself included */
    tq_cache_config config; /* resolved; layer_formats points at formats */
    tq_layer_formats *formats;
    struct tqi_cache_layer *layers;
    uint32_t *flips; /* random signs of all distinct rotations */
    size_t n_flips;
    struct tqi_pool pool;
    struct tqi_pool exact_pool; /* of tokens kept in 16 bits; heap NULL = none are */
    struct tqi_seqs seqs;
    void *state;        /* the device's */
    uint32_t n_planned; /* batches between plan and commit or cancel */
};

/* A batch. Sequences of a step are named by slot, because creating one may move them. */
struct tq_batch {
    tq_cache *cache;
    uint32_t max_seqs, max_tokens;
    uint32_t planned; /* since plan, until commit or cancel */
    void *device;     /* the device's part */
    struct tqi_step step;
    struct tqi_step_seq *seqs;    /* [max_seqs], of the step */
    struct tqi_room *rooms;       /* [max_seqs], of the step */
    struct tqi_exact_view *exact; /* [max_seqs][n_layers], of the step, or NULL */
    uint8_t *layers;              /* [n_layers] enum tqi_layer_flags */
};

/* ---- struct_size (struct_size.c) ---------------------------------------------------- */

enum { TQI_STRUCT_SIZE_LIMIT = 4096 };

/* Copies a caller's struct into one of this library's: a missing tail becomes zero, an
 * unknown tail must be zero. `from` begins with its uint32_t struct_size; `first` is the
 * size of the first published version. */
tq_status tqi_struct_in(const char *name, void *to, size_t size, size_t first, const void *from);
/* Checks an output struct; tqi_struct_out() then copies what fits and zero-fills the
 * rest, leaving struct_size as the caller set it. */
tq_status tqi_struct_check_out(const char *name, size_t first, const void *out);
void tqi_struct_out(void *out, const void *from, size_t size);

/* ---- rows (rows.c) ------------------------------------------------------------------ */

/* Checks rows and resolves their strides for n_heads rows of dim elements. */
tq_status tqi_check_rows_in(const char *name, const tq_rows_in *rows, uint32_t n_heads,
                            uint32_t dim, tq_rows_in *out);
tq_status tqi_check_rows_out(const char *name, const tq_rows_out *rows, uint32_t n_heads,
                             uint32_t dim, tq_rows_out *out);

/* ---- cache (cache_config.c, cache.c) ------------------------------------------------ */

/* Checks a configuration and resolves its defaults; formats (n_layers pairs) may be NULL.
 * Resolved: everything but layer_formats, which becomes NULL. */
tq_status tqi_resolve_config(const tq_context *ctx, const tq_cache_config *from,
                             tq_cache_config *to);
/* Formats of one layer of a checked configuration. */
tq_layer_formats tqi_layer_formats(const tq_cache_config *config, uint32_t layer);

/* Creates a cache from a resolved configuration. */
tq_status tqi_cache_build(tq_context *ctx, const tq_cache_config *resolved, tq_cache **out);

#define TQI_CHECK_CACHE(cache) TQI_REQUIRE((cache) != NULL, "cache: must not be NULL")
#define TQI_CHECK_LAYER(cache, index)                                                       \
    TQI_REQUIRE((index) < (cache)->config.n_layers, "layer: %u, the cache has %u", (index), \
                (cache)->config.n_layers)

/* ---- sequences and parameters (seq.c, run.c) ----------------------------------------- */

/* TQ_ERR_INVALID_STATE when the sequence is part of a planned batch. */
tq_status tqi_check_idle(const struct tqi_seq *seq, tq_seq id);
/* Checks parameters of attention; from may be NULL. */
tq_status tqi_check_params(const tq_attend_params *from, tq_attend_params *to);
/* Fills a call for a layer, from checked parameters and rows that are checked here; its view is
 * without a sequence. */
tq_status tqi_open_call(const tq_cache *cache, uint32_t layer, const tq_attend_params *params,
                        const tq_rows_in *q, const tq_rows_out *out, float *lse,
                        struct tqi_attend_call *call);
/* View of a layer without a sequence, and of a sequence in it. */
struct tqi_page_view tqi_view_of_layer(const tq_cache *cache, uint32_t layer);
struct tqi_page_view tqi_view_of(const tq_cache *cache, const struct tqi_seq *seq, uint32_t layer);

/* ---- tokens kept in 16 bits (exact.c) ------------------------------------------------ */

/* Sets the 16-bit types of a layer whose tokens are kept; from its first append on they stay. */
tq_status tqi_exact_set_types(tq_cache *cache, uint32_t layer, tq_dtype k, tq_dtype v);
/* Whether tokens of some layer are. */
uint32_t tqi_exact_is_wanted(const tq_cache *cache);
/* The pool, after the layers have their first types. */
tq_status tqi_exact_open(tq_cache *cache);
/* Pages that the pool of a cache with max_pages has from the start. */
uint64_t tqi_exact_first_pages(const tq_cache *cache, uint64_t max_pages);
/* Where those pages lie; zeros for a layer without. */
struct tqi_page_view tqi_exact_view_of_layer(const tq_cache *cache, uint32_t layer);

#endif
