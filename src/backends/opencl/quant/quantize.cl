/* quantize.cl: f32 to quant blocks by the shared source, bitwise identical with the CPU; one block per work-item.
 * Options: FORMAT, the dtype's name; SHIFT, log2 of the elements per block. */
#pragma OPENCL FP_CONTRACT OFF

/* Round to nearest even, in private memory: vstore_half works without cl_khr_fp16. */
static ushort f16_of(float x)
{
    ushort bits;
    vstore_half_rte(x, 0, (half *)&bits);
    return bits;
}

static float f32_of(ushort bits)
{
    return vload_half(0, (const half *)&bits);
}

#define QUANT_FN static
#define QUANT_SPACE
#define QUANT_MUL(a, b) ((a) * (b))
#define F16_TO_F32 f32_of
#define F32_TO_F16 f16_of
#define fabsf fabs
#define roundf round
#if SHIFT == 8
#define QUANTIZE_K /* in f64, which a device may lack */
#endif
#include "base/quant/quantize.inc"

#define ELEMENTS (1 << SHIFT)
#define BLOCK JOIN(tarn__, FORMAT)
#define QUANTIZE JOIN(quantize_, FORMAT)

/* Elements and block in private memory; the block is copied byte by byte. */
__kernel void quantize(__global uchar *y, long y_first, __global const float *x, long x_first, long blocks)
{
    long which = get_global_id(0);
    if (which >= blocks)
        return;
    float values[ELEMENTS];
    BLOCK block;
    for (int i = 0; i < ELEMENTS; i++)
        values[i] = x[x_first + which * ELEMENTS + i];
    QUANTIZE(values, &block);
    const uchar *bytes = (const uchar *)&block;
    for (int i = 0; i < (int)sizeof(BLOCK); i++)
        y[y_first + which * (long)sizeof(BLOCK) + i] = bytes[i];
}
