/* A cache and its model under a stream of calls, and the calls that move tokens. */
#ifndef TEST_FUZZ_RUN_H
#define TEST_FUZZ_RUN_H

#include "fuzz/model.h"

struct run {
    struct input in;
    struct fuzz_heap heap;
    size_t context_bytes;
    tq_cache *cache;
    struct model *m;
    uint32_t refused; /* before the call that is checked */
    double tolerance;
};

/* Whether the call did what the model says; a refused allocation may come before any other
 * reason to fail. */
int run_did(struct run *r, tq_status status, tq_status want);
struct model_seq *run_any_seq(struct run *r);
/* What creating a sequence says, and the check of what it gave. */
tq_status run_room_for_seq(const struct run *r);
void run_check_new_id(const struct run *r, tq_seq id);

void run_remove_some(struct run *r);
void run_reorder(struct run *r);
void run_copy(struct run *r);
void run_load(struct run *r);
void run_load_append(struct run *r);

#endif
