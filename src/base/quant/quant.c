/* quant.c: dequantize all quant block formats, bitwise identical to the gguf package, and quantize to them: loops over
 * blocks around the formulas of dequantize.inc and quantize.inc.
 *
 * No multiply and add here may be contracted into an FMA, because the package rounds each product: the build passes
 * -ffp-contract=off. */
#include "base/quant/quant.h"

#include <math.h>

#include "base/half.h"

#define QUANT_FN static inline
#define QUANT_SPACE
#define QUANT_MUL(a, b) ((a) * (b))
#define F16_TO_F32 tarn__f16_to_f32
#define F32_TO_F16 tarn__f32_to_f16
#define QUANTIZE_K
#include "base/quant/quantize.inc"

_Static_assert(__BYTE_ORDER__ == __ORDER_LITTLE_ENDIAN__,
               "a big-endian machine would have to swap the bytes of every scale");
_Static_assert(sizeof(tarn__q8_0) == 34 && sizeof(tarn__q4_0) == 18 && sizeof(tarn__q4_k) == 144 &&
                   sizeof(tarn__q6_k) == 210 && sizeof(tarn__q4_1) == 20 && sizeof(tarn__q5_0) == 22 &&
                   sizeof(tarn__q5_1) == 24 && sizeof(tarn__q2_k) == 84 && sizeof(tarn__q3_k) == 110 &&
                   sizeof(tarn__q5_k) == 176 && sizeof(tarn__iq4_nl) == 18 && sizeof(tarn__iq4_xs) == 136,
               "blocks have the same layout in memory and in files");

/* ---- to f32 ------------------------------------------------------------------------------------------------------ */

/* Blocks of `count` groups of `size` elements. */
#define BY_GROUPS(type, count, size) \
    static void dequantize_##type(const tarn__##type *block, float *values) \
    { \
        for (int group = 0; group < (count); group++) \
            dequantize_##type##_group(block, group, values + group * (size)); \
    }

BY_GROUPS(q2_k, 16, 16)
BY_GROUPS(q3_k, 16, 16)
BY_GROUPS(q4_k, 8, 32)
BY_GROUPS(q5_k, 8, 32)
BY_GROUPS(q6_k, 16, 16)
BY_GROUPS(iq4_xs, 8, 32)

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
        case TARN_Q4_1: dequantize_q4_1((const void *)block, values + i); break;
        case TARN_Q5_0: dequantize_q5_0((const void *)block, values + i); break;
        case TARN_Q5_1: dequantize_q5_1((const void *)block, values + i); break;
        case TARN_Q2_K: dequantize_q2_k((const void *)block, values + i); break;
        case TARN_Q3_K: dequantize_q3_k((const void *)block, values + i); break;
        case TARN_Q5_K: dequantize_q5_k((const void *)block, values + i); break;
        case TARN_IQ4_NL: dequantize_iq4_nl((const void *)block, values + i); break;
        case TARN_IQ4_XS: dequantize_iq4_xs((const void *)block, values + i); break;
        default: return;
        }
}

/* ---- from f32 ---------------------------------------------------------------------------------------------------- */

void tarn__quantize_blocks(tarn_dtype dtype, const float *values, int64_t count, void *blocks)
{
    int64_t elements = tarn__dtypes[dtype].block_elements;
    char *block = blocks;
    for (int64_t i = 0; i < count; i += elements, block += tarn__dtype_bytes(dtype))
        switch (dtype) {
        case TARN_Q8_0: quantize_q8_0(values + i, (void *)block); break;
        case TARN_Q4_0: quantize_q4_0(values + i, (void *)block); break;
        case TARN_Q4_K: quantize_q4_k(values + i, (void *)block); break;
        case TARN_Q6_K: quantize_q6_k(values + i, (void *)block); break;
        case TARN_Q4_1: quantize_q4_1(values + i, (void *)block); break;
        case TARN_Q5_0: quantize_q5_0(values + i, (void *)block); break;
        case TARN_Q5_1: quantize_q5_1(values + i, (void *)block); break;
        default: tarn__quantize_searched(dtype, values, NULL, count, blocks); return;
        }
}
