/* scale.h: the gradient rule of a product whose one operand is repeated along axes of the other: a weight for each row,
 * or for each column. */
#ifndef TARN__SCALE_H
#define TARN__SCALE_H

#include "ops/op.h"

/* Whether a recorded a · b is one whose gradients a single pass can make. */
bool tarn__scale_fits(const tarn__backward *b);

/* Its rule: both gradients, or that of the repeated operand alone. */
bool tarn__scale_backward(const tarn__backward *b);

#endif
