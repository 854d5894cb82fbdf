/* Append of polar keys and of keys with a sketch at speed: key_kernel.cuh. */
#ifndef TQI_CUDA_ENCODE_KEY_JOB_H
#define TQI_CUDA_ENCODE_KEY_JOB_H

#include "encode/encode_job.h"

namespace tqi {

enum { KEY_GROUP = 32, KEY_WARPS = 4 };

struct KeyJob {
    EncodeJob job;                          /* side 0 */
    tqi_polar_book polar[TQI_POLAR_LEVELS]; /* constants of the code */
    uint64_t first, end;   /* without pieces: tokens of this launch from the start of a group */
    uint64_t launch_start; /* token at which the launch's first page begins */
};

typedef tq_status key_encode_fn(const KeyJob &f, cudaStream_t stream);

/* Instantiations, one file each (inst/). */
key_encode_fn encode_keys_d64, encode_keys_d128;

/* Whether the kernels take keys of that layout. */
bool takes_keys(const tqi_layout &k);
const char *key_encoder_name(const tqi_layout &k);
tq_status encode_keys(const EncodeJob &job, cudaStream_t stream);

} /* namespace tqi */

#endif
