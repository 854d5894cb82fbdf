/* Stages of the AVX-VNNI level that differ from those of AVX2: rows lie in two planes of bytes. */
#ifndef TQI_KERNEL_AVXVNNI_H
#define TQI_KERNEL_AVXVNNI_H

#include "kernel/avx2/avx2.h"

tqi_prepare_fn tqk_prepare_avxvnni;

#endif
