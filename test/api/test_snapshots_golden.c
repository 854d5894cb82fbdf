/* Snapshots that were written once load for ever, and are written the same way again.
 *
 *     test_snapshots_golden           compares with test/golden/snapshots, run from the root
 *     test_snapshots_golden --write   writes the files again: a change of the byte format
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "common/blob.h"
#include "common/cache.h"

enum { DIM = 32, PAGE = 16, TOKENS = 19, FIRST = 2, SAVED = 17, MOST_BYTES = 1 << 16 };

/* Rows without libm: eighths between -64 and 64, one loud dim. */
static float number(struct rng *rng, uint32_t i) {
    int value = (int)rng_below(rng, 1025) - 512;
    return (float)(i % DIM == 5 ? 6 * value : value) / 8;
}

static float *rows(struct rng *rng, size_t n) {
    float *out = must_alloc(n, sizeof *out);
    for (size_t i = 0; i < n; i++)
        out[i] = number(rng, (uint32_t)i);
    return out;
}

static const tq_layer_formats mixed[3] = {{TQ_FORMAT_FP8, TQ_FORMAT_LM4},
                                          {TQ_FORMAT_POLAR_QJL, TQ_FORMAT_INT8},
                                          {TQ_FORMAT_LM2, TQ_FORMAT_F16}};

/* The variants, then three layers of other pairs with means and scales, then these with sinks and
 * a window in 16 bits. */
static uint32_t n_kinds(void) {
    return tq_variant_count() + 2;
}

static const char *open_kind(struct rig *r, uint32_t kind) {
    int plain = kind<tq_variant_count(), kept = kind> tq_variant_count();
    tq_cache_config c = plain_config(plain ? variant_at(kind).id : 0, DIM, 1, 1);
    c.page_tokens = PAGE;
    c.seed = 20261129;
    if (!plain) {
        c.n_layers = COUNT(mixed);
        c.n_kv_heads = 2;
        c.n_q_heads = 2;
        c.layer_formats = mixed;
    }
    if (kept) {
        c.sink_tokens = 16;
        c.recent_tokens = 2;
    }
    rig_open(r, &c);
    return plain ? variant_at(kind).name : kept ? "kept" : "mixed";
}

static void set_constants(struct rig *r) {
    struct rng rng = {7};
    static const float scales[2] = {0.5f, 1.25f};
    float *mean = rows(&rng, 2 * DIM);
    if (r->c.n_layers > 1) {
        OK(tq_cache_set_means(r->cache, 0, mean, NULL));
        OK(tq_cache_set_means(r->cache, 2, mean, mean));
        OK(tq_cache_set_fp8_scales(r->cache, 0, scales, NULL));
    }
    free(mean);
}

static tq_seq fill(struct rig *r) {
    tq_seq seq = rig_seq(r);
    for (uint32_t l = 0; l < r->c.n_layers; l++) {
        struct rng rng = {100 + l};
        float *k = rows(&rng, TOKENS * rig_k_row(r)), *v = rows(&rng, TOKENS * rig_v_row(r));
        rig_append(r, seq, l, TOKENS, k, v);
        free(k);
        free(v);
    }
    return seq;
}

static void path_of(const char *name, char *path, size_t size) {
    (void)snprintf(path, size, "test/golden/snapshots/%s.tqs", name);
}

static struct blob read_golden(const char *name) {
    char path[128];
    struct blob b = {must_alloc(MOST_BYTES, 1), 0};
    path_of(name, path, sizeof path);
    FILE *file = fopen(path, "rb");
    CHECK(file != NULL, "%s can't be opened", path);
    if (file) {
        b.size = fread(b.bytes, 1, MOST_BYTES, file);
        (void)fclose(file);
    }
    return b;
}

static void test_written_as_ever(void **state) {
    (void)state;
    for (uint32_t kind = 0; kind < n_kinds(); kind++) {
        struct rig r = {0};
        const char *name = open_kind(&r, kind);
        set_constants(&r);
        struct blob now = blob_save_range(&r, fill(&r), FIRST, SAVED), then = read_golden(name);
        blob_check_same(&now, &then, name);
        blob_free(&now);
        blob_free(&then);
        rig_close(&r);
    }
}

/* From the file alone: what is loaded decodes and answers as what was appended. */
static void test_loads_for_ever(void **state) {
    (void)state;
    for (uint32_t kind = 0; kind < n_kinds(); kind++) {
        struct rig r = {0};
        struct rng rng = {kind};
        const char *name = open_kind(&r, kind);
        struct blob b = read_golden(name);
        tq_seq out = 0, twin = 0;
        OK(tq_cache_set_constants(r.cache, b.bytes, b.size));
        tq_seq loaded = blob_load(&r, &b), fresh = fill(&r);
        OK(tq_seq_copy(r.cache, r.cache, fresh, FIRST, SAVED, &twin));
        for (uint32_t l = 0; l < r.c.n_layers; l++) {
            struct asked a = ask_make(&r, 2, TQ_ATTEND_CAUSAL, &rng);
            ask(&r, loaded, l, &a);
            check_answer(&r, twin, l, &a, name);
            check_same_pages(&r, loaded, &r, twin, l, SAVED, name);
            ask_free(&a);
        }
        b.bytes[b.size / 2] ^= 1;
        FAILS(tq_seq_load(r.cache, b.bytes, b.size, &out), TQ_ERR_CORRUPT, "checksum");
        blob_free(&b);
        rig_close(&r);
    }
}

static int write_all(void) {
    for (uint32_t kind = 0; kind < n_kinds(); kind++) {
        struct rig r = {0};
        char path[128];
        path_of(open_kind(&r, kind), path, sizeof path);
        set_constants(&r);
        struct blob b = blob_save_range(&r, fill(&r), FIRST, SAVED);
        FILE *file = fopen(path, "wb");
        if (!file || fwrite(b.bytes, 1, b.size, file) != b.size || fclose(file)) {
            perror(path);
            return 1;
        }
        blob_free(&b);
        rig_close(&r);
    }
    return 0;
}

int main(int argc, char **argv) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_written_as_ever),
        cmocka_unit_test(test_loads_for_ever),
    };
    if (argc == 2 && strcmp(argv[1], "--write") == 0)
        return write_all();
    return cmocka_run_group_tests(tests, NULL, NULL);
}
