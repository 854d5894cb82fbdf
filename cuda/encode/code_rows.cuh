/* Rows in registers to the words of a unit in shared memory, and these to the page. */
#ifndef TQI_CUDA_ENCODE_CODE_ROWS_CUH
#define TQI_CUDA_ENCODE_CODE_ROWS_CUH

#include "encode/rotate.cuh"
#include "encode/unit.cuh"

namespace tqi {

/* What a warp works with. */
struct WarpRoom {
    uint32_t *stage;
    const uint32_t *steps;         /* of both sides' books, in shared memory */
    const uint32_t *flips, *signs; /* signs: SignWords of every part of a row */
    float *exchange;
    Ahead *ahead;
};

/* A lane's bucket, of one side. */
TQI_ENCODE_INLINE uint32_t step_of_lane(const WarpRoom &room, uint32_t side) {
    return room.steps[8 * side + min(threadIdx.x % 32, (uint32_t)TQI_LAST_BUCKET)];
}

/* Rows in shared memory to registers. */
template <class R, int DTYPE, bool PLAIN>
TQI_ENCODE_INLINE void load_chunks(const uint8_t *row, const uint32_t *flips, const float *mean,
                                   uint32_t part, float *x) {
    constexpr int SIZE = DTYPE == TQ_F32 ? 4 : 2;
    const uint32_t permutation = permutation_of<R>(row_of_lane<R>());
#pragma unroll
    for (int c = 0; c < R::CHUNKS; c++) {
        const uint32_t dim = part * R::N + 8 * c;
        RawChunk<DTYPE> chunk;
#pragma unroll
        for (int i = 0; i < SIZE / 2; i++)
            chunk.set_piece(i, *(const uint4 *)(row + ((dim * SIZE + 16 * i) ^ permutation)));
        flip_chunk<DTYPE, PLAIN>(chunk, flips, mean, (int)dim, x + 8 * c);
    }
}

/* The sign bits of a lane's dims, those of a pair of neighbours as far apart as the halves of a
 * word: pair j of 32 dims is word << j. */
template <class R> struct SignWords {
    static constexpr int WORDS = (R::N + 31) / 32, OF_ROW = R::L * WORDS;
    uint32_t w[WORDS];
    TQI_ENCODE_INLINE SignWords(const uint32_t *signs, uint32_t part) {
#pragma unroll
        for (int i = 0; i < WORDS; i++)
            w[i] = signs[part * WORDS + i];
    }
    TQI_ENCODE_INLINE uint32_t of_pair(int j) const {
        return w[j / 16] << j % 16 & 0x80008000u;
    }
    /* The dim of a part's word whose sign is bit `bit` of it; there may be none. */
    TQI_ENCODE_INLINE static uint32_t dim_of(uint32_t bit) {
        return bit < 16 ? 2 * (15 - bit) : 2 * (31 - bit) + 1;
    }
    /* By a block of warps; also the flips that flip_chunk() expects. */
    TQI_ENCODE_INLINE static void make(const uint32_t *given, uint32_t *flips, uint32_t *signs) {
        const uint32_t lane = threadIdx.x % 32;
        for (uint32_t i = threadIdx.x / 32; i < OF_ROW; i += FAST_WARPS) {
            const uint32_t in_part = i % WORDS * 32 + dim_of(lane),
                           dim = i / WORDS * R::N + in_part;
            uint32_t flip = 0;
            if (in_part < R::N) {
                flip = given[dim] ^ swap_bit<R>(dim);
                flips[flip_place((int)dim)] = flip;
            }
            flip = __ballot_sync(~0u, flip != 0);
            if (lane == 0)
                signs[i] = flip;
        }
    }
};

/* Rows of 16 bits without means in shared memory to registers, their signs flipped. */
template <class R> struct WholeRow {
    uint32_t w[R::N / 2];
    TQI_ENCODE_INLINE WholeRow(const uint8_t *row, const uint32_t *signs, uint32_t part) {
        const uint32_t permutation = permutation_of<R>(row_of_lane<R>());
        const SignWords<R> sign(signs, part);
#pragma unroll
        for (int c = 0; c < R::CHUNKS; c++) {
            uint4 v = *(const uint4 *)(row + ((part * R::N * 2 + 16 * c) ^ permutation));
            w[4 * c] = v.x ^ sign.of_pair(4 * c);
            w[4 * c + 1] = v.y ^ sign.of_pair(4 * c + 1);
            w[4 * c + 2] = v.z ^ sign.of_pair(4 * c + 2);
            w[4 * c + 3] = v.w ^ sign.of_pair(4 * c + 3);
        }
    }
    template <int DTYPE> TQI_ENCODE_INLINE void convert(float *x) const {
#pragma unroll
        for (int i = 0; i < R::N; i++)
            x[i] = element_of_pair<DTYPE>(w[i / 2], i % 2);
    }
};

/* Words of a row to the room: a row of the room for every word h and chunk. */
template <class R, class S, int H>
TQI_ENCODE_INLINE void stage_words(const Unit &u, const RowPlace &p, uint32_t token,
                                   const WarpRoom &room, const uint32_t *w) {
    uint32_t *to = room.stage + p.part * S::PITCH + token;
    if (!p.fresh)
        return;
#pragma unroll
    for (int h = 0; h < H; h++)
#pragma unroll
        for (int c = 0; c < R::CHUNKS; c++)
            to[(h * (R::D / 8) + c * R::L) * S::PITCH] = w[c * H + h];
}

/* Of a token of the group. */
TQI_ENCODE_INLINE void store_gain(const FastEncodeJob &f, const Unit &u, uint32_t token,
                                  const GainParts &parts, int e) {
    float gain = parts.gain();
    if (e)
        gain = ldexpf(gain, e);
    uint8_t *at = u.blob + f.job.side[u.side].layout.gains + (u.slot + token) * 2;
    if (u.side == TQI_SIDE_V)
        *(__nv_bfloat16 *)at = __float2bfloat16_rn(fminf(gain, 3.38953139e38f));
    else
        *(__half *)at = __float2half_rn(fminf(gain, 65504.0f));
}

/* Gains of a unit's rows that have not been stored: square roots and quotients take long, so a
 * lane waits until it has one of its own. */
struct OpenGain {
    GainParts parts;
    int exponent;
    uint32_t token;
    bool open;
};

/* Round i of a unit falls to the lanes of part i. */
template <class R>
TQI_ENCODE_INLINE void keep_gain(const RowPlace &p, uint32_t round, uint32_t token,
                                 const GainParts &parts, int e, OpenGain *g) {
    if (p.part == round) {
        g->parts = parts;
        g->exponent = e;
        g->token = token;
        g->open = p.fresh;
    }
}

/* Sets of words stay inside a token group. */
template <int D> __host__ __device__ constexpr bool has_sets(int bits) {
    return bits == 3 ? D % 128 == 0 : bits == 2 ? D % 64 == 0 : true;
}

template <class R, class S, int BITS>
TQI_ENCODE_INLINE GainParts encode_lm(const FastEncodeJob &f, const Unit &u, const RowPlace &p,
                                      uint32_t token, const WarpRoom &room, const float *x,
                                      float zero, const RowNorm &n) {
    const Side &s = f.job.side[u.side];
    const FastBook &b = f.book[u.side];
    uint32_t step = step_of_lane(room, u.side);
    if constexpr (has_sets<R::D>(BITS)) {
        uint32_t w[R::CHUNKS];
        GainParts g = quantize_lm<R, BITS>(s, b, step, x, zero, n.sum, w);
        stage_words<R, S, 1>(u, p, token, room, w);
        return g;
    }
    return GainParts{0, 0};
}

/* Rows as they were loaded, to code words in the room. */
template <class R, class S>
TQI_ENCODE_INLINE void encode_rows(const FastEncodeJob &f, const Unit &u, const RowPlace &p,
                                   uint32_t token, uint32_t round, const WarpRoom &room, float *x,
                                   OpenGain *gain) {
    const Side &s = f.job.side[u.side];
    float zero;
    RowNorm n = rotate_checked<R>(f.job, u.side, p, room.exchange, x, &zero);
    GainParts g;
    if (s.format == TQ_FORMAT_LM4) {
        g = encode_lm<R, S, 4>(f, u, p, token, room, x, zero, n);
    } else if (s.format == TQ_FORMAT_LM3) {
        g = encode_lm<R, S, 3>(f, u, p, token, room, x, zero, n);
    } else if (s.format == TQ_FORMAT_LM2) {
        g = encode_lm<R, S, 2>(f, u, p, token, room, x, zero, n);
    } else {
        uint32_t w[R::N / 4];
        g = quantize_int8<R>(s, x, n.sum, w);
        stage_words<R, S, 2>(u, p, token, room, w);
    }
    keep_gain<R>(p, round, token, g, n.exponent, gain);
}

/* Words of the room to the page. */
template <class S, int D, int BITS, bool WHOLE = false>
TQI_ENCODE_INLINE void store_words(const FastEncodeJob &f, const Unit &u, const WarpRoom &room) {
    constexpr int H = BITS == 8 ? 2 : 1;
    uint32_t *codes = (uint32_t *)(u.blob + f.job.side[u.side].layout.codes);
    StagePlace p = {room.stage, codes + u.slot / GROUP * (D * BITS), u.fresh, threadIdx.x % 32};
#pragma unroll 1
    for (int h = 0; h < H; h++, p.room += D / 8 * S::PITCH)
        if (u.side == TQI_SIDE_K)
            store_keys<S, D, BITS, WHOLE>(p, h);
        else if constexpr (BITS <= 4)
            store_values_lm<S, D, BITS, WHOLE>(p);
        else
            store_values_8<S, D, WHOLE>(p, h);
}

template <class S, int D>
TQI_ENCODE_INLINE void store_unit(const FastEncodeJob &f, const Unit &u, const WarpRoom &room) {
    uint32_t format = f.job.side[u.side].format;
    __syncwarp();
    if (format == TQ_FORMAT_LM4) {
        store_words<S, D, 4>(f, u, room);
    } else if (format == TQ_FORMAT_LM3) {
        if constexpr (has_sets<D>(3))
            store_words<S, D, 3>(f, u, room);
    } else if (format == TQ_FORMAT_LM2) {
        if constexpr (has_sets<D>(2))
            store_words<S, D, 2>(f, u, room);
    } else {
        store_words<S, D, 8>(f, u, room);
    }
    __syncwarp();
}

} /* namespace tqi */

#endif
