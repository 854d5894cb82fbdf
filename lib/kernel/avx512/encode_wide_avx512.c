/* The write path of one row of bf16, f16 or fp8. */
#include <string.h>

#include "kernel/avx512/pack_avx512.h"
#include "kernel/avx512/vec_avx512.h"

#include "kernel/simd/encode_wide.h"
