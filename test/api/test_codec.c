/* The codec as a machine that turns rows into bytes: sizes, what is read and written,
 * determinism. What the bytes mean is in test_codec_values.c. */
#include <stdlib.h>
#include <string.h>

#include "common/codec.h"

enum { N_ROWS = 5, MAX_DIM = 4096 };

/* ---- sizes ----------------------------------------------------------------------------- */

static void test_row_bytes(void **state) {
    static const struct {
        const char *name;
        size_t bytes;
    } known[] = {{"bf16", 256},     {"f16", 256},    {"fp8", 128},   {"int8", 130},
                 {"lm4", 66},       {"lm3", 50},     {"lm2", 34},    {"polar", 62},
                 {"polar_qjl", 80}, {"lm3_qjl", 68}, {"lm2_qjl", 52}};
    (void)state;
    assert_int_equal(tq_format_count(), COUNT(known));
    for (size_t i = 0; i < COUNT(known); i++) {
        tq_format id = 0;
        OK(tq_format_find(known[i].name, &id));
        tq_codec *codec = codec_make(id, 128, 1);
        CHECK(tq_codec_row_bytes(codec) == known[i].bytes, "%s: %zu bytes", known[i].name,
              tq_codec_row_bytes(codec));
        CHECK(format_of(id).millibits == known[i].bytes * 8000 / 128, "%s: %u millibits",
              known[i].name, format_of(id).millibits);
        tq_codec_destroy(codec);
    }
    assert_int_equal(tq_codec_row_bytes(NULL), 0);
    tq_codec_destroy(NULL);
}

/* Bits of a code, and whether a sketch comes with them. */
static size_t bytes_of(tq_format id, size_t dim) {
    static const uint8_t bits[16] = {
        [TQ_FORMAT_BF16] = 16, [TQ_FORMAT_F16] = 16,    [TQ_FORMAT_FP8] = 8,
        [TQ_FORMAT_INT8] = 8,  [TQ_FORMAT_LM4] = 4,     [TQ_FORMAT_LM3] = 3,
        [TQ_FORMAT_LM2] = 2,   [TQ_FORMAT_LM3_QJL] = 3, [TQ_FORMAT_LM2_QJL] = 2};
    size_t padded = (dim + 31) / 32 * 32, blocks = padded / 16;
    size_t sketch = id >= TQ_FORMAT_POLAR_QJL ? padded / 8 + 2 : 0;
    if (id == TQ_FORMAT_POLAR || id == TQ_FORMAT_POLAR_QJL) /* 4 angles, radius */
        return blocks * 4 + blocks + blocks / 2 + (blocks + 3) / 4 + blocks * 2 + sketch;
    return padded * bits[id] / 8 + (id >= TQ_FORMAT_INT8 ? 2 : 0) + sketch;
}

/* 2^k, or 12, 20, 28, 36 times that. */
static int can_rotate(uint32_t dim) {
    while (dim % 2 == 0 && dim != 12 && dim != 20 && dim != 28 && dim != 36)
        dim /= 2;
    return dim == 1 || dim == 12 || dim == 20 || dim == 28 || dim == 36;
}

static void test_every_dim(void **state) {
    (void)state;
    for (uint32_t f = 0; f < tq_format_count(); f++)
        for (uint32_t dim = 32; dim <= MAX_DIM; dim += 16) {
            tq_format_info info = format_at(f);
            tq_codec_config c = {.struct_size = sizeof c, .format = info.id, .dim = dim};
            tq_codec *const untouched = (tq_codec *)&info, *codec = untouched;
            if ((info.flags & TQ_FORMAT_ROTATED) && !can_rotate(dim)) {
                FAILS(tq_codec_create(codec_context(), &c, &codec), TQ_ERR_UNSUPPORTED, "dim");
                CHECK(codec == untouched, "%s, %u: out", info.name, dim);
                continue;
            }
            OK(tq_codec_create(codec_context(), &c, &codec));
            CHECK(tq_codec_row_bytes(codec) == bytes_of(info.id, dim), "%s, %u: %zu bytes",
                  info.name, dim, tq_codec_row_bytes(codec));
            tq_codec_destroy(codec);
        }
}

/* ---- some rows and their codes --------------------------------------------------------- */

struct coded {
    tq_format_info format;
    tq_codec *codec;
    uint32_t dim;
    size_t row_bytes, bytes;
    float *rows, *decoded; /* [N_ROWS][dim] */
    void *codes;
};

static void code_rows(struct coded *c, tq_format_info format, uint32_t dim) {
    struct rng rng = {dim};
    c->format = format;
    c->dim = dim;
    c->codec = codec_make(format.id, dim, 7);
    c->row_bytes = tq_codec_row_bytes(c->codec);
    c->bytes = N_ROWS * c->row_bytes;
    c->rows = random_rows(&rng, N_ROWS * dim, 1);
    c->decoded = must_alloc(N_ROWS * dim, sizeof(float));
    c->codes = must_alloc(c->bytes, 1);
    tq_rows_in in = rows_in(c->rows);
    tq_rows_out out = rows_out(c->decoded);
    OK(tq_codec_encode(c->codec, N_ROWS, &in, c->codes));
    OK(tq_codec_decode(c->codec, N_ROWS, c->codes, &out));
}

static void free_rows(struct coded *c) {
    tq_codec_destroy(c->codec);
    free(c->rows);
    free(c->decoded);
    free(c->codes);
}

typedef void check_fn(const struct coded *c);

/* Dims with and without padding, with one and with several words for a lane. */
static void for_every_format(check_fn *check) {
    static const uint32_t dims[] = {32, 48, 80, 112, 128, 320};
    for (uint32_t f = 0; f < tq_format_count(); f++)
        for (size_t d = 0; d < COUNT(dims); d++) {
            struct coded c;
            code_rows(&c, format_at(f), dims[d]);
            check(&c);
            free_rows(&c);
        }
}

static void check_codes(const struct coded *c, const void *codes, const char *what) {
    CHECK(memcmp(codes, c->codes, c->bytes) == 0, "%s, %u: %s: other codes", c->format.name, c->dim,
          what);
}

static void check_decoded(const struct coded *c, const float *rows, const char *what) {
    CHECK(memcmp(rows, c->decoded, sizeof(float) * N_ROWS * c->dim) == 0, "%s, %u: %s: other rows",
          c->format.name, c->dim, what);
}

/* ---- memory ---------------------------------------------------------------------------- */

/* Codes at every alignment, between canaries, over two fillings: every byte is written and
 * no other. */
static void any_alignment(const struct coded *c) {
    tq_rows_in in = rows_in(c->rows);
    for (size_t offset = 0; offset < 16; offset++) {
        struct guarded codes = guard_make(c->bytes, offset);
        struct guarded rows = guard_make(sizeof(float) * N_ROWS * c->dim, offset / 4 * 4);
        tq_rows_out out = rows_out(rows.data);
        if (offset % 2)
            memset(codes.data, 0, c->bytes);
        OK(tq_codec_encode(c->codec, N_ROWS, &in, codes.data));
        check_codes(c, codes.data, "alignment");
        OK(tq_codec_decode(c->codec, N_ROWS, codes.data, &out));
        check_decoded(c, rows.data, "alignment");
        guard_free(&codes);
        guard_free(&rows);
    }
}

static void test_any_alignment(void **state) {
    (void)state;
    for_every_format(any_alignment);
}

/* Inputs that end where memory ends. */
static void reads_no_more(const struct coded *c) {
    size_t row = sizeof(float) * c->dim;
    struct fenced rows = fence_copy(c->rows, N_ROWS * row), codes = fence_copy(c->codes, c->bytes);
    tq_rows_in in = rows_in(rows.data), query = rows_in((float *)rows.data + (N_ROWS - 1) * c->dim);
    float *decoded = must_alloc(N_ROWS, row), dots[N_ROWS];
    unsigned char *again = must_alloc(c->bytes, 1);
    tq_rows_out out = rows_out(decoded);
    OK(tq_codec_encode(c->codec, N_ROWS, &in, again));
    check_codes(c, again, "fenced");
    OK(tq_codec_decode(c->codec, N_ROWS, codes.data, &out));
    check_decoded(c, decoded, "fenced");
    OK(tq_codec_dot(c->codec, &query, N_ROWS, codes.data, dots));
    free(decoded);
    free(again);
    fence_free(&rows);
    fence_free(&codes);
}

static void test_reads_no_more(void **state) {
    (void)state;
    for_every_format(reads_no_more);
}

/* Dots at every alignment of the codes, between canaries. */
static void dots_anywhere(const struct coded *c) {
    float want[N_ROWS];
    tq_rows_in query = rows_in(c->rows);
    OK(tq_codec_dot(c->codec, &query, N_ROWS, c->codes, want));
    for (size_t offset = 1; offset < 16; offset++) {
        struct guarded codes = guard_make(c->bytes, offset);
        struct guarded dots = guard_make(sizeof want, offset / 4 * 4);
        memcpy(codes.data, c->codes, c->bytes);
        OK(tq_codec_dot(c->codec, &query, N_ROWS, codes.data, dots.data));
        CHECK(memcmp(dots.data, want, sizeof want) == 0, "%s, %u: other dots", c->format.name,
              c->dim);
        guard_free(&codes);
        guard_free(&dots);
    }
}

static void test_dots_anywhere(void **state) {
    (void)state;
    for_every_format(dots_anywhere);
}

static void no_rows(const struct coded *c) {
    struct guarded codes = guard_make(c->row_bytes, 0), rows = guard_make(c->dim * 4, 0);
    struct guarded dots = guard_make(4, 0);
    static const unsigned char untouched[2 * 320 + 4 * 320] = {0};
    tq_rows_in in = rows_in(c->rows);
    tq_rows_out out = rows_out(rows.data);
    memset(codes.data, 0, codes.bytes);
    memset(rows.data, 0, rows.bytes);
    memset(dots.data, 0, dots.bytes);
    OK(tq_codec_encode(c->codec, 0, &in, codes.data));
    OK(tq_codec_decode(c->codec, 0, c->codes, &out));
    OK(tq_codec_dot(c->codec, &in, 0, c->codes, dots.data));
    CHECK(memcmp(codes.data, untouched, codes.bytes) == 0, "%s: codes", c->format.name);
    CHECK(memcmp(rows.data, untouched, rows.bytes) == 0, "%s: rows", c->format.name);
    CHECK(memcmp(dots.data, untouched, dots.bytes) == 0, "%s: dots", c->format.name);
    guard_free(&codes);
    guard_free(&rows);
    guard_free(&dots);
}

static void test_no_rows(void **state) {
    (void)state;
    for_every_format(no_rows);
}

/* ---- strides --------------------------------------------------------------------------- */

/* Rows further apart, in all types; what lies between them is neither read nor written. */
static void far_apart(const struct coded *c) {
    enum { GAP = 3 };
    size_t stride = c->dim + GAP;
    struct guarded wide = guard_make(sizeof(float) * (N_ROWS * stride - GAP), 4);
    float *rows = wide.data;
    unsigned char *codes = must_alloc(c->bytes, 1);
    for (size_t i = 0; i < N_ROWS; i++)
        memcpy(rows + i * stride, c->rows + i * c->dim, c->dim * sizeof *rows);
    tq_rows_in in = {.data = rows, .token_stride = (int64_t)stride};
    tq_rows_out out = {.data = rows, .token_stride = (int64_t)stride};
    OK(tq_codec_encode(c->codec, N_ROWS, &in, codes));
    check_codes(c, codes, "strided");
    guard_fill(&wide);
    OK(tq_codec_decode(c->codec, N_ROWS, codes, &out));
    for (size_t i = 0; i < N_ROWS * stride - GAP; i++) {
        static const uint32_t filling = UINT32_C(0x01010101) * GUARD_FILL;
        const float *got = &rows[i], *row = c->decoded + i / stride * c->dim;
        const void *want = i % stride < c->dim ? (const void *)&row[i % stride] : &filling;
        CHECK(memcmp(got, want, sizeof *got) == 0, "%s, %u: element %zu", c->format.name, c->dim,
              i);
    }
    free(codes);
    guard_free(&wide);
}

static void test_far_apart(void **state) {
    (void)state;
    for_every_format(far_apart);
}

/* ---- determinism ----------------------------------------------------------------------- */

/* Another codec of the same configuration, another context and one row at a time. */
static void always_the_same(const struct coded *c) {
    tq_context *other = NULL;
    tq_context_config config = {.struct_size = sizeof config, .cpu_features_disabled = UINT64_MAX};
    tq_codec_config same = {
        .struct_size = sizeof same, .format = c->format.id, .dim = c->dim, .seed = 7};
    tq_codec *codec = NULL;
    unsigned char *codes = must_alloc(c->bytes, 1);
    float *rows = must_alloc(N_ROWS * c->dim, sizeof *rows);
    OK(tq_context_create(&config, &other));
    OK(tq_codec_create(other, &same, &codec));
    for (size_t i = 0; i < N_ROWS; i++) {
        tq_rows_in in = rows_in(c->rows + i * c->dim);
        tq_rows_out out = rows_out(rows + i * c->dim);
        OK(tq_codec_encode(codec, 1, &in, codes + i * c->row_bytes));
        OK(tq_codec_decode(codec, 1, codes + i * c->row_bytes, &out));
    }
    check_codes(c, codes, "row by row");
    check_decoded(c, rows, "row by row");
    tq_codec_destroy(codec);
    tq_context_destroy(other);
    free(codes);
    free(rows);
}

static void test_always_the_same(void **state) {
    (void)state;
    for_every_format(always_the_same);
}

/* Seeds that differ in either half; formats that do not rotate do not look at it. */
static void other_seeds(const struct coded *c) {
    static const uint64_t seeds[] = {0, 8, UINT64_C(7) << 32, UINT64_C(1) << 63 | 7};
    unsigned char *codes = must_alloc(c->bytes, 1);
    float *rows = must_alloc(N_ROWS * c->dim, sizeof *rows);
    tq_rows_in in = rows_in(c->rows);
    tq_rows_out out = rows_out(rows);
    int rotated = (c->format.flags & TQ_FORMAT_ROTATED) != 0;
    for (size_t i = 0; i < COUNT(seeds); i++) {
        tq_codec *codec = codec_make(c->format.id, c->dim, seeds[i]);
        OK(tq_codec_encode(codec, N_ROWS, &in, codes));
        CHECK((memcmp(codes, c->codes, c->bytes) != 0) == rotated, "%s, %u: seed %zu",
              c->format.name, c->dim, i);
        OK(tq_codec_decode(codec, N_ROWS, c->codes, &out));
        CHECK((memcmp(rows, c->decoded, N_ROWS * c->dim * sizeof *rows) != 0) == rotated,
              "%s, %u: decoded with seed %zu", c->format.name, c->dim, i);
        tq_codec_destroy(codec);
    }
    free(codes);
    free(rows);
}

static void test_other_seeds(void **state) {
    (void)state;
    for_every_format(other_seeds);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_row_bytes),     cmocka_unit_test(test_every_dim),
        cmocka_unit_test(test_any_alignment), cmocka_unit_test(test_reads_no_more),
        cmocka_unit_test(test_dots_anywhere), cmocka_unit_test(test_no_rows),
        cmocka_unit_test(test_far_apart),     cmocka_unit_test(test_always_the_same),
        cmocka_unit_test(test_other_seeds),
    };
    return cmocka_run_group_tests_name("codec", tests, codec_set_up, codec_tear_down);
}
