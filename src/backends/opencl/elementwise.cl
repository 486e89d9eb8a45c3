/* elementwise.cl: one row of elementwise.def. The host names the function (EXPRESSION, and SECOND where both gradients are wanted), the type computed in (C),
 * the dtypes of results (T_Y0, T_Y1) and operands (T_X0 …), and how each operand is read: IS_DENSE, IS_ONE (one element for all) or IS_CONSTANT.
 *
 * Without a nest (DENSE) every result, and every operand that is IS_DENSE, is one row of neighbours, and a work-item has PER elements. */
#include "element.cl"
#include "math.cl"

#define IS_DENSE 0
#define IS_ONE 1
#define IS_CONSTANT 2

/* All functions take the same: three operands and two parameters. Names are pasted here and nowhere below, since a driver may have macros of these names. */
#define UNARY_P(name, parameters, dtypes, pv, pg, value, gradient)                                                                        \
    static C value_##name(C x, C none_1, C none_2, C P0, C P1) { return (value); }                                                       \
    static C grad_##name(C x, C g, C none, C P0, C P1)                                                                                    \
    {                                                                                                                                    \
        const C y = value_##name(x, 0, 0, P0, P1);                                                                                       \
        return (gradient);                                                                                                               \
    }
#define UNARY(name, dtypes, pv, pg, value, gradient)                                                                                      \
    static C value_##name(C x, C none_1, C none_2, C P0, C P1) { return (value); }                                                       \
    static C grad_##name(C x, C g, C none, C P0, C P1)                                                                                    \
    {                                                                                                                                    \
        const C y = value_##name(x, 0, 0, P0, P1);                                                                                       \
        return (gradient);                                                                                                               \
    }
#define BINARY(name, dtypes, pv, pg, value, gradient_a, gradient_b)                                                                       \
    static C value_##name(C a, C b, C none, C P0, C P1) { return (value); }                                                              \
    static C grad_a_##name(C a, C b, C g, C P0, C P1) { return (gradient_a); }                                                            \
    static C grad_b_##name(C a, C b, C g, C P0, C P1) { return (gradient_b); }
#define COMPARE(name, value)                                                                                                              \
    static C value_##name(C a, C b, C none, C P0, C P1) { return (value) ? 1 : 0; }

#include "base/elementwise.def"

static C value_where(C holds, C a, C b, C P0, C P1) { return holds != 0 ? a : b; }
static C where_holds(C holds, C g, C none, C P0, C P1) { return holds != 0 ? g : 0; }
static C where_not(C holds, C g, C none, C P0, C P1) { return holds != 0 ? 0 : g; }

static C value_swiglu(C gate, C up, C none, C P0, C P1) { return SILU(gate) * up; }
static C swiglu_gate(C gate, C up, C g, C P0, C P1) { return g * SILU_GRAD(gate) * up; }
static C swiglu_up(C gate, C up, C g, C P0, C P1) { return g * SILU(gate); }

/* Operand k at place `at`; what the host named decides when the program is compiled. */
#define OPERAND(k, at) (M_X##k == IS_CONSTANT ? constant##k : GET_X##k(x##k, x##k##_first + (M_X##k == IS_ONE ? (INDEX)0 : (at))))
#define GET_X0(x, at) GET(T_X0, x, at)
#define GET_X1(x, at) GET(T_X1, x, at)
#define GET_X2(x, at) GET(T_X2, x, at)

/* The operands of an element, and its results, at their places. */
#if INPUTS > 2
#define READ(a, b, c, at_a, at_b, at_c) a = OPERAND(0, at_a), b = OPERAND(1, at_b), c = OPERAND(2, at_c);
#elif INPUTS > 1
#define READ(a, b, c, at_a, at_b, at_c) a = OPERAND(0, at_a), b = OPERAND(1, at_b);
#else
#define READ(a, b, c, at_a, at_b, at_c) a = OPERAND(0, at_a);
#endif
#if OUTPUTS > 1
#define WRITE(a, b, c, at_0, at_1)                                     \
    {                                                                  \
        PUT(T_Y0, y0, y0_first + (at_0), EXPRESSION(a, b, c, p0, p1)); \
        PUT(T_Y1, y1, y1_first + (at_1), SECOND(a, b, c, p0, p1));     \
    }
#else
#define WRITE(a, b, c, at_0, at_1)                                     \
    {                                                                  \
        PUT(T_Y0, y0, y0_first + (at_0), EXPRESSION(a, b, c, p0, p1)); \
    }
#endif

/* The elements of a work-item, a group apart: all are read before one is written, so that many reads are under way. */
#define EACH_OWN(i, at, first)                                                                          \
    _Pragma("unroll") for (INDEX at = 0, i = first; at < PER; at++, i += (INDEX)get_local_size(0)) if (i < count)

__kernel void elementwise(__global void *y0, long y0_first, __global void *y1, long y1_first, __global const void *x0, long x0_first,
                          __global const void *x1, long x1_first, __global const void *x2, long x2_first, C constant0, C constant1, C constant2, C p0, C p1,
                          INDEX count
#ifndef DENSE
                          , nest shape
#endif
)
{
#ifdef DENSE
    INDEX first = (INDEX)get_group_id(0) * (INDEX)get_local_size(0) * PER + (INDEX)get_local_id(0);
    C a[PER], b[PER], c[PER];
    EACH_OWN(i, at, first)
    {
        b[at] = c[at] = 0;
        READ(a[at], b[at], c[at], i, i, i)
    }
    EACH_OWN(i, at, first) WRITE(a[at], b[at], c[at], i, i)
#else
    INDEX i = (INDEX)get_global_id(0), at[OUTPUTS + 3];
    if (i >= count)
        return;
    locate(&shape, i, OUTPUTS + INPUTS, at);
    C a, b = 0, c = 0;
    READ(a, b, c, at[OUTPUTS], at[OUTPUTS + 1], at[OUTPUTS + 2])
    WRITE(a, b, c, at[0], at[OUTPUTS - 1])
#endif
}
