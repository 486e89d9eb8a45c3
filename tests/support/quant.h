/* quant.h: matmul with quantized weights against the dequantized ones. */
#ifndef TESTS_QUANT_H
#define TESTS_QUANT_H

#include "support/check.h"

/* y [rows, out] against x [rows, in] times w [out, in] transposed, and a bias or NULL, in f64, with all that rounding x
 * to 8 bits, 32 elements with one scale, can do to it; then y's own rounding. All on the CPU. */
void assert_quant_matmul(const tarn_tensor *x, const tarn_tensor *w, const tarn_tensor *bias, const tarn_tensor *y);

#endif
