/* The warps that decode: of every page, two take the keys and two the values, 32 tokens each. */
#ifndef TQI_CUDA_PREFILL_PRODUCE_CUH
#define TQI_CUDA_PREFILL_PRODUCE_CUH

#include "prefill/rows.cuh"
#include "prefill/wgmma.cuh"

namespace tqi {

/* Shared memory of a block: decoded pages in a ring of stages, their gains, the queries. */
template <int KF, int VF, int D> struct PrefillRoom {
    static constexpr int WARPS = TILE_ROWS / 16; /* that have rows */
    static constexpr int STAGES = D <= 128 ? 3 : 2;
    static constexpr uint32_t TILE = TILE_TOKENS * D * 2; /* bytes of keys or values */
    static constexpr uint32_t VALUES = STAGES * TILE, QUERIES = 2 * STAGES * TILE;
    static constexpr uint32_t GAINS = QUERIES + TILE_ROWS / 64 * query_bytes<D>();
    static constexpr uint32_t GAIN_STAGE = (TILE_TOKENS / 2 + 1) * 16;
    static constexpr uint32_t UNITS = GAINS + STAGES * GAIN_STAGE;
    static constexpr uint32_t BYTES = UNITS + TILE_ROWS * sizeof(QueryUnit);
    /* Registers of a thread that decodes or has rows: of 168 for each of three warpgroups. */
    static constexpr int DECODES = D <= 128 ? 104 : 88, HAS_ROWS = (3 * 168 - DECODES) / 2;
    static constexpr uint32_t ALIGN = 1024;
    using Page = Blob<KF, VF, D>;
};

#if TQI_WGMMA

/* Barriers of a stage: decoded by both warps of a side, read by all warps with rows. */
struct StageBarriers {
    uint64_t full[2], empty[2]; /* keys, values */
};

/* Gains of two tokens: keys' 0 and 1, values' 0 and 1; behind the last pair, the logarithms of
 * the largest value gain of either half of the page. */
struct GainPair {
    float k[2], v[2];
};

/* Two gains of a lane's token as they are stored. */
struct Gains {
    uint32_t k, v;
};

template <int KF, int VF, int D> TQI_INLINE Gains load_gains(const uint8_t *page, uint32_t token) {
    using Page = Blob<KF, VF, D>;
    Gains g = {0, 0};
    if constexpr (has_gains(KF))
        g.k = __ldcg((const uint16_t *)(page + Page::k_gains) + token);
    if constexpr (has_gains(VF))
        g.v = __ldcg((const uint16_t *)(page + Page::v_gains) + token);
    return g;
}

/* Gains of tokens that do not exist are 0. */
template <int KF, int VF>
TQI_INLINE void store_gains(uint8_t *to, const Gains &g, uint32_t group, uint32_t lane, int valid) {
    uint32_t token = 32 * group + lane;
    bool exists = (int)token < valid;
    GainPair *pair = (GainPair *)to + token / 2;
    if constexpr (has_gains(KF))
        pair->k[token & 1] = exists ? f16_bits((uint16_t)g.k) : 0;
    if constexpr (has_gains(VF)) {
        uint32_t v = exists ? g.v << 16 : 0;
        pair->v[token & 1] = __uint_as_float(v);
        float most = __uint_as_float(__reduce_max_sync(~0u, v));
        if (lane == 0)
            ((float *)((GainPair *)to + TILE_TOKENS / 2))[group] = log2f(fmaxf(most, 1e-30f));
    }
}

/* A side of the pages; `group` of this warp. */
template <int KF, int VF, int D, bool KEYS>
TQI_INLINE void produce(const PrefillJob &job, const TileWork &work, uint8_t *shared,
                        StageBarriers *barriers, uint32_t group, uint32_t lane) {
    using Room = PrefillRoom<KF, VF, D>;
    constexpr int F = KEYS ? KF : VF, SIDE = KEYS ? 0 : 1;
    const Pages &pages = job.call.pages;
    const uint8_t *base = pages.base + (uint64_t)work.rows.kv_head * pages.blob_bytes;
    const PlaceOfKeys place_k(group, lane);
    const PlaceOfValues<D> place_v(group, lane);
    const uint32_t tiles = shared_address(shared) + (KEYS ? 0 : Room::VALUES);
    const uint32_t n = work.n_pages;
    Unit<F, D> unit, next;
    Gains gains = {}, next_gains = {};
    const uint32_t *ids = work.ids + work.first_page;
    uint32_t stage = 0, phase = 1, id = n > 1 ? __ldcg(ids + 1) : 0;

    auto load = [&](uint32_t page_id, Unit<F, D> &u, Gains &g) {
        const uint8_t *page = base + page_id * pages.page_bytes;
        u.load(page + (KEYS ? 0 : Room::Page::k_bytes), group, lane);
        if (KEYS)
            g = load_gains<KF, VF, D>(page, 32 * group + lane);
    };
    if (n)
        load(__ldcg(ids), unit, gains);
    for (uint32_t i = 0; i < n; i++) {
        if (i + 1 < n)
            load(id, next, next_gains);
        id = i + 2 < n ? __ldcg(ids + i + 2) : 0;
        uint64_t token = (uint64_t)(work.first_page + i) * TILE_TOKENS;
        int valid = (int)min(work.segment.length - token, (uint64_t)TILE_TOKENS);
        barrier_wait(shared_address(&barriers[stage].empty[SIDE]), phase);
        if constexpr (KEYS) {
            store_keys(unit, tiles + stage * Room::TILE, place_k, group);
            store_gains<KF, VF>(shared + Room::GAINS + stage * Room::GAIN_STAGE, gains, group, lane,
                                valid);
        } else {
            store_values(unit, tiles + stage * Room::TILE, place_v, group,
                         valid - (int)(32 * group + 8 * (lane % 4)));
        }
        publish_stores();
        __syncwarp();
        if (lane < ARRIVALS)
            barrier_arrive(shared_address(&barriers[stage].full[SIDE]));
        unit = next;
        gains = next_gains;
        stage = stage + 1 == Room::STAGES ? 0 : stage + 1;
        phase ^= stage == 0;
    }
}

#endif

} /* namespace tqi */

#endif
