/* index.c: gather, scatter_add, index_select, embedding, one_hot, and writing rows of a cache.
 *
 * Backward of a gather scatters straight into the operand's gradient accumulator: into zeros, or on top of what has
 * arrived.
 *
 * Indices are i32 or i64 on the operands' device; an index out of range is found by the kernel and raised as an
 * error at the next poll, without a synchronization here. Saved: the index alone.
 *
 * Embedding rows are added in index order on every backend, so gradients are deterministic even with repeated
 * tokens. */
#include <string.h>

#include "ops/internal.h"

/* Checks for an i32 or i64 tensor. */
static bool check_index(const char *function, const tarn_tensor *index)
{
    if (!tarn__check(function, index, "the index"))
        return false;
    if (index->is_constant)
        return tarn__raise(TARN_ERROR_DTYPE, "%s: the index is a tarn_scalar(), but must be an i32 or i64 tensor",
                           function);
    return tarn__check_dtype(function, index, TARN__INDEXES, "the index");
}

/* Opens the accumulator of input 0 with defined contents: zeros, or the gradient so far. */
static bool open_acc(const tarn__backward *b, tarn__grad_acc *acc)
{
    return tarn__grad_acc_open(b, 0, acc) && (acc->beta != 0 || tarn__fill_with(b->function, acc->tensor, 0));
}

/* ---- gather ------------------------------------------------------------------------------------------------------ */

/* Off the axis, an index must not be larger than the tensor it indexes. */
static bool check_gather(const char *function, const tarn_tensor *x, const tarn_tensor *index, int axis,
                         const char *role)
{
    if (x->view.rank != index->view.rank)
        return tarn__raise(TARN_ERROR_SHAPE, "%s: %s %s has rank %d, the index %s has rank %d", function, role,
                           TARN__SHAPE_STRING(x), x->view.rank, TARN__SHAPE_STRING(index), index->view.rank);
    for (int i = 0; i < x->view.rank; i++)
        if (i != axis && index->view.shape[i] > x->view.shape[i])
            return tarn__raise(TARN_ERROR_SHAPE, "%s: the index %s reaches beyond %s %s: axis %d has %lld against %lld",
                               function, TARN__SHAPE_STRING(index), role, TARN__SHAPE_STRING(x), i,
                               (long long)index->view.shape[i], (long long)x->view.shape[i]);
    return true;
}

/* gx[index] += g along the axis. */
static bool gather_backward(const tarn__backward *b)
{
    const tarn__along *along = b->params;
    tarn__grad_acc acc;
    return open_acc(b, &acc) &&
           tarn__kernel_call(TARN__K_scatter_add, b->function, *along, TARN__IN(b->saved[0], b->grads[0]),
                             TARN__OUT(acc.tensor), .reads_output = 1) &&
           tarn__grad_acc_close(b, 0, &acc);
}

/* y[i, j] = x[i, index[i, j]] for the last axis, likewise for others; y has the index's shape. Saves the index. */
tarn_tensor *tarn_gather(tarn_tensor *x, int axis, tarn_tensor *index)
{
    if (!tarn__check("gather", x, "x") || !check_index("gather", index))
        return NULL;
    tarn_tensor *operand[] = {tarn__materialize("gather", x, TARN_F32, tarn__device(index)), index};
    if (!operand[0] || !tarn__unify_devices("gather", operand, 2))
        return NULL;
    tarn__along along = {.axis = tarn__check_axis("gather", axis, operand[0]->view.rank)};
    if (along.axis < 0 || !check_gather("gather", operand[0], operand[1], along.axis, "x"))
        return NULL;
    tarn_tensor *y =
        tarn__tensor_new("gather", tarn__shape_of(index), operand[0]->view.dtype, tarn__device(operand[0]));
    if (!y || !tarn__kernel_call(TARN__K_gather, "gather", along, TARN__IN(operand[0], operand[1]), TARN__OUT(y)))
        return NULL;
    return tarn__finish("gather", gather_backward, along, TARN__INPUTS(operand[0], operand[1]), TARN__OUTPUTS(y),
                        TARN__SAVED(operand[1]))
               ? y
               : NULL;
}

bool tarn__apply_gather(const tarn__invocation *v, tarn_tensor **out)
{
    return (out[0] = tarn_gather(v->in[0], tarn__attribute_int_clamped(v, "axis", 0), v->in[1])) != NULL;
}

/* ---- scatter_add ------------------------------------------------------------------------------------------------- */

/* Zero-pads the gradient of a source that is larger than the index. */
static tarn_tensor *padded(const tarn__backward *b, tarn_tensor *grad, tarn_shape shape)
{
    tarn_shape after = {.rank = shape.rank};
    bool same = true;
    for (int i = 0; i < shape.rank; i++) {
        after.size[i] = shape.size[i] - grad->view.shape[i];
        same = same && after.size[i] == 0;
    }
    if (same)
        return grad;
    tarn_tensor *whole = tarn__tensor_new(b->function, shape, grad->view.dtype, tarn__device(grad));
    tarn_tensor *part = whole && tarn__fill_with(b->function, whole, 0)
                            ? tarn_shrink(whole, (tarn_shape){.rank = shape.rank}, tarn__shape_of(grad))
                            : NULL;
    return part && tarn__copy_elements(b->function, part, grad) ? whole : NULL;
}

/* gx = g, gsource = g[index]. */
static bool scatter_add_backward(const tarn__backward *b)
{
    const tarn__along *along = b->params;
    tarn_tensor *g = b->grads[0], *index = b->saved[0];
    if (!tarn__accumulate_grad(b, 0, g))
        return false;
    if (!tarn__needs_grad(b, 2))
        return true;
    tarn_tensor *part = tarn__tensor_new(b->function, tarn__shape_of(index), g->view.dtype, tarn__device(g));
    return part && tarn__kernel_call(TARN__K_gather, b->function, *along, TARN__IN(g, index), TARN__OUT(part)) &&
           tarn__accumulate_grad(b, 2, padded(b, part, tarn__input_spec(b, 2)->shape));
}

/* The index must fit the source on every axis, and x on every axis but `axis`. */
static bool check_scatter(tarn_tensor *const *operand, int axis)
{
    return tarn__check_dtype("scatter_add", operand[0], TARN__NUMBERS, "x") &&
           check_gather("scatter_add", operand[0], operand[1], axis, "x") &&
           check_gather("scatter_add", operand[2], operand[1], -1, "the source");
}

/* y = x with y[index[…]] += source[…] along the axis. Duplicate indices are added in a fixed order: deterministic. */
tarn_tensor *tarn_scatter_add(tarn_tensor *x, int axis, tarn_tensor *index, tarn_tensor *source)
{
    if (!tarn__check("scatter_add", x, "x") || !check_index("scatter_add", index) ||
        !tarn__check("scatter_add", source, "the source"))
        return NULL;
    /* A constant takes the dtype of the other operand. */
    tarn_dtype dtype = !x->is_constant ? x->view.dtype : !source->is_constant ? source->view.dtype : TARN_F32;
    tarn_tensor *typed[] = {tarn__materialize("scatter_add", x, dtype, tarn__device(index)),
                            tarn__materialize("scatter_add", source, dtype, tarn__device(index))};
    if (!typed[0] || !typed[1] ||
        !tarn__unify_operands("scatter_add", typed, (const char *const[]){"x", "the source"}, 2))
        return NULL;
    tarn_tensor *operand[] = {typed[0], index, typed[1]};
    tarn__along along = {.axis = tarn__check_axis("scatter_add", axis, operand[0]->view.rank)};
    if (!tarn__unify_devices("scatter_add", operand, 3) || along.axis < 0 || !check_scatter(operand, along.axis))
        return NULL;
    tarn_tensor *y = tarn__tensor_new("scatter_add", tarn__shape_of(operand[0]), dtype, tarn__device(operand[0]));
    if (!y || !tarn__copy_elements("scatter_add", y, operand[0]) ||
        !tarn__kernel_call(TARN__K_scatter_add, "scatter_add", along, TARN__IN(operand[1], operand[2]), TARN__OUT(y),
                           .reads_output = 1))
        return NULL;
    return tarn__finish("scatter_add", scatter_add_backward, along, TARN__INPUTS(operand[0], operand[1], operand[2]),
                        TARN__OUTPUTS(y), TARN__SAVED(operand[1]))
               ? y
               : NULL;
}

bool tarn__apply_scatter_add(const tarn__invocation *v, tarn_tensor **out)
{
    return (out[0] = tarn_scatter_add(v->in[0], tarn__attribute_int_clamped(v, "axis", 0), v->in[1], v->in[2])) != NULL;
}

/* ---- index_select, embedding ------------------------------------------------------------------------------------- */

/* index_add of the gradient. An embedding's gradient has the axes of its index, flattened to rows here. */
static bool select_backward(const tarn__backward *b)
{
    const tarn__along *along = b->params;
    tarn_shape shape = tarn__input_spec(b, 0)->shape;
    /* The shape of x with the indexed axis as long as the index. */
    shape.size[along->axis] = b->saved[0]->view.shape[0];
    tarn_tensor *g = tarn_reshape(b->grads[0], shape);
    tarn__grad_acc acc;
    return g && tarn__grad_acc_open(b, 0, &acc) &&
           tarn__kernel_call(TARN__K_index_add, b->function, *along, TARN__IN(b->saved[0], g), TARN__OUT(acc.tensor),
                             .reads_output = acc.beta != 0) &&
           tarn__grad_acc_close(b, 0, &acc);
}

/* y = x[index] along an axis: whole slices, which copy faster than gathered elements. Saves the index. */
tarn_tensor *tarn_index_select(tarn_tensor *x, int axis, tarn_tensor *index)
{
    if (!tarn__check_any("index_select", x, "x") || !check_index("index_select", index))
        return NULL;
    if (tarn__is_quantized(x->view.dtype))
        return tarn__index_select_quantized("index_select", x, axis, index);
    tarn_tensor *operand[] = {tarn__materialize("index_select", x, TARN_F32, tarn__device(index)), index};
    if (!operand[0] || !tarn__unify_devices("index_select", operand, 2))
        return NULL;
    tarn__along along = {.axis = tarn__check_axis("index_select", axis, operand[0]->view.rank)};
    if (along.axis < 0)
        return NULL;
    if (index->view.rank != 1) {
        tarn__raise(TARN_ERROR_SHAPE, "index_select: the index %s has rank %d, not 1", TARN__SHAPE_STRING(index),
                    index->view.rank);
        return NULL;
    }
    if (operand[0]->view.rank == 0) /* rank 0 as rank 1 */
        return tarn_reshape(tarn_index_select(tarn_unsqueeze(operand[0], 0), 0, operand[1]), TARN_SCALAR);
    tarn_shape shape = tarn__shape_of(operand[0]);
    shape.size[along.axis] = index->view.shape[0];
    tarn_tensor *y = tarn__tensor_new("index_select", shape, operand[0]->view.dtype, tarn__device(operand[0]));
    if (!y ||
        !tarn__kernel_call(TARN__K_index_select, "index_select", along, TARN__IN(operand[0], operand[1]), TARN__OUT(y)))
        return NULL;
    return tarn__finish("index_select", select_backward, along, TARN__INPUTS(operand[0], operand[1]), TARN__OUTPUTS(y),
                        TARN__SAVED(operand[1]))
               ? y
               : NULL;
}

bool tarn__apply_index_select(const tarn__invocation *v, tarn_tensor **out)
{
    return (out[0] = tarn_index_select(v->in[0], tarn__attribute_int_clamped(v, "axis", 0), v->in[1])) != NULL;
}

/* weight [V, C]; the result has one axis more than the index. */
static bool check_embedding(const tarn_tensor *weight, const tarn_tensor *index)
{
    if (weight->is_constant || weight->view.rank != 2)
        return tarn__raise(TARN_ERROR_SHAPE, "embedding: the weight %s has rank %d, not 2", TARN__SHAPE_STRING(weight),
                           weight->view.rank);
    return index->view.rank < TARN_MAX_RANK ||
           tarn__raise(TARN_ERROR_SHAPE,
                       "embedding: the index %s has %d axes; with one more the result would have more than %d",
                       TARN__SHAPE_STRING(index), index->view.rank, TARN_MAX_RANK);
}

/* weight [V, C], index […] -> […, C]: index_select of rows. Its backward is an index_add into the weight's
 * accumulator. */
tarn_tensor *tarn_embedding(tarn_tensor *weight, tarn_tensor *index)
{
    if (!tarn__check_any("embedding", weight, "the weight") || !check_index("embedding", index) ||
        !check_embedding(weight, index))
        return NULL;
    if (tarn__is_quantized(weight->view.dtype))
        return tarn__embedding_quantized(weight, index, TARN_F32);
    tarn_tensor *operand[] = {weight, index};
    if (!tarn__unify_devices("embedding", operand, 2))
        return NULL;
    tarn_shape shape = tarn__shape_of(index);
    int64_t rows = tarn__view_count(&index->view), columns = weight->view.shape[1];
    shape.size[shape.rank++] = columns;
    tarn__along along = {.axis = 0};
    tarn_tensor *y = tarn__tensor_new("embedding", shape, weight->view.dtype, tarn__device(operand[0]));
    tarn_tensor *list = y ? tarn_reshape(operand[1], TARN_SHAPE(rows)) : NULL; /* index and result as lists of rows */
    tarn_tensor *matrix = list ? tarn_reshape(y, TARN_SHAPE(rows, columns)) : NULL;
    if (!matrix ||
        !tarn__kernel_call(TARN__K_index_select, "embedding", along, TARN__IN(operand[0], list), TARN__OUT(matrix)))
        return NULL;
    return tarn__finish("embedding", select_backward, along, TARN__INPUTS(operand[0], operand[1]), TARN__OUTPUTS(y),
                        TARN__SAVED(list))
               ? y
               : NULL;
}

/* For models that compute in 16 bits: avoids an f32 result and a cast. */
tarn_tensor *tarn__embedding_as(tarn_tensor *weight, tarn_tensor *index, tarn_dtype dtype)
{
    if (tarn__check_any("embedding", weight, "the weight") && tarn__is_quantized(weight->view.dtype))
        return check_index("embedding", index) && check_embedding(weight, index)
                   ? tarn__embedding_quantized(weight, index, dtype)
                   : NULL;
    return tarn_embedding(weight, index);
}

bool tarn__apply_embedding(const tarn__invocation *v, tarn_tensor **out)
{
    return (out[0] = tarn_embedding(v->in[0], v->in[1])) != NULL;
}

/* ---- one_hot ----------------------------------------------------------------------------------------------------- */

/* index […] -> […, classes]: 1 at the index, 0 elsewhere; not differentiable. */
tarn_tensor *tarn_one_hot(tarn_tensor *index, int64_t classes, tarn_dtype dtype)
{
    if (!check_index("one_hot", index))
        return NULL;
    if (classes < 1 || index->view.rank == TARN_MAX_RANK) {
        tarn__raise(TARN_ERROR_SHAPE,
                    "one_hot: %lld classes for an index %s; expected at least 1 class and at most 7 axes, given %d",
                    (long long)classes, TARN__SHAPE_STRING(index), index->view.rank);
        return NULL;
    }
    tarn_shape shape = tarn__shape_of(index);
    shape.size[shape.rank++] = classes;
    tarn__along along = {.axis = index->view.rank};
    tarn_tensor *y = tarn__tensor_new("one_hot", shape, dtype, tarn__device(index));
    if (!y || !tarn__kernel_call(TARN__K_one_hot, "one_hot", along, TARN__IN(index), TARN__OUT(y)))
        return NULL;
    return tarn__finish("one_hot", NULL, along, TARN__INPUTS(index), TARN__OUTPUTS(y)) ? y : NULL;
}

/* Without `classes`, tarn_one_hot() raises the error: 0 classes. */
bool tarn__apply_one_hot(const tarn__invocation *v, tarn_tensor **out)
{
    tarn_dtype dtype = (tarn_dtype)tarn__attribute_int(v, "dtype", TARN_F32);
    return (out[0] = tarn_one_hot(v->in[0], tarn__attribute_int(v, "classes", 0), dtype)) != NULL;
}

/* ---- write_rows ------------------------------------------------------------------------------------------------ */

/* Appends rows to a KV cache at positions known only on the device. */
bool tarn__write_rows(const char *function, tarn_tensor *y, int axis, tarn_tensor *index, tarn_tensor *x)
{
    if (!tarn__check(function, y, "y") || !tarn__check(function, x, "x") || !check_index(function, index))
        return false;
    tarn__along along = {.axis = axis};
    /* Not recorded: caches take no part in gradients. Rows outside the index keep their values. */
    tarn__bump_version(y);
    return tarn__kernel_call(TARN__K_write_rows, function, along, TARN__IN(index, x), TARN__OUT(y), .reads_output = 1);
}
