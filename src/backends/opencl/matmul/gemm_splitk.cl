/* gemm_splitk.cl: the parts of sums over k, (splits, m, n) in scratch, added up in order. Options: gemm.cl's. */
#include "backends/opencl/matmul/gemm.cl"

__kernel void combine(const __global void *parts, long parts_place, __global void *c, long c_place,
                      const __global void *bias, long bias_place, nest batches, sizes s, real alpha, real beta)
{
    long column = get_global_id(0), row = get_global_id(1), batch = get_global_id(2);
    if (column >= s.n || row >= s.m)
        return;
    bias_place += nest_at(&batches, s.first + batch, 3);
    const __global REAL *part =
        (const __global REAL *)parts + parts_place + batch * s.splits * s.m * s.n + row * s.n + column;
    REAL sum = 0;
    for (long i = 0; i < s.splits; i++)
        sum += part[i * s.m * s.n];
    finish(c, c_place + nest_at(&batches, s.first + batch, 0), bias, bias_place, &s, row, column, sum, (REAL)alpha,
           (REAL)beta);
}
