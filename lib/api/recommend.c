/* Advice. The rules are those of docs/ACCURACY.md, in one place, what is said of speed is that of
 * docs/PERFORMANCE.md; the figures are those of formats.def. */
#include "tq/recommend.h"

#include <math.h>

#include "api/objects.h"

enum { MAX_DIM = 1024, PAGE_TOKENS = 64, ALL_FLAGS = 7 };

/* Errors that no longer show in attention: those of int8, with a little room. */
#define NEGLIGIBLE_DOT_ERROR 1e-2
#define NEGLIGIBLE_MSE 1e-4

/* ---- candidates -------------------------------------------------------------------------- */

struct candidate {
    const struct tqi_variant *variant;
    const struct tqi_format *k, *v;
    uint32_t millibits;
};

static uint32_t millibits_of(const struct tqi_format *k, const struct tqi_format *v, uint32_t dim) {
    struct tqi_page_layout page;
    tqi_page_layout_make(&page, k, dim, v, dim, PAGE_TOKENS);
    return (uint32_t)((uint64_t)page.bytes * 8000 / (2 * (uint64_t)dim * PAGE_TOKENS));
}

static int runs_on(const struct tqi_format *f, tq_device device) {
    return device == TQ_DEVICE_CPU || tqi_cuda_has_format(f->id);
}

/* Whether the variant can do what is asked for, whatever it costs. */
static int suits(const struct candidate *c, const tq_recommend_query *q) {
    int large = q->flags & TQ_RECOMMEND_LARGE_KEY_MEANS && !(q->flags & TQ_RECOMMEND_CENTRED);
    int exact = c->k->kind == TQI_KIND_F16BIT;
    if (!runs_on(c->k, q->device) || !runs_on(c->v, q->device))
        return 0;
    if (c->k->kind == TQI_KIND_POLAR)
        return 0; /* slower, and no closer worth the bytes */
    if (q->flags & TQ_RECOMMEND_UNBIASED)
        return c->k->sketch || exact;
    if (c->k->sketch)
        return 0; /* another variant is closer at these bytes */
    return !large || c->k->id == TQ_FORMAT_F16;
}

static int within_limits(const struct candidate *c, double max_dot_error, double max_mse) {
    return (max_dot_error <= 0 || c->k->dot_error <= max_dot_error) &&
           (max_mse <= 0 || c->v->mse <= max_mse);
}

/* Scores err by the squared dot error, values by their mse; both enter the output. */
static double error_of(const struct candidate *c) {
    return c->k->dot_error * c->k->dot_error + c->v->mse;
}

/* ---- choice ------------------------------------------------------------------------------ */

struct choice {
    struct candidate cheapest; /* that keeps the limits, or whose error does not show */
    struct candidate closest;  /* least error within the budget */
    struct candidate smallest; /* fewest bits of all that suit */
};

static void consider(struct choice *best, const struct candidate *c, const tq_recommend_query *q) {
    int limited = q->max_dot_error > 0 || q->max_mse > 0;
    double dot_error = limited ? q->max_dot_error : NEGLIGIBLE_DOT_ERROR;
    double mse = limited ? q->max_mse : NEGLIGIBLE_MSE;
    if (!best->smallest.variant || c->millibits < best->smallest.millibits)
        best->smallest = *c;
    if (q->max_millibits && c->millibits > q->max_millibits)
        return;
    if (!best->closest.variant || error_of(c) < error_of(&best->closest))
        best->closest = *c;
    if (within_limits(c, dot_error, mse) &&
        (!best->cheapest.variant || c->millibits < best->cheapest.millibits))
        best->cheapest = *c;
}

static void choose(const tq_recommend_query *q, struct choice *best) {
    for (uint32_t i = 0; i < tqi_variant_total(); i++) {
        struct candidate c = {.variant = tqi_variant_at(i)};
        c.k = tqi_format_by_id(c.variant->k_format);
        c.v = tqi_format_by_id(c.variant->v_format);
        if (tqi_rows_check_dim(c.k, q->head_dim, MAX_DIM) ||
            tqi_rows_check_dim(c.v, q->head_dim, MAX_DIM))
            continue;
        c.millibits = millibits_of(c.k, c.v, q->head_dim);
        if (suits(&c, q))
            consider(best, &c, q);
    }
}

/* ---- words ------------------------------------------------------------------------------- */

static const char *advice_of(const struct candidate *c, const tq_recommend_query *q) {
    int centred = q->flags & TQ_RECOMMEND_CENTRED;
    if (q->flags & TQ_RECOMMEND_UNBIASED && c->k->sketch)
        return "the sketch of the residual makes every score unbiased, at more variance";
    if (q->flags & TQ_RECOMMEND_LARGE_KEY_MEANS && !centred)
        return "large key means that stay in need 16-bit keys; fit the means, and 8 bits or fewer "
               "do";
    if (c->k->bits <= 3 && !centred)
        return "3-bit keys want their means taken out: fit them before the first append";
    if (c->k->bits <= 3)
        return "centred keys, at about twice the score error of 4 bits";
    if (c->k->id == TQ_FORMAT_INT8)
        return "as good as 16 bits in attention, 16 times less error than fp8 at its size";
    if (c->k->kind == TQI_KIND_F16BIT)
        return "nothing smaller keeps these limits";
    if (c->k->kind == TQI_KIND_FP8 && q->device == TQ_DEVICE_CPU)
        return "the least error within the budget, on a CPU little faster than 16 bits, since "
               "e4m3 has to be converted";
    return "the least error within the budget";
}

static void fill(const struct candidate *c, const tq_recommend_query *q, tq_recommendation *full) {
    full->variant = c->variant->id;
    full->millibits = c->millibits;
    full->page_tokens = PAGE_TOKENS;
    full->dot_error = c->k->dot_error;
    full->mse = c->v->mse;
    tqi_format_text(full->reason, sizeof full->reason,
                    "%s: %u.%02u bits per value at head_dim %u, so %.1f times fewer to read than "
                    "16, score error "
                    "%.3g, value error %.3g; %s.",
                    c->variant->name, c->millibits / 1000, c->millibits % 1000 / 10, q->head_dim,
                    16000.0 / c->millibits, c->k->dot_error, sqrt(c->v->mse), advice_of(c, q));
}

/* ---- query ------------------------------------------------------------------------------- */

static tq_status check_query(const tq_recommend_query *from, tq_recommend_query *q) {
    TQI_REQUIRE(from != NULL, "recommend query: must not be NULL");
    TQI_TRY(tqi_struct_in("recommend query", q, sizeof *q, sizeof *q, from));
    TQI_REQUIRE(q->device == TQ_DEVICE_CPU || q->device == TQ_DEVICE_CUDA,
                "device: %d is neither TQ_DEVICE_CPU nor TQ_DEVICE_CUDA", q->device);
    TQI_REQUIRE((q->flags & ~(uint32_t)ALL_FLAGS) == 0 && q->reserved == 0,
                "recommend query: unknown flags 0x%x, or reserved is not 0", q->flags);
    TQI_REQUIRE(q->max_dot_error >= 0 && q->max_mse >= 0 && isfinite(q->max_dot_error) &&
                    isfinite(q->max_mse),
                "max_dot_error, max_mse: must be finite and not negative");
    const char *why = tqi_rows_check_dim(tqi_format_by_id(TQ_FORMAT_F16), q->head_dim, MAX_DIM);
    TQI_REQUIRE(!why, "head_dim: %u: %s", q->head_dim, why);
    if (!runs_on(tqi_format_by_id(TQ_FORMAT_F16), q->device))
        return tqi_fail(TQ_ERR_UNSUPPORTED,
                        "device: this build of the library has no CUDA kernels");
    return TQ_OK;
}

static tq_status nothing_fits(const struct choice *best) {
    const struct candidate *c = best->closest.variant ? &best->closest : &best->smallest;
    if (!c->variant)
        return tqi_fail(TQ_ERR_NOT_FOUND, "no variant suits this head_dim, device and flags");
    return tqi_fail(TQ_ERR_NOT_FOUND,
                    "no variant keeps the limits; %s comes closest: %u millibits, dot_error %.3g, "
                    "mse %.3g",
                    c->variant->name, c->millibits, c->k->dot_error, c->v->mse);
}

tq_status tq_recommend(const tq_recommend_query *query, tq_recommendation *out) {
    tq_recommend_query q;
    tq_recommendation full = {.struct_size = 0};
    struct choice best = {.cheapest = {.variant = NULL}};
    TQI_REQUIRE(out != NULL, "out: must not be NULL");
    TQI_TRY(tqi_struct_check_out("recommendation", sizeof *out, out));
    TQI_TRY(check_query(query, &q));
    choose(&q, &best);
    const struct candidate *c = &best.cheapest;
    if (!c->variant && q.max_dot_error <= 0 && q.max_mse <= 0)
        c = &best.closest;
    if (!c->variant)
        return nothing_fits(&best);
    fill(c, &q, &full);
    tqi_struct_out(out, &full, sizeof full);
    return TQ_OK;
}
