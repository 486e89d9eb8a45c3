/* reduce_grad.cl: the gradients of max, min, prod and var: one pass over x, with the states that a reduction
 * (reduce.cl, C alike) left in scratch.
 *
 * GRAD_extremum: x, y and g, and how many elements equal y; GRAD_prod: x and g, the product of what is not 0 and the
 * number of zeros; GRAD_var: x and g, and the mean. The nest's operands are gx, x, g, states, y. */
#include "backends/opencl/common/element.cl"

typedef struct state {
    C a, b;
    long n;
} state;

/* The gradient of an element. */
static C slope_of(C from, C slope, state s, C y)
{
#if defined(GRAD_extremum)
    /* A NaN equals nothing: where it won, the count is 0 and all gradients of its slice are NaN, as torch.amax's. */
    return (from == y ? slope : slope * 0) / (C)(INDEX)s.n;
#elif defined(GRAD_prod)
    return slope * (s.n == 0 ? s.a / from : s.n == 1 && from == 0 ? s.a : (C)0);
#else
    return (from - s.a) * slope;
#endif
}

#ifdef GRAD_extremum
#define RESULT_AT(at) GET(T_Y, y, y_first + (at))
#else
#define RESULT_AT(at) 0
#endif

#ifdef GROUP
/* A group for each row of `length` neighbours: what equals y is counted, in any order, since it is counted in integers.
 * Each work-item keeps a bit for each of its HELD elements; with none it reads them twice, the second time from a
 * cache. Operands of `rows`: gx, x, g, y.
 *
 * Bits, and not comparisons that a compiler keeps over the barrier: PoCL stores those of a work-item in memory, LLVM 15
 * packs them into a vector of booleans, 8 to a byte, and on AVX-512 reads each from a byte of its own, which is a
 * neighbour's. */
#define EACH_HELD(k, i) \
    _Pragma("unroll") for (INDEX k = 0, i = (INDEX)get_local_id(0); k < HELD; k++, i += GROUP) if (i < length)

__kernel __attribute__((reqd_work_group_size(GROUP, 1, 1))) void
extremum_rows(__global void *gx, long gx_first, __global const void *x, long x_first, __global const void *g,
              long g_first, __global const void *y, long y_first, INDEX length, places rows)
{
    __local int total;
    INDEX at[4];
    int own = 0;
    locate(&rows, (INDEX)get_group_id(0), 4, at);
    const long to = gx_first + at[0], from = x_first + at[1];
    const C most = GET(T_Y, y, y_first + at[3]), slope = GET(T_G, g, g_first + at[2]);
    if (get_local_id(0) == 0)
        total = 0;
    barrier(CLK_LOCAL_MEM_FENCE);
#if HELD > 0
    C held[HELD];
    uint ties = 0;
    EACH_HELD(k, i) held[k] = GET(T_X, x, from + i);
    EACH_HELD(k, i) ties |= (uint)(held[k] == most) << k;
    own = (int)popcount(ties);
#else
    for (INDEX i = (INDEX)get_local_id(0); i < length; i += GROUP)
        own += GET(T_X, x, from + i) == most;
#endif
    if (own > 0)
        atomic_add(&total, own);
    barrier(CLK_LOCAL_MEM_FENCE);
    const state all = {0, 0, total};
    const C share = slope_of(most, slope, all, most), none = slope * 0 / (C)total;
#if HELD > 0
    EACH_HELD(k, i) PUT(T_GX, gx, to + i, (ties >> k & 1) ? share : none);
#else
    for (INDEX i = (INDEX)get_local_id(0); i < length; i += GROUP)
        PUT(T_GX, gx, to + i, GET(T_X, x, from + i) == most ? share : none);
#endif
}
#endif

/* A work-item has PER elements, a group apart: all are made before one is written, so that many reads are under way. */
#define EACH_OWN(i, own) \
    _Pragma("unroll") for (INDEX own = 0, i = first; own < PER; own++, i += (INDEX)get_local_size(0)) if (i < count)

__kernel void reduce_grad(__global void *gx, long gx_first, __global const void *x, long x_first,
                          __global const void *g, long g_first, __global const char *states, long states_first,
                          __global const void *y, long y_first, INDEX count, places shape)
{
    INDEX first = (INDEX)get_group_id(0) * (INDEX)get_local_size(0) * PER + (INDEX)get_local_id(0), at[PER][5];
    C made[PER];
    EACH_OWN(i, own)
    {
        locate(&shape, i, 5, at[own]);
        state s = ((__global const state *)(states + states_first))[at[own][3]];
        made[own] =
            slope_of(GET(T_X, x, x_first + at[own][1]), GET(T_G, g, g_first + at[own][2]), s, RESULT_AT(at[own][4]));
    }
    EACH_OWN(i, own) PUT(T_GX, gx, gx_first + at[own][0], made[own]);
}
