/* compose.h: fused kernels composed of two others, for backends that lack the fused form: matmul_gelu,
 * matmul_gelu_grad and matmul_bias_grad. */
#ifndef TARN__COMPOSE_H
#define TARN__COMPOSE_H

#include "base/kernel/backend.h"

/* Prepares both parts of a fused call with the rows of a table; then runs them. */
tarn__plan_status tarn__compose_prepare(const tarn__kernel_row *rows, tarn__kernel fused, const tarn__call *call,
                                        tarn__plan *plan);
void tarn__compose_run(tarn__kernel fused, const tarn__call *call);

/* prepare_composed_NAME() and kernel_composed_NAME() of a fused kernel, with the rows of a table. */
#define TARN__COMPOSED(name, rows) \
    static tarn__plan_status prepare_composed_##name(const tarn__call *call, tarn__plan *plan) \
    { \
        return tarn__compose_prepare(rows, TARN__K_##name, call, plan); \
    } \
    static void kernel_composed_##name(const tarn__call *call) \
    { \
        tarn__compose_run(TARN__K_##name, call); \
    }

#endif
