/* quant_tensor.c: quantized tensors: copied as bytes, or dequantized.
 *
 * Blocks are never cut: a view starts at a block and contains whole ones (tarn__check_layout()), so ordinary byte
 * kernels can do all copying.
 *
 * No kernel but dequantize and matmul_quant reads blocks; every copy goes through a byte view, on any device. */
#include "core/launch/launch.h"

tarn_tensor *tarn__quant_bytes(tarn_tensor *x)
{
    tarn_tensor *bytes = tarn__tensor_view(x);
    if (!bytes)
        return NULL;
    tarn__view *view = &bytes->view;
    tarn_dtype dtype = view->dtype;
    int last = view->rank - 1;
    view->dtype = TARN_U8;
    view->shape[last] = tarn__bytes_of(dtype, view->shape[last]);
    for (int i = 0; i < last; i++)
        view->stride[i] = tarn__bytes_of(dtype, view->stride[i]);
    tarn__tensor_set_start(bytes, tarn__bytes_of(dtype, x->start));
    return bytes;
}

static bool run(tarn__kernel kernel, const char *function, tarn_tensor *to, tarn_tensor *from)
{
    tarn__fill none = {0};
    return to && from &&
           tarn__run(&(tarn__launch){.kernel = kernel,
                                     .function = function,
                                     .inputs = 1,
                                     .outputs = 1,
                                     .in = {from},
                                     .out = {to},
                                     .params = &none,
                                     .params_bytes = sizeof(none)});
}

/* Dequantizes to f32, which may be the target, then converts. */
static bool dequantize(const char *function, tarn_tensor *to, tarn_tensor *from)
{
    bool direct = to->view.dtype == TARN_F32 && tarn__view_is_contiguous(&to->view);
    tarn_tensor *f32 = direct ? to : tarn__tensor_new(function, tarn__shape_of(from), TARN_F32, tarn__device(from));
    return run(TARN__K_dequantize, function, f32, from) && (direct || run(TARN__K_copy, function, to, f32));
}

bool tarn__quant_copy(const char *function, tarn_tensor *to, tarn_tensor *from)
{
    tarn_dtype source = from->view.dtype, target = to->view.dtype;
    if (source != target && tarn__is_quantized(target))
        return tarn__raise(TARN_ERROR_DTYPE, "%s: %s cannot be copied into quantized %s; quantize with tarn_cast()",
                           function, tarn_dtype_name(source), tarn_dtype_name(target));
    if (source != target && !tarn__is_float(target))
        return tarn__raise(TARN_ERROR_DTYPE, "%s: quantized %s converts to floats, not to %s; cast twice", function,
                           tarn_dtype_name(source), tarn_dtype_name(target));
    tarn_scope *scope = tarn_scope_open();
    bool good = scope && (source == target ? run(TARN__K_copy, function, tarn__quant_bytes(to), tarn__quant_bytes(from))
                                           : dequantize(function, to, from));
    tarn_scope_close(scope);
    return good;
}
