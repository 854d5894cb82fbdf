/* The beginning of a tile: its rows, from the caller's queries to A operands. */
#ifndef TQI_CUDA_PREFILL_QUERIES_CUH
#define TQI_CUDA_PREFILL_QUERIES_CUH

#include "attend/prepare_row.cuh"
#include "prefill/halves.cuh"
#include "prefill/prefill_job.h"

namespace tqi {

/* What a block works on. */
struct TileWork {
    tqi_segment segment;
    const uint32_t *ids; /* of the sequence's pages */
    ItemRows rows;
    uint32_t first_page, n_pages; /* of the part */
    uint32_t item, part, n_parts;
};

/* What is noted of a row in shared memory. */
struct alignas(16) RowNote {
    uint64_t from, to;    /* tokens that it sees */
    float unit;           /* of scores, in powers of two */
    float shift;          /* scale * q.mean */
    uint32_t row, q_head; /* of the caller's arrays */
};

/* Rows of this many columns stay in registers; there is no room for longer ones. */
template <int D> __host__ __device__ constexpr bool queries_in_registers() {
    return D <= 128;
}

/* Bytes of 64 rows in shared memory, a multiple of 1024: stored as products read them, or padded
 * so that loads meet all banks. */
template <int D> __host__ __device__ constexpr uint32_t query_bytes() {
    return 64 * (queries_in_registers<D>() ? D * 2 + 16 : D * 2);
}

/* Offset of a column of a row among them. */
template <int D> TQI_INLINE uint32_t query_offset(uint32_t row, uint32_t column) {
    if constexpr (queries_in_registers<D>())
        return row * (D * 2 + 16) + column * 2;
    uint32_t piece = column / 8 % 8 ^ row % 8;
    return column / 64 * 8192 + row * 128 + piece * 16 + column % 8 * 2;
}

template <bool BF16> TQI_INLINE uint32_t float_pair(float a, float b) {
    uint32_t r;
    if constexpr (BF16)
        asm("cvt.rn.bf16x2.f32 %0,%1,%2;" : "=r"(r) : "f"(b), "f"(a));
    else
        asm("cvt.rn.f16x2.f32 %0,%1,%2;" : "=r"(r) : "f"(b), "f"(a));
    return r;
}

/* A half, twice in its word. */
TQI_INLINE uint32_t half_twice(float a) {
    return float_pair<false>(a, a);
}

template <int D> struct QueryRow { using Row = RegisterRow<D == 64 ? 16 : 32, D == 256 ? 8 : 4>; };

/* Columns of a row of keys: a sketch has its own. */
template <int KF, int D> __host__ __device__ constexpr int key_columns() {
    return has_sketch(KF) ? 2 * D : D;
}

/* Columns in the order of PlaceOfKeys; polar rows are in order 64 by 64. */
template <int D> TQI_INLINE uint32_t column_of_dim(uint32_t dim) {
    uint32_t t = dim / (D / 4), in_lane = dim % (D / 4);
    return 8 * (4 * (in_lane / 8) + t) + in_lane % 8;
}

template <int KF, int D> TQI_INLINE uint32_t query_column(uint32_t dim) {
    return is_polar(KF) ? dim / 64 * 64 + column_of_dim<64>(dim % 64) : column_of_dim<D>(dim);
}

TQI_INLINE float power_of_two(int e) { /* -126 .. 127 */
    return __int_as_float((e + 127) << 23);
}

/* Rows of a warp that are loaded and rotated side by side, so that they wait together. */
enum { ROWS_AT_ONCE = 4 };

/* Elements of the rows, four at a time. */
template <class Row>
TQI_INLINE void load_quads(const RowsIn &q, const int64_t (&at)[ROWS_AT_ONCE],
                           Row (&row)[ROWS_AT_ONCE]) {
    constexpr int QUADS = Row::QUADS;
    if (q.dtype == TQ_F32) {
#pragma unroll
        for (int r = 0; r < ROWS_AT_ONCE; r++)
#pragma unroll
            for (int i = 0; i < QUADS; i++)
                *(float4 *)(row[r].x + 4 * i) =
                    *(const float4 *)((const float *)q.data + at[r] + 4 * i);
        return;
    }
    uint2 w[ROWS_AT_ONCE][QUADS];
#pragma unroll
    for (int r = 0; r < ROWS_AT_ONCE; r++)
#pragma unroll
        for (int i = 0; i < QUADS; i++)
            w[r][i] = *(const uint2 *)((const uint16_t *)q.data + at[r] + 4 * i);
#pragma unroll
    for (int r = 0; r < ROWS_AT_ONCE; r++)
#pragma unroll
        for (int i = 0; i < 4 * QUADS; i++) {
            uint32_t word = i % 4 / 2 ? w[r][i / 4].y : w[r][i / 4].x;
            uint16_t bits = (uint16_t)(i % 2 ? word >> 16 : word);
            row[r].x[i] = q.dtype == TQ_F16 ? f16_bits(bits) : bf16_bits(bits);
        }
}

/* Rows that the tile lacks become zeros. */
template <class Row>
TQI_INLINE void load_rows(const AttendJob &call, const RowPlace (&p)[ROWS_AT_ONCE],
                          const bool (&in)[ROWS_AT_ONCE], Row (&row)[ROWS_AT_ONCE]) {
    constexpr int PER = 4 * Row::QUADS;
    int64_t at[ROWS_AT_ONCE];
#pragma unroll
    for (int r = 0; r < ROWS_AT_ONCE; r++)
        at[r] = row_start(call.q, p[r]) + row[r].lane * PER;
    if (call.aligned) {
        load_quads(call.q, at, row);
    } else {
#pragma unroll 1
        for (int i = 0; i < PER; i++)
#pragma unroll
            for (int r = 0; r < ROWS_AT_ONCE; r++) {
                float x = load_element(call.q.data, call.q.dtype, at[r] + i);
#pragma unroll
                for (int e = 0; e < PER; e++) /* no index that only the run knows */
                    row[r].x[e] = e == i ? x : row[r].x[e];
            }
    }
#pragma unroll
    for (int r = 0; r < ROWS_AT_ONCE; r++)
#pragma unroll
        for (int i = 0; i < PER; i++)
            row[r].x[i] = in[r] ? row[r].x[i] : 0;
}

/* scale * q.mean of a row as loaded. */
template <class Row>
TQI_INLINE float mean_share(const AttendJob &call, uint32_t kv_head, const Row &row) {
    const float *mean =
        call.k.mean + (size_t)kv_head * call.k.layout.dim + row.lane * Row::QUADS * 4;
    float dot = 0;
#pragma unroll
    for (int i = 0; i < Row::QUADS * 4; i++)
        dot += row.x[i] * mean[i];
    return (float)((double)group_sum<Row::LANES>(dot) * call.scale);
}

/* Multiplies by a power of two that may be beyond the range of a float. */
struct PowerOfTwo {
    float first, second;
    TQI_INLINE PowerOfTwo(int e)
        : first(power_of_two(e >> 1)), second(power_of_two(e - (e >> 1))) {}
    TQI_INLINE float operator*(float x) const {
        return x * first * second;
    }
};

/* A rotated row as 16-bit floats, against a power of two so that the largest magnitude is in
 * [1, 2), and then its projection against the same; returns the unit of scores. What is not finite
 * shows in it: NaN. */
template <int KF, int D, class Row>
TQI_INLINE float store_query(const AttendJob &call, Row &row, uint8_t *to, uint32_t at,
                             float unit) {
    constexpr bool BF16 = KF == TQ_FORMAT_BF16;
    constexpr int COLUMNS = key_columns<KF, D>();
    float largest = largest_of_row(row), sign = call.scale < 0 ? -1.0f : 1.0f;
    int e = max((int)(__float_as_uint(largest) >> 23 & 255u) - 127, -126);
    e = e > 127 ? 0 : e;
    const PowerOfTwo power(-e);
    row.each([&](uint32_t dim, float *x) {
#pragma unroll
        for (int i = 0; i < 4; i++)
            x[i] = power * (x[i] * sign);
        *(uint2 *)(to + query_offset<COLUMNS>(at, query_column<KF, D>(dim))) =
            make_uint2(float_pair<BF16>(x[0], x[1]), float_pair<BF16>(x[2], x[3]));
    });
    if constexpr (has_sketch(KF)) {
        row.project_row(call.k);
        row.each([&](uint32_t dim, float *x) {
            *(uint2 *)(to + query_offset<COLUMNS>(at, D + column_of_dim<D>(dim))) =
                make_uint2(float_pair<false>(x[0] * (1.0f / D), x[1] * (1.0f / D)),
                           float_pair<false>(x[2] * (1.0f / D), x[3] * (1.0f / D)));
        });
    }
    return unit * power_of_two(e) + (largest - largest);
}

/* Asks for the warp's 16 rows, two lanes a row. */
template <int D>
TQI_INLINE void prefetch_rows(const AttendJob &call, const TileWork &work, uint32_t first,
                              uint32_t lane) {
    uint32_t at = first + lane / 2;
    if (at >= work.rows.n_rows)
        return;
    int64_t element =
        row_start(call.q, place_of(call, work.segment, work.rows, 0, at)) + lane % 2 * (D / 2);
    const uint8_t *row = (const uint8_t *)call.q.data + element * (call.q.dtype == TQ_F32 ? 4 : 2);
    asm volatile("prefetch.global.L2 [%0];" ::"l"(row));
}

/* 16 rows of the tile from `first` on, by a warp, to its warpgroup's 64 rows. */
template <int KF, int D>
TQI_INLINE void load_queries(const PrefillJob &job, const TileWork &work, uint32_t first,
                             uint32_t lane, uint8_t *to, RowNote *notes) {
    using Row = typename QueryRow<D>::Row;
    constexpr int SIDE_BY_SIDE = 32 / Row::LANES;
    const AttendJob &call = job.call;
    const Side &s = call.k;
    float unit = fabsf((float)call.scale) * TQI_LOG2E * job.k_step;
    unit *= s.rotates ? 1 / sqrtf((float)D) : 1;
    unit *= s.layout.kind == TQI_KIND_FP8 ? s.scale[work.rows.kv_head] : 1;
    Row sample(lane, D, nullptr);
    prefetch_rows<D>(call, work, first, lane);
    sample.prefetch(s);
#pragma unroll 1
    for (uint32_t i = lane / Row::LANES; i < 16; i += ROWS_AT_ONCE * SIDE_BY_SIDE) {
        Row row[ROWS_AT_ONCE] = {sample, sample, sample, sample};
        RowPlace p[ROWS_AT_ONCE];
        bool in[ROWS_AT_ONCE];
        float shift[ROWS_AT_ONCE] = {};
#pragma unroll
        for (int r = 0; r < ROWS_AT_ONCE; r++) {
            uint32_t at = first + i + r * SIDE_BY_SIDE;
            in[r] = at < work.rows.n_rows;
            p[r] = place_of(call, work.segment, work.rows, 0, in[r] ? at : 0);
        }
        load_rows(call, p, in, row);
#pragma unroll
        for (int r = 0; r < ROWS_AT_ONCE; r++) {
            if (s.mean)
                shift[r] = mean_share(call, p[r].kv_head, row[r]);
            if (s.rotates)
                row[r].rotate_row(s);
        }
#pragma unroll
        for (int r = 0; r < ROWS_AT_ONCE; r++) {
            uint32_t at = i + r * SIDE_BY_SIDE;
            RowNote note = {0, 0, 0, shift[r], p[r].row, p[r].q_head};
            note.unit = store_query<KF, D>(call, row[r], to, first % 64 + at, unit);
            note.to = tqi_visible(&work.segment, call.causal, call.window,
                                  p[r].row - work.segment.query_row, &note.from);
            if (row[r].lane == 0)
                notes[at] = note;
        }
    }
    __syncwarp();
}

/* A operands of a warp's 16 rows from row `first` of its warpgroup on, for all D / 16 steps. */
template <int D>
TQI_INLINE void load_operands(const uint8_t *from, uint32_t first, uint32_t lane, uint32_t *a) {
#pragma unroll
    for (int k = 0; k < D / 16; k++)
#pragma unroll
        for (int i = 0; i < 4; i++)
            a[4 * k + i] =
                *(const uint32_t *)(from + query_offset<D>(first + lane / 4 + i % 2 * 8,
                                                           16 * k + lane % 4 * 2 + i / 2 * 8));
}

} /* namespace tqi */

#endif
