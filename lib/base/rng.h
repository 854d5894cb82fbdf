/* Random bits of the rotation: Philox4x32-10 (Salmon et al., SC 2011), a counter
 * based generator that gives the same bits on every CPU and GPU. */
#ifndef TQI_BASE_RNG_H
#define TQI_BASE_RNG_H

#include <stdint.h>

/* Output n of stream `subsequence`: word n % 4 of the block with counter
 * {n/4 low, n/4 high, subsequence low, high} and key {seed low, high}. */
uint32_t tqi_philox(uint64_t seed, uint64_t subsequence, uint64_t n);

#endif
