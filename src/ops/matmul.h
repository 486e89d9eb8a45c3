/* matmul.h: what operations made of products share. */
#ifndef TARN__OPS_MATMUL_H
#define TARN__OPS_MATMUL_H

#include "ops/op.h"

/* x with its last two axes exchanged. A view in the open scope; NULL for NULL. */
tarn_tensor *tarn__transposed(tarn_tensor *x);

/* x [..., in] as (rows, in): a view, or a copy where rows do not lie evenly. */
tarn_tensor *tarn__rows_of(const char *function, tarn_tensor *x);

/* to = a @ b + beta · to + bias. False, too, where an operand is NULL because it could not be made. */
bool tarn__gemm(const char *function, tarn_tensor *a, tarn_tensor *b, tarn_tensor *bias, double beta, tarn_tensor *to);

/* A weight [out, in] as [in, out], or the other way round, where `turn` says so. */
tarn_tensor *tarn__transposed_if(tarn_tensor *weight, bool turn);

/* The gradients of a weight [out, in], gᵀ @ x, or, with `in_out`, of one [in, out], xᵀ @ g, and of its bias, g summed
 * over rows: g is (rows, out), x (rows, in). `weight` and `bias` are the inputs' numbers; whichever is not wanted is
 * left out. */
bool tarn__weight_backward(const tarn__backward *b, int weight, int bias, tarn_tensor *g, tarn_tensor *x, bool in_out);

/* tarn_linear_apply() and tarn_mlp() for weights that lie as [in, out], as transformers' Conv1D has them. A transposed
 * view would do forward, but its gradient would be turned once more, and rounded on the way where the weight has 16
 * bits. */
tarn_tensor *tarn__linear_in_out(tarn_tensor *x, tarn_tensor *weight, tarn_tensor *bias);
tarn_tensor *tarn__mlp_in_out(tarn_tensor *x, tarn_tensor *up, tarn_tensor *down, tarn_tensor *up_bias,
                              tarn_tensor *down_bias);

#endif
