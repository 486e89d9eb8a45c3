/* attention.h: attention over what a cache stores. */
#ifndef TARN__ATTENTION_H
#define TARN__ATTENTION_H

#include <tarn/ops.h>

/* True when a device attends to keys of that dtype, other than the queries', as they lie. */
bool tarn__attends_stored(tarn_tensor *q, const tarn_tensor *k);

/* tarn_attention() of k and v [B, KV, S, D] in another float dtype, or in codes of 8 bits, 128 + x / scale, with scales f32 [B, KV, S, 1] (NULL: there are none), where
 * tarn__attends_stored(). Nothing is expanded but a head at a time. Forward alone: nothing is recorded. Borrows all; the result belongs to the open scope. */
tarn_tensor *tarn__attention_stored(tarn_tensor *q, tarn_tensor *k, tarn_tensor *v, tarn_tensor *k_scale, tarn_tensor *v_scale,
                                    const tarn_attention_options *options);

#endif
