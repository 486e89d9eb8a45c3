/* copy.cuh: copies within one dtype, shared by copy and pad. Each has its own file. */
#ifndef TARN__CUDA_COPY_CUH
#define TARN__CUDA_COPY_CUH

#include "backends/cuda/common/kernel.cuh"

/* An axis of the target and of a window in it: element i of the source goes to begin + i · step. A plain copy's window
 * is the whole target. */
typedef struct tarn__cuda_axis {
    int64_t size;               /* of the target */
    int64_t begin, count, step; /* of the window */
    int64_t to, from;           /* strides */
} tarn__cuda_axis;

/* window.cu: input 0 into output 0, whose elements have `bytes` bytes, with `empty` where the window has no element.
 * False: too large. */
bool tarn__cuda_window(const tarn__call *call, const tarn__cuda_axis *axis, int rank, int bytes, uint4 empty);

/* transpose.cu: output 0 and input 0 contiguous along different axes of their nest. False: they are not, or too short
 * for tiles. */
bool tarn__cuda_transpose(const tarn__call *call, const tarn__nest *nest, int bytes);

#endif
