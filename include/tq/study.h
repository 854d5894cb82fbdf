/*
 * libturboquant: codecs with other parameters than the formats have.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#ifndef TQ_STUDY_H
#define TQ_STUDY_H

#include "tq/tq.h"

/**
 * @file study.h
 * @brief Polar levels, bits of their angles and lengths of sketches, to measure what they do.
 *
 * Experimental, for studies: plain double precision without fast kernels. The bytes may differ in
 * their last bits between machines and have no promise; caches know the formats only.
 */

#ifdef __cplusplus
extern "C" {
#endif

/** @defgroup study Study
 *  Codecs with other parameters, beside \ref codec.
 *  @{ */

/** Most polar levels. */
#define TQ_STUDY_LEVELS 6

/** What differs from the format. All fields but struct_size may be zero. */
typedef struct tq_codec_study {
    uint32_t struct_size; /**< sizeof(tq_codec_study). */
    uint32_t
        polar_levels; /**< 1 to 6: blocks of 2^levels dims share a radius; 0 = 4. Polar only. */
    uint32_t
        polar_bits[TQ_STUDY_LEVELS]; /**< Bits of an angle by level, the first (round the circle)
                                          1 to 8, the others 1 to 6; all 0 = 4, then 2. */
    uint32_t sketch_signs; /**< Signs of the sketch: a multiple of 8 up to four times dim; 0 = dim.
                                Formats with a sketch only. */
    uint32_t reserved;     /**< Must be 0. */
} tq_codec_study;

/** @brief Creates a codec of `polar`, `polar_qjl`, `lm3_qjl` or `lm2_qjl` with other parameters.
 *
 *  Angles above the first level have Lloyd-Max books of their densities (PolarQuant, arXiv
 *  2502.02617, section 4); books are made here and take up to a second. A sketch of more than dim
 *  signs has several independent projections, one of fewer the first rows of one. Use it like any
 *  codec: tq_codec_row_bytes(), tq_codec_encode(), tq_codec_decode(), tq_codec_dot() and
 *  tq_codec_destroy().
 *  @param ctx must outlive the codec; CPU only
 *  @param config as in tq_codec_create(), copied @param study copied
 *  @param[out] out the codec, owned by the caller
 *  @retval TQ_ERR_INVALID_ARGUMENT a NULL, a bad dim, a field out of range or of another kind of
 *  format
 *  @retval TQ_ERR_UNSUPPORTED another format, or the reasons of tq_codec_create()
 *  @retval TQ_ERR_OUT_OF_MEMORY allocation failed */
TQ_API TQ_WARN_UNUSED tq_status tq_codec_create_study(tq_context *ctx,
                                                      const tq_codec_config *config,
                                                      const tq_codec_study *study, tq_codec **out);
/** @} */

#ifdef __cplusplus
}
#endif

#endif /* TQ_STUDY_H */
