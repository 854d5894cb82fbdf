/*
 * libturboquant: pages that a serving engine owns.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#ifndef TQ_PAGED_H
#define TQ_PAGED_H

#include "tq/tq.h"

/**
 * @file paged.h
 * @brief Append and attention over the engine's own page pools, block tables and lengths.
 *
 * Engines that manage pages themselves (vLLM, SGLang, TensorRT-LLM and the like) hand over, per
 * call, what they have anyway: the pool of a layer, a slot for every new token, a block table,
 * lengths and the rows' places. The same kernels run as over the library's pages, and the bytes
 * of a page are the same (docs/FORMAT.md).
 *
 * A cache says what the layers are: formats, heads, dims, seed, and by tq_cache_set_means(),
 * tq_cache_set_fp8_scales() and tq_cache_set_sink_logits() their constants. It needs no pages of
 * its own for that: max_pages 0 on the CPU takes none, on CUDA 1 is the least. Caches with
 * sink_tokens or recent_tokens are refused with ::TQ_ERR_UNSUPPORTED: the engine's pages have codes
 * only.
 *
 * @code
 * size_t page = tq_paged_page_bytes(cache, layer);          // of all kv heads
 * tq_paged_pool pool = {sizeof pool, 0, pages, page, n_pages};
 * tq_paged_append(cache, layer, &pool, slot_mapping, n_tokens, &k, &v, stream);
 * tq_paged_attend(cache, layer, &pool, &seqs, &params, &q, &out, NULL, work, work_size, stream);
 * @endcode
 *
 * No call allocates, and none waits for the device unless ::TQ_PAGED_CHECKED asks for it.
 * Arrays of ids, lengths and slots live in the memory of the cache's device.
 *
 * **CUDA graphs.** Calls that are not checked may be captured and replayed: kernels read ids,
 * lengths, slots and rows of queries from the engine's arrays when they run, so that a graph
 * follows what the engine writes there. Fixed are n_tokens, n_seqs, n_queries and max_seq_len, the
 * largest that the graph serves, all addresses, strides and parameters. Of a step that is smaller,
 * slots of missing tokens are negative, and query_starts of missing sequences repeat the last
 * value.
 *
 * **This header is experimental:** its functions and structs may change in any release before
 * 1.0.
 */

#ifdef __cplusplus
extern "C" {
#endif

/** @defgroup paged Pages of the engine
 *  @{ */

/** Look at ids, slots and lengths before anything is read or written, and refuse bad ones. The
 *  CPU always does. On CUDA it is for debugging: a kernel looks at them and the call waits for it,
 *  and so for all work in front of it on the stream; slots are compared with each other as well,
 *  which takes a time that grows with the square of n_tokens. While a stream is being captured such
 *  calls return ::TQ_ERR_INVALID_STATE. Without it nothing on CUDA protects from a page id that is
 *  wrong, while a slot beyond the pool is left out. */
#define TQ_PAGED_CHECKED 1u

/** Pages of one layer. */
typedef struct tq_paged_pool {
    uint32_t struct_size; /**< sizeof(tq_paged_pool). */
    uint32_t flags;       /**< ::TQ_PAGED_CHECKED or 0. */
    void *pages;          /**< First page, aligned to 16 bytes; device memory on CUDA. */
    int64_t page_stride;  /**< Bytes from a page to the next, at least tq_paged_page_bytes() and a
                               multiple of 16, below 4 GiB on CUDA; 0 = adjacent. What lies between
                               is left alone. */
    uint64_t n_pages;     /**< Pages, 1 to 2^31. */
} tq_paged_pool;

/** What the layers of a step share: the host's memory of how the first call of a step planned it on
 *  the device, so that later ones need not. An engine keeps one beside a workspace, fills it with
 *  zeros but for struct_size whenever lengths, block tables or query rows are other ones than in
 *  the call before, and hands it to every layer of the step. A layer whose kernels cut the work
 *  otherwise plans anew. */
typedef struct tq_paged_step {
    uint32_t struct_size; /**< sizeof(tq_paged_step). */
    uint32_t reserved;    /**< 0 */
    uint64_t planned[16]; /**< The library's; zeros begin a step. */
} tq_paged_step;

/** Sequences of a call to tq_paged_attend(). */
typedef struct tq_paged_seqs {
    uint32_t struct_size;        /**< sizeof(tq_paged_seqs). */
    uint32_t n_seqs;             /**< Sequences; 0 is allowed. */
    const int32_t *block_table;  /**< Ids of the pages of sequence i, from i * table_stride on. */
    int64_t table_stride;        /**< Entries from one sequence to the next. */
    const int32_t *seq_lens;     /**< [n_seqs] tokens, those of this step included. */
    const int32_t *query_starts; /**< [n_seqs + 1] rows of q: sequence i has rows
                                      [query_starts[i], query_starts[i + 1]); the first is 0. */
    uint32_t n_queries;   /**< Rows of q, at least query_starts[n_seqs]; rows beyond that one belong
                               to nobody and are not written. */
    uint32_t max_seq_len; /**< No sequence is longer. */
    tq_paged_step *step;  /**< The step that the call belongs to, read and written while the call
                               lasts, or NULL: a step of its own. Calls of a step follow one another
                               on one stream and have the workspace to themselves until the last of
                               them has ended. */
} tq_paged_seqs;

/** @brief Bytes of a page of a layer: page_tokens tokens of all kv heads, K and V.
 *  @param cache a cache @param layer below n_layers
 *  @return bytes, a multiple of 128; 0 when an argument is out of range */
TQ_API size_t tq_paged_page_bytes(const tq_cache *cache, uint32_t layer);

/** @brief Codes rows into slots of the engine's pages.
 *  @param cache a cache; its counters of replaced elements are added to
 *  @param layer below n_layers
 *  @param pool pages of the layer; what they held before does not matter
 *  @param slots [n_tokens]: page id * page_tokens + place in the page; a negative slot skips the
 *  token. Of tokens with the same slot the last one stays on the CPU; on CUDA slots of a call must
 *  differ, else anything may stand there (if checked, it is refused)
 *  @param n_tokens 0 is allowed and does nothing
 *  @param k rows [n_tokens][n_kv_heads] of head_dim elements, after RoPE
 *  @param v rows [n_tokens][n_kv_heads] of v_head_dim elements
 *  @param stream the stream to run on; NULL on the CPU
 *  @retval TQ_ERR_INVALID_ARGUMENT bad layer, pool, rows or, if checked, a slot beyond the pool
 *  @retval TQ_ERR_INVALID_STATE checked, and the stream is being captured
 *  @retval TQ_ERR_UNSUPPORTED the device has no such kernels, or page_stride is too large for them
 *  @retval TQ_ERR_DEVICE the device failed
 *
 *  Rows are fastest where tokens of a page follow one another. Codes are those of tq_append(), bit
 *  for bit.
 *  Afterwards the layer counts as appended to: means and scales can't change any more. */
TQ_API TQ_WARN_UNUSED tq_status tq_paged_append(tq_cache *cache, uint32_t layer,
                                                const tq_paged_pool *pool, const int64_t *slots,
                                                uint32_t n_tokens, const tq_rows_in *k,
                                                const tq_rows_in *v, tq_stream stream);

/** @brief Bytes of workspace that are enough for a call of tq_paged_attend(), in any layer.
 *  @param cache a cache @param max_seqs sequences @param max_queries rows of q
 *  @param max_seq_len tokens of the longest sequence
 *  @param[out] bytes enough for calls with at most these numbers
 *  @retval TQ_ERR_INVALID_ARGUMENT a NULL
 *  @retval TQ_ERR_UNSUPPORTED the device has no such kernels
 *
 *  Larger numbers never need less, so that an engine asks once, for its largest step. */
TQ_API tq_status tq_paged_workspace(const tq_cache *cache, uint32_t max_seqs, uint32_t max_queries,
                                    uint32_t max_seq_len, size_t *bytes);

/** @brief Attention over the engine's pages, every query row over its own sequence.
 *  @param cache a cache @param layer below n_layers
 *  @param pool pages of the layer @param seqs where sequences and rows are
 *  @param params as in tq_attend(), NULL for all defaults; causal is bottom-right in each sequence
 *  @param q rows [n_queries][n_q_heads] of head_dim elements, after RoPE
 *  @param out rows [n_queries][n_q_heads] of v_head_dim elements
 *  @param lse [n_queries][n_q_heads] f32 as in tq_attend(), or NULL
 *  @param workspace memory of the cache's device, aligned to 64 bytes, for this call alone
 *  @param workspace_size at least tq_paged_workspace() of n_seqs, n_queries and max_seq_len
 *  @param stream the stream to run on; NULL on the CPU
 *  @retval TQ_ERR_INVALID_ARGUMENT bad layer, pool, rows or parameters; if checked, a page id that
 *  is needed and not in the pool, a length above max_seq_len, rows out of order
 *  @retval TQ_ERR_BUFFER_TOO_SMALL workspace_size is too small
 *  @retval TQ_ERR_INVALID_STATE checked, and the stream is being captured
 *  @retval TQ_ERR_UNSUPPORTED the device has no such kernels, or page_stride is too large for them
 *  @retval TQ_ERR_DEVICE the device failed
 *
 *  Only pages that some row sees are read: table entries behind a length or before a window may
 *  hold anything. Numbers are those of tq_attend() over the same tokens, bit for bit on the CPU; on
 *  CUDA those of a batch with max_seqs = n_seqs and max_tokens = n_queries, bit for bit where both
 *  have a sequence of 2048 tokens or more (groups of up to 4: 16384; here: seqs->max_seq_len), or
 *  neither has: it decides which kernel runs. There a call plans how its work is cut, by one or two
 *  small kernels in front, unless seqs->step says that a call before it did.
 *  Several threads may attend at a time, each with a workspace of its own. */
TQ_API TQ_WARN_UNUSED tq_status tq_paged_attend(const tq_cache *cache, uint32_t layer,
                                                const tq_paged_pool *pool,
                                                const tq_paged_seqs *seqs,
                                                const tq_attend_params *params, const tq_rows_in *q,
                                                const tq_rows_out *out, float *lse, void *workspace,
                                                size_t workspace_size, tq_stream stream);
/** @} */

#ifdef __cplusplus
}
#endif

#endif /* TQ_PAGED_H */
