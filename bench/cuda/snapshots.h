/* Times of tq/snapshot.h. */
#ifndef BENCH_CUDA_SNAPSHOTS_H
#define BENCH_CUDA_SNAPSHOTS_H

/* Saves, loads and copies a sequence of 32768 tokens, and prints times. */
void time_snapshots(void);

#endif
