/* The kernels of group_stream.cuh as entries of the table (fast_job.h). */
#ifndef TQI_CUDA_ATTEND_GROUP_KERNELS_CUH
#define TQI_CUDA_ATTEND_GROUP_KERNELS_CUH

#include "attend/group_stream.cuh"

namespace tqi {

/* Pages that entering an item takes a group of integer codes as long as, as measured
 * (docs/experiments/gpu_decode.md). */
enum { CODES16_ENTRY = 8, CODES8_ENTRY = 6 };

/* Tokens from which on a sequence is long for eight rows. */
#ifndef TQI_LONG_TOKENS
#define TQI_LONG_TOKENS 2048
#endif

template <class S, int MAX_GROUPS> tq_status prepare_groups() {
    return allow_shared(tqk_group_stream<S, MAX_GROUPS>, 0);
}

/* S serves streams, W whole launches: the two take a different number of pages at a time where that
 * is faster. */
template <class S, class W, int MAX_GROUPS> tq_status prepare_both() {
    TQI_TRY((prepare_groups<S, MAX_GROUPS>()));
    return allow_shared(tqk_group_whole<W, MAX_GROUPS>, WHOLE_SHARED);
}

/* Asked of the whole kernel, for all of its arithmetic. */
template <class W, int MAX_GROUPS> bool group_stream_runs() {
    cudaFuncAttributes attributes;
    if (cudaFuncGetAttributes(&attributes, tqk_group_whole<W, MAX_GROUPS>) != cudaSuccess) {
        (void)cudaGetLastError();
        return false;
    }
    return attributes.sharedSizeBytes > 0;
}

template <class S, int MAX_GROUPS>
tq_status run_stream_of_groups(const FastJob &job, cudaStream_t stream) {
    const LaunchShape shape = {job.call.n_blocks, (job.warps + S::PRODUCED) * 128,
                               group_shared<S>(job.warps, job.slots), stream,
                               job.call.overlap != 0};
    return launch(tqk_group_stream<S, MAX_GROUPS>, shape, "tqk_group_stream", job);
}

template <class S, class W, int MAX_GROUPS>
tq_status run_either(const FastJob &job, cudaStream_t stream) {
    if (!job.whole)
        return run_stream_of_groups<S, MAX_GROUPS>(job, stream);
    const LaunchShape shape = {job.call.n_blocks, job.warps * 128,
                               group_shared<W>(job.warps, job.slots), stream,
                               job.call.overlap != 0};
    return launch(tqk_group_whole<W, MAX_GROUPS>, shape, "tqk_group_whole", job);
}

template <class S, class W> size_t shared_of_either(uint32_t groups, uint32_t slots) {
    const size_t stream = group_shared<S>(groups, slots), whole = group_shared<W>(groups, slots);
    return stream > whole ? stream : whole;
}

/* Entries of the table: rows of a tile in fours, head dim, warpgroups of a block, slots of each,
 * whether it is the faster way (docs/PERFORMANCE.md), pages that an entry takes as long as. */
#define TQI_GROUP_KERNEL(name, kf, vf, shape, whole_shape, nt, dim, groups, slots, arithmetic, \
                         faster, entry)                                                        \
    const FastKernel name = {kf,                                                               \
                             vf,                                                               \
                             dim,                                                              \
                             nt * 4,                                                           \
                             groups,                                                           \
                             slots,                                                            \
                             is_whole(dim),                                                    \
                             shape::PAGES,                                                     \
                             "tqk_" #name,                                                     \
                             Blob<kf, vf, dim>::bytes,                                         \
                             shared_of_either<shape, whole_shape>,                             \
                             prepare_both<shape, whole_shape, groups>,                         \
                             run_either<shape, whole_shape, groups>,                           \
                             arithmetic,                                                       \
                             faster,                                                           \
                             group_stream_runs<whole_shape, groups>,                           \
                             entry,                                                            \
                             nullptr};

#define TQI_WGMMA_KERNEL(name, nt, dim, groups, slots, faster)                                \
    using Shape_##name = GroupTileShape<nt, dim>;                                             \
    TQI_GROUP_KERNEL(name, TQ_FORMAT_FP8, TQ_FORMAT_FP8, Shape_##name, Shape_##name, nt, dim, \
                     groups, slots, ON_WGMMA, faster, 0)

/* The same of integer codes, 16 rows, `pages` at a time; two where the launch is a whole one. */
#define TQI_CODES_KERNEL(name, kf, vf, dim, pages, groups, slots)                     \
    using Shape_##name = CodesShape<kf, vf, 4, dim, pages, slots>;                    \
    using Whole_##name = CodesShape<kf, vf, 4, dim, 2, 2>;                            \
    TQI_GROUP_KERNEL(name, kf, vf, Shape_##name, Whole_##name, 4, dim, groups, slots, \
                     ON_WGMMA_INTEGERS, 1, CODES16_ENTRY)

/* Eight rows, or `serves` of them. Few items are `few`'s, a kernel of stream.cuh. Whether these run
 * is asked of `like`, a kernel of 16 rows. */
#define TQI_CODES8_KERNEL(name, kf, vf, dim, pages, groups, slots, few, like, serves, long_tokens) \
    using Shape_##name = CodesShape<kf, vf, 2, dim, pages, slots>;                                 \
    const FastKernel name = {kf,                                                                   \
                             vf,                                                                   \
                             dim,                                                                  \
                             8,                                                                    \
                             groups,                                                               \
                             slots,                                                                \
                             0,                                                                    \
                             pages,                                                                \
                             "tqk_" #name,                                                         \
                             Blob<kf, vf, dim>::bytes,                                             \
                             group_shared<Shape_##name>,                                           \
                             prepare_groups<Shape_##name, groups>,                                 \
                             run_stream_of_groups<Shape_##name, groups>,                           \
                             ON_WGMMA_INTEGERS,                                                    \
                             1,                                                                    \
                             group_stream_runs<Whole_##like, groups>,                              \
                             CODES8_ENTRY,                                                         \
                             &few,                                                                 \
                             long_tokens,                                                          \
                             serves};

} /* namespace tqi */

#endif
