/* optimizer.cl: one step of SGD, SGD with MOMENTUM, or ADAMW: each element is read and written once. The formulas are
 * those of optim/sgd.c and optim/adam.c. DENSE: all operands lie in one piece; else `places` says where elements are.
 */

#define OPERAND(name) __global void *name, long name##_at
#ifdef DENSE
#define PLACE(name, k) (name##_at + at)
#else
#define PLACE(name, k) (name##_at + nest_at(&places, at, k))
#endif

typedef COMPUTE(T_G) C;

enum { PARAMETER, FIRST_MOMENT, SECOND_MOMENT, GRADIENT };

/* One element for each work-item. `factor` of the gradient is an f64, or NULL for 1. */
__kernel void update(
#ifndef DENSE
    nest places,
#endif
    long count, OPERAND(parameter), OPERAND(first), OPERAND(second), OPERAND(gradient), OPERAND(factor), real lr_,
    real keep_, real size_, real scale_, real decay_, real beta_, real take_, real take2_, real epsilon_, int is_first,
    int is_nesterov)
{
    const long at = get_global_id(0);
    if (at >= count)
        return;
    const C lr = (C)lr_, keep = (C)keep_, size = (C)size_, scale = (C)scale_, decay = (C)decay_, beta = (C)beta_,
            take = (C)take_, take2 = (C)take2_, epsilon = (C)epsilon_,
            by = factor ? (C)load_stat(factor, factor_at) : (C)1;
    const C p = (C)LOAD(T_P, parameter, PLACE(parameter, PARAMETER));
    const C raw = by * (C)LOAD(T_G, gradient, PLACE(gradient, GRADIENT)), g = decay != 0 ? raw + decay * p : raw;
#ifdef SGD
    STORE(T_P, parameter, PLACE(parameter, PARAMETER), p - lr * g);
#endif
#ifdef MOMENTUM
    const C before = (C)LOAD(T_M, first, PLACE(first, FIRST_MOMENT)), m = is_first ? g : beta * before + take * g;
    STORE(T_M, first, PLACE(first, FIRST_MOMENT), m);
    STORE(T_P, parameter, PLACE(parameter, PARAMETER), p - lr * (is_nesterov ? g + beta * m : m));
#endif
#ifdef ADAMW
    const C before = (C)LOAD(T_M, first, PLACE(first, FIRST_MOMENT)), m = before + (g - before) * take;
    const C v = beta * (C)LOAD(T_V, second, PLACE(second, SECOND_MOMENT)) + take2 * g * g;
    STORE(T_M, first, PLACE(first, FIRST_MOMENT), m);
    STORE(T_V, second, PLACE(second, SECOND_MOMENT), v);
    STORE(T_P, parameter, PLACE(parameter, PARAMETER), keep * p - size * m / (sqrt(v) * scale + epsilon));
#endif
}
