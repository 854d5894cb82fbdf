/* Fast write path, head dim 192. */
#include "encode/fast_kernel.cuh"

namespace tqi {

TQI_FAST_ENCODE_INSTANCE(192, fast, false)

} /* namespace tqi */
