/* The write path of one row of bf16, f16 or fp8. */
#include <string.h>

#include "kernel/avx2/pack_avx2.h"
#include "kernel/avx2/vec_avx2.h"

#include "kernel/simd/encode_wide.h"
