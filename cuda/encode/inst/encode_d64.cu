/* Fast write path, head dim 64. */
#include "encode/fast_kernel.cuh"

namespace tqi {

TQI_FAST_ENCODE_INSTANCE(64, fast, false)

} /* namespace tqi */
