/* Gains of coded rows that leave inner products without bias. */
#ifndef TQI_ENCODE_CODEC_GAIN_H
#define TQI_ENCODE_CODEC_GAIN_H

#include "spec/rows.h"

/* Multiplies the gain of a coded row (row form, lm or int8, no sketch) by 1 / cos of the angle
 * between the rotated row u, at any scale, and its codes: the decoded row's inner product with the
 * row is then |row|^2 (EDEN, arXiv 2105.08339), where the gain of the contract makes its norm
 * right. Sums are in double in one order: the bits are the same on every machine. */
void tqi_codec_unbias(const struct tqi_rows *rows, const float *u, uint8_t *code);

#endif
