/* quant.h: quant block formats of GGUF files (ggml's Q8_0, Q4_0, Q4_1, Q5_0, Q5_1, k-quants, IQ4): a block holds a few
 * dozen elements as small integers, with one or two scales of its own.
 *
 * Invariant: a block in memory equals the block in the file byte for byte, little-endian. Scales are f16, stored
 * here as their bits. Functions here run on the host; kernels of devices include the same formulas (quantize.inc,
 * dequantize.inc); their blocks are bitwise identical. */
#ifndef TARN__QUANT_H
#define TARN__QUANT_H

#include "base/dtype.h"
#include "base/quant/quant_blocks.h"

/* Quantized KV rows (KV cache type q8_0): the layout of Q8_0, but bytes and scales are two tensors, so that rows may
 * have any length. 32 elements share a scale; the byte is q + 128. */
#define TARN__KV_Q8_GROUP 32
#define TARN__KV_Q8_ZERO 128

/* Dequantizes `count` elements, a multiple of the block size, to f32; bitwise identical to Python's gguf package.
 * `dtype` must be one of TARN__QUANTIZED. */
void tarn__dequantize_blocks(tarn_dtype dtype, const void *blocks, int64_t count, float *values);

/* Quantizes `count` finite f32 values, a multiple of the block size. Deterministic, but not bitwise identical to
 * ggml: the scale search of the k-quants is ours (quantize.inc). */
void tarn__quantize_blocks(tarn_dtype dtype, const float *values, int64_t count, void *blocks);

/* The same by the search of search.c for any quantized dtype, with an importance per element, not negative, or NULL. */
void tarn__quantize_searched(tarn_dtype dtype, const float *values, const float *importance, int64_t count,
                             void *blocks);

/* Formats that are only read: weights are dequantized on load (iquants.c). */
typedef enum tarn__iquant {
    TARN__NO_IQUANT,
    TARN__IQ1_S,
    TARN__IQ1_M,
    TARN__IQ2_XXS,
    TARN__IQ2_XS,
    TARN__IQ2_S,
    TARN__IQ3_XXS,
    TARN__IQ3_S,
    TARN__TQ1_0,
    TARN__TQ2_0,
    TARN__MXFP4,
    TARN__NVFP4
} tarn__iquant;

/* Elements of a block, and bytes of `count` elements, a multiple of them. */
int tarn__iquant_elements(tarn__iquant format);
int64_t tarn__iquant_bytes(tarn__iquant format, int64_t count);

/* Dequantizes `count` elements to f32, bitwise identical to Python's gguf package. Blocks need no alignment. */
void tarn__dequantize_iquant(tarn__iquant format, const void *blocks, int64_t count, float *values);

#endif
