/* The job of the key kernels (key_kernel.cuh). */
#include "encode/key_job.h"

namespace tqi {

static key_encode_fn *find_keys(const tqi_layout &k) {
    bool special = k.kind == TQI_KIND_POLAR || k.sketch_size;
    if (k.side != TQI_SIDE_K || !special || k.group != KEY_GROUP)
        return nullptr;
    return k.dim == 128 ? encode_keys_d128 : k.dim == 64 ? encode_keys_d64 : nullptr;
}

bool takes_keys(const tqi_layout &k) {
    return find_keys(k) != nullptr;
}

const char *key_encoder_name(const tqi_layout &k) {
    return !takes_keys(k) ? nullptr : k.dim == 128 ? "tqk_encode_keys_d128" : "tqk_encode_keys_d64";
}

tq_status encode_keys(const EncodeJob &job, cudaStream_t stream) {
    KeyJob f = {};
    f.job = job;
    tqi_polar_books_make(f.polar);
    if (!job.pieces) {
        uint64_t start = job.first_page * job.pages.page_tokens;
        uint64_t end = start + (uint64_t)job.n_pages * job.pages.page_tokens;
        f.launch_start = start;
        f.first = start > job.length ? start : job.length / KEY_GROUP * KEY_GROUP;
        f.end = end < job.end ? end : job.end;
        f.job.max_pieces = (uint32_t)((f.end - f.first + KEY_GROUP - 1) / KEY_GROUP);
    }
    return find_keys(job.side[0].layout)(f, stream);
}

} /* namespace tqi */
