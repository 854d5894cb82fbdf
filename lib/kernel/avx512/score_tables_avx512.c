/* Stage score: polar angles and sketches by tables. */
#include <float.h>
#include <math.h>
#include <string.h>

#include "kernel/avx512/vec_avx512.h"

#include "kernel/simd/polar.h"
#include "kernel/simd/query_tables.h"
#include "kernel/simd/score_tables.h"
