/* The scheduler's steps as real steps of the library on this machine's CPU, a small model. */
#ifndef REPLAY_LIVE_H
#define REPLAY_LIVE_H

#include "replay.h"

struct live;

/* A cache of the variant with `bytes` for pages. NULL on failure, which is printed. */
struct live *live_open(const char *variant, uint64_t bytes, const struct limits *limits,
                       uint32_t n_requests);
uint64_t live_pages(const struct live *l);
struct engine live_engine(struct live *l);
/* Steps whose cache held other pages than the scheduler's requests may. */
uint32_t live_mismatches(const struct live *l);
void live_close(struct live *l);

#endif
