/*
 * What a warp of the fast write path takes: units, one behind another. A list of pieces or the new
 * tokens of one sequence make a group of units each, of both sides and all heads; with slots of the
 * caller each of some rows in which a run begins does, and these are found by looking at windows of
 * the rows.
 */
#ifndef TQI_CUDA_ENCODE_WALK_CUH
#define TQI_CUDA_ENCODE_WALK_CUH

#include "encode/fast_job.h"
#include "encode/row.cuh"
#include "encode/slots.cuh"
#include "encode/stage.cuh"

namespace tqi {

TQI_ENCODE_INLINE int64_t size_of(const RowsIn &rows) {
    return rows.dtype == TQ_F32 ? 4 : 2;
}

/* New tokens of a token group, one kv head and side. */
struct Unit {
    uint32_t side, head;
    uint32_t fresh;      /* bit i: token i of the group is new, and of the unit */
    uint32_t first;      /* token of the unit in the group */
    uint32_t slot;       /* of the group's first token in its page */
    int64_t row;         /* of the group's first token in the caller's rows; may lie before them */
    const uint8_t *from; /* that row, of the head */
    uint8_t *blob;
};

/* From a head's rows to those of the next. */
TQI_ENCODE_INLINE int64_t head_bytes(const FastEncodeJob &f, const Unit &u) {
    const RowsIn &rows = f.job.rows[u.side];
    return rows.head_stride * size_of(rows);
}

TQI_ENCODE_INLINE void to_next_head(const FastEncodeJob &f, Unit *u) {
    u->head++;
    u->from += head_bytes(f, *u);
    u->blob += f.job.pages.blob_bytes;
}

/* ---- pieces ------------------------------------------------------------------------------------
 */

TQI_ENCODE_INLINE AppendPiece piece_at(const FastEncodeJob &f, uint32_t i) {
    const EncodeJob &job = f.job;
    if (job.pieces)
        return job.pieces[i];
    uint32_t in_launch = f.first_token + i * GROUP, page = in_launch / job.pages.page_tokens;
    uint64_t start = f.launch_start + in_launch;
    uint64_t from = max(start, job.length), to = min(start + GROUP, job.end);
    AppendPiece p;
    p.page = job.ids.id[page];
    p.slot = in_launch - page * job.pages.page_tokens + (uint32_t)(from - start);
    p.n = (uint32_t)(to - from);
    p.row = (uint32_t)(from - job.length);
    return p;
}

/* Pieces are there since before the kernel in front, see wait_for_predecessor(). */
TQI_ENCODE_INLINE uint32_t pieces_of(const FastEncodeJob &f) {
    return f.job.n_pieces ? *f.job.n_pieces : f.job.max_pieces;
}

/* Units of a launch: of a piece or window both sides, their parts of the tokens, then heads. The
 * device may know of fewer pieces. */
__host__ __device__ inline uint32_t units_of(const FastEncodeJob &f, uint32_t pieces,
                                             uint32_t log2_parts) {
    return (pieces << log2_parts) * f.job.n_heads * (f.sides == 3 ? 2 : 1);
}
__host__ __device__ inline uint32_t units_of(const FastEncodeJob &f, uint32_t log2_parts) {
    return units_of(f, f.job.max_pieces, log2_parts);
}

/* n / d by way of `inverse` = floor((2^32 - 1) / d); *rest: what is left. */
TQI_ENCODE_INLINE uint32_t divide(uint32_t n, uint32_t d, uint32_t inverse, uint32_t *rest) {
    uint32_t quotient = __umulhi(n, inverse);
    *rest = n - quotient * d;
    if (*rest >= d) {
        *rest -= d;
        quotient++;
    }
    return quotient;
}

/* Takes an index of units apart; what is left is that of the piece or window. */
TQI_ENCODE_INLINE uint32_t place_unit(const FastEncodeJob &f, uint32_t index, uint32_t log2_parts,
                                      Unit *u, uint32_t *part) {
    index = divide(index, f.job.n_heads, f.inverse_heads, &u->head);
    *part = index & ((1u << log2_parts) - 1);
    index >>= log2_parts;
    u->side = f.sides == 3 ? index & 1 : f.sides >> 1;
    return index >> (f.sides == 3);
}

/* A unit takes one of the parts of a piece's tokens. */
TQI_ENCODE_INLINE void open_unit(const FastEncodeJob &f, const AppendPiece &p, uint32_t log2_parts,
                                 uint32_t part, Unit *u) {
    const EncodeJob &job = f.job;
    const RowsIn &rows = job.rows[u->side];
    uint32_t first = p.slot % GROUP, tokens = GROUP >> log2_parts;
    u->first = part * tokens;
    u->fresh = (uint32_t)(((1ull << p.n) - 1) << first) & (uint32_t)((1ull << tokens) - 1)
                                                              << u->first;
    u->slot = p.slot - first;
    u->row = (int64_t)p.row - first;
    u->from = (const uint8_t *)rows.data +
              (u->row * rows.token_stride + u->head * rows.head_stride) * size_of(rows);
    u->blob =
        job.pages.base + p.page * job.pages.page_bytes + (uint64_t)u->head * job.pages.blob_bytes;
}

/* False: there is none, nor behind it. */
TQI_ENCODE_INLINE bool unit_at(const FastEncodeJob &f, uint32_t index, uint32_t n_pieces,
                               uint32_t log2_parts, Unit *u) {
    uint32_t part;
    index = place_unit(f, index, log2_parts, u, &part);
    AppendPiece p = piece_at(f, index);
    if (index >= n_pieces) /* known no sooner than the piece */
        return false;
    open_unit(f, p, log2_parts, part, u);
    return true;
}

/* ---- slots: runs that begin in a window of rows ------------------------------------------------
 */

/* Rows of a warp at a time: those of a window, and how far their runs go. */
struct Runs {
    uint32_t window; /* its first row */
    uint32_t starts; /* bit i: at row i of the window a run begins that has not been taken */
};

/* What a warp sees of the slots from a row on: lane i has slots i and 32 + i. */
struct SlotView {
    int64_t slot;
    uint64_t goes_on; /* bit i: slot i belongs to the run of slot i - 1 */
    uint32_t starts;
    TQI_ENCODE_INLINE SlotView(const EncodeJob &job, uint32_t row) {
        uint32_t lane = threadIdx.x % 32;
        auto slot_of = [&](uint64_t i) { return i < job.max_rows ? job.slots[i] : -1; };
        auto follows = [&](int64_t at, int64_t before) {
            return is_slot(job, at) && at % GROUP != 0 && at == before + 1;
        };
        slot = slot_of((uint64_t)row + lane);
        int64_t far = slot_of((uint64_t)row + 32 + lane);
        int64_t before = __shfl_up_sync(~0u, slot, 1), far_before = __shfl_up_sync(~0u, far, 1);
        int64_t last = __shfl_sync(~0u, slot, 31);
        if (lane == 0) {
            before = row ? job.slots[row - 1] : -1;
            far_before = last;
        }
        bool near = follows(slot, before);
        goes_on = __ballot_sync(~0u, near) | (uint64_t)__ballot_sync(~0u, follows(far, far_before))
                                                 << 32;
        starts = __ballot_sync(~0u, is_slot(job, slot) && !near);
    }
};

/* The next run of the window; there is one. */
TQI_ENCODE_INLINE AppendPiece take_run(const EncodeJob &job, const SlotView &view, Runs *runs) {
    const uint32_t page = job.pages.page_tokens, at = __ffs((int)runs->starts) - 1;
    int64_t slot = __shfl_sync(~0u, view.slot, (int)at);
    uint64_t ends = ~(view.goes_on >> at >> 1);
    runs->starts &= runs->starts - 1;
    return AppendPiece{(uint32_t)(slot >> (31 - __clz((int)page))), (uint32_t)slot & (page - 1),
                       (uint32_t)__ffsll((long long)ends), runs->window + at};
}

/* ---- the walk ----------------------------------------------------------------------------------
 */

/* A warp's units: [at, end) of all of them are left, heads below head_end of the present group. */
struct Walk {
    uint32_t at, end, pieces;
    uint32_t head, head_end;
    Runs runs; /* of slots */
};

/* In shared memory: the unit to which the rows in a warp's slot belong, and what is behind it. */
struct Ahead {
    Unit unit;
    Walk walk;
    bool more; /* there is such a unit */
};

/* The warp of the block, said so that the compiler knows it to be the same in all lanes: much of
 * what follows from it is then worked out once a warp. */
TQI_ENCODE_INLINE uint32_t warp_of_block() {
    return __shfl_sync(~0u, threadIdx.x / 32, 0);
}

/* Sign bits, which are the same of both sides that rotate. */
TQI_ENCODE_INLINE const uint32_t *flips_of(const FastEncodeJob &f) {
    const Side *s = f.job.side;
    return s[(f.sides & 1) && s[0].rotates ? 0 : 1].flips;
}

/* Units are dealt evenly, neighbours to a warp. */
TQI_ENCODE_INLINE Walk walk_of(const FastEncodeJob &f, uint32_t warp) {
    uint32_t warps = gridDim.x * FAST_WARPS, n = units_of(f, f.log2_parts);
    Walk w = {warp, warp < n ? warp + 1 : warp, pieces_of(f), 0, 0, {0, 0}};
    if (n > warps) { /* the device may know of fewer */
        uint32_t more,
            each = divide(units_of(f, w.pieces, f.log2_parts), warps, f.inverse_warps, &more);
        w.at = warp * each + min(warp, more);
        w.end = w.at + each + (warp < more);
    }
    return w;
}

/* Begins a group of units: the heads of a piece, or of the runs of a window. False: none is left.
 */
template <bool SLOTS> TQI_ENCODE_INLINE bool next_group(const FastEncodeJob &f, Walk *w, Unit *u) {
    while (w->at < w->end) {
        uint32_t part, index = place_unit(f, w->at, f.log2_parts, u, &part);
        w->head = u->head;
        w->head_end = min(f.job.n_heads, u->head + (w->end - w->at));
        w->at += w->head_end - w->head;
        if (!SLOTS) {
            AppendPiece p = piece_at(f, index);
            if (index >= w->pieces) /* known no sooner than the piece */
                return false;
            open_unit(f, p, f.log2_parts, part, u);
            return true;
        }
        w->runs.window = index << f.log2_window;
        SlotView view(f.job, w->runs.window);
        w->runs.starts = view.starts & (uint32_t)((1ull << (1u << f.log2_window)) - 1);
        if (w->runs.starts) {
            open_unit(f, take_run(f.job, view, &w->runs), 0, 0, u);
            return true;
        }
    }
    return false;
}

/* The unit behind *u, which becomes that. False: there is none. */
template <bool SLOTS> TQI_ENCODE_INLINE bool next_unit(const FastEncodeJob &f, Walk *w, Unit *u) {
    if (u->head + 1 < w->head_end) {
        to_next_head(f, u);
        return true;
    }
    if (SLOTS && w->runs.starts) {
        SlotView view(f.job, w->runs.window);
        u->head = w->head;
        open_unit(f, take_run(f.job, view, &w->runs), 0, 0, u);
        return true;
    }
    return next_group<SLOTS>(f, w, u);
}

} /* namespace tqi */

#endif
