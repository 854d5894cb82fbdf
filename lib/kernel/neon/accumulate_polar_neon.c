/* Stage accumulate: probabilities times polar values. */
#include <string.h>

#include "kernel/neon/vec_neon.h"

#include "kernel/simd/polar.h"

#include "kernel/simd/accumulate_polar.h"
