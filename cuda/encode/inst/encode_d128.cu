/* Fast write path, head dim 128. */
#include "encode/fast_kernel.cuh"

namespace tqi {

TQI_FAST_ENCODE_INSTANCE(128, fast, false)

} /* namespace tqi */
