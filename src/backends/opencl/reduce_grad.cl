/* reduce_grad.cl: the gradients of max, min, prod and var: one pass over x, with the states that a reduction (reduce.cl, C alike) left in scratch.
 *
 * GRAD_extremum: x, y and g, and how many elements equal y; GRAD_prod: x and g, the product of what is not 0 and the number of zeros; GRAD_var: x and g, and
 * the mean. The nest's operands are gx, x, g, states, y. */
#include "element.cl"

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

/* A work-item has PER elements, a group apart: all are made before one is written, so that many reads are under way. */
#define EACH_OWN(i, own) _Pragma("unroll") for (INDEX own = 0, i = first; own < PER; own++, i += (INDEX)get_local_size(0)) if (i < count)

__kernel void reduce_grad(__global void *gx, long gx_first, __global const void *x, long x_first, __global const void *g, long g_first,
                          __global const char *states, long states_first, __global const void *y, long y_first, INDEX count, places shape)
{
    INDEX first = (INDEX)get_group_id(0) * (INDEX)get_local_size(0) * PER + (INDEX)get_local_id(0), at[PER][5];
    C made[PER];
    EACH_OWN(i, own)
    {
        locate(&shape, i, 5, at[own]);
        state s = ((__global const state *)(states + states_first))[at[own][3]];
        made[own] = slope_of(GET(T_X, x, x_first + at[own][1]), GET(T_G, g, g_first + at[own][2]), s, RESULT_AT(at[own][4]));
    }
    EACH_OWN(i, own) PUT(T_GX, gx, gx_first + at[own][0], made[own]);
}
