/* The warps that decode: of every page, two take the keys and two the values, 32 tokens each. */
#ifndef TQI_CUDA_PREFILL_PRODUCE_CUH
#define TQI_CUDA_PREFILL_PRODUCE_CUH

#include <type_traits>

#include "prefill/keys.cuh"
#include "prefill/wgmma.cuh"

namespace tqi {

__host__ __device__ constexpr uint32_t larger_of(uint32_t a, uint32_t b) {
    return a > b ? a : b;
}

/*
 * What goes with a page. Gains of values, and radii of polar keys, are multiplied into the halves,
 * against a power of two near the largest of a group of 32 tokens. Scores of the group are
 * multiplied by that of the keys, weights by that of the values: by 2^v_log, an addition to their
 * exponent; v_unit takes it back for the sum of the weights.
 */
struct alignas(16) PageScales {
    float k[2], v_log[2], v_unit[2], reserved[2];
    float k_gain[TILE_TOKENS]; /* of other keys */
};

/* Shared memory of a block: decoded pages in a ring of stages, their scales, the queries. */
template <int KF, int VF, int D> struct PrefillRoom {
    using Page = Blob<KF, VF, D>;
    static constexpr int WARPS = TILE_ROWS / 16; /* that have rows */
    static constexpr int K_DIM = key_columns<KF, D>(), STAGES = K_DIM + D <= 256 ? 3 : 2;
    /* Long rows of 8-bit codes need the room of a stage of values for pages on their way. */
    static constexpr int V_STAGES = D == 256 && bits_of(VF) == 8 ? 1 : STAGES;
    static constexpr uint32_t KEYS = TILE_TOKENS * K_DIM * 2, V_TILE = TILE_TOKENS * D * 2;
    static constexpr uint32_t VALUES = STAGES * KEYS, QUERIES = VALUES + V_STAGES * V_TILE;
    static constexpr uint32_t GAINS = QUERIES + TILE_ROWS / 64 * query_bytes<K_DIM>();
    static constexpr uint32_t GAIN_STAGE = sizeof(PageScales);
    static constexpr uint32_t NOTES = GAINS + STAGES * GAIN_STAGE;
    static constexpr uint32_t PAGES = (NOTES + TILE_ROWS * sizeof(RowNote) + 127) / 128 * 128;
    /* Teams of four warps that decode, taking pages in turn: what a page costs a warp is mostly
     * waiting. Registers of a thread that decodes or has rows. */
    static constexpr int TEAMS = D <= 128 ? 2 : 1, THREADS = 128 * (TEAMS + 2);
    static constexpr int HAS_ROWS = TEAMS == 1                            ? 208
                                    : D == 64                             ? 152
                                    : has_sketch(KF)                      ? 160
                                    : is_polar(KF) || KF <= TQ_FORMAT_F16 ? 176
                                                                          : 184;
    static constexpr int DECODES = TEAMS == 1 ? 3 * 168 - 2 * HAS_ROWS : 256 - HAS_ROWS;
    /* Parts of pages on their way, of each warp of a team: codes, then gains. A part has codes of
     * 32 tokens and their gains, or all of a page's. */
    static constexpr bool WIDE = bits_of(KF) == 16, WHOLE = needs_whole_keys(KF);
    static constexpr uint32_t K_CODES = WHOLE ? Page::k_bytes : Unit<base_of(KF), D>::BYTES;
    static constexpr uint32_t V_CODES = Unit<VF, D>::BYTES;
    static constexpr uint32_t V_PART = V_CODES + (has_gains(VF) ? 64 : 0);
    static constexpr uint32_t K_PART = K_CODES + (WHOLE ? Page::end - Page::k_gains : 128);
    static constexpr uint32_t LEVEL = TEAMS * 2 * (K_PART + V_PART), LEFT = 226 * 1024 - PAGES;
    static constexpr int SLOTS = LEFT >= 4 * LEVEL ? 4 : LEFT >= 2 * LEVEL ? 2 : 1;
    static constexpr uint32_t V_PARTS = PAGES + TEAMS * 2 * SLOTS * K_PART;
    static constexpr uint32_t BYTES = PAGES + (WIDE ? 0 : SLOTS * LEVEL);
    static constexpr uint32_t ALIGN = 1024;
};

#if TQI_WGMMA

/* Barriers of a stage: decoded by both warps of a side, read by all warps with rows. */
struct StageBarriers {
    uint64_t full[2], empty[2]; /* keys, values */
};

/* A warp stores what its group of a page is scaled by. */
template <int KF, int VF>
TQI_INLINE void store_scales(PageScales *to, int k, float v_gain, uint32_t group, uint32_t lane) {
    int v = has_gains(VF) ? exponent_of_warp(v_gain) : 0;
    if (lane == 0) {
        to->k[group] = power_of_two(k);
        to->v_log[group] = (float)v;
        to->v_unit[group] = power_of_two(-v);
    }
}

/* Where a warp that decodes stands: it takes pages team, team + TEAMS .. of a side, of each the
 * 32 tokens of a group. */
struct Post {
    uint32_t team, group, lane;
};

/* A warp's pages on their way: bulk copies of its part of each, into slots of its own. */
template <int KF, int VF, int D, bool KEYS> struct Incoming {
    using Room = PrefillRoom<KF, VF, D>;
    using Page = typename Room::Page;
    static constexpr int F = base_of(KEYS ? KF : VF);
    using Codes = Unit<F, D>;
    static constexpr bool WHOLE = KEYS && Room::WHOLE;
    static constexpr uint32_t CODES = KEYS ? Room::K_CODES : Room::V_CODES;
    static constexpr uint32_t PART = KEYS ? Room::K_PART : Room::V_PART;
    static constexpr uint32_t GAINS = WHOLE ? Page::end - Page::k_gains : 0; /* in one copy */
    static constexpr uint32_t K_GAINS = KEYS && !WHOLE && has_gains(KF) ? 64 : 0;
    static constexpr uint32_t V_GAINS = !WHOLE && has_gains(VF) ? 64 : 0;

    const uint8_t *base; /* of the kv head in page 0 */
    uint64_t page_bytes;
    const uint32_t *ids;
    uint32_t n, lane, group;
    uint32_t slots, barriers; /* addresses */
    uint32_t known;           /* page ids of 32 of its pages, one a lane */
    uint32_t asked = 0, fill = 0, slot = 0, phase = 0;

    TQI_INLINE Incoming(const PrefillJob &job, const TileWork &work, uint32_t memory,
                        uint32_t arrivals, const Post &post)
        : base(job.call.pages.base + (uint64_t)work.rows.kv_head * job.call.pages.blob_bytes),
          page_bytes(job.call.pages.page_bytes), ids(work.ids + work.first_page + post.team),
          n((work.n_pages + Room::TEAMS - 1 - post.team) / Room::TEAMS), lane(post.lane),
          group(post.group), known(0) {
        uint32_t of_side = (2 * post.team + post.group) * Room::SLOTS;
        slots = memory + (KEYS ? Room::PAGES : Room::V_PARTS) + of_side * PART;
        barriers = arrivals + 8 * (of_side + (KEYS ? 0 : 2 * Room::TEAMS * Room::SLOTS));
        for (uint32_t i = 0; i < Room::SLOTS; i++)
            request();
    }

    TQI_INLINE uint32_t offset() const {
        return WHOLE ? 0 : Codes::offset(group);
    }

    /* The next page into the next slot, which is free. */
    TQI_INLINE void request() {
        if (asked == n)
            return;
        if (asked % 32 == 0)
            known = asked + lane < n ? __ldcg(ids + Room::TEAMS * (asked + lane)) : 0;
        const uint8_t *page = base + __shfl_sync(~0u, known, asked % 32) * page_bytes;
        if (lane == 0) {
            uint32_t to = slots + fill * PART, barrier = barriers + 8 * fill;
            barrier_expect(barrier, CODES + GAINS + K_GAINS + V_GAINS);
            bulk_copy_part(to, page + (KEYS ? 0 : Page::k_bytes) + offset(), CODES, barrier);
            to += CODES;
            if (GAINS)
                bulk_copy_part(to, page + Page::k_gains, GAINS, barrier);
            if (K_GAINS)
                bulk_copy_part(to, page + Page::k_gains + 64 * group, 64, barrier);
            if (V_GAINS)
                bulk_copy_part(to + (KEYS ? 64 : 0), page + Page::v_gains + 64 * group, 64,
                               barrier);
        }
        asked++;
        fill = fill + 1 == Room::SLOTS ? 0 : fill + 1;
    }

    /* Address of the oldest page's part. */
    TQI_INLINE uint32_t wait() const {
        barrier_wait(barriers + 8 * slot, phase);
        return slots + slot * PART;
    }

    /* It has been read. */
    TQI_INLINE void replace() {
        __syncwarp();
        request();
        slot = slot + 1 == Room::SLOTS ? 0 : slot + 1;
        phase ^= slot == 0;
    }
};

/* The ring from the side of a warp that fills it: SIDE 0 keys, 1 values. */
template <class Room, int SIDE> struct Filling {
    static constexpr uint32_t STAGES = SIDE ? Room::V_STAGES : Room::STAGES;
    StageBarriers *barriers;
    uint32_t lane, stage, phase = 1;

    TQI_INLINE Filling(StageBarriers *b, const Post &post)
        : barriers(b), lane(post.lane), stage(post.team) {}

    TQI_INLINE void wait() const {
        barrier_wait(shared_address(&barriers[stage].empty[SIDE]), phase);
    }

    /* The warp's part of the stage has been written. */
    TQI_INLINE void publish() {
        publish_stores();
        __syncwarp();
        if (lane < WARP_ARRIVALS)
            barrier_arrive(shared_address(&barriers[stage].full[SIDE]));
        stage += Room::TEAMS;
        phase ^= stage >= STAGES;
        stage -= stage >= STAGES ? STAGES : 0;
    }
};

/* Tokens of page `page` that exist. */
TQI_INLINE int valid_tokens(const TileWork &work, uint32_t page) {
    return (int)min(work.segment.length - (uint64_t)page * TILE_TOKENS, (uint64_t)TILE_TOKENS);
}

/* Keys of a page and the scales of both sides from slot to stage. */
template <int KF, int VF, int D> struct KeyDecoder {
    using Room = PrefillRoom<KF, VF, D>;
    using Page = typename Room::Page;
    static constexpr int F = base_of(KF);
    const PlaceOfKeys place;
    const HalfTable table;
    uint32_t group, lane;
    float rate; /* of sketches */

    TQI_INLINE KeyDecoder(const PrefillJob &job, const Post &post)
        : place(post.group, post.lane), table(table_in_registers<F>()), group(post.group),
          lane(post.lane), rate(job.sketch_rate) {}

    /* at: address of the part in its slot, which stored points to; to: address of the keys. */
    TQI_INLINE void store(uint32_t at, const uint8_t *stored, uint32_t to, PageScales *scales,
                          int valid) const {
        const uint16_t *own = (const uint16_t *)(stored + Room::K_CODES);
        const uint32_t at_v = Room::WHOLE ? (Page::v_gains - Page::k_gains) / 2 + 32 * group : 32;
        const bool exists = (int)(32 * group + lane) < valid;
        const uint32_t unit = at + (Room::WHOLE ? Unit<F, D>::offset(group) : 0);
        store_keys(Unit<F, D>{unit + lane * 16, group}, table, to, place);
        if constexpr (has_gains(KF)) {
            float k = exists ? f16_bits(own[(Room::WHOLE ? 32 * group : 0) + lane]) : 0;
            scales->k_gain[32 * group + lane] = k;
            if constexpr (has_sketch(KF)) {
                float rates[4], inverse = k > 0 ? rate * reciprocal(k) : 0;
#pragma unroll
                for (int z = 0; z < 4; z++)
                    rates[z] = __shfl_sync(~0u, inverse, (lane & 28) + z);
                store_sketch<D>(slot_at(at, lane), Page::sketch,
                                Room::K_CODES + Page::sketch_gains - Page::k_gains, to, place,
                                group, rates);
            }
        }
        store_scales<KF, VF>(scales, 0, exists && has_gains(VF) ? bf16_bits(own[at_v + lane]) : 0,
                             group, lane);
    }
};

/* The same for polar keys. */
template <int KF, int VF, int D> struct PolarDecoder {
    using Room = PrefillRoom<KF, VF, D>;
    using Page = typename Room::Page;
    const PlaceOfKeys place;
    PolarTables tables;
    uint32_t group, lane;
    float rate;

    TQI_INLINE PolarDecoder(const PrefillJob &job, const Post &post)
        : place(post.group, post.lane), group(post.group), lane(post.lane), rate(job.sketch_rate) {
        tables.load(job.call.k.polar, lane);
    }

    TQI_INLINE void store(uint32_t at, const uint8_t *stored, uint32_t to, PageScales *scales,
                          int valid) const {
        const uint16_t *v =
            (const uint16_t *)(stored + Room::K_CODES + Page::v_gains - Page::k_gains);
        const Slot slot = slot_at(at, lane);
        const bool exists = (int)(32 * group + lane) < valid;
        int e = store_polar<D>(tables, slot, Room::K_CODES, to, place, group,
                               valid - (int)(32 * group + (lane & 28)));
        if constexpr (has_sketch(KF)) {
            const float unit = rate * power_of_two(-e), rates[4] = {unit, unit, unit, unit};
            store_sketch<D>(slot, Page::sketch, Room::K_CODES + Page::sketch_gains - Page::k_gains,
                            to, place, group, rates);
        }
        store_scales<KF, VF>(scales, e, exists ? bf16_bits(v[32 * group + lane]) : 0, group, lane);
    }
};

template <int KF, int VF, int D> struct Decoder {
    using Keys = typename std::conditional<is_polar(KF), PolarDecoder<KF, VF, D>,
                                           KeyDecoder<KF, VF, D>>::type;
};

/* What store_values() multiplies by, or masks with; gains: the warp's 32, in shared memory. */
template <int VF>
TQI_INLINE void value_factors(const uint16_t *gains, int valid, const Post &post,
                              uint32_t factor[4]) {
    const int left = valid - (int)(32 * post.group + 8 * (post.lane % 4));
    if constexpr (has_gains(VF)) {
        const bool exists = (int)(32 * post.group + post.lane) < valid;
        float unit = power_of_two(-exponent_of_warp(exists ? bf16_bits(gains[post.lane]) : 0));
        uint4 own = *(const uint4 *)(gains + 8 * (post.lane % 4));
#pragma unroll
        for (int i = 0; i < 4; i++) {
            uint32_t w = word_of(own, i) & pair_mask(left, i);
            factor[i] = float_pair<false>(__uint_as_float(w << 16) * unit,
                                          __uint_as_float(w & 0xffff0000u) * unit);
        }
    } else {
#pragma unroll
        for (int i = 0; i < 4; i++)
            factor[i] = pair_mask(left, i);
    }
}

/* A side of the pages. */
template <int KF, int VF, int D, bool KEYS>
TQI_INLINE void produce_codes(const PrefillJob &job, const TileWork &work, uint8_t *shared,
                              StageBarriers *barriers, uint64_t *arrivals, const Post &post) {
    using Room = PrefillRoom<KF, VF, D>;
    const typename Decoder<KF, VF, D>::Keys keys(job, post);
    const PlaceOfValues<D> place(post.group, post.lane);
    const HalfTable table = table_in_registers<VF>();
    const uint32_t to = shared_address(shared);
    Incoming<KF, VF, D, KEYS> pages(job, work, to, shared_address(arrivals), post);
    Filling<Room, KEYS ? 0 : 1> ring(barriers, post);
    for (uint32_t i = post.team; i < work.n_pages; i += Room::TEAMS) {
        int valid = valid_tokens(work, work.first_page + i);
        uint32_t at = pages.wait();
        ring.wait();
        if constexpr (KEYS) {
            keys.store(at, shared + (at - to), to + ring.stage * Room::KEYS,
                       (PageScales *)(shared + Room::GAINS) + ring.stage, valid);
        } else {
            uint32_t factor[4];
            value_factors<VF>((const uint16_t *)(shared + (at - to) + Room::V_CODES), valid, post,
                              factor);
            store_values(Unit<VF, D>{at + post.lane * 16, post.group}, table, factor,
                         to + Room::VALUES + ring.stage * Room::V_TILE, place);
        }
        ring.publish();
        pages.replace();
    }
}

/* The same for pages of 16-bit floats. A page is asked for when the one before has been published:
 * the fence would wait for loads in flight. */
template <int KF, int VF, int D, bool KEYS>
TQI_INLINE void produce_floats(const PrefillJob &job, const TileWork &work, uint8_t *shared,
                               StageBarriers *barriers, const Post &post) {
    using Room = PrefillRoom<KF, VF, D>;
    constexpr uint32_t CHUNK = WideUnit<D>::CHUNK, TEAMS = Room::TEAMS;
    const Pages &pages = job.call.pages;
    const uint8_t *base = pages.base + (uint64_t)work.rows.kv_head * pages.blob_bytes +
                          (KEYS ? 0 : Room::Page::k_bytes);
    const PlaceOfKeys place_k(post.group, post.lane);
    const PlaceOfValues<D> place_v(post.group, post.lane);
    const uint32_t tiles = shared_address(shared) + (KEYS ? 0 : Room::VALUES), n = work.n_pages;
    const uint32_t *ids = work.ids + work.first_page;
    Filling<Room, KEYS ? 0 : 1> ring(barriers, post);
    WideUnit<D> unit;
    uint32_t id = post.team < n ? __ldcg(ids + post.team) : 0;
    for (uint32_t i = post.team; i < n; i += TEAMS) {
        const uint8_t *page = base + id * pages.page_bytes;
        int left =
            valid_tokens(work, work.first_page + i) - (int)(32 * post.group + 8 * (post.lane % 4));
        uint32_t to = tiles + ring.stage * Room::V_TILE; /* keys' are as large */
        unit.template load<KEYS>(page, post.group, post.lane, 0);
        id = i + TEAMS < n ? __ldcg(ids + i + TEAMS) : 0;
        ring.wait();
#pragma unroll
        for (int c = 0; c < WideUnit<D>::CHUNKS; c++) {
            if (c)
                unit.template load<KEYS>(page, post.group, post.lane, c * CHUNK);
            if constexpr (KEYS)
                store_wide_keys(unit, to, place_k, c * CHUNK);
            else
                store_wide_values(unit, to, place_v, c * CHUNK, left);
        }
        ring.publish();
    }
}

/* warp: of those that decode. */
template <int KF, int VF, int D>
TQI_INLINE void produce(const PrefillJob &job, const TileWork &work, uint8_t *shared,
                        StageBarriers *barriers, uint64_t *arrivals, uint32_t warp, uint32_t lane) {
    const Post post = {warp / 4, warp % 2, lane};
    if constexpr (PrefillRoom<KF, VF, D>::WIDE) {
        if (warp % 4 < 2)
            produce_floats<KF, VF, D, true>(job, work, shared, barriers, post);
        else
            produce_floats<KF, VF, D, false>(job, work, shared, barriers, post);
    } else {
        if (warp % 4 < 2)
            produce_codes<KF, VF, D, true>(job, work, shared, barriers, arrivals, post);
        else
            produce_codes<KF, VF, D, false>(job, work, shared, barriers, arrivals, post);
    }
}

#endif

} /* namespace tqi */

#endif
