/* blocks.h: tensors whose elements lie in blocks. */
#ifndef TARN__CORE_BLOCKS_H
#define TARN__CORE_BLOCKS_H

#include "core/launch/launch.h"

/* Tensor x of blocks as its bytes, u8: the last axis grows or shrinks, the others stay. A view in the open scope. */
tarn_tensor *tarn__quant_bytes(tarn_tensor *x);

/* Copies where one of both holds blocks, on one device: blocks to blocks of the same kind, byte for byte; blocks to
 * floats. Anything else raises an error. */
bool tarn__quant_copy(const char *function, tarn_tensor *to, tarn_tensor *from);

#endif
