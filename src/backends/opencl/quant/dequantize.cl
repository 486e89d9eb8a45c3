/* dequantize.cl: quant blocks to f32 by the shared source, bitwise identical with the CPU. Options: FORMAT, the dtype's
 * name; SHIFT, log2 of the elements per block. No product may be contracted into an fma. */
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

#define BLOCK JOIN(tarn__, FORMAT)
#define ELEMENT JOIN(FORMAT, _element)

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
