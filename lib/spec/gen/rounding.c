/* All integer pictures of a real vector.

   A table of small integers stands for scale * ideal, rounded; which scale is best has no formula,
   as the rounding errors come and go. But as the scale grows from 0 the rounded vector changes in
   one entry at a time, so all different roundings can be visited, and none is missed by a scan that
   is too coarse. */
#include "gen.h"

/* Entry i leaves rounded[i] for rounded[i] + 1 where scale * ideal[i] = rounded[i] + 1/2; the entry
   with the smallest such scale is the next to change. Starts from all 0 (grid of integers) or all
   1/2 (grid of half-integers). */
void gen_next_rounding(int size, const double *ideal, double *rounded) {
    int next = 0;
    for (int i = 1; i < size; i++) {
        if ((rounded[i] + 0.5) * ideal[next] < (rounded[next] + 0.5) * ideal[i]) {
            next = i;
        }
    }
    rounded[next] += 1.0;
}
