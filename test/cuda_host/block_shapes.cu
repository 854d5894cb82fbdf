/* Blocks of every fast kernel fit the shared memory of the GPUs that the library serves, in both
 * of its launches. Needs no GPU. */
#include <cstdio>

#include "attend/fast_job.h"

int main() {
    /* Bytes that a block may ask for: compute capability 8.6 and 8.9, 8.0, 9.0. */
    const uint32_t limits[] = {101376, 166912, 232448};
    uint32_t n = 0, failed = 0;
    for (uint32_t i = 0; const tqi::FastKernel *kernel = tqi::fast_kernel(i); i++)
        for (uint32_t limit : limits) {
            tqi::BlockShape shape = tqi::shape_of_block(*kernel, limit);
            size_t beside = kernel->whole ? tqi::WHOLE_SHARED : 0;
            bool fits = shape.warps && shape.slots && shape.warps <= kernel->warps &&
                        kernel->shared(shape.warps, shape.slots) + beside <= limit;
            if (!fits && shape.warps == 0 && kernel->arithmetic >= tqi::ON_WGMMA && limit < 232448)
                continue; /* wgmma is there on 9.0 only */
            n++;
            if (fits)
                continue;
            failed++;
            std::printf("%s: %u warps with %u slots, %zu bytes, do not fit %u\n", kernel->name,
                        shape.warps, shape.slots, kernel->shared(shape.warps, shape.slots) + beside,
                        limit);
        }
    std::printf("block_shapes: %u of %u do not fit\n", failed, n);
    return failed || n < 3 ? 1 : 0;
}
