/* custom_op.cu: squareplus on CUDA devices, for custom_op.c.
 *
 *   nvcc -DCUSTOM_OP_CUDA -c examples/custom_op.cu -o custom_op_cuda.o */
#include <cuda_runtime.h>

#include "custom_op.h"

/* One thread per element; the last block's threads beyond `count` do nothing. */
template <typename T> static __global__ void squareplus_kernel(T *to, const T *x, const T *g, int64_t count, T b)
{
    int64_t i = (int64_t)blockIdx.x * blockDim.x + threadIdx.x;
    if (i >= count)
        return;
    T root = sqrt(x[i] * x[i] + b);
    to[i] = g ? (1 + x[i] / root) / 2 * g[i] : (x[i] + root) / 2;
}

template <typename T> static void launch(const squareplus_job *job, cudaStream_t stream)
{
    unsigned threads = 256, blocks = (unsigned)((job->count + threads - 1) / threads);
    squareplus_kernel<T>
        <<<blocks, threads, 0, stream>>>((T *)job->to, (const T *)job->x, (const T *)job->g, job->count, (T)job->b);
}

/* The launch returns at once. tarn's own kernels run on the same stream, so that the order is right without waiting. */
const char *squareplus_cuda(const squareplus_job *job, void *stream)
{
    if (job->count == 0)
        return NULL;
    if (job->is_f64)
        launch<double>(job, (cudaStream_t)stream);
    else
        launch<float>(job, (cudaStream_t)stream);
    cudaError_t status = cudaGetLastError();
    return status == cudaSuccess ? NULL : cudaGetErrorString(status);
}
