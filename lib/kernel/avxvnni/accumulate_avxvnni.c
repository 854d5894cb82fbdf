/* Stage accumulate, integer formats, with VPDPBUSD. */
#include "kernel/avxvnni/avxvnni.h"

#define TQK_OF_LEVEL(name) tqk_##name##_avxvnni
#include "kernel/avx2/accumulate_codes.h"
