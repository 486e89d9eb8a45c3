/* quant.c: matmul with quantized weights against the dequantized ones; elements that are hard to quantize. */
#include "support/quant.h"

#include <math.h>

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
