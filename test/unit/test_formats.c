/* spec/formats and spec/rows: the lists of formats and variants, and what rows may be. */
#include "unit/unit.h"

#include <math.h>

#include "unit/rows.h"

static void test_format_list(void **state) {
    uint32_t seen = 0;
    (void)state;
    assert_int_equal(tqi_format_total(), 11);
    for (uint32_t i = 0; i < tqi_format_total(); i++) {
        const struct tqi_format *f = tqi_format_at(i);
        assert_true(f->id >= 1 && f->id < TQI_FORMAT_LIMIT);
        assert_false(seen >> f->id & 1);
        seen |= 1u << f->id;
        assert_ptr_equal(tqi_format_by_id(f->id), f);
        assert_true(f->roles & TQ_ROLE_K);
        assert_true(strlen(f->name) >= 3 && strlen(f->summary) > 10);
        assert_true(f->mse > 0 && f->mse < 0.2 && f->dot_error > 0 && f->dot_error < 0.4);
        /* The sketch tells scores, so it is for keys. */
        if (f->sketch)
            assert_int_equal(f->roles, TQ_ROLE_K);
        for (uint32_t j = 0; j < i; j++)
            assert_string_not_equal(tqi_format_at(j)->name, f->name);
    }
    assert_null(tqi_format_at(tqi_format_total()));
    assert_null(tqi_format_by_id(0));
    assert_null(tqi_format_by_id(8));
    assert_null(tqi_format_by_id(UINT32_MAX));
}

static void test_variant_list(void **state) {
    (void)state;
    assert_int_equal(tqi_variant_total(), 14);
    for (uint32_t i = 0; i < tqi_variant_total(); i++) {
        const struct tqi_variant *v = tqi_variant_at(i);
        const struct tqi_format *k_format = tqi_format_by_id(v->k_format);
        const struct tqi_format *v_format = tqi_format_by_id(v->v_format);
        assert_ptr_equal(tqi_variant_by_id(v->id), v);
        assert_true(k_format && (k_format->roles & TQ_ROLE_K));
        assert_true(v_format && (v_format->roles & TQ_ROLE_V));
        for (uint32_t j = 0; j < i; j++) {
            assert_int_not_equal(tqi_variant_at(j)->id, v->id);
            assert_string_not_equal(tqi_variant_at(j)->name, v->name);
        }
    }
    assert_null(tqi_variant_at(tqi_variant_total()));
    assert_null(tqi_variant_by_id(0));
}

/* The pairs of the design. */
static void test_variant_pairs(void **state) {
    static const struct {
        const char *name, *k, *v;
    } pairs[] = {
        {"bf16", "bf16", "bf16"},    {"f16", "f16", "f16"},       {"fp8", "fp8", "fp8"},
        {"int8", "int8", "int8"},    {"k8v4", "fp8", "lm4"},      {"4bit_nc", "lm4", "lm4"},
        {"k3v4_nc", "lm3", "lm4"},   {"3bit_nc", "lm3", "lm3"},   {"k3v2_nc", "lm3", "lm2"},
        {"2bit_nc", "lm2", "lm2"},   {"polar", "polar", "lm4"},   {"polar_qjl", "polar_qjl", "lm4"},
        {"prod4", "lm3_qjl", "lm4"}, {"prod3", "lm2_qjl", "lm3"},
    };
    (void)state;
    assert_int_equal(COUNT(pairs), tqi_variant_total());
    for (uint32_t i = 0; i < COUNT(pairs); i++) {
        const struct tqi_variant *v = tqi_variant_at(i);
        assert_string_equal(v->name, pairs[i].name);
        assert_string_equal(tqi_format_by_id(v->k_format)->name, pairs[i].k);
        assert_string_equal(tqi_format_by_id(v->v_format)->name, pairs[i].v);
    }
}

/* Multiples of 16 from 32 on; formats that rotate need a Hadamard matrix. */
static void test_check_dim(void **state) {
    struct tqi_rotation split;
    (void)state;
    for (uint32_t i = 0; i < tqi_format_total(); i++) {
        const struct tqi_format *f = tqi_format_at(i);
        for (uint32_t dim = 0; dim <= 1100; dim++) {
            int fits = dim >= 32 && dim <= 1024 && dim % 16 == 0;
            if (tqi_format_rotates(f))
                fits = fits && tqi_rotation_split(dim, &split);
            CHECK((tqi_rows_check_dim(f, dim, 1024) == NULL) == fits, "%s dim %u", f->name, dim);
        }
    }
}

/* Constants of a row, from their definitions. */
static void test_row_constants(void **state) {
    struct unit_rows u;
    (void)state;
    for (uint32_t i = 0; i < tqi_format_total(); i++)
        for (size_t d = 0; d < COUNT(unit_dims); d++) {
            const struct tqi_format *f = tqi_format_at(i);
            double root = sqrt((double)unit_dims[d]);
            unit_row_form(&u, f->id, unit_dims[d], 5);
            assert_ptr_equal(u.rows.format, f);
            assert_true(u.rows.sqrt_dim == (float)root);
            assert_true(u.rows.inv_sqrt_dim == (float)(1 / root));
            if (f->kind == TQI_KIND_LM || f->kind == TQI_KIND_INT8)
                /* A gain that is not rounded: unit times gain factor is one coordinate of a
                 * row of norm 1 whose integers have a sum of squares of 1. */
                CHECK(fabs(u.rows.unit * (double)u.rows.gain_factor - 1) < 1e-7, "%s", f->name);
            if (f->kind == TQI_KIND_LM)
                assert_int_equal(u.rows.book.bits, f->bits);
            assert_int_equal(tqi_rows_flips(f, 96), f->sketch               ? 3 * 96
                                                    : tqi_format_rotates(f) ? 96
                                                                            : 0);
        }
}

/* Keys and values of one seed and length share their signs. */
static void test_shared_rotation(void **state) {
    struct unit_rows k, v;
    (void)state;
    unit_page(&k, TQ_FORMAT_LM3_QJL, &v, TQ_FORMAT_LM4, 160, 64, 99);
    assert_memory_equal(k.rows.rotation.flips, v.rows.rotation.flips, 160 * sizeof(uint32_t));
    assert_int_equal(k.rows.rotation.order, 20);
    assert_int_equal(k.rows.layout.side, TQI_SIDE_K);
    assert_int_equal(v.rows.layout.side, TQI_SIDE_V);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_format_list),   cmocka_unit_test(test_variant_list),
        cmocka_unit_test(test_variant_pairs), cmocka_unit_test(test_check_dim),
        cmocka_unit_test(test_row_constants), cmocka_unit_test(test_shared_rotation),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
