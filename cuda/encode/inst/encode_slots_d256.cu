/* Fast write path into slots of the caller, head dim 256. */
#include "encode/fast_kernel.cuh"

namespace tqi {

TQI_FAST_ENCODE_INSTANCE(256, slots, true)

} /* namespace tqi */
