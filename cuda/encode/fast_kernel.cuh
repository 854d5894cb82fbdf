/*
 * The write path at speed. A warp takes rows of a token group (32 tokens that share slabs) of one
 * kv head and side; a few lanes share a row, so that most of the Hadamard transform is plain
 * additions in registers while the code still fits the instruction cache. The next rows come to
 * shared memory meanwhile. Units of few new tokens take a lane for every 8 dims instead. The
 * same bytes as encode_any.cu.
 */
#ifndef TQI_CUDA_ENCODE_FAST_KERNEL_CUH
#define TQI_CUDA_ENCODE_FAST_KERNEL_CUH

#include "encode/unit.cuh"

namespace tqi {

/* ---- coordinates to pages
 * ---------------------------------------------------------------------------- */

/* What a warp works with. */
struct WarpRoom {
    uint32_t *stage;
    const float *scaled;   /* of both sides' books, in shared memory */
    const uint32_t *flips; /* where lanes have different dims */
    Unit *next;            /* to which the rows in the slot belong */
    bool shared;           /* groups of tokens with others, as slots can be anywhere */
};

/* Words of a row to the room: a row of the room for every word h and chunk. */
template <class R, class S, int H>
TQI_ENCODE_INLINE void stage_words(const Unit &u, const RowPlace &p, uint32_t token,
                                   const WarpRoom &room, const uint32_t *w) {
    uint32_t *to = room.stage + p.part * S::PITCH + token - u.first;
    if (!p.fresh)
        return;
#pragma unroll
    for (int h = 0; h < H; h++)
#pragma unroll
        for (int c = 0; c < R::CHUNKS; c++)
            to[(h * (R::D / 8) + c * R::L) * S::PITCH] = w[c * H + h];
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

template <class R, class S, int BITS>
TQI_ENCODE_INLINE void encode_lm(const FastEncodeJob &f, const Unit &u, const RowPlace &p,
                                 uint32_t token, const WarpRoom &room, const float *x,
                                 const RowNorm &n) {
    const Side &s = f.job.side[u.side];
    const FastBook &b = f.book[u.side];
    float scaled = room.scaled[8 * u.side + threadIdx.x % 8];
    if constexpr (has_sets<R::D>(BITS)) {
        uint32_t w[R::CHUNKS];
        float gain;
        if (BITS == 4 && u.side == TQI_SIDE_K)
            gain = quantize_lm<R, BITS, true>(s, b, scaled, x, n.sum, w);
        else
            gain = quantize_lm<R, BITS, false>(s, b, scaled, x, n.sum, w);
        store_gain(f, u, p, token, gain, n.exponent);
        stage_words<R, S, 1>(u, p, token, room, w);
    }
}

/* Rows as they were loaded, to code words in the room. */
template <class R, class S>
TQI_ENCODE_INLINE void encode_rows(const FastEncodeJob &f, const Unit &u, const RowPlace &p,
                                   uint32_t token, const WarpRoom &room, float *x) {
    const Side &s = f.job.side[u.side];
    RowNorm n = check_rows<R>(f.job, u.side, p, x);
    uint32_t w[R::N / 2];
    if (s.rotates) {
        rotate_row<R>(p.part, x);
        if (s.format == TQ_FORMAT_LM4) {
            encode_lm<R, S, 4>(f, u, p, token, room, x, n);
        } else if (s.format == TQ_FORMAT_LM3) {
            encode_lm<R, S, 3>(f, u, p, token, room, x, n);
        } else if (s.format == TQ_FORMAT_LM2) {
            encode_lm<R, S, 2>(f, u, p, token, room, x, n);
        } else {
            store_gain(f, u, p, token, quantize_int8<R>(s, x, n.sum, w), n.exponent);
            stage_words<R, S, 2>(u, p, token, room, w);
        }
    } else if (s.format == TQ_FORMAT_FP8) {
        quantize_fp8<R>(s.inv_scale[u.head], x, w);
        stage_words<R, S, 2>(u, p, token, room, w);
    } else {
        round_16<R>(s.format == TQ_FORMAT_BF16, x, w);
        stage_words<R, S, 4>(u, p, token, room, w);
    }
}

/* Words of the room to the page. */
template <class S, int D, int BITS, bool FP8>
TQI_ENCODE_INLINE void store_words(const FastEncodeJob &f, const Unit &u, const WarpRoom &room) {
    constexpr int H = BITS <= 4 ? 1 : BITS / 4;
    uint32_t *codes = (uint32_t *)(u.blob + f.job.side[u.side].layout.codes);
    StagePlace p = {room.stage,         codes + u.slot / GROUP * (D * BITS),
                    u.fresh >> u.first, u.first,
                    threadIdx.x % 32,   room.shared};
#pragma unroll 1
    for (int h = 0; h < H; h++, p.room += D / 8 * S::PITCH)
        if (u.side == TQI_SIDE_K)
            store_keys<S, D, BITS>(p, h);
        else if constexpr (BITS <= 4)
            store_values_lm<S, D, BITS>(p);
        else if constexpr (BITS == 8)
            store_values_8<S, D, FP8>(p, h);
        else
            store_values_16<S, D>(p, h);
}

template <class S, int D>
TQI_ENCODE_INLINE void store_unit(const FastEncodeJob &f, const Unit &u, const WarpRoom &room) {
    uint32_t format = f.job.side[u.side].format;
    __syncwarp();
    if (format == TQ_FORMAT_LM4) {
        store_words<S, D, 4, false>(f, u, room);
    } else if (format == TQ_FORMAT_LM3) {
        if constexpr (has_sets<D>(3))
            store_words<S, D, 3, false>(f, u, room);
    } else if (format == TQ_FORMAT_LM2) {
        if constexpr (has_sets<D>(2))
            store_words<S, D, 2, false>(f, u, room);
    } else if (format == TQ_FORMAT_INT8) {
        store_words<S, D, 8, false>(f, u, room);
    } else if (format == TQ_FORMAT_FP8) {
        store_words<S, D, 8, true>(f, u, room);
    } else {
        store_words<S, D, 16, false>(f, u, room);
    }
    __syncwarp();
}

/* ---- a unit of many new tokens: its rows come through the slot ------------------------------- */

template <class R, int DTYPE, bool PLAIN>
TQI_ENCODE_INLINE void load_chunks(const uint8_t *row, const Flips &flips, const float *mean,
                                   uint32_t part, float *x) {
    constexpr int SIZE = DTYPE == TQ_F32 ? 4 : 2;
#pragma unroll
    for (int c = 0; c < R::CHUNKS; c++) {
        int dim = (c * R::L + (R::L > 1 ? (int)part : 0)) * 8;
        flip_chunk<DTYPE, PLAIN>(read_chunk<DTYPE>(row + dim * SIZE), flips, mean, dim, x + 8 * c);
    }
}

template <class R, int DTYPE>
TQI_ENCODE_INLINE void load_slot(const uint8_t *row, const Flips &flips, const float *mean,
                                 uint32_t part, float *x) {
    if (is_plain(flips, mean))
        load_chunks<R, DTYPE, true>(row, flips, mean, part, x);
    else
        load_chunks<R, DTYPE, false>(row, flips, mean, part, x);
}

template <class R>
TQI_ENCODE_INLINE RowPlace place_of(const Unit &u, uint32_t token, uint32_t part) {
    RowPlace p;
    p.row = u.row + token;
    p.part = R::L > 1 ? part : 0;
    p.head = u.head;
    p.fresh = token < GROUP && (u.fresh >> token % GROUP & 1);
    return p;
}

/* The slot's rows of the unit, from token `first` on; next() is called when they are read. */
template <class R, class S, class Next>
TQI_ENCODE_INLINE void encode_slot(const FastEncodeJob &f, const Unit &u, uint32_t first,
                                   const uint8_t *slot, const WarpRoom &room, const Next &next) {
    const Side &s = f.job.side[u.side];
    int32_t dtype = f.job.rows[u.side].dtype;
    uint32_t lane = threadIdx.x % 32, part = lane % R::L, row = lane / R::L;
    RowPlace p = place_of<R>(u, first + row, part);
    const float *mean = s.mean ? s.mean + (size_t)u.head * R::D : nullptr;
    Flips flips = {R::L > 1 ? room.flips : f.flips, s.rotates};
    float x[R::N];
    slot += row * pitch_of<R>(dtype);
    wait_copies();
    __syncwarp();
    if (dtype == TQ_BF16)
        load_slot<R, TQ_BF16>(slot, flips, mean, part, x);
    else if (dtype == TQ_F16)
        load_slot<R, TQ_F16>(slot, flips, mean, part, x);
    else
        load_slot<R, TQ_F32>(slot, flips, mean, part, x);
    __syncwarp();
    next();
    encode_rows<R, S>(f, u, p, first + row, room, x);
}

/* ---- a group of few new tokens: a chunk of 8 dims a lane, straight from the rows
 * ------------------------- */

template <class R, int DTYPE>
TQI_ENCODE_INLINE void load_direct(const FastEncodeJob &f, const Unit &u, const RowPlace &p,
                                   float *x) {
    const Side &s = f.job.side[u.side];
    const RowsIn &rows = f.job.rows[u.side];
    Flips flips = {s.flips, s.rotates};
    const float *mean = s.mean ? s.mean + (size_t)u.head * R::D : nullptr;
    int dim = (int)p.part * 8;
    RawChunk<DTYPE> c = {};
    const uint8_t *from =
        (const uint8_t *)rows.data + (first_element(rows, p) + dim) * (DTYPE == TQ_F32 ? 4 : 2);
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
    uint32_t lane = threadIdx.x % 32, first = __ffs((int)u.fresh) - 1, n = __popc(u.fresh);
#pragma unroll 1
    for (uint32_t i = 0; i < n; i += R::ROWS) {
        uint32_t token = first + i + lane / R::L;
        RowPlace p = place_of<R>(u, token, lane % R::L);
        float x[R::N];
        if (dtype == TQ_BF16)
            load_direct<R, TQ_BF16>(f, u, p, x);
        else if (dtype == TQ_F16)
            load_direct<R, TQ_F16>(f, u, p, x);
        else
            load_direct<R, TQ_F32>(f, u, p, x);
        encode_rows<R, S>(f, u, p, token, room, x);
    }
}

/* ---- the kernel ------------------------------------------------------------------------------ */

template <int D> struct FastShapes {
    static constexpr bool MIXES = D % 3 == 0; /* blocks stay in a lane */
    using Many = RowShape<D, (MIXES ? D / 96 : D == 64 ? 2 : 4)>;
    using Few = RowShape<D, MIXES ? Many::L : D / 8>;
    /* a unit's tokens are those of a stage */
    using Unit = Stage<(Many::ROWS < 16 ? 16 : Many::ROWS)>;
    static constexpr int PARTS = GROUP / Unit::TOKENS;
    /* new tokens of a unit from which more dims a lane are faster */
    static constexpr int FEW_MAX = MIXES ? 0 : 2 * Few::ROWS;
    static constexpr int BLOCKS_PER_SM = Many::N <= 32 ? 6 : Many::N <= 64 ? 4 : 3;
};

/* Shared memory: books, next unit of each warp, flips, then slot and room of each warp. */
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
    return D / 8 * FastShapes<D>::Unit::PITCH * 4 * words;
}

/* A unit, all its rows; fetch(i) starts to copy rows of unit i. */
template <int D, class Fetch>
TQI_ENCODE_INLINE void encode_unit(const FastEncodeJob &f, const Unit &u, uint32_t next,
                                   const uint8_t *slot, const WarpRoom &room, const Fetch &fetch) {
    using Shapes = FastShapes<D>;
    using Many = typename Shapes::Many;
    if (room.shared && u.fresh == 0) {
        fetch(next);
        return;
    }
    if (__popc(u.fresh) > Shapes::FEW_MAX) {
        uint32_t end = u.first + Shapes::Unit::TOKENS;
#pragma unroll 1
        for (uint32_t first = u.first; first < end; first += Many::ROWS) {
            bool last = first + Many::ROWS >= end;
            auto refill = [&]() {
                if (last)
                    fetch(next);
                else
                    fill_slot<Many>(f, u, first + Many::ROWS, (uint8_t *)slot);
            };
            encode_slot<Many, typename Shapes::Unit>(f, u, first, slot, room, refill);
        }
    } else {
        prefetch_values<D>(f, u);
        fetch(next);
        if constexpr (!Shapes::MIXES)
            encode_few<typename Shapes::Few, typename Shapes::Unit>(f, u, room);
    }
    store_unit<typename Shapes::Unit, D>(f, u, room);
}

template <int D, bool SLOTS>
__global__ void __launch_bounds__(FAST_WARPS * 32, FastShapes<D>::BLOCKS_PER_SM)
    tqk_encode_fast(const __grid_constant__ FastEncodeJob f) {
    using Shapes = FastShapes<D>;
    extern __shared__ __align__(16) uint8_t shared[];
    float *scaled = (float *)shared;
    uint32_t *flips = (uint32_t *)(shared + FLIPS_AT), warp = threadIdx.x / 32;
    uint8_t *slot = shared + shared_head<D>() + warp * (f.slot_bytes + f.room_bytes);
    WarpRoom room = {(uint32_t *)(slot + f.slot_bytes), scaled, flips,
                     (Unit *)(shared + 64 + warp * UNIT_BYTES), SLOTS};
    if (threadIdx.x < 16)
        scaled[threadIdx.x] = f.book[threadIdx.x / 8].scaled[threadIdx.x % 8];
    for (uint32_t i = threadIdx.x; i < D; i += FAST_WARPS * 32)
        flips[i] = f.flips[i];
    __syncthreads();
    wait_for_predecessor();
    uint32_t n = units_of(f, Shapes::PARTS), warps = gridDim.x * FAST_WARPS;
    uint32_t step = SLOTS ? unit_step(f, Shapes::PARTS, warps) : warps;
    uint32_t index = warp * gridDim.x + blockIdx.x;
    auto fetch = [&](uint32_t i) {
        if (SLOTS)
            i = next_run(f, Shapes::PARTS, i, step, n);
        index = i;
        if (i >= n)
            return;
        Unit u = unit_at<Shapes::PARTS, SLOTS>(f, i, n);
        if (threadIdx.x % 32 == 0)
            *room.next = u;
        if (__popc(u.fresh) > Shapes::FEW_MAX)
            fill_slot<typename Shapes::Many>(f, u, u.first, slot);
    };
    fetch(index < step ? index : n);
#pragma unroll 1
    while (index < n) {
        __syncwarp();
        Unit u = *room.next;
        __syncwarp();
        encode_unit<D>(f, u, index + step, slot, room, fetch);
    }
}

/* ---- host ------------------------------------------------------------------------------------ */

template <int D> tq_status prepare_encode_fast() {
    uint32_t most = shared_head<D>() + FAST_WARPS * (slot_bytes<D>(TQ_F32) + room_bytes<D>(4));
    const cudaFuncAttribute limit = cudaFuncAttributeMaxDynamicSharedMemorySize;
    TQI_TRY(check(cudaFuncSetAttribute(tqk_encode_fast<D, false>, limit, (int)most),
                  "shared memory of the encoder"));
    return check(cudaFuncSetAttribute(tqk_encode_fast<D, true>, limit, (int)most),
                 "shared memory of the encoder");
}

static inline uint32_t words_per_chunk(const Side &s) {
    return s.layout.bits <= 4 ? 1 : s.layout.bits / 4;
}

template <int D> tq_status encode_fast(FastEncodeJob f, cudaStream_t stream) {
    const EncodeJob &job = f.job;
    bool wide = job.rows[0].dtype == TQ_F32 || job.rows[1].dtype == TQ_F32;
    uint32_t k = words_per_chunk(job.side[0]), v = words_per_chunk(job.side[1]);
    f.slot_bytes = slot_bytes<D>(wide ? TQ_F32 : TQ_F16);
    f.room_bytes = room_bytes<D>(k > v ? k : v);
    uint64_t units =
        (uint64_t)job.max_pieces * FastShapes<D>::PARTS * job.n_heads * (f.sides == 3 ? 2 : 1);
    uint64_t blocks = (units + FAST_WARPS - 1) / FAST_WARPS;
    uint64_t limit = (uint64_t)job.n_sms * FastShapes<D>::BLOCKS_PER_SM;
    LaunchShape shape = {blocks < limit ? blocks : limit, FAST_WARPS * 32,
                         shared_head<D>() + FAST_WARPS * (f.slot_bytes + f.room_bytes), stream,
                         false};
    return launch(job.slots ? tqk_encode_fast<D, true> : tqk_encode_fast<D, false>, shape,
                  "tqk_encode_fast", f);
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
