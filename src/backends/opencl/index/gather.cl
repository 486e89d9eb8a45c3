/* gather.cl: gather, write_rows and one_hot. An index outside its axis is reported and skipped. BITS is an unsigned
 * type of the element's size where bits are moved; I is the dtype of indices. */
#include "backends/opencl/common/element.cl"

/* y[i] = x[…, index[i], …] for element i of the nest. Operands: y, index, x, the last with stride 0 along the axis,
 * which has `limit` elements `step` apart. A work-item has PER elements, a work-group apart: all are read before one is
 * written. */
#ifdef BITS
#define EACH_OWN(i, own) \
    _Pragma("unroll") for (INDEX own = 0, i = first; own < PER; own++, i += (INDEX)get_local_size(0)) if (i < count)

__kernel void gather(__global BITS *y, long y_first, __global const void *index, long index_first,
                     __global const BITS *x, long x_first, INDEX count, long limit, long step, indexer shape,
                     FAULT_PARAMETERS)
{
    const INDEX first = (INDEX)get_group_id(0) * (INDEX)get_local_size(0) * PER + (INDEX)get_local_id(0);
    INDEX at[PER][3];
    long which[PER];
    BITS loaded[PER];
    EACH_OWN(i, own)
    {
        locate(&shape, i, 3, at[own]);
        which[own] = LOAD(I, index, index_first + at[own][1]);
    }
    EACH_OWN(i, own)
    {
        if (which[own] >= 0 && which[own] < limit)
            loaded[own] = x[x_first + at[own][2] + which[own] * step];
        else
            report_fault(fault, which[own], limit);
    }
    EACH_OWN(i, own)
    {
        if (which[own] >= 0 && which[own] < limit)
            y[y_first + at[own][0]] = loaded[own];
    }
}

/* y[b, index[b] + t] = x[b, t]. Operands: y, cut to the size of x, x, and the repeated index. Valid starts are below
 * `limit`. */
__kernel void write_rows(__global BITS *y, long y_first, __global const void *index, long index_first,
                         __global const BITS *x, long x_first, INDEX count, long limit, long step, indexer shape,
                         FAULT_PARAMETERS)
{
    INDEX i = (INDEX)get_global_id(0), at[3];
    if (i >= count)
        return;
    locate(&shape, i, 3, at);
    long which = LOAD(I, index, index_first + at[2]);
    if (which >= 0 && which < limit)
        y[y_first + at[0] + which * step] = x[x_first + at[1]];
    else
        report_fault(fault, which, limit);
}
#else
/* Operands: y, and the index repeated along y's last axis, which is the nest's last. */
__kernel void one_hot(__global void *y, long y_first, __global const void *index, long index_first, INDEX count,
                      long classes, indexer shape, FAULT_PARAMETERS)
{
    INDEX i = (INDEX)get_global_id(0), at[2];
    if (i >= count)
        return;
    locate(&shape, i, 2, at);
    long which = LOAD(I, index, index_first + at[1]), here = (long)i % classes;
    PUT(T, y, y_first + at[0], which == here ? 1 : 0);
    if (here == 0 && (which < 0 || which >= classes))
        report_fault(fault, which, classes);
}
#endif
