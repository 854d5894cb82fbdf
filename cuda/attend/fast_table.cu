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

/* Pages of 64 tokens; of the kernels for the formats the lowest tile that takes all rows of a
 * kv head, else the highest. */
const FastKernel *find_fast(uint32_t k_format, uint32_t v_format, const tqi_layout &k,
                            const tqi_layout &v, uint32_t rows) {
    const FastKernel *best = nullptr;
    for (const FastKernel *f : all) {
        if (f->k_format != k_format || f->v_format != v_format || f->dim != k.dim ||
            f->dim != v.dim || k.tokens != 64)
            continue;
        bool better = !best || (best->heads < rows ? f->heads > best->heads
                                                   : f->heads >= rows && f->heads < best->heads);
        if (better)
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
