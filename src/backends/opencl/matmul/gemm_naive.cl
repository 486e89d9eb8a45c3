/* gemm_naive.cl: GEMM with one work-item per element: integers, k = 0, and devices whose groups are too small for
 * tiles. Terms are added in order. Options: those of gemm.cl; T_A and T_B, dtypes of the operands. */
#include "backends/opencl/matmul/gemm.cl"

/* Grid (n, m, batches). 2 · k operations and 2 · k loads per element. */
__kernel void naive(const __global void *a, long a_offset, const __global void *b, long b_offset, __global void *c,
                    long c_offset, const __global void *bias, long bias_offset, nest batches, sizes s, real alpha,
                    real beta)
{
    long column = get_global_id(0), row = get_global_id(1), batch = get_global_id(2);
    if (column >= s.n || row >= s.m)
        return;
    a_offset += nest_at(&batches, batch, 1) + row * s.a_row_stride;
    b_offset += nest_at(&batches, batch, 2) + column * s.b_col_stride;
    bias_offset += nest_at(&batches, batch, 3);
    REAL sum = 0;
    for (long k = 0; k < s.k; k++)
        sum += LOAD(T_A, a, a_offset + k * s.a_col_stride) * LOAD(T_B, b, b_offset + k * s.b_row_stride);
    finish(c, c_offset + nest_at(&batches, batch, 0), bias, bias_offset, &s, row, column, sum, (REAL)alpha, (REAL)beta);
}
