/* The checksum of snapshots: XXH3, 64 bits, seed 0. */
#ifndef TQI_BASE_HASH_H
#define TQI_BASE_HASH_H

#include <stddef.h>
#include <stdint.h>

uint64_t tqi_hash64(const void *bytes, size_t n);

#endif
