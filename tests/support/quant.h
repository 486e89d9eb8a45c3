/* quant.h: matmul with quantized weights against the dequantized ones; random quant blocks; elements that are hard to
 * quantize. */
#ifndef TESTS_QUANT_H
#define TESTS_QUANT_H

#include "support/check.h"

/* y [rows, out] against x [rows, in] times w [out, in] transposed, and a bias or NULL, in f64, with all that rounding x
 * to 8 bits, 32 elements with one scale, can do to it; then y's own rounding. All on the CPU. */
void assert_quant_matmul(const tarn_tensor *x, const tarn_tensor *w, const tarn_tensor *bias, const tarn_tensor *y);

/* A weight [out, in] of random quant blocks on the CPU, also of dtypes that tarn does not quantize to: every quant and
 * code occurs, the blocks' own scales and mins are f16 of magnitude 1/64 to 1/32. */
tarn_tensor *random_quant_blocks(tarn_dtype dtype, int64_t out, int64_t in, uint64_t *random);

/* The same, but every fourth scale and min is 0, the smallest or largest subnormal, or the largest f16. */
tarn_tensor *extreme_quant_blocks(tarn_dtype dtype, int64_t out, int64_t in, uint64_t *random);

/* Fills x, a multiple of 256, with elements that are hard to quantize, of another kind from block to block: normal,
 * with a heavy tail, constant, mostly zero, all positive, zero, close to 2^18; and tiny ones, whose scales are
 * subnormal in f16 or 0. Bitwise identical on every machine. */
void fill_quant_patterns(float *x, int64_t count);

#endif
