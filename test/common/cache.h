/* More to do with a rig: pages, and answers to given queries. */
#ifndef TEST_COMMON_CACHE_H
#define TEST_COMMON_CACHE_H

#include "common/rig.h"

tq_variant_info variant_of(tq_variant id);

/* The bytes of a page and kv head, allocated; *size tells how many. */
void *page_bytes(const struct rig *r, tq_seq seq, uint32_t layer, uint64_t page, uint32_t kv_head,
                 size_t *size);
/* The pages of the first n_tokens of two sequences are equal, every head. Slots that no token
 * fills hold anything, so n_tokens must end with a page. */
void check_same_pages(const struct rig *a, tq_seq a_seq, const struct rig *b, tq_seq b_seq,
                      uint32_t layer, uint64_t n_tokens, const char *what);

/* Asks with a copy of the queries [n_queries][n_q_heads][head_dim]. */
struct asked ask_with(const struct rig *r, tq_seq seq, uint32_t layer, uint32_t n_queries,
                      uint32_t flags, const float *q);
/* Asks and compares with answers that are at hand: bit for bit. */
void check_answer(const struct rig *r, tq_seq seq, uint32_t layer, const struct asked *want,
                  const char *what);
/* Answers against attention in double over keys and values of the test. */
void check_against_rows(const struct rig *r, const struct asked *a, uint32_t n_tokens,
                        const float *k, const float *v, double tolerance, const char *what);

/* Largest error of a decoded unit vector. It is exact in formats that do not rotate. A
 * rotated one has dims of one size, which the codes of int8 and lm* meet exactly: what is
 * left is the rounding of the gain, fp16 for keys and bf16 for values. */
double one_hot_error(tq_format id, uint32_t role);

#endif
