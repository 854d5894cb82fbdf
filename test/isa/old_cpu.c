/* old_cpu avx: runs an AVX instruction, which a CPU without it must refuse, so that a run on one
 * proves something. old_cpu none|avx2|arm|neon|i8mm: which features a context finds. */
#include <stdint.h>
#include <stdio.h>
#include <string.h>

#include "tq/tq.h"

static int run_avx(void) {
#if defined(__x86_64__)
    __asm__ volatile("vxorps %%ymm0, %%ymm0, %%ymm0" ::: "xmm0");
#endif
    return 0;
}

int main(int argc, char **argv) {
    tq_context *ctx;
    if (argc != 2)
        return 2;
    if (strcmp(argv[1], "avx") == 0)
        return run_avx();
    if (tq_context_create(NULL, &ctx) != TQ_OK) {
        fprintf(stderr, "%s\n", tq_last_error());
        return 1;
    }
    uint64_t features = tq_context_cpu_features(ctx), want = 0;
    tq_context_destroy(ctx);
    if (strcmp(argv[1], "avx2") == 0)
        want = TQ_CPU_AVX2;
    if (strcmp(argv[1], "arm") == 0)
        want = TQ_CPU_NEON;
    if (strcmp(argv[1], "neon") == 0)
        want = TQ_CPU_NEON | TQ_CPU_DOTPROD;
    if (strcmp(argv[1], "i8mm") == 0)
        want = TQ_CPU_NEON | TQ_CPU_DOTPROD | TQ_CPU_I8MM;
    printf("features 0x%llx\n", (unsigned long long)features);
    return features == want ? 0 : 1;
}
