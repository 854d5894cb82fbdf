/* What codes mean: geometry, formats, means and scales, of a cache or of a snapshot; equal ones
 * may exchange pages. */
#ifndef TQI_API_SNAPSHOT_H
#define TQI_API_SNAPSHOT_H

#include "api/objects.h"
#include "snapshot/container.h"

/* Means and fp8 scales of a layer, K and V: floats at any address, NULL = none. */
struct tqi_constants {
    const uint8_t *mean[2], *scale[2];
};
struct tqi_constants tqi_constants_of(const tq_cache *cache, uint32_t layer);

/* The constants section of a cache. */
size_t tqi_constants_bytes(const tq_cache *cache);
void tqi_constants_write(const tq_cache *cache, uint8_t *section);

/* Walks over the sections of a snapshot, layer by layer. */
struct tqi_layer_reader {
    const struct tqi_container *snapshot;
    uint32_t layer;
    size_t at; /* in the constants */
};
/* Formats and constants of the next layer; TQ_ERR_CORRUPT when the sections are too short. */
tq_status tqi_next_layer(struct tqi_layer_reader *r, tq_layer_formats *pair,
                         struct tqi_constants *out);
/* After the last layer: TQ_ERR_CORRUPT when the sections go on. */
tq_status tqi_end_of_layers(const struct tqi_layer_reader *r);

/* Header of a snapshot of n_tokens tokens from first_token on. */
struct tqi_snapshot_header tqi_header_of(const tq_cache *cache, uint64_t first_token,
                                         uint64_t n_tokens);
/* TQ_ERR_MISMATCH with the field in which `what` differs from the cache. */
tq_status tqi_match_geometry(const tq_cache *cache, const struct tqi_snapshot_header *h,
                             const char *what);
tq_status tqi_match_formats(const tq_cache *cache, uint32_t layer, tq_layer_formats pair,
                            const char *what);
tq_status tqi_match_constants(const tq_cache *cache, uint32_t layer, const struct tqi_constants *c,
                              const char *what);

#endif
