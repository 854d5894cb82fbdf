#include "page/move.h"

#include "spec/codes.h"

/* n tokens from one place to another. */
struct move {
    uint8_t *to;
    const uint8_t *from;
    uint32_t to_token, from_token, n;
};

/* ---- keys -------------------------------------------------------------------------------- */

/* Whether no 32-bit element of the codes holds bits of two tokens: sets of words that share
 * slabs end with a group. */
static int has_own_elements(const struct tqi_layout *l) {
    return l->bits >= 4 || l->dim_pad / 32 % tqi_share(l->bits) == 0;
}

/* Elements of a token in the first slab of its group. */
static size_t element_offset(const struct tqi_layout *l, uint32_t slabs, uint32_t token) {
    uint32_t in_group = token % l->group;
    size_t slab = (size_t)(token / l->group) * slabs;
    return l->codes + (slab * tqi_slab_lanes(l) + in_group / 4 * 16 + in_group % 4) * 4;
}

/* Four tokens that are neighbours in both places, or one. */
static void copy_elements(const struct tqi_layout *l, const struct move *m, uint32_t i,
                          uint32_t slabs, uint32_t tokens) {
    uint8_t *to = m->to + element_offset(l, slabs, m->to_token + i);
    const uint8_t *from = m->from + element_offset(l, slabs, m->from_token + i);
    size_t slab_bytes = (size_t)tqi_slab_lanes(l) * 4;
    for (uint32_t slab = 0; slab < slabs; slab++, to += slab_bytes, from += slab_bytes) {
        if (tokens == 4) {
            memcpy(to, from, 64);
            continue;
        }
        for (uint32_t lane = 0; lane < 4; lane++)
            memcpy(to + lane * 16, from + lane * 16, 4);
    }
}

static void move_elements(const struct tqi_layout *l, const struct move *m) {
    uint32_t slabs = l->dim_pad / 32 * l->bits / 4, step;
    for (uint32_t i = 0; i < m->n; i += step) {
        int aligned = (m->to_token + i) % 4 == 0 && (m->from_token + i) % 4 == 0;
        step = aligned && m->n - i >= 4 ? 4 : 1;
        copy_elements(l, m, i, slabs, step);
    }
}

static void move_words(const struct tqi_layout *l, const struct move *m) {
    for (uint32_t i = 0; i < m->n; i++)
        for (uint32_t dim = 0; dim < l->dim_pad; dim += 8) {
            struct tqi_place to = tqi_place_k(l, m->to_token + i, dim);
            struct tqi_place from = tqi_place_k(l, m->from_token + i, dim);
            tqi_put_word(l, m->to, to.word, to.lane, tqi_get_word(l, m->from, from.word, from.lane),
                         UINT32_MAX);
        }
}

static void move_polar(const struct tqi_layout *l, const struct move *m) {
    for (uint32_t i = 0; i < m->n; i++)
        for (uint32_t block = 0; block < l->dim_pad / TQI_POLAR_BLOCK; block++) {
            uint32_t to = m->to_token + i, from = m->from_token + i;
            tqi_put_polar(l, m->to, to, block, tqi_get_polar(l, m->from, from, block));
            memcpy(m->to + l->gains + (size_t)tqi_polar_element(l, to, block) * 2,
                   m->from + l->gains + (size_t)tqi_polar_element(l, from, block) * 2, 2);
        }
}

static void move_sketch(const struct tqi_layout *l, const struct move *m) {
    for (uint32_t i = 0; i < m->n; i++)
        for (uint32_t dim = 0; dim < l->dim_pad; dim += 8) {
            struct tqi_place to = tqi_place_k(l, m->to_token + i, dim);
            struct tqi_place from = tqi_place_k(l, m->from_token + i, dim);
            m->to[l->sketch + tqi_sketch_byte(l, to)] =
                m->from[l->sketch + tqi_sketch_byte(l, from)];
        }
}

/* ---- values ------------------------------------------------------------------------------ */

/* Eight tokens of the target from 8 * granule on, of which [first, last) are moved. They come
 * from one or two such eights of the source: token i is number shift + i of them. */
struct window {
    uint32_t granule, first, last;
    uint32_t low, shift; /* first eight of the source, where uses_low */
    int uses_low, uses_high;
};

static struct window window_of(const struct move *m, uint32_t granule) {
    struct window w = {.granule = granule, .first = 0, .last = 8};
    uint32_t start = granule * 8, end = m->to_token + m->n;
    if (start < m->to_token)
        w.first = m->to_token - start;
    if (end - start < 8)
        w.last = end - start;
    /* Source token of target token `start`, eight higher so that it is not negative. */
    uint32_t source = m->from_token + start + 8 - m->to_token;
    w.shift = source % 8;
    w.uses_low = w.shift + w.first < 8;
    w.uses_high = w.shift + w.last > 8;
    w.low = source / 8 - (uint32_t)w.uses_low;
    return w;
}

/* First word and lane of the eight tokens of a granule. */
static uint32_t granule_word(const struct tqi_layout *l, uint32_t granule) {
    return granule / (l->group / 8) * (l->dim_pad / 32);
}

static uint32_t granule_lane(const struct tqi_layout *l, uint32_t granule, uint32_t owner) {
    return (owner * (l->group / 8) + granule % (l->group / 8)) * 4;
}

/* Codes 0..7 of a value word are tokens 0 1 4 5 2 3 6 7: to the order of tokens, and back. */
static uint32_t reorder(uint32_t codes) {
    return (codes & 0xff0000ffu) | (codes & 0xff00u) << 8 | (codes & 0xff0000u) >> 8;
}

static uint32_t window_codes(const struct tqi_layout *l, const uint8_t *from,
                             const struct window *w, uint32_t x, uint32_t owner, uint32_t y) {
    uint64_t codes = 0;
    if (w->uses_low)
        codes = reorder(
            tqi_get_word(l, from, granule_word(l, w->low) + x, granule_lane(l, w->low, owner) + y));
    uint32_t high = w->low + (uint32_t)w->uses_low;
    if (w->uses_high)
        codes |= (uint64_t)reorder(tqi_get_word(l, from, granule_word(l, high) + x,
                                                granule_lane(l, high, owner) + y))
                 << 32;
    return reorder((uint32_t)(codes >> 4 * w->shift));
}

static void move_narrow(const struct tqi_layout *l, const struct move *m, const struct window *w) {
    uint32_t below_last = w->last == 8 ? UINT32_MAX : (UINT32_C(1) << 4 * w->last) - 1;
    uint32_t mask = reorder(below_last & ~((UINT32_C(1) << 4 * w->first) - 1));
    for (uint32_t x = 0; x < l->dim_pad / 32; x++)
        for (uint32_t owner = 0; owner < 8; owner++)
            for (uint32_t y = 0; y < 4; y++)
                tqi_put_word(l, m->to, granule_word(l, w->granule) + x,
                             granule_lane(l, w->granule, owner) + y,
                             window_codes(l, m->from, w, x, owner, y), mask);
}

/* Bytes from the first 8-bit or 16-bit code of eight tokens of a dim to that of token e. */
static size_t wide_step(const struct tqi_layout *l, uint32_t e) {
    struct tqi_place p = {.code = (e & 1u) | (e >> 2) << 1 | (e >> 1 & 1u) << 2};
    uint32_t part = tqi_wide_part(l, e, p), per_word = 32 / l->bits;
    size_t slab_bytes = (size_t)tqi_slab_lanes(l) * 4;
    return part / per_word * (l->dim_pad / 32) * slab_bytes + part % per_word * (l->bits / 8);
}

/* Of the code of a token's dim 0 in lane 0. */
static size_t wide_start(const struct tqi_layout *l, uint32_t granule) {
    uint32_t slabs = 8 / (32 / l->bits);
    return l->codes + ((size_t)granule_word(l, granule) * slabs * tqi_slab_lanes(l) +
                       granule_lane(l, granule, 0)) *
                          4;
}

static void move_wide_token(const struct tqi_layout *l, const struct move *m, uint32_t to_token,
                            uint32_t from_token) {
    uint8_t *to = m->to + wide_start(l, to_token / 8) + wide_step(l, to_token % 8);
    const uint8_t *from = m->from + wide_start(l, from_token / 8) + wide_step(l, from_token % 8);
    size_t slab_bytes = (size_t)tqi_slab_lanes(l) * 4, owner_bytes = (size_t)(l->group / 8) * 16;
    for (uint32_t x = 0; x < l->dim_pad / 32; x++)
        for (uint32_t owner = 0; owner < 8; owner++)
            for (uint32_t y = 0; y < 4; y++) {
                size_t at = x * slab_bytes + owner * owner_bytes + y * 4;
                memcpy(to + at, from + at, l->bits / 8);
            }
}

static void move_values(const struct tqi_layout *l, const struct move *m) {
    if (l->bits >= 8) {
        for (uint32_t i = 0; i < m->n; i++)
            move_wide_token(l, m, m->to_token + i, m->from_token + i);
        return;
    }
    for (uint32_t granule = m->to_token / 8; granule * 8 < m->to_token + m->n; granule++) {
        struct window w = window_of(m, granule);
        move_narrow(l, m, &w);
    }
}

/* ---- a side, a blob ---------------------------------------------------------------------- */

static void move_gains(size_t section, uint32_t size, const struct move *m) {
    if (size)
        memcpy(m->to + section + (size_t)m->to_token * 2,
               m->from + section + (size_t)m->from_token * 2, (size_t)m->n * 2);
}

static void move_side(const struct tqi_layout *l, const struct move *m) {
    if (l->kind == TQI_KIND_POLAR)
        move_polar(l, m);
    else if (l->side == TQI_SIDE_V)
        move_values(l, m);
    else if (has_own_elements(l))
        move_elements(l, m);
    else
        move_words(l, m);
    if (l->sketch_size)
        move_sketch(l, m);
    if (l->kind != TQI_KIND_POLAR)
        move_gains(l->gains, l->gains_size, m);
    move_gains(l->sketch_gains, l->sketch_gains_size, m);
}

/* All tokens: sections as they are, and no byte between them. */
static void copy_side(const struct tqi_layout *l, const struct move *m) {
    memcpy(m->to + l->codes, m->from + l->codes, l->codes_size);
    memcpy(m->to + l->sketch, m->from + l->sketch, l->sketch_size);
    memcpy(m->to + l->gains, m->from + l->gains, l->gains_size);
    memcpy(m->to + l->sketch_gains, m->from + l->sketch_gains, l->sketch_gains_size);
}

void tqi_blob_move(const struct tqi_page_layout *page, uint8_t *to, uint32_t to_token,
                   const uint8_t *from, uint32_t from_token, uint32_t n) {
    const struct move m = {
        .to = to, .from = from, .to_token = to_token, .from_token = from_token, .n = n};
    int all = n == page->k.tokens;
    if (n == 0)
        return;
    (all ? copy_side : move_side)(&page->k, &m);
    (all ? copy_side : move_side)(&page->v, &m);
}
