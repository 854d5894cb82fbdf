/* How the rows of a unit of the fast write path come to shared memory. */
#ifndef TQI_CUDA_ENCODE_UNIT_CUH
#define TQI_CUDA_ENCODE_UNIT_CUH

#include "encode/copy_async.cuh"
#include "encode/row.cuh"
#include "encode/walk.cuh"

namespace tqi {

/* ---- rows to shared memory
 * -------------------------------------------------------------------------- */

/* Bytes from row to row: an odd number of 16-byte words, so that reads of lanes side by side,
 * which have different rows, meet no bank twice. */
template <class R> __host__ __device__ constexpr uint32_t pitch_of(int32_t dtype) {
    return R::D * (dtype == TQ_F32 ? 4 : 2) + 16;
}

/* Rows of PIECES 16-byte pieces. WHOLE: all of them are new. */
template <class R, int PIECES, bool WHOLE>
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
            if (WHOLE || (fresh >> i & 1))
                copy16_async(slot + i * PITCH, from);
    } else {
#pragma unroll
        for (int i = 0; i < R::ROWS * PIECES / 32; i++) {
            uint32_t row = (32 * i + lane) / PIECES, at = (32 * i + lane) % PIECES * 16;
            if (WHOLE || (fresh >> row & 1))
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
        copy_rows<R, R::D / 8, false>(from, stride, fresh, slot);
    else
        copy_rows<R, R::D / 4, false>(from, stride, fresh, slot);
}

} /* namespace tqi */

#endif
