/* Memory that notices: guards around buffers, and blocks that end where memory ends. */
#ifndef TEST_COMMON_MEMORY_H
#define TEST_COMMON_MEMORY_H

#include <stddef.h>
#include <stdint.h>

/* calloc that ends the program when memory is out. */
void *must_alloc(size_t n, size_t size);

/* A buffer between two canaries, `offset` bytes behind an address aligned to 64. */
struct guarded {
    void *data;
    size_t bytes;
    unsigned char *block;
};
struct guarded guard_make(size_t bytes, size_t offset);
/* Fails the test when a canary is dead; frees the buffer. */
void guard_free(struct guarded *g);
/* Fills the buffer with a byte that is a NaN in every float format. */
void guard_fill(struct guarded *g);
#define GUARD_FILL 0xff
/* Fails when the buffer holds anything else than the fill of guard_make(). */
void guard_unwritten(const struct guarded *g);

/* A copy that ends right before a page which can't be touched: reading one byte past it
 * ends the program. Freed with fence_free(). */
struct fenced {
    void *data;
    void *map;
    size_t map_bytes;
};
struct fenced fence_copy(const void *from, size_t bytes);
void fence_free(struct fenced *f);

/* Address space without memory behind it until it is written. */
void *sparse_alloc(size_t bytes);
void sparse_free(void *ptr, size_t bytes);

#endif
