/*
 * Code words of a token group from shared memory to a page. The warp's room holds a row of
 * STAGE words per chunk of 8 dims, one word a token; the layout is that of spec/layout.h.
 * Tokens that are not new keep their bits.
 */
#ifndef TQI_CUDA_ENCODE_STAGE_CUH
#define TQI_CUDA_ENCODE_STAGE_CUH

#include "encode/quantize.cuh"
#include "encode/slots.cuh"

namespace tqi {

enum { GROUP = 32, SLAB = GROUP * 4 /* words of a slab of a full group */ };

/* The tokens of a group that a warp stages at once. SHARED: other warps write to the group too.
 * PART: units are parts of a group. */
template <bool IS_SHARED, bool IS_PART = false> struct Stage {
    static constexpr bool SHARED = IS_SHARED, PART = IS_PART;
    static constexpr int TOKENS = GROUP, PITCH = GROUP + 4; /* against bank conflicts */
};

/* Where a warp's words go. */
struct StagePlace {
    const uint32_t *room;
    uint32_t *codes; /* of the token group, in its page */
    uint32_t fresh;  /* bit i: token i is new */
    uint32_t lane;
};

TQI_ENCODE_INLINE void words_of(const uint4 &v, uint32_t *w) {
    w[0] = v.x;
    w[1] = v.y;
    w[2] = v.z;
    w[3] = v.w;
}

/* Four words at a 16-byte boundary of a page; the bits of `mask`. */
template <bool SHARED>
TQI_ENCODE_INLINE void merge4(uint32_t *at, const uint32_t *w, uint32_t mask) {
    uint4 v = make_uint4(w[0], w[1], w[2], w[3]);
    if (SHARED && mask != ~0u) {
#pragma unroll
        for (int i = 0; i < 4; i++)
            exchange_bits(at + i, w[i], mask);
        return;
    }
    if (mask != ~0u) {
        uint4 old = *(const uint4 *)at;
        v = make_uint4((old.x & ~mask) | (v.x & mask), (old.y & ~mask) | (v.y & mask),
                       (old.z & ~mask) | (v.z & mask), (old.w & ~mask) | (v.w & mask));
    }
    *(uint4 *)at = v;
}

/* A word of each of four tokens. */
TQI_ENCODE_INLINE void store_tokens(uint32_t *at, const uint32_t *w, uint32_t fresh) {
    if (fresh == 15) {
        *(uint4 *)at = make_uint4(w[0], w[1], w[2], w[3]);
        return;
    }
#pragma unroll
    for (int i = 0; i < 4; i++)
        if (fresh >> i & 1)
            at[i] = w[i];
}

/* ---- sets of words that share slabs, see "bit planes" in spec/layout.h --------------------------
 */

/* Words of a set and slabs that they take; of 8 bits, a word at a time. */
template <int BITS> struct WordSet {
    static constexpr int WORDS = BITS == 3 ? 4 : BITS == 2 ? 2 : 1, SLABS = BITS == 3 ? 3 : 1;
    TQI_ENCODE_INLINE static uint32_t slab(const uint32_t *w, int stride, int i) {
        if (BITS == 3)
            return w[i * stride] | (w[3 * stride] >> i & 0x11111111u) << 3;
        return BITS == 2 ? w[0] | (w[stride] & 0x33333333u) << 2 : w[0];
    }
};

/* Bits of a under MASK, of b elsewhere, in one operation; the compiler would take two. */
template <uint32_t MASK> TQI_ENCODE_INLINE uint32_t select_bits(uint32_t a, uint32_t b) {
    uint32_t bits;
    asm("lop3.b32 %0, %1, %2, %3, 0xe4;" : "=r"(bits) : "r"(a), "r"(b), "n"(MASK));
    return bits;
}

/* Moves signs from their codes to where words of 4 bits store them (tqi_sign_bit4). */
TQI_ENCODE_INLINE uint32_t place_signs(uint32_t w) {
    const uint32_t even = w << 4; /* bytes whose top bits are the signs of even nibbles */
    uint32_t high, low;           /* signs 0 to 3 and 4 to 7, each in all bits of a byte */
    asm("prmt.b32 %0, %1, %2, 0x9d8c;" : "=r"(high) : "r"(w), "r"(even));
    asm("prmt.b32 %0, %1, %2, 0xbfae;" : "=r"(low) : "r"(w), "r"(even));
    return select_bits<0x77777777u>(w, select_bits<0xf0f0f0f0u>(high, low));
}

/* ---- keys
 * ---------------------------------------------------------------------------------------- */

/* Task of a lane: four tokens (piece), a set of words, a lane t of the key layout. Lanes side by
 * side read neighbouring words of the room and together write whole lines. */
template <class S, int SETS> struct KeyTask {
    uint32_t piece, set, t;
    TQI_ENCODE_INLINE explicit KeyTask(uint32_t task) {
        constexpr uint32_t PIECES = S::TOKENS / 4;
        piece = task % PIECES;
        set = task / PIECES / 4;
        t = task / PIECES % 4;
    }
};

/* Pass h has word h of every chunk. */
template <class S, int D, int BITS, bool WHOLE>
TQI_ENCODE_INLINE void store_keys(const StagePlace &p, int h) {
    using Set = WordSet<BITS>;
    constexpr int J = D / 32, H = BITS <= 4 ? 1 : BITS / 4, SETS = J / Set::WORDS;
    constexpr int TASKS = S::TOKENS / 4 * SETS * 4;
#pragma unroll
    for (int from = 0; from < TASKS; from += 32) {
        KeyTask<S, SETS> task(from + p.lane);
        uint32_t fresh = p.fresh >> 4 * task.piece & 15;
        uint32_t w[Set::WORDS * 4], out[4];
        if ((TASKS % 32 != 0 && from + p.lane >= TASKS) || fresh == 0)
            continue;
        const uint32_t *row =
            p.room + (task.t * J + task.set * Set::WORDS) * S::PITCH + 4 * task.piece;
        uint32_t *at =
            p.codes + (task.piece * 4 + task.t) * 4 + (task.set * Set::SLABS * H + h) * SLAB;
#pragma unroll
        for (int i = 0; i < Set::WORDS; i++)
            words_of(*(const uint4 *)(row + i * S::PITCH), w + 4 * i);
#pragma unroll
        for (int i = 0; i < Set::SLABS; i++) {
#pragma unroll
            for (int n = 0; n < 4; n++)
                out[n] = BITS == 4 ? place_signs(w[n]) : Set::slab(w + n, 4, i);
            store_tokens(at + i * H * SLAB, out, WHOLE ? 15 : fresh);
        }
    }
}

/* ---- values: 8 x 8 codes are transposed
 * ------------------------------------------------------------- */

/* Tokens of the nibbles of a word of values. */
TQI_ENCODE_INLINE constexpr int token_of(int n) {
    return (n & 1) | (n >> 1 & 1) << 2 | (n >> 2) << 1;
}

/* The sign that the top bit of a nibble of 4-bit codes carries. */
TQI_ENCODE_INLINE constexpr int sign_at(int nibble) {
    return nibble & 1 ? nibble / 2 : nibble / 2 + 4;
}

TQI_ENCODE_INLINE void transpose_nibbles(uint32_t *r) {
    uint32_t a[8];
#pragma unroll
    for (int i = 0; i < 4; i++) { /* halves */
        a[i] = __byte_perm(r[i], r[i + 4], 0x5410);
        a[i + 4] = __byte_perm(r[i], r[i + 4], 0x7632);
    }
#pragma unroll
    for (int i = 0; i < 8; i++) /* bytes */
        if (!(i & 2)) {
            r[i] = __byte_perm(a[i], a[i + 2], 0x6240);
            r[i + 2] = __byte_perm(a[i], a[i + 2], 0x7351);
        }
#pragma unroll
    for (int i = 0; i < 8; i += 2) {
        uint32_t even = r[i], odd = r[i + 1];
        r[i] = select_bits<0x0f0f0f0fu>(even, odd << 4);
        r[i + 1] = select_bits<0x0f0f0f0fu>(even >> 4, odd);
    }
}

/* Byte i of four words to word i. */
TQI_ENCODE_INLINE void transpose_bytes(const uint32_t a[4], uint32_t out[4]) {
    uint32_t low01 = __byte_perm(a[0], a[1], 0x5140), high01 = __byte_perm(a[0], a[1], 0x7362);
    uint32_t low23 = __byte_perm(a[2], a[3], 0x5140), high23 = __byte_perm(a[2], a[3], 0x7362);
    out[0] = __byte_perm(low01, low23, 0x5410);
    out[1] = __byte_perm(low01, low23, 0x7632);
    out[2] = __byte_perm(high01, high23, 0x5410);
    out[3] = __byte_perm(high01, high23, 0x7632);
}

/* Nibbles of new tokens, all bits of them. */
TQI_ENCODE_INLINE uint32_t nibble_mask(uint32_t fresh) {
    uint32_t mask = 0;
#pragma unroll
    for (int n = 0; n < 8; n++)
        mask |= (fresh >> token_of(n) & 1 ? 15u : 0) << 4 * n;
    return mask;
}

/* The same with the signs placed as 4-bit codes store them. */
TQI_ENCODE_INLINE uint32_t placed_mask(uint32_t fresh) {
    uint32_t mask = nibble_mask(fresh), signs = 0;
#pragma unroll
    for (int n = 0; n < 8; n++)
        signs |= (fresh >> token_of(sign_at(n)) & 1 ? 8u : 0) << 4 * n;
    return (mask & 0x77777777u) | signs;
}

/* Word of dims 4 quad..4 quad + 3, eight tokens `oct`, in the first slab. */
template <int D> TQI_ENCODE_INLINE uint32_t value_word(uint32_t quad, uint32_t oct) {
    constexpr uint32_t PER_LANE = D / 32;
    return quad % PER_LANE * SLAB + (quad / PER_LANE * 4 + oct) * 4;
}

/* Task of a lane: eight tokens (oct) of some chunks. */
template <class S> struct ValueTask {
    static constexpr uint32_t OCTS = S::TOKENS / 8;
    uint32_t oct, set, fresh;
    TQI_ENCODE_INLINE ValueTask(const StagePlace &p, uint32_t task, uint32_t tasks) {
        oct = task % OCTS;
        set = task / OCTS;
        fresh = task < tasks ? p.fresh >> 8 * oct & 255 : 0;
    }
    /* Words of a chunk of the eight tokens. */
    TQI_ENCODE_INLINE void load(const StagePlace &p, uint32_t chunk, uint32_t w[8]) const {
        const uint4 *from = (const uint4 *)(p.room + chunk * S::PITCH + oct * 8);
        words_of(from[0], w);
        words_of(from[1], w + 4);
    }
};

/* Codes of a chunk of eight tokens as words of dims. Signs of 4 bits come with their levels and
 * leave placed among the tokens. */
template <int BITS> TQI_ENCODE_INLINE void transpose_codes(const uint32_t in[8], uint32_t *r) {
    uint32_t t[8];
#pragma unroll
    for (int n = 0; n < 8; n++)
        t[n] = BITS == 4 ? select_bits<0x77777777u>(in[token_of(n)], in[token_of(sign_at(n))])
                         : in[token_of(n)];
    transpose_nibbles(t);
#pragma unroll
    for (int n = 0; n < 8; n++)
        r[n] = t[n];
}

/* A lane takes the chunks of a set for eight tokens. */
template <class S, int D, int BITS, bool WHOLE>
TQI_ENCODE_INLINE void store_values_lm(const StagePlace &p) {
    using Set = WordSet<BITS>;
    constexpr int PER_SET = BITS == 3 ? 2 : 1, TASKS = D / 8 / PER_SET * ValueTask<S>::OCTS;
    constexpr int SETS_PER_LANE = BITS == 4 ? 1 : D / 64 / PER_SET;
#pragma unroll
    for (int from = 0; from < TASKS; from += 32) {
        ValueTask<S> task(p, from + p.lane, TASKS);
        uint32_t r[PER_SET * 8], in[8], oct = task.oct, fresh = task.fresh;
        if (fresh == 0)
            continue;
        uint32_t mask = ~0u;
        if (!WHOLE && fresh != 255)
            mask = BITS == 4 ? placed_mask(fresh) : nibble_mask(fresh);
#pragma unroll
        for (int i = 0; i < PER_SET; i++) {
            task.load(p, task.set * PER_SET + i, in);
            transpose_codes<BITS>(in, r + 8 * i);
        }
        if constexpr (BITS == 4) {
            merge4<S::SHARED>(p.codes + value_word<D>(2 * task.set, oct), r, mask);
            merge4<S::SHARED>(p.codes + value_word<D>(2 * task.set + 1, oct), r + 4, mask);
        } else {
            uint32_t *at = p.codes + (task.set / SETS_PER_LANE * 4 + oct) * 4 +
                           task.set % SETS_PER_LANE * Set::SLABS * SLAB;
#pragma unroll
            for (int i = 0; i < Set::SLABS; i++) {
                uint32_t out[4];
#pragma unroll
                for (int y = 0; y < 4; y++)
                    out[y] = Set::slab(r + y, 4, i);
                merge4<S::SHARED>(at + i * SLAB, out, mask);
            }
        }
    }
}

/* Tokens of the bytes of the two words of a dim: int8 or e4m3. */
TQI_ENCODE_INLINE constexpr int byte_token(bool fp8, int word, int byte) {
    return fp8 ? 2 * word + (byte & 1) * 4 + (byte >> 1) : 2 * word + (byte & 1) + (byte >> 1) * 4;
}

/* Four dims of eight tokens, their bytes in `in`, to the page; of few new ones byte by byte, so
 * that nothing has to be read. */
template <int D, bool FP8>
TQI_ENCODE_INLINE void store_bytes(uint32_t *at, const uint32_t in[8], uint32_t fresh) {
#pragma unroll
    for (int word = 0; word < 2; word++) {
        uint32_t a[4], out[4], *to = at + word * (D / 32) * SLAB;
#pragma unroll
        for (int i = 0; i < 4; i++)
            a[i] = in[byte_token(FP8, word, i)];
        if (fresh == 255) {
            transpose_bytes(a, out);
            *(uint4 *)to = make_uint4(out[0], out[1], out[2], out[3]);
            continue;
        }
#pragma unroll
        for (int i = 0; i < 4; i++)
            if (fresh >> byte_token(FP8, word, i) & 1)
#pragma unroll
                for (int dim = 0; dim < 4; dim++)
                    ((uint8_t *)(to + dim))[i] = (uint8_t)(a[i] >> 8 * dim);
    }
}

/* Pass h has dims 4 h..4 h + 3 of every chunk. */
template <class S, int D, bool WHOLE>
TQI_ENCODE_INLINE void store_values_8(const StagePlace &p, int h) {
    constexpr int TASKS = D / 8 * ValueTask<S>::OCTS;
#pragma unroll
    for (int from = 0; from < TASKS; from += 32) {
        ValueTask<S> task(p, from + p.lane, TASKS);
        uint32_t in[8];
        if (task.fresh == 0)
            continue;
        task.load(p, task.set, in);
        store_bytes<D, false>(p.codes + value_word<D>(2 * task.set + h, task.oct), in,
                              WHOLE ? 255 : task.fresh);
    }
}

} /* namespace tqi */

#endif
