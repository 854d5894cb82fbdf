/* Polar tables in the lanes of a warp. */
#ifndef TQI_CUDA_COMMON_POLAR_TABLES_CUH
#define TQI_CUDA_COMMON_POLAR_TABLES_CUH

#include "params.h"

namespace tqi {

/* Lane l holds entry l of every level, again and again: shuffles look at the five lowest bits of
 * an index, so that codes need not be cut out of their words. */
struct PolarTables {
    float cosine[TQI_POLAR_LEVELS], sine[TQI_POLAR_LEVELS];

    __device__ __forceinline__ void load(const tqi_polar_book *books, uint32_t lane) {
#pragma unroll
        for (int l = 0; l < TQI_POLAR_LEVELS; l++) {
            cosine[l] = books[l].cosine[lane % 4];
            sine[l] = books[l].sine[lane % 4];
        }
        cosine[0] = lane & 4 ? -cosine[0] : cosine[0]; /* level 1 has signs */
        sine[0] = lane & 8 ? -sine[0] : sine[0];
    }

    /* A radius of level `level` + 1 to two of the level below. */
    __device__ __forceinline__ void split(int level, uint32_t code, float r, float &a,
                                          float &b) const {
        a = r * __shfl_sync(~0u, cosine[level], (int)code);
        b = r * __shfl_sync(~0u, sine[level], (int)code);
    }
};

} /* namespace tqi */

#endif
