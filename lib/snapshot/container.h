/*
 * The container of snapshots: a header, a table of sections, sections; each part with a checksum,
 * so that no byte can change unnoticed. It knows no cache and allocates nothing; docs/FORMAT.md
 * specifies it.
 */
#ifndef TQI_SNAPSHOT_CONTAINER_H
#define TQI_SNAPSHOT_CONTAINER_H

#include <stddef.h>

#include "base/status.h"

enum {
    TQI_CONTAINER_VERSION = 1,
    TQI_CONTAINER_HEADER = 128, /* bytes */
    TQI_CONTAINER_ENTRY = 32,   /* bytes of an entry of the table */
    TQI_CONTAINER_ALIGN = 64    /* sections start at and are multiples of this */
};

/* Kinds of sections, in the order in which they stand. The first three are always there, the
 * last one where the header says that tokens are kept in 16 bits. */
enum tqi_section_kind {
    TQI_SECTION_FORMATS = 1,   /* K and V format of every layer */
    TQI_SECTION_CONSTANTS = 2, /* means and fp8 scales of every layer */
    TQI_SECTION_PAGES = 3,     /* pages [layer][page][kv head] */
    TQI_SECTION_ROWS = 4,      /* rows in 16 bits of every layer */
    TQI_SECTION_LIMIT = 5
};

struct tqi_snapshot_header {
    uint64_t total; /* bytes of the whole */
    uint32_t format_version;
    uint32_t n_layers, n_kv_heads, head_dim, v_head_dim, page_tokens;
    tq_variant variant; /* of all layers, or 0 */
    uint64_t seed;
    uint64_t n_tokens, first_token;
    uint32_t sink_tokens, recent_tokens; /* of the cache that was saved */
};

/* Number of sections. */
static inline uint32_t tqi_sections_of(const struct tqi_snapshot_header *h) {
    return h->sink_tokens || h->recent_tokens ? TQI_SECTION_ROWS : TQI_SECTION_PAGES;
}

struct tqi_section {
    uint64_t offset, bytes;
    uint64_t hash;
};

struct tqi_container {
    struct tqi_snapshot_header header;
    const uint8_t *bytes;
    struct tqi_section sections[TQI_SECTION_LIMIT]; /* by kind; 0 and missing ones are zero */
};

/* Little-endian numbers at any address. */
uint32_t tqi_get_le32(const uint8_t *at);
uint64_t tqi_get_le64(const uint8_t *at);
void tqi_put_le32(uint8_t *at, uint32_t value);
void tqi_put_le64(uint8_t *at, uint64_t value);

/* ---- writing ------------------------------------------------------------------------- */

/* Places sections whose bytes are set, rounds them up and sets header.total; the rest of the
 * header says how many they are. Fails when a size overflows. */
tq_status tqi_container_place(struct tqi_container *c);
/* Writes header and table, with all checksums, before sections that are in their places; their
 * padding must be zero. */
void tqi_container_seal(struct tqi_container *c, uint8_t *buf);

/* ---- reading, of bytes that nobody vouches for ----------------------------------------- */

/* Reads the header; `size` may be anything from TQI_CONTAINER_HEADER on. */
tq_status tqi_container_header(const uint8_t *buf, size_t size, struct tqi_snapshot_header *out);
/* Reads header and table: sections lie inside `size`. Their checksums are not looked at. */
tq_status tqi_container_open(const uint8_t *buf, size_t size, struct tqi_container *out);
/* Compares the checksum of a section. */
tq_status tqi_container_check(const struct tqi_container *c, enum tqi_section_kind kind);
/* Bytes [from, to) of a checked section are zero. */
tq_status tqi_container_check_zeros(const struct tqi_container *c, enum tqi_section_kind kind,
                                    uint64_t from, uint64_t to);
/* A checked section holds `used` bytes and the zeros that round them up, and nothing else. */
tq_status tqi_container_check_end(const struct tqi_container *c, enum tqi_section_kind kind,
                                  uint64_t used);

static inline const uint8_t *tqi_section_bytes(const struct tqi_container *c,
                                               enum tqi_section_kind kind) {
    return c->bytes + c->sections[kind].offset;
}

#endif
