/* The write path of one row of bf16, f16 or fp8. */
#include <string.h>

#include "kernel/neon/pack_neon.h"
#include "kernel/neon/vec_neon.h"

#include "kernel/simd/encode_wide.h"
