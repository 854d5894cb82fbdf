#include "api/objects.h"

enum { MAX_HEADS = 1 << 23 }; /* 65536 kv heads with groups of 128 */

tq_status tq_merge(const tq_context *ctx, uint32_t n_tokens, uint32_t n_heads, uint32_t dim,
                   const tq_rows_in *a, const float *lse_a, const tq_rows_in *b, const float *lse_b,
                   const tq_rows_out *out, float *lse, tq_stream stream) {
    TQI_REQUIRE(ctx != NULL, "ctx: must not be NULL");
    TQI_REQUIRE(n_heads >= 1 && n_heads <= MAX_HEADS, "n_heads: must be 1 to %d, not %u", MAX_HEADS,
                n_heads);
    TQI_REQUIRE(dim >= 1 && dim <= 4096, "dim: must be 1 to 4096, not %u", dim);
    if (!ctx->device.merge)
        return tqi_fail(TQ_ERR_UNSUPPORTED, "merge: device %s has no kernel yet", ctx->device.name);
    if (n_tokens == 0)
        return TQ_OK;
    struct tqi_merge_job job = {.n_tokens = n_tokens,
                                .n_heads = n_heads,
                                .dim = dim,
                                .lse = {lse_a, lse_b},
                                .lse_out = lse,
                                .executor = &ctx->executor};
    TQI_TRY(tqi_check_rows_in("a", a, n_heads, dim, &job.part[0]));
    TQI_TRY(tqi_check_rows_in("b", b, n_heads, dim, &job.part[1]));
    TQI_TRY(tqi_check_rows_out("out", out, n_heads, dim, &job.out));
    TQI_REQUIRE(lse_a != NULL, "lse_a: must not be NULL");
    TQI_REQUIRE(lse_b != NULL, "lse_b: must not be NULL");
    return ctx->device.merge(&ctx->device, &job, stream);
}
