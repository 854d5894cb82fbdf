/* Polar keys and keys with a sketch, head dim 128. */
#include "encode/key_kernel.cuh"

namespace tqi {

TQI_KEY_ENCODE_INSTANCE(128)

} /* namespace tqi */
