/* loss.h: what the losses of rows against class indices share. */
#ifndef TARN__OPS_LOSS_H
#define TARN__OPS_LOSS_H

#include "ops/op.h"

/* Checks x [..., C], called `role`, and its targets [...], the two operands, and the options. */
bool tarn__check_losses(const char *function, const char *role, tarn_tensor **operand,
                        const tarn_cross_entropy_options *o);

/* How many targets count, as a rank-0 tensor of the loss's dtype; NULL without an error where all of them do. In the
 * open scope. */
tarn_tensor *tarn__count_targets(tarn_tensor *target, const tarn_cross_entropy_options *o, tarn_dtype dtype);

/* The losses of rows as the reduction asks for them; `counted` divides a mean, NULL: all rows do. Borrows both. */
tarn_tensor *tarn__reduce_losses(tarn_tensor *losses, tarn_tensor *counted, tarn_reduction reduction);

#endif
