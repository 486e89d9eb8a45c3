/* rows_matmul.h: matmuls of 17 to 256 rows of x with quantized weights by wgmma (rows_wgmma.cuh): kernel rows of
 * matmul_quant, norm_linear, norm_gate_up and linear_residual. */
#ifndef TARN__CUDA_ROWS_MATMUL_H
#define TARN__CUDA_ROWS_MATMUL_H

#ifdef __cplusplus
extern "C" {
#endif
#include "base/kernel/backend.h"

tarn__kernel_row tarn__cuda_rows_matmul_quant(void);
tarn__kernel_row tarn__cuda_rows_norm_linear(void);
tarn__kernel_row tarn__cuda_rows_norm_gate_up(void);
tarn__kernel_row tarn__cuda_rows_linear_residual(void);

#ifdef __cplusplus
}
#endif

#endif
