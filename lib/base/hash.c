#include "base/hash.h"

/* The header alone: nothing is linked. */
#define XXH_INLINE_ALL
#include <xxhash.h>

uint64_t tqi_hash64(const void *bytes, size_t n) {
    return XXH3_64bits(bytes, n);
}
