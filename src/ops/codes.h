/* codes.h: rows of numbers in 8 bits: codes u8, 128 + q, and a scale f16 for each 32 of them, or what is left at a
 * row's end: q · scale, as blocks of Q8_0 have it. */
#ifndef TARN__OPS_CODES_H
#define TARN__OPS_CODES_H

#include "ops/op.h"

/* Scales of a row of so many elements. */
int64_t tarn__kv_q8_scales(int64_t width);

/* The codes of x [B, heads, T, D], of a float dtype, and their scales [B, heads, T, scales of D]. A group that is not
 * finite has a scale that is not. Borrows x; both results belong to the open scope. Nothing is recorded. NULL with an
 * error. */
tarn_tensor *tarn__quantize_kv(tarn_tensor *x, tarn_tensor **scales);

/* The numbers that codes stand for, in a float dtype. Borrows both; the result belongs to the open scope. */
tarn_tensor *tarn__dequantize_kv(tarn_tensor *codes, tarn_tensor *scales, tarn_dtype dtype);

#endif
