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

/* Rotated rows with the norm's inverse to words of the stage; the sum of their squares. */
template <class R, class S, int BITS>
TQI_ENCODE_INLINE uint32_t code_whole(const FastBook &b, float scaled, float inv, const float *x,
                                      uint32_t *to) {
    constexpr int H = BITS == 8 ? 2 : 1;
    uint32_t w[R::CHUNKS * H], squares = 0;
    if constexpr (BITS == 8)
        quantize_8<R>(x, w, &squares);
    else if constexpr (BITS == 4)
        quantize_4<R>(x, inv, b, scaled, &squares, w);
    else
        quantize_few_bits<R, BITS>(x, inv, b, &squares, w);
#pragma unroll
    for (int h = 0; h < H; h++)
#pragma unroll
        for (int c = 0; c < R::CHUNKS; c++)
            to[(h * (R::D / 8) + c * R::L) * S::PITCH] = w[c * H + h];
    return row_sum<R>(squares);
}

/* ---- units -------------------------------------------------------------------------------------
 */

/* What a lane copies of the rounds of a unit, one behind another. */
template <class R> struct RowsAhead {
    static constexpr uint32_t PIECES = R::D / 8, PITCH = PIECES * 16 + 16;
    static constexpr bool WHOLE_ROWS = 32 % PIECES == 0; /* at a time, not pieces of several */
    static constexpr int AT_ONCE = WHOLE_ROWS ? 32 / PIECES : R::ROWS;
    const uint8_t *from;
    uint8_t *slot;
    int64_t stride, further; /* bytes: from row to row, from the last round to the next head */

    TQI_ENCODE_INLINE RowsAhead(const FastEncodeJob &f, const Unit &u, uint32_t rounds,
                                uint8_t *to) {
        const uint32_t lane = threadIdx.x % 32;
        stride = f.job.rows[u.side].token_stride * 2;
        from = u.from + u.first * stride;
        further = head_bytes(f, u) - (int64_t)(rounds - 1) * R::ROWS * stride;
        slot = to;
        if constexpr (WHOLE_ROWS) {
            from += lane / PIECES * stride + lane % PIECES * 16;
            slot += lane / PIECES * PITCH + lane % PIECES * 16;
        }
    }
    /* To the next round, of this unit or the first of the next head. */
    TQI_ENCODE_INLINE void step(bool last) {
        from += last ? further : R::ROWS * stride;
    }
    TQI_ENCODE_INLINE void start() const {
        const uint8_t *at = from;
        if constexpr (!WHOLE_ROWS) {
            copy_rows<R, PIECES, true>(at, stride, ~0u, slot);
        } else {
#pragma unroll
            for (int i = 0; i < R::ROWS; i += AT_ONCE, at += AT_ONCE * stride)
                copy16_async(slot + i * PITCH, at);
        }
    }
};

/* A round of a unit; refill() is called when its rows have been read from the slot. A lane keeps
 * the norm and squares of a row of its own. */
template <class R, class S, int BITS, class Refill>
TQI_ENCODE_INLINE void encode_round(const FastEncodeJob &f, const Unit &u, uint32_t round,
                                    const uint8_t *row, const WarpRoom &room, float scaled,
                                    float *norm, uint32_t *squares, const Refill &refill) {
    uint32_t part = part_of_lane<R>();
    float x[R::N];
    wait_copies();
    __syncwarp();
    if (f.job.rows[u.side].dtype == TQ_BF16)
        load_chunks<R, TQ_BF16, true>(row, room.flips, nullptr, part, x);
    else
        load_chunks<R, TQ_F16, true>(row, room.flips, nullptr, part, x);
    __syncwarp();
    refill();
    float sum = sum_squares<R>(x), root = sqrt_in_range(sum);
    float inv = BITS == 8 ? 0 : reciprocal_in_range(root); /* on their way meanwhile */
    rotate_row<R>(room.exchange, part, x);
    if (__any_sync(~0u, !in_range(sum))) {
        Unit copy = u; /* so that u need not have an address */
        encode_again<R, S>(f, copy, u.first + round * R::ROWS + row_of_lane<R>(), room);
        *squares = part == round ? 0 : *squares;
        return;
    }
    uint32_t *to = room.stage + part * S::PITCH + u.first + round * R::ROWS + row_of_lane<R>();
    uint32_t sum_of_squares = code_whole<R, S, BITS>(f.book[u.side], scaled, inv, x, to);
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
    float scaled = BITS == 4 ? room.scaled[8 * u.side + threadIdx.x % 8] : 0;
    RowsAhead<R> ahead(f, u, rounds, slot);
    for (;;) {
        const bool near = u.head + 1 < head_end;
        uint32_t part = part_of_lane<R>(), squares = 0;
        float norm = 0;
#pragma unroll 1
        for (uint32_t round = 0; round < rounds; round++) {
            auto refill = [&]() {
                const bool last = round + 1 == rounds;
                ahead.step(last);
                if (last && !near)
                    next();
                else
                    ahead.start();
            };
            encode_round<R, S, BITS>(f, u, round, row, room, scaled, &norm, &squares, refill);
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
