/* Query rows to what the stream kernels read; a group of lanes per row. */
#include "attend/instructions.cuh"
#include "attend/prepare_row.cuh"

namespace tqi {
namespace {

/* ---- the kernels ------------------------------------------------------------------------------
 */

/* The row of this group of lanes, rotated. The plan was there before the kernel in front, or
 * is that kernel, and then let nobody in early. */
template <class Row>
__device__ __forceinline__ bool rotated_row(const AttendJob &job, uint32_t warps, RowPlace *p,
                                            float *shift, Row &row) {
    uint32_t index =
        (blockIdx.x * warps + threadIdx.x / 32) * (32 / Row::LANES) + threadIdx.x % 32 / Row::LANES;
    RowPlace place = {};
    bool in = find_row(job, index, &place);
    *p = place;
    row.prefetch(job.k);
    wait_for_last_kernel();
    allow_next_kernel();
    *shift = load_row(job, place, in, row);
    if (job.k.rotates)
        row.rotate_row(job.k);
    return in;
}

/* The first pages of the workers, a lane a page, on their way into the second cache: memory has
 * nothing else to do until the queries are there. It does not matter what a page holds by now:
 * kernels in front that write it write to that cache. */
__device__ __forceinline__ void ask_for_pages(const FastJob &job, uint32_t lane) {
#if TQI_BULK_COPY
    const tqi_division division = fresh(job.call.schedule.share);
    const uint32_t stride = division.by_block ? job.warps : 1; /* warps of a block share its item */
    const uint32_t *table = fresh(&job.call.step.head->table);
    const uint32_t blob = job.call.pages.blob_bytes, pages = (job.ahead - 1) / blob + 1;
    const uint32_t n = division.n_workers * stride * pages;
    const uint64_t policy = evict_first();
    for (uint32_t i = lane * gridDim.x + blockIdx.x; i < n; i += 32 * gridDim.x) {
        const uint32_t worker = i / pages, page = i % pages;
        const tqi_work work = fresh(&job.call.schedule.work[worker / stride]);
        const uint32_t tile = worker % stride + page * stride;
        if (tile >= work.here)
            continue;
        const uint64_t id = __ldcg(table + work.ids + tile);
        bulk_prefetch(job.call.pages.base + (uint64_t)work.kv_head * blob + id * job.page_bytes,
                      min(job.ahead - page * blob, blob), policy);
    }
#endif
}

template <class Row>
__global__ void __launch_bounds__(544, 2)
    tqk_prepare_operands(const __grid_constant__ FastJob job, uint32_t row_bytes) {
    extern __shared__ float shared[];
    const uint32_t warps = blockDim.x / 32 - (job.ahead != 0);
    if (threadIdx.x / 32 == warps) { /* that of the pages */
        ask_for_pages(job, threadIdx.x % 32);
        wait_for_last_kernel();
        allow_next_kernel();
        return;
    }
    Row row(threadIdx.x % 32, job.call.k.layout.dim,
            (float *)((uint8_t *)shared + threadIdx.x / 32 * row_bytes));
    RowPlace p;
    float shift;
    bool in = rotated_row(job.call, warps, &p, &shift, row);
    if (in && row.lane == 0)
        store_shift(job.call, p, shift);
    to_operands(job, p, in, row);
}

/* Plain rows in binary32, for the generic path. */
template <class Row>
__global__ void __launch_bounds__(512)
    tqk_prepare_rows(const __grid_constant__ AttendJob job, uint32_t row_bytes) {
    extern __shared__ float shared[];
    uint32_t dim = job.k.layout.dim;
    Row row(threadIdx.x % 32, dim, (float *)((uint8_t *)shared + threadIdx.x / 32 * row_bytes));
    RowPlace p;
    float shift;
    if (!rotated_row(job, blockDim.x / 32, &p, &shift, row))
        return; /* the whole warp: a row is a warp's */
    size_t at = (size_t)p.item * job.item_rows + p.in_item;
    float norm = job.k.rotates ? 1 / sqrtf((float)dim) : 1;
    float *to = job.queries + at * query_floats(job.k);
    auto store = [&](uint32_t first, float *x) {
        *(float4 *)(to + first) = make_float4(x[0] * norm, x[1] * norm, x[2] * norm, x[3] * norm);
    };
    row.each(store);
    if (row.lane == 0)
        job.shift[at] = shift;
    if (!job.k.sketch_flips)
        return;
    row.project_row(job.k);
    to += dim;
    norm /= (float)dim; /* of three rounds */
    row.each(store);
}

/* A block's warps, and bytes of a row in shared memory. */
struct RowShape {
    uint32_t warps, row_bytes, rows_per_warp;
};

LaunchShape shape_of(const AttendJob &job, const RowShape &r, cudaStream_t stream) {
    uint64_t rows = (uint64_t)job.range.n_rows * job.n_heads * job.group;
    uint64_t per_block = r.warps * r.rows_per_warp;
    return LaunchShape{(rows + per_block - 1) / per_block, r.warps * 32, r.warps * r.row_bytes,
                       stream, job.overlap != 0};
}

/* Many warps of rows in registers to a block leave multiprocessors to the kernel behind, but enough
 * blocks have to be there to ask for its pages. */
template <class Row> tq_status run(const FastJob &job, RowShape r, cudaStream_t stream) {
    while (job.ahead && r.warps > 2 &&
           4 * shape_of(job.call, r, stream).blocks <= job.call.n_blocks)
        r.warps /= 2;
    LaunchShape shape = shape_of(job.call, r, stream);
    if (job.ahead)
        shape.threads += 32;
    return launch(tqk_prepare_operands<Row>, shape, "tqk_prepare_operands", job, r.row_bytes);
}

} /* namespace */

bool code_overlaps() {
    cudaFuncAttributes attributes;
    if (cudaFuncGetAttributes(&attributes, tqk_prepare_operands<SharedRow>) != cudaSuccess) {
        (void)cudaGetLastError();
        return false;
    }
    return attributes.ptxVersion >= 90; /* older code has no instruction for it */
}

tq_status prepare_operands(const FastJob &job, cudaStream_t stream) {
    uint32_t dim = job.call.k.layout.dim;
    if (job.call.k.rotates && job.call.k.order > 1)
        return run<SharedRow>(job, RowShape{4, 2 * dim * 4, 1}, stream);
    if (dim == 64)
        return run<RegisterRow<16, 4>>(job, RowShape{16, 0, 2}, stream);
    if (dim == 128)
        return run<RegisterRow<32, 4>>(job, RowShape{16, 0, 1}, stream);
    if (dim == 256)
        return run<RegisterRow<32, 8>>(job, RowShape{16, 0, 1}, stream);
    return run<SharedRow>(job, RowShape{4, 2 * dim * 4, 1}, stream);
}

tq_status prepare_rows(const AttendJob &job, cudaStream_t stream) {
    RowShape r = {4, 2 * job.k.layout.dim * 4, 1};
    return launch(tqk_prepare_rows<SharedRow>, shape_of(job, r, stream), "tqk_prepare_rows", job,
                  r.row_bytes);
}

} /* namespace tqi */
