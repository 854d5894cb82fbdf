/* How the rows of a unit of the fast write path come to shared memory. */
#ifndef TQI_CUDA_ENCODE_UNIT_CUH
#define TQI_CUDA_ENCODE_UNIT_CUH

#include "encode/copy_async.cuh"
#include "encode/row.cuh"
#include "encode/walk.cuh"

namespace tqi {

/* ---- rows to shared memory
 * -------------------------------------------------------------------------- */

/* Bytes from row to row. Reads of lanes side by side, which have different rows, must meet no bank
 * twice: rows of whole lines of 128 bytes have their pieces of 16 bytes permuted, so that copies,
 * which bring lines, meet none twice either; others are an odd number of pieces long. */
template <class R> TQI_ENCODE_INLINE constexpr bool permutes_pieces() {
    return R::ORDER == 1;
}
template <class R> __host__ __device__ constexpr uint32_t pitch_of(int32_t dtype) {
    return R::D * (dtype == TQ_F32 ? 4 : 2) + (R::ORDER == 1 ? 0 : 16);
}
/* What the places of a row's bytes in the row are xored with. */
template <class R> TQI_ENCODE_INLINE constexpr uint32_t permutation_of(uint32_t row) {
    return permutes_pieces<R>() ? row % 8 * 16 : 0;
}

/* A lane copies pieces part, L + part .. of one row, so that their addresses are one and constants.
 * Rows of a quarter of the warp write to all banks: they differ in the bits of their number that
 * decide where pieces that lie side by side go. */
template <class R> TQI_ENCODE_INLINE uint32_t row_to_copy() {
    constexpr uint32_t SIDE_BY_SIDE = R::L < 8 ? 8 / R::L : 1, APART = 8 / SIDE_BY_SIDE;
    const uint32_t i = threadIdx.x % 32 / R::L;
    return permutes_pieces<R>() ? i / 8 * 8 + i % SIDE_BY_SIDE * APART + i / SIDE_BY_SIDE % APART
                                : i;
}
TQI_ENCODE_INLINE uint32_t piece_to_copy(uint32_t lanes) {
    return threadIdx.x % lanes * 16;
}

/* A lane's pieces of a row of PIECES; from: the first of them. */
template <class R, int PIECES> TQI_ENCODE_INLINE void copy_row(const uint8_t *from, uint8_t *slot) {
    constexpr uint32_t PITCH = pitch_of<R>(PIECES * 8 == R::D ? TQ_F16 : TQ_F32);
    constexpr uint32_t STEP = R::L * 16, PERMUTED = permutes_pieces<R>() ? 127 : 0;
    static_assert(PIECES % R::L == 0, "lanes of a row copy as many pieces each");
    const uint32_t row = row_to_copy<R>(), at = piece_to_copy(R::L) ^ permutation_of<R>(row);
    const uint32_t to = shared_address(slot) + row * PITCH + at; /* slots begin with a line */
#pragma unroll
    for (uint32_t i = 0; i < PIECES * 16; i += STEP)
        copy16_async((to ^ (i & PERMUTED)) + (i & ~PERMUTED), from + i);
}

/* The same element by element. */
template <class R>
__device__ __noinline__ void gather_rows(const uint8_t *from, int64_t stride, uint32_t fresh,
                                         uint32_t size, uint8_t *slot) {
    uint32_t pitch = pitch_of<R>(size == 4 ? TQ_F32 : TQ_F16);
    for (uint32_t i = threadIdx.x % 32; i < R::ROWS * R::D; i += 32) {
        uint32_t row = i / R::D, dim = i % R::D;
        uint8_t *to = slot + row * pitch + (dim * size ^ permutation_of<R>(row));
        if (!(fresh >> row & 1))
            continue;
        if (size == 4)
            *(uint32_t *)to = ((const uint32_t *)(from + row * stride))[dim];
        else
            *(uint16_t *)to = ((const uint16_t *)(from + row * stride))[dim];
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
    if (!(f.job.aligned >> u.side & 1)) {
        gather_rows<R>(from, stride, fresh, size, slot);
        return;
    }
    const uint32_t row = row_to_copy<R>();
    from += row * stride + piece_to_copy(R::L);
    if (!(fresh >> row & 1))
        return;
    if (size == 2)
        copy_row<R, R::D / 8>(from, slot);
    else
        copy_row<R, R::D / 4>(from, slot);
}

} /* namespace tqi */

#endif
