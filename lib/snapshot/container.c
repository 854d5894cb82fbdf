#include "snapshot/container.h"

#include <string.h>

#include "base/checked.h"
#include "base/hash.h"

/* The first byte is no text, and line ends that a transfer would change follow, so that damage of
 * the usual kinds shows at once. */
static const uint8_t magic[8] = {0x89, 'T', 'Q', 'S', '\r', '\n', 0x1a, '\n'};

/* Offsets in the header. */
enum {
    AT_VERSION = 8,
    AT_FORMAT_VERSION = 12,
    AT_TOTAL = 16,
    AT_N_SECTIONS = 24,
    AT_FLAGS = 28,
    AT_N_LAYERS = 32,
    AT_N_KV_HEADS = 36,
    AT_HEAD_DIM = 40,
    AT_V_HEAD_DIM = 44,
    AT_PAGE_TOKENS = 48,
    AT_VARIANT = 52,
    AT_SEED = 56,
    AT_N_TOKENS = 64,
    AT_FIRST_TOKEN = 72,
    AT_SINK_TOKENS = 80,
    AT_RECENT_TOKENS = 84,
    AT_RESERVED = 88,
    AT_TABLE_HASH = 112,
    AT_HEADER_HASH = 120
};

/* Room for an entry of every kind, whether it is there or not. */
static const size_t table_end = TQI_CONTAINER_HEADER + TQI_SECTION_ROWS * TQI_CONTAINER_ENTRY;
_Static_assert(TQI_SECTION_ROWS *TQI_CONTAINER_ENTRY % TQI_CONTAINER_ALIGN == 0,
               "sections begin at multiples of the alignment");

static const char *const names[TQI_SECTION_LIMIT] = {"", "formats", "constants", "pages", "rows"};

/* ---- numbers ----------------------------------------------------------------------------- */

uint32_t tqi_get_le32(const uint8_t *at) {
    return at[0] | (uint32_t)at[1] << 8 | (uint32_t)at[2] << 16 | (uint32_t)at[3] << 24;
}

uint64_t tqi_get_le64(const uint8_t *at) {
    return tqi_get_le32(at) | (uint64_t)tqi_get_le32(at + 4) << 32;
}

void tqi_put_le32(uint8_t *at, uint32_t value) {
    for (int i = 0; i < 4; i++)
        at[i] = (uint8_t)(value >> 8 * i);
}

void tqi_put_le64(uint8_t *at, uint64_t value) {
    tqi_put_le32(at, (uint32_t)value);
    tqi_put_le32(at + 4, (uint32_t)(value >> 32));
}

/* ---- writing ----------------------------------------------------------------------------- */

static tq_status too_large(void) {
    return tqi_fail(TQ_ERR_OUT_OF_MEMORY, "out of memory: the snapshot's size overflows");
}

tq_status tqi_container_place(struct tqi_container *c) {
    size_t at = table_end;
    for (uint32_t kind = 1; kind <= tqi_sections_of(&c->header); kind++) {
        struct tqi_section *s = &c->sections[kind];
        if (s->bytes > SIZE_MAX - TQI_CONTAINER_ALIGN)
            return too_large();
        s->bytes = tqi_align_up((size_t)s->bytes, TQI_CONTAINER_ALIGN);
        s->offset = at;
        if (!tqi_add_size(at, (size_t)s->bytes, &at))
            return too_large();
    }
    c->header.total = at;
    return TQ_OK;
}

static void put_header(const struct tqi_snapshot_header *h, uint8_t *buf) {
    memset(buf, 0, TQI_CONTAINER_HEADER);
    memcpy(buf, magic, sizeof magic);
    tqi_put_le32(buf + AT_VERSION, TQI_CONTAINER_VERSION);
    tqi_put_le32(buf + AT_FORMAT_VERSION, h->format_version);
    tqi_put_le64(buf + AT_TOTAL, h->total);
    tqi_put_le32(buf + AT_N_SECTIONS, tqi_sections_of(h));
    tqi_put_le32(buf + AT_N_LAYERS, h->n_layers);
    tqi_put_le32(buf + AT_N_KV_HEADS, h->n_kv_heads);
    tqi_put_le32(buf + AT_HEAD_DIM, h->head_dim);
    tqi_put_le32(buf + AT_V_HEAD_DIM, h->v_head_dim);
    tqi_put_le32(buf + AT_PAGE_TOKENS, h->page_tokens);
    tqi_put_le32(buf + AT_VARIANT, h->variant);
    tqi_put_le64(buf + AT_SEED, h->seed);
    tqi_put_le64(buf + AT_N_TOKENS, h->n_tokens);
    tqi_put_le64(buf + AT_FIRST_TOKEN, h->first_token);
    tqi_put_le32(buf + AT_SINK_TOKENS, h->sink_tokens);
    tqi_put_le32(buf + AT_RECENT_TOKENS, h->recent_tokens);
}

void tqi_container_seal(struct tqi_container *c, uint8_t *buf) {
    uint8_t *entry = buf + TQI_CONTAINER_HEADER;
    memset(entry, 0, table_end - TQI_CONTAINER_HEADER);
    for (uint32_t kind = 1; kind <= tqi_sections_of(&c->header);
         kind++, entry += TQI_CONTAINER_ENTRY) {
        struct tqi_section *s = &c->sections[kind];
        s->hash = tqi_hash64(buf + s->offset, (size_t)s->bytes);
        tqi_put_le32(entry, kind);
        tqi_put_le64(entry + 8, s->offset);
        tqi_put_le64(entry + 16, s->bytes);
        tqi_put_le64(entry + 24, s->hash);
    }
    put_header(&c->header, buf);
    tqi_put_le64(buf + AT_TABLE_HASH,
                 tqi_hash64(buf + TQI_CONTAINER_HEADER, table_end - TQI_CONTAINER_HEADER));
    tqi_put_le64(buf + AT_HEADER_HASH, tqi_hash64(buf, AT_HEADER_HASH));
    c->bytes = buf;
}

/* ---- reading ----------------------------------------------------------------------------- */

#define CORRUPT(condition, ...)                           \
    do {                                                  \
        if (!(condition))                                 \
            return tqi_fail(TQ_ERR_CORRUPT, __VA_ARGS__); \
    } while (0)

/* What a newer library may have put there. */
#define KNOWN(condition, ...)                             \
    do {                                                  \
        if (!(condition))                                 \
            return tqi_fail(TQ_ERR_VERSION, __VA_ARGS__); \
    } while (0)

static tq_status check_header(const uint8_t *buf) {
    uint32_t version = tqi_get_le32(buf + AT_VERSION);
    CORRUPT(memcmp(buf, magic, sizeof magic) == 0, "snapshot: it begins with other bytes");
    KNOWN(version == TQI_CONTAINER_VERSION, "snapshot: version %u, this library knows %d", version,
          TQI_CONTAINER_VERSION);
    CORRUPT(tqi_hash64(buf, AT_HEADER_HASH) == tqi_get_le64(buf + AT_HEADER_HASH),
            "snapshot: the checksum of the header is wrong");
    KNOWN(tqi_get_le32(buf + AT_FLAGS) == 0, "snapshot: flags 0x%x are unknown",
          tqi_get_le32(buf + AT_FLAGS));
    for (int i = AT_RESERVED; i < AT_TABLE_HASH; i++)
        KNOWN(buf[i] == 0, "snapshot: byte %d of the header is set", i);
    return TQ_OK;
}

tq_status tqi_container_header(const uint8_t *buf, size_t size, struct tqi_snapshot_header *out) {
    CORRUPT(size >= TQI_CONTAINER_HEADER, "snapshot: %zu bytes, the header alone has %d", size,
            TQI_CONTAINER_HEADER);
    TQI_TRY(check_header(buf));
    out->format_version = tqi_get_le32(buf + AT_FORMAT_VERSION);
    out->total = tqi_get_le64(buf + AT_TOTAL);
    out->n_layers = tqi_get_le32(buf + AT_N_LAYERS);
    out->n_kv_heads = tqi_get_le32(buf + AT_N_KV_HEADS);
    out->head_dim = tqi_get_le32(buf + AT_HEAD_DIM);
    out->v_head_dim = tqi_get_le32(buf + AT_V_HEAD_DIM);
    out->page_tokens = tqi_get_le32(buf + AT_PAGE_TOKENS);
    out->variant = tqi_get_le32(buf + AT_VARIANT);
    out->seed = tqi_get_le64(buf + AT_SEED);
    out->n_tokens = tqi_get_le64(buf + AT_N_TOKENS);
    out->first_token = tqi_get_le64(buf + AT_FIRST_TOKEN);
    out->sink_tokens = tqi_get_le32(buf + AT_SINK_TOKENS);
    out->recent_tokens = tqi_get_le32(buf + AT_RECENT_TOKENS);
    KNOWN(tqi_get_le32(buf + AT_N_SECTIONS) == tqi_sections_of(out),
          "snapshot: %u sections, this library knows %u", tqi_get_le32(buf + AT_N_SECTIONS),
          tqi_sections_of(out));
    return TQ_OK;
}

/* One entry: sections follow each other without a gap. */
static tq_status read_entry(struct tqi_container *c, uint32_t kind, size_t *at, size_t size) {
    const uint8_t *entry = c->bytes + TQI_CONTAINER_HEADER + (kind - 1) * TQI_CONTAINER_ENTRY;
    struct tqi_section *s = &c->sections[kind];
    s->offset = tqi_get_le64(entry + 8);
    s->bytes = tqi_get_le64(entry + 16);
    s->hash = tqi_get_le64(entry + 24);
    KNOWN(tqi_get_le32(entry) == kind, "snapshot: section %u is of kind %u", kind,
          tqi_get_le32(entry));
    KNOWN(tqi_get_le32(entry + 4) == 0, "snapshot: section %u has flags 0x%x", kind,
          tqi_get_le32(entry + 4));
    CORRUPT(s->offset == *at && s->bytes <= size - *at && s->bytes % TQI_CONTAINER_ALIGN == 0,
            "snapshot: section %u has %llu bytes at %llu of %zu", kind,
            (unsigned long long)s->bytes, (unsigned long long)s->offset, size);
    *at += (size_t)s->bytes;
    return TQ_OK;
}

tq_status tqi_container_open(const uint8_t *buf, size_t size, struct tqi_container *out) {
    struct tqi_container c = {.bytes = buf};
    size_t at = table_end;
    TQI_TRY(tqi_container_header(buf, size, &c.header));
    CORRUPT(c.header.total == size && size >= table_end,
            "snapshot: %zu bytes given, the header speaks of %llu", size,
            (unsigned long long)c.header.total);
    CORRUPT(tqi_hash64(buf + TQI_CONTAINER_HEADER, table_end - TQI_CONTAINER_HEADER) ==
                tqi_get_le64(buf + AT_TABLE_HASH),
            "snapshot: the checksum of the section table is wrong");
    uint32_t last = tqi_sections_of(&c.header);
    for (uint32_t kind = 1; kind <= last; kind++)
        TQI_TRY(read_entry(&c, kind, &at, size));
    CORRUPT(at == size, "snapshot: %zu bytes behind the last section", size - at);
    for (size_t i = TQI_CONTAINER_HEADER + last * TQI_CONTAINER_ENTRY; i < table_end; i++)
        KNOWN(buf[i] == 0, "snapshot: byte %zu of the section table is set", i);
    *out = c;
    return TQ_OK;
}

tq_status tqi_container_check(const struct tqi_container *c, enum tqi_section_kind kind) {
    const struct tqi_section *s = &c->sections[kind];
    CORRUPT(tqi_hash64(c->bytes + s->offset, (size_t)s->bytes) == s->hash,
            "snapshot: the checksum of the %s is wrong", names[kind]);
    return TQ_OK;
}

tq_status tqi_container_check_zeros(const struct tqi_container *c, enum tqi_section_kind kind,
                                    uint64_t from, uint64_t to) {
    for (uint64_t i = from; i < to; i++)
        CORRUPT(c->bytes[c->sections[kind].offset + i] == 0,
                "snapshot: byte %llu of the %s is no zero", (unsigned long long)i, names[kind]);
    return TQ_OK;
}

tq_status tqi_container_check_end(const struct tqi_container *c, enum tqi_section_kind kind,
                                  uint64_t used) {
    const struct tqi_section *s = &c->sections[kind];
    CORRUPT(used <= s->bytes && s->bytes - used < TQI_CONTAINER_ALIGN,
            "snapshot: the %s have %llu bytes, %llu are needed", names[kind],
            (unsigned long long)s->bytes, (unsigned long long)used);
    return tqi_container_check_zeros(c, kind, used, s->bytes);
}
