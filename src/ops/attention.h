/* attention.h: attention made of other operations, for devices that lack a kernel for it. */
#ifndef TARN__OPS_ATTENTION_H
#define TARN__OPS_ATTENTION_H

#include "ops/op.h"

/* tarn_attention() with starts, all T × S weights in memory: operands and options fit, and lie on one device. Borrows its operands; the
 * result belongs to the open scope. Its weights are dropped out by other numbers than the kernel's. */
tarn_tensor *tarn__attention_composed(tarn_tensor *q, tarn_tensor *k, tarn_tensor *v, const tarn_attention_options *options);

#endif
