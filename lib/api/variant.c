#include <string.h>

#include "api/objects.h"

/* Sizes are quoted at this head_dim. */
enum { QUOTED_DIM = 128 };

uint32_t tq_format_count(void) {
    return tqi_format_total();
}

uint32_t tq_variant_count(void) {
    return tqi_variant_total();
}

static uint32_t quoted_bytes(const struct tqi_format *f) {
    struct tqi_layout layout;
    return tqi_row_layout_make(&layout, f, QUOTED_DIM);
}

static uint32_t flags_of(const struct tqi_format *f) {
    return TQ_FORMAT_PORTABLE_CODES | (tqi_format_rotates(f) ? TQ_FORMAT_ROTATED : 0) |
           (f->sketch ? TQ_FORMAT_UNBIASED_DOT : 0);
}

static uint32_t devices_of(const struct tqi_format *f) {
    return 1u << TQ_DEVICE_CPU | (tqi_cuda_has_format(f->id) ? 1u << TQ_DEVICE_CUDA : 0);
}

tq_status tq_format_get(uint32_t index, tq_format_info *info) {
    TQI_REQUIRE(info != NULL, "info: must not be NULL");
    TQI_TRY(tqi_struct_check_out("format info", sizeof *info, info));
    const struct tqi_format *f = tqi_format_at(index);
    if (!f)
        return tqi_fail(TQ_ERR_NOT_FOUND, "no format at index %u", index);
    tq_format_info full = {.id = f->id,
                           .name = f->name,
                           .summary = f->summary,
                           .roles = f->roles,
                           .millibits = quoted_bytes(f) * 8000 / QUOTED_DIM,
                           .devices = devices_of(f),
                           .flags = flags_of(f),
                           .mse = f->mse,
                           .dot_error = f->dot_error};
    tqi_struct_out(info, &full, sizeof full);
    return TQ_OK;
}

tq_status tq_format_find(const char *name, tq_format *out) {
    TQI_REQUIRE(name && out, "name and out: must not be NULL");
    for (uint32_t i = 0; i < tqi_format_total(); i++)
        if (strcmp(tqi_format_at(i)->name, name) == 0) {
            *out = tqi_format_at(i)->id;
            return TQ_OK;
        }
    return tqi_fail(TQ_ERR_NOT_FOUND, "no format named \"%.64s\"", name);
}

tq_status tq_variant_get(uint32_t index, tq_variant_info *info) {
    TQI_REQUIRE(info != NULL, "info: must not be NULL");
    TQI_TRY(tqi_struct_check_out("variant info", sizeof *info, info));
    const struct tqi_variant *v = tqi_variant_at(index);
    if (!v)
        return tqi_fail(TQ_ERR_NOT_FOUND, "no variant at index %u", index);
    const struct tqi_format *k = tqi_format_by_id(v->k_format), *f = tqi_format_by_id(v->v_format);
    tq_variant_info full = {.id = v->id,
                            .name = v->name,
                            .summary = v->summary,
                            .k_format = v->k_format,
                            .v_format = v->v_format,
                            .bytes_per_token_head = quoted_bytes(k) + quoted_bytes(f),
                            .flags = flags_of(k) & flags_of(f)};
    tqi_struct_out(info, &full, sizeof full);
    return TQ_OK;
}

tq_status tq_variant_find(const char *name, tq_variant *out) {
    TQI_REQUIRE(name && out, "name and out: must not be NULL");
    for (uint32_t i = 0; i < tqi_variant_total(); i++)
        if (strcmp(tqi_variant_at(i)->name, name) == 0) {
            *out = tqi_variant_at(i)->id;
            return TQ_OK;
        }
    return tqi_fail(TQ_ERR_NOT_FOUND, "no variant named \"%.64s\"", name);
}
