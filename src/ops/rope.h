/* rope.h: rotary positions as kernels take them. */
#ifndef TARN__OPS_ROPE_H
#define TARN__OPS_ROPE_H

#include "ops/op.h"

/* Options, with their defaults, for heads of `width` elements, of which at most 2 · TARN__ROPE_PAIRS are turned. */
tarn__rope tarn__rope_params(const tarn_rope_options *options, int64_t width);

#endif
