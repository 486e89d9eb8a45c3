/* dequantize.cl: numbers packed in blocks (base/quant/quant.h) to f32, bit for bit as the CPU has them. Q8_0, Q4_0,
 * Q4_K or Q6_K is defined. Bytes are read one by one: blocks lie as in their file, aligned to nothing. No product may
 * be fused with a sum. */
#pragma OPENCL FP_CONTRACT OFF

static float f16_at(__global const uchar *p)
{
    ushort bits = (ushort)(p[0] | p[1] << 8);
    return vload_half(0, (const half *)&bits);
}

#if defined(Q8_0)
#define SHIFT 5
#define BYTES 34
static float element_of(__global const uchar *block, int i)
{
    return (float)(char)block[2 + i] * f16_at(block);
}
#elif defined(Q4_0)
#define SHIFT 5
#define BYTES 18
static float element_of(__global const uchar *block, int i)
{
    return f16_at(block) * (float)((block[2 + (i & 15)] >> (i >> 4) * 4 & 15) - 8);
}
#elif defined(Q4_K)
#define SHIFT 8
#define BYTES 144
static float element_of(__global const uchar *block, int i)
{
    __global const uchar *s = block + 4;
    int group = i >> 5, k = group & 3;
    int code = group < 4 ? s[k] & 63 : (s[8 + k] & 15) | s[k] >> 6 << 4,
        low = group < 4 ? s[4 + k] & 63 : s[8 + k] >> 4 | s[4 + k] >> 6 << 4;
    float scale = f16_at(block) * (float)code, least = f16_at(block + 2) * (float)low;
    return scale * (float)(block[16 + (group >> 1) * 32 + (i & 31)] >> (group & 1) * 4 & 15) - least;
}
#elif defined(Q6_K)
#define SHIFT 8
#define BYTES 210
static float element_of(__global const uchar *block, int i)
{
    int part = i >> 5, within = i & 31, low = block[(part >> 2) * 64 + (part & 1) * 32 + within],
        high = block[128 + (part >> 2) * 32 + within];
    int q = (low >> (part >> 1 & 1) * 4 & 15) | (high >> (part & 3) * 2 & 3) << 4;
    return f16_at(block + 208) * (float)(char)block[192 + part * 2 + (within >> 4)] * (float)(q - 32);
}
#endif

/* Operands of the nest: y and x. The place of an element counts from the view's first, which begins a block; on flipped
 * axes it is negative, and a shift still finds the block below. */
__kernel void decode(__global float *y, long y_first, __global const uchar *x, long x_first, long count, nest shape)
{
    long i = get_global_id(0);
    if (i >= count)
        return;
    long from = nest_at(&shape, i, 1);
    y[y_first + nest_at(&shape, i, 0)] =
        element_of(x + x_first + (from >> SHIFT) * BYTES, (int)(from & ((1 << SHIFT) - 1)));
}
