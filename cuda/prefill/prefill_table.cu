/* The prefill kernels of this build. */
#include "prefill/prefill_job.h"

namespace tqi {

#define TQI_PREFILL(name) extern const PrefillKernel name;
#include "prefill/prefill_kernels.def"
#undef TQI_PREFILL

static const PrefillKernel *const all[] = {
#define TQI_PREFILL(name) &name,
#include "prefill/prefill_kernels.def"
#undef TQI_PREFILL
};

bool has_prefill() {
    return all[0]->runs();
}

tq_status open_prefill(const Side &k, const Side &v, const PrefillKernel **out) {
    *out = nullptr;
    for (const PrefillKernel *p : all)
        if (p->k_format == k.format && p->v_format == v.format && p->dim == k.layout.dim &&
            p->dim == v.layout.dim && k.layout.tokens == TILE_TOKENS && p->runs()) {
            *out = p;
            return p->prepare();
        }
    return TQ_OK;
}

} /* namespace tqi */
