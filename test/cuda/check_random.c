/* The random signs of the rotation and of the sketch's projection, drawn on the GPU by cuRAND:
 * the bits that the library draws on the host, so that an engine can make them where it needs
 * them. */
#include "base/rng.h"
#include "gpu.h"
#include "random_words.h"

enum { WORDS = 1024 };

static uint64_t wide(void) {
    return (uint64_t)gpu_random() << 32 | gpu_random();
}

static void compare(uint64_t seed, uint64_t stream, uint64_t first, int in_turn) {
    static uint32_t host[WORDS];
    uint32_t *device = gpu_buffer(sizeof host), n = 0;
    GPU_CUDA((in_turn ? random_words_in_turn : random_words)(seed, stream, first, WORDS, device));
    gpu_download(host, device, sizeof host);
    gpu_release(device);
    for (uint32_t i = 0; i < WORDS; i++)
        n += host[i] != tqi_philox(seed, stream, first + i);
    gpu_expect(n == 0, "seed %llx stream %llx: %u of %d words from %llu on differ",
               (unsigned long long)seed, (unsigned long long)stream, n, WORDS,
               (unsigned long long)first);
}

void check_random(void) {
    static const uint64_t seeds[] = {0, 1, 42, UINT32_MAX, 1ull << 32, UINT64_MAX};
    for (size_t i = 0; i < sizeof seeds / sizeof *seeds; i++)
        for (uint64_t stream = 0; stream < 3; stream++)
            compare(seeds[i], stream, 0, stream == 0);
    for (int i = 0; i < 50; i++) /* counters carry from word to word; any start in a block */
        compare(wide(), wide(), wide() >> gpu_random() % 60, i % 5 == 0);
}
