/* scan.cl: prefix sums along an axis, in f64 where there is one (integers in i64), whatever the dtype. Long lines are
 * cut into chunks: first the sum of each, then the sums before each, then all chunks in parallel. Operands of the nest,
 * across the axis: x and y. Sums of chunks are stored line by line. */
#include "backends/opencl/common/element.cl"

#if defined(SUMS)
/* One chunk of one line per work-item; adjacent ones have adjacent lines. */
__kernel void chunk_sums(__global const void *x, long x_first, __global char *scratch, long sums_first, long length,
                         long chunk, long chunks, long x_step, nest lines)
{
    long item = get_global_id(0), part = item / lines.count, line = item - part * lines.count;
    if (part >= chunks)
        return;
    long from = x_first + nest_at(&lines, line, 0), end = min((part + 1) * chunk, length);
    C sum = 0;
    for (long i = part * chunk; i < end; i++)
        sum += GET(T_X, x, from + i * x_step);
    ((__global C *)(scratch + sums_first))[line * chunks + part] = sum;
}

/* From the sum of each chunk to the sum of all before it. */
__kernel void sums_before(__global char *scratch, long sums_first, long count, long chunks)
{
    long line = get_global_id(0);
    if (line >= count)
        return;
    __global C *sums = (__global C *)(scratch + sums_first) + line * chunks;
    C before = 0;
    for (long i = 0; i < chunks; i++) {
        C own = sums[i];
        sums[i] = before;
        before += own;
    }
}
#else
/* One chunk of one line per work-item, from the sum before it. */
__kernel void scan(__global const void *x, long x_first, __global void *y, long y_first, __global const char *scratch,
                   long sums_first, long length, long chunk, long chunks, long x_step, long y_step, nest lines)
{
    long item = get_global_id(0), part = item / lines.count, line = item - part * lines.count;
    if (part >= chunks)
        return;
    long from = x_first + nest_at(&lines, line, 0), to = y_first + nest_at(&lines, line, 1),
         end = min((part + 1) * chunk, length);
    C sum = chunks > 1 ? ((__global const C *)(scratch + sums_first))[line * chunks + part] : (C)0;
    for (long i = part * chunk; i < end; i++) {
        sum += GET(T_X, x, from + i * x_step);
        PUT(T_Y, y, to + i * y_step, sum);
    }
}
#endif
