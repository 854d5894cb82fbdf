/* Stage sketch of the write path, written once for all SIMD levels: the signs of the projected
 * residual and their gain, in the order of sums of spec/rows.h.
 *
 * A file includes this once, behind the registers of its level (vec_*.h), and has defined the
 * stages sum_squares() and sum_abs(). */
#include "base/half.h"
#include "kernel/simd/words.h"

/* The 16-bit gain as it was stored; only keys and rows carry sketches. */
static float stored_gain(const struct tqi_layout *l, const uint8_t *blob, uint32_t element) {
    return tqi_f16_to_float(tqi_load16(blob + l->gains + (size_t)element * 2));
}

/* A byte is the signs of 8 dims; padding dims are zero bits. */
static void put_signs(const struct tqi_layout *l, const float *r, uint8_t *blob, uint32_t token) {
    uint32_t columns = l->dim_pad / 32, lanes = tqi_slab_lanes(l);
    struct tqk_slot slot = tqk_slot_of(l, token);
    uint8_t *sketch = blob + l->sketch;
    for (uint32_t i = 0; i < l->dim_pad / 8; i++) {
        uint32_t word = slot.word + i % columns, lane = slot.lane + i / columns * slot.step;
        size_t at = word / 4 < l->words / 4 ? ((size_t)(word / 4) * lanes + lane) * 4 + word % 4
                                            : (size_t)word * lanes + lane;
        sketch[at] = i * 8 < l->dim ? v_signs(r + i * 8) : 0;
    }
}

/* r: the residual, destroyed. */
static void encode_sketch(const struct tqi_rows *rows, float *r, float *tree, uint8_t *blob,
                          uint32_t token) {
    const struct tqi_layout *l = &rows->layout;
    float energy = sum_squares(r, l->dim, tree);
    TQK_OF(rotate)(&rows->sketch[0], r);
    TQK_OF(rotate)(&rows->sketch[1], r);
    put_signs(l, r, blob, token);
    float sum = sum_abs(r, l->dim, tree);
    float gain = sum > 0 ? energy * rows->sketch_factor / sum : 0;
    tqi_store16(blob + l->sketch_gains + (size_t)token * 2,
                tqi_float_to_f16(fminf(gain, 65504.0f)));
}

/* r = x - stored gain * code value: of Lloyd-Max codes of at most three bits. */
static void residual_of_codes(const struct tqi_rows *rows, const float *x, const uint8_t *codes,
                              float gain, float *r) {
    for (uint32_t i = 0; i < rows->layout.dim; i += LANES) {
        vec value = v_of_eight(rows->book.code_value, i_bytes(codes + i));
        v_store(r + i, v_sub(v_load(x + i), v_mul(v_all(gain), value)));
    }
}
