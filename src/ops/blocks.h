/* blocks.h: what operations do with weights that hold blocks, or fewer bits than what they meet. */
#ifndef TARN__OPS_BLOCKS_H
#define TARN__OPS_BLOCKS_H

#include "ops/op.h"

/* tarn_cast() to blocks: x of a float dtype, finite. Not differentiable. */
tarn_tensor *tarn__cast_to_quantized(tarn_tensor *x, tarn_dtype dtype);

/* True when a linear layer's weight has fewer bits than what it is multiplied by, and stays as it is: blocks, or 16
 * bits for an x of f32. */
bool tarn__is_narrow(const tarn_tensor *x, const tarn_tensor *weight);

/* tarn_linear_apply() with such a weight. */
tarn_tensor *tarn__linear_narrow(tarn_tensor *x, tarn_tensor *weight, tarn_tensor *bias);

/* tarn_embedding() with a weight of blocks, in a float dtype. */
tarn_tensor *tarn__embedding_quantized(tarn_tensor *weight, tarn_tensor *index, tarn_dtype dtype);

/* tarn_index_select() of blocks along an axis that is not the last. */
tarn_tensor *tarn__index_select_quantized(const char *function, tarn_tensor *x, int axis, tarn_tensor *index);

#endif
