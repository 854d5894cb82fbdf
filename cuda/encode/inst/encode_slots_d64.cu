/* Fast write path into slots of the caller, head dim 64. */
#include "encode/fast_kernel.cuh"

namespace tqi {

TQI_FAST_ENCODE_INSTANCE(64, slots, true)

} /* namespace tqi */
