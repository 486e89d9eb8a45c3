/* quant.c: matmul with quantized weights against the dequantized ones; random quant blocks; elements that are hard to
 * quantize. */
#include "support/quant.h"

#include <math.h>
#include <stddef.h>
#include <string.h>

#include "base/quant/quant_blocks.h"

void assert_quant_matmul(const tarn_tensor *x, const tarn_tensor *w, const tarn_tensor *bias, const tarn_tensor *y)
{
    assert_ok();
    int64_t in = tarn_size(w, 1), out = tarn_size(w, 0), rows = tarn_count(y) / out;
    double *vx = values_of(x), *vy = values_of(y), *vb = bias ? values_of(bias) : NULL;
    double *vw = values_of(good(tarn_cast((tarn_tensor *)w, TARN_F32)));
    double unit = tarn_dtype_of(y) == TARN_BF16 ? 0x1p-8 : tarn_dtype_of(y) == TARN_F16 ? 0x1p-11 : 0x1p-22;
    for (int64_t r = 0; r < rows; r++)
        for (int64_t o = 0; o < out; o++) {
            double sum = vb ? vb[o] : 0, bound = 0, size = fabs(sum);
            for (int64_t i = 0; i < in; i += 32) {
                double most = 0, weights = 0;
                for (int64_t k = i; k < i + 32; k++) {
                    sum += vx[r * in + k] * vw[o * in + k];
                    size += fabs(vx[r * in + k] * vw[o * in + k]);
                    weights += fabs(vw[o * in + k]);
                    most = fmax(most, fabs(vx[r * in + k]));
                }
                bound += most / 254 * weights;
            }
            double error = fabs(vy[r * out + o] - sum);
            if (!(error <= bound * 1.0001 + unit * (fabs(sum) + bound) + 1e-6 * size))
                fail_msg("%s [%d, %d]: row %d, column %d is %g, not %g: off by %g of %g",
                         tarn_dtype_name(tarn_dtype_of(w)), (int)out, (int)in, (int)r, (int)o, vy[r * out + o], sum,
                         error, bound);
        }
    free(vx), free(vy), free(vb), free(vw);
}

/* Offset of a block's own scale; of its min, or 0. */
static void scale_offsets(tarn_dtype dtype, size_t *scale, size_t *min)
{
    *scale = *min = 0;
    switch (dtype) {
    case TARN_Q4_1:
    case TARN_Q5_1:
    case TARN_Q4_K:
    case TARN_Q5_K: *min = 2; break;
    case TARN_Q2_K: *scale = offsetof(tarn__q2_k, scale), *min = offsetof(tarn__q2_k, min); break;
    case TARN_Q3_K: *scale = offsetof(tarn__q3_k, scale); break;
    case TARN_Q6_K: *scale = offsetof(tarn__q6_k, scale); break;
    default: break;
    }
}

/* Bits of a normal f16 of random sign from 2^-6 to 2^-5; of extreme ones every fourth time. */
static void put_scale(char *to, bool is_extreme, uint64_t *random)
{
    static const uint16_t extremes[] = {0, 0x0001, 0x03ff, 0x7bff};
    uint16_t bits = (uint16_t)(9 << 10 | (random_bits(random) & 0x83ff));
    if (is_extreme && random_below(random, 4) == 0)
        bits = (uint16_t)((bits & 0x8000) | extremes[random_below(random, 4)]);
    memcpy(to, &bits, sizeof(bits));
}

static tarn_tensor *quant_blocks(tarn_dtype dtype, int64_t out, int64_t in, bool is_extreme, uint64_t *random)
{
    size_t each = tarn_dtype_size(dtype), bytes = (size_t)(out * in / tarn_dtype_block_size(dtype)) * each, scale, min;
    char *blocks = malloc(bytes + 1);
    assert_non_null(blocks);
    for (size_t i = 0; i < bytes; i++)
        blocks[i] = (char)(random_bits(random) >> 32);
    scale_offsets(dtype, &scale, &min);
    for (size_t i = 0; i < bytes; i += each) {
        put_scale(blocks + i + scale, is_extreme, random);
        if (min > 0)
            put_scale(blocks + i + min, is_extreme, random);
    }
    tarn_tensor *w = good(tarn_from(blocks, TARN_SHAPE(out, in), dtype, tarn_device_cpu()));
    free(blocks);
    return w;
}

tarn_tensor *random_quant_blocks(tarn_dtype dtype, int64_t out, int64_t in, uint64_t *random)
{
    return quant_blocks(dtype, out, in, false, random);
}

tarn_tensor *extreme_quant_blocks(tarn_dtype dtype, int64_t out, int64_t in, uint64_t *random)
{
    return quant_blocks(dtype, out, in, true, random);
}

/* From -1 to 1, in steps of 2^-23. */
static float unit(uint64_t *random)
{
    return (float)(int)(random_bits(random) >> 40) * 0x1p-23f - 1;
}

void fill_quant_patterns(float *x, int64_t count)
{
    uint64_t random = 2718281828;
    for (int64_t i = 0; i < count; i++) {
        int64_t block = i / 256;
        float bell = unit(&random) + unit(&random) + unit(&random), any = unit(&random);
        float of_block = (float)(block * 7919 % 1009 - 504) * 0x1p-9f, size = ldexpf(1, -(int)(block / 10 % 40));
        const float all[] = {0.05f * bell,
                             bell / (any * any + 0x1p-10f),
                             of_block,
                             any > 0.8f ? bell : 0,
                             3 + any,
                             0,
                             0x1p18f * 0.999f * any,
                             bell * size,
                             of_block * size,
                             i % 32 ? any * size : of_block * size};
        x[i] = all[block % 10];
    }
}
