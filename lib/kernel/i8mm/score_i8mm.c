/* Stage score. */
#include "kernel/i8mm/i8mm.h"
#include "kernel/neon/vec_neon.h"

#include "kernel/simd/range.h"

#include "kernel/neon/score_int.h"

void tqk_prepare_i8mm(const struct tqi_rows *k, const float *row, void *query) {
    (tqk_is_integer(k) ? tqk_prepare_int_i8mm : tqk_prepare_neon)(k, row, query);
}
