/*
 * libturboquant: which variant to use.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#ifndef TQ_RECOMMEND_H
#define TQ_RECOMMEND_H

#include "tq/tq.h"

/**
 * @file recommend.h
 * @brief Advice that follows from the measurements in docs/ACCURACY.md and docs/PERFORMANCE.md.
 */

#ifdef __cplusplus
extern "C" {
#endif

/** @defgroup recommend Advice
 *  @{ */

/** Keys have channel means that are large beside their spread, as first layers of some models
 *  do; docs/ACCURACY.md shows how to tell. */
#define TQ_RECOMMEND_LARGE_KEY_MEANS 1u
/** The means will be set or fitted (tq_cache_fit_means()). */
#define TQ_RECOMMEND_CENTRED 2u
/** Scores must be unbiased, one key at a time: vector search, not attention. */
#define TQ_RECOMMEND_UNBIASED 4u

/** What is wanted. All fields but struct_size and head_dim may be zero. */
typedef struct tq_recommend_query {
    uint32_t struct_size; /**< sizeof(tq_recommend_query). */
    tq_device device;     /**< Where the cache will live. */
    uint32_t head_dim;    /**< Required; K and V. */
    uint32_t
        max_millibits; /**< Bits per value times 1000, gains included; 0 = memory is no concern. */
    uint32_t flags;    /**< TQ_RECOMMEND_*. */
    uint32_t reserved; /**< Must be 0. */
    double max_dot_error; /**< Largest tq_format_info::dot_error of K; 0 = no limit. */
    double max_mse;       /**< Largest tq_format_info::mse of V; 0 = no limit. */
} tq_recommend_query;

/** The advice. Output struct. */
typedef struct tq_recommendation {
    uint32_t struct_size; /**< Set by the caller: sizeof(tq_recommendation). */
    tq_variant variant;   /**< The variant. */
    uint32_t millibits;   /**< Its bits per value times 1000 at the head_dim of the query. */
    uint32_t page_tokens; /**< For tq_cache_config. */
    double dot_error;     /**< tq_format_info::dot_error of its K format. */
    double mse;           /**< tq_format_info::mse of its V format. */
    char reason[256];     /**< Why, in a sentence or two. */
} tq_recommendation;

/** @brief Recommends a variant.
 *  @param query what is wanted
 *  @param[in,out] out struct_size set by the caller, the rest filled
 *  @retval TQ_ERR_INVALID_ARGUMENT a NULL, a bad struct_size, head_dim, device, flag or limit
 *  @retval TQ_ERR_UNSUPPORTED this build has no kernels for the device
 *  @retval TQ_ERR_NOT_FOUND no variant keeps the limits; tq_last_error() says what comes closest
 *
 *  With a budget: the least error within it; without: the fewest bits at which the error no
 *  longer shows (int8). With limits of errors: the fewest bits that keep them, within the budget.
 *  Large key means that are not taken out call for 16-bit keys. Variants with a sketch are
 *  recommended for unbiased scores only, and polar never: at equal bytes another one is closer. */
TQ_API tq_status tq_recommend(const tq_recommend_query *query, tq_recommendation *out);
/** @} */

#ifdef __cplusplus
}
#endif
#endif /* TQ_RECOMMEND_H */
