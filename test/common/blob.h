/* Snapshots in tests: saved into buffers of their exact size, loaded and compared. */
#ifndef TEST_COMMON_BLOB_H
#define TEST_COMMON_BLOB_H

#include "common/rig.h"
#include "tq/snapshot.h"

struct blob {
    unsigned char *bytes; /* owned */
    size_t size;
};

struct blob blob_save(const struct rig *r, tq_seq seq);
struct blob blob_save_range(const struct rig *r, tq_seq seq, uint64_t first, uint64_t n);
void blob_free(struct blob *b);
tq_seq blob_load(struct rig *r, const struct blob *b);
void blob_check_same(const struct blob *a, const struct blob *b, const char *what);

#endif
