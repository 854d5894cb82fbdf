#include "common/victim.h"

#include <stdlib.h>
#include <string.h>

#define XXH_INLINE_ALL
#include <xxhash.h>

void victim_open(struct victim *v, const tq_cache_config *c, uint32_t n,
                 void (*set)(struct rig *)) {
    struct rng rng = {3};
    memset(v, 0, sizeof *v);
    rig_open(&v->r, c);
    if (set)
        set(&v->r);
    v->seq = rig_seq(&v->r);
    v->n = n;
    for (uint32_t l = 0; l < c->n_layers; l++)
        rig_append_random(&v->r, v->seq, l, n, &rng);
    v->blob = blob_save(&v->r, v->seq);
    v->before = snapshot_take(&v->r, v->seq);
}

void victim_close(struct victim *v) {
    snapshot_check(&v->r, &v->before, "in the end");
    snapshot_free(&v->r, &v->before);
    blob_free(&v->blob);
    rig_close(&v->r);
}

int is_refusal(tq_status status) {
    return status == TQ_ERR_CORRUPT || status == TQ_ERR_VERSION || status == TQ_ERR_MISMATCH;
}

void victim_refuses(struct victim *v, const void *bytes, size_t size, const char *what, size_t at) {
    tq_seq out = 1;
    uint64_t blocks = v->r.heap.live_blocks, calls = v->r.heap.calls;
    tq_status load = tq_seq_load(v->r.cache, bytes, size, &out);
    tq_status append = tq_seq_load_append(v->r.cache, v->seq, bytes, size);
    CHECK(is_refusal(load) && append == load, "%s %zu: %s and %s", what, at, tq_status_name(load),
          tq_status_name(append));
    CHECK(out == 1 && rig_length(&v->r, v->seq, 0) == v->n && rig_stats(&v->r).n_seqs == 1,
          "%s %zu: the cache has changed", what, at);
    CHECK(v->r.heap.live_blocks == blocks && v->r.heap.calls == calls,
          "%s %zu: memory was asked for", what, at);
}

void victim_refuses_truncations(struct victim *v) {
    for (size_t n = 0; n < v->blob.size; n += FEWER) {
        struct fenced f = fence_copy(v->blob.bytes, n);
        victim_refuses(v, f.data, n, "cut off at", n);
        fence_free(&f);
    }
    unsigned char *longer = must_alloc(v->blob.size + 64, 1);
    memcpy(longer, v->blob.bytes, v->blob.size);
    victim_refuses(v, longer, v->blob.size + 1, "too long by", 1);
    victim_refuses(v, longer, v->blob.size + 64, "too long by", 64);
    free(longer);
}

void victim_refuses_flips(struct victim *v) {
    for (size_t bit = 0; bit < v->blob.size * 8; bit++) {
        v->blob.bytes[bit / 8] ^= (unsigned char)(1u << bit % 8);
        victim_refuses(v, v->blob.bytes, v->blob.size, "flipped bit", bit);
        v->blob.bytes[bit / 8] ^= (unsigned char)(1u << bit % 8);
    }
}

/* ---- forgery --------------------------------------------------------------------------- */

void blob_put(unsigned char *at, uint64_t value, uint32_t bytes) {
    for (uint32_t i = 0; i < bytes; i++)
        at[i] = (unsigned char)(value >> 8 * i);
}

uint64_t blob_get(const unsigned char *at) {
    uint64_t value;
    memcpy(&value, at, sizeof value);
    return value;
}

void blob_reseal(struct blob *b) {
    for (unsigned char *entry = b->bytes + 128; entry < b->bytes + 256; entry += 32) {
        uint64_t at = blob_get(entry + 8), n = blob_get(entry + 16);
        if (at && at <= b->size && n <= b->size - at)
            blob_put(entry + 24, XXH3_64bits(b->bytes + at, n), 8);
    }
    blob_put(b->bytes + 112, XXH3_64bits(b->bytes + 128, 128), 8);
    blob_put(b->bytes + 120, XXH3_64bits(b->bytes, 120), 8);
}

static void check_forgery(struct victim *v, const struct forgery *f) {
    struct blob forged = {must_alloc(v->blob.size, 1), v->blob.size};
    tq_seq out = 1;
    memcpy(forged.bytes, v->blob.bytes, forged.size);
    blob_put(forged.bytes + f->at, f->value, f->bytes);
    blob_reseal(&forged);
    FAILS(tq_seq_load(v->r.cache, forged.bytes, forged.size, &out), f->status, f->word);
    victim_refuses(v, forged.bytes, forged.size, "forged at", f->at);
    blob_free(&forged);
}

void victim_refuses_forgeries(struct victim *v, const struct forgery *list, size_t n) {
    for (size_t i = 0; i < n; i++)
        check_forgery(v, &list[i]);
}
