/* A build without other libraries. */
#include "../cpu/bench.h"

const char *peer_version(void) {
    return NULL;
}

void bench_peer(const struct selection *selection, const struct shape *shape) {
    (void)selection;
    (void)shape;
}
