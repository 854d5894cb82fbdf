/*
 * libturboquant: sequences as bytes, and copies of them in other caches.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#ifndef TQ_SNAPSHOT_H
#define TQ_SNAPSHOT_H

#include "tq/tq.h"

/**
 * @file snapshot.h
 * @brief Saving, loading and copying sequences. The rules of tq.h hold here too.
 */

#ifdef __cplusplus
extern "C" {
#endif

/* ------------------------------------------------------------------------ */
/** @defgroup snapshots Snapshots and copies
 *  Sequences as bytes in host memory: to keep prefixes in files, to move sequences between
 *  machines, CPU and GPU. The bytes are those of docs/FORMAT.md: little-endian, versioned, every
 *  byte under a checksum, and the same whatever device they come from. A loaded sequence goes on
 *  bit for bit as the saved one would.
 *
 *  Tokens that a cache keeps in 16 bits (tq_cache_config::sink_tokens, recent_tokens) are saved,
 *  loaded and copied with their rows and their codes. Settings of the two caches may differ: a
 *  token is exact in the new place when its rows are there and the settings of that cache keep it,
 *  as one of the first tokens with all before it exact, or as one of the last with all behind it
 *  exact; else it is what its codes make of it, for ever. So the window in front of loaded tokens
 *  goes on when all of these are exact, and ends when not; a cache without such settings, or on a
 *  GPU, takes the codes. A layer that has not kept a row takes over the rows' 16-bit type; rows of
 *  another type than those that a layer keeps are refused with ::TQ_ERR_MISMATCH.
 *  @{ */

/** What the header of a snapshot says. Output struct. */
typedef struct tq_blob_info {
    uint32_t struct_size;    /**< Set by the caller: sizeof(tq_blob_info). */
    uint32_t format_version; /**< Byte format of the pages, as ::TQ_FORMAT_VERSION. */
    uint32_t n_layers;       /**< As in ::tq_cache_config, like the fields below. */
    uint32_t n_kv_heads;     /**< Key/value heads. */
    uint32_t head_dim;       /**< Row length of K. */
    uint32_t v_head_dim;     /**< Row length of V. */
    uint32_t page_tokens;    /**< Tokens in a page. */
    tq_variant variant;      /**< Variant of all layers; 0 when none is: see tq_blob_formats(). */
    uint64_t seed;           /**< Of rotation and sketch. */
    uint64_t n_tokens;       /**< Tokens saved. */
    uint64_t first_token;    /**< Place of the first of them in the sequence that was saved. */
    uint64_t n_bytes;        /**< Bytes of the whole snapshot. */
    uint32_t sink_tokens;    /**< Of the cache that was saved: it kept so many first tokens, */
    uint32_t recent_tokens;  /**< and so many last ones, in 16 bits. Loading needs neither. */
} tq_blob_info;

/** @brief Bytes that tq_seq_save() would write now.
 *  @param cache a cache @param seq a sequence @param[out] out bytes
 *  @return as tq_seq_save(), but for memory and device */
TQ_API tq_status tq_seq_blob_size(const tq_cache *cache, tq_seq seq, size_t *out);
/** @brief Saves a sequence. Synchronizing.
 *  @param cache a cache @param seq a sequence
 *  @param[out] buf host memory of any alignment; NULL to ask for the size only
 *  @param size bytes of buf @param[out] written bytes of the snapshot
 *  @retval TQ_ERR_NOT_FOUND no such sequence
 *  @retval TQ_ERR_INVALID_STATE layers differ in length, or the sequence is part of a planned
 *  batch
 *  @retval TQ_ERR_BUFFER_TOO_SMALL size is too small; written tells what is needed
 *  @retval TQ_ERR_OUT_OF_MEMORY allocation failed
 *  @retval TQ_ERR_DEVICE reading failed; buf may be partly written
 *
 *  The bytes depend on the tokens and on nothing else: equal sequences of equal caches give equal
 *  snapshots. Means, fp8 scales, sink_tokens and recent_tokens are included, so that a cache can be
 *  made from a snapshot. */
TQ_API tq_status tq_seq_save(const tq_cache *cache, tq_seq seq, void *buf, size_t size,
                             size_t *written);
/** @brief Saves some tokens of a sequence, for instance a prefix. Synchronizing.
 *  @param cache a cache @param seq a sequence @param first first token
 *  @param n_tokens how many; UINT64_MAX = all that follow, which needs equal lengths in all layers
 *  @param[out] buf,size,written as in tq_seq_save()
 *  @retval TQ_ERR_INVALID_ARGUMENT tokens beyond the longest layer's length
 *  @retval TQ_ERR_INVALID_STATE tokens beyond the shortest layer's while lengths differ
 *  @return else as tq_seq_save()
 *
 *  Tokens become tokens 0, 1, ... of the snapshot; their keys keep the position that RoPE gave
 *  them. What is exact of them is saved so, as if the sequence had been cut to end with the range
 *  and the tokens before it removed. A range that starts at a multiple of page_tokens is fastest.
 */
TQ_API tq_status tq_seq_save_range(const tq_cache *cache, tq_seq seq, uint64_t first,
                                   uint64_t n_tokens, void *buf, size_t size, size_t *written);
/** @brief Creates a sequence from a snapshot. Synchronizing.
 *  @param cache a cache of the same layers, kv heads, head dims, page_tokens, seed, formats, means
 *  and scales; device, n_q_heads, pool size, sink_tokens and recent_tokens do not matter
 *  @param buf a snapshot in host memory, any alignment; may come from anywhere
 *  @param size its bytes, no more and no less @param[out] out the new id; untouched on failure
 *  @retval TQ_ERR_CORRUPT no snapshot, cut off, or changed
 *  @retval TQ_ERR_VERSION of a newer library, or of another page format
 *  @retval TQ_ERR_MISMATCH of another configuration, or with rows of another 16-bit type;
 *  tq_last_error() names the field
 *  @retval TQ_ERR_INVALID_STATE max_seqs sequences exist already
 *  @retval TQ_ERR_OUT_OF_PAGES, TQ_ERR_OUT_OF_MEMORY no room: nothing was loaded
 *
 *  All bytes are checked before anything is allocated. */
TQ_API TQ_WARN_UNUSED tq_status tq_seq_load(tq_cache *cache, const void *buf, size_t size,
                                            tq_seq *out);
/** @brief Adds the tokens of a snapshot to the end of a sequence. Synchronizing.
 *  @param cache a cache @param seq a sequence with one length in all layers
 *  @param buf,size as in tq_seq_load()
 *  @retval TQ_ERR_NOT_FOUND no such sequence
 *  @retval TQ_ERR_INVALID_STATE layers differ in length, or the sequence is part of a planned
 *  batch
 *  @return else as tq_seq_load()
 *
 *  Ranges that were saved one by one make the whole again, in any split. */
TQ_API TQ_WARN_UNUSED tq_status tq_seq_load_append(tq_cache *cache, tq_seq seq, const void *buf,
                                                   size_t size);
/** @brief Copies tokens to a new sequence of another cache, or of the same. Synchronizing.
 *  @param cache where the new sequence is @param from a cache alike as for tq_seq_load(), on any
 *  device @param src a sequence of from @param first first token
 *  @param n_tokens how many; UINT64_MAX = all that follow
 *  @param[out] out the new id; untouched on failure
 *  @retval TQ_ERR_NOT_FOUND no such sequence
 *  @retval TQ_ERR_INVALID_ARGUMENT tokens beyond the longest layer's length
 *  @retval TQ_ERR_MISMATCH of another configuration; tq_last_error() names the field
 *  @retval TQ_ERR_INVALID_STATE tokens beyond the shortest layer's while lengths differ, src is
 *  part of a planned batch, or max_seqs sequences exist already
 *  @retval TQ_ERR_OUT_OF_PAGES, TQ_ERR_OUT_OF_MEMORY no room: nothing was copied
 *
 *  Pages are not shared: tq_seq_fork() does that inside one cache. */
TQ_API TQ_WARN_UNUSED tq_status tq_seq_copy(tq_cache *cache, const tq_cache *from, tq_seq src,
                                            uint64_t first, uint64_t n_tokens, tq_seq *out);

/** @brief Reads the header of a snapshot.
 *  @param buf the snapshot, or its first 128 bytes @param size bytes of buf
 *  @param[in,out] out struct_size set by the caller, the rest filled
 *  @retval TQ_ERR_CORRUPT fewer than 128 bytes, no snapshot, or a changed header
 *  @retval TQ_ERR_VERSION of a newer library
 *
 *  What follows the header is not looked at: tq_seq_load() checks it. */
TQ_API tq_status tq_blob_inspect(const void *buf, size_t size, tq_blob_info *out);
/** @brief Reads the formats of the layers of a snapshot, to make a cache for it.
 *  @param buf,size the whole snapshot @param n_layers those of the snapshot
 *  @param[out] out [n_layers], for tq_cache_config::layer_formats
 *  @retval TQ_ERR_CORRUPT, TQ_ERR_VERSION as tq_seq_load()
 *  @retval TQ_ERR_INVALID_ARGUMENT a NULL, or another number of layers */
TQ_API tq_status tq_blob_formats(const void *buf, size_t size, uint32_t n_layers,
                                 tq_layer_formats *out);
/** @brief Sets means and fp8 scales of all layers to those of a snapshot.
 *  @param cache a cache without tokens since create or reset, otherwise as for tq_seq_load()
 *  @param buf,size the whole snapshot
 *  @retval TQ_ERR_CORRUPT, TQ_ERR_VERSION, TQ_ERR_MISMATCH as tq_seq_load()
 *  @retval TQ_ERR_INVALID_STATE a layer has been appended to
 *  @retval TQ_ERR_OUT_OF_MEMORY allocation failed; some layers may have been set: call again */
TQ_API tq_status tq_cache_set_constants(tq_cache *cache, const void *buf, size_t size);
/** @} */

#ifdef __cplusplus
}
#endif
#endif /* TQ_SNAPSHOT_H */
