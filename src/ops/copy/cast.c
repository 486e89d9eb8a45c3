/* cast.c: the same values in another dtype, on another device, or in memory of their own.
 *
 * Each returns its operand unchanged where there is nothing to do, so calls need no condition. Gradients take the
 * reverse way: cast back, transferred back, or passed on. */
#include "ops/internal.h"

/* ---- cast -------------------------------------------------------------------------------------------------------- */

static bool cast_backward(const tarn__backward *b)
{
    return tarn__accumulate_grad(b, 0, b->grads[0]); /* accumulation converts back */
}

/* Returns x itself if it has the dtype. Differentiable between floats only. Quantized dtypes are handled in
 * ops/matmul/quant.c. */
tarn_tensor *tarn_cast(tarn_tensor *x, tarn_dtype dtype)
{
    if (!tarn__check_any("cast", x, "x"))
        return NULL;
    if ((unsigned)dtype >= TARN_DTYPE_COUNT) {
        tarn__raise(TARN_ERROR_DTYPE, "cast: unknown dtype %d", (int)dtype);
        return NULL;
    }
    /* A tarn_scalar() is never returned as it is: the result of a cast has storage. */
    if (x->view.dtype == dtype && !x->is_constant)
        return x;
    if (tarn__is_quantized(dtype))
        return tarn__cast_to_quantized(x, dtype);
    tarn_tensor *y = tarn__result_like("cast", (tarn_tensor *[]){x}, 1, tarn__shape_of(x), dtype, tarn__device(x));
    tarn__fill none = {0};
    if (!y || !tarn__copy_elements("cast", y, x))
        return NULL;
    /* Through an integer dtype the derivative is 0 almost everywhere: nothing is recorded. */
    bool smooth = tarn__is_float(dtype) && tarn__is_float(x->view.dtype);
    return tarn__finish("cast", smooth ? cast_backward : NULL, none, TARN__INPUTS(x), TARN__OUTPUTS(y)) ? y : NULL;
}

bool tarn__apply_cast(const tarn__invocation *v, tarn_tensor **out)
{
    return (out[0] = tarn_cast(v->in[0], (tarn_dtype)tarn__attribute_int(v, "dtype", TARN_F32))) != NULL;
}

/* ---- to ---------------------------------------------------------------------------------------------------------- */

/* The gradient is transferred back. */
static bool to_backward(const tarn__backward *b)
{
    return tarn__accumulate_grad(b, 0, tarn_to(b->grads[0], tarn__input_spec(b, 0)->device));
}

/* Returns x itself if it is on the device; else one transfer of contiguous bytes. */
tarn_tensor *tarn_to(tarn_tensor *x, tarn_device device)
{
    if (!tarn__check_any("to", x, "the tensor") || !tarn__backend_of(device, "to"))
        return NULL;
    if (tarn__same_device(tarn__device(x), device))
        return x;
    tarn_tensor *y = tarn__tensor_new("to", tarn__shape_of(x), x->view.dtype, device);
    tarn__fill none = {0};
    if (!y || !tarn__copy_elements("to", y, x))
        return NULL;
    return tarn__finish("to", to_backward, none, TARN__INPUTS(x), TARN__OUTPUTS(y)) ? y : NULL;
}

/* ---- clone, contiguous ------------------------------------------------------------------------------------------- */

static bool clone_backward(const tarn__backward *b)
{
    return tarn__accumulate_grad(b, 0, b->grads[0]);
}

/* Row-major whatever the layout of x, unlike most results, which keep the order of axes. */
static tarn_tensor *contiguous_copy(const char *function, tarn_tensor *x)
{
    tarn_tensor *y = tarn__tensor_new(function, tarn__shape_of(x), x->view.dtype, tarn__device(x));
    tarn__fill none = {0};
    if (!y || !tarn__copy_elements(function, y, x))
        return NULL;
    return tarn__finish(function, clone_backward, none, TARN__INPUTS(x), TARN__OUTPUTS(y)) ? y : NULL;
}

/* Always a copy, even of a contiguous x. */
tarn_tensor *tarn_clone(tarn_tensor *x)
{
    return tarn__check_any("clone", x, "the tensor") ? contiguous_copy("clone", x) : NULL;
}

/* x itself if contiguous, else a recorded copy. */
tarn_tensor *tarn_contiguous(tarn_tensor *x)
{
    if (!tarn__check_any("contiguous", x, "x"))
        return NULL;
    return tarn__view_is_contiguous(&x->view) ? x : contiguous_copy("contiguous", x);
}

bool tarn__apply_clone(const tarn__invocation *v, tarn_tensor **out)
{
    return (out[0] = tarn_clone(v->in[0])) != NULL;
}

bool tarn__apply_contiguous(const tarn__invocation *v, tarn_tensor **out)
{
    return (out[0] = tarn_contiguous(v->in[0])) != NULL;
}
