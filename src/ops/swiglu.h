/* swiglu.h: a gated activation where nothing is recorded. */
#ifndef TARN__OPS_SWIGLU_H
#define TARN__OPS_SWIGLU_H

#include "ops/op.h"

/* silu(gate) · up in gate's place, which may be a part of a tensor. Borrows both. False with an error, also where one
 * is NULL because it could not be made. */
bool tarn__swiglu_inplace(tarn_tensor *gate, tarn_tensor *up);

#endif
