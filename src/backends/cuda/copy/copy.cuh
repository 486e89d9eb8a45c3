/* copy.cuh: ways of moving elements within one dtype, shared by copies and spreads. Each has a file of its own. */
#ifndef TARN__MOVES_CUH
#define TARN__MOVES_CUH

#include "backends/cuda/common/kernel.cuh"

/* An axis of a target and of what lies in a window of it: element i of the source at begin + i · step. A plain copy's
 * window is the whole. */
typedef struct tarn__cuda_axis {
    int64_t size;               /* of the target */
    int64_t begin, count, step; /* of the window */
    int64_t to, from;           /* strides */
} tarn__cuda_axis;

/* window.cu: input 0 laid into output 0, whose elements have `bytes` bytes, and `empty` where no element of the source
 * lies. False: too large. */
bool tarn__cuda_window(const tarn__call *call, const tarn__cuda_axis *axis, int rank, int bytes, uint4 empty);

/* transpose.cu: output 0 and input 0 dense along different axes of their nest. False: they are not, or too short there
 * for tiles. */
bool tarn__cuda_transpose(const tarn__call *call, const tarn__nest *nest, int bytes);

#endif
