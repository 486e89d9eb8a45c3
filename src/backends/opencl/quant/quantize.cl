/* quantize.cl: f32 to quant blocks by the shared source, bitwise identical with the CPU; one block per work-item.
 * Options: Q8_0, Q4_0, Q4_K or Q6_K. */
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
#if defined(Q4_K) || defined(Q6_K)
#define QUANTIZE_K /* in f64, which a device may lack */
#endif
#include "base/quant/quantize.inc"

#if defined(Q8_0)
#define ELEMENTS 32
#define BLOCK tarn__q8_0
#define QUANTIZE quantize_q8_0
#elif defined(Q4_0)
#define ELEMENTS 32
#define BLOCK tarn__q4_0
#define QUANTIZE quantize_q4_0
#elif defined(Q4_K)
#define ELEMENTS 256
#define BLOCK tarn__q4_k
#define QUANTIZE quantize_q4_k
#else
#define ELEMENTS 256
#define BLOCK tarn__q6_k
#define QUANTIZE quantize_q6_k
#endif

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
