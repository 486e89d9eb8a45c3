/* kv_q8.c: quantized KV rows (KV cache type q8_0): u8 elements of the rows' shape, and one f16 scale per group of
 * TARN__KV_Q8_GROUP elements of a row. models/lm/kv_cache.c stores both; attention over them is
 * tarn__attention_quant_kv(), where the device has that kernel.
 *
 * The layout is that of Q8_0 (base/quant/quant.h), but in two tensors, so that rows may have any length. Forward only:
 * nothing here is recorded. */
#include "base/quant/quant.h"
#include "ops/internal.h"

int64_t tarn__kv_q8_scales(int64_t width)
{
    return (width + TARN__KV_Q8_GROUP - 1) / TARN__KV_Q8_GROUP;
}

/* For the rows that a forward pass appends to the cache. */
tarn_tensor *tarn__quantize_kv(tarn_tensor *x, tarn_tensor **scales)
{
    tarn__fill none = {0};
    tarn_shape shape = tarn__shape_of(x), groups = shape;
    groups.size[3] = tarn__kv_q8_scales(shape.size[3]);
    tarn_tensor *q8 = tarn__tensor_new("quantize_kv", shape, TARN_U8, tarn__device(x));
    *scales = q8 ? tarn__tensor_new("quantize_kv", groups, TARN_F16, tarn__device(x)) : NULL;
    return *scales && tarn__kernel_call(TARN__K_quantize_kv, "quantize_kv", none, TARN__IN(x), TARN__OUT(q8, *scales))
               ? q8
               : NULL;
}

/* For devices without attention_quant_kv: the cached rows of one layer, as floats, for one call. */
tarn_tensor *tarn__dequantize_kv(tarn_tensor *q8, tarn_tensor *scales, tarn_dtype dtype)
{
    tarn__fill none = {0};
    tarn_tensor *y = tarn__tensor_new("dequantize_kv", tarn__shape_of(q8), dtype, tarn__device(q8));
    return y && tarn__kernel_call(TARN__K_dequantize_kv, "dequantize_kv", none, TARN__IN(q8, scales), TARN__OUT(y))
               ? y
               : NULL;
}
