/* Float formats (bf16, f16, fp8): lines of codes as they lie, 4 pieces of 16 bytes, become operands
 * of binary32 in registers. A piece is 4 columns (tokens of keys, dims of values) by 2 elements
 * along the sum, or 4 of e4m3; its sum is joined with those of the other pieces at the end. Rows
 * are spread once to the lanes that meet the codes. */
#ifndef TQI_KERNEL_AVX512_FLOAT_H
#define TQI_KERNEL_AVX512_FLOAT_H

#include "kernel/avx512/dot_avx512.h"
#include "kernel/avx512/lines_avx512.h"

enum tqk_float_avx512 { TQK_E4M3, TQK_BF16, TQK_F16 };

/* Slabs of a word; operands of a line; of a word in any case 8, for 4 pieces by 8 elements. */
TQK_INLINE uint32_t tqk_slabs_avx512(enum tqk_float_avx512 source) {
    return source == TQK_E4M3 ? 2 : 4;
}

TQK_INLINE uint32_t tqk_line_operands_avx512(enum tqk_float_avx512 source) {
    return source == TQK_E4M3 ? 4 : 2;
}

/* Decoded numbers of the format are too small by this. */
TQK_INLINE float tqk_decoded_unit_avx512(enum tqk_float_avx512 source) {
    return source == TQK_E4M3 ? 256 : 1;
}

/* Operands 2 e and 2 e + 1 of a line. Lanes: bf16 piece, column; the others half of the pieces,
 * column, two elements: pieces 0 and 1 in the first operand, 2 and 3 in the second; e4m3 the even
 * elements (e = 0) and the odd ones. The bits of e4m3 land in IEEE halves with an exponent too
 * small by 8: their conversion takes subnormal numbers at full speed, which an operation on
 * subnormal binary32 does not on Intel cores (some 150 cycles each). */
TQK_INLINE void tqk_decode_avx512(enum tqk_float_avx512 source, uint32_t e, __m512i line,
                                  __m512 x[2]) {
    if (source == TQK_BF16) {
        x[0] = _mm512_castsi512_ps(_mm512_slli_epi32(line, 16));
        x[1] = _mm512_castsi512_ps(_mm512_and_si512(line, _mm512_set1_epi32((int)0xffff0000u)));
        return;
    }
    if (source == TQK_E4M3) {
        line = e ? line : _mm512_slli_epi16(line, 8);
        line = _mm512_and_si512(_mm512_srai_epi16(line, 1), _mm512_set1_epi16((short)0xbf80));
    }
    x[0] = _mm512_cvtph_ps(_mm512_castsi512_si256(line));
    x[1] = _mm512_cvtph_ps(_mm512_extracti64x4_epi64(line, 1));
}

/* Operand i of the 8 of a word for a row: `low` and `high` hold 8 elements for each of the 4
 * pieces, those of values in token order. */
TQK_INLINE __m512 tqk_spread_avx512(enum tqk_float_avx512 source, bool values, uint32_t i,
                                    __m512 low, __m512 high) {
    const uint32_t slab = i / tqk_line_operands_avx512(source);
    const __m512i pieces =
        _mm512_setr_epi32(0, 0, 0, 0, 8, 8, 8, 8, 16, 16, 16, 16, 24, 24, 24, 24);
    const __m512i pairs = _mm512_setr_epi32(0, 1, 0, 1, 0, 1, 0, 1, 8, 9, 8, 9, 8, 9, 8, 9);
    const __m512i apart = _mm512_setr_epi32(0, 2, 0, 2, 0, 2, 0, 2, 8, 10, 8, 10, 8, 10, 8, 10);
    const uint32_t half = i % 2 * 16, odd = i / 2 % 2;
    __m512i index;
    if (source == TQK_BF16)
        index = _mm512_add_epi32(pieces, _mm512_set1_epi32((int)i));
    else if (source == TQK_F16)
        index = _mm512_add_epi32(pairs, _mm512_set1_epi32((int)(half + 2 * slab)));
    else if (values) /* bytes of a word are tokens 0 4 1 5, 2 6 3 7 */
        index = _mm512_add_epi32(pairs, _mm512_set1_epi32((int)(half + 2 * slab + 4 * odd)));
    else
        index = _mm512_add_epi32(apart, _mm512_set1_epi32((int)(half + 4 * slab + odd)));
    return _mm512_permutex2var_ps(low, index, high);
}

/* What some lines are multiplied with. */
struct tqk_float_job_avx512 {
    const uint8_t *at[4]; /* lines of 4 tokens or dims each, at the first step */
    size_t stride;        /* of steps */
    uint32_t steps;       /* slabs along the sum */
    __mmask16 lanes;      /* words of a line */
    const uint8_t *ahead; /* what to ask for, `ahead_step` bytes (0 or 256) for a step */
    size_t ahead_step;
    ptrdiff_t far;          /* from there to what is read after that */
    const __mmask16 *valid; /* lanes of every operand that may be looked at; NULL = all */
};

/* Asks for those of a step's four lines that are due at the i-th of n operands, y. */
TQK_INLINE __m512 tqk_lines_ahead_avx512(const uint8_t *ahead, ptrdiff_t far, uint32_t i,
                                         uint32_t n, __m512 y) {
    __m512i before = _mm512_castps_si512(y);
    TQK_UNROLL
    for (uint32_t line = 0; line < 4; line++) {
        if (line * n / 4 == i)
            tqk_ahead_line_avx512(ahead, far, line, &before);
    }
    return _mm512_castsi512_ps(before);
}

/* Sums of the 16 columns of 4 lines by row; rows lie row_stride floats apart. */
TQK_INLINE void tqk_sum_lines_avx512(enum tqk_float_avx512 source, bool masked,
                                     const struct tqk_float_job_avx512 *job, const float *row,
                                     size_t row_stride, uint32_t rows, __m512 *acc) {
    const uint32_t operands = tqk_line_operands_avx512(source);
    const struct tqk_float_job_avx512 j = *job;
    const uint8_t *ahead = j.ahead;
    const __mmask16 *valid = j.valid;
    size_t at = 0;
    TQK_UNROLL
    for (uint32_t i = 0; i < rows * 4; i++) {
        acc[i] = _mm512_setzero_ps();
    }
    for (uint32_t s = 0; s < j.steps; s++) {
        __m512i line[4];
        TQK_UNROLL
        for (uint32_t i = 0; i < 4; i++) {
            line[i] = masked ? _mm512_maskz_loadu_epi32(j.lanes, j.at[i] + at)
                             : _mm512_loadu_si512(j.at[i] + at);
        }
        TQK_UNROLL
        for (uint32_t e = 0; e < operands; e += 2) {
            __m512 x[4][2];
            TQK_UNROLL
            for (uint32_t i = 0; i < 4; i++) {
                tqk_decode_avx512(source, e / 2, line[i], x[i]);
                x[i][0] = masked ? _mm512_maskz_mov_ps(valid[e], x[i][0]) : x[i][0];
                x[i][1] = masked ? _mm512_maskz_mov_ps(valid[e + 1], x[i][1]) : x[i][1];
            }
            TQK_UNROLL
            for (uint32_t i = 0; i < 2 * rows; i++) {
                const uint32_t k = i / rows, r = i % rows;
                __m512 y = _mm512_load_ps(row + r * row_stride + (size_t)(e + k) * 16);
                y = tqk_lines_ahead_avx512(ahead, j.far, e * rows + i, operands * rows, y);
                TQK_UNROLL
                for (uint32_t c = 0; c < 4; c++) {
                    acc[r * 4 + c] = _mm512_fmadd_ps(x[c][k], y, acc[r * 4 + c]);
                }
            }
        }
        at += j.stride;
        row += (size_t)operands * 16;
        if (masked)
            valid += operands;
        ahead += j.ahead_step;
    }
}

TQK_INLINE void tqk_dot_lines_avx512(enum tqk_float_avx512 source, bool masked,
                                     const struct tqk_float_job_avx512 *job, const float *row,
                                     size_t row_stride, uint32_t rows, __m512 *sum) {
    const __m512i order = _mm512_setr_epi32(0, 1, 4, 5, 8, 9, 12, 13, 2, 3, 6, 7, 10, 11, 14, 15);
    __m512 acc[16];
    tqk_sum_lines_avx512(source, masked, job, row, row_stride, rows, acc);
    TQK_UNROLL
    for (uint32_t r = 0; r < rows; r++) {
        const __m512 *x = acc + (size_t)r * 4;
        __m512 a = _mm512_add_ps(_mm512_shuffle_f32x4(x[0], x[1], 0x44),
                                 _mm512_shuffle_f32x4(x[0], x[1], 0xee));
        __m512 b = _mm512_add_ps(_mm512_shuffle_f32x4(x[2], x[3], 0x44),
                                 _mm512_shuffle_f32x4(x[2], x[3], 0xee));
        if (source == TQK_BF16)
            a = _mm512_add_ps(_mm512_shuffle_f32x4(a, b, 0x88), _mm512_shuffle_f32x4(a, b, 0xdd));
        else
            a = _mm512_add_ps(_mm512_shuffle_ps(a, b, 0x88), _mm512_shuffle_ps(a, b, 0xdd));
        sum[r] = source == TQK_BF16 ? a : _mm512_permutexvar_ps(order, a);
    }
}

#endif
