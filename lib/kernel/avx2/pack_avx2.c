#include "kernel/avx2/pack_avx2.h"

#include "spec/codes.h"

/* ---- the set of words that 3-bit and 2-bit codes share ------------------------------------ */

/* As in spec/codes.c: where a word lives. */
struct shared {
    uint32_t slab, member, members;
    bool last; /* of a set: its bits are in the spare bits of the others, or in planes */
};

static struct shared share(const struct tqi_layout *l, uint32_t bits, uint32_t word) {
    uint32_t size = bits == 3 ? 4 : 2, set = word / size, left = l->words - set * size;
    struct shared s = {.slab = set * (bits == 3 ? 3 : 1), .member = word % size};
    s.members = left < size ? left : size;
    s.last = s.member == s.members - 1 && (bits == 3 || s.members < size);
    return s;
}

/* ---- keys --------------------------------------------------------------------------------- */

/* Bit 0 of every nibble to a byte. */
static uint8_t squeeze(uint32_t x) {
    x = (x | x >> 3) & 0x03030303u;
    x = (x | x >> 6) & 0x000f000fu;
    return (uint8_t)(x | x >> 12);
}

/* One word of nibbles (sign placement done) to element `lane` of its slab. */
static void put_word(const struct tqi_layout *l, uint32_t bits, uint8_t *codes, uint32_t word,
                     uint32_t lane, uint32_t nibbles) {
    size_t slab = (size_t)tqi_slab_lanes(l) * 4, at = (size_t)lane * 4;
    if (bits == 4) {
        tqi_store32(codes + word * slab + at, nibbles);
        return;
    }
    struct shared s = share(l, bits, word);
    uint32_t mask = bits == 3 ? 0x77777777u : 0x33333333u;
    uint8_t *first = codes + s.slab * slab;
    if (!s.last) {
        uint32_t up = bits == 3 ? 0 : 2 * s.member;
        uint8_t *to = first + (bits == 3 ? s.member * slab : 0) + at;
        tqi_put_bits(to, mask << up, nibbles << up);
        return;
    }
    uint32_t spare = s.members - 1; /* slabs with a spare bit; the other bits go to planes */
    uint8_t *planes = first + spare * slab + lane;
    for (uint32_t bit = 0; bit < bits; bit++) {
        uint32_t x = nibbles >> bit & 0x11111111u;
        if (bit < spare)
            tqi_put_bits(first + bit * slab + at, 0x88888888u, x << 3);
        else
            planes[(bit - spare) * (slab / 4)] = squeeze(x);
    }
}

/* 32 codes to 4 words of nibbles. */
static __m128i nibbles_of(__m256i codes, uint32_t bits) {
    __m256i level = bits == 4 ? _mm256_and_si256(codes, _mm256_set1_epi8(7)) : codes;
    __m256i pairs = _mm256_maddubs_epi16(level, _mm256_set1_epi16(0x1001));
    __m128i words =
        _mm_packus_epi16(_mm256_castsi256_si128(pairs), _mm256_extracti128_si256(pairs, 1));
    if (bits != 4)
        return words;
    /* Signs of codes 0..3 to bit 7 of byte 0..3, of codes 4..7 to bit 3. */
    __m256i sign = _mm256_and_si256(codes, _mm256_set1_epi8(8));
    sign = _mm256_or_si256(_mm256_slli_epi16(sign, 4), _mm256_srli_epi64(sign, 32));
    sign = _mm256_permutevar8x32_epi32(sign, _mm256_setr_epi32(0, 2, 4, 6, 0, 2, 4, 6));
    return _mm_or_si128(words, _mm256_castsi256_si128(sign));
}

/* Element of the token in the slabs of its group, lane 0; lanes are `step` apart. */
struct slot {
    uint32_t word, lane, step;
};

static struct slot slot_of(const struct tqi_layout *l, uint32_t token) {
    uint32_t granule = l->group < 4 ? l->group : 4, in_group = token % l->group;
    struct slot s = {token / l->group * (l->dim_pad / 32),
                     in_group / granule * 4 * granule + in_group % granule, granule};
    return s;
}

void tqk_pack_k_avx2(const struct tqi_layout *l, uint32_t bits, const uint8_t *codes, uint8_t *blob,
                     uint32_t token) {
    uint32_t words[TQK_DIM_LIMIT_AVX2 / 4], per_lane = l->dim_pad / 32;
    struct slot s = slot_of(l, token);
    uint8_t *to = blob + l->codes;
    if (bits == 8) {
        size_t slab = (size_t)tqi_slab_lanes(l) * 4;
        for (uint32_t i = 0; i < l->dim_pad / 4; i++) {
            uint32_t t = i / (per_lane * 2), half = i % (per_lane * 2);
            memcpy(to + (s.word * 2 + half) * slab + (s.lane + t * s.step) * 4, codes + i * 4, 4);
        }
        return;
    }
    for (uint32_t i = 0; i < l->dim_pad; i += 32) {
        __m256i x = _mm256_loadu_si256((const __m256i *)(const void *)(codes + i));
        _mm_storeu_si128((__m128i *)(void *)(words + i / 8), nibbles_of(x, bits));
    }
    uint32_t t = 0, j = 0;
    for (uint32_t i = 0; i < l->dim_pad / 8; i++) {
        put_word(l, bits, to, s.word + j, s.lane + t * s.step, words[i]);
        t += ++j == per_lane;
        j = j == per_lane ? 0 : j;
    }
}

/* ---- values ------------------------------------------------------------------------------- */

/* Replaces the bits of `mask` in 4 words. */
TQK_INLINE void merge(uint8_t *at, uint32_t mask, __m128i bits) {
    __m128i *to = (__m128i *)(void *)at;
    __m128i keep = _mm_andnot_si128(_mm_set1_epi32((int)mask), _mm_loadu_si128(to));
    _mm_storeu_si128(to, _mm_or_si128(keep, bits));
}

/* Bit n of 4 bytes. */
static void merge_bytes(uint8_t *at, uint32_t n, __m128i bits) {
    uint32_t x;
    const __m128i first =
        _mm_setr_epi8(0, 4, 8, 12, -1, -1, -1, -1, -1, -1, -1, -1, -1, -1, -1, -1);
    __m128i bytes = _mm_shuffle_epi8(_mm_sll_epi32(bits, _mm_cvtsi32_si128((int)n)), first);
    x = (uint32_t)_mm_cvtsi128_si32(bytes);
    tqi_put_bits(at, 0x01010101u << n, x);
}

/* The token's code is number `place` of the words of 4 dims from `lane` on. */
static void put_quad(const struct tqi_layout *l, uint32_t bits, uint8_t *codes, uint32_t word,
                     uint32_t lane, uint32_t place, __m128i code) {
    size_t slab = (size_t)tqi_slab_lanes(l) * 4, at = (size_t)lane * 4;
    __m128i up = _mm_cvtsi32_si128((int)(4 * place));
    struct shared s = share(l, bits, word);
    uint8_t *first = codes + s.slab * slab;
    if (!s.last) {
        uint32_t add = bits == 3 ? 0 : 2 * s.member, mask = bits == 3 ? 7 : 3;
        uint8_t *to = first + (bits == 3 ? s.member * slab : 0) + at;
        code = _mm_sll_epi32(_mm_sll_epi32(code, up), _mm_cvtsi32_si128((int)add));
        merge(to, mask << (4 * place + add), code);
        return;
    }
    uint32_t spare = s.members - 1;
    uint8_t *planes = first + spare * slab + lane;
    for (uint32_t bit = 0; bit < bits; bit++) {
        __m128i x = _mm_and_si128(_mm_srli_epi32(code, (int)bit), _mm_set1_epi32(1));
        if (bit < spare)
            merge(first + bit * slab + at, 8u << 4 * place,
                  _mm_slli_epi32(_mm_sll_epi32(x, up), 3));
        else
            merge_bytes(planes + (bit - spare) * (slab / 4), place, x);
    }
}

/* 4-bit and 8-bit codes: one place in one word. */
static void put_whole(const struct tqi_layout *l, uint32_t bits, uint8_t *at, uint32_t place,
                      __m128i code) {
    (void)l;
    if (bits == 8) {
        uint32_t up = 8 * (place % 4);
        merge(at, 255u << up,
              _mm_sll_epi32(_mm_and_si128(code, _mm_set1_epi32(255)), _mm_cvtsi32_si128((int)up)));
        return;
    }
    uint32_t sign = tqi_sign_bit4(place);
    __m128i level =
        _mm_sll_epi32(_mm_and_si128(code, _mm_set1_epi32(7)), _mm_cvtsi32_si128((int)(4 * place)));
    __m128i minus = _mm_sll_epi32(_mm_srli_epi32(code, 3), _mm_cvtsi32_si128((int)sign));
    merge(at, 7u << 4 * place | 1u << sign, _mm_or_si128(level, minus));
}

void tqk_pack_v_avx2(const struct tqi_layout *l, uint32_t bits, const uint8_t *codes, uint8_t *blob,
                     uint32_t token) {
    struct tqi_place p = tqi_place_v(l, token, 0);
    uint32_t per_lane = l->dim_pad / 32, x = 0, lane = p.lane;
    size_t slab = (size_t)tqi_slab_lanes(l) * 4;
    uint8_t *to = blob + l->codes;
    for (uint32_t i = 0; i < l->dim_pad; i += 4) {
        __m128i code = _mm_cvtepu8_epi32(_mm_cvtsi32_si128((int)tqi_load32(codes + i)));
        if (bits == 4) {
            put_whole(l, bits, to + (p.word + x) * slab + lane * 4, p.code, code);
        } else if (bits == 8) { /* [group][half][dims] */
            uint32_t at = p.word * 2 + p.code / 4 * per_lane + x;
            put_whole(l, bits, to + at * slab + lane * 4, p.code, code);
        } else {
            put_quad(l, bits, to, p.word + x, lane, p.code, code);
        }
        bool wrap = ++x == per_lane;
        x = wrap ? 0 : x;
        lane += wrap ? l->group / 2 : 0;
    }
}
