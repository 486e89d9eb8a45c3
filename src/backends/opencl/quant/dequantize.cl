/* dequantize.cl: quant blocks (base/quant/quant.h) to f32, bitwise identical with the CPU. Options: Q8_0, Q4_0, Q4_K or
 * Q6_K.
 *
 * Bytes are read one by one: blocks have their file layout, aligned to nothing. No product may be contracted into an
 * fma. */
#pragma OPENCL FP_CONTRACT OFF

/* Little-endian f16 at any alignment. */
static float load_f16_bytes(__global const uchar *p)
{
    ushort bits = (ushort)(p[0] | p[1] << 8);
    return vload_half(0, (const half *)&bits);
}

#if defined(Q8_0)
#define SHIFT 5  /* log2 of the elements per block */
#define BYTES 34 /* f16 scale, 32 signed bytes */
static float element_of(__global const uchar *block, int i)
{
    return (float)(char)block[2 + i] * load_f16_bytes(block);
}
#elif defined(Q4_0)
#define SHIFT 5
#define BYTES 18 /* f16 scale, 16 bytes: element i and i + 16 in the nibbles of byte i */
static float element_of(__global const uchar *block, int i)
{
    return load_f16_bytes(block) * (float)((block[2 + (i & 15)] >> (i >> 4) * 4 & 15) - 8);
}
#elif defined(Q4_K)
#define SHIFT 8
#define BYTES 144 /* f16 scale and min, 12 bytes of 6-bit scales and mins of 8 groups, 128 bytes of nibbles */
static float element_of(__global const uchar *block, int i)
{
    __global const uchar *s = block + 4;
    int group = i >> 5, k = group & 3;
    int code = group < 4 ? s[k] & 63 : (s[8 + k] & 15) | s[k] >> 6 << 4,
        low = group < 4 ? s[4 + k] & 63 : s[8 + k] >> 4 | s[4 + k] >> 6 << 4;
    float scale = load_f16_bytes(block) * (float)code, minimum = load_f16_bytes(block + 2) * (float)low;
    return scale * (float)(block[16 + (group >> 1) * 32 + (i & 31)] >> (group & 1) * 4 & 15) - minimum;
}
#elif defined(Q6_K)
#define SHIFT 8
#define BYTES 210 /* 128 bytes of low nibbles, 64 of high 2-bit pairs, 16 signed scales, f16 scale */
static float element_of(__global const uchar *block, int i)
{
    int part = i >> 5, within = i & 31, low = block[(part >> 2) * 64 + (part & 1) * 32 + within],
        high = block[128 + (part >> 2) * 32 + within];
    int q = (low >> (part >> 1 & 1) * 4 & 15) | (high >> (part & 3) * 2 & 3) << 4;
    return load_f16_bytes(block + 208) * (float)(char)block[192 + part * 2 + (within >> 4)] * (float)(q - 32);
}
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
        element_of(x + x_first + (from >> SHIFT) * BYTES, (int)(from & ((1 << SHIFT) - 1)));
}
