/* quant_matmul.cl: dot products with quantized weight rows, whose bytes are those of base/quant/quant.h.
 *
 * A unit is 32 adjacent elements. Few rows of x are multiplied by the weight's bytes as these are read, once; for many
 * rows, rows of the weight are dequantized to f32 for a GEMM.
 *
 * Options: FORMAT, the name of the dtype; with EIGHTS also IS_ with that name; for `dequantize` T_TO, dtype of the
 * result; for `multiply` T_C and T_BIAS, dtypes of result and bias; ROWS, at least the rows of x; ITEMS, work-items per
 * work-group, 1 on a CPU. */

/* A unit: elements 0 to 15, and 16 to 31. */
typedef struct unit {
    float16 low, high;
} unit;

float scale_at(const __global uchar *at)
{
    return vload_half(0, (const __global half *)at);
}

/* 32 elements: a scale, 32 signed bytes. */
unit unit_q8_0(const __global uchar *row, long at)
{
    const __global uchar *block = row + at * 34;
    const __global char *q = (const __global char *)block + 2;
    float scale = scale_at(block);
    return (unit){convert_float16(vload16(0, q)) * scale, convert_float16(vload16(1, q)) * scale};
}

/* 32 elements: a scale, 16 bytes of two nibbles. */
unit unit_q4_0(const __global uchar *row, long at)
{
    const __global uchar *block = row + at * 18;
    float scale = scale_at(block);
    uchar16 q = vload16(0, block + 2);
    return (unit){(convert_float16(q & (uchar)15) - 8.0f) * scale, (convert_float16(q >> (uchar)4) - 8.0f) * scale};
}

/* 256 elements: a scale, a min, 12 bytes of scales and mins of 8 groups, 128 bytes of nibbles. */
unit unit_q4_k(const __global uchar *row, long at)
{
    const __global uchar *block = row + at / 8 * 144, *codes = block + 4;
    int group = (int)(at % 8), i = group & 3;
    int scale = group < 4 ? codes[i] & 63 : (codes[8 + i] & 15) | (codes[i] >> 6 << 4);
    int minimum = group < 4 ? codes[4 + i] & 63 : (codes[8 + i] >> 4) | (codes[4 + i] >> 6 << 4);
    float factor = scale_at(block) * (float)scale, shift = scale_at(block + 2) * (float)minimum;
    uchar16 low = vload16(0, block + 16 + group / 2 * 32), high = vload16(1, block + 16 + group / 2 * 32);
    uchar down = (uchar)(group % 2 * 4);
    return (unit){convert_float16((low >> down) & (uchar)15) * factor - shift,
                  convert_float16((high >> down) & (uchar)15) * factor - shift};
}

/* 256 elements: 128 bytes of low nibbles, 64 of high bit pairs, scales of 16 groups, a scale. */
float16 half_unit_q6_k(const __global uchar *block, int at)
{
    int part = at % 128 / 32, from = at % 32;
    uchar16 low = vload16(0, block + at / 128 * 64 + part % 2 * 32 + from),
            high = vload16(0, block + 128 + at / 128 * 32 + from);
    uchar16 q = ((low >> (uchar)(part / 2 * 4)) & (uchar)15) | (((high >> (uchar)(part * 2)) & (uchar)3) << (uchar)4);
    float scale = scale_at(block + 208) * (float)((const __global char *)block)[192 + at / 16];
    return (convert_float16(q) - 32.0f) * scale;
}

unit unit_q6_k(const __global uchar *row, long at)
{
    const __global uchar *block = row + at / 8 * 210;
    int from = (int)(at % 8) * 32;
    return (unit){half_unit_q6_k(block, from), half_unit_q6_k(block, from + 16)};
}

/* ---- formats whose codes of scales the shared source unpacks ------------------------------------------------------
 */

static float f32_of(ushort bits)
{
    return vload_half(0, (const half *)&bits);
}

#define QUANT_FN static
#define QUANT_SPACE __global
#define QUANT_MUL(a, b) ((a) * (b))
#define F16_TO_F32 f32_of
#include "base/quant/dequantize.inc"

/* Two bits of each byte, lowest pair 0; one bit, lowest 0. */
uchar16 pair_of(uchar16 bytes, int pair)
{
    return (bytes >> (uchar)(pair * 2)) & (uchar)3;
}

uchar16 bit_of(uchar16 bytes, int bit)
{
    return (bytes >> (uchar)bit) & (uchar)1;
}

/* Nibbles as in Q4_0, with their upper bits in the four bytes before them if `has_high`: scale · (q - offset) + min. */
unit unit_of_nibbles(const __global uchar *q, bool has_high, float scale, float offset, float min)
{
    const uchar16 bits = (uchar16)(0, 1, 2, 3, 4, 5, 6, 7, 0, 1, 2, 3, 4, 5, 6, 7);
    uchar16 bytes = vload16(0, q), low = bytes & (uchar)15, high = bytes >> (uchar)4;
    if (has_high) {
        uchar4 upper = vload4(0, q - 4);
        low |= (((uchar16)((uchar8)upper.x, (uchar8)upper.y) >> bits) & (uchar)1) << (uchar)4;
        high |= (((uchar16)((uchar8)upper.z, (uchar8)upper.w) >> bits) & (uchar)1) << (uchar)4;
    }
    return (unit){(convert_float16(low) - offset) * scale + min, (convert_float16(high) - offset) * scale + min};
}

unit unit_q4_1(const __global uchar *row, long at)
{
    const __global uchar *block = row + at * 20;
    return unit_of_nibbles(block + 4, false, scale_at(block), 0, scale_at(block + 2));
}

unit unit_q5_0(const __global uchar *row, long at)
{
    const __global uchar *block = row + at * 22;
    return unit_of_nibbles(block + 6, true, scale_at(block), 16, 0);
}

unit unit_q5_1(const __global uchar *row, long at)
{
    const __global uchar *block = row + at * 24;
    return unit_of_nibbles(block + 8, true, scale_at(block), 0, scale_at(block + 2));
}

/* Elements i and i + 16 of a group of 32 share byte i; a nibble is an index into the values. */
unit unit_of_values(const __global uchar *q, float scale)
{
    const char16 values = (char16)(TARN__IQ4_VALUES);
    uchar16 bytes = vload16(0, q);
    return (unit){convert_float16(shuffle(values, bytes & (uchar)15)) * scale,
                  convert_float16(shuffle(values, bytes >> (uchar)4)) * scale};
}

unit unit_iq4_nl(const __global uchar *row, long at)
{
    return unit_of_values(row + at * 18 + 2, scale_at(row + at * 18));
}

unit unit_iq4_xs(const __global uchar *row, long at)
{
    const __global tarn__iq4_xs *block = (const __global tarn__iq4_xs *)row + at / 8;
    int group = (int)(at % 8);
    return unit_of_values(block->q + group * 16, f32_of(block->scale) * (float)iq4_xs_scale(block, group));
}

/* Half of a unit is a group in Q2_K and Q3_K. */
float16 half_unit_q2_k(const __global tarn__q2_k *block, int group)
{
    int codes = block->scales[group];
    uchar16 q = pair_of(vload16(0, block->q + group / 8 * 32 + group % 2 * 16), group / 2 % 4);
    return convert_float16(q) * (f32_of(block->scale) * (float)(codes & 15)) - f32_of(block->min) * (float)(codes >> 4);
}

unit unit_q2_k(const __global uchar *row, long at)
{
    const __global tarn__q2_k *block = (const __global tarn__q2_k *)row + at / 8;
    int group = (int)(at % 8) * 2;
    return (unit){half_unit_q2_k(block, group), half_unit_q2_k(block, group + 1)};
}

float16 half_unit_q3_k(const __global tarn__q3_k *block, int group)
{
    uchar16 q = pair_of(vload16(0, block->q + group / 8 * 32 + group % 2 * 16), group / 2 % 4) |
                bit_of(vload16(group % 2, block->high), group / 2) << (uchar)2;
    return (convert_float16(q) - 4.0f) * (f32_of(block->scale) * (float)q3_k_scale(block->scales, group));
}

unit unit_q3_k(const __global uchar *row, long at)
{
    const __global tarn__q3_k *block = (const __global tarn__q3_k *)row + at / 8;
    int group = (int)(at % 8) * 2;
    return (unit){half_unit_q3_k(block, group), half_unit_q3_k(block, group + 1)};
}

unit unit_q5_k(const __global uchar *row, long at)
{
    const __global tarn__q5_k *block = (const __global tarn__q5_k *)row + at / 8;
    int group = (int)(at % 8), scale_code, min_code;
    uchar down = (uchar)(group % 2 * 4);
    q4_k_scales(block->scales, group, &scale_code, &min_code);
    float scale = f32_of(block->scale) * (float)scale_code, min = f32_of(block->min) * (float)min_code;
    uchar16 low = (vload16(0, block->q + group / 2 * 32) >> down) & (uchar)15,
            high = (vload16(1, block->q + group / 2 * 32) >> down) & (uchar)15;
    low |= bit_of(vload16(0, block->high), group) << (uchar)4;
    high |= bit_of(vload16(1, block->high), group) << (uchar)4;
    return (unit){convert_float16(low) * scale - min, convert_float16(high) * scale - min};
}

#define UNIT(row, at) JOIN(unit_, FORMAT)(row, at)

/* quant_sizes of quant_matmul.c, passed by value: x (rows, in), weight (out, in), y (rows, out). */
typedef struct quant_sizes {
    long rows, in, out;
    long row_bytes, x_row_stride;
    long y_row_stride, y_col_stride, bias_stride;
} quant_sizes;

#ifdef EIGHTS

/* Eight adjacent elements of a row, from element 8 · at. */
#if defined(IS_q8_0)
float8 eight_of(const __global uchar *row, long at)
{
    const __global uchar *block = row + at / 4 * 34;
    const __global ushort *q = (const __global ushort *)(block + 2) + at % 4 * 4;
    const ushort4 bits = (ushort4)(q[0], q[1], q[2], q[3]);
    return convert_float8(as_char8(bits)) * scale_at(block);
}
#else
/* Quant blocks of 144 bytes, aligned to 16. */
float8 eight_of(const __global uchar *row, long at)
{
    const __global uchar *block = row + at / 32 * 144;
    const uint4 head = *(const __global uint4 *)block;
    const int group = (int)(at % 32) / 4, by = group % 4 * 8;
    const uint2 q = *(const __global uint2 *)(block + 16 + group / 2 * 32 + at % 4 * 8) >> (uint)(group % 2 * 4);
    const uint scale = group < 4 ? head.y >> by & 63 : (head.w >> by & 15) | (head.y >> (by + 6) & 3) << 4,
               min = group < 4 ? head.z >> by & 63 : (head.w >> (by + 4) & 15) | (head.z >> (by + 6) & 3) << 4;
    const float factor = f32_of((ushort)head.x) * (float)scale, shift = f32_of((ushort)(head.x >> 16)) * (float)min;
    return convert_float8(as_uchar8(q & 0x0f0f0f0fu)) * factor - shift;
}
#endif

#include "backends/opencl/common/vec4.cl"

/* Grid (eights of a row, rows of the weight): adjacent work-items write adjacent elements. */
__kernel void dequantize(const __global uchar *weight, long weight_offset, __global T_TO *to, long to_offset,
                         quant_sizes s)
{
    const long at = get_global_id(0), row = get_global_id(1);
    if (at * 8 >= s.in)
        return;
    const float8 own = eight_of(weight + weight_offset + row * s.row_bytes, at);
    STORE_4(T_TO, to, to_offset + row * s.in + at * 8, own.lo);
    STORE_4(T_TO, to, to_offset + row * s.in + at * 8 + 4, own.hi);
}

#elif !defined(ROWS)

/* Sixteen adjacent elements. */
void store_16_f32(__global f32 *to, float16 x)
{
    vstore16(x, 0, to);
}
void store_16_bf16(__global bf16 *to, float16 x)
{
    float all[16];
    vstore16(x, 0, all);
    for (int i = 0; i < 16; i++)
        to[i] = f32_to_bf16(all[i]);
}
void store_16_f16(__global f16 *to, float16 x)
{
    vstore_half16_rte(x, 0, (__global half *)to);
}
#define STORE_16(T, to, x) JOIN(store_16_, T)(to, x)

/* Grid (units of a row, rows of the weight): one unit per work-item. */
__kernel void dequantize(const __global uchar *weight, long weight_offset, __global T_TO *to, long to_offset,
                         quant_sizes s)
{
    long at = get_global_id(0), row = get_global_id(1);
    if (at * 32 >= s.in)
        return;
    unit own = UNIT(weight + weight_offset + row * s.row_bytes, at);
    STORE_16(T_TO, to + to_offset + row * s.in + at * 32, own.low);
    STORE_16(T_TO, to + to_offset + row * s.in + at * 32 + 16, own.high);
}

#else

/* The sum of all lanes, in a fixed order. */
float total(float16 x)
{
    float8 y = x.lo + x.hi;
    float4 z = y.lo + y.hi;
    return (z.x + z.z) + (z.y + z.w);
}

/* Grid (ITEMS · rows of the weight): a group has a row of the weight, its work-items every ITEMS-th unit, whose sums
 * end in a tree. Rows of x are contiguous. Bytes: the weight once; x from a cache. */
__attribute__((reqd_work_group_size(ITEMS, 1, 1))) __kernel void
multiply(const __global float *x, long x_offset, const __global uchar *weight, long weight_offset,
         const __global void *bias, long bias_offset, __global void *y, long y_offset, quant_sizes s)
{
    const int item = (int)get_local_id(0);
    const long column = get_group_id(0);
    const __global uchar *row = weight + weight_offset + column * s.row_bytes;
    float16 sum[ROWS];
    for (int i = 0; i < ROWS; i++)
        sum[i] = 0;
    for (long at = item; at * 32 < s.in; at += ITEMS) {
        unit own = UNIT(row, at);
        for (int i = 0; i < ROWS; i++)
            if (i < s.rows) {
                const __global float *from = x + x_offset + i * s.x_row_stride + at * 32;
                sum[i] += own.low * vload16(0, from) + own.high * vload16(1, from);
            }
    }
#if ITEMS > 1
    __local float sums[ITEMS];
#endif
    for (int i = 0; i < ROWS; i++) {
        float all = total(sum[i]);
#if ITEMS > 1
        for (int step = ITEMS / 2; step > 0; step /= 2) {
            barrier(CLK_LOCAL_MEM_FENCE);
            sums[item] = all;
            barrier(CLK_LOCAL_MEM_FENCE);
            all += sums[item ^ step];
        }
#endif
        if (item == 0 && i < s.rows) {
            if (bias)
                all += LOAD(T_BIAS, bias, bias_offset + column * s.bias_stride);
            STORE(T_C, y, y_offset + i * s.y_row_stride + column * s.y_col_stride, all);
        }
    }
}

#endif
