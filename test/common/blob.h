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
/* A cache made from nothing but a snapshot; formats: room for those of its layers, which stay in
 * use until the cache is open. */
void blob_open(struct rig *r, const struct blob *b, tq_layer_formats *formats);
void blob_check_same(const struct blob *a, const struct blob *b, const char *what);

/* Tokens [first, + n) to a new sequence of the same cache: through bytes, or by way of a sequence
 * of another cache that does not stay. */
tq_status blob_reload(struct rig *r, tq_seq from, uint64_t first, uint64_t n, tq_seq *out);
tq_status blob_copy_by(struct rig *r, tq_seq from, uint64_t first, uint64_t n, struct rig *other,
                       tq_seq *out);

#endif
