/* Sequences of the caller to a step, by one block: segments as step_image.cu writes them on the
 * host, but from lengths and rows that only the device knows. */
#ifndef TQI_CUDA_PAGED_IMPORT_CUH
#define TQI_CUDA_PAGED_IMPORT_CUH

#include "attend/instructions.cuh"
#include "attend/scan.cuh"
#include "paged/paged_job.h"

namespace tqi {

/* A sequence with query rows, and its segments. */
struct Rows {
    uint64_t length;
    uint32_t seq, first, n;    /* query rows */
    uint32_t at, count;        /* segments of the step */
    uint32_t tile_at, n_tiles; /* tiles of the step, of all of its rows; none: 0 */
};

/* What is out of range is brought into it: a call that is not checked may compute anything, but
 * in its own memory. */
__device__ inline Rows rows_of(const ImportJob &job, uint32_t seq) {
    Rows r = {0, seq, 0, 0, 0, 0, 0, 0};
    const CallerSeqs &s = job.seqs;
    if (seq >= s.n_seqs)
        return r;
    int64_t length = s.lengths[seq], first = seq ? s.starts[seq] : 0, end = s.starts[seq + 1];
    length = min(max(length, (int64_t)0), (int64_t)s.max_length);
    first = min(max(first, (int64_t)0), (int64_t)s.n_rows);
    end = min(max(end, first), (int64_t)s.n_rows);
    r.length = (uint64_t)length;
    r.first = (uint32_t)first;
    r.n = (uint32_t)(end - first);
    r.count = r.n ? (r.first + r.n - 1) / job.block_rows - r.first / job.block_rows + 1 : 0;
    if (job.tiles && takes_tiles(r.n, job.group))
        r.n_tiles = row_tiles(r.n, job.group);
    return r;
}

/* Segment i of a sequence: it ends where a block of rows does. */
__device__ inline void write_segment(const ImportJob &job, const Rows &r, uint32_t i) {
    uint32_t block = r.first / job.block_rows + i, end = r.first + r.n;
    uint32_t begin = i ? block * job.block_rows : r.first;
    uint64_t next = ((uint64_t)block + 1) * job.block_rows;
    uint32_t last = next < end ? (uint32_t)next : end;
    job.step.segments[r.at + i] =
        tqi_segment{r.length,          (int64_t)r.seq * job.seqs.table_stride,
                    last - begin,      begin,
                    end - last,        r.n_tiles != 0,
                    (uint32_t)r.length};
}

/* Tile i of a sequence. */
__device__ inline void write_tile(const ImportJob &job, const Rows &r, uint32_t i) {
    job.tiles[r.tile_at + i] = RowTile{tqi_segment{r.length, (int64_t)r.seq * job.seqs.table_stride,
                                                   r.n, r.first, 0, 1, (uint32_t)r.length},
                                       i * TILE_ROWS,
                                       {0, 0, 0}};
}

__device__ inline void write_row(const ImportJob &job, const Rows &r, uint32_t i) {
    uint32_t row = r.first + i;
    job.step.row_segment[row] = r.at + row / job.block_rows - r.first / job.block_rows;
}

__device__ inline Rows rows_of_lane(const Rows &r, int lane) {
    return Rows{__shfl_sync(~0u, r.length, lane),  __shfl_sync(~0u, r.seq, lane),
                __shfl_sync(~0u, r.first, lane),   __shfl_sync(~0u, r.n, lane),
                __shfl_sync(~0u, r.at, lane),      __shfl_sync(~0u, r.count, lane),
                __shfl_sync(~0u, r.tile_at, lane), __shfl_sync(~0u, r.n_tiles, lane)};
}

/* A lane has a sequence; those with many rows are written by the whole warp. */
__device__ inline void write_rows(const ImportJob &job, const Rows &r) {
    const uint32_t few = 4, lane = threadIdx.x % 32;
    for (uint32_t i = 0; r.n <= few && i < r.count; i++)
        write_segment(job, r, i);
    for (uint32_t i = 0; r.n <= few && i < r.n; i++)
        write_row(job, r, i);
    for (uint32_t many = __ballot_sync(~0u, r.n > few); many; many &= many - 1) {
        Rows other = rows_of_lane(r, __ffs((int)many) - 1);
        for (uint32_t i = lane; i < other.count; i += 32)
            write_segment(job, other, i);
        for (uint32_t i = lane; i < other.n; i += 32)
            write_row(job, other, i);
        for (uint32_t i = lane; i < other.n_tiles; i += 32)
            write_tile(job, other, i);
    }
    for (uint32_t i = 0; r.n <= few && i < r.n_tiles; i++)
        write_tile(job, r, i);
}

/* By SCAN_THREADS threads; room: [SCAN_WARPS], shared. Afterwards all of them see the step. */
__device__ inline void import_seqs(const ImportJob &job, uint64_t *room) {
    uint32_t n_segments = 0, n_rows = 0, n_tiles = 0, all;
    for (uint32_t i = threadIdx.x; i < job.n_arrived; i += SCAN_THREADS)
        job.arrived[i] = 0;
    for (uint32_t i = threadIdx.x; job.tiles && i < job.n_tile_arrived; i += SCAN_THREADS)
        job.tile_arrived[i] = 0;
    for (uint32_t base = 0; base < job.seqs.n_seqs; base += SCAN_THREADS) {
        Rows r = rows_of(job, base + threadIdx.x);
        r.at = n_segments + scan(r.count, room, &all);
        n_segments = min(n_segments + all, job.n_segments);
        if (job.tiles) {
            r.tile_at = n_tiles + scan(r.n_tiles, room, &all);
            n_tiles = min(n_tiles + all, job.most_tiles);
        }
        if (r.at + r.count > job.n_segments || r.tile_at + r.n_tiles > job.most_tiles)
            r.n = r.count = r.n_tiles = 0; /* rows out of order */
        write_rows(job, r);
    }
    if (job.seqs.n_seqs)
        n_rows = min((uint32_t)max(job.seqs.starts[job.seqs.n_seqs], 0), job.seqs.n_rows);
    __syncthreads();
    for (uint32_t i = threadIdx.x; i <= job.n_blocks; i += SCAN_THREADS) {
        uint64_t row = (uint64_t)i * job.block_rows;
        job.step.block_segment[i] = row < n_rows ? job.step.row_segment[row] : n_segments;
    }
    if (threadIdx.x == 0)
        *job.step.head = StepHead{(const uint32_t *)job.seqs.table, n_rows, 0, 0, n_tiles};
    __syncthreads();
}

} /* namespace tqi */

#endif
