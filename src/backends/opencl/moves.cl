/* moves.cl: numbers in steps, and x laid into a window of y with one number around it. */
#include "element.cl"

#pragma OPENCL FP_CONTRACT OFF

#ifdef T
/* y[i] = value + i · step, in C: integers, or floats that are cut where y has integers and the step is none. */
__kernel void arange(__global void *y, long y_first, long count, long stride, C value, C step)
{
    long i = get_global_id(0);
    if (i < count)
        PUT(T, y, y_first + i * stride, value + (C)i * step);
}
#endif

#ifdef BITS
#define PER 4

/* Which part of each axis of y is x. */
typedef struct window {
    int begin[MAX_RANK], size[MAX_RANK];
} window;

/* Where element i of y lies there and in x; false where it is none of x. */
static bool is_inside(const places *n, const window *w, int i, int *to, int *from)
{
    bool inside = true;
    *to = *from = 0;
    EACH_AXIS(axis, 0, n->rank)
    {
        const int next = axis > 0 ? QUOTIENT(n, axis, i) : 0, here = i - next * n->shape[axis], there = here - w->begin[axis];
        *to += here * n->stride[0][axis];
        *from += there * n->stride[1][axis];
        inside = inside && (uint)there < (uint)w->size[axis];
        i = next;
    }
    return inside;
}

/* A work-item has PER elements, a group apart: all are read before one is written. */
__kernel void spread(places n, window w, int count, __global BITS *y, long y_first, __global const BITS *x, long x_first, BITS value)
{
    const int first = (int)get_group_id(0) * (int)get_local_size(0) * PER + (int)get_local_id(0);
    BITS held[PER];
    int to[PER], from;
#pragma unroll
    for (int own = 0; own < PER; own++) {
        const int i = first + own * (int)get_local_size(0);
        if (i < count)
            held[own] = is_inside(&n, &w, i, &to[own], &from) ? x[x_first + from] : value;
    }
#pragma unroll
    for (int own = 0; own < PER; own++)
        if (first + own * (int)get_local_size(0) < count)
            y[y_first + to[own]] = held[own];
}
#endif
