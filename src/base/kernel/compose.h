/* compose.h: fused kernels composed of two others, for backends that lack the fused form: matmul_gelu,
 * matmul_gelu_grad and matmul_bias_grad. */
#ifndef TARN__COMPOSE_H
#define TARN__COMPOSE_H

#include "base/kernel/backend.h"

/* Scratch bytes of a fused call: the larger of its parts', which run one after the other. `rows` is the table of the
 * parts. */
size_t tarn__compose_scratch(const tarn__kernel_row *rows, tarn__kernel fused, const tarn__call *call);

void tarn__compose_run(const tarn__kernel_row *rows, tarn__kernel fused, const tarn__call *call);

#endif
