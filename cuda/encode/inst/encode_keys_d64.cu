/* Polar keys and keys with a sketch, head dim 64. */
#include "encode/key_kernel.cuh"

namespace tqi {

TQI_KEY_ENCODE_INSTANCE(64)

} /* namespace tqi */
