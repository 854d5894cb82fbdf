/*
 * Few new tokens of a token group: a chunk of 8 dims a lane, straight from the rows, and a kernel
 * for appends that have nothing else, as those of decoding, whose time is that of fetching code and
 * waiting for memory.
 */
#ifndef TQI_CUDA_ENCODE_FEW_ROWS_CUH
#define TQI_CUDA_ENCODE_FEW_ROWS_CUH

#include "encode/code_rows.cuh"
#include "encode/one_plain.cuh"

namespace tqi {

template <int D> struct FastShapes {
    static constexpr bool MIXES = D % 3 == 0; /* blocks stay in a lane */
    using Many = RowShape<D, (D == 64 ? 2 : 4)>;
    using Few = RowShape<D, MIXES ? Many::L : D / 8>;
    /* new tokens of a unit from which more dims a lane are faster */
    static constexpr int FEW_MAX = MIXES ? 0 : 2 * Few::ROWS;
    static constexpr int BLOCKS_PER_SM = 4;
    static_assert(GROUP / Many::ROWS <= Many::L, "a lane for every open gain");
    static constexpr int LOG2_PLAIN_PARTS = D <= 64 ? 0 : 1;
    static constexpr int MOST_LOG2_PARTS = GROUP / Many::ROWS == 4 ? 2 : 1;
};

template <class R> TQI_ENCODE_INLINE RowPlace place_of(const Unit &u, uint32_t token) {
    RowPlace p;
    p.row = u.row + token;
    p.part = part_of_lane<R>();
    p.head = u.head;
    p.fresh = token < GROUP && (u.fresh >> token % GROUP & 1);
    return p;
}

/* Sign bits of a lane's chunk. */
class ChunkFlips {
  public:
    uint32_t bits[8];
    /* bits[flip_place(i)]: of dim i, as flip_chunk() expects them. */
    TQI_ENCODE_INLINE explicit ChunkFlips(const uint32_t *from) {
#pragma unroll
        for (int i = 0; i < 8; i++)
            bits[flip_place(i)] = from[i];
    }
    /* From what open_room() left for rows of form R. */
    template <class R>
    TQI_ENCODE_INLINE static ChunkFlips of_room(const uint32_t *flips, uint32_t dim) {
        ChunkFlips f;
#pragma unroll
        for (int i = 0; i < 8; i++)
            f.bits[i] = flips[dim + i];
#pragma unroll
        for (int i = 0; i < 8; i++)
            f.bits[i] ^= swap_bit<R>(dim);
        return f;
    }

  private:
    ChunkFlips() = default;
};

template <class R, int DTYPE>
TQI_ENCODE_INLINE void load_direct(const FastEncodeJob &f, const Unit &u, const RowPlace &p,
                                   uint32_t token, const ChunkFlips &flips, float *x) {
    const Side &s = f.job.side[u.side];
    const RowsIn &rows = f.job.rows[u.side];
    int dim = (int)p.part * 8;
    const float *mean = s.mean ? s.mean + (size_t)u.head * R::D + dim : nullptr;
    RawChunk<DTYPE> c = {};
    const uint8_t *from = u.from + (token * rows.token_stride + dim) * (DTYPE == TQ_F32 ? 4 : 2);
    if (p.fresh)
        c = f.job.aligned >> u.side & 1 ? read_chunk<DTYPE>(from) : gather_chunk<DTYPE>(from);
    flip_chunk<DTYPE, false>(c, flips.bits, mean, 0, x);
}

template <class R, class S>
TQI_ENCODE_INLINE void encode_few(const FastEncodeJob &f, const Unit &u, const ChunkFlips &flips,
                                  const WarpRoom &room) {
    int32_t dtype = f.job.rows[u.side].dtype;
    uint32_t first = __ffs((int)u.fresh) - 1, n = __popc(u.fresh);
#pragma unroll 1
    for (uint32_t i = 0; i < n; i += R::ROWS) {
        uint32_t token = first + i + row_of_lane<R>();
        RowPlace p = place_of<R>(u, token);
        float x[R::N];
        if (dtype == TQ_BF16)
            load_direct<R, TQ_BF16>(f, u, p, token, flips, x);
        else if (dtype == TQ_F16)
            load_direct<R, TQ_F16>(f, u, p, token, flips, x);
        else
            load_direct<R, TQ_F32>(f, u, p, token, flips, x);
        OpenGain gain = {};
        encode_rows<R, S>(f, u, p, token, 0, room, x, &gain);
        if (gain.open)
            store_gain(f, u, gain.token, gain.parts, gain.exponent);
    }
}

/* ---- asked for early
 * --------------------------------------------------------------------------------- */

/* Words of values of up to 4 bits are read, to be merged with those of few tokens. */
template <int D> TQI_ENCODE_INLINE void prefetch_values(const FastEncodeJob &f, const Unit &u) {
    const tqi_layout &l = f.job.side[u.side].layout;
    const uint8_t *codes = u.blob + l.codes + u.slot / GROUP * (D * l.bits * 4);
    if (u.side == TQI_SIDE_V && l.bits <= 4)
        for (uint32_t line = threadIdx.x % 32; line < D * l.bits / 32; line += 32)
            prefetch_line(codes + line * 128);
}

/* The first row. A line asked for before the kernel in front has ended is as good as one asked for
 * later: that memory keeps it up to date. */
template <int D> TQI_ENCODE_INLINE void prefetch_row(const FastEncodeJob &f, const Unit &u) {
    const int64_t size = size_of(f.job.rows[u.side]);
    uint32_t token = __ffs((int)u.fresh) - 1, lane = threadIdx.x % 32;
    if (lane < (D * size + 127) / 128)
        prefetch_line(u.from + token * f.job.rows[u.side].token_stride * size + lane * 128);
}

/* Before the kernel in front has ended: what a warp of few tokens waits for. */
template <int D> TQI_ENCODE_INLINE void prefetch_few(const FastEncodeJob &f, const Unit &u) {
    prefetch_row<D>(f, u);
    prefetch_values<D>(f, u);
}

/* ---- the kernel --------------------------------------------------------------------------------
 */

/* New rows of a unit that rotate, by the lanes of Few. */
template <int D, bool SHARED>
TQI_ENCODE_INLINE void encode_by_few(const FastEncodeJob &f, const Unit &u, uint32_t *stage,
                                     const uint32_t *steps) {
    using R = typename FastShapes<D>::Few;
    using S = Stage<SHARED>;
    ChunkFlips flips(flips_of(f) + part_of_lane<R>() * 8);
    WarpRoom room = {stage, steps, nullptr, nullptr, nullptr, nullptr};
    __syncwarp();
    encode_few<R, S>(f, u, flips, room);
    store_unit<S, D>(f, u, room);
}

/* What a warp knows before the kernel in front has ended. */
template <int D> struct FewAhead {
    uint4 flips; /* of 4 dims */
    float scale; /* of fp8 */
    Unit u;
    uint32_t row; /* of slots */
    bool exists;

    /* What no step changes. */
    TQI_ENCODE_INLINE void load_constants(const FastEncodeJob &f) {
        if (!exists)
            return;
        const Side &s = f.job.side[u.side];
        if (s.rotates)
            flips = ((const uint4 *)flips_of(f))[threadIdx.x % 32];
        else
            scale = s.format == TQ_FORMAT_FP8 ? s.inv_scale[u.head] : 1;
    }
    /* A unit of the pieces: also what it will read. */
    TQI_ENCODE_INLINE void find(const FastEncodeJob &f, uint32_t index) {
        uint32_t pieces = pieces_of(f);
        exists = index < units_of(f, 0) && unit_at(f, index, pieces, 0, &u);
        if (exists)
            prefetch_few<D>(f, u);
    }
    /* A row of slots; its slot is not known yet. */
    TQI_ENCODE_INLINE void find_row(const FastEncodeJob &f, uint32_t index) {
        uint32_t part;
        exists = index < units_of(f, 0);
        row = place_unit(f, index, 0, &u, &part);
        open_unit(f, AppendPiece{0, 0, 1, row}, 0, 0, &u);
        if (exists)
            prefetch_row<D>(f, u);
    }
    TQI_ENCODE_INLINE void find_slot(const FastEncodeJob &f) {
        const uint32_t page = f.job.pages.page_tokens;
        if (!exists)
            return;
        int64_t slot = f.job.slots[row];
        exists = is_slot(f.job, slot);
        open_unit(f,
                  AppendPiece{(uint32_t)(slot >> (31 - __clz((int)page))),
                              (uint32_t)slot & (page - 1), 1, row},
                  0, 0, &u);
    }
};

TQI_ENCODE_INLINE void load_steps(const FastEncodeJob &f, uint32_t *steps) {
    const uint32_t lane = threadIdx.x % 32;
    if (lane < 16)
        steps[lane] = f.book[lane / 8].step[lane % 8];
}

/* All rows of a unit. */
template <int D, bool SHARED>
__device__ __noinline__ void encode_unit_by_few(const FastEncodeJob &f, Unit u, uint32_t *stage,
                                                const uint32_t *steps) {
    encode_by_few<D, SHARED>(f, u, stage, steps);
}

/* Rows of a unit that the short way can't take. Nothing but numbers is handed over: what the caller
 * kept for it would lie in local memory, and a kernel of two microseconds waits for its lines. */
template <int D, bool SLOTS>
__device__ __noinline__ void encode_with_care(const FastEncodeJob &f, uint32_t index,
                                              uint32_t fresh, uint32_t *stage, uint32_t *steps) {
    FewAhead<D> a;
    if (SLOTS) {
        a.find_row(f, index);
        a.find_slot(f);
    } else {
        a.find(f, index);
    }
    a.u.fresh = fresh;
    load_steps(f, steps);
    if (f.job.side[a.u.side].rotates)
        encode_by_few<D, SLOTS>(f, a.u, stage, steps);
    else
        encode_plain<D, GROUP>(f, a.u);
}

/* A warp a unit. */
template <int D, bool SLOTS>
__global__ void __launch_bounds__(FAST_WARPS * 32, FastShapes<D>::BLOCKS_PER_SM)
    tqk_encode_few(const __grid_constant__ FastEncodeJob f) {
    using S = Stage<SLOTS>;
    __shared__ __align__(16) uint32_t stages[FAST_WARPS][2 * D / 8 * S::PITCH];
    __shared__ uint32_t steps[FAST_WARPS][16];
    const uint32_t warp = threadIdx.x / 32, index = blockIdx.x * FAST_WARPS + warp;
    FewAhead<D> a;
    if (SLOTS)
        a.find_row(f, index);
    else
        a.find(f, index);
    if constexpr (D == QuadPlace::D)
        a.load_constants(f);
    else
        load_steps(f, steps[warp]);
    if (!f.joins)
        wait_for_predecessor();
    allow_successor();
    if (SLOTS)
        a.find_slot(f);
    const Unit &u = a.u;
    const bool rotates = a.exists && f.job.side[u.side].rotates;
    if constexpr (D == QuadPlace::D) {
        uint32_t hard = 0;
        for (uint32_t left = a.exists ? u.fresh : 0; left; left &= left - 1) {
            const uint32_t token = __ffs((int)left) - 1;
            if (!(rotates ? encode_one<SLOTS>(f, u, token, a.flips)
                          : encode_one_plain(f, u, token, a.scale)))
                hard |= 1u << token;
        }
        if (hard)
            encode_with_care<D, SLOTS>(f, index, hard, stages[warp], steps[warp]);
    } else if (rotates) {
        encode_unit_by_few<D, SLOTS>(f, u, stages[warp], steps[warp]);
    } else if (a.exists) {
        encode_plain<D, GROUP>(f, u);
    }
    if (f.joins)
        wait_for_predecessor();
}

} /* namespace tqi */

#endif
