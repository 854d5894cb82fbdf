/*
 * libturboquant: steps over many sequences. Part of tq.h, which includes it.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#ifndef TQ_BATCH_H
#define TQ_BATCH_H

#include "tq/tq.h"

/**
 * @file batch.h
 * @brief Batched steps: many sequences per call, planned once and run layer by layer.
 */

#ifdef __cplusplus
extern "C" {
#endif

/** @defgroup batch Batched steps
 *  Many sequences per call. A step is planned once, then run layer by layer, then
 *  committed:
 *
 *  @code
 *  tq_batch_desc desc = {sizeof desc};
 *  desc.n_seqs = n; desc.seqs = seqs; desc.n_append = new_tokens;
 *  tq_batch_plan(batch, &desc, stream);       // TQ_ERR_OUT_OF_PAGES: evict and try again
 *  for (layer = 0; layer < n_layers; layer++) {
 *      tq_batch_append(batch, layer, &k, &v, stream);
 *      tq_batch_attend(batch, layer, &params, &q, &out, NULL, stream);
 *  }
 *  tq_batch_commit(batch, NULL);              // or fewer tokens: speculation
 *  @endcode
 *
 *  ### Rules
 *
 *  - **Rows** of all sequences lie one behind another, in the order of the step: k and v
 *    hold the n_append rows of every sequence, q, out and lse its n_query rows. Prefill,
 *    chunks of prefill and decoding mix freely.
 *  - **Failure comes early.** Planning takes all pages and copies the pages that forks
 *    share; append and attend then neither allocate nor, on CUDA, wait for the device.
 *  - **A planned sequence is busy:** it is in one batch only, and tq_append(),
 *    tq_seq_fork(), tq_seq_truncate() and tq_seq_destroy() refuse it with
 *    ::TQ_ERR_INVALID_STATE, and tq_cache_reset() refuses the cache. Reading it is allowed;
 *    tq_seq_length() of a layer includes the step's tokens once the layer was appended to.
 *  - **Threads.** Plan, append, commit and cancel write to the cache; attend reads it. A
 *    batch belongs to one thread at a time.
 *  - **Results** are those of tq_append() and tq_attend() for each sequence alone: the same
 *    bits on the CPU, within tolerance on CUDA. With recent_tokens a step keeps all of its
 *    tokens in 16 bits until commit, so a step of several tokens may see more of them exact.
 *  - **CUDA graphs.** Append and attend of a planned batch may be captured and replayed
 *    after later plans of the same batch: kernels read counts, lengths and page tables from
 *    memory of the batch that planning fills, so the graph follows lengths, numbers of
 *    sequences and rows, up to max_seqs and max_tokens. Addresses and strides of the rows,
 *    and the attention parameters, are those of the capture. Plan itself stays outside of
 *    the graph, on the stream that the graph is launched on. A layer whose append was
 *    captured counts as appended to in every later step of the batch: launch the graph in
 *    each, and do not append to the layer directly as well.
 *  @{ */

/** What a step does. */
typedef struct tq_batch_desc {
    uint32_t struct_size;     /**< sizeof(tq_batch_desc). */
    uint32_t n_seqs;          /**< Sequences; 0 is allowed. */
    const tq_seq *seqs;       /**< [n_seqs], each sequence once. */
    const uint32_t *n_append; /**< [n_seqs] tokens to append, 0 included; NULL = 1 each. */
    const uint32_t *n_query;  /**< [n_seqs] query rows, 0 included; NULL = n_append. */
} tq_batch_desc;

/** @brief Creates a batch. Synchronizing.
 *  @param cache must outlive the batch
 *  @param max_seqs sequences of a step, 1 to the cache's max_seqs
 *  @param max_tokens tokens to append in a step, over all sequences, and query rows just
 *  so; 1 to 2^24
 *  @param[out] out the batch, owned by the caller; untouched on failure
 *  @retval TQ_ERR_INVALID_ARGUMENT a NULL or a number out of range
 *  @retval TQ_ERR_UNSUPPORTED the device has no batched steps
 *  @retval TQ_ERR_OUT_OF_MEMORY allocation failed
 *
 *  A cache may have several batches, planned at the same time over different sequences.
 *  Their memory counts in ::tq_cache_stats of the cache. */
TQ_API TQ_WARN_UNUSED tq_status tq_batch_create(tq_cache *cache, uint32_t max_seqs,
                                                uint32_t max_tokens, tq_batch **out);
/** @brief Destroys a batch; a planned step is cancelled. Synchronizing.
 *  @param batch NULL is allowed. Graphs captured from it must not run any more. */
TQ_API void tq_batch_destroy(tq_batch *batch);
/** @brief Begins a step.
 *  @param batch a batch without a planned step
 *  @param desc what to do; read during the call only
 *  @param stream the stream that the step's layers run on
 *  @retval TQ_ERR_NOT_FOUND no such sequence
 *  @retval TQ_ERR_INVALID_ARGUMENT a NULL, a sequence named twice, more than max_seqs or
 *  max_tokens
 *  @retval TQ_ERR_INVALID_STATE a step is planned already, a sequence is busy in another
 *  batch, or its layers differ in length
 *  @retval TQ_ERR_OUT_OF_PAGES the pool has too few pages for all sequences
 *  @retval TQ_ERR_OUT_OF_MEMORY allocation failed
 *
 *  On failure no sequence, page or length has changed. */
TQ_API TQ_WARN_UNUSED tq_status tq_batch_plan(tq_batch *batch, const tq_batch_desc *desc,
                                              tq_stream stream);
/** @brief Codes the step's tokens of all sequences in one layer.
 *  @param batch a batch with a planned step @param layer below n_layers, once per step
 *  @param k rows [sum of n_append][n_kv_heads] of head_dim elements, after RoPE
 *  @param v rows [sum of n_append][n_kv_heads] of v_head_dim elements
 *  @param stream see the rules above
 *  @retval TQ_ERR_INVALID_ARGUMENT bad layer, rows or dtype
 *  @retval TQ_ERR_INVALID_STATE nothing is planned, or the layer has been appended to
 *  @retval TQ_ERR_DEVICE the device failed: cancel the step
 *
 *  Does nothing and does not look at k and v when no sequence appends. While the stream is
 *  being captured, rows must be given even then: later steps may append. */
TQ_API TQ_WARN_UNUSED tq_status tq_batch_append(tq_batch *batch, uint32_t layer,
                                                const tq_rows_in *k, const tq_rows_in *v,
                                                tq_stream stream);
/** @brief Attention of the step's query rows, each over its own sequence, in one layer.
 *  @param batch a batch with a planned step @param layer below n_layers
 *  @param params NULL for all defaults; with ::TQ_ATTEND_CAUSAL, query i of the n of a
 *  sequence sees its first length - n + i + 1 tokens, the step's tokens included
 *  @param q rows [sum of n_query][n_q_heads] of head_dim elements, after RoPE
 *  @param out rows [sum of n_query][n_q_heads] of v_head_dim elements
 *  @param lse [sum of n_query][n_q_heads] f32 as in tq_attend(), or NULL
 *  @param stream see the rules above
 *  @retval TQ_ERR_INVALID_ARGUMENT bad layer, rows, dtype or parameters
 *  @retval TQ_ERR_INVALID_STATE nothing is planned, or the step appends and the layer has
 *  not been appended to
 *  @retval TQ_ERR_DEVICE the device failed
 *
 *  Numbers, empty sequences and tolerances are as in tq_attend(). */
TQ_API TQ_WARN_UNUSED tq_status tq_batch_attend(tq_batch *batch, uint32_t layer,
                                                const tq_attend_params *params, const tq_rows_in *q,
                                                const tq_rows_out *out, float *lse,
                                                tq_stream stream);
/** @brief Ends a step and keeps its tokens, or the first of them.
 *  @param batch a batch with a planned step
 *  @param n_keep [n_seqs] of the step, each at most its n_append; NULL keeps all
 *  @retval TQ_ERR_INVALID_ARGUMENT batch is NULL or more kept than appended
 *  @retval TQ_ERR_INVALID_STATE nothing is planned, or the step appends and some layer has
 *  not been appended to
 *
 *  Tokens behind the kept ones are gone and pages that hold only such tokens go back to the
 *  pool, as after tq_seq_truncate(). */
TQ_API tq_status tq_batch_commit(tq_batch *batch, const uint32_t *n_keep);
/** @brief Ends a step as if it had not been: all sequences have their lengths from before.
 *  @param batch a batch with a planned step
 *  @retval TQ_ERR_INVALID_ARGUMENT batch is NULL
 *  @retval TQ_ERR_INVALID_STATE nothing is planned
 *
 *  A page that was copied because a fork shared it stays a copy. */
TQ_API tq_status tq_batch_cancel(tq_batch *batch);

/** @brief Joins attention over two disjoint sets of tokens into attention over both.
 *  @param ctx a context @param n_tokens query rows @param n_heads query heads
 *  @param dim elements of a row
 *  @param a,b outputs of attention [n_tokens][n_heads] of dim elements
 *  @param lse_a,lse_b their logarithms [n_tokens][n_heads], natural, as tq_attend() gives
 *  them
 *  @param out rows to write; may be a or b
 *  @param lse [n_tokens][n_heads] of the whole, or NULL; may be lse_a or lse_b
 *  @param stream see the rules above
 *  @retval TQ_ERR_INVALID_ARGUMENT a NULL, bad rows or dtype
 *  @retval TQ_ERR_UNSUPPORTED the context's device can't merge
 *
 *  A part with lse = -infinity saw no token and is not looked at: the result is the other
 *  part, to the bit where dtypes agree, or zeros and -infinity where both are empty. */
TQ_API tq_status tq_merge(const tq_context *ctx, uint32_t n_tokens, uint32_t n_heads, uint32_t dim,
                          const tq_rows_in *a, const float *lse_a, const tq_rows_in *b,
                          const float *lse_b, const tq_rows_out *out, float *lse, tq_stream stream);
/** @} */

#ifdef __cplusplus
}
#endif

#endif /* TQ_BATCH_H */
