/*
 * Stages of the i8mm level: NEON with the matrix multiplications of bytes (FEAT_I8MM). SMMLA takes
 * in 2 by 8 and 8 by 2 bytes, here both planes of a query row or of its weights and two columns of
 * decoded codes, twice what SDOT does. Everything else is that of NEON, and the bits are the same.
 */
#ifndef TQI_KERNEL_I8MM_H
#define TQI_KERNEL_I8MM_H

#include "kernel/neon/neon.h"

tqi_prepare_fn tqk_prepare_i8mm, tqk_prepare_int_i8mm;

#endif
