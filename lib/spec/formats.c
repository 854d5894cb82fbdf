#include "spec/formats.h"

#define ROLES_KV (TQ_ROLE_K | TQ_ROLE_V)
#define ROLES_K TQ_ROLE_K

static const struct tqi_format formats[] = {
#define TQI_FORMAT(id, name, kind, bits, sketch, roles, mse, dot, summary) \
    {id, #name, TQI_KIND_##kind, bits, sketch, ROLES_##roles, mse, dot, summary},
#include "spec/formats.def"
#undef TQI_FORMAT
};

static const struct tqi_variant variants[] = {
#define TQI_VARIANT(id, name, k, v, summary) {id, #name, TQ_FORMAT_##k, TQ_FORMAT_##v, summary},
#include "spec/variants.def"
#undef TQI_VARIANT
};

uint32_t tqi_format_total(void) {
    return (uint32_t)(sizeof formats / sizeof *formats);
}

uint32_t tqi_variant_total(void) {
    return (uint32_t)(sizeof variants / sizeof *variants);
}

const struct tqi_format *tqi_format_at(uint32_t index) {
    return index < tqi_format_total() ? &formats[index] : 0;
}

const struct tqi_variant *tqi_variant_at(uint32_t index) {
    return index < tqi_variant_total() ? &variants[index] : 0;
}

const struct tqi_format *tqi_format_by_id(tq_format id) {
    for (uint32_t i = 0; i < tqi_format_total(); i++)
        if (formats[i].id == id)
            return &formats[i];
    return 0;
}

const struct tqi_variant *tqi_variant_by_id(tq_variant id) {
    for (uint32_t i = 0; i < tqi_variant_total(); i++)
        if (variants[i].id == id)
            return &variants[i];
    return 0;
}
