/* expressions.cl: the rows of elementwise.def, where and gated as functions in C, named through ROW. All have the same
 * signature: three operands and two parameters. Names are pasted here only, since a driver may have macros of these
 * names. */

#undef UNARY_P
#undef UNARY
#undef BINARY
#undef COMPARE
#define UNARY_P(name, parameters, dtypes, pv, pg, value, gradient) \
    static C ROW(value_##name)(C x, C none_1, C none_2, C P0, C P1) \
    { \
        return (value); \
    } \
    static C ROW(grad_##name)(C x, C g, C none, C P0, C P1) \
    { \
        const C y = ROW(value_##name)(x, 0, 0, P0, P1); \
        return (gradient); \
    }
#define UNARY(name, dtypes, pv, pg, value, gradient) \
    static C ROW(value_##name)(C x, C none_1, C none_2, C P0, C P1) \
    { \
        return (value); \
    } \
    static C ROW(grad_##name)(C x, C g, C none, C P0, C P1) \
    { \
        const C y = ROW(value_##name)(x, 0, 0, P0, P1); \
        return (gradient); \
    }
#define BINARY(name, dtypes, pv, pg, value, gradient_a, gradient_b) \
    static C ROW(value_##name)(C a, C b, C none, C P0, C P1) \
    { \
        return (value); \
    } \
    static C ROW(grad_a_##name)(C a, C b, C g, C P0, C P1) \
    { \
        return (gradient_a); \
    } \
    static C ROW(grad_b_##name)(C a, C b, C g, C P0, C P1) \
    { \
        return (gradient_b); \
    }
#define COMPARE(name, value) \
    static C ROW(value_##name)(C a, C b, C none, C P0, C P1) \
    { \
        return (value) ? 1 : 0; \
    }

#include "base/kernel/elementwise.def"

/* where and its gradients: g goes to the side that was chosen. */
static C ROW(value_where)(C holds, C a, C b, C P0, C P1)
{
    return holds != 0 ? a : b;
}
static C ROW(where_holds)(C holds, C g, C none, C P0, C P1)
{
    return holds != 0 ? g : 0;
}
static C ROW(where_not)(C holds, C g, C none, C P0, C P1)
{
    return holds != 0 ? 0 : g;
}

/* act(gate) · up, and the gradients of gate and up: g · act'(gate) · up and g · act(gate). */
#define GATED(name, value, gradient) \
    static C ROW(value_gated_##name)(C x, C up, C none, C P0, C P1) \
    { \
        return (value)*up; \
    } \
    static C ROW(gated_##name##_gate)(C x, C up, C g, C P0, C P1) \
    { \
        return (gradient)*up; \
    } \
    static C ROW(gated_##name##_up)(C x, C up, C g, C P0, C P1) \
    { \
        return g * (value); \
    }
GATED(silu, SILU(x), g *SILU_GRAD(x))
GATED(gelu, GELU(x), g *GELU_GRAD(x))
GATED(gelu_erf, GELU_ERF(x), g *GELU_ERF_GRAD(x))
GATED(relu, x < 0 ? K(0) : x, x <= 0 ? K(0) : g)
#undef GATED
