/* reduce_grad.cl: gradients of max, min, prod and var: one pass over x with the states that a reduction (reduce.cl,
 * same C) left in scratch.
 *
 * GRAD_max: x, y and g, and the number of elements equal to y; GRAD_prod: x and g, the product of nonzeros and the
 * number of zeros; GRAD_var: x and g, and the mean. Operands of the nest: gx, x, g, states, y. */
#include "backends/opencl/common/element.cl"

typedef struct state {
    C a, b;
    long n;
} state;

/* The gradient of an element. */
static C grad_of(C from, C gradient, state s, C y)
{
#if defined(GRAD_max)
    /* A NaN equals nothing: where it won, the count is 0 and all gradients of its slice are NaN, as torch.amax's. */
    return (from == y ? gradient : gradient * 0) / (C)(INDEX)s.n;
#elif defined(GRAD_prod)
    return gradient * (s.n == 0 ? s.a / from : s.n == 1 && from == 0 ? s.a : (C)0);
#else
    return (from - s.a) * gradient;
#endif
}

#ifdef GRAD_max
#define RESULT_AT(at) GET(T_Y, y, y_first + (at))
#else
#define RESULT_AT(at) 0
#endif

#ifdef GROUP
/* One contiguous row of `length` elements per work-group: elements equal to y are counted, in any order, since counts
 * are integers. Each work-item keeps a bit for each of its ELEMENTS elements; with none it reads them twice, the second
 * time from a cache. Operands of `rows`: gx, x, g, y. Bits, and not comparisons that live across the barrier: PoCL
 * spills those of a work-item, LLVM 15 packs them into a vector of booleans, 8 to a byte, and on AVX-512 reloads each
 * from a byte of its own, which is a neighbour's. */
#define EACH_ELEMENT(k, i) \
    _Pragma("unroll") for (INDEX k = 0, i = (INDEX)get_local_id(0); k < ELEMENTS; k++, i += GROUP) if (i < length)

__kernel __attribute__((reqd_work_group_size(GROUP, 1, 1))) void
max_rows(__global void *gx, long gx_first, __global const void *x, long x_first, __global const void *g, long g_first,
         __global const void *y, long y_first, INDEX length, indexer rows)
{
    __local int total;
    INDEX at[4];
    int own = 0;
    locate(&rows, (INDEX)get_group_id(0), 4, at);
    const long to = gx_first + at[0], from = x_first + at[1];
    const C max_value = GET(T_Y, y, y_first + at[3]), gradient = GET(T_G, g, g_first + at[2]);
    if (get_local_id(0) == 0)
        total = 0;
    barrier(CLK_LOCAL_MEM_FENCE);
#if ELEMENTS > 0
    C value[ELEMENTS];
    uint ties = 0;
    EACH_ELEMENT(k, i) value[k] = GET(T_X, x, from + i);
    EACH_ELEMENT(k, i) ties |= (uint)(value[k] == max_value) << k;
    own = (int)popcount(ties);
#else
    for (INDEX i = (INDEX)get_local_id(0); i < length; i += GROUP)
        own += GET(T_X, x, from + i) == max_value;
#endif
    if (own > 0)
        atomic_add(&total, own);
    barrier(CLK_LOCAL_MEM_FENCE);
    /* ties share the gradient evenly */
    const state all = {0, 0, total};
    const C share = grad_of(max_value, gradient, all, max_value), none = gradient * 0 / (C)total;
#if ELEMENTS > 0
    EACH_ELEMENT(k, i) PUT(T_GX, gx, to + i, (ties >> k & 1) ? share : none);
#else
    for (INDEX i = (INDEX)get_local_id(0); i < length; i += GROUP)
        PUT(T_GX, gx, to + i, GET(T_X, x, from + i) == max_value ? share : none);
#endif
}
#endif

/* A work-item has PER elements, a work-group apart: all are computed before one is written, so that many loads are in
 * flight. */
#define EACH_OWN(i, own) \
    _Pragma("unroll") for (INDEX own = 0, i = first; own < PER; own++, i += (INDEX)get_local_size(0)) if (i < count)

/* Bytes: x and g read, with GRAD_max y too; gx written. */
__kernel void reduce_grad(__global void *gx, long gx_first, __global const void *x, long x_first,
                          __global const void *g, long g_first, __global const char *states, long states_first,
                          __global const void *y, long y_first, INDEX count, indexer shape)
{
    INDEX first = (INDEX)get_group_id(0) * (INDEX)get_local_size(0) * PER + (INDEX)get_local_id(0), at[PER][5];
    C result[PER];
    EACH_OWN(i, own)
    {
        locate(&shape, i, 5, at[own]);
        state s = ((__global const state *)(states + states_first))[at[own][3]];
        result[own] =
            grad_of(GET(T_X, x, x_first + at[own][1]), GET(T_G, g, g_first + at[own][2]), s, RESULT_AT(at[own][4]));
    }
    EACH_OWN(i, own) PUT(T_GX, gx, gx_first + at[own][0], result[own]);
}
