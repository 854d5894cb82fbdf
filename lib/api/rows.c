#include "api/objects.h"

static tq_status check(const char *name, const void *data, tq_dtype dtype, uint32_t reserved) {
    TQI_REQUIRE(data != NULL, "%s: data must not be NULL", name);
    TQI_REQUIRE(dtype == TQ_F32 || dtype == TQ_F16 || dtype == TQ_BF16,
                "%s: dtype %d is none of TQ_F32, TQ_F16, TQ_BF16", name, dtype);
    TQI_REQUIRE(reserved == 0, "%s: reserved must be 0", name);
    uintptr_t align = dtype == TQ_F32 ? 4 : 2;
    TQI_REQUIRE((uintptr_t)data % align == 0, "%s: data is not aligned to its %d-byte elements",
                name, (int)align);
    return TQ_OK;
}

static void resolve(int64_t *token_stride, int64_t *head_stride, uint32_t n_heads, uint32_t dim) {
    if (*head_stride == 0)
        *head_stride = dim;
    if (*token_stride == 0)
        *token_stride = *head_stride * (int64_t)n_heads;
}

tq_status tqi_check_rows_in(const char *name, const tq_rows_in *rows, uint32_t n_heads,
                            uint32_t dim, tq_rows_in *out) {
    TQI_REQUIRE(rows != NULL, "%s: must not be NULL", name);
    TQI_TRY(check(name, rows->data, rows->dtype, rows->reserved));
    *out = *rows;
    resolve(&out->token_stride, &out->head_stride, n_heads, dim);
    return TQ_OK;
}

tq_status tqi_check_rows_out(const char *name, const tq_rows_out *rows, uint32_t n_heads,
                             uint32_t dim, tq_rows_out *out) {
    TQI_REQUIRE(rows != NULL, "%s: must not be NULL", name);
    TQI_TRY(check(name, rows->data, rows->dtype, rows->reserved));
    *out = *rows;
    resolve(&out->token_stride, &out->head_stride, n_heads, dim);
    return TQ_OK;
}
