/* optimizer.cl: one step of SGD, SGD with MOMENTUM, or ADAMW: each element is read and written once. Formulas:
 * optim/sgd.c and optim/adam.c. CONTIGUOUS: all operands are; else `layout` has their layout. */

#define OPERAND(name) __global void *name, long name##_at
#ifdef CONTIGUOUS
#define OFFSET(name, k) (name##_at + at)
#else
#define OFFSET(name, k) (name##_at + nest_at(&layout, at, k))
#endif

typedef COMPUTE(T_G) C;

enum { PARAMETER, FIRST_MOMENT, SECOND_MOMENT, GRADIENT };

/* One element per work-item. `factor` scales the gradient: an f64 scalar, or NULL for 1. */
__kernel void update(
#ifndef CONTIGUOUS
    nest layout,
#endif
    long count, OPERAND(parameter), OPERAND(first), OPERAND(second), OPERAND(gradient), OPERAND(factor), real lr_,
    real keep_, real size_, real scale_, real decay_, real beta_, real take_, real take2_, real epsilon_, int is_first,
    int is_nesterov)
{
    const long at = get_global_id(0);
    if (at >= count)
        return;
    /* Scalars arrive as `real` and are rounded to the compute type once. */
    const C lr = (C)lr_, keep = (C)keep_, size = (C)size_, scale = (C)scale_, decay = (C)decay_, beta = (C)beta_,
            take = (C)take_, take2 = (C)take2_, epsilon = (C)epsilon_,
            by = factor ? (C)load_stat(factor, factor_at) : (C)1;
    /* the clipping factor applies before weight decay, as in torch */
    const C p = (C)LOAD(T_P, parameter, OFFSET(parameter, PARAMETER));
    const C raw = by * (C)LOAD(T_G, gradient, OFFSET(gradient, GRADIENT)), g = decay != 0 ? raw + decay * p : raw;
#ifdef SGD
    STORE(T_P, parameter, OFFSET(parameter, PARAMETER), p - lr * g);
#endif
#ifdef MOMENTUM
    const C before = (C)LOAD(T_M, first, OFFSET(first, FIRST_MOMENT)), m = is_first ? g : beta * before + take * g;
    STORE(T_M, first, OFFSET(first, FIRST_MOMENT), m);
    STORE(T_P, parameter, OFFSET(parameter, PARAMETER), p - lr * (is_nesterov ? g + beta * m : m));
#endif
#ifdef ADAMW
    const C before = (C)LOAD(T_M, first, OFFSET(first, FIRST_MOMENT)), m = before + (g - before) * take;
    const C v = beta * (C)LOAD(T_V, second, OFFSET(second, SECOND_MOMENT)) + take2 * g * g;
    STORE(T_M, first, OFFSET(first, FIRST_MOMENT), m);
    STORE(T_V, second, OFFSET(second, SECOND_MOMENT), v);
    STORE(T_P, parameter, OFFSET(parameter, PARAMETER), keep * p - size * m / (sqrt(v) * scale + epsilon));
#endif
}
