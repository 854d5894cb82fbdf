/* A cache that snapshots are thrown at which it must not take, and ways to make them: bytes written
 * over, and checksums made right again. */
#ifndef TEST_COMMON_VICTIM_H
#define TEST_COMMON_VICTIM_H

#include "common/blob.h"

/* A cache with a sequence, what it looks like, and its snapshot. */
struct victim {
    struct rig r;
    tq_seq seq;
    uint32_t n; /* tokens */
    struct blob blob;
    struct snapshot before;
};

/* With n tokens, after `set` has been at the empty cache; NULL = nothing to set. */
void victim_open(struct victim *v, const tq_cache_config *c, uint32_t n, void (*set)(struct rig *));
void victim_close(struct victim *v);

/* The statuses of a snapshot that is refused. */
int is_refusal(tq_status status);
/* Every call that reads whole snapshots says so, asks for no memory and changes nothing. */
void victim_refuses(struct victim *v, const void *bytes, size_t size, const char *what, size_t at);
/* Snapshots that are cut off at every byte, in memory that ends there, or too long. */
void victim_refuses_truncations(struct victim *v);
/* Snapshots with one bit that is another. */
void victim_refuses_flips(struct victim *v);

/* Little-endian numbers. */
void blob_put(unsigned char *at, uint64_t value, uint32_t bytes);
uint64_t blob_get(const unsigned char *at);
/* All checksums again, of sections that lie inside. */
void blob_reseal(struct blob *b);

/* A number written over, with checksums that are right. */
struct forgery {
    size_t at;
    uint32_t bytes;
    uint64_t value;
    tq_status status;
    const char *word;
};
void victim_refuses_forgeries(struct victim *v, const struct forgery *list, size_t n);

#endif
