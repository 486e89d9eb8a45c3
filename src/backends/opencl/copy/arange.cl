/* arange.cl: arithmetic sequences. */
#include "backends/opencl/common/element.cl"

#pragma OPENCL FP_CONTRACT OFF

/* y[i] = value + i · step, in C: integers, or floats that are truncated where y has integers and step is fractional. */
__kernel void arange(__global void *y, long y_first, long count, long stride, C value, C step)
{
    long i = get_global_id(0);
    if (i < count)
        PUT(T, y, y_first + i * stride, value + (C)i * step);
}
