/* conv_direct.h: the gradient of a 3 by 3 weight in f32, straight from the images: no columns, no transforms. */
#ifndef TARN__CUDA_CONV_DIRECT_H
#define TARN__CUDA_CONV_DIRECT_H

#include "backends/cuda/cuda.h"

#ifdef __cplusplus
extern "C" {
#endif

/* The bytes of scratch for a weight of (out, in, 3, 3) and images of (images, in, rows, columns), results as large. */
size_t tarn__conv_direct_scratch(int64_t images, int64_t in, int64_t out, int64_t rows, int64_t columns);

/* gw = the gradient + beta · gw. x (N, C, H, W) and g (N, O, H, W) are dense f32, of fewer than 2^31 elements; gw is f32 (O, C, 3, 3) and lies anyhow.
 * A stride of 1, a padding of 1. */
void tarn__conv_direct_grad_weight(const tarn__call *call, const tarn__view *x, const tarn__view *g, const tarn__view *gw, double beta, void *scratch);

#ifdef __cplusplus
}
#endif
#endif
