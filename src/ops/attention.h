/* attention.h: attention over what a cache stores; and made of other operations, for devices that lack a kernel for it.
 */
#ifndef TARN__OPS_ATTENTION_H
#define TARN__OPS_ATTENTION_H

#include "ops/op.h"

/* True when a device attends to keys of that dtype, other than the queries', as they lie. */
bool tarn__attention_quant_kv_fits(tarn_tensor *q, const tarn_tensor *k);

/* tarn_attention() of k and v [B, KV, S, D] in another float dtype, or in codes of 8 bits with their scales, as codes.h
 * has them (NULL: there are none), where tarn__attention_quant_kv_fits(). Nothing is expanded but a head at a time.
 * Forward alone: nothing is recorded. Borrows all; the result belongs to the open scope. */
tarn_tensor *tarn__attention_quant_kv(tarn_tensor *q, tarn_tensor *k, tarn_tensor *v, tarn_tensor *k_scale,
                                      tarn_tensor *v_scale, const tarn_attention_options *options);

/* tarn_attention() with starts, all T × S weights in memory: operands and options fit, and lie on one device. Borrows
 * its operands; the result belongs to the open scope. Its weights are dropped out by other numbers than the kernel's.
 */
tarn_tensor *tarn__attention_composed(tarn_tensor *q, tarn_tensor *k, tarn_tensor *v,
                                      const tarn_attention_options *options);

#endif
