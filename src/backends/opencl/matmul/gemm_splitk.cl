/* gemm_splitk.cl: adds up the partial sums (splits, m, n) of split-K in order. Options: those of gemm.cl. */
#include "backends/opencl/matmul/gemm.cl"

/* Grid (n, m, batches). Bytes: splits · m · n read per batch, c written. */
__kernel void add_splits(const __global void *parts, long parts_offset, __global void *c, long c_offset,
                         const __global void *bias, long bias_offset, nest batches, sizes s, real alpha, real beta)
{
    long column = get_global_id(0), row = get_global_id(1), batch = get_global_id(2);
    if (column >= s.n || row >= s.m)
        return;
    bias_offset += nest_at(&batches, s.first + batch, 3);
    const __global REAL *part =
        (const __global REAL *)parts + parts_offset + batch * s.splits * s.m * s.n + row * s.n + column;
    REAL sum = 0;
    for (long i = 0; i < s.splits; i++)
        sum += part[i * s.m * s.n];
    finish(c, c_offset + nest_at(&batches, s.first + batch, 0), bias, bias_offset, &s, row, column, sum, (REAL)alpha,
           (REAL)beta);
}
