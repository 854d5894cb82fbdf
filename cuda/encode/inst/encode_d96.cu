/* Fast write path, head dim 96. */
#include "encode/fast_kernel.cuh"

namespace tqi {

TQI_FAST_ENCODE_INSTANCE(96, fast, false)

} /* namespace tqi */
