#include "kernel/kernel.h"

#include <string.h>

void tqi_kernels_select(struct tqi_kernels *kernels, uint64_t features) {
    /* Best first. TQI_REFERENCE_ONLY is for MemorySanitizer, which knows too few vectors. */
    const struct tqi_level *all[] = {
#if defined(TQI_REFERENCE_ONLY)
#elif defined(__x86_64__) && defined(__GNUC__)
#ifdef TQI_HAVE_AMX
        tqi_level_amx(),
#endif
        tqi_level_avx512(),
#ifdef TQI_HAVE_AVXVNNI
        tqi_level_avxvnni(),
#endif
        tqi_level_avx2(),
#elif defined(__aarch64__) && defined(__GNUC__)
#ifdef TQI_HAVE_I8MM
        tqi_level_i8mm(),
#endif
        tqi_level_neon(),
#endif
        tqi_level_ref(),
    };
    memset(kernels, 0, sizeof *kernels);
    for (size_t i = 0; i < sizeof all / sizeof *all; i++)
        if ((all[i]->features & ~features) == 0)
            kernels->level[kernels->n_levels++] = all[i];
}

const struct tqi_level *tqi_kernels_encode(const struct tqi_kernels *kernels, tq_format f) {
    for (uint32_t i = 0; i < kernels->n_levels; i++)
        if (kernels->level[i]->encode[f].run)
            return kernels->level[i];
    return NULL;
}

const struct tqi_level *tqi_kernels_attend(const struct tqi_kernels *kernels, tq_format k,
                                           tq_format v) {
    for (uint32_t i = 0; i < kernels->n_levels; i++)
        if (kernels->level[i]->score[k].run && kernels->level[i]->accumulate[v].run)
            return kernels->level[i];
    return NULL;
}
