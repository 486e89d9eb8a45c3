/* matmul.h: what operations made of products share. */
#ifndef TARN__OPS_MATMUL_H
#define TARN__OPS_MATMUL_H

#include "ops/op.h"

/* x with its last two axes exchanged. A view in the open scope; NULL for NULL. */
tarn_tensor *tarn__transposed(tarn_tensor *x);

/* x [..., in] as (rows, in): a view, or a copy where rows do not lie evenly. */
tarn_tensor *tarn__rows_of(const char *function, tarn_tensor *x);

/* to = a @ b + beta · to + bias. False, too, where an operand is NULL because it could not be made. */
bool tarn__multiply(const char *function, tarn_tensor *a, tarn_tensor *b, tarn_tensor *bias, double beta, tarn_tensor *to);

/* The gradients of a weight [out, in], gᵀ @ x, and of its bias, g summed over rows: g is (rows, out), x (rows, in). `weight` and `bias` are
 * the inputs' numbers; whichever is not wanted is left out. */
bool tarn__weight_backward(const tarn__backward *b, int weight, int bias, tarn_tensor *g, tarn_tensor *x);

#endif
