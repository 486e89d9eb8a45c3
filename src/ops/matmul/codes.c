/* codes.c: rows of numbers in 8 bits. */
#include "ops/codes.h"

#include "base/quant/quant.h"

int64_t tarn__kv_q8_scales(int64_t width)
{
    return (width + TARN__KV_Q8_GROUP - 1) / TARN__KV_Q8_GROUP;
}

tarn_tensor *tarn__quantize_kv(tarn_tensor *x, tarn_tensor **scales)
{
    tarn__fill none = {0};
    tarn_shape shape = tarn__shape_of(x), groups = shape;
    groups.size[3] = tarn__kv_q8_scales(shape.size[3]);
    tarn_tensor *codes = tarn__tensor_new("codes", shape, TARN_U8, tarn__device(x));
    *scales = codes ? tarn__tensor_new("codes", groups, TARN_F16, tarn__device(x)) : NULL;
    return *scales && tarn__kernel_call(TARN__K_quantize_kv, "codes", none, TARN__IN(x), TARN__OUT(codes, *scales))
               ? codes
               : NULL;
}

tarn_tensor *tarn__dequantize_kv(tarn_tensor *codes, tarn_tensor *scales, tarn_dtype dtype)
{
    tarn__fill none = {0};
    tarn_tensor *y = tarn__tensor_new("codes", tarn__shape_of(codes), dtype, tarn__device(codes));
    return y && tarn__kernel_call(TARN__K_dequantize_kv, "codes", none, TARN__IN(codes, scales), TARN__OUT(y)) ? y
                                                                                                               : NULL;
}
