/* Snapshots from anywhere: bytes of the input, or a snapshot of the cache with some bytes changed,
 * with checksums as they are or made right again, so that what is behind them is reached. A
 * snapshot is refused and nothing has changed, or it loads and its sequence works. */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#define XXH_INLINE_ALL
#include <xxhash.h>

#include "fuzz/fuzz.h"
#include "tq/snapshot.h"

const char fuzz_name[] = "snapshot";

enum { HEAP_LIMIT = 1 << 24, DIM = 32, PAGE = 16, TOKENS = 3, MOST_EDITS = 8, TABLE = 128 };

struct run {
    struct input in;
    struct fuzz_heap heap;
    tq_cache *cache;
    tq_seq seq;
};

struct blob {
    uint8_t *bytes;
    size_t size;
};

/* ---- bytes ----------------------------------------------------------------------------- */

static uint64_t get64(const uint8_t *at) {
    uint64_t value = 0;
    for (int i = 8; i-- > 0;)
        value = value << 8 | at[i];
    return value;
}

static void put64(uint8_t *at, uint64_t value) {
    for (int i = 0; i < 8; i++)
        at[i] = (uint8_t)(value >> 8 * i);
}

/* Makes all checksums right, as far as the parts lie inside. */
static void reseal(struct blob *b) {
    if (b->size < 256)
        return;
    for (uint8_t *entry = b->bytes + TABLE; entry < b->bytes + 256; entry += 32) {
        uint64_t at = get64(entry + 8), n = get64(entry + 16);
        if (at && at <= b->size && n <= b->size - at)
            put64(entry + 24, XXH3_64bits(b->bytes + at, n));
    }
    put64(b->bytes + 112, XXH3_64bits(b->bytes + TABLE, 256 - TABLE));
    put64(b->bytes + 120, XXH3_64bits(b->bytes, 120));
}

static struct blob save(const struct run *r, tq_seq seq) {
    struct blob b = {NULL, 0};
    size_t written = 0;
    MUST(tq_seq_blob_size(r->cache, seq, &b.size) == TQ_OK);
    b.bytes = fuzz_alloc(b.size);
    MUST(tq_seq_save(r->cache, seq, b.bytes, b.size, &written) == TQ_OK && written == b.size);
    return b;
}

/* The rest of the input, or a snapshot with some numbers written over and a new end. */
static struct blob make_blob(struct run *r, uint8_t how) {
    struct blob b = {NULL, input_left(&r->in)};
    if (how & 2) {
        b.bytes = fuzz_alloc(b.size);
        memcpy(b.bytes, r->in.at, b.size);
        r->in.at = r->in.end;
    } else {
        b = save(r, r->seq);
        for (int i = 0; i < MOST_EDITS && input_left(&r->in); i++) {
            size_t at = take16(&r->in) % b.size, n = 1 + take8(&r->in) % 8u;
            for (size_t j = 0; j < n && at + j < b.size; j++)
                b.bytes[at + j] = take8(&r->in);
        }
        b.size -= how & 4 ? take16(&r->in) % b.size : 0;
    }
    if (how & 1)
        reseal(&b);
    return b;
}

/* A copy that ends where the snapshot does. */
static struct blob exact(const struct blob *b) {
    struct blob copy = {fuzz_alloc(b->size), b->size};
    memcpy(copy.bytes, b->bytes, b->size);
    return copy;
}

/* ---- what a loaded sequence does ------------------------------------------------------- */

static void use(struct run *r, tq_seq seq) {
    float row[DIM] = {1, -2, 3}, out[DIM], k[DIM], v[DIM];
    uint64_t length = 0;
    tq_rows_in in = {.data = row};
    tq_rows_out o = {.data = out}, k_rows = {.data = k}, v_rows = {.data = v};
    MUST(tq_seq_length(r->cache, seq, 0, &length) == TQ_OK);
    MUST(tq_append(r->cache, seq, 0, 1, &in, &in, NULL) == TQ_OK);
    MUST(tq_attend(r->cache, seq, 0, 1, NULL, &in, &o, NULL, NULL) == TQ_OK);
    MUST(tq_read_rows(r->cache, seq, 0, length, 1, &k_rows, &v_rows) == TQ_OK);
    for (int i = 0; i < DIM; i++)
        MUST(isfinite(k[i]) && isfinite(v[i]));
    MUST(tq_seq_truncate(r->cache, seq, length) == TQ_OK);
}

/* What is saved again is canonical: it stays the same from then on. */
static void check_saves(struct run *r, tq_seq seq) {
    struct blob first = save(r, seq);
    tq_seq again = 0;
    MUST(tq_seq_load(r->cache, first.bytes, first.size, &again) == TQ_OK);
    struct blob second = save(r, again);
    MUST(first.size == second.size && memcmp(first.bytes, second.bytes, first.size) == 0);
    MUST(tq_seq_destroy(r->cache, again) == TQ_OK);
    free(first.bytes);
    free(second.bytes);
}

static void check_inspect(const struct blob *b, int loads) {
    tq_blob_info info = {.struct_size = sizeof info};
    tq_layer_formats pair;
    tq_status status = tq_blob_inspect(b->bytes, b->size, &info);
    MUST(status == TQ_OK || !loads);
    MUST(!loads || (info.n_bytes == b->size && info.head_dim == DIM && info.page_tokens == PAGE));
    status = tq_blob_formats(b->bytes, b->size, 1, &pair);
    MUST(status == TQ_OK || !loads);
}

static int refusal(tq_status status) {
    return status == TQ_ERR_CORRUPT || status == TQ_ERR_VERSION || status == TQ_ERR_MISMATCH;
}

static void try_blob(struct run *r, const struct blob *b) {
    struct blob before = save(r, r->seq);
    size_t live = r->heap.live;
    tq_seq loaded = 0;
    tq_status status = tq_seq_load(r->cache, b->bytes, b->size, &loaded);
    check_inspect(b, status == TQ_OK);
    if (status == TQ_OK) {
        use(r, loaded);
        check_saves(r, loaded);
        MUST(tq_seq_load_append(r->cache, loaded, b->bytes, b->size) == TQ_OK);
        use(r, loaded);
        MUST(tq_seq_destroy(r->cache, loaded) == TQ_OK);
    } else {
        MUST(refusal(status) || status == TQ_ERR_OUT_OF_MEMORY);
        MUST(*tq_last_error() && loaded == 0 && r->heap.live == live);
        MUST(tq_seq_load_append(r->cache, r->seq, b->bytes, b->size) != TQ_OK);
    }
    struct blob after = save(r, r->seq);
    MUST(before.size == after.size && memcmp(before.bytes, after.bytes, before.size) == 0);
    free(before.bytes);
    free(after.bytes);
}

/* Constants go into an empty cache; any finite ones will do. */
static void try_constants(struct run *r, const struct blob *b) {
    MUST(tq_cache_reset(r->cache) == TQ_OK);
    tq_status status = tq_cache_set_constants(r->cache, b->bytes, b->size);
    MUST(status == TQ_OK || refusal(status) || status == TQ_ERR_INVALID_ARGUMENT ||
         status == TQ_ERR_OUT_OF_MEMORY);
}

static void open_cache(struct run *r, tq_context *ctx, uint8_t how) {
    tq_variant_info info = {.struct_size = sizeof info};
    float mean[DIM], rows[TOKENS * DIM];
    tq_rows_in in = {.data = rows};
    MUST(tq_variant_get(take_below(&r->in, tq_variant_count()), &info) == TQ_OK);
    tq_cache_config c = {.struct_size = sizeof c,
                         .n_layers = 1,
                         .n_kv_heads = 1,
                         .head_dim = DIM,
                         .variant = info.id,
                         .page_tokens = PAGE,
                         .sink_tokens = how & 64 ? 16 : 0,
                         .recent_tokens = how & 128 ? TOKENS - 1 : 0};
    for (int i = 0; i < TOKENS * DIM; i++)
        rows[i] = (float)(i * 37 % 101 - 50) / 16;
    for (int i = 0; i < DIM; i++)
        mean[i] = (float)(i % 5);
    MUST(tq_cache_create(ctx, &c, &r->cache) == TQ_OK);
    if (how & 8)
        MUST(tq_cache_set_means(r->cache, 0, mean, NULL) == TQ_OK);
    MUST(tq_seq_create(r->cache, &r->seq) == TQ_OK);
    MUST(tq_append(r->cache, r->seq, 0, TOKENS, &in, &in, NULL) == TQ_OK);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    struct run r = {.in = input_of(data, size), .heap = {.limit = HEAP_LIMIT}};
    uint8_t how = take8(&r.in);
    tq_context *ctx = fuzz_context(&r.heap, NULL, fuzz_features_disabled(how >> 4 & 3));
    size_t context_bytes = r.heap.live;
    open_cache(&r, ctx, how);
    struct blob made = make_blob(&r, how), b = exact(&made);
    try_blob(&r, &b);
    try_constants(&r, &b);
    free(made.bytes);
    free(b.bytes);
    tq_cache_destroy(r.cache);
    MUST(r.heap.live == context_bytes);
    tq_context_destroy(ctx);
    MUST(r.heap.live == 0 && r.heap.blocks == 0);
    return 0;
}
