/* gemm_naive.cl: products of integers, of nothing (k = 0), and on devices whose groups are too small for tiles: a
 * work-item an element of the result, the terms in order.
 *
 * Options: gemm.cl's, T_A and T_B, the dtypes of the operands. */
#include "backends/opencl/matmul/gemm.cl"

__kernel void plain(const __global void *a, long a_place, const __global void *b, long b_place, __global void *c,
                    long c_place, const __global void *bias, long bias_place, nest batches, sizes s, real alpha,
                    real beta)
{
    long column = get_global_id(0), row = get_global_id(1), batch = get_global_id(2);
    if (column >= s.n || row >= s.m)
        return;
    a_place += nest_at(&batches, batch, 1) + row * s.a_row_stride;
    b_place += nest_at(&batches, batch, 2) + column * s.b_col_stride;
    bias_place += nest_at(&batches, batch, 3);
    REAL sum = 0;
    for (long k = 0; k < s.k; k++)
        sum += LOAD(T_A, a, a_place + k * s.a_col_stride) * LOAD(T_B, b, b_place + k * s.b_row_stride);
    finish(c, c_place + nest_at(&batches, batch, 0), bias, bias_place, &s, row, column, sum, (REAL)alpha, (REAL)beta);
}
