/* What a warp of the fast write path takes, and how its rows come to shared memory. */
#ifndef TQI_CUDA_ENCODE_UNIT_CUH
#define TQI_CUDA_ENCODE_UNIT_CUH

#include "encode/copy_async.cuh"
#include "encode/row.cuh"
#include "encode/stage.cuh"

namespace tqi {

TQI_ENCODE_INLINE int64_t size_of(const RowsIn &rows) {
    return rows.dtype == TQ_F32 ? 4 : 2;
}

/* ---- units of work -----------------------------------------------------------------------------
 */

/* New tokens of a token group, one kv head and side. */
struct Unit {
    uint32_t side, head;
    uint32_t fresh;      /* bit i: token i of the group is new, and of the unit */
    uint32_t first;      /* token of the unit in the group */
    uint32_t slot;       /* of the group's first token in its page */
    int64_t row;         /* of the group's first token in the caller's rows; may lie before them */
    const uint8_t *from; /* that row, of the head */
    uint8_t *blob;
};

TQI_ENCODE_INLINE AppendPiece piece_at(const FastEncodeJob &f, uint32_t i) {
    const EncodeJob &job = f.job;
    if (job.pieces)
        return job.pieces[i];
    uint32_t in_launch = f.first_token + i * GROUP, page = in_launch / job.pages.page_tokens;
    uint64_t start = f.launch_start + in_launch;
    uint64_t from = max(start, job.length), to = min(start + GROUP, job.end);
    AppendPiece p;
    p.page = job.ids.id[page];
    p.slot = in_launch - page * job.pages.page_tokens + (uint32_t)(from - start);
    p.n = (uint32_t)(to - from);
    p.row = (uint32_t)(from - job.length);
    return p;
}

/* Units of a launch: of a piece both sides, their parts of the tokens, then heads. The device
 * may know of fewer pieces. */
__host__ __device__ inline uint32_t units_of(const FastEncodeJob &f, uint32_t parts) {
    return f.job.max_pieces * parts * f.job.n_heads * (f.sides == 3 ? 2 : 1);
}

/* n / d by way of `inverse` = floor((2^32 - 1) / d); *rest: what is left. */
TQI_ENCODE_INLINE uint32_t divide(uint32_t n, uint32_t d, uint32_t inverse, uint32_t *rest) {
    uint32_t quotient = __umulhi(n, inverse);
    *rest = n - quotient * d;
    if (*rest >= d) {
        *rest -= d;
        quotient++;
    }
    return quotient;
}

/* A unit takes one of PARTS of a piece's tokens. False: there is none, nor behind it. */
template <int PARTS>
TQI_ENCODE_INLINE bool unit_at(const FastEncodeJob &f, uint32_t index, uint32_t n_pieces, Unit *u) {
    const EncodeJob &job = f.job;
    uint32_t part = 0;
    index = divide(index, job.n_heads, f.inverse_heads, &u->head);
    if (PARTS > 1) {
        part = index % PARTS;
        index /= PARTS;
    }
    u->side = f.sides == 3 ? index & 1 : f.sides >> 1;
    index >>= f.sides == 3;
    AppendPiece p = piece_at(f, index);
    if (index >= n_pieces) /* known no sooner than the piece */
        return false;
    uint32_t first = p.slot % GROUP;
    u->fresh = (uint32_t)(((1ull << p.n) - 1) << first);
    u->first = part * (GROUP / PARTS);
    if (PARTS > 1)
        u->fresh &= ((1u << GROUP / PARTS % 32) - 1) << u->first;
    const RowsIn &rows = job.rows[u->side];
    u->slot = p.slot - first;
    u->row = (int64_t)p.row - first;
    u->from = (const uint8_t *)rows.data +
              (u->row * rows.token_stride + u->head * rows.head_stride) * size_of(rows);
    u->blob =
        job.pages.base + p.page * job.pages.page_bytes + (uint64_t)u->head * job.pages.blob_bytes;
    return true;
}

/* ---- rows to shared memory
 * -------------------------------------------------------------------------- */

/* Bytes from row to row: an odd number of 16-byte words, so that reads of lanes side by side,
 * which have different rows, meet no bank twice. */
template <class R> __host__ __device__ constexpr uint32_t pitch_of(int32_t dtype) {
    return R::D * (dtype == TQ_F32 ? 4 : 2) + 16;
}

/* Rows of PIECES 16-byte pieces. */
template <class R, int PIECES>
TQI_ENCODE_INLINE void copy_rows(const uint8_t *from, int64_t stride, uint32_t fresh,
                                 uint8_t *slot) {
    constexpr uint32_t PITCH = PIECES * 16 + 16;
    uint32_t lane = threadIdx.x % 32;
    if constexpr (32 % PIECES == 0) { /* whole rows a time */
        constexpr int AT_ONCE = 32 / PIECES;
        uint32_t row = lane / PIECES, at = lane % PIECES * 16;
        from += row * stride + at;
        slot += row * PITCH + at;
        fresh >>= row;
#pragma unroll
        for (int i = 0; i < R::ROWS; i += AT_ONCE, from += AT_ONCE * stride)
            if (fresh >> i & 1)
                copy16_async(slot + i * PITCH, from);
    } else {
#pragma unroll
        for (int i = 0; i < R::ROWS * PIECES / 32; i++) {
            uint32_t row = (32 * i + lane) / PIECES, at = (32 * i + lane) % PIECES * 16;
            if (fresh >> row & 1)
                copy16_async(slot + row * PITCH + at, from + row * stride + at);
        }
    }
}

/* The same element by element. */
template <class R>
__device__ __noinline__ void gather_rows(const uint8_t *from, int64_t stride, uint32_t fresh,
                                         uint32_t size, uint8_t *slot) {
    uint32_t pitch = pitch_of<R>(size == 4 ? TQ_F32 : TQ_F16);
    for (uint32_t i = threadIdx.x % 32; i < R::ROWS * R::D; i += 32) {
        uint32_t row = i / R::D, dim = i % R::D;
        if (!(fresh >> row & 1))
            continue;
        if (size == 4)
            ((uint32_t *)(slot + row * pitch))[dim] =
                ((const uint32_t *)(from + row * stride))[dim];
        else
            ((uint16_t *)(slot + row * pitch))[dim] =
                ((const uint16_t *)(from + row * stride))[dim];
    }
}

/* Starts to copy the new rows of a unit, from token `first` on, to a warp's slot. */
template <class R>
TQI_ENCODE_INLINE void fill_slot(const FastEncodeJob &f, const Unit &u, uint32_t first,
                                 uint8_t *slot) {
    const RowsIn &rows = f.job.rows[u.side];
    uint32_t size = (uint32_t)size_of(rows), fresh = u.fresh >> first;
    int64_t stride = rows.token_stride * size;
    const uint8_t *from = u.from + first * stride;
    if (!(f.job.aligned >> u.side & 1))
        gather_rows<R>(from, stride, fresh, size, slot);
    else if (size == 2)
        copy_rows<R, R::D / 8>(from, stride, fresh, slot);
    else
        copy_rows<R, R::D / 4>(from, stride, fresh, slot);
}

} /* namespace tqi */

#endif
