/* Fast write path, head dim 256. */
#include "encode/fast_kernel.cuh"

namespace tqi {

TQI_FAST_ENCODE_INSTANCE(256, fast, false)

} /* namespace tqi */
