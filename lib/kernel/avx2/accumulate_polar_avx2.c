/* Stage accumulate: probabilities times polar values. */
#include <string.h>

#include "kernel/avx2/vec_avx2.h"

#include "kernel/simd/polar.h"

#include "kernel/simd/accumulate_polar.h"
