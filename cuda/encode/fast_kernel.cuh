/*
 * The write path at speed. A warp takes rows of a token group (32 tokens that share slabs) of one
 * kv head and side; a few lanes share a row, so that the Hadamard transform is plain additions in
 * registers, with one exchange between the lanes, while the code still fits the instruction
 * cache. The next rows come to shared memory meanwhile. Units of few new tokens take a lane for
 * every 8 dims instead, formats that do not rotate plain.cuh. The same bytes as encode_any.cu.
 */
#ifndef TQI_CUDA_ENCODE_FAST_KERNEL_CUH
#define TQI_CUDA_ENCODE_FAST_KERNEL_CUH

#include "encode/code_rows.cuh"
#include "encode/plain.cuh"

namespace tqi {

/* ---- a unit of many new tokens: its rows come through the slot ------------------------------- */

template <class R, int DTYPE, bool PLAIN>
TQI_ENCODE_INLINE void load_chunks(const uint8_t *row, const uint32_t *flips, const float *mean,
                                   uint32_t part, float *x) {
    constexpr int SIZE = DTYPE == TQ_F32 ? 4 : 2;
#pragma unroll
    for (int c = 0; c < R::CHUNKS; c++) {
        int dim = (int)part * R::N + 8 * c;
        flip_chunk<DTYPE, PLAIN>(read_chunk<DTYPE>(row + dim * SIZE), flips, mean, dim, x + 8 * c);
    }
}

template <class R, int DTYPE>
TQI_ENCODE_INLINE void load_slot(const uint8_t *row, const uint32_t *flips, const float *mean,
                                 uint32_t part, float *x) {
    if (mean == nullptr)
        load_chunks<R, DTYPE, true>(row, flips, mean, part, x);
    else
        load_chunks<R, DTYPE, false>(row, flips, mean, part, x);
}

template <class R> TQI_ENCODE_INLINE RowPlace place_of(const Unit &u, uint32_t token) {
    RowPlace p;
    p.row = u.row + token;
    p.part = part_of_lane<R>();
    p.head = u.head;
    p.fresh = token < GROUP && (u.fresh >> token % GROUP & 1);
    return p;
}

/* The slot's rows of the unit, from token `first` on; next() is called when they are read. */
template <class R, class S, class Next>
TQI_ENCODE_INLINE void encode_slot(const FastEncodeJob &f, const Unit &u, uint32_t first,
                                   const uint8_t *slot, const WarpRoom &room, OpenGain *gain,
                                   const Next &next) {
    const Side &s = f.job.side[u.side];
    int32_t dtype = f.job.rows[u.side].dtype;
    uint32_t token = first + row_of_lane<R>();
    RowPlace p = place_of<R>(u, token);
    const float *mean = s.mean ? s.mean + (size_t)u.head * R::D : nullptr;
    float x[R::N];
    slot += row_of_lane<R>() * pitch_of<R>(dtype);
    wait_copies();
    __syncwarp();
    if (dtype == TQ_BF16)
        load_slot<R, TQ_BF16>(slot, room.flips, mean, p.part, x);
    else if (dtype == TQ_F16)
        load_slot<R, TQ_F16>(slot, room.flips, mean, p.part, x);
    else
        load_slot<R, TQ_F32>(slot, room.flips, mean, p.part, x);
    __syncwarp();
    next();
    encode_rows<R, S>(f, u, p, token, (first - u.first) / R::ROWS, room, x, gain);
}

/* ---- a group of few new tokens: a chunk of 8 dims a lane, straight from the rows
 * ------------------------- */

template <class R, int DTYPE>
TQI_ENCODE_INLINE void load_direct(const FastEncodeJob &f, const Unit &u, const RowPlace &p,
                                   uint32_t token, const uint32_t *flips, float *x) {
    const Side &s = f.job.side[u.side];
    const RowsIn &rows = f.job.rows[u.side];
    const float *mean = s.mean ? s.mean + (size_t)u.head * R::D : nullptr;
    int dim = (int)p.part * 8;
    RawChunk<DTYPE> c = {};
    const uint8_t *from = u.from + (token * rows.token_stride + dim) * (DTYPE == TQ_F32 ? 4 : 2);
    if (p.fresh)
        c = f.job.aligned >> u.side & 1 ? read_chunk<DTYPE>(from) : gather_chunk<DTYPE>(from);
    flip_chunk<DTYPE, false>(c, flips, mean, dim, x);
}

/* Values of few tokens are merged into the words of their group: asks for these early. */
template <int D> TQI_ENCODE_INLINE void prefetch_values(const FastEncodeJob &f, const Unit &u) {
    const tqi_layout &l = f.job.side[u.side].layout;
    const uint8_t *codes = u.blob + l.codes + u.slot / GROUP * (D * l.bits * 4);
    if (u.side == TQI_SIDE_V)
        for (uint32_t line = threadIdx.x % 32; line < D * l.bits / 32; line += 32)
            prefetch_line(codes + line * 128);
}

template <class R, class S>
TQI_ENCODE_INLINE void encode_few(const FastEncodeJob &f, const Unit &u, const WarpRoom &room) {
    int32_t dtype = f.job.rows[u.side].dtype;
    uint32_t first = __ffs((int)u.fresh) - 1, n = __popc(u.fresh);
#pragma unroll 1
    for (uint32_t i = 0; i < n; i += R::ROWS) {
        uint32_t token = first + i + row_of_lane<R>();
        RowPlace p = place_of<R>(u, token);
        float x[R::N];
        if (dtype == TQ_BF16)
            load_direct<R, TQ_BF16>(f, u, p, token, room.flips, x);
        else if (dtype == TQ_F16)
            load_direct<R, TQ_F16>(f, u, p, token, room.flips, x);
        else
            load_direct<R, TQ_F32>(f, u, p, token, room.flips, x);
        OpenGain gain = {};
        encode_rows<R, S>(f, u, p, token, 0, room, x, &gain);
        if (gain.open)
            store_gain(f, u, gain.token, gain.parts, gain.exponent);
    }
}

/* ---- the kernel ------------------------------------------------------------------------------ */

template <int D> struct FastShapes {
    static constexpr bool MIXES = D % 3 == 0; /* blocks stay in a lane */
    using Many = RowShape<D, (D == 64 ? 2 : 4)>;
    using Few = RowShape<D, MIXES ? Many::L : D / 8>;
    /* a unit's tokens are those of a stage */
    using Unit = Stage<(Many::ROWS < 16 ? 16 : Many::ROWS)>;
    static_assert(Unit::TOKENS / Many::ROWS <= Many::L, "a lane for every open gain");
    static constexpr int PARTS = GROUP / Unit::TOKENS;
    /* new tokens of a unit from which more dims a lane are faster */
    static constexpr int FEW_MAX = MIXES ? 0 : 2 * Few::ROWS;
    static constexpr int BLOCKS_PER_SM = 4;
    static constexpr int PLAIN_PARTS = D <= 64 ? 1 : 2;
};

/* Whether a unit's rows come through the slot. */
template <int D> TQI_ENCODE_INLINE bool has_many(const Unit &u) {
    return __popc(u.fresh) > FastShapes<D>::FEW_MAX;
}

/* Shared memory: books, next unit of each warp, flips, then slot, exchange and stage of each. */
enum { UNIT_BYTES = (sizeof(Unit) + 15) / 16 * 16, FLIPS_AT = 64 + FAST_WARPS * UNIT_BYTES };
template <int D> __host__ __device__ constexpr uint32_t shared_head() {
    return FLIPS_AT + D * 4;
}
template <int D> __host__ __device__ inline uint32_t slot_bytes(int32_t dtype) {
    using Many = typename FastShapes<D>::Many;
    return Many::ROWS * pitch_of<Many>(dtype);
}
/* words: per chunk of the wider side. */
template <int D> __host__ __device__ inline uint32_t room_bytes(uint32_t words) {
    using Many = typename FastShapes<D>::Many;
    return Many::ROWS * Many::PITCH * 4 + D / 8 * FastShapes<D>::Unit::PITCH * 4 * words;
}

/* A unit, all its rows. find() yields the next unit, one without new tokens when there is none;
 * its first rows are on their way while the last ones of this unit are coded. */
template <int D, class Find>
TQI_ENCODE_INLINE void encode_unit(const FastEncodeJob &f, const Unit &u, uint8_t *slot,
                                   const WarpRoom &room, const Find &find) {
    using Shapes = FastShapes<D>;
    using Many = typename Shapes::Many;
    if (has_many<D>(u)) {
        uint32_t end = u.first + Shapes::Unit::TOKENS;
        OpenGain gain = {};
#pragma unroll 1
        for (uint32_t first = u.first; first < end; first += Many::ROWS) {
            auto refill = [&]() {
                uint32_t at = first + Many::ROWS;
                Unit rest = u;
                if (at >= end) {
                    rest = find();
                    at = rest.first;
                }
                if (has_many<D>(rest))
                    fill_slot<Many>(f, rest, at, slot);
            };
            encode_slot<Many, typename Shapes::Unit>(f, u, first, slot, room, &gain, refill);
        }
        if (gain.open)
            store_gain(f, u, gain.token, gain.parts, gain.exponent);
    } else {
        prefetch_values<D>(f, u);
        Unit rest = find();
        if (has_many<D>(rest))
            fill_slot<Many>(f, rest, rest.first, slot);
        if (u.fresh == 0)
            return;
        if constexpr (!Shapes::MIXES)
            encode_few<typename Shapes::Few, typename Shapes::Unit>(f, u, room);
    }
    store_unit<typename Shapes::Unit, D>(f, u, room);
}

/* Pieces are there since before the kernel in front, see wait_for_predecessor(). */
TQI_ENCODE_INLINE uint32_t pieces_of(const FastEncodeJob &f) {
    return f.job.n_pieces ? *f.job.n_pieces : f.job.max_pieces;
}

template <int D>
__global__ void __launch_bounds__(FAST_WARPS * 32, FastShapes<D>::BLOCKS_PER_SM)
    tqk_encode_fast(const __grid_constant__ FastEncodeJob f) {
    using Shapes = FastShapes<D>;
    extern __shared__ __align__(16) uint8_t shared[];
    float *scaled = (float *)shared;
    uint32_t *flips = (uint32_t *)(shared + FLIPS_AT), warp = threadIdx.x / 32;
    uint8_t *slot = shared + shared_head<D>() + warp * (f.slot_bytes + f.room_bytes);
    WarpRoom room;
    room.exchange = (float *)(slot + f.slot_bytes);
    room.stage = (uint32_t *)room.exchange + Shapes::Many::ROWS * Shapes::Many::PITCH;
    room.scaled = scaled;
    room.flips = flips;
    room.next = (Unit *)(shared + 64 + warp * UNIT_BYTES);
    if (threadIdx.x < 16)
        scaled[threadIdx.x] = f.book[threadIdx.x / 8].scaled[threadIdx.x % 8];
    for (uint32_t i = threadIdx.x; i < D; i += FAST_WARPS * 32) /* the same of both sides */
        flips[i] = f.job.side[f.sides >> 1 & ~f.sides & 1].flips[i];
    uint32_t pieces = pieces_of(f), n = units_of(f, Shapes::PARTS);
    uint32_t index = warp * gridDim.x + blockIdx.x;
    bool more = true;
    auto find = [&]() {
        Unit u = {};
        more = index < n && unit_at<Shapes::PARTS>(f, index, pieces, &u);
        index += gridDim.x * FAST_WARPS;
        if (more && threadIdx.x % 32 == 0)
            *room.next = u;
        return u;
    };
    Unit first = find();
    __syncthreads();
    if (!f.joins)
        wait_for_predecessor();
    allow_successor();
    if (has_many<D>(first))
        fill_slot<typename Shapes::Many>(f, first, first.first, slot);
    while (more) {
        __syncwarp();
        Unit u = *room.next;
        __syncwarp();
        encode_unit<D>(f, u, slot, room, find);
    }
    if (f.joins)
        wait_for_predecessor();
}

/* Sides that do not rotate: a warp a unit. */
template <int D>
__global__ void __launch_bounds__(FAST_WARPS * 32, 6)
    tqk_encode_plain(const __grid_constant__ FastEncodeJob f) {
    constexpr int PARTS = FastShapes<D>::PLAIN_PARTS;
    uint32_t pieces = pieces_of(f), index = blockIdx.x * FAST_WARPS + threadIdx.x / 32;
    Unit u;
    bool exists = index < units_of(f, PARTS) && unit_at<PARTS>(f, index, pieces, &u);
    if (!f.joins)
        wait_for_predecessor();
    allow_successor();
    if (exists)
        encode_plain<D, GROUP / PARTS>(f, u);
    if (f.joins)
        wait_for_predecessor();
}

/* ---- host ------------------------------------------------------------------------------------ */

template <int D> tq_status prepare_encode_fast() {
    uint32_t most = shared_head<D>() + FAST_WARPS * (slot_bytes<D>(TQ_F32) + room_bytes<D>(2));
    return check(cudaFuncSetAttribute(tqk_encode_fast<D>,
                                      cudaFuncAttributeMaxDynamicSharedMemorySize, (int)most),
                 "shared memory of the encoder");
}

static inline uint32_t words_per_chunk(const Side &s) {
    return s.rotates && s.layout.bits == 8 ? 2 : 1;
}

/* Blocks of a warp a unit. */
static inline uint64_t blocks_of(const FastEncodeJob &f, uint32_t parts) {
    return ((uint64_t)units_of(f, parts) + FAST_WARPS - 1) / FAST_WARPS;
}

/* Sides that rotate and others take a launch each. */
template <int D> tq_status encode_fast(FastEncodeJob f, cudaStream_t stream) {
    using Shapes = FastShapes<D>;
    const EncodeJob &job = f.job;
    LaunchShape shape = {0, FAST_WARPS * 32, 0, stream, job.overlap != 0};
    uint32_t sides = f.sides, rotate = sides & (job.side[0].rotates | job.side[1].rotates << 1);
    f.sides = sides & ~rotate;
    if (f.sides) {
        shape.blocks = blocks_of(f, Shapes::PLAIN_PARTS);
        TQI_TRY(launch(tqk_encode_plain<D>, shape, "tqk_encode_plain", f));
        f.joins = 1;
    }
    f.sides = rotate;
    if (!rotate)
        return TQ_OK;
    bool wide = job.rows[0].dtype == TQ_F32 || job.rows[1].dtype == TQ_F32;
    uint32_t k = words_per_chunk(job.side[0]), v = words_per_chunk(job.side[1]);
    f.slot_bytes = slot_bytes<D>(wide ? TQ_F32 : TQ_F16);
    f.room_bytes = room_bytes<D>(k > v ? k : v);
    uint64_t most = (uint64_t)job.n_sms * Shapes::BLOCKS_PER_SM; /* that run at once */
    shape.blocks = blocks_of(f, Shapes::PARTS);
    shape.blocks = shape.blocks < most ? shape.blocks : most;
    shape.shared = shared_head<D>() + FAST_WARPS * (f.slot_bytes + f.room_bytes);
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
