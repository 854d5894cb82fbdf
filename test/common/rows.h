/* Rows of numbers: made at random, converted between types, attended to. */
#ifndef TEST_COMMON_ROWS_H
#define TEST_COMMON_ROWS_H

#include "common/attention.h"
#include "common/memory.h"
#include "common/numbers.h"
#include "common/random.h"

#endif
