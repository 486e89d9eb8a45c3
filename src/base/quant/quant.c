/* quant.c: dequantize all quant block formats, bitwise identical to the gguf package, and quantize those whose scale
 * is the largest element's (Q8_0, Q4_0). The k-quants, whose scales are searched for, are quantized in kquants.c.
 *
 * No multiply and add here may be contracted into an FMA, because the package rounds each product: the build passes
 * -ffp-contract=off. */
#include "base/quant/quant.h"

#include <math.h>

#include "base/half.h"

_Static_assert(__BYTE_ORDER__ == __ORDER_LITTLE_ENDIAN__,
               "a big-endian machine would have to swap the bytes of every scale");
_Static_assert(sizeof(tarn__q8_0) == 34 && sizeof(tarn__q4_0) == 18 && sizeof(tarn__q4_k) == 144 &&
                   sizeof(tarn__q6_k) == 210,
               "blocks have the same layout in memory and in files");

/* ---- to f32 ------------------------------------------------------------------------------------------------------ */

static void dequantize_q8_0(const tarn__q8_0 *block, float *values)
{
    float scale = tarn__f16_to_f32(block->scale);
    for (int i = 0; i < 32; i++)
        values[i] = (float)block->q[i] * scale;
}

static void dequantize_q4_0(const tarn__q4_0 *block, float *values)
{
    float scale = tarn__f16_to_f32(block->scale);
    for (int i = 0; i < 16; i++) {
        values[i] = scale * (float)((block->q[i] & 15) - 8);
        values[i + 16] = scale * (float)((block->q[i] >> 4) - 8);
    }
}

/* Unpacks the 6-bit scale and min of one group; see tarn__q4_k for the packing. */
void tarn__q4_k_group(const tarn__q4_k *block, int group, int *scale, int *min)
{
    const uint8_t *s = block->scales;
    int i = group & 3;
    *scale = group < 4 ? s[i] & 63 : (s[8 + i] & 15) | (s[i] >> 6 << 4);
    *min = group < 4 ? s[4 + i] & 63 : s[8 + i] >> 4 | (s[4 + i] >> 6 << 4);
}

static void dequantize_q4_k(const tarn__q4_k *block, float *values)
{
    for (int group = 0; group < 8; group++) {
        const uint8_t *q = block->q + group / 2 * 32;
        int scale_code, min_code, shift = group % 2 * 4;
        tarn__q4_k_group(block, group, &scale_code, &min_code);
        float scale = tarn__f16_to_f32(block->scale) * (float)scale_code,
              min = tarn__f16_to_f32(block->min) * (float)min_code;
        for (int i = 0; i < 32; i++)
            values[group * 32 + i] = scale * (float)(q[i] >> shift & 15) - min;
    }
}

static void dequantize_q6_k(const tarn__q6_k *block, float *values)
{
    float scale = tarn__f16_to_f32(block->scale), scales[16];
    for (int i = 0; i < 16; i++)
        scales[i] = scale * (float)block->scales[i];
    for (int chunk = 0; chunk < 8; chunk++) { /* 32 elements with the same shifts, of two groups */
        const uint8_t *low = block->low + chunk / 4 * 64 + chunk % 2 * 32, *high = block->high + chunk / 4 * 32;
        int low_shift = chunk / 2 % 2 * 4, high_shift = chunk % 4 * 2;
        for (int i = 0; i < 32; i++) {
            int q = (low[i] >> low_shift & 15) | (high[i] >> high_shift & 3) << 4;
            values[chunk * 32 + i] = scales[chunk * 2 + i / 16] * (float)(q - 32);
        }
    }
}

void tarn__dequantize_blocks(tarn_dtype dtype, const void *blocks, int64_t count, float *values)
{
    int64_t elements = tarn__dtypes[dtype].block_elements;
    const char *block = blocks;
    for (int64_t i = 0; i < count; i += elements, block += tarn__dtype_bytes(dtype))
        switch (dtype) {
        case TARN_Q8_0: dequantize_q8_0((const void *)block, values + i); break;
        case TARN_Q4_0: dequantize_q4_0((const void *)block, values + i); break;
        case TARN_Q4_K: dequantize_q4_k((const void *)block, values + i); break;
        case TARN_Q6_K: dequantize_q6_k((const void *)block, values + i); break;
        default: return;
        }
}

/* ---- from f32 ---------------------------------------------------------------------------------------------------- */

/* 1 / d, or 0 where d has no finite inverse: all elements are then so small that the scale is 0 in f16 as well. */
static float inverse(float d)
{
    float inverted = d != 0 ? 1 / d : 0;
    return isfinite(inverted) ? inverted : 0;
}

/* The largest magnitude becomes q = ±127, so the scale is symmetric and code -128 is never used. */
static void quantize_q8_0(const float *values, tarn__q8_0 *block)
{
    float largest = 0;
    for (int i = 0; i < 32; i++)
        largest = fmaxf(largest, fabsf(values[i]));
    float scale = largest / 127, inverted = inverse(scale);
    block->scale = tarn__f32_to_f16(scale);
    for (int i = 0; i < 32; i++)
        block->q[i] = (int8_t)roundf(values[i] * inverted);
}

/* Rounds half up by adding 0.5 to a value that is not negative; 16, which only the positive extreme can reach, is
 * clamped to 15. */
static int nibble(float value, float inverted)
{
    int q = (int)(value * inverted + 8.5f);
    return q < 15 ? q : 15;
}

/* The element of the largest magnitude becomes -8 · scale exactly, because that side has one value more. */
static void quantize_q4_0(const float *values, tarn__q4_0 *block)
{
    float largest = 0;
    for (int i = 0; i < 32; i++)
        if (fabsf(values[i]) > fabsf(largest))
            largest = values[i];
    float scale = largest / -8, inverted = inverse(scale);
    block->scale = tarn__f32_to_f16(scale);
    for (int i = 0; i < 16; i++)
        block->q[i] = (uint8_t)(nibble(values[i], inverted) | nibble(values[i + 16], inverted) << 4);
}

void tarn__quantize_blocks(tarn_dtype dtype, const float *values, int64_t count, void *blocks)
{
    int64_t elements = tarn__dtypes[dtype].block_elements;
    char *block = blocks;
    for (int64_t i = 0; i < count; i += elements, block += tarn__dtype_bytes(dtype))
        switch (dtype) {
        case TARN_Q8_0: quantize_q8_0(values + i, (void *)block); break;
        case TARN_Q4_0: quantize_q4_0(values + i, (void *)block); break;
        case TARN_Q4_K: tarn__q4_k_quantize(values + i, (void *)block); break;
        case TARN_Q6_K: tarn__q6_k_quantize(values + i, (void *)block); break;
        default: return;
        }
}
