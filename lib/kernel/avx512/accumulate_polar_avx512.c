/* Stage accumulate: probabilities times polar values. */
#include <string.h>

#include "kernel/avx512/vec_avx512.h"

#include "kernel/simd/polar.h"

#include "kernel/simd/accumulate_polar.h"
