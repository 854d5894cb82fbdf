/* What the CUDA checks share: a count of results, device buffers, random rows, and a pair of
 * caches, one on the CPU with the reference kernels and one on the GPU, that are fed alike. */
#ifndef TEST_CUDA_GPU_H
#define TEST_CUDA_GPU_H

#include <stdint.h>

#include "tq/tq.h"

/* ---- results ------------------------------------------------------------------------------- */

/* One check: counts it, and prints it when it failed. Returns ok. */
int gpu_expect(int ok, const char *format, ...) __attribute__((format(printf, 2, 3)));
/* A call of the library that must succeed. */
#define GPU_OK(call) gpu_ok((call), #call)
void gpu_ok(tq_status status, const char *call);
/* A call of the CUDA runtime that must succeed; ends the program else. */
#define GPU_CUDA(call) gpu_cuda((int)(call), #call)
void gpu_cuda(int error, const char *call);
/* An error of attention: the report names the worst of each pair of formats. */
void gpu_error_seen(tq_format k, tq_format v, double error);
/* Prints the worst since the last time. */
void gpu_worst(const char *what);
/* Prints the total; the exit code. */
int gpu_report(void);
/* Of a group that can be run in n parts: this process has the part-th, from 0 on; whether it has
 * the i-th thing. */
void gpu_take_part(uint32_t part, uint32_t n);
int gpu_has(uint32_t i);

/* ---- data ---------------------------------------------------------------------------------- */

uint32_t gpu_random(void);
float gpu_gauss(void);
size_t gpu_size(tq_dtype dtype);
/* Rows of n elements in a type: Gaussian with a few loud channels. */
void *gpu_rows(tq_dtype dtype, size_t n, uint32_t dim);
void gpu_set(void *rows, tq_dtype dtype, size_t i, float value);
float gpu_get(const void *rows, tq_dtype dtype, size_t i);
/* To device memory; it has arrived when this returns. */
void gpu_write(void *device, const void *from, size_t bytes);
/* gpu_rows() in bf16, also on the device. */
void *gpu_fill_rows(void *device, size_t n, uint32_t dim);
/* Device memory: a copy of host bytes, or bytes of 0xFF. */
void *gpu_upload(const void *from, size_t bytes);
void *gpu_buffer(size_t bytes);
void gpu_download(void *to, const void *from, size_t bytes);
void gpu_release(void *device);
/* ||a - b|| / ||b||; infinity when a has what is not finite. */
double gpu_error(const float *a, const float *b, size_t n);

/* ---- a pair of caches ---------------------------------------------------------------------- */

struct pair {
    tq_context *cpu_context, *gpu_context;
    tq_cache *cpu, *gpu;
    tq_cache_config config; /* resolved */
    tq_layer_formats formats;
    tq_stream stream; /* of GPU calls */
    double tolerance; /* of attention */
    tq_dtype q_dtype; /* of random queries */
};

/* TQ_CONTEXT_* of the contexts that pairs will have. */
void pair_use_flags(uint32_t flags);
/* Contexts whose memory starts as 0xFF bytes; config: shape, the rest is filled in. */
int pair_create(struct pair *p, tq_cache_config config, tq_format k, tq_format v);
void pair_destroy(struct pair *p);
/* Sequence ids are the same in both caches. */
tq_seq pair_seq(struct pair *p);
/* Appends n random rows of a type; bad: with NaNs, infinities, zero and extreme rows. */
void pair_append(struct pair *p, tq_seq seq, uint32_t n, tq_dtype dtype, int bad);
/* Of a call with n query tokens for a sequence, which prefill kernels may take: their operands are
 * single 16-bit floats. */
double pair_tolerance(const struct pair *p, uint32_t n_queries);
/* Compares all pages byte for byte: one check. */
void pair_check_pages(struct pair *p, tq_seq seq, const char *what);
/* Compares the decoded rows: one check. */
void pair_check_rows(struct pair *p, tq_seq seq, const char *what);
/* Attention of random queries: compares out and lse, one check. */
void pair_check_params(struct pair *p, tq_seq seq, uint32_t n_queries,
                       const tq_attend_params *params, const char *what);
/* Attention of one token's queries, [n_q_heads][head_dim]: one check. */
void pair_check_query(struct pair *p, tq_seq seq, const float *query,
                      const tq_attend_params *params, const char *what);
/* Appends n rows to keys and values alike: [n][n_kv_heads][head_dim]. */
void pair_append_rows(struct pair *p, tq_seq seq, uint32_t n, const float *rows);
/* The same without window and softcap. */
void pair_check_attend(struct pair *p, tq_seq seq, uint32_t n_queries, uint32_t flags,
                       const char *what);

/* ---- the checks ---------------------------------------------------------------------------- */

void check_bytes(void);
void check_attention(void);
void check_sequences(void);
void check_snapshots(void);
void check_walks(void);
void check_device(void);
void check_batches(void);
void check_windows(void);
void check_prefill(void);
void check_prefill_sanitize(void);
void check_random(void);
void check_fp8(void);
void check_special(void);
void check_repeated(tq_format k, tq_format v);
void check_batches_of(tq_layer_formats formats);
void check_sanitize(void);
void check_sanitize_fp8(void);
void check_bytes_sanitize(void);
void check_batches_sanitize(void);
void check_paged(void);
void check_slots(void);
void check_steps(void);
void check_chains(void);
void check_paged_sanitize(void);
void check_paged_refused(void);
void check_merge(void);
void check_cases(void);
void check_two(void);
void check_kept(void);
void check_kept_sanitize(void);

#endif
