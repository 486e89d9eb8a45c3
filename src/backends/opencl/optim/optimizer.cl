/* optimizer.cl: one step of a rule of optimizer.def: each element is read and written once. Options: UPDATE, the rule;
 * STATES, the number of its states; CONTIGUOUS: all operands are; else `layout` has their layout. */

#define OPERAND(name) __global void *name, long name##_at
#ifdef CONTIGUOUS
#define OFFSET(name, k) (name##_at + at)
#else
#define OFFSET(name, k) (name##_at + nest_at(&layout, at, k))
#endif

typedef COMPUTE(T_G) C;

enum { PARAMETER, FIRST_MOMENT, SECOND_MOMENT, GRADIENT };

/* The rules as functions; scalars arrive as `real` and are rounded to the compute type once. */
#define PARAMETER_OF(name, value) , real name##_
#define FLAG_PARAMETER_OF(name, value) , int name
#define ROUNDED(name, value) const C name = (C)name##_;
#define UNCHANGED(name, value)
#define SQRT(x) sqrt(x)
#define RULE(name, states, reads, first, second, parameter) \
    static inline void rule_##name(C raw, C *p_, C *m_, \
                                   C *v_ OPTIMIZER_SCALARS_##name(PARAMETER_OF, FLAG_PARAMETER_OF)) \
    { \
        OPTIMIZER_SCALARS_##name(ROUNDED, UNCHANGED) const C p = *p_, g = OPTIMIZER_GRADIENT; \
        C m = *m_, v = *v_; \
        m = first; \
        v = second; \
        *p_ = parameter, *m_ = m, *v_ = v; \
    }
#include "base/kernel/optimizer.def"

/* One element per work-item. `factor` scales the gradient: an f64 scalar, or NULL for 1. */
#define ARGUMENT(name, value) , name##_
#define FLAG_ARGUMENT(name, value) , name
__kernel void update(
#ifndef CONTIGUOUS
    nest layout,
#endif
    long count, OPERAND(parameter), OPERAND(first), OPERAND(second), OPERAND(gradient),
    OPERAND(factor) JOIN(OPTIMIZER_SCALARS_, UPDATE)(PARAMETER_OF, FLAG_PARAMETER_OF))
{
    const long at = get_global_id(0);
    if (at >= count)
        return;
    const C by = factor ? (C)load_stat(factor, factor_at) : (C)1;
    C p = (C)LOAD(T_P, parameter, OFFSET(parameter, PARAMETER)), m = 0, v = 0;
#if STATES > 0
    m = (C)LOAD(T_M, first, OFFSET(first, FIRST_MOMENT));
#endif
#if STATES > 1
    v = (C)LOAD(T_V, second, OFFSET(second, SECOND_MOMENT));
#endif
    /* the clipping factor applies before weight decay, as in torch */
    const C raw = by * (C)LOAD(T_G, gradient, OFFSET(gradient, GRADIENT));
    JOIN(rule_, UPDATE)(raw, &p, &m, &v JOIN(OPTIMIZER_SCALARS_, UPDATE)(ARGUMENT, FLAG_ARGUMENT));
#if STATES > 0
    STORE(T_M, first, OFFSET(first, FIRST_MOMENT), m);
#endif
#if STATES > 1
    STORE(T_V, second, OFFSET(second, SECOND_MOMENT), v);
#endif
    STORE(T_P, parameter, OFFSET(parameter, PARAMETER), p);
}
