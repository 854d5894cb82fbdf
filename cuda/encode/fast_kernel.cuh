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
#include "encode/few_rows.cuh"
#include "encode/plain.cuh"
#include "encode/whole_unit.cuh"

namespace tqi {

/* ---- a unit of many new tokens: its rows come through the slot ------------------------------- */

template <class R, int DTYPE>
TQI_ENCODE_INLINE void load_slot(const uint8_t *row, const uint32_t *flips, const float *mean,
                                 uint32_t part, float *x) {
    if (mean == nullptr)
        load_chunks<R, DTYPE, true>(row, flips, mean, part, x);
    else
        load_chunks<R, DTYPE, false>(row, flips, mean, part, x);
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

/* ---- the kernel ------------------------------------------------------------------------------ */

/* Whether a unit's rows come through the slot. */
template <int D> TQI_ENCODE_INLINE bool has_many(const Unit &u) {
    return __popc(u.fresh) > FastShapes<D>::FEW_MAX;
}

/* Shared memory: books, what is ahead of each warp, flips, then slot, exchange and stage of each.
 */
__host__ __device__ constexpr uint32_t to_lines(uint32_t bytes) {
    return (bytes + 127) / 128 * 128;
}
enum { AHEAD_BYTES = (sizeof(Ahead) + 15) / 16 * 16, FLIPS_AT = 64 + FAST_WARPS * AHEAD_BYTES };
template <int D> __host__ __device__ constexpr uint32_t shared_head() {
    return to_lines(FLIPS_AT + D * 4 + SignWords<typename FastShapes<D>::Many>::OF_ROW * 4);
}
template <int D> __host__ __device__ inline uint32_t slot_bytes(int32_t dtype) {
    using Many = typename FastShapes<D>::Many;
    return to_lines(Many::ROWS * pitch_of<Many>(dtype));
}
/* words: per chunk of the wider side. */
template <int D> __host__ __device__ inline uint32_t room_bytes(uint32_t words) {
    using Many = typename FastShapes<D>::Many;
    return to_lines(Many::ROWS * Many::PITCH * 4 + D / 8 * Stage<false>::PITCH * 4 * words);
}

/* The unit behind u, its first rows on their way to the slot. */
template <int D, bool SLOTS>
__device__ __noinline__ void find_next(const FastEncodeJob &f, Ahead *ahead, Unit u,
                                       uint8_t *slot) {
    Walk walk = ahead->walk;
    bool more = next_unit<SLOTS>(f, &walk, &u);
    __syncwarp();
    if (threadIdx.x % 32 == 0)
        *ahead = Ahead{u, walk, more};
    if (more && has_many<D>(u))
        fill_slot<typename FastShapes<D>::Many>(f, u, u.first, slot);
}

/* A unit of many new tokens, but not all, or of rows that need more care. */
template <int D, class S, class Next>
TQI_ENCODE_INLINE void encode_many(const FastEncodeJob &f, const Unit &u, uint8_t *slot,
                                   const WarpRoom &room, const Next &next) {
    using Many = typename FastShapes<D>::Many;
    uint32_t end = u.first + (GROUP >> f.log2_parts);
    OpenGain gain = {};
#pragma unroll 1
    for (uint32_t first = u.first; first < end; first += Many::ROWS) {
        auto refill = [&]() {
            if (first + Many::ROWS < end)
                fill_slot<Many>(f, u, first + Many::ROWS, slot);
            else
                next();
        };
        encode_slot<Many, S>(f, u, first, slot, room, &gain, refill);
    }
    if (gain.open)
        store_gain(f, u, gain.token, gain.parts, gain.exponent);
    store_unit<S, D>(f, u, room);
}

/* Units whose tokens are all new, by format. */
template <int D, class S, class Next>
TQI_ENCODE_INLINE void encode_wholes(const FastEncodeJob &f, Unit &u, uint32_t head_end,
                                     uint8_t *slot, const WarpRoom &room, const Next &next) {
    using Many = typename FastShapes<D>::Many;
    uint32_t format = f.job.side[u.side].format;
    if (format == TQ_FORMAT_LM4)
        encode_whole<Many, S, 4>(f, u, head_end, slot, room, next);
    else if (has_sets<D>(3) && format == TQ_FORMAT_LM3)
        encode_whole<Many, S, has_sets<D>(3) ? 3 : 8>(f, u, head_end, slot, room, next);
    else if (has_sets<D>(2) && format == TQ_FORMAT_LM2)
        encode_whole<Many, S, has_sets<D>(2) ? 2 : 8>(f, u, head_end, slot, room, next);
    else
        encode_whole<Many, S, 8>(f, u, head_end, slot, room, next);
}

/* All rows of a unit; of whole ones also those of its next heads. next() finds the unit behind
 * these and brings its first rows; it is called when the last rows before have been read. */
template <int D, class S, class Next>
TQI_ENCODE_INLINE void encode_units(const FastEncodeJob &f, Unit &u, uint32_t head_end,
                                    uint8_t *slot, const WarpRoom &room, const Next &next) {
    if (is_whole(f, u)) {
        encode_wholes<D, S>(f, u, head_end, slot, room, next);
    } else if (has_many<D>(u)) {
        encode_many<D, S>(f, u, slot, room, next);
    } else {
        using Few = typename FastShapes<D>::Few;
        Unit now = u;
        prefetch_values<D>(f, now);
        next();
        if constexpr (!FastShapes<D>::MIXES)
            if (now.fresh) {
                const ChunkFlips flips = ChunkFlips::of_room<typename FastShapes<D>::Many>(
                    room.flips, part_of_lane<Few>() * 8);
                encode_few<Few, S>(f, now, flips, room);
                store_unit<S, D>(f, now, room);
            }
    }
}

template <int D>
TQI_ENCODE_INLINE WarpRoom open_room(const FastEncodeJob &f, uint8_t *shared, uint32_t warp,
                                     uint8_t **slot) {
    using Many = typename FastShapes<D>::Many;
    uint32_t *flips = (uint32_t *)(shared + FLIPS_AT);
    *slot = shared + shared_head<D>() + warp * (f.slot_bytes + f.room_bytes);
    WarpRoom room;
    room.exchange = (float *)(*slot + f.slot_bytes);
    room.stage = (uint32_t *)room.exchange + Many::ROWS * Many::PITCH;
    room.steps = (const uint32_t *)shared;
    room.flips = flips;
    room.signs = flips + D;
    room.ahead = (Ahead *)(shared + 64 + warp * AHEAD_BYTES);
    if (threadIdx.x < 16)
        ((uint32_t *)shared)[threadIdx.x] = f.book[threadIdx.x / 8].step[threadIdx.x % 8];
    SignWords<Many>::make(flips_of(f), flips, flips + D);
    return room;
}

/* Before the kernel in front has ended: asks for the rows of a whole unit, see prefetch_row(). */
template <int D> TQI_ENCODE_INLINE void prefetch_rows(const FastEncodeJob &f, const Ahead &a) {
    const Unit &u = a.unit;
    const uint32_t lane = threadIdx.x % 32;
    if (!a.more || !is_whole(f, u) || lane >= GROUP >> f.log2_parts)
        return;
    const uint8_t *row = u.from + (u.first + lane) * f.job.rows[u.side].token_stride * 2;
#pragma unroll
    for (int at = 0; at < D * 2; at += 128)
        prefetch_line(row + at);
}

/* Slots are an array of the caller's and not read before the kernel in front has ended. PARTS: of
 * token groups are units. */
template <int D, bool SLOTS, bool PARTS>
__global__ void __launch_bounds__(FAST_WARPS * 32, FastShapes<D>::BLOCKS_PER_SM)
    tqk_encode_fast(const __grid_constant__ FastEncodeJob f) {
    using S = Stage<SLOTS, PARTS>;
    extern __shared__ __align__(128) uint8_t shared[];
    const uint32_t warp = warp_of_block();
    uint8_t *slot;
    WarpRoom room = open_room<D>(f, shared, warp, &slot);
    Ahead first = {{}, walk_of(f, warp * gridDim.x + blockIdx.x), false};
    if (!SLOTS) {
        first.more = next_group<SLOTS>(f, &first.walk, &first.unit);
        if (PARTS)
            prefetch_rows<D>(f, first);
    }
    __syncthreads();
    if (!f.joins)
        wait_for_predecessor();
    allow_successor();
    if (SLOTS)
        first.more = next_group<SLOTS>(f, &first.walk, &first.unit);
    if (first.more && has_many<D>(first.unit))
        fill_slot<typename FastShapes<D>::Many>(f, first.unit, first.unit.first, slot);
    if (threadIdx.x % 32 == 0)
        *room.ahead = first;
    __syncwarp();
    while (room.ahead->more) {
        Unit u = room.ahead->unit;
        const uint32_t head_end = room.ahead->walk.head_end;
        __syncwarp();
        auto next = [&]() { find_next<D, SLOTS>(f, room.ahead, u, slot); };
        encode_units<D, S>(f, u, head_end, slot, room, next);
        __syncwarp();
    }
    if (f.joins)
        wait_for_predecessor();
}

/* Sides that do not rotate: a warp a unit, or the runs of a window. */
template <int D, bool SLOTS>
__global__ void __launch_bounds__(FAST_WARPS * 32, 4)
    tqk_encode_plain(const __grid_constant__ FastEncodeJob f) {
    constexpr int LOG2_PARTS = SLOTS ? 0 : FastShapes<D>::LOG2_PLAIN_PARTS;
    uint32_t pieces = pieces_of(f), index = blockIdx.x * FAST_WARPS + threadIdx.x / 32;
    Walk walk = {index, index + (index < units_of(f, LOG2_PARTS)), pieces, 0, 0, {0, 0}};
    Unit u;
    bool exists = !SLOTS && walk.at < walk.end && unit_at(f, index, pieces, LOG2_PARTS, &u);
    if (exists && __popc(u.fresh) == 1)
        prefetch_row<D>(f, u);
    if (!f.joins)
        wait_for_predecessor();
    allow_successor();
    if (SLOTS)
        exists = next_group<SLOTS>(f, &walk, &u);
    while (exists) {
        encode_plain<D, (GROUP >> LOG2_PARTS)>(f, u);
        exists = SLOTS && next_unit<SLOTS>(f, &walk, &u);
    }
    if (f.joins)
        wait_for_predecessor();
}

/* ---- host ------------------------------------------------------------------------------------ */

template <int D, bool SLOTS> tq_status prepare_encode_fast() {
    uint32_t most = shared_head<D>() + FAST_WARPS * (slot_bytes<D>(TQ_F32) + room_bytes<D>(2));
    auto allow = [&](auto *kernel) {
        return check(
            cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, (int)most),
            "shared memory of the encoder");
    };
    if constexpr (!SLOTS)
        TQI_TRY(allow(tqk_encode_fast<D, SLOTS, true>));
    return allow(tqk_encode_fast<D, SLOTS, false>);
}

static inline uint32_t words_per_chunk(const Side &s) {
    return s.rotates && s.layout.bits == 8 ? 2 : 1;
}

/* Blocks of a warp a unit. */
static inline uint64_t blocks_of(const FastEncodeJob &f, uint32_t log2_parts) {
    return ((uint64_t)units_of(f, log2_parts) + FAST_WARPS - 1) / FAST_WARPS;
}

/* Sides that rotate. Few units are divided, so that there is one for every warp. */
template <int D, bool SLOTS> tq_status encode_rotated(FastEncodeJob f, LaunchShape shape) {
    using Shapes = FastShapes<D>;
    const EncodeJob &job = f.job;
    bool wide = job.rows[0].dtype == TQ_F32 || job.rows[1].dtype == TQ_F32;
    uint32_t k = words_per_chunk(job.side[0]), v = words_per_chunk(job.side[1]);
    f.slot_bytes = slot_bytes<D>(wide ? TQ_F32 : TQ_F16);
    f.room_bytes = room_bytes<D>(k > v ? k : v);
    uint64_t most = (uint64_t)job.n_sms * Shapes::BLOCKS_PER_SM; /* that run at once */
    f.log2_parts = 0;
    while (!SLOTS && f.log2_parts < Shapes::MOST_LOG2_PARTS &&
           blocks_of(f, f.log2_parts + 1) <= most)
        f.log2_parts++;
    shape.blocks = blocks_of(f, f.log2_parts);
    shape.blocks = shape.blocks < most ? shape.blocks : most;
    f.inverse_warps = UINT32_MAX / (uint32_t)(shape.blocks * FAST_WARPS);
    shape.shared = shared_head<D>() + FAST_WARPS * (f.slot_bytes + f.room_bytes);
    if constexpr (!SLOTS)
        if (f.log2_parts)
            return launch(tqk_encode_fast<D, SLOTS, true>, shape, "tqk_encode_fast", f);
    return launch(tqk_encode_fast<D, SLOTS, false>, shape, "tqk_encode_fast", f);
}

/* Appends of few tokens a piece, or of few slots, of both sides at once: when one rotates, and at
 * head dim 128, where rows of any format have a short way. */
template <int D, bool SLOTS> bool has_few(const FastEncodeJob &f, uint32_t rotate) {
    const EncodeJob &job = f.job;
    const uint64_t warps = (uint64_t)job.n_sms * FEW_WARPS_PER_SM;
    if (FastShapes<D>::MIXES || (!rotate && D != QuadPlace::D))
        return false;
    return SLOTS ? job.max_rows * 2 * job.n_heads <= warps
                 : job.max_rows <= FEW_ROWS * (uint64_t)job.max_pieces;
}

template <int D, bool SLOTS> tq_status launch_few(FastEncodeJob f, LaunchShape shape) {
    if (SLOTS) {
        f.log2_window = 0;
        f.job.max_pieces = (uint32_t)f.job.max_rows;
    }
    shape.blocks = blocks_of(f, 0);
    return launch(tqk_encode_few<D, SLOTS>, shape, "tqk_encode_few", f);
}

/* Sides that rotate and others take a launch each. */
template <int D, bool SLOTS> tq_status encode_fast(FastEncodeJob f, cudaStream_t stream) {
    const EncodeJob &job = f.job;
    LaunchShape shape = {0, FAST_WARPS * 32, 0, stream, job.overlap != 0};
    uint32_t sides = f.sides, rotate = sides & (job.side[0].rotates | job.side[1].rotates << 1);
    if constexpr (!FastShapes<D>::MIXES)
        if (has_few<D, SLOTS>(f, rotate))
            return launch_few<D, SLOTS>(f, shape);
    f.sides = rotate;
    if (rotate) {
        TQI_TRY((encode_rotated<D, SLOTS>(f, shape)));
        f.joins = 1;
    }
    f.sides = sides & ~rotate;
    if (f.sides == 0)
        return TQ_OK;
    shape.blocks = blocks_of(f, SLOTS ? 0 : FastShapes<D>::LOG2_PLAIN_PARTS);
    return launch(tqk_encode_plain<D, SLOTS>, shape, "tqk_encode_plain", f);
}

/* Two files a head dim. */
#define TQI_FAST_ENCODE_INSTANCE(d, name, slots)                             \
    tq_status encode_##name##_d##d(const FastEncodeJob &f, cudaStream_t s) { \
        return encode_fast<d, slots>(f, s);                                  \
    }                                                                        \
    tq_status prepare_encode_##name##_d##d() {                               \
        return prepare_encode_fast<d, slots>();                              \
    }

} /* namespace tqi */

#endif
