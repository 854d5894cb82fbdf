/*
 * Partial states to output rows: the pieces of an item joined in order, the inverse rotation,
 * 1 / sum, means, lse. A group of lanes per row.
 */
#include "attend/merge_row.cuh"

namespace tqi {
namespace {

/* CROWDED: fewer registers and pieces at a time, so that all blocks of many rows find room at once;
 * a second wave would take longer than the first (docs/experiments/gpu_decode.md, "Launches"). */
template <class Row, bool CROWDED>
__global__ void __launch_bounds__(128, CROWDED ? 8 : 1)
    tqk_merge_pieces(const __grid_constant__ AttendJob job, uint32_t row_bytes) {
    extern __shared__ float shared[];
    constexpr uint32_t per_warp = 32 / Row::LANES;
    uint32_t dim = job.v.layout.dim, warp = threadIdx.x / 32, lane = threadIdx.x % 32;
    uint32_t index = (blockIdx.x * (blockDim.x / 32) + warp) * per_warp + lane / Row::LANES;
    Row row(lane, dim, (float *)((uint8_t *)shared + warp * row_bytes));
    RowPlace p = {};
    RowPieces r = {};
    RowEnd end = {};
    /* the plan and the queries were there before the kernel in front began */
    bool in = find_row(job, index, &p);
    if (in) {
        r = pieces_of_row(job, p);
        end = end_of_row(job, p);
    }
    row.prefetch(job.v);
    wait_for_last_kernel();
    allow_next_kernel();
    if constexpr (CROWDED) {
        static_assert(Row::LANES % 4 == 0, "batches end where the lanes' weights do");
        const float2 joint = join_batches<4>(r, dim, row);
        finish_row(job, p, in, joint, end, row);
    } else {
        merge_row(job, p, in, r, end, row);
    }
}

template <class Row> tq_status run(const AttendJob &job, uint32_t row_bytes, cudaStream_t stream) {
    const uint32_t warps = 4;
    uint64_t rows = (uint64_t)job.range.n_rows * job.n_heads * job.group;
    uint64_t per_block = warps * (32 / Row::LANES);
    LaunchShape shape = {(rows + per_block - 1) / per_block, warps * 32, warps * row_bytes, stream,
                         job.overlap != 0};
    const uint64_t at_once = 6; /* blocks of a multiprocessor, by registers */
    if constexpr (Row::QUADS == 1)
        if (shape.blocks > at_once * job.n_blocks)
            return launch(tqk_merge_pieces<Row, true>, shape, "tqk_merge_pieces", job, row_bytes);
    return launch(tqk_merge_pieces<Row, false>, shape, "tqk_merge_pieces", job, row_bytes);
}

} /* namespace */

tq_status merge_pieces(const AttendJob &job, cudaStream_t stream) {
    uint32_t dim = job.v.layout.dim;
    bool mixes = job.v.rotates && job.v.order > 1;
    if (dim == 64 && !mixes)
        return run<RegisterRow<16, 4>>(job, 0, stream);
    if (dim == 128 && !mixes)
        return run<RegisterRow<32, 4>>(job, 0, stream);
    if (dim == 256 && !mixes)
        return run<RegisterRow<32, 8>>(job, 0, stream);
    return run<SharedRow>(job, 2 * dim * sizeof(float), stream);
}

} /* namespace tqi */
