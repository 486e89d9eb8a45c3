/* reduce_grad.cl: the gradients of max, min, prod and var: one pass over x, with the states that a reduction (reduce.cl, C alike) left in scratch.
 *
 * GRAD_extremum: x, y and g, and how many elements equal y; GRAD_prod: x and g, the product of what is not 0 and the number of zeros; GRAD_var: x and g, and
 * the mean. The nest's operands are gx, x, g, states, y. */
#include "element.cl"

typedef struct state {
    C a, b;
    long n;
} state;

__kernel void reduce_grad(__global void *gx, long gx_first, __global const void *x, long x_first, __global const void *g, long g_first,
                          __global const char *states, long states_first, __global const void *y, long y_first, INDEX count, places shape)
{
    INDEX i = (INDEX)get_global_id(0), at[5];
    if (i >= count)
        return;
    locate(&shape, i, 5, at);
    state s = ((__global const state *)(states + states_first))[at[3]];
    C from = GET(T_X, x, x_first + at[1]), slope = GET(T_G, g, g_first + at[2]);
#if defined(GRAD_extremum)
    /* A NaN equals nothing: where it won, the count is 0 and all gradients of its slice are NaN, as torch.amax's. */
    C made = (from == GET(T_Y, y, y_first + at[4]) ? slope : slope * 0) / (C)s.n;
#elif defined(GRAD_prod)
    C made = slope * (s.n == 0 ? s.a / from : s.n == 1 && from == 0 ? s.a : (C)0);
#else
    C made = (from - s.a) * slope;
#endif
    PUT(T_GX, gx, gx_first + at[0], made);
}
