/* concat.c: tensors combined in new memory: pad, concat, stack. Their gradients are slices: views without copies.
 *
 * The result is contiguous; operands may have any layout. pad is the one operation with its own kernel, shared with
 * the gradients of slices; concat and stack are copies.
 *
 * Operands must have one dtype and device, as everywhere; sizes are added with overflow checks. */
#include <math.h>
#include <string.h>

#include "base/memory.h"
#include "ops/op.h"

/* ---- pad --------------------------------------------------------------------------------------------------------- */

/* The slice of the result that is x. */
typedef struct inner_slice {
    tarn_shape begin, end;
} inner_slice;

/* The gradient of x is a slice of the result's. */
static bool pad_backward(const tarn__backward *b)
{
    const inner_slice *inner = b->params;
    return tarn__accumulate_grad(b, 0, tarn_shrink(b->grads[0], inner->begin, inner->end));
}

/* Sizes must be non-negative and must not overflow; an integer tensor needs an integer value. */
static bool check_pad(const tarn_tensor *x, const tarn_shape *before, const tarn_shape *after, double value)
{
    int rank = x->view.rank;
    if (before->rank != rank || after->rank != rank)
        return tarn__raise(TARN_ERROR_SHAPE, "pad: %d and %d values before and after given for x %s of rank %d",
                           before->rank, after->rank, TARN__SHAPE_STRING(x), rank);
    for (int i = 0; i < rank; i++) {
        int64_t limit = INT64_MAX - x->view.shape[i];
        if (before->size[i] < 0 || after->size[i] < 0 || before->size[i] > limit ||
            after->size[i] > limit - before->size[i])
            return tarn__raise(TARN_ERROR_SHAPE,
                               "pad: %lld before and %lld after axis %d of x %s are negative or too many",
                               (long long)before->size[i], (long long)after->size[i], i, TARN__SHAPE_STRING(x));
    }
    return tarn__is_float(x->view.dtype) || value == floor(value) ||
           tarn__raise(TARN_ERROR_DTYPE,
                       "pad: value %g is not representable in %s; convert the tensor with tarn_cast()", value,
                       tarn_dtype_name(x->view.dtype));
}

/* x -> [before + size + after per axis], with `value` around x. One kernel writes x and the padding. */
tarn_tensor *tarn_pad(tarn_tensor *x, tarn_shape before, tarn_shape after, double value)
{
    if (!(x = tarn__operand("pad", x)) || !check_pad(x, &before, &after, value))
        return NULL;
    inner_slice inner = {before, before};
    tarn_shape shape = before;
    for (int i = 0; i < shape.rank; i++) {
        inner.end.size[i] = before.size[i] + x->view.shape[i];
        shape.size[i] = inner.end.size[i] + after.size[i];
    }
    /* step 1: elements of x stay adjacent. Larger steps are for gradients of strided slices. */
    tarn__pad params = {.value = tarn__scalar_of(value), .step = {1, 1, 1, 1, 1, 1, 1, 1}};
    memcpy(params.begin, before.size, sizeof(params.begin));
    tarn_tensor *y = tarn__tensor_new("pad", shape, x->view.dtype, tarn__device(x));
    if (!y || !tarn__kernel_call(TARN__K_pad, "pad", params, TARN__IN(x), TARN__OUT(y)))
        return NULL;
    return tarn__finish("pad", pad_backward, inner, TARN__INPUTS(x), TARN__OUTPUTS(y)) ? y : NULL;
}

bool tarn__apply_pad(const tarn__invocation *v, tarn_tensor **out)
{
    tarn_shape before = tarn__attribute_shape(v, "before"), after = tarn__attribute_shape(v, "after");
    return (out[0] = tarn_pad(v->in[0], before, after, tarn__attribute_real(v, "value", 0))) != NULL;
}

/* ---- concat, stack ----------------------------------------------------------------------------------------------- */

/* The slice of a joined tensor that came from one operand, as a view of the operand's shape. */
static tarn_tensor *slice_of(tarn_tensor *whole, int axis, bool stacked, int64_t begin, int64_t size)
{
    tarn_tensor *part = tarn_slice(whole, axis, begin, begin + size);
    return part && stacked ? tarn_squeeze(part, axis) : part;
}

/* `axis` of the result; stacked operands lack that axis, concatenated ones have it. */
typedef struct join_params {
    int axis;
    bool stacked;
} join_params;

/* Each operand gets its slice of the gradient: a view, no copy. */
static bool join_backward(const tarn__backward *b)
{
    const join_params *p = b->params;
    int64_t begin = 0, size;
    bool good = true;
    for (int i = 0; good && i < b->node->inputs; i++, begin += size) {
        size = p->stacked ? 1 : tarn__input_spec(b, i)->shape.size[p->axis];
        good = !tarn__needs_grad(b, i) ||
               tarn__accumulate_grad(b, i, slice_of(b->grads[0], p->axis, p->stacked, begin, size));
    }
    return good;
}

/* Checks that all operands are tensors of one dtype and device; moved operands are replaced in the list. */
static bool check_operands(const char *function, tarn_tensor **operand, const char **roles, int count)
{
    for (int i = 0; i < count; i++) {
        if (!operand[i])
            return tarn__raise(TARN_ERROR_ARGUMENT, "%s: tensor %d of %d is NULL", function, i, count);
        if (!tarn__check_live(function, operand[i], "a tensor"))
            return false;
        if (operand[i]->is_constant)
            return tarn__raise(TARN_ERROR_ARGUMENT,
                               "%s: tensor %d of %d is a tarn_scalar(); create it with tarn_full()", function, i,
                               count);
        roles[i] = "a tensor";
    }
    return tarn__unify_operands(function, operand, roles, count);
}

/* Shape of the result: the first operand's with the summed size at `axis`, or with a new axis. */
static bool joined_shape(const char *function, tarn_tensor *const *operand, int count, join_params p, tarn_shape *shape)
{
    const tarn__view *first = &operand[0]->view;
    int64_t total = 0;
    for (int i = 0; i < count; i++) {
        const tarn__view *view = &operand[i]->view;
        bool same = view->rank == first->rank;
        for (int k = 0; same && k < first->rank; k++)
            same = view->shape[k] == first->shape[k] || (k == p.axis && !p.stacked);
        if (!same)
            return tarn__raise(TARN_ERROR_SHAPE, "%s: tensor %d is %s and tensor 0 is %s; sizes may differ %s",
                               function, i, TARN__SHAPE_STRING(operand[i]), TARN__SHAPE_STRING(operand[0]),
                               p.stacked ? "nowhere" : "only along the axis");
        int64_t size = p.stacked ? 1 : view->shape[p.axis];
        if (size > INT64_MAX - total)
            return tarn__raise(TARN_ERROR_SHAPE, "%s: sizes along axis %d add up to more than can be counted", function,
                               p.axis);
        total += size;
    }
    *shape = tarn__shape_of(operand[0]);
    if (p.stacked) {
        /* The new axis goes between the operand's axes. */
        memmove(shape->size + p.axis + 1, first->shape + p.axis, sizeof(int64_t) * (size_t)(first->rank - p.axis));
        shape->rank++;
    }
    shape->size[p.axis] = total;
    return true;
}

/* concat and stack: one copy kernel per operand into its slice of the result. */
static tarn_tensor *join(const char *function, tarn_tensor **operand, const char **roles, int count, int axis,
                         bool stacked)
{
    tarn_shape shape;
    if (!check_operands(function, operand, roles, count))
        return NULL;
    int rank = operand[0]->view.rank;
    if (stacked ? rank == TARN_MAX_RANK : rank == 0) {
        tarn__raise(TARN_ERROR_SHAPE, "%s: tensors of rank %d %s", function, rank,
                    stacked ? "have the maximum number of axes"
                            : "have no axis to concatenate along; use tarn_stack()");
        return NULL;
    }
    join_params p = {tarn__check_axis(function, axis, rank + stacked), stacked};
    if (p.axis < 0 || !joined_shape(function, operand, count, p, &shape))
        return NULL;
    tarn_tensor *y = tarn__tensor_new(function, shape, operand[0]->view.dtype, tarn__device(operand[0]));
    int64_t begin = 0;
    for (int i = 0; y && i < count; i++) {
        /* `begin` is the end of the previous operand: slices do not overlap and cover all of y. */
        int64_t size = stacked ? 1 : operand[i]->view.shape[p.axis];
        tarn_tensor *part = slice_of(y, p.axis, stacked, begin, size);
        if (!part || !tarn__copy_elements(function, part, operand[i]))
            return NULL;
        begin += size;
    }
    return y && tarn__finish(function, join_backward, p, .inputs = operand, .input_count = count, TARN__OUTPUTS(y))
               ? y
               : NULL;
}

/* Copies the list, because operands on another device may be replaced. */
static tarn_tensor *join_list(const char *function, tarn_tensor *const *tensors, int count, int axis, bool stacked)
{
    if (tarn_failed())
        return NULL;
    if (!tensors || count < 1) {
        tarn__raise(TARN_ERROR_ARGUMENT, "%s: a list of %d tensors%s", function, count, tensors ? "" : " that is NULL");
        return NULL;
    }
    size_t bytes = sizeof(tarn_tensor *) * (size_t)count;
    tarn_tensor **operand = tarn__alloc(bytes);
    const char **roles = operand ? tarn__alloc(bytes) : NULL;
    tarn_tensor *y = NULL;
    if (roles) {
        memcpy(operand, tensors, bytes);
        y = join(function, operand, roles, count, axis, stacked);
    }
    tarn__release(roles, bytes);
    tarn__release(operand, bytes);
    return y;
}

/* […, n_i, …] -> […, Σ n_i, …] along `axis`; other sizes are equal. */
tarn_tensor *tarn_concat(tarn_tensor *const *tensors, int count, int axis)
{
    return join_list("concat", tensors, count, axis, false);
}

/* `count` tensors of one shape -> that shape with a new axis of size `count`. */
tarn_tensor *tarn_stack(tarn_tensor *const *tensors, int count, int axis)
{
    return join_list("stack", tensors, count, axis, true);
}

bool tarn__apply_concat(const tarn__invocation *v, tarn_tensor **out)
{
    return (out[0] = tarn_concat(v->in, v->inputs, tarn__attribute_int_clamped(v, "axis", 0))) != NULL;
}

bool tarn__apply_stack(const tarn__invocation *v, tarn_tensor **out)
{
    return (out[0] = tarn_stack(v->in, v->inputs, tarn__attribute_int_clamped(v, "axis", 0))) != NULL;
}
