/*
 * The bulk of a long append: units all of whose tokens are new, of rows of 16 bits that can be read
 * 16 bytes at a time and have no means. Nothing is asked token by token, square roots and quotients
 * are those of numbers in range, and a row that needs care is found when it has been rotated: it
 * is rotated again.
 */
#ifndef TQI_CUDA_ENCODE_WHOLE_UNIT_CUH
#define TQI_CUDA_ENCODE_WHOLE_UNIT_CUH

#include "encode/code_rows.cuh"
#include "encode/in_range.cuh"

namespace tqi {

/* Whether a unit is one of these. */
TQI_ENCODE_INLINE bool is_whole(const FastEncodeJob &f, const Unit &u) {
    uint32_t all = ~0u >> (GROUP - (GROUP >> f.log2_parts));
    return u.fresh >> u.first == all && f.simple >> u.side & 1;
}

/* ---- a round: rows in the slot to words in the room -------------------------------------------
 */

/* Rows of a warp once more, with care; rare. Stores their gains as well. */
template <class R, class S>
__device__ __noinline__ void encode_again(const FastEncodeJob &f, Unit u, uint32_t token,
                                          const WarpRoom room) {
    RowPlace p = {u.row + token, part_of_lane<R>(), u.head, true};
    OpenGain gain = {};
    float x[R::N];
#pragma unroll
    for (int i = 0; i < R::N; i++)
        x[i] = 0; /* out of range, so they are loaded again */
    __syncwarp(); /* the rows' first way through the room has been read */
    encode_rows<R, S>(f, u, p, token, 0, room, x, &gain);
    if (gain.open)
        store_gain(f, u, gain.token, gain.parts, gain.exponent);
}

/* Norms whose inverse times 2^-95 is exact. */
TQI_ENCODE_INLINE bool in_level_range(float sum) {
    return (sum >= 0x1p-80f) & (sum <= 0x1p60f);
}

/* Rotated rows with the norm's inverse to words of the stage; the sum of their squares. */
template <class R, class S, int BITS>
TQI_ENCODE_INLINE uint32_t code_whole(const FastBook &b, uint32_t step, float inv, const float *x,
                                      uint32_t *to) {
    constexpr int H = BITS == 8 ? 2 : 1;
    uint32_t w[R::CHUNKS * H], squares = 0;
    if constexpr (BITS == 8)
        quantize_8<R>(x, w, &squares);
    else
        quantize_levels<R, BITS, true>(x, inv, no_zero<R>(), b, step, &squares, w);
#pragma unroll
    for (int h = 0; h < H; h++)
#pragma unroll
        for (int c = 0; c < R::CHUNKS; c++)
            to[(h * (R::D / 8) + c * R::L) * S::PITCH] = w[c * H + h];
    return row_sum<R>(squares);
}

/* A number that stays in a register: the compiler would read a parameter anew every round. */
template <class T> TQI_ENCODE_INLINE T kept(T x) {
    if constexpr (sizeof(T) == 8)
        asm volatile("" : "+l"(x));
    else
        asm volatile("" : "+r"(x));
    return x;
}

/* ---- units -------------------------------------------------------------------------------------
 */

/* What a lane copies of the rounds of a unit, one behind another. */
template <class R> struct RowsAhead {
    const uint8_t *from;
    uint8_t *slot;
    int64_t step, further; /* bytes: from round to round, from the last to the next head */

    TQI_ENCODE_INLINE RowsAhead(const FastEncodeJob &f, const Unit &u, uint32_t rounds,
                                uint8_t *to) {
        const int64_t stride = kept(f.job.rows[u.side].token_stride * 2);
        from = u.from + (u.first + row_to_copy<R>()) * stride + piece_to_copy(R::L);
        step = R::ROWS * stride;
        further = head_bytes(f, u) - (int64_t)(rounds - 1) * step;
        slot = to;
    }
    /* To the next round, of this unit or the first of the next head. */
    TQI_ENCODE_INLINE void advance(bool last) {
        from += last ? further : step;
    }
    TQI_ENCODE_INLINE void start() const {
        copy_row<R, R::D / 8>(from, slot);
    }
};

/* A round of a unit; refill() is called when its rows have been read from the slot. A lane keeps
 * the norm and squares of a row of its own. */
template <class R, class S, int BITS, class Refill>
TQI_ENCODE_INLINE void encode_round(const FastEncodeJob &f, const Unit &u, uint32_t round,
                                    bool is_bf16, const uint8_t *row, const WarpRoom &room,
                                    uint32_t step, float *norm, uint32_t *squares,
                                    const Refill &refill) {
    uint32_t part = part_of_lane<R>();
    float x[R::N];
    wait_copies();
    __syncwarp();
    const WholeRow<R> whole(row, room.signs, part);
    if (is_bf16)
        whole.template convert<TQ_BF16>(x);
    else
        whole.template convert<TQ_F16>(x);
    __syncwarp();
    refill();
    const bool is_odd = has_negative_zeros<R>(part, x);
    float sum = sum_squares<R>(x), root = sqrt_in_range(sum);
    float inv = BITS == 8 ? 0 : reciprocal_in_range(root); /* on their way meanwhile */
    rotate_row<R>(room.exchange, part, x);
    if (__any_sync(~0u, !in_level_range(sum) | is_odd)) {
        Unit copy = u; /* so that u need not have an address */
        encode_again<R, S>(f, copy, u.first + round * R::ROWS + row_of_lane<R>(), room);
        *squares = part == round ? 0 : *squares;
        return;
    }
    uint32_t *to = room.stage + part * S::PITCH + u.first + round * R::ROWS + row_of_lane<R>();
    uint32_t sum_of_squares = code_whole<R, S, BITS>(f.book[u.side], step, inv, x, to);
    if (part == round) {
        *norm = root;
        *squares = sum_of_squares;
    }
}

/* A unit and those of further heads behind it; next() is called when the last rows have been
 * read from the slot. */
template <class R, class S, int BITS, class Next>
TQI_ENCODE_INLINE void encode_whole(const FastEncodeJob &f, Unit &u, uint32_t head_end,
                                    uint8_t *slot, const WarpRoom &room, const Next &next) {
    const uint32_t rounds = GROUP / R::ROWS >> (S::PART ? f.log2_parts : 0);
    const uint8_t *row = slot + row_of_lane<R>() * pitch_of<R>(TQ_F16);
    const uint32_t step = BITS < 8 ? step_of_lane(room, u.side) : 0;
    const bool is_bf16 = kept(f.job.rows[u.side].dtype) == TQ_BF16;
    RowsAhead<R> ahead(f, u, rounds, slot);
    for (;;) {
        const bool near = u.head + 1 < head_end;
        uint32_t part = part_of_lane<R>(), squares = 0;
        float norm = 0;
#pragma unroll 1
        for (uint32_t round = 0; round < rounds; round++) {
            auto refill = [&]() {
                const bool last = round + 1 == rounds;
                ahead.advance(last);
                if (last && !near)
                    next();
                else
                    ahead.start();
            };
            encode_round<R, S, BITS>(f, u, round, is_bf16, row, room, step, &norm, &squares,
                                     refill);
        }
        if (part < rounds && squares)
            store_gain_in_range(f, u, u.first + part * R::ROWS + row_of_lane<R>(), norm, squares);
        __syncwarp();
        store_words<S, R::D, BITS, true>(f, u, room);
        __syncwarp();
        if (!near)
            return;
        to_next_head(f, &u);
    }
}

} /* namespace tqi */

#endif
