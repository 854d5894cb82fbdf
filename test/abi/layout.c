/*
 * Every published field stays where it is: LP64, the layout of 64-bit Linux. A field may be
 * appended to a struct with struct_size (then its SIZE grows here); nothing may move.
 * abidiff would also see a move, but it can't tell one from an appended field.
 */
#include <stddef.h>

#include "tq/recommend.h"
#include "tq/study.h"
#include "tq/snapshot.h"
#include "tq/paged.h"
#include "tq/tq.h"

#define SIZE(type, bytes) _Static_assert(sizeof(type) == (bytes), "size of " #type)
#define AT(type, field, offset) \
    _Static_assert(offsetof(type, field) == (offset), "offset of " #type "." #field)

SIZE(tq_rows_in, 32);
AT(tq_rows_in, data, 0);
AT(tq_rows_in, token_stride, 8);
AT(tq_rows_in, head_stride, 16);
AT(tq_rows_in, dtype, 24);
AT(tq_rows_in, reserved, 28);

SIZE(tq_rows_out, 32);
AT(tq_rows_out, data, 0);
AT(tq_rows_out, token_stride, 8);
AT(tq_rows_out, head_stride, 16);
AT(tq_rows_out, dtype, 24);
AT(tq_rows_out, reserved, 28);

SIZE(tq_allocator, 32);
AT(tq_allocator, struct_size, 0);
AT(tq_allocator, reserved, 4);
AT(tq_allocator, user, 8);
AT(tq_allocator, alloc, 16);
AT(tq_allocator, free, 24);

SIZE(tq_executor, 24);
AT(tq_executor, struct_size, 0);
AT(tq_executor, n_workers, 4);
AT(tq_executor, user, 8);
AT(tq_executor, parallel_for, 16);

SIZE(tq_context_config, 40);
AT(tq_context_config, struct_size, 0);
AT(tq_context_config, flags, 4);
AT(tq_context_config, device, 8);
AT(tq_context_config, device_index, 12);
AT(tq_context_config, cpu_features_disabled, 16);
AT(tq_context_config, allocator, 24);
AT(tq_context_config, executor, 32);

SIZE(tq_threadpool_config, 24);
AT(tq_threadpool_config, struct_size, 0);
AT(tq_threadpool_config, flags, 4);
AT(tq_threadpool_config, n_threads, 8);
AT(tq_threadpool_config, reserved, 12);
AT(tq_threadpool_config, allocator, 16);

SIZE(tq_format_info, 56);
AT(tq_format_info, struct_size, 0);
AT(tq_format_info, id, 4);
AT(tq_format_info, name, 8);
AT(tq_format_info, summary, 16);
AT(tq_format_info, roles, 24);
AT(tq_format_info, millibits, 28);
AT(tq_format_info, devices, 32);
AT(tq_format_info, flags, 36);
AT(tq_format_info, mse, 40);
AT(tq_format_info, dot_error, 48);

SIZE(tq_variant_info, 40);
AT(tq_variant_info, struct_size, 0);
AT(tq_variant_info, id, 4);
AT(tq_variant_info, name, 8);
AT(tq_variant_info, summary, 16);
AT(tq_variant_info, k_format, 24);
AT(tq_variant_info, v_format, 28);
AT(tq_variant_info, bytes_per_token_head, 32);
AT(tq_variant_info, flags, 36);

SIZE(tq_layer_formats, 8);
AT(tq_layer_formats, k_format, 0);
AT(tq_layer_formats, v_format, 4);

SIZE(tq_cache_config, 80);
AT(tq_cache_config, struct_size, 0);
AT(tq_cache_config, flags, 4);
AT(tq_cache_config, n_layers, 8);
AT(tq_cache_config, n_kv_heads, 12);
AT(tq_cache_config, n_q_heads, 16);
AT(tq_cache_config, head_dim, 20);
AT(tq_cache_config, v_head_dim, 24);
AT(tq_cache_config, variant, 28);
AT(tq_cache_config, layer_formats, 32);
AT(tq_cache_config, boundary_layers, 40);
AT(tq_cache_config, page_tokens, 44);
AT(tq_cache_config, max_seqs, 48);
AT(tq_cache_config, reserved, 52);
AT(tq_cache_config, max_pages, 56);
AT(tq_cache_config, seed, 64);
AT(tq_cache_config, sink_tokens, 72);
AT(tq_cache_config, recent_tokens, 76);

SIZE(tq_footprint, 48);
AT(tq_footprint, struct_size, 0);
AT(tq_footprint, page_tokens, 4);
AT(tq_footprint, bytes_per_token, 8);
AT(tq_footprint, bytes_per_page, 16);
AT(tq_footprint, host_bytes, 24);
AT(tq_footprint, device_bytes, 32);
AT(tq_footprint, protected_bytes, 40);

SIZE(tq_cache_stats, 80);
AT(tq_cache_stats, struct_size, 0);
AT(tq_cache_stats, n_seqs, 4);
AT(tq_cache_stats, pages_total, 8);
AT(tq_cache_stats, pages_used, 16);
AT(tq_cache_stats, pages_shared, 24);
AT(tq_cache_stats, tokens, 32);
AT(tq_cache_stats, host_bytes, 40);
AT(tq_cache_stats, device_bytes, 48);
AT(tq_cache_stats, nan_values, 56);
AT(tq_cache_stats, inf_values, 64);
AT(tq_cache_stats, protected_bytes, 72);

SIZE(tq_recommend_query, 40);
AT(tq_recommend_query, struct_size, 0);
AT(tq_recommend_query, device, 4);
AT(tq_recommend_query, head_dim, 8);
AT(tq_recommend_query, max_millibits, 12);
AT(tq_recommend_query, flags, 16);
AT(tq_recommend_query, reserved, 20);
AT(tq_recommend_query, max_dot_error, 24);
AT(tq_recommend_query, max_mse, 32);

SIZE(tq_recommendation, 288);
AT(tq_recommendation, struct_size, 0);
AT(tq_recommendation, variant, 4);
AT(tq_recommendation, millibits, 8);
AT(tq_recommendation, page_tokens, 12);
AT(tq_recommendation, dot_error, 16);
AT(tq_recommendation, mse, 24);
AT(tq_recommendation, reason, 32);

SIZE(tq_blob_info, 72);
AT(tq_blob_info, struct_size, 0);
AT(tq_blob_info, format_version, 4);
AT(tq_blob_info, n_layers, 8);
AT(tq_blob_info, n_kv_heads, 12);
AT(tq_blob_info, head_dim, 16);
AT(tq_blob_info, v_head_dim, 20);
AT(tq_blob_info, page_tokens, 24);
AT(tq_blob_info, variant, 28);
AT(tq_blob_info, seed, 32);
AT(tq_blob_info, n_tokens, 40);
AT(tq_blob_info, first_token, 48);
AT(tq_blob_info, n_bytes, 56);
AT(tq_blob_info, sink_tokens, 64);
AT(tq_blob_info, recent_tokens, 68);

SIZE(tq_attend_params, 24);
AT(tq_attend_params, struct_size, 0);
AT(tq_attend_params, flags, 4);
AT(tq_attend_params, scale, 8);
AT(tq_attend_params, reserved, 12);
AT(tq_attend_params, logit_softcap, 16);
AT(tq_attend_params, window, 20);

SIZE(tq_batch_desc, 32);
AT(tq_batch_desc, struct_size, 0);
AT(tq_batch_desc, n_seqs, 4);
AT(tq_batch_desc, seqs, 8);
AT(tq_batch_desc, n_append, 16);
AT(tq_batch_desc, n_query, 24);

SIZE(tq_paged_pool, 32);
AT(tq_paged_pool, struct_size, 0);
AT(tq_paged_pool, flags, 4);
AT(tq_paged_pool, pages, 8);
AT(tq_paged_pool, page_stride, 16);
AT(tq_paged_pool, n_pages, 24);

SIZE(tq_paged_step, 136);
AT(tq_paged_step, struct_size, 0);
AT(tq_paged_step, reserved, 4);
AT(tq_paged_step, planned, 8);

SIZE(tq_paged_seqs, 56);
AT(tq_paged_seqs, struct_size, 0);
AT(tq_paged_seqs, n_seqs, 4);
AT(tq_paged_seqs, block_table, 8);
AT(tq_paged_seqs, table_stride, 16);
AT(tq_paged_seqs, seq_lens, 24);
AT(tq_paged_seqs, query_starts, 32);
AT(tq_paged_seqs, n_queries, 40);
AT(tq_paged_seqs, max_seq_len, 44);
AT(tq_paged_seqs, step, 48);

SIZE(tq_codec_config, 24);
AT(tq_codec_config, struct_size, 0);
AT(tq_codec_config, format, 4);
AT(tq_codec_config, dim, 8);
AT(tq_codec_config, flags, 12);
AT(tq_codec_config, seed, 16);

SIZE(tq_codec_study, 40);
AT(tq_codec_study, struct_size, 0);
AT(tq_codec_study, polar_levels, 4);
AT(tq_codec_study, polar_bits, 8);
AT(tq_codec_study, sketch_signs, 32);
AT(tq_codec_study, reserved, 36);

/* Numbers that are stored or travel over the ABI. */
#define IS(name, value) _Static_assert((name) == (value), #name)
IS(TQ_OK, 0);
IS(TQ_ERR_INVALID_ARGUMENT, -1);
IS(TQ_ERR_INVALID_STATE, -2);
IS(TQ_ERR_UNSUPPORTED, -3);
IS(TQ_ERR_VERSION, -4);
IS(TQ_ERR_NOT_FOUND, -5);
IS(TQ_ERR_OUT_OF_MEMORY, -10);
IS(TQ_ERR_OUT_OF_PAGES, -11);
IS(TQ_ERR_BUFFER_TOO_SMALL, -12);
IS(TQ_ERR_CORRUPT, -20);
IS(TQ_ERR_MISMATCH, -21);
IS(TQ_ERR_DEVICE, -30);
IS(TQ_ERR_INTERNAL, -99);
IS(TQ_F32, 0);
IS(TQ_F16, 1);
IS(TQ_BF16, 2);
IS(TQ_DEVICE_CPU, 0);
IS(TQ_DEVICE_CUDA, 1);
IS(TQ_MEM_HOST, 0);
IS(TQ_MEM_HOST_PINNED, 1);
IS(TQ_MEM_DEVICE, 2);
IS(TQ_OP_ENCODE_K, 0);
IS(TQ_OP_ENCODE_V, 1);
IS(TQ_OP_SCORE, 2);
IS(TQ_OP_ACCUMULATE, 3);
IS(TQ_OP_PREFILL, 4);
IS(TQ_FORMAT_BF16, 1u);
IS(TQ_FORMAT_F16, 2u);
IS(TQ_FORMAT_FP8, 3u);
IS(TQ_FORMAT_INT8, 4u);
IS(TQ_FORMAT_LM4, 5u);
IS(TQ_FORMAT_LM3, 6u);
IS(TQ_FORMAT_LM2, 7u);
IS(TQ_FORMAT_POLAR, 11u);
IS(TQ_FORMAT_POLAR_QJL, 12u);
IS(TQ_FORMAT_LM3_QJL, 13u);
IS(TQ_FORMAT_LM2_QJL, 14u);
IS(TQ_VARIANT_BF16, 1u);
IS(TQ_VARIANT_F16, 2u);
IS(TQ_VARIANT_FP8, 3u);
IS(TQ_VARIANT_INT8, 4u);
IS(TQ_VARIANT_K8V4, 5u);
IS(TQ_VARIANT_4BIT_NC, 6u);
IS(TQ_VARIANT_K3V4_NC, 7u);
IS(TQ_VARIANT_3BIT_NC, 8u);
IS(TQ_VARIANT_K3V2_NC, 9u);
IS(TQ_VARIANT_2BIT_NC, 10u);
IS(TQ_VARIANT_POLAR, 11u);
IS(TQ_VARIANT_POLAR_QJL, 12u);
IS(TQ_VARIANT_PROD4, 13u);
IS(TQ_VARIANT_PROD3, 14u);
IS(TQ_ROLE_K, 1u);
IS(TQ_ROLE_V, 2u);
IS(TQ_FORMAT_UNBIASED_DOT, 1u);
IS(TQ_FORMAT_PORTABLE_CODES, 2u);
IS(TQ_FORMAT_ROTATED, 4u);
IS(TQ_ATTEND_CAUSAL, 1u);
IS(TQ_CACHE_MLA, 1u);
IS(TQ_ATTEND_ALIBI, 4u);
