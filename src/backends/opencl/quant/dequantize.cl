/* dequantize.cl: quant blocks to f32 by the shared source, bitwise identical with the CPU. Options: Q8_0, Q4_0, Q4_K or
 * Q6_K. No product may be contracted into an fma. */
#pragma OPENCL FP_CONTRACT OFF

static float f32_of(ushort bits)
{
    return vload_half(0, (const half *)&bits);
}

#define QUANT_FN static
#define QUANT_SPACE __global
#define QUANT_MUL(a, b) ((a) * (b))
#define F16_TO_F32 f32_of
#include "base/quant/dequantize.inc"

#if defined(Q8_0)
#define SHIFT 5 /* log2 of the elements per block */
#define BLOCK tarn__q8_0
#define ELEMENT q8_0_element
#elif defined(Q4_0)
#define SHIFT 5
#define BLOCK tarn__q4_0
#define ELEMENT q4_0_element
#elif defined(Q4_K)
#define SHIFT 8
#define BLOCK tarn__q4_k
#define ELEMENT q4_k_element
#else
#define SHIFT 8
#define BLOCK tarn__q6_k
#define ELEMENT q6_k_element
#endif

/* One element per work-item. Operands of the nest: y and x. Element indices count from the view's first, which begins a
 * block; on flipped axes they are negative, and an arithmetic shift still rounds down to the block. */
__kernel void dequantize(__global float *y, long y_first, __global const uchar *x, long x_first, long count, nest shape)
{
    long i = get_global_id(0);
    if (i >= count)
        return;
    long from = nest_at(&shape, i, 1);
    y[y_first + nest_at(&shape, i, 0)] =
        ELEMENT((__global const BLOCK *)(x + x_first) + (from >> SHIFT), (int)(from & ((1 << SHIFT) - 1)));
}
