/* Stage accumulate. */
#include "kernel/neon/accumulate_int.h"
