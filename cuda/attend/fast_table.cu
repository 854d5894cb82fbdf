/* The fast kernels of this build. */
#include "attend/fast_job.h"

namespace tqi {

#define TQI_FAST(name) extern const FastKernel name;
#include "attend/fast_kernels.def"
#undef TQI_FAST

static const FastKernel *const all[] = {
#define TQI_FAST(name) &name,
#include "attend/fast_kernels.def"
#undef TQI_FAST
};

enum { N_KERNELS = sizeof all / sizeof *all };

const FastKernel *fast_kernel(uint32_t index) {
    return index < N_KERNELS ? all[index] : nullptr;
}

BlockShape shape_of_block(const FastKernel &kernel, uint32_t limit) {
    const uint32_t most = limit - (kernel.whole ? WHOLE_SHARED : 0);
    for (uint32_t slots = kernel.slots; slots >= 1; slots--)
        if (kernel.shared(kernel.warps, slots) <= most)
            return BlockShape{kernel.warps, slots};
    for (uint32_t warps = kernel.warps - 1; warps >= 1; warps--)
        if (kernel.shared(warps, 1) <= most)
            return BlockShape{warps, 1};
    return BlockShape{0, 0};
}

uint32_t arithmetics_that_run() {
    uint32_t runs = 0;
    for (const FastKernel *f : all)
        if (!(runs >> f->arithmetic & 1) && (!f->runs || f->runs()))
            runs |= 1u << f->arithmetic;
    return runs;
}

/* Native kernels of e4m3 where they are asked for or, unless they must not, faster. */
static bool is_candidate(const FastKernel &f, const KernelChoice &choice) {
    if (!(choice.runs >> f.arithmetic & 1))
        return false;
    if (!is_native(f.arithmetic))
        return true;
    if (choice.flags & TQ_CONTEXT_FP8_CONVERTED)
        return false;
    return f.faster || choice.flags & TQ_CONTEXT_FP8_NATIVE;
}

/* Rows that a kernel stands for. */
static uint32_t height(const FastKernel &f) {
    return f.serves ? f.serves : f.heads;
}

/* The lowest tile that takes all rows of a kv head, else the highest; of kernels alike the one
 * on wgmma or on e4m3 itself. A native tile of any height comes first where it is asked for. */
static bool is_better(const FastKernel &f, const FastKernel &best, uint32_t rows,
                      const KernelChoice &choice) {
    if (choice.flags & TQ_CONTEXT_FP8_NATIVE &&
        is_native(f.arithmetic) != is_native(best.arithmetic))
        return is_native(f.arithmetic);
    const uint32_t own = height(f), other = height(best);
    if (own == other)
        return f.arithmetic > best.arithmetic;
    return other < rows ? own > other : own >= rows && own < other;
}

/* Pages of 64 tokens. */
const FastKernel *find_fast(uint32_t k_format, uint32_t v_format, const tqi_layout &k,
                            const tqi_layout &v, uint32_t rows, const KernelChoice &choice) {
    const FastKernel *best = nullptr;
    for (const FastKernel *f : all) {
        if (f->k_format != k_format || f->v_format != v_format || f->dim != k.dim ||
            f->dim != v.dim || k.tokens != 64 || !is_candidate(*f, choice))
            continue;
        if (!best || is_better(*f, *best, rows, choice))
            best = f;
    }
    return best;
}

tq_status prepare_fast(const Side &k, const Side &v) {
    for (const FastKernel *f : all)
        if (f->k_format == k.format && f->v_format == v.format && f->dim == k.layout.dim)
            TQI_TRY(f->prepare());
    return TQ_OK;
}

} /* namespace tqi */
