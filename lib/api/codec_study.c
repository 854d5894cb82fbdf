#include "api/codec.h"
#include "tq/study.h"

static tq_status check_polar(const tq_codec_study *s, const struct tqi_format *f, uint32_t dim) {
    uint32_t levels = s->polar_levels ? s->polar_levels : TQI_POLAR_LEVELS, given = 0;
    for (uint32_t l = 0; l < TQ_STUDY_LEVELS; l++)
        given |= s->polar_bits[l];
    if (f->kind != TQI_KIND_POLAR) {
        TQI_REQUIRE(!s->polar_levels && !given, "polar_levels, polar_bits: format %s is not polar",
                    f->name);
        return TQ_OK;
    }
    TQI_REQUIRE(levels <= TQ_STUDY_LEVELS, "polar_levels: %u is more than %d", levels,
                TQ_STUDY_LEVELS);
    TQI_REQUIRE(dim % (1u << levels) == 0, "polar_levels: dim %u is no multiple of blocks of %u",
                dim, 1u << levels);
    for (uint32_t l = 0; given && l < TQ_STUDY_LEVELS; l++) {
        uint32_t bits = s->polar_bits[l];
        TQI_REQUIRE(l < levels ? bits >= 1 && bits <= (l ? 6u : 8u) : bits == 0,
                    "polar_bits: %u bits at level %u of %u", bits, l + 1, levels);
    }
    return TQ_OK;
}

static tq_status check_study(const tq_codec_study *s, const struct tqi_format *f, uint32_t dim) {
    TQI_REQUIRE(s->reserved == 0, "reserved: must be 0");
    if (f->kind != TQI_KIND_POLAR && !f->sketch)
        return tqi_fail(TQ_ERR_UNSUPPORTED, "format %s has neither polar angles nor a sketch",
                        f->name);
    TQI_TRY(check_polar(s, f, dim));
    TQI_REQUIRE(!s->sketch_signs || f->sketch, "sketch_signs: format %s has no sketch", f->name);
    TQI_REQUIRE(s->sketch_signs % 8 == 0 && s->sketch_signs <= TQI_STUDY_PARTS * dim,
                "sketch_signs: %u is not a multiple of 8 up to %u", s->sketch_signs,
                TQI_STUDY_PARTS * dim);
    return TQ_OK;
}

static void set_parameters(struct tqi_study *to, const tq_codec_study *s,
                           const struct tqi_format *f, uint32_t dim) {
    to->signs = !f->sketch ? 0 : s->sketch_signs ? s->sketch_signs : dim;
    if (f->kind != TQI_KIND_POLAR)
        return;
    to->levels = s->polar_levels ? s->polar_levels : TQI_POLAR_LEVELS;
    for (uint32_t l = 0; l < to->levels; l++)
        to->bits[l] = s->polar_bits[0] ? s->polar_bits[l] : l ? 2 : 4;
}

static tq_status fill(tq_codec *codec, const tq_codec_config *c, const tq_codec_study *s,
                      const struct tqi_format *f) {
    codec->study = tqi_calloc(&codec->heap, 1, sizeof *codec->study);
    if (!codec->study)
        return TQ_ERR_OUT_OF_MEMORY;
    set_parameters(codec->study, s, f, c->dim);
    codec->n_flips = tqi_study_flips(codec->study, c->dim);
    codec->flips = tqi_calloc(&codec->heap, codec->n_flips, sizeof *codec->flips);
    if (!codec->flips)
        return TQ_ERR_OUT_OF_MEMORY;
    tqi_study_init(codec->study, f, c->dim, c->seed, codec->flips);
    codec->rows.rows.layout = codec->study->base.layout;
    codec->rows.row_bytes = codec->study->row_bytes;
    return TQ_OK;
}

tq_status tq_codec_create_study(tq_context *ctx, const tq_codec_config *config,
                                const tq_codec_study *study, tq_codec **out) {
    tq_codec_config c;
    tq_codec_study s;
    const struct tqi_format *format = NULL;
    tq_codec *codec;
    TQI_REQUIRE(ctx && config && study && out, "context, config, study and out: must not be NULL");
    TQI_TRY(tqi_struct_in("codec config", &c, sizeof c, sizeof c, config));
    TQI_TRY(tqi_struct_in("codec study", &s, sizeof s, sizeof s, study));
    TQI_TRY(tqi_codec_check(ctx, &c, &format));
    TQI_TRY(check_study(&s, format, c.dim));
    TQI_TRY(tqi_codec_start(ctx, &codec));
    tq_status status = fill(codec, &c, &s, format);
    if (status != TQ_OK) {
        tq_codec_destroy(codec);
        return status;
    }
    *out = codec;
    return TQ_OK;
}
