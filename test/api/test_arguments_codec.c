/* What codecs and the lists of formats and variants refuse; names of statuses, versions. */
#include <stdio.h>
#include <string.h>

#include "common/codec.h"

enum { DIM = 64, ROWS = 3 };

static char nowhere;
#define NOWHERE ((void *)&nowhere)
#define INVALID(call, word) FAILS(call, TQ_ERR_INVALID_ARGUMENT, word)

static float rows[ROWS * DIM + 1];

static tq_codec_config codec_config(tq_format format, uint32_t dim) {
    return (tq_codec_config){
        .struct_size = sizeof(tq_codec_config), .format = format, .dim = dim, .seed = 1};
}

/* ---- creation -------------------------------------------------------------------------- */

static void refuse_codec(const tq_codec_config *c, tq_status status, const char *word) {
    tq_codec *out = NOWHERE;
    FAILS(tq_codec_create(codec_context(), c, &out), status, word);
    assert_ptr_equal(out, NOWHERE);
}

static void test_create(void **state) {
    (void)state;
    static const tq_format unknown[] = {8, 9, 10, 15, 1000, UINT32_MAX};
    static const uint32_t dims[] = {0, 1, 16, 31, 33, 40, 4097, 4112, 8192, UINT32_MAX - 15};
    tq_codec_config c = codec_config(TQ_FORMAT_LM4, DIM);
    tq_codec *out = NOWHERE;
    INVALID(tq_codec_create(NULL, &c, &out), "context");
    INVALID(tq_codec_create(codec_context(), NULL, &out), "config");
    INVALID(tq_codec_create(codec_context(), &c, NULL), "out");
    assert_ptr_equal(out, NOWHERE);
    for (size_t i = 0; i < COUNT(unknown); i++) {
        c.format = unknown[i];
        refuse_codec(&c, TQ_ERR_NOT_FOUND, "format");
    }
    c = codec_config(TQ_FORMAT_LM4, DIM);
    c.flags = 2;
    refuse_codec(&c, TQ_ERR_INVALID_ARGUMENT, "flags");
    for (uint32_t f = 0; f < tq_format_count(); f++) {
        tq_format id = format_at(f).id;
        c = codec_config(id, DIM);
        c.flags = TQ_CODEC_UNBIASED;
        if (id != TQ_FORMAT_INT8 && id != TQ_FORMAT_LM4 && id != TQ_FORMAT_LM3 &&
            id != TQ_FORMAT_LM2)
            refuse_codec(&c, TQ_ERR_UNSUPPORTED, "flags");
    }
    c = codec_config(0, DIM); /* required */
    refuse_codec(&c, TQ_ERR_INVALID_ARGUMENT, "format");
    for (uint32_t f = 0; f < tq_format_count(); f++)
        for (size_t i = 0; i < COUNT(dims); i++) {
            c = codec_config(format_at(f).id, dims[i]);
            refuse_codec(&c, TQ_ERR_INVALID_ARGUMENT, "dim");
        }
    tq_codec_destroy(NULL);
    assert_int_equal(tq_codec_row_bytes(NULL), 0);
}

static void test_dims_that_do_not_rotate(void **state) {
    (void)state;
    static const uint32_t dims[] = {176, 208, 272, 336, 1040, 4080};
    for (uint32_t f = 0; f < tq_format_count(); f++)
        for (size_t i = 0; i < COUNT(dims); i++) {
            tq_codec_config c = codec_config(format_at(f).id, dims[i]);
            tq_codec *codec = NULL;
            if (format_at(f).flags & TQ_FORMAT_ROTATED) {
                refuse_codec(&c, TQ_ERR_UNSUPPORTED, format_at(f).name);
                continue;
            }
            OK(tq_codec_create(codec_context(), &c, &codec));
            tq_codec_destroy(codec);
        }
}

/* ---- calls ----------------------------------------------------------------------------- */

/* All that can be wrong with rows; 0 behind the last fault. */
static int bad_rows(uint32_t fault, const void *data, tq_rows_in *bad) {
    *bad = (tq_rows_in){.data = data, .dtype = TQ_F32};
    switch (fault) {
    case 0:
        bad->data = NULL;
        break;
    case 1:
        bad->data = (const char *)data + 2;
        break;
    case 2:
        bad->data = (const char *)data + 1;
        bad->dtype = TQ_BF16;
        break;
    case 3:
        bad->dtype = 3;
        break;
    case 4:
        bad->reserved = 1;
        break;
    case 5:
        bad->head_stride = DIM;
        break;
    default:
        return 0;
    }
    return 1;
}

static void test_encode(void **state) {
    (void)state;
    tq_codec_config c = codec_config(TQ_FORMAT_LM3_QJL, DIM);
    tq_codec *codec = NULL;
    tq_rows_in in = rows_in(rows), bad;
    OK(tq_codec_create(codec_context(), &c, &codec));
    struct guarded codes = guard_make(ROWS * tq_codec_row_bytes(codec), 0);
    INVALID(tq_codec_encode(NULL, ROWS, &in, codes.data), "codec");
    INVALID(tq_codec_encode(codec, ROWS, NULL, codes.data), "rows");
    INVALID(tq_codec_encode(codec, ROWS, &in, NULL), "codes");
    for (uint32_t i = 0; bad_rows(i, rows, &bad); i++)
        INVALID(tq_codec_encode(codec, ROWS, &bad, codes.data), "rows");
    OK(tq_codec_encode(codec, 0, &in, codes.data));
    guard_unwritten(&codes);
    guard_free(&codes);
    tq_codec_destroy(codec);
}

static void test_decode(void **state) {
    (void)state;
    tq_codec_config c = codec_config(TQ_FORMAT_POLAR_QJL, DIM);
    tq_codec *codec = NULL;
    struct guarded out = guard_make(sizeof(float) * (ROWS * DIM + 1), 0);
    tq_rows_out to = rows_out(out.data);
    tq_rows_in bad;
    unsigned char codes[ROWS * 128] = {0};
    OK(tq_codec_create(codec_context(), &c, &codec));
    assert_true(ROWS * tq_codec_row_bytes(codec) <= sizeof codes);
    INVALID(tq_codec_decode(NULL, ROWS, codes, &to), "codec");
    INVALID(tq_codec_decode(codec, ROWS, NULL, &to), "codes");
    INVALID(tq_codec_decode(codec, ROWS, codes, NULL), "rows");
    for (uint32_t i = 0; bad_rows(i, out.data, &bad); i++) {
        tq_rows_out wrong = {.data = bad.data ? (char *)out.data +
                                                    ((const char *)bad.data - (char *)out.data)
                                              : NULL,
                             .dtype = bad.dtype,
                             .reserved = bad.reserved,
                             .head_stride = bad.head_stride};
        INVALID(tq_codec_decode(codec, ROWS, codes, &wrong), "rows");
    }
    OK(tq_codec_decode(codec, 0, codes, &to));
    guard_unwritten(&out);
    guard_free(&out);
    tq_codec_destroy(codec);
}

static void test_dot(void **state) {
    (void)state;
    tq_codec_config c = codec_config(TQ_FORMAT_INT8, DIM);
    tq_codec *codec = NULL;
    struct guarded dots = guard_make(sizeof(float) * ROWS, 0);
    tq_rows_in query = rows_in(rows), bad;
    unsigned char codes[ROWS * 128] = {0};
    OK(tq_codec_create(codec_context(), &c, &codec));
    assert_true(ROWS * tq_codec_row_bytes(codec) <= sizeof codes);
    INVALID(tq_codec_dot(NULL, &query, ROWS, codes, dots.data), "codec");
    INVALID(tq_codec_dot(codec, NULL, ROWS, codes, dots.data), "query");
    INVALID(tq_codec_dot(codec, &query, ROWS, NULL, dots.data), "codes");
    INVALID(tq_codec_dot(codec, &query, ROWS, codes, NULL), "dots");
    for (uint32_t i = 0; bad_rows(i, rows, &bad); i++)
        INVALID(tq_codec_dot(codec, &bad, ROWS, codes, dots.data), "query");
    query.token_stride = DIM; /* not used, so it must be 0 */
    INVALID(tq_codec_dot(codec, &query, ROWS, codes, dots.data), "query");
    query.token_stride = 0;
    OK(tq_codec_dot(codec, &query, 0, codes, dots.data));
    guard_unwritten(&dots);
    guard_free(&dots);
    tq_codec_destroy(codec);
}

/* ---- lists ----------------------------------------------------------------------------- */

static const char *const no_names[] = {"", " ", "LM4", "lm4 ", " lm4", "lm", "lm44", "tcq4", "?"};

static void test_format_list(void **state) {
    (void)state;
    tq_format_info info = {.struct_size = sizeof info}, untouched = info;
    tq_format id = 77;
    INVALID(tq_format_get(0, NULL), "info");
    FAILS(tq_format_get(tq_format_count(), &info), TQ_ERR_NOT_FOUND, "index");
    FAILS(tq_format_get(UINT32_MAX, &info), TQ_ERR_NOT_FOUND, "index");
    assert_memory_equal(&info, &untouched, sizeof info);
    INVALID(tq_format_find(NULL, &id), "name");
    INVALID(tq_format_find("lm4", NULL), "out");
    for (size_t i = 0; i < COUNT(no_names); i++)
        FAILS(tq_format_find(no_names[i], &id), TQ_ERR_NOT_FOUND, no_names[i]);
    assert_int_equal(id, 77);
    for (uint32_t i = 0; i < tq_format_count(); i++) {
        OK(tq_format_find(format_at(i).name, &id));
        assert_int_equal(id, format_at(i).id);
        assert_true(strlen(format_at(i).summary) > 0);
    }
}

static void test_variant_list(void **state) {
    (void)state;
    tq_variant_info info = {.struct_size = sizeof info}, untouched = info;
    tq_variant id = 77;
    INVALID(tq_variant_get(0, NULL), "info");
    FAILS(tq_variant_get(tq_variant_count(), &info), TQ_ERR_NOT_FOUND, "index");
    FAILS(tq_variant_get(UINT32_MAX, &info), TQ_ERR_NOT_FOUND, "index");
    assert_memory_equal(&info, &untouched, sizeof info);
    INVALID(tq_variant_find(NULL, &id), "name");
    INVALID(tq_variant_find("4bit_nc", NULL), "out");
    for (size_t i = 0; i < COUNT(no_names); i++)
        FAILS(tq_variant_find(no_names[i], &id), TQ_ERR_NOT_FOUND, no_names[i]);
    assert_int_equal(id, 77);
    for (uint32_t i = 0; i < tq_variant_count(); i++) {
        OK(tq_variant_find(variant_at(i).name, &id));
        assert_int_equal(id, variant_at(i).id);
        assert_true(strlen(variant_at(i).summary) > 0);
    }
}

/* ---- statuses and versions ------------------------------------------------------------- */

static void test_status_names(void **state) {
    (void)state;
    static const tq_status known[] = {TQ_OK,
                                      TQ_ERR_INVALID_ARGUMENT,
                                      TQ_ERR_INVALID_STATE,
                                      TQ_ERR_UNSUPPORTED,
                                      TQ_ERR_VERSION,
                                      TQ_ERR_NOT_FOUND,
                                      TQ_ERR_OUT_OF_MEMORY,
                                      TQ_ERR_OUT_OF_PAGES,
                                      TQ_ERR_BUFFER_TOO_SMALL,
                                      TQ_ERR_CORRUPT,
                                      TQ_ERR_MISMATCH,
                                      TQ_ERR_DEVICE,
                                      TQ_ERR_INTERNAL};
    static const tq_status unknown[] = {1, -6, -13, -98, -100, INT32_MAX, INT32_MIN};
    for (size_t i = 0; i < COUNT(known); i++)
        for (size_t j = 0; j < i; j++)
            assert_string_not_equal(tq_status_name(known[i]), tq_status_name(known[j]));
    for (size_t i = 0; i < COUNT(known); i++)
        assert_int_equal(strncmp(tq_status_name(known[i]), i ? "TQ_ERR_" : "TQ_OK", i ? 7 : 6), 0);
    assert_string_equal(tq_status_name(TQ_ERR_OUT_OF_PAGES), "TQ_ERR_OUT_OF_PAGES");
    for (size_t i = 0; i < COUNT(unknown); i++)
        assert_string_equal(tq_status_name(unknown[i]), "TQ_ERR_UNKNOWN");
}

static void test_versions(void **state) {
    (void)state;
    char text[40];
    (void)snprintf(text, sizeof text, "%d.%d.%d", TQ_VERSION_MAJOR, TQ_VERSION_MINOR,
                   TQ_VERSION_PATCH);
    assert_string_equal(tq_version_string(), text);
    assert_int_equal(tq_version_number(), TQ_VERSION_NUMBER);
    assert_int_equal(tq_abi_version(), TQ_ABI_VERSION);
    assert_int_equal(tq_format_version(), TQ_FORMAT_VERSION);
}

/* A success leaves the words of the last failure alone; before any there are none. */
static void test_last_error(void **state) {
    (void)state;
    char words[256];
    tq_variant id;
    assert_non_null(tq_last_error());
    assert_int_not_equal(tq_variant_find("first failure", &id), TQ_OK);
    (void)snprintf(words, sizeof words, "%s", tq_last_error());
    assert_non_null(strstr(words, "first failure"));
    assert_int_equal(tq_variant_find("fp8", &id), TQ_OK);
    assert_string_equal(tq_last_error(), words);
}

int main(void) {
    if (strcmp(tq_last_error(), "") != 0)
        return 1; /* nothing has failed yet */
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_create),       cmocka_unit_test(test_dims_that_do_not_rotate),
        cmocka_unit_test(test_encode),       cmocka_unit_test(test_decode),
        cmocka_unit_test(test_dot),          cmocka_unit_test(test_format_list),
        cmocka_unit_test(test_variant_list), cmocka_unit_test(test_status_names),
        cmocka_unit_test(test_versions),     cmocka_unit_test(test_last_error),
    };
    return cmocka_run_group_tests(tests, codec_set_up, codec_tear_down);
}
