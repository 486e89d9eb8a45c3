/* copy.cuh: copies within one dtype, shared by copy and pad. Each has its own file. */
#ifndef TARN__CUDA_COPY_CUH
#define TARN__CUDA_COPY_CUH

#include "backends/cuda/common/kernel.cuh"
#include "base/kernel/pad.h"

/* window.cu: input 0 into output 0, whose elements have `bytes` bytes, with `empty` where the window has no element.
 * False: too large. */
bool tarn__cuda_window(const tarn__call *call, const tarn__pad_axis *axis, int rank, int bytes, uint4 empty);

/* transpose.cu: output 0 and input 0 contiguous along different axes of their nest. False: they are not, or too short
 * for tiles. */
bool tarn__cuda_transpose(const tarn__call *call, const tarn__nest *nest, int bytes);

#endif
