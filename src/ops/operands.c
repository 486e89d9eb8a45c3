/* operands.c: unifying the operands of an operation: dtypes, devices, shapes, memory layouts. All operations check
 * here, so errors read alike.
 *
 * tarn_set_cross_device() is per thread: an error by default, since an implicit transfer in a loop is a common
 * performance bug. */
#include <string.h>

#include "ops/op.h"

static _Thread_local tarn_cross_device cross_device_mode;

void tarn_set_cross_device(tarn_cross_device mixed)
{
    cross_device_mode = mixed == TARN_CROSS_DEVICE_MOVE ? TARN_CROSS_DEVICE_MOVE : TARN_CROSS_DEVICE_ERROR;
}

/* Names both devices and how to allow the transfer. */
static bool raise_devices(const char *function, const tarn_tensor *a, const tarn_tensor *b)
{
    char first[32], second[32];
    return tarn__raise(TARN_ERROR_DEVICE, "%s: operands are on %s and %s; move one with tarn_to()%s", function,
                       tarn_device_name(tarn__device(a), first, sizeof(first)),
                       tarn_device_name(tarn__device(b), second, sizeof(second)),
                       cross_device_mode == TARN_CROSS_DEVICE_MOVE
                           ? "; only operands on the CPU are moved implicitly"
                           : ", or allow it with tarn_set_cross_device(TARN_CROSS_DEVICE_MOVE)");
}

/* An operand on an accelerator decides the device; only CPU operands are ever moved, as one copy too many is cheaper
 * there. */
bool tarn__unify_devices(const char *function, tarn_tensor **operand, int count)
{
    tarn_tensor *place = NULL; /* an operand on an accelerator, else the first */
    for (int i = 0; i < count; i++) {
        if (!operand[i])
            continue;
        if (!tarn__check_live(function, operand[i], "an operand"))
            return false;
        bool moves =
            place && tarn__device(place).backend == TARN__CPU_SLOT && cross_device_mode == TARN_CROSS_DEVICE_MOVE;
        if (!operand[i]->is_constant && (!place || moves))
            place = operand[i];
    }
    for (int i = 0; i < count; i++) {
        if (!operand[i] || operand[i]->is_constant || tarn__same_device(tarn__device(operand[i]), tarn__device(place)))
            continue;
        if (cross_device_mode != TARN_CROSS_DEVICE_MOVE || tarn__device(operand[i]).backend != TARN__CPU_SLOT)
            return raise_devices(function, operand[0] && !operand[0]->is_constant ? operand[0] : place, operand[i]);
        operand[i] = tarn_to(operand[i], tarn__device(place));
        if (!operand[i])
            return false;
    }
    return true;
}

/* The first tensor determines the dtype; no implicit promotion. */
bool tarn__unify_operands(const char *function, tarn_tensor **operand, const char *const *roles, int count)
{
    tarn_tensor *typed = NULL;
    for (int i = 0; i < count; i++) {
        if (!tarn__check(function, operand[i], roles[i]))
            return false;
        if (operand[i]->is_constant)
            continue;
        if (typed && typed->view.dtype != operand[i]->view.dtype)
            return tarn__raise(TARN_ERROR_DTYPE, "%s: operands are %s and %s; convert one with tarn_cast()", function,
                               tarn_dtype_name(typed->view.dtype), tarn_dtype_name(operand[i]->view.dtype));
        typed = typed ? typed : operand[i];
    }
    return tarn__unify_devices(function, operand, count);
}

/* Aligns shapes at their last axis; sizes must be equal or 1. */
bool tarn__broadcast(const char *function, tarn_tensor *const *operand, int count, tarn_shape *shape)
{
    *shape = (tarn_shape){0};
    const tarn_tensor *first = NULL;
    for (int i = 0; i < count; i++) {
        if (!operand[i])
            continue;
        const tarn__view *view = &operand[i]->view;
        for (; shape->rank < view->rank; shape->rank++) {
            memmove(shape->size + 1, shape->size, sizeof(int64_t) * (TARN_MAX_RANK - 1));
            shape->size[0] = 1;
        }
        for (int k = 0; k < view->rank; k++) {
            int64_t *size = &shape->size[shape->rank - view->rank + k];
            if (*size != view->shape[k] && *size != 1 && view->shape[k] != 1)
                return tarn__raise(TARN_ERROR_SHAPE, "%s: %s and %s do not broadcast: axis %d has %lld against %lld",
                                   function, first ? TARN__SHAPE_STRING(first) : "[]", TARN__SHAPE_STRING(operand[i]),
                                   k - view->rank, (long long)*size, (long long)view->shape[k]);
            *size = *size == 1 ? view->shape[k] : *size;
        }
        first = first ? first : operand[i];
    }
    return true;
}

/* A contiguous operand of the result's shape ends the search: row-major wins over later layouts. */
tarn_tensor *tarn__result_like(const char *function, tarn_tensor *const *operand, int count, tarn_shape shape,
                               tarn_dtype dtype, tarn_device device)
{
    int order[TARN_MAX_RANK];
    for (int i = 0; i < count; i++) {
        if (!operand[i] || operand[i]->view.rank != shape.rank ||
            memcmp(operand[i]->view.shape, shape.size, sizeof(int64_t) * (size_t)shape.rank) != 0)
            continue;
        if (tarn__view_is_contiguous(&operand[i]->view))
            break;
        if (tarn__view_order(&operand[i]->view, order))
            return tarn__tensor_new_ordered(function, shape, dtype, device, order);
    }
    return tarn__tensor_new(function, shape, dtype, device);
}

tarn_tensor *tarn__materialize(const char *function, tarn_tensor *x, tarn_dtype dtype, tarn_device device)
{
    if (!x->is_constant)
        return x;
    tarn_tensor *tensor = tarn__tensor_new(function, TARN_SCALAR, dtype, device);
    return tensor && tarn__fill_with(function, tensor, x->constant) ? tensor : NULL;
}

tarn_tensor *tarn__operand(const char *function, tarn_tensor *x)
{
    return tarn__check(function, x, "x") ? tarn__operand_any(function, x) : NULL;
}

tarn_tensor *tarn__operand_any(const char *function, tarn_tensor *x)
{
    return tarn__check_any(function, x, "x") ? tarn__materialize(function, x, TARN_F32, tarn_device_cpu()) : NULL;
}

bool tarn__axes_mask(const char *function, tarn_axes axes, int rank, uint32_t *mask)
{
    *mask = 0;
    if (axes.count < 0 || axes.count > TARN_MAX_RANK)
        return tarn__raise(TARN_ERROR_ARGUMENT, "%s: a list of %d axes is outside 0 to %d", function, axes.count,
                           TARN_MAX_RANK);
    for (int i = 0; i < axes.count; i++) {
        int axis = tarn__check_axis(function, axes.axis[i], rank);
        if (axis < 0)
            return false;
        if ((*mask >> axis) & 1)
            return tarn__raise(TARN_ERROR_ARGUMENT, "%s: axis %d is listed twice", function, axis);
        *mask |= 1u << axis;
    }
    if (axes.count == 0)
        *mask = (1u << rank) - 1;
    if (rank == 0)
        *mask = 0;
    return true;
}
