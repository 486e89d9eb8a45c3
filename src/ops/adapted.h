/* adapted.h: linear layers with adapters of low rank, as one operation. */
#ifndef TARN__OPS_ADAPTED_H
#define TARN__OPS_ADAPTED_H

#include "ops/op.h"

#define TARN__MAX_LORA_LINEARS 3 /* layers that share x */

typedef struct tarn__lora_linear {
    tarn_tensor *weight, *bias; /* [out, in] or [in, out]; frozen; bias may be NULL */
    tarn_tensor *a, *b;         /* [rank, in] and [out, rank], or both NULL: no adapter */
    double scale;
} tarn__lora_linear;

/* y[i] = x · weightᵀ + bias + scale · (x · aᵀ) · bᵀ for layers that share x [..., in], of which one has an adapter; all
 * of one dtype and on one device. Borrows all; the results belong to the open scope. False with an error raised. */
bool tarn__lora_linears(tarn_tensor *x, const tarn__lora_linear *layers, int count, bool in_out, tarn_tensor **y);

#endif
