/* check_cuda [group ...] [I/N]: the CUDA device against the CPU's reference kernels. Groups: bytes,
 * attention, fp8, special, batches, windows, prefill, paged, slots, steps, chains, merge, cases,
 * kept, sequences, snapshots, walks, device, two, random; all without arguments. The groups
 * sanitize, sanitize_fp8, sanitize_batches, sanitize_bytes, sanitize_paged, sanitize_prefill and
 * sanitize_kept repeat a little of everything for tools that are slow. I/N runs the I-th of N parts
 * of attention, which takes longest. Skips where there is no GPU. */
#include <cuda_runtime.h>
#include <stdio.h>
#include <string.h>
#include <time.h>

#include "gpu.h"

static const struct {
    const char *name;
    void (*run)(void);
} groups[] = {{"device", check_device},
              {"two", check_two},
              {"bytes", check_bytes},
              {"sequences", check_sequences},
              {"snapshots", check_snapshots},
              {"walks", check_walks},
              {"attention", check_attention},
              {"batches", check_batches},
              {"fp8", check_fp8},
              {"special", check_special},
              {"windows", check_windows},
              {"prefill", check_prefill},
              {"paged", check_paged},
              {"slots", check_slots},
              {"steps", check_steps},
              {"chains", check_chains},
              {"merge", check_merge},
              {"cases", check_cases},
              {"kept", check_kept},
              {"random", check_random},
              {"sanitize", check_sanitize},
              {"sanitize_fp8", check_sanitize_fp8},
              {"sanitize_batches", check_batches_sanitize},
              {"sanitize_bytes", check_bytes_sanitize},
              {"sanitize_paged", check_paged_sanitize},
              {"sanitize_prefill", check_prefill_sanitize},
              {"sanitize_kept", check_kept_sanitize}};

static int wanted(const char *name, int argc, char **argv) {
    for (int i = 1; i < argc; i++)
        if (strcmp(argv[i], name) == 0)
            return 1;
    return argc == 1;
}

/* The last argument may be I/N. Returns the number of arguments before it. */
static int take_part(int argc, char **argv) {
    unsigned part, n;
    if (argc < 2 || sscanf(argv[argc - 1], "%u/%u", &part, &n) != 2)
        return argc;
    if (part == 0 || part > n) {
        fprintf(stderr, "check_cuda: no part %s\n", argv[argc - 1]);
        return 0;
    }
    gpu_take_part(part - 1, n);
    return argc - 1;
}

int main(int argc, char **argv) {
    int n = 0;
    /* what has been said is seen of a run that is stopped, too */
    (void)setvbuf(stdout, NULL, _IOLBF, BUFSIZ);
    argc = take_part(argc, argv);
    if (argc == 0)
        return 2;
    if (cudaGetDeviceCount(&n) != cudaSuccess || n == 0) {
        printf("check_cuda: SKIPPED, this machine has no usable GPU\n");
        return 0;
    }
    for (size_t i = 0; i < sizeof groups / sizeof *groups; i++)
        if (wanted(groups[i].name, argc, argv)) {
            const time_t start = time(NULL);
            printf("check_cuda: %s begins\n", groups[i].name);
            groups[i].run();
            printf("check_cuda: %s done, %.0f s\n", groups[i].name, difftime(time(NULL), start));
        }
    return gpu_report();
}
