/* elementwise.c: all elementwise operations, generated from elementwise.def: checks, broadcasting, forward, backward
 * and in-place forms; where.
 *
 * Gradients are recomputed from the saved inputs in one kernel; nothing else is stored. Constants (tarn_scalar())
 * become params of the call and cost no memory.
 *
 * Layout: a result has the order of axes of its first operand without gaps (NHWC stays NHWC). In-place forms check
 * that no recorded computation uses the tensor and increment its version, which backward compares.
 *
 * Adding an operation needs a row in elementwise.def; this file generates its public function, in-place form,
 * gradient and entry for tarn_apply(). Only rows with parameters (leaky_relu, clamp) are written out. */
#include <math.h>
#include <string.h>

#include "base/kernel/row_default.h"
#include "ops/internal.h"

static const char *const unary_role[] = {"x"};
static const char *const binary_roles[] = {"a", "b"};

/* Dtypes of a row, by the names that elementwise.def uses. */
#define FLOAT TARN__FLOATS
#define NUMBER (TARN__NUMBERS | TARN__BIT(TARN_BOOL))

/* ---- one operand ------------------------------------------------------------------------------------------------- */

/* One row of elementwise.def at run time: names, kernels, dtypes and backward rule. */
typedef struct unary_row {
    const char *name, *inplace_name;
    tarn__kernel value, gradient;
    uint32_t dtypes;
    tarn__rule rule;
} unary_row;

/* gx = f'(x) · g, in one kernel that recomputes what it needs from x. */
static bool unary_backward(const tarn__backward *b, tarn__kernel kernel)
{
    tarn_tensor *x = b->saved[0], *g = b->grads[0];
    tarn_tensor *gx = tarn__result_like(b->function, (tarn_tensor *[]){x}, 1, tarn__shape_of(x), tarn__grad_dtype(b, 0),
                                        tarn__device(x));
    return gx &&
           tarn__run(&(tarn__launch){.kernel = kernel,
                                     .function = b->function,
                                     .params = b->params,
                                     .params_bytes = sizeof(tarn__elementwise),
                                     TARN__IN(x, g),
                                     TARN__OUT(gx)}) &&
           tarn__accumulate_grad(b, 0, gx);
}

/* x must be of a dtype of the row; bool is excluded from arithmetic. */
static bool check_unary(const char *function, tarn_tensor *x, uint32_t dtypes)
{
    if (!tarn__check(function, x, unary_role[0]) || !tarn__check_dtype(function, x, dtypes, "x"))
        return false;
    return x->view.dtype != TARN_BOOL ||
           tarn__raise(TARN_ERROR_DTYPE, "%s: x is bool; convert it with tarn_cast()", function);
}

/* x -> y of x's shape, dtype and layout; saves x. Moves 2 · n elements forward, 3 · n backward. */
static tarn_tensor *unary(const unary_row *row, tarn_tensor *x, double p0, double p1)
{
    if (!check_unary(row->name, x, row->dtypes))
        return NULL;
    tarn__elementwise params = {.p0 = p0, .p1 = p1};
    tarn_tensor *y =
        tarn__result_like(row->name, (tarn_tensor *[]){x}, 1, tarn__shape_of(x), x->view.dtype, tarn__device(x));
    if (!y || !tarn__kernel_call(row->value, row->name, params, TARN__IN(x), TARN__OUT(y)))
        return NULL;
    return tarn__finish(row->name, row->rule, params, TARN__INPUTS(x), TARN__OUTPUTS(y), TARN__SAVED(x)) ? y : NULL;
}

/* ---- in place ---------------------------------------------------------------------------------------------------- */

/* Writing in place is an error for tensors that take part in a gradient, constants, and expanded axes. */
static bool check_inplace(const char *function, const tarn_tensor *x)
{
    if (x->is_constant)
        return tarn__raise(TARN_ERROR_ARGUMENT, "%s: a tarn_scalar() cannot be overwritten", function);
    if (x->origin->grad_fn || (x->origin->requires_grad && tarn_grad_enabled()))
        return tarn__raise(TARN_ERROR_ARGUMENT,
                           "%s: x is part of a recorded computation; overwrite a detached tensor, or a leaf between "
                           "tarn_no_grad_open() and tarn_no_grad_close()",
                           function);
    for (int i = 0; i < x->view.rank; i++)
        if (x->view.stride[i] == 0 && x->view.shape[i] > 1)
            return tarn__raise(TARN_ERROR_SHAPE,
                               "%s: axis %d of x is expanded: its elements share memory; clone it first", function, i);
    return true;
}

/* The version is incremented before the kernel, so that a saved x is detected even if the kernel fails. */
static tarn_tensor *unary_inplace(const unary_row *row, tarn_tensor *x, double p0, double p1)
{
    if (!check_unary(row->inplace_name, x, row->dtypes) || !check_inplace(row->inplace_name, x))
        return NULL;
    tarn__elementwise params = {.p0 = p0, .p1 = p1};
    tarn__bump_version(x);
    return tarn__kernel_call(row->value, row->inplace_name, params, TARN__IN(x), TARN__OUT(x), .reads_output = 1)
               ? x
               : NULL;
}

/* Not recorded; the version is incremented. */
tarn_tensor *tarn_fill_inplace(tarn_tensor *x, double value)
{
    if (!tarn__check("fill_inplace", x, "x") || !check_inplace("fill_inplace", x))
        return NULL;
    tarn__bump_version(x);
    return tarn__fill_with("fill_inplace", x, value) ? x : NULL;
}

/* ---- two operands ------------------------------------------------------------------------------------------------ */

/* `first` and `second` compute one gradient each, `both` computes them in one pass. */
typedef struct binary_row {
    const char *name, *inplace_name;
    tarn__kernel value, both, first, second;
    uint32_t dtypes;
    tarn__rule rule; /* NULL: a comparison */
} binary_row;

/* Moves constants among the operands into the call's params; `in` gets the tensors the kernel reads. If all operands
 * are constants, they stay tensors. */
static void take_constants(tarn__elementwise *params, tarn_tensor *const *operand, tarn_tensor **in, int count)
{
    bool all = true;
    for (int i = 0; i < count; i++)
        all = all && operand[i]->is_constant;
    for (int i = 0; i < count; i++) {
        in[i] = operand[i];
        if (!operand[i]->is_constant || all)
            continue;
        double value = operand[i]->constant;
        params->constants |= 1u << i;
        params->constant[i].real = value;
        /* Saturated: the conversion of a value out of range would be undefined. */
        params->constant[i].integer = value >= 0x1p63    ? INT64_MAX
                                      : value <= -0x1p63 ? INT64_MIN
                                      : value == value   ? (int64_t)value
                                                         : 0;
        in[i] = NULL;
    }
}

/* A constant not representable in an integer dtype would be truncated silently. */
static bool check_constants(const char *function, const tarn__elementwise *params, const tarn_tensor *typed, int count)
{
    for (int i = 0; i < count; i++)
        if (((params->constants >> i) & 1) && !tarn__is_float(typed->view.dtype) &&
            params->constant[i].real != (double)params->constant[i].integer)
            return tarn__raise(TARN_ERROR_DTYPE,
                               "%s: constant %g is not representable in %s; convert the tensor with tarn_cast()",
                               function, params->constant[i].real, tarn_dtype_name(typed->view.dtype));
    return true;
}

/* A prepared binary call: unified operands, broadcast shape, params. */
typedef struct binary_call {
    tarn_tensor *operand[2], *in[2];
    tarn_tensor *typed; /* an operand that determines dtype and device */
    tarn_shape shape;
    tarn__elementwise params;
} binary_call;

/* Checks and unifies the operands of a binary operation. Comparisons (rows without a rule) accept bool. */
static bool prepare(const char *function, const binary_row *row, tarn_tensor *a, tarn_tensor *b, binary_call *c)
{
    *c = (binary_call){.operand = {a, b}};
    if (!tarn__unify_operands(function, c->operand, binary_roles, 2))
        return false;
    take_constants(&c->params, c->operand, c->in, 2);
    c->typed = c->in[0] ? c->in[0] : c->in[1];
    if (!((row->dtypes >> c->typed->view.dtype) & 1) &&
        !tarn__check_dtype(function, c->typed, row->dtypes & TARN__ALL, "a"))
        return false;
    if (c->typed->view.dtype == TARN_BOOL && row->rule)
        return tarn__raise(TARN_ERROR_DTYPE, "%s: operands are bool; convert them with tarn_cast()", function);
    return check_constants(function, &c->params, c->typed, 2) && tarn__broadcast(function, c->operand, 2, &c->shape);
}

/* a, b -> y of the broadcast shape, in the layout of an operand; bool for comparisons. add and sub save nothing. */
static tarn_tensor *binary(const binary_row *row, tarn_tensor *a, tarn_tensor *b)
{
    binary_call c;
    if (!prepare(row->name, row, a, b, &c))
        return NULL;
    tarn_dtype dtype = row->rule ? c.typed->view.dtype : TARN_BOOL;
    tarn_tensor *y = tarn__result_like(row->name, c.operand, 2, c.shape, dtype, tarn__device(c.typed));
    if (!y || !tarn__kernel_call(row->value, row->name, c.params, TARN__IN(c.in[0], c.in[1]), TARN__OUT(y)))
        return NULL;
    /* The gradients of a sum do not depend on its operands. */
    bool needs_values = row->value != TARN__K_add && row->value != TARN__K_sub;
    return tarn__finish(row->name, row->rule, c.params, TARN__INPUTS(c.operand[0], c.operand[1]), TARN__OUTPUTS(y),
                        TARN__SAVED(needs_values ? c.in[0] : NULL, needs_values ? c.in[1] : NULL))
               ? y
               : NULL;
}

/* A tensor for the gradient of operand i, before broadcasting is undone. */
static tarn_tensor *new_grad(const tarn__backward *b, int i)
{
    tarn_tensor *g = b->grads[0];
    return tarn__result_like(b->function, (tarn_tensor *[]){g}, 1, tarn__shape_of(g), tarn__grad_dtype(b, i),
                             tarn__device(g));
}

/* One gradient by its own kernel. */
static tarn_tensor *binary_grad(const tarn__backward *b, int i, tarn__kernel kernel)
{
    tarn_tensor *g = b->grads[0], *to = new_grad(b, i);
    bool good = to && tarn__run(&(tarn__launch){.kernel = kernel,
                                                .function = b->function,
                                                .params = b->params,
                                                .params_bytes = sizeof(tarn__elementwise),
                                                TARN__IN(b->saved[0], b->saved[1], g),
                                                TARN__OUT(to)});
    return good ? to : NULL;
}

/* Both gradients in one pass over a, b and g, or the single one that is needed. */
static bool binary_backward(const tarn__backward *b, tarn__kernel both, tarn__kernel first, tarn__kernel second)
{
    tarn_tensor *g = b->grads[0];
    if (tarn__needs_grad(b, 0) && tarn__needs_grad(b, 1)) {
        tarn_tensor *ga = new_grad(b, 0), *gb = new_grad(b, 1);
        return ga && gb &&
               tarn__run(&(tarn__launch){.kernel = both,
                                         .function = b->function,
                                         .params = b->params,
                                         .params_bytes = sizeof(tarn__elementwise),
                                         TARN__IN(b->saved[0], b->saved[1], g),
                                         TARN__OUT(ga, gb)}) &&
               tarn__accumulate_grad(b, 0, ga) && tarn__accumulate_grad(b, 1, gb);
    }
    int wanted = tarn__needs_grad(b, 0) ? 0 : 1;
    return tarn__accumulate_grad(b, wanted, binary_grad(b, wanted, wanted == 0 ? first : second));
}

/* add and sub pass their gradient on; only the negative one needs a kernel. */
static bool add_backward(const tarn__backward *b)
{
    return tarn__accumulate_grad(b, 0, b->grads[0]) && tarn__accumulate_grad(b, 1, b->grads[0]);
}

/* gb = -g. */
static bool sub_backward(const tarn__backward *b)
{
    if (!tarn__accumulate_grad(b, 0, b->grads[0]))
        return false;
    return !tarn__needs_grad(b, 1) || tarn__accumulate_grad(b, 1, tarn_neg(b->grads[0]));
}

/* A copy of an operand that overlaps the target without being identical to it: it would be overwritten before it is
 * read. */
static tarn_tensor *without_overlap(tarn_tensor *x, tarn_tensor *operand)
{
    if (!operand || operand->storage != x->storage)
        return operand;
    bool same = tarn__same_shape(&x->view, &operand->view) && x->start == operand->start &&
                memcmp(x->view.stride, operand->view.stride, sizeof(int64_t) * (size_t)x->view.rank) == 0;
    return same ? operand : tarn_clone(tarn_detach(operand));
}

/* a = f(a, b): b must broadcast to a's shape. */
static tarn_tensor *binary_inplace(const binary_row *row, tarn_tensor *a, tarn_tensor *b)
{
    binary_call c;
    const char *function = row->inplace_name;
    if (!tarn__check(function, a, "a") || !tarn__check(function, b, "b") || !check_inplace(function, a))
        return NULL;
    if (!prepare(function, row, a, b, &c))
        return NULL;
    if (c.operand[0] != a || c.shape.rank != a->view.rank ||
        memcmp(c.shape.size, a->view.shape, sizeof(int64_t) * (size_t)c.shape.rank) != 0) {
        tarn__raise(TARN_ERROR_SHAPE, "%s: the result of %s and %s does not fit into the first", function,
                    TARN__SHAPE_STRING(a), TARN__SHAPE_STRING(b));
        return NULL;
    }
    /* Copied before the version changes, so that a failed copy leaves a as it was. */
    tarn_tensor *other = without_overlap(a, c.in[1]);
    if (tarn_failed())
        return NULL;
    tarn__bump_version(a);
    return tarn__kernel_call(row->value, function, c.params, TARN__IN(a, other), TARN__OUT(a), .reads_output = 1)
               ? a
               : NULL;
}

/* ---- one function per row of elementwise.def ------------------------------------------------------------------- */

#define backward_add add_backward
#define backward_sub sub_backward

/* A row becomes its backward rule, its unary_row, tarn_OP(), tarn_OP_inplace() and, for tarn_apply(),
 * tarn__apply_OP(). */
#define UNARY(op, kinds, pv, pg, v, g) \
    static bool backward_##op(const tarn__backward *b) \
    { \
        return unary_backward(b, TARN__K_##op##_grad); \
    } \
    static const unary_row row_##op = {#op, #op "_inplace", TARN__K_##op, TARN__K_##op##_grad, kinds, backward_##op}; \
    tarn_tensor *tarn_##op(tarn_tensor *x) \
    { \
        return unary(&row_##op, x, 0, 0); \
    } \
    tarn_tensor *tarn_##op##_inplace(tarn_tensor *x) \
    { \
        return unary_inplace(&row_##op, x, 0, 0); \
    } \
    bool tarn__apply_##op(const tarn__invocation *c, tarn_tensor **out) \
    { \
        return (out[0] = tarn_##op(c->in[0])) != NULL; \
    }
/* Rows with parameters: rule and row only. Their functions, below, have more arguments. */
#define UNARY_P(op, parameters, kinds, ...) \
    static bool backward_##op(const tarn__backward *b) \
    { \
        return unary_backward(b, TARN__K_##op##_grad); \
    } \
    static const unary_row row_##op = {#op, #op "_inplace", TARN__K_##op, TARN__K_##op##_grad, kinds, backward_##op};
#define BINARY(op, kinds, pv, pg, v, ga, gb) \
    static bool rule_##op(const tarn__backward *b) \
    { \
        return TARN__ROW_DEFAULT(RULE_##op, BY_KERNEL)(op); \
    } \
    static const binary_row row_##op = { \
        #op,   #op "_inplace", TARN__K_##op, TARN__K_##op##_grad, TARN__K_##op##_grad_a, TARN__K_##op##_grad_b, \
        kinds, rule_##op}; \
    tarn_tensor *tarn_##op(tarn_tensor *x, tarn_tensor *y) \
    { \
        return binary(&row_##op, x, y); \
    } \
    tarn_tensor *tarn_##op##_inplace(tarn_tensor *x, tarn_tensor *y) \
    { \
        return binary_inplace(&row_##op, x, y); \
    } \
    bool tarn__apply_##op(const tarn__invocation *c, tarn_tensor **out) \
    { \
        return (out[0] = tarn_##op(c->in[0], c->in[1])) != NULL; \
    }
/* Backward rule of a binary row; default: its kernels. mul by a scale per row or column has a kernel that also sums the
 * scale's gradient (ops/reduce/scale_grad.c). */
#define PASS_ON(op) backward_##op(b)
#define BY_KERNEL(op) binary_backward(b, TARN__K_##op##_grad, TARN__K_##op##_grad_a, TARN__K_##op##_grad_b)
#define SCALE_OR_KERNEL(op) (tarn__scale_fits(b) ? tarn__scale_backward(b) : BY_KERNEL(op))
#define RULE_add , PASS_ON
#define RULE_sub , PASS_ON
#define RULE_mul , SCALE_OR_KERNEL
/* Comparisons: bool results, no gradient, no in-place form. */
#define COMPARE(op, v) \
    static const binary_row row_##op = {.name = #op, .value = TARN__K_##op, .dtypes = TARN__ALL}; \
    tarn_tensor *tarn_##op(tarn_tensor *x, tarn_tensor *y) \
    { \
        return binary(&row_##op, x, y); \
    } \
    bool tarn__apply_##op(const tarn__invocation *c, tarn_tensor **out) \
    { \
        return (out[0] = tarn_##op(c->in[0], c->in[1])) != NULL; \
    }
#include "base/kernel/elementwise.def"

/* ---- rows with parameters ---------------------------------------------------------------------------------------- */

/* x where x > 0, slope · x elsewhere. */
tarn_tensor *tarn_leaky_relu(tarn_tensor *x, double slope)
{
    return unary(&row_leaky_relu, x, slope, 0);
}

tarn_tensor *tarn_leaky_relu_inplace(tarn_tensor *x, double slope)
{
    return unary_inplace(&row_leaky_relu, x, slope, 0);
}

bool tarn__apply_leaky_relu(const tarn__invocation *v, tarn_tensor **out)
{
    return (out[0] = tarn_leaky_relu(v->in[0], tarn__attribute_real(v, "slope", 0.01))) != NULL;
}

/* low <= high; integer tensors need integer or infinite bounds. */
static bool check_bounds(const char *function, const tarn_tensor *x, double low, double high)
{
    if (!(low <= high))
        return tarn__raise(TARN_ERROR_ARGUMENT, "%s: low %g is not below high %g", function, low, high);
    bool whole = (isinf(low) || low == floor(low)) && (isinf(high) || high == floor(high));
    return !x || whole || tarn__is_float(x->view.dtype) ||
           tarn__raise(TARN_ERROR_DTYPE,
                       "%s: bounds %g and %g are not integers, but x is %s; convert it with tarn_cast()", function, low,
                       high, tarn_dtype_name(x->view.dtype));
}

/* The gradient passes strictly inside the bounds. */
tarn_tensor *tarn_clamp(tarn_tensor *x, double low, double high)
{
    return tarn_failed() || !check_bounds("clamp", x, low, high) ? NULL : unary(&row_clamp, x, low, high);
}

tarn_tensor *tarn_clamp_inplace(tarn_tensor *x, double low, double high)
{
    return tarn_failed() || !check_bounds("clamp_inplace", x, low, high) ? NULL
                                                                         : unary_inplace(&row_clamp, x, low, high);
}

bool tarn__apply_clamp(const tarn__invocation *v, tarn_tensor **out)
{
    double low = tarn__attribute_real(v, "min", -INFINITY), high = tarn__attribute_real(v, "max", INFINITY);
    return (out[0] = tarn_clamp(v->in[0], low, high)) != NULL;
}

/* ---- where ------------------------------------------------------------------------------------------------------- */

/* The gradient goes to a where the condition is true, to b elsewhere. */
static bool where_backward(const tarn__backward *b)
{
    tarn_tensor *condition = b->saved[0], *g = b->grads[0];
    if (tarn__needs_grad(b, 1) && tarn__needs_grad(b, 2)) {
        tarn__elementwise none = {0};
        tarn_tensor *ga = new_grad(b, 1), *gb = new_grad(b, 2);
        return ga && gb &&
               tarn__kernel_call(TARN__K_where_grad, b->function, none, TARN__IN(condition, g), TARN__OUT(ga, gb)) &&
               tarn__accumulate_grad(b, 1, ga) && tarn__accumulate_grad(b, 2, gb);
    }
    for (int i = 1; i <= 2; i++) {
        if (!tarn__needs_grad(b, i))
            continue;
        /* where() itself, with a constant 0 in place of the operand whose gradient is not needed. */
        tarn__elementwise params = {.constants = i == 1 ? 4u : 2u};
        tarn_tensor *to = new_grad(b, i);
        if (!to ||
            !tarn__kernel_call(TARN__K_where, b->function, params,
                               TARN__IN(condition, i == 1 ? g : NULL, i == 1 ? NULL : g), TARN__OUT(to)) ||
            !tarn__accumulate_grad(b, i, to))
            return false;
    }
    return true;
}

/* condition ? a : b, all broadcast. Constants a or b become params; two constants need one of them as a tensor for
 * the dtype. */
tarn_tensor *tarn_where(tarn_tensor *condition, tarn_tensor *a, tarn_tensor *b)
{
    tarn_tensor *operand[] = {condition, a, b}, *in[3];
    if (!tarn__check("where", condition, "the condition") ||
        !tarn__check_dtype("where", condition, TARN__BIT(TARN_BOOL), "the condition") ||
        !tarn__unify_operands("where", operand + 1, binary_roles, 2) || !tarn__unify_devices("where", operand, 3))
        return NULL;
    if (condition->is_constant) {
        tarn__raise(TARN_ERROR_DTYPE, "where: the condition is a tarn_scalar(), but must be a bool tensor");
        return NULL;
    }
    if (a->is_constant && b->is_constant &&
        !(operand[1] = tarn__materialize("where", a, TARN_F32, tarn__device(operand[0]))))
        return NULL;
    /* a and b are operands 1 and 2 of the kernel: their constants move up by one. */
    tarn__elementwise pair = {0}, params = {0};
    tarn_shape shape;
    take_constants(&pair, operand + 1, in + 1, 2);
    in[0] = operand[0];
    for (int i = 0; i < 2; i++)
        if ((pair.constants >> i) & 1) {
            params.constants |= 2u << i;
            params.constant[i + 1] = pair.constant[i];
        }
    tarn_tensor *typed = in[1] ? in[1] : in[2];
    if (!check_constants("where", &params, typed, 3) || !tarn__broadcast("where", operand, 3, &shape))
        return NULL;
    tarn_tensor *y = tarn__result_like("where", operand + 1, 2, shape, typed->view.dtype, tarn__device(operand[0]));
    if (!y || !tarn__kernel_call(TARN__K_where, "where", params, TARN__IN(in[0], in[1], in[2]), TARN__OUT(y)))
        return NULL;
    return tarn__finish("where", where_backward, params, TARN__INPUTS(operand[0], operand[1], operand[2]),
                        TARN__OUTPUTS(y), TARN__SAVED(operand[0]))
               ? y
               : NULL;
}

bool tarn__apply_where(const tarn__invocation *v, tarn_tensor **out)
{
    return (out[0] = tarn_where(v->in[0], v->in[1], v->in[2])) != NULL;
}
