/* dropout.h: dropout for the operations that have it inside. */
#ifndef TARN__OPS_DROPOUT_H
#define TARN__OPS_DROPOUT_H

#include "ops/op.h"

/* x, dense, dropped out by these numbers; the same call gives a gradient's. A new tensor in the open scope. */
tarn_tensor *tarn__dropout_with(tarn_tensor *x, const tarn__random *random);

/* tarn_residual_norm() of delta dropped out with probability p, from 0 to 1: the bits of both in one pass. Borrows its
 * operands; the results belong to the open scope. */
tarn_tensor *tarn__dropout_residual_norm(tarn_tensor *x, tarn_tensor *delta, double p, tarn_tensor *weight,
                                         tarn_tensor *bias, bool rms, double epsilon, tarn_tensor **sum);

#endif
