#include "common/blob.h"

#include <stdlib.h>
#include <string.h>

struct blob blob_save_range(const struct rig *r, tq_seq seq, uint64_t first, uint64_t n) {
    struct blob b = {0};
    size_t written = 0;
    OK(tq_seq_save_range(r->cache, seq, first, n, NULL, 0, &b.size));
    struct guarded g = guard_make(b.size, 1); /* at an odd address, between canaries */
    OK(tq_seq_save_range(r->cache, seq, first, n, g.data, b.size, &written));
    CHECK(written == b.size, "%zu bytes announced, %zu written", b.size, written);
    b.bytes = must_alloc(b.size, 1);
    memcpy(b.bytes, g.data, b.size);
    guard_free(&g);
    return b;
}

struct blob blob_save(const struct rig *r, tq_seq seq) {
    struct blob b = blob_save_range(r, seq, 0, UINT64_MAX);
    size_t size = 0, written = 0;
    unsigned char *again = must_alloc(b.size, 1);
    OK(tq_seq_blob_size(r->cache, seq, &size));
    OK(tq_seq_save(r->cache, seq, again, b.size, &written));
    CHECK(size == b.size && written == b.size && memcmp(again, b.bytes, size) == 0,
          "two ways to save, two snapshots");
    free(again);
    return b;
}

void blob_free(struct blob *b) {
    free(b->bytes);
    b->bytes = NULL;
}

tq_seq blob_load(struct rig *r, const struct blob *b) {
    tq_seq seq = 0;
    struct fenced f = fence_copy(b->bytes, b->size);
    OK(tq_seq_load(r->cache, f.data, b->size, &seq));
    fence_free(&f);
    return seq;
}

void blob_check_same(const struct blob *a, const struct blob *b, const char *what) {
    CHECK(a->size == b->size, "%s: %zu bytes or %zu", what, a->size, b->size);
    for (size_t i = 0; i < a->size; i++)
        CHECK(a->bytes[i] == b->bytes[i], "%s: byte %zu differs", what, i);
}

tq_status blob_reload(struct rig *r, tq_seq from, uint64_t first, uint64_t n, tq_seq *out) {
    struct blob b = blob_save_range(r, from, first, n);
    tq_status status = tq_seq_load(r->cache, b.bytes, b.size, out);
    blob_free(&b);
    return status;
}

tq_status blob_copy_by(struct rig *r, tq_seq from, uint64_t first, uint64_t n, struct rig *other,
                       tq_seq *out) {
    tq_seq there = 0;
    OK(tq_seq_copy(other->cache, r->cache, from, first, n, &there));
    tq_status status = tq_seq_copy(r->cache, other->cache, there, 0, UINT64_MAX, out);
    OK(tq_seq_destroy(other->cache, there));
    return status;
}

void blob_open(struct rig *r, const struct blob *b, tq_layer_formats *formats) {
    tq_blob_info info = {.struct_size = sizeof info};
    OK(tq_blob_inspect(b->bytes, 128, &info));
    assert_int_equal(info.n_bytes, b->size);
    OK(tq_blob_formats(b->bytes, b->size, info.n_layers, formats));
    tq_cache_config c = {.struct_size = sizeof c,
                         .n_layers = info.n_layers,
                         .n_kv_heads = info.n_kv_heads,
                         .n_q_heads = info.n_kv_heads * 2,
                         .head_dim = info.head_dim,
                         .v_head_dim = info.v_head_dim,
                         .variant = info.variant,
                         .page_tokens = info.page_tokens,
                         .seed = info.seed,
                         .sink_tokens = info.sink_tokens,
                         .recent_tokens = info.recent_tokens,
                         .layer_formats = info.variant ? NULL : formats};
    rig_open(r, &c);
    OK(tq_cache_set_constants(r->cache, b->bytes, b->size));
}
