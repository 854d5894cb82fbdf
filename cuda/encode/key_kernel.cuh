/*
 * Polar keys, and keys with a sketch of their residual, to pages: a warp takes eight tokens of a
 * token group and kv head. All words of a page that a lane writes hold its own row only, but for
 * levels 3 and 4 of polar blocks, where a byte is shared by the tokens of a quad: these are joined
 * by shuffles. The same bytes as encode_any.cu.
 */
#ifndef TQI_CUDA_ENCODE_KEY_KERNEL_CUH
#define TQI_CUDA_ENCODE_KEY_KERNEL_CUH

#include "common/polar_tables.cuh"
#include "encode/key_row.cuh"
#include "encode/open_sets.cuh"
#include "encode/polar_block.cuh"

namespace tqi {

/* Eight tokens of a page. */
struct KeyUnit {
    uint32_t head, slot; /* slot of the first, a multiple of 8 */
    uint32_t fresh;      /* bit i: token i is new */
    int64_t row;         /* of the first in the caller's rows; may lie before them */
    uint8_t *blob;
};

TQI_KEY_INLINE AppendPiece key_piece(const KeyJob &f, uint32_t i) {
    const EncodeJob &job = f.job;
    if (job.pieces)
        return job.pieces[i];
    uint64_t start = f.first + (uint64_t)i * KEY_GROUP;
    uint64_t from = max(start, job.length), to = min(start + KEY_GROUP, f.end);
    uint32_t in_launch = (uint32_t)(from - f.launch_start);
    AppendPiece p;
    p.page = job.ids.id[in_launch / job.pages.page_tokens];
    p.slot = in_launch % job.pages.page_tokens;
    p.n = (uint32_t)(to - from);
    p.row = (uint32_t)(from - job.length);
    return p;
}

/* Unit of a warp, heads fastest; nothing new: fresh is 0. */
TQI_KEY_INLINE KeyUnit key_unit(const KeyJob &f, uint32_t index) {
    const EncodeJob &job = f.job;
    KeyUnit u = {};
    u.head = index % job.n_heads;
    index /= job.n_heads;
    uint32_t eighth = index % (KEY_GROUP / KEY_ROWS), pieces = job.max_pieces;
    index /= KEY_GROUP / KEY_ROWS;
    if (index >= (job.pieces ? *job.n_pieces : pieces))
        return u;
    AppendPiece p = key_piece(f, index);
    uint32_t first = p.slot % KEY_GROUP;
    u.fresh = (uint32_t)(((1ull << p.n) - 1) << first) >> KEY_ROWS * eighth & 255;
    u.slot = p.slot - first + KEY_ROWS * eighth;
    u.row = (int64_t)p.row - first + KEY_ROWS * eighth;
    u.blob =
        job.pages.base + p.page * job.pages.page_bytes + (uint64_t)u.head * job.pages.blob_bytes;
    return u;
}

/* Bit i of word t: dim t D/4 + i is flipped; by the rotation, by both rounds of the sketch. */
struct KeySigns {
    uint32_t word[3][KEY_LANES];
};

/* By the block; the sketch's where there is one. */
template <int D> TQI_KEY_INLINE void load_signs(const Side &s, KeySigns *signs) {
    constexpr uint32_t N = D / KEY_LANES;
    const uint32_t lane = threadIdx.x % 32, rounds = s.sketch_flips ? 3 : 1;
    for (uint32_t i = threadIdx.x / 32; i < rounds * KEY_LANES; i += KEY_WARPS) {
        uint32_t round = i / KEY_LANES, t = i % KEY_LANES;
        const uint32_t *flips = round ? s.sketch_flips + (round - 1) * D : s.flips;
        uint32_t word = __ballot_sync(~0u, lane < N && flips[t * N + lane % N] != 0);
        if (lane == 0)
            signs->word[round][t] = word;
    }
    __syncthreads();
}

/* A lane at work. */
template <int D> struct KeyWork {
    static constexpr int N = D / KEY_LANES, WORDS = N / 8;
    const KeyJob &f;
    const KeySigns &signs;
    const Side &s;
    const KeyUnit &u;
    KeyLane lane;
    uint32_t token;   /* slot in the page */
    uint32_t element; /* in a slab of its group */
    bool fresh;

    TQI_KEY_INLINE KeyWork(const KeyJob &job, const KeySigns &packed, const KeyUnit &unit)
        : f(job), signs(packed), s(job.job.side[0]), u(unit), token(unit.slot + lane.row),
          element((token % KEY_GROUP / 4 * 4 + lane.t) * 4 + token % 4),
          fresh(unit.fresh >> lane.row & 1) {}

    /* Word of slab `slab` of the codes or signs at `section`. */
    TQI_KEY_INLINE uint32_t *word(uint32_t section, uint32_t slab) const {
        return (uint32_t *)(u.blob + section) + slab * (KEY_GROUP * 4) + element;
    }

    /* Stores a 16-bit gain; returns it as the decoder sees it. */
    TQI_KEY_INLINE float put_gain(uint32_t section, uint32_t index, bool mine, float gain,
                                  int e) const {
        if (e)
            gain = ldexpf(gain, e);
        __half h = __float2half_rn(fminf(gain, 65504.0f));
        if (mine && fresh)
            ((__half *)(u.blob + section))[index] = h;
        float stored = __half2float(h);
        return e ? ldexpf(stored, -e) : stored;
    }
};

/* ---- Lloyd-Max codes ------------------------------------------------------------------------ */

/* Codes to the page. Sets of four words of head dim 64 reach into the next token group. */
template <int D, int BITS> TQI_KEY_INLINE void put_codes(const KeyWork<D> &w, const uint32_t *c) {
    constexpr int WORDS = KeyWork<D>::WORDS;
    uint32_t group = w.token / KEY_GROUP, codes = w.s.layout.codes;
    if (!w.fresh)
        return;
    if constexpr (BITS == 3 && WORDS % 4 != 0) {
        OpenPlace place = {w.s.layout, w.u.blob, group * WORDS};
#pragma unroll
        for (int i = 0; i < WORDS; i++)
            put_open(place, i, w.element, c[i]);
    } else if constexpr (BITS == 3) {
#pragma unroll
        for (int i = 0; i < WORDS * 3 / 4; i++)
            *w.word(codes, group * (WORDS * 3 / 4) + i) =
                c[i / 3 * 4 + i % 3] | (c[i / 3 * 4 + 3] >> i % 3 & 0x11111111u) << 3;
    } else {
#pragma unroll
        for (int i = 0; i < WORDS / 2; i++)
            *w.word(codes, group * (WORDS / 2) + i) = c[2 * i] | c[2 * i + 1] << 2;
    }
}

/* x becomes the residual. */
template <int D, int BITS>
TQI_KEY_INLINE void encode_key_lm(const KeyWork<D> &w, const KeyNorm &n, float *x) {
    constexpr int N = KeyWork<D>::N, LEVELS = 1 << (BITS - 1);
    float norm = __fsqrt_rn(n.sum), inv = norm > 0 ? __frcp_rn(norm) : 0;
    uint32_t squares = 0, codes[KeyWork<D>::WORDS] = {};
#pragma unroll
    for (int i = 0; i < N; i++) {
        float y = x[i] * inv, magnitude = fabsf(y);
        uint32_t square = (uint32_t)(w.s.v2[0] * w.s.v2[0]), code = LEVELS;
#pragma unroll
        for (int t = 0; t + 1 < LEVELS; t++)
            if (magnitude > w.s.threshold[t]) {
                square = (uint32_t)(w.s.v2[t + 1] * w.s.v2[t + 1]);
                code = LEVELS + t + 1;
            }
        squares += square;
        code = __float_as_uint(y) >> 31 ? 2 * LEVELS - 1 - code : code;
        codes[i / 8] |= code << 4 * (i % 8);
    }
    float gain = __fdiv_rn(norm * w.s.gain_factor, __fsqrt_rn((float)sum_of_row(squares)));
    float stored = w.put_gain(w.s.layout.gains, w.token, w.lane.t == 0, gain, n.exponent);
    put_codes<D, BITS>(w, codes);
    /* lane i holds the value of code i mod 2^BITS; a shuffle takes the five lowest bits */
    uint32_t mine = threadIdx.x % (2 * LEVELS);
    float value = mine < LEVELS ? -w.s.value[LEVELS - 1 - mine] : w.s.value[mine - LEVELS];
#pragma unroll
    for (int i = 0; i < N; i++) {
        float decoded =
            stored * __shfl_sync(~0u, value, (int)(codes[i / 8] >> 4 * (i % 8) & (2 * LEVELS - 1)));
        x[i] = x[i] - decoded;
    }
}

/* ---- polar ---------------------------------------------------------------------------------- */

/* Levels 3 and 4 of the four tokens of a quad, whose lanes are KEY_LANES apart. */
template <int D>
TQI_KEY_INLINE void put_shared_levels(const KeyWork<D> &w, uint32_t element, const PolarCodes &c) {
    uint32_t z = w.token % 4, quad = w.u.fresh >> w.lane.row / 4 * 4 & 15;
    uint32_t bits = w.fresh ? c.level3 << 4 * z | c.level4 << (16 + 2 * z) : 0;
    bits |= __shfl_xor_sync(~0u, bits, KEY_LANES);
    bits |= __shfl_xor_sync(~0u, bits, 2 * KEY_LANES);
    if (z != 0 || quad == 0)
        return;
    uint16_t *level3 = (uint16_t *)(w.u.blob + w.s.layout.polar_level3 + element / 2);
    uint8_t *level4 = w.u.blob + w.s.layout.polar_level4 + element / 4;
    if (quad != 15) {
        uint32_t old = *level3 | (uint32_t)*level4 << 16, mask = 0;
#pragma unroll
        for (int i = 0; i < 4; i++)
            mask |= quad >> i & 1 ? 15u << 4 * i | 3u << (16 + 2 * i) : 0;
        bits |= old & ~mask;
    }
    *level3 = (uint16_t)bits;
    *level4 = (uint8_t)(bits >> 16);
}

/* u less what codes and the stored radius decode to. */
TQI_KEY_INLINE void subtract_block(const PolarTables &t, const PolarCodes &c, float radius,
                                   float *u) {
    float half[2], r[4], pair[2];
    t.split(3, c.level4, radius, half[0], half[1]);
    t.split(2, c.level3, half[0], r[0], r[1]);
    t.split(2, c.level3 >> 2, half[1], r[2], r[3]);
#pragma unroll
    for (int i = 0; i < 4; i++) {
        t.split(1, c.level2 >> 2 * i, r[i], pair[0], pair[1]);
#pragma unroll
        for (int k = 0; k < 2; k++) {
            float a, b, *x = u + 4 * i + 2 * k;
            t.split(0, c.level1 >> (8 * i + 4 * k), pair[k], a, b);
            x[0] = x[0] - a;
            x[1] = x[1] - b;
        }
    }
}

/* Block i of the lane; u becomes the residual where a sketch wants it. */
template <int D>
TQI_KEY_INLINE void encode_key_block(const KeyWork<D> &w, const PolarTables &tables,
                                     const KeyNorm &n, uint32_t i, float *u) {
    const tqi_layout &l = w.s.layout;
    uint32_t block = w.lane.t * (KeyWork<D>::N / TQI_POLAR_BLOCK) + i;
    uint32_t element = block / 4 * 4 * l.tokens + (w.token / 4 * 4 + block % 4) * 4 + w.token % 4;
    float radius;
    PolarCodes c = polar_forward(w.f.polar, u, &radius);
    if (w.fresh) {
        ((uint32_t *)(w.u.blob + l.codes))[element] = c.level1;
        w.u.blob[l.polar_level2 + element] = (uint8_t)c.level2;
    }
    put_shared_levels(w, element, c);
    float stored = w.put_gain(l.gains, element, true, radius * w.s.inv_sqrt_dim, n.exponent);
    if (w.s.sketch_flips)
        subtract_block(tables, c, stored * w.s.sqrt_dim, u);
}

/* ---- sketch --------------------------------------------------------------------------------- */

/* Of the residual x, which is destroyed. */
template <int D>
TQI_KEY_INLINE void encode_key_sketch(const KeyWork<D> &w, const KeyNorm &n, float *x) {
    constexpr int N = KeyWork<D>::N;
    const tqi_layout &l = w.s.layout;
    float energy = square_sum<N>(x);
#pragma unroll 1
    for (int round = 1; round < 3; round++)
        rotate_key<N>(w.signs.word[round][w.lane.t], w.lane.t, x);
    uint32_t signs = 0;
#pragma unroll
    for (int i = N - 1; i >= 0; i--)
        signs = __funnelshift_l(__float_as_uint(x[i]), signs, 1);
    if (w.fresh && N == 32)
        *w.word(l.sketch, w.token / KEY_GROUP) = signs;
    else if (w.fresh)
#pragma unroll
        for (int j = 0; j < N / 8; j++)
            w.u.blob[l.sketch +
                     tqi_sketch_byte(&l, tqi_place_k(&l, w.token, w.lane.t * N + 8 * j))] =
                (uint8_t)(signs >> 8 * j);
    float sum = tree_sum<N>(x, [](float v) { return fabsf(v); });
    float gain = sum > 0 ? __fdiv_rn(energy * w.s.sketch_factor, sum) : 0;
    w.put_gain(l.sketch_gains, w.token, w.lane.t == 0, gain, n.exponent);
}

/* ---- the kernel ----------------------------------------------------------------------------- */

template <int D>
__global__ void __launch_bounds__(KEY_WARPS * 32)
    tqk_encode_keys(const __grid_constant__ KeyJob f) {
    __shared__ KeySigns signs;
    const Side &s = f.job.side[0];
    load_signs<D>(s, &signs);
    KeyUnit u = key_unit(f, blockIdx.x * KEY_WARPS + threadIdx.x / 32);
    if (u.fresh == 0)
        return; /* the whole warp */
    KeyWork<D> w(f, signs, u);
    PolarTables tables;
    if (s.polar)
        tables.load(s.polar, threadIdx.x % 32);
    const RowsIn &rows = f.job.rows[0];
    KeySource source = {&rows, s.mean ? s.mean + (size_t)u.head * D + w.lane.t * w.N : nullptr,
                        (u.row + w.lane.row) * rows.token_stride +
                            (int64_t)u.head * rows.head_stride + w.lane.t * w.N,
                        w.fresh, (f.job.aligned & 1) != 0};
    float x[KeyWork<D>::N];
    KeyNorm norm = load_row<KeyWork<D>::N>(source, f.job.counts, x);
    rotate_key<KeyWork<D>::N>(w.signs.word[0][w.lane.t], w.lane.t, x);
    if (s.layout.kind == TQI_KIND_POLAR) {
        encode_key_block(w, tables, norm, 0, x);
        if constexpr (D == 128)
            encode_key_block(w, tables, norm, 1, x + TQI_POLAR_BLOCK);
    } else if (s.layout.bits == 2) {
        encode_key_lm<D, 2>(w, norm, x);
    } else {
        encode_key_lm<D, 3>(w, norm, x);
    }
    if (s.sketch_flips)
        encode_key_sketch(w, norm, x);
}

#define TQI_KEY_ENCODE_INSTANCE(d)                                                            \
    tq_status encode_keys_d##d(const KeyJob &f, cudaStream_t stream) {                        \
        uint64_t units = (uint64_t)f.job.max_pieces * (KEY_GROUP / KEY_ROWS) * f.job.n_heads; \
        LaunchShape shape = {(units + KEY_WARPS - 1) / KEY_WARPS, KEY_WARPS * 32, 0, stream,  \
                             false};                                                          \
        return launch(tqk_encode_keys<d>, shape, "tqk_encode_keys", f);                       \
    }

} /* namespace tqi */

#endif
