/* channels.h: what batchnorm and groupnorm share. */
#ifndef TARN__OPS_CHANNELS_H
#define TARN__OPS_CHANNELS_H

#include "ops/op.h"

/* Checks x [N, C, ...] and `vectors` operands behind it, each NULL or [C], of x's dtype or f32 beside 16-bit x, all on
 * one device; and epsilon. */
bool tarn__check_channels(const char *function, tarn_tensor **operand, const char *const *names, int vectors,
                          double epsilon);

/* The backward of both: x, weight or NULL, mean, rstd are saved; the params are the kernel's. */
bool tarn__channels_backward(const tarn__backward *b, tarn__kernel kernel, size_t params_bytes);

#endif
