/* The codec behind its handle. */
#ifndef TQI_API_CODEC_H
#define TQI_API_CODEC_H

#include "api/objects.h"
#include "encode/codec_rows.h"
#include "encode/codec_study.h"

struct tq_codec {
    struct tqi_heap heap; /* holds the codec itself */
    struct tqi_codec_rows rows;
    struct tqi_study *study; /* of codecs with other parameters, NULL = a format */
    uint32_t *flips;
    size_t n_flips;
};

/* Checks a configuration, and makes a codec without contents. */
tq_status tqi_codec_check(const tq_context *ctx, const tq_codec_config *config,
                          const struct tqi_format **format);
tq_status tqi_codec_start(tq_context *ctx, tq_codec **out);

#endif
