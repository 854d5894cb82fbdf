/*
 * The write path at speed. A warp takes a token group (32 tokens that share slabs) of one kv
 * head and side; a lane takes a row, or half a row beyond 128 dims, so that the Hadamard
 * transform is plain additions in registers. Rows of the next group come to shared memory
 * meanwhile. Groups with few new tokens take more lanes a row instead. The same bytes as
 * encode_any.cu.
 */
#ifndef TQI_CUDA_ENCODE_FAST_KERNEL_CUH
#define TQI_CUDA_ENCODE_FAST_KERNEL_CUH

#include "encode/copy_async.cuh"
#include "encode/stage.cuh"

namespace tqi {

/* ---- units of work ----------------------------------------------------------------------------- */

/* New tokens of a token group, one kv head and side. */
struct Unit {
    uint32_t side, head;
    uint32_t fresh; /* bit i: token i of the group is new */
    uint32_t slot;  /* of the group's first token in its page */
    int64_t row;    /* of the group's first token in the caller's rows; may lie before them */
    uint8_t *blob;
};

TQI_ENCODE_INLINE AppendPiece piece_at(const FastEncodeJob &f, uint32_t i) {
    const EncodeJob &job = f.job;
    if (job.pieces)
        return job.pieces[i];
    uint64_t start = (f.first_group + i) * GROUP;
    uint64_t from = max(start, job.length), to = min(start + GROUP, job.end);
    AppendPiece p;
    p.page = job.ids.id[start / job.pages.page_tokens - job.first_page];
    p.slot = (uint32_t)(from % job.pages.page_tokens);
    p.n = (uint32_t)(to - from);
    p.row = (uint32_t)(from - job.length);
    return p;
}

TQI_ENCODE_INLINE uint32_t units_of(const FastEncodeJob &f, uint32_t parts) {
    uint32_t pieces = f.job.n_pieces ? *f.job.n_pieces : f.job.max_pieces;
    return pieces * parts * f.job.n_heads * (f.sides == 3 ? 2 : 1);
}

/* Unit of `n`: keys first, then heads fastest; a unit takes one of `parts` of the tokens. */
template <int PARTS>
TQI_ENCODE_INLINE Unit unit_at(const FastEncodeJob &f, uint32_t index, uint32_t n) {
    const EncodeJob &job = f.job;
    Unit u;
    uint32_t half = f.sides == 3 ? n / 2 : n;
    u.side = f.sides == 3 ? index >= half : f.sides >> 1;
    index -= index >= half ? half : 0;
    u.head = index % job.n_heads;
    index /= job.n_heads;
    AppendPiece p = piece_at(f, index / PARTS);
    uint32_t first = p.slot % GROUP;
    u.fresh = (uint32_t)(((1ull << p.n) - 1) << first);
    if (PARTS == 2)
        u.fresh &= index % 2 ? 0xffff0000u : 0x0000ffffu;
    u.slot = p.slot - first;
    u.row = (int64_t)p.row - first;
    u.blob = job.pages.base + p.page * job.pages.page_bytes + (uint64_t)u.head * job.pages.blob_bytes;
    return u;
}

/* ---- rows to shared memory -------------------------------------------------------------------------- */

template <int D> __host__ __device__ constexpr uint32_t pitch_of(int32_t dtype) {
    return D * (dtype == TQ_F32 ? 4 : 2) + 16;
}

/* Tokens first.. of the group, PIECES 16-byte pieces a row. */
template <int ROWS, int PIECES>
TQI_ENCODE_INLINE void copy_rows(const uint8_t *from, int64_t stride, uint32_t fresh,
                                 uint8_t *slot) {
    uint32_t lane = threadIdx.x % 32;
#pragma unroll
    for (int i = 0; i < ROWS * PIECES / 32; i++) {
        uint32_t row = (32 * i + lane) / PIECES, at = (32 * i + lane) % PIECES * 16;
        if (fresh >> row & 1)
            copy16_async(slot + row * (PIECES * 16 + 16) + at, from + row * stride + at);
    }
}

/* Starts to copy the new rows of a unit; element by element where they are not aligned. */
template <class R>
__device__ __noinline__ void fill_slot(const FastEncodeJob &f, const Unit &u, uint8_t *slot) {
    const RowsIn &rows = f.job.rows[u.side];
    uint32_t size = rows.dtype == TQ_F32 ? 4 : 2, first = 0, fresh = u.fresh;
    if (R::ROWS < 32 && fresh >= 1u << R::ROWS % 32)
        first = R::ROWS;
    fresh >>= first;
    const uint8_t *from = (const uint8_t *)rows.data +
                          ((u.row + first) * rows.token_stride + u.head * rows.head_stride) * size;
    int64_t stride = rows.token_stride * size;
    if (f.job.aligned >> u.side & 1) {
        if (size == 2)
            copy_rows<R::ROWS, R::D / 8>(from, stride, fresh, slot);
        else
            copy_rows<R::ROWS, R::D / 4>(from, stride, fresh, slot);
        return;
    }
    uint32_t pitch = pitch_of<R::D>(rows.dtype);
    for (uint32_t i = threadIdx.x % 32; i < R::ROWS * R::D; i += 32) {
        uint32_t row = i / R::D, dim = i % R::D;
        if (!(fresh >> row & 1))
            continue;
        if (size == 4)
            ((uint32_t *)(slot + row * pitch))[dim] = ((const uint32_t *)(from + row * stride))[dim];
        else
            ((uint16_t *)(slot + row * pitch))[dim] = ((const uint16_t *)(from + row * stride))[dim];
    }
}

/* ---- coordinates to pages ---------------------------------------------------------------------------- */

/* What a warp works with. */
struct WarpRoom {
    uint32_t *stage;
    const float *scaled;   /* of both sides' books, in shared memory */
    const uint32_t *flips; /* where lanes have different dims */
};

/* Pass by pass: word h of every chunk to the room, from there to the page. */
template <class R, int BITS, bool FP8>
TQI_ENCODE_INLINE void store_words(const FastEncodeJob &f, const Unit &u, const RowPlace &p,
                                   uint32_t token, const WarpRoom &room, const uint32_t *w) {
    constexpr int H = BITS <= 4 ? 1 : BITS / 4;
    const tqi_layout &l = f.job.side[u.side].layout;
    uint32_t group = u.slot / GROUP;
    uint32_t fresh = __reduce_or_sync(~0u, p.fresh ? 1u << token : 0);
    StagePlace s = {room.stage, (uint32_t *)(u.blob + l.codes) + group * (R::D * BITS), fresh,
                    threadIdx.x % 32};
#pragma unroll
    for (int h = 0; h < H; h++) {
        __syncwarp();
#pragma unroll
        for (int c = 0; c < R::CHUNKS; c++)
            if (p.fresh)
                room.stage[(c * R::L + p.part) * STAGE + token] = w[c * H + h];
        __syncwarp();
        if (u.side == TQI_SIDE_K)
            store_keys<R::D, BITS>(s, h);
        else if constexpr (BITS <= 4)
            store_values_lm<R::D, BITS>(s);
        else if constexpr (BITS == 8)
            store_values_8<R::D, FP8>(s, h);
        else
            store_values_16<R::D>(s, h);
    }
}

TQI_ENCODE_INLINE void store_gain(const FastEncodeJob &f, const Unit &u, const RowPlace &p,
                                  uint32_t token, float gain, int e) {
    if (p.part != 0 || !p.fresh)
        return;
    if (e)
        gain = ldexpf(gain, e);
    uint8_t *at = u.blob + f.job.side[u.side].layout.gains + (u.slot + token) * 2;
    if (u.side == TQI_SIDE_V)
        *(__nv_bfloat16 *)at = __float2bfloat16_rn(fminf(gain, 3.38953139e38f));
    else
        *(__half *)at = __float2half_rn(fminf(gain, 65504.0f));
}

/* Sets of words stay inside a token group. */
template <int D> __host__ __device__ constexpr bool has_sets(int bits) {
    return bits == 3 ? D % 128 == 0 : bits == 2 ? D % 64 == 0 : true;
}

template <class R, int BITS>
TQI_ENCODE_INLINE void encode_lm(const FastEncodeJob &f, const Unit &u, const RowPlace &p,
                                 uint32_t token, const WarpRoom &room, const float *x, float sum,
                                 int e) {
    const Side &s = f.job.side[u.side];
    const FastBook &b = f.book[u.side];
    float scaled = room.scaled[8 * u.side + threadIdx.x % 8];
    if constexpr (has_sets<R::D>(BITS)) {
        uint32_t w[R::CHUNKS];
        float gain;
        if (BITS == 4 && u.side == TQI_SIDE_K)
            gain = quantize_lm<R, BITS, true>(s, b, scaled, x, sum, w);
        else
            gain = quantize_lm<R, BITS, false>(s, b, scaled, x, sum, w);
        store_gain(f, u, p, token, gain, e);
        store_words<R, BITS, false>(f, u, p, token, room, w);
    }
}

/* Rows as they were loaded, to codes in the page. */
template <class R>
TQI_ENCODE_INLINE void encode_rows(const FastEncodeJob &f, const Unit &u, const RowPlace &p,
                                   uint32_t token, const WarpRoom &room, float *x) {
    const Side &s = f.job.side[u.side];
    float sum;
    int e = check_rows<R>(f.job, u.side, p, x, &sum);
    uint32_t w[R::N / 2];
    if (s.rotates) {
        rotate_row<R>(p.part, x);
        if (s.format == TQ_FORMAT_LM4) {
            encode_lm<R, 4>(f, u, p, token, room, x, sum, e);
        } else if (s.format == TQ_FORMAT_LM3) {
            encode_lm<R, 3>(f, u, p, token, room, x, sum, e);
        } else if (s.format == TQ_FORMAT_LM2) {
            encode_lm<R, 2>(f, u, p, token, room, x, sum, e);
        } else {
            store_gain(f, u, p, token, quantize_int8<R>(s, x, sum, w), e);
            store_words<R, 8, false>(f, u, p, token, room, w);
        }
    } else if (s.format == TQ_FORMAT_FP8) {
        quantize_fp8<R>(s.inv_scale[u.head], x, w);
        store_words<R, 8, true>(f, u, p, token, room, w);
    } else {
        round_16<R>(s.format == TQ_FORMAT_BF16, x, w);
        store_words<R, 16, false>(f, u, p, token, room, w);
    }
}

/* ---- a group of many new tokens ----------------------------------------------------------------------- */

template <class R, int DTYPE>
TQI_ENCODE_INLINE void load_slot(const uint8_t *row, const Flips &flips, const float *mean,
                                 uint32_t part, float *x) {
    constexpr int SIZE = DTYPE == TQ_F32 ? 4 : 2;
#pragma unroll
    for (int c = 0; c < R::CHUNKS; c++) {
        int dim = (c * R::L + (R::L > 1 ? (int)part : 0)) * 8;
        flip_chunk<DTYPE>(read_chunk<DTYPE>(row + dim * SIZE), flips, mean, dim, x + 8 * c);
    }
}

template <class R>
TQI_ENCODE_INLINE RowPlace place_of(const FastEncodeJob &f, const Unit &u, uint32_t token,
                                    uint32_t part) {
    const RowsIn &rows = f.job.rows[u.side];
    RowPlace p;
    p.at = (u.row + token) * rows.token_stride + (int64_t)u.head * rows.head_stride;
    p.part = R::L > 1 ? part : 0;
    p.head = u.head;
    p.fresh = token < GROUP && (u.fresh >> token % GROUP & 1);
    return p;
}

/* Rows of the unit lie in the slot; `next` is called when they have been read. */
template <class R, class Next>
TQI_ENCODE_INLINE void encode_many(const FastEncodeJob &f, const Unit &u, const uint8_t *slot,
                                   const WarpRoom &room, const Next &next) {
    const Side &s = f.job.side[u.side];
    int32_t dtype = f.job.rows[u.side].dtype;
    uint32_t lane = threadIdx.x % 32, part = lane % R::L, row = lane / R::L;
    uint32_t token = row + (R::ROWS < 32 && u.fresh >= 1u << R::ROWS % 32 ? R::ROWS : 0);
    RowPlace p = place_of<R>(f, u, token, part);
    const float *mean = s.mean ? s.mean + (size_t)u.head * R::D : nullptr;
    Flips flips = {R::L > 1 ? room.flips : f.flips, s.rotates};
    float x[R::N];
    slot += row * pitch_of<R::D>(dtype);
    if (dtype == TQ_BF16)
        load_slot<R, TQ_BF16>(slot, flips, mean, part, x);
    else if (dtype == TQ_F16)
        load_slot<R, TQ_F16>(slot, flips, mean, part, x);
    else
        load_slot<R, TQ_F32>(slot, flips, mean, part, x);
    __syncwarp();
    next();
    encode_rows<R>(f, u, p, token, room, x);
}

/* ---- a group of few new tokens: a chunk of 8 dims a lane, straight from the rows ------------------------- */

template <class R, int DTYPE>
TQI_ENCODE_INLINE void load_direct(const FastEncodeJob &f, const Unit &u, const RowPlace &p,
                                   float *x) {
    const Side &s = f.job.side[u.side];
    const RowsIn &rows = f.job.rows[u.side];
    Flips flips = {s.flips, s.rotates};
    const float *mean = s.mean ? s.mean + (size_t)u.head * R::D : nullptr;
    int dim = (int)p.part * 8;
    RawChunk<DTYPE> c = {};
    const uint8_t *from = (const uint8_t *)rows.data + (p.at + dim) * (DTYPE == TQ_F32 ? 4 : 2);
    if (p.fresh)
        c = f.job.aligned >> u.side & 1 ? read_chunk<DTYPE>(from) : gather_chunk<DTYPE>(from);
    flip_chunk<DTYPE>(c, flips, mean, dim, x);
}

template <class R>
TQI_ENCODE_INLINE void encode_few(const FastEncodeJob &f, const Unit &u, const WarpRoom &room) {
    int32_t dtype = f.job.rows[u.side].dtype;
    uint32_t lane = threadIdx.x % 32, first = __ffs((int)u.fresh) - 1, n = __popc(u.fresh);
    for (uint32_t i = 0; i < n; i += R::ROWS) {
        uint32_t row = i + lane / R::L;
        RowPlace p = place_of<R>(f, u, first + row, lane % R::L);
        float x[R::N];
        if (dtype == TQ_BF16)
            load_direct<R, TQ_BF16>(f, u, p, x);
        else if (dtype == TQ_F16)
            load_direct<R, TQ_F16>(f, u, p, x);
        else
            load_direct<R, TQ_F32>(f, u, p, x);
        encode_rows<R>(f, u, p, first + row, room, x);
    }
}

/* ---- the kernel ------------------------------------------------------------------------------------------ */

template <int D> struct FastShapes {
    using Many = RowShape<D, (D > 128 ? 2 : 1)>;
    static constexpr bool HAS_FEW = Many::ORDER == 1;
    using Few = RowShape<D, HAS_FEW ? D / 8 : Many::L>;
    /* new tokens from which a lane per row is faster */
    static constexpr int FEW_MAX = HAS_FEW ? 2 * Few::ROWS : 0;
};

/* Shared memory: books, flips, then slot and room of each warp. */
template <int D> __host__ __device__ constexpr uint32_t shared_head() {
    return 64 + (D > 128 ? D * 4 : 0);
}
template <int D> __host__ __device__ inline uint32_t shared_of_warp(int32_t dtype) {
    return FastShapes<D>::Many::ROWS * pitch_of<D>(dtype) + D / 8 * STAGE * 4;
}

template <int D>
__global__ void __launch_bounds__(FAST_WARPS * 32, FAST_BLOCKS_PER_SM)
    tqk_encode_fast(const __grid_constant__ FastEncodeJob f) {
    using Shapes = FastShapes<D>;
    using Many = typename Shapes::Many;
    extern __shared__ __align__(16) uint8_t shared[];
    float *scaled = (float *)shared;
    uint32_t *flips = (uint32_t *)(shared + 64), warp = threadIdx.x / 32;
    int32_t dtype = f.job.rows[0].dtype == TQ_F32 ? TQ_F32 : f.job.rows[1].dtype;
    uint8_t *slot = shared + shared_head<D>() + warp * shared_of_warp<D>(dtype);
    WarpRoom room = {(uint32_t *)(slot + Many::ROWS * pitch_of<D>(dtype)), scaled, flips};
    if (threadIdx.x < 16)
        scaled[threadIdx.x] = f.book[threadIdx.x / 8].scaled[threadIdx.x % 8];
    if (D > 128)
        for (uint32_t i = threadIdx.x; i < D; i += FAST_WARPS * 32)
            flips[i] = f.flips[i];
    __syncthreads();
    wait_for_predecessor();
    uint32_t n = units_of(f, Many::L), step = gridDim.x * FAST_WARPS;
    uint32_t index = warp * gridDim.x + blockIdx.x;
    auto fetch = [&](uint32_t i) {
        if (i >= n)
            return;
        Unit u = unit_at<Many::L>(f, i, n);
        if (__popc(u.fresh) > Shapes::FEW_MAX)
            fill_slot<Many>(f, u, slot);
    };
    fetch(index);
    for (; index < n; index += step) {
        Unit u = unit_at<Many::L>(f, index, n);
        auto next = [&]() { fetch(index + step); };
        wait_copies();
        __syncwarp();
        if (__popc(u.fresh) > Shapes::FEW_MAX) {
            encode_many<Many>(f, u, slot, room, next);
            continue;
        }
        next();
        if constexpr (Shapes::HAS_FEW)
            encode_few<typename Shapes::Few>(f, u, room);
    }
}

template <int D> tq_status prepare_encode_fast() {
    return check(cudaFuncSetAttribute(tqk_encode_fast<D>, cudaFuncAttributeMaxDynamicSharedMemorySize,
                                      (int)(shared_head<D>() +
                                            FAST_WARPS * shared_of_warp<D>(TQ_F32))),
                 "shared memory of the encoder");
}

template <int D> tq_status encode_fast(const FastEncodeJob &f, cudaStream_t stream) {
    const EncodeJob &job = f.job;
    bool wide = job.rows[0].dtype == TQ_F32 || job.rows[1].dtype == TQ_F32;
    uint64_t units = (uint64_t)job.max_pieces * FastShapes<D>::Many::L * job.n_heads *
                     (f.sides == 3 ? 2 : 1);
    uint64_t blocks = (units + FAST_WARPS - 1) / FAST_WARPS;
    uint64_t limit = (uint64_t)job.n_sms * FAST_BLOCKS_PER_SM;
    LaunchShape shape = {blocks < limit ? blocks : limit, FAST_WARPS * 32,
                         shared_head<D>() + FAST_WARPS * shared_of_warp<D>(wide ? TQ_F32 : TQ_F16),
                         stream, false};
    return launch(tqk_encode_fast<D>, shape, "tqk_encode_fast", f);
}

#define TQI_FAST_ENCODE_INSTANCE(d)                                      \
    tq_status encode_fast_d##d(const FastEncodeJob &f, cudaStream_t s) { \
        return encode_fast<d>(f, s);                                     \
    }                                                                    \
    tq_status prepare_encode_fast_d##d() {                               \
        return prepare_encode_fast<d>();                                 \
    }

} /* namespace tqi */

#endif
