/*
 * A warpgroup, one page of 64 tokens of e4m3, up to 4 NT query rows, on wgmma.
 *
 * Keys and values are A, 64 rows, from registers: warp w brings 16 of them, the words of the page
 * as they are. Its rows g and g + 8 are
 *
 *     keys    tokens 32 (w / 2) + 4 g + 2 (w % 2) and the next
 *     values  dims (D/8) g + 8 m + 2 w and the next, m = 0 .. D/64 - 1
 *
 * B, the planes of the queries and then of the probabilities (e4m3.cuh), lies in shared memory,
 * as warps share it; k counts the 32 bytes that four lanes' words make. A warpgroup passes two
 * barriers a page: for the maximum of the tile, and for its probabilities.
 *
 * The tensor cores add with 13 bits below the largest product. So sums of CHAIN steps of 32 only
 * are left to them and then added in binary32.
 */
#ifndef TQI_CUDA_ATTEND_GROUP_TILE_CUH
#define TQI_CUDA_ATTEND_GROUP_TILE_CUH

#include "attend/e4m3.cuh"
#include "attend/stream.cuh"
#include "attend/warpgroup.cuh"

namespace tqi {

/* Shared memory of a warpgroup beside its slots. */
template <int NT, int D> struct GroupRoom {
    static constexpr uint32_t query_block = D * 8; /* bytes of a block of columns */
    static constexpr uint32_t weights = query_blocks(NT) * query_block;
    static constexpr uint32_t weights_block = FAST_TOKENS * 8;
    static constexpr uint32_t maxima = weights + NT * weights_block;
    static constexpr uint32_t rest = maxima + 4 * NT * 4 * 4;
    static constexpr uint32_t bytes = (rest + 32 + 127) / 128 * 128;
};

template <int NT, int D> struct GroupTile;

template <int NT_, int D_> struct GroupTileShape {
    using Tile = GroupTile<NT_, D_>;
    static constexpr int NT = NT_, D = D_, J = D / 32, HEADS = NT * 4;
    static constexpr bool PRODUCED = false, RECORDS = false;
    using Layout = Blob<TQ_FORMAT_FP8, TQ_FORMAT_FP8, D>;
    using Ring = GroupRing<Layout::bytes>;
    static constexpr uint32_t PAGES = 1, SLOT_BYTES = PAGES * Layout::bytes; /* at a time */
    static constexpr uint32_t SLOT_BARRIERS = 2;                             /* room for them */
    static constexpr int BARRIERS = 2;                                       /* per turn */
    using Room = GroupRoom<NT, D>;
    __host__ __device__ static constexpr uint32_t slots_of(uint32_t asked) {
        return asked;
    }
};

#if TQI_WGMMA

template <int NT_, int D_> struct GroupTile : GroupTileShape<NT_, D_> {
    static constexpr int NT = NT_, D = D_, J = D / 32, HEADS = NT * 4, M = D / 64;
    using Edge = PageEdge<NT>;
    static constexpr uint32_t QUERY_BLOCKS = query_blocks(NT);
    static constexpr int COLUMNS = 8 * QUERY_BLOCKS;
    static constexpr int CHAINS = NT == 2 && J == 4 ? 4 : 2, CHAIN = J / CHAINS;
    using Layout = typename GroupTileShape<NT_, D_>::Layout;
    using Room = GroupRoom<NT, D>;

    Group group;
    uint32_t room;  /* address */
    uint32_t words; /* of the lane and warp in a slot: of keys; those of values lie elsewhere */
    uint64_t q, p;  /* operands */
    float q_scale[NT];
    float acc[M][NT][2], max[NT], sum[NT];

    TQI_INLINE void setup(const FastJob &, const Group &g, uint32_t address) {
        group = g;
        room = address;
        words = g.lane * 16 + g.warp % 2 * 8;
        q = operand_b(room, Room::query_block);
        p = operand_b(room + Room::weights, Room::weights_block);
    }

    TQI_INLINE static Fetch begin_fetch(const FastJob &job, const tqi_work &work, uint8_t *,
                                        uint32_t first, uint32_t step) {
        return Fetch(job, work, fresh(&job.call.step.head->table), first, step);
    }

    TQI_INLINE static uint32_t row_of_column(uint32_t block, uint32_t column) {
        return tqi::row_of_column(NT, block, column);
    }

    /* first: the item's first row; last: its last one, which stands for those that it lacks. */
    TQI_INLINE void set_rows(const FastJob &job, uint32_t first, uint32_t last) {
#pragma unroll
        for (int nt = 0; nt < NT; nt++)
            q_scale[nt] = __ldcg(job.q_scale + first + min(nt * 4 + group.lane % 4, last));
    }

    TQI_INLINE void clear() {
#pragma unroll
        for (int nt = 0; nt < NT; nt++) {
            max[nt] = TQI_NO_MAXIMUM;
            sum[nt] = 0;
#pragma unroll
            for (int m = 0; m < M; m++)
                acc[m][nt][0] = acc[m][nt][1] = 0;
        }
    }

    /* Token of row g + 8 e of the warp. */
    TQI_INLINE int token_of(int e) const {
        return int(32 * (group.warp / 2) + 4 * (group.lane / 4) + 2 * (group.warp % 2)) + e;
    }

    /* ---- scores ------------------------------------------------------------------------------ */

    TQI_INLINE void load_keys(uint32_t slot, uint32_t (*a)[4]) const {
        const uint32_t from = slot + words + group.warp / 2 * (2 * J * SLAB_BYTES);
#pragma unroll
        for (int j = 0; j < J; j++)
            operand_of(load_shared8(from + 2 * j * SLAB_BYTES),
                       load_shared8(from + (2 * j + 1) * SLAB_BYTES), a[j]);
    }

    TQI_INLINE void begin_scores(const uint32_t (*a)[4], float (*d)[COLUMNS / 2]) const {
        begin_products();
#pragma unroll
        for (int j = 0; j < J; j++)
            wgmma_e4m3<COLUMNS>(d[j / CHAIN], a[j], q + j * (256 >> 4), j % CHAIN != 0);
        end_products();
    }

    TQI_INLINE static void join_scores(const float (*d)[COLUMNS / 2], float (*score)[2]) {
#pragma unroll
        for (int nt = 0; nt < NT; nt++)
#pragma unroll
            for (int e = 0; e < 2; e++) {
                score[nt][e] = 0;
#pragma unroll
                for (int c = 0; c < CHAINS; c++)
                    score[nt][e] += joined_query(d[c][4 * nt + 2 * e], d[c][4 * nt + 2 * e + 1],
                                                 d[c][4 * (NT + nt / 2) + 2 * e + nt % 2]);
            }
    }

    /* ---- softmax ----------------------------------------------------------------------------- */

    /* Maxima of the rows over the page, of scores times q_scale. */
    TQI_INLINE void tile_max(const float (*score)[2], float m[NT]) const {
        const uint32_t maxima = room + Room::maxima;
#pragma unroll
        for (int nt = 0; nt < NT; nt++) {
            float x = fmaxf(score[nt][0], score[nt][1]);
            x = fmaxf(x, __shfl_xor_sync(~0u, x, 4));
            x = fmaxf(x, __shfl_xor_sync(~0u, x, 8));
            x = fmaxf(x, __shfl_xor_sync(~0u, x, 16));
            if (group.lane < 4)
                store_shared4(maxima + ((nt * 4 + group.lane) * 4 + group.warp) * 4,
                              __float_as_uint(x));
        }
        group.sync();
#pragma unroll
        for (int nt = 0; nt < NT; nt++) {
            uint4 x = load_shared16(maxima + (nt * 4 + group.lane % 4) * 16);
            m[nt] = fmaxf(fmaxf(__uint_as_float(x.x), __uint_as_float(x.y)),
                          fmaxf(__uint_as_float(x.z), __uint_as_float(x.w))) *
                    q_scale[nt];
        }
    }

    /* The lane's two tokens of a row, both planes, to B. Lanes g and g ^ 1 exchange, so that
     * each stores a word: tokens 8 t + 0 4 1 5 or 2 6 3 7, as values have them. */
    TQI_INLINE void store_weights(int nt, float a, float b) const {
        const uint32_t g = group.lane / 4, t = group.lane % 4;
        uint32_t own = weight_planes(a, b), other = __shfl_xor_sync(~0u, own, 4);
        uint32_t word = prmt(own, other, g % 2 ? 0x3726 : 0x5140);
        store_shared4(room + Room::weights + (nt * 4 + group.warp) * 128 + (2 * t + g % 2) * 16 +
                          g / 2 * 4,
                      word);
    }

    /* left[nt]: tokens of the page that the row sees. */
    template <bool TAIL>
    TQI_INLINE void weigh(float (*score)[2], const int left[NT], float alpha[NT], float beta[NT]) {
        float m[NT];
        if (TAIL)
#pragma unroll
            for (int i = 0; i < 2 * NT; i++)
                if (token_of(i % 2) >= left[i / 2])
                    score[i / 2][i % 2] = -3e38f;
        tile_max(score, m);
#pragma unroll
        for (int nt = 0; nt < NT; nt++) {
            float x[2];
            if (TAIL && left[nt] <= 0)
                m[nt] = TQI_NO_MAXIMUM;
#pragma unroll
            for (int e = 0; e < 2; e++) {
                x[e] = exp2_fast(fmaf(score[nt][e], q_scale[nt], TQI_E4M3_LOG2_LARGEST - m[nt]));
                if (TAIL && token_of(e) >= left[nt])
                    x[e] = 0;
            }
            store_weights(nt, x[0], x[1]);
            float joint = fmaxf(max[nt], m[nt]);
            alpha[nt] = exp2_fast(max[nt] - joint);
            beta[nt] = exp2_fast(m[nt] - joint) * (1.0f / TQI_E4M3_LARGEST);
            max[nt] = joint;
            sum[nt] = sum[nt] * alpha[nt] + (x[0] + x[1]) * beta[nt];
        }
    }

    /* ---- values ------------------------------------------------------------------------------ */

    template <bool TAIL>
    TQI_INLINE void load_values(uint32_t slot, int valid, uint32_t (*a)[GROUPS][4]) const {
        const uint32_t from = slot + Layout::k_bytes + words + group.warp / 2 * SLAB_BYTES;
#pragma unroll
        for (int m = 0; m < M; m++)
#pragma unroll
            for (int r = 0; r < GROUPS; r++) {
                uint2 w[2];
#pragma unroll
                for (int h = 0; h < 2; h++) {
                    w[h] = load_shared8(from + ((2 * r + h) * J + 2 * m) * SLAB_BYTES);
                    if (TAIL)
                        w[h] = masked(w[h], token_mask<TQ_FORMAT_FP8>(valid, r, h, group.lane));
                }
                operand_of(w[0], w[1], a[m][r]);
            }
    }

    TQI_INLINE void add_values(const uint32_t (*a)[GROUPS][4], const float alpha[NT],
                               const float beta[NT]) {
        constexpr int AT_ONCE = M < 2 ? M : 2;
#pragma unroll
        for (int first = 0; first < M; first += AT_ONCE) {
            float d[AT_ONCE][4 * NT];
            begin_products();
#pragma unroll
            for (int i = 0; i < AT_ONCE * GROUPS; i++)
                wgmma_e4m3<8 * NT>(d[i / GROUPS], a[first + i / GROUPS][i % GROUPS],
                                   p + i % GROUPS * (256 >> 4), i % GROUPS != 0);
            end_products();
            wait_products<0>();
#pragma unroll
            for (int i = 0; i < AT_ONCE; i++)
#pragma unroll
                for (int nt = 0; nt < NT; nt++)
#pragma unroll
                    for (int e = 0; e < 2; e++)
                        acc[first + i][nt][e] =
                            fmaf(joined_weights(d[i][4 * nt + 2 * e], d[i][4 * nt + 2 * e + 1]),
                                 beta[nt], acc[first + i][nt][e] * alpha[nt]);
        }
    }

    /* ---- a page ------------------------------------------------------------------------------ */

    /* consumed(): called once the page has been read by all threads of the group. */
    template <bool TAIL, class F>
    TQI_INLINE void page(uint32_t slot, int valid, const int left[NT], F consumed) {
        uint32_t keys[J][4], values[M][GROUPS][4];
        float d[CHAINS][COLUMNS / 2], score[NT][2], alpha[NT], beta[NT];
        load_keys(slot, keys);
        begin_scores(keys, d);
        load_values<TAIL>(slot, valid, values);
        wait_products<0>();
        join_scores(d, score);
        weigh<TAIL>(score, left, alpha, beta);
        publish_stores();
        group.sync();
        consumed();
        add_values(values, alpha, beta);
    }

    /* ---- the end of an item ------------------------------------------------------------------ */

    /* Sums over the threads of a row; lanes 0 to 3 of warp 0 have them. */
    TQI_INLINE void join_threads() {
        const uint32_t sums = room + Room::maxima;
#pragma unroll
        for (int nt = 0; nt < NT; nt++) {
#pragma unroll
            for (int o = 4; o < 32; o *= 2)
                sum[nt] += __shfl_xor_sync(~0u, sum[nt], o);
            if (group.lane < 4)
                store_shared4(sums + ((nt * 4 + group.lane) * 4 + group.warp) * 4,
                              __float_as_uint(sum[nt]));
        }
        group.sync();
#pragma unroll
        for (int nt = 0; nt < NT; nt++) {
            uint4 x = load_shared16(sums + (nt * 4 + group.lane % 4) * 16);
            sum[nt] = __uint_as_float(x.x) + __uint_as_float(x.y) + __uint_as_float(x.z) +
                      __uint_as_float(x.w);
        }
        group.sync();
    }

    /* Accumulators times a factor, to [row][D]. */
    TQI_INLINE void store(const float factor[NT], float *to) const {
        const uint32_t g = group.lane / 4, t = group.lane % 4;
#pragma unroll
        for (int nt = 0; nt < NT; nt++) {
            float *row = to + (nt * 4 + t) * D + g * (D / 8) + 2 * group.warp;
#pragma unroll
            for (int m = 0; m < M; m++)
                *(float2 *)(row + 8 * m) =
                    make_float2(acc[m][nt][0] * factor[nt], acc[m][nt][1] * factor[nt]);
        }
    }
};

#endif /* TQI_WGMMA */

} /* namespace tqi */

#endif
