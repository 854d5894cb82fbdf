/* Stage score, integer formats, with VPDPWSSD. */
#include "kernel/avx2/avx2.h"

#define TQK_OF_LEVEL(name) tqk_##name##_avxvnni
#include "kernel/avx2/score_codes.h"
