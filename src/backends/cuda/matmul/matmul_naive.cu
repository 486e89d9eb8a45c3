/* matmul_naive.cu: matmul for everything cuBLASLt lacks: integers, dtype mixtures, K = 0, and all products with
 * TARN_CUBLASLT=off. Also fills and compares buffers for autotuning.
 *
 * One thread per element of the result; terms are added in order of k. */
#include "backends/cuda/common/element.cuh"
#include "backends/cuda/matmul/matmul.h"
#include "backends/cuda/runtime/autotune.h"

/* Strides in elements, any layout. */
template <typename C> struct naive_args {
    const void *a, *b, *bias;
    void *c;
    tarn_dtype a_dtype, b_dtype, bias_dtype, c_dtype;
    int64_t m, n, k, count;
    int64_t a_down, a_across, b_down, b_across, c_down, c_across, bias_across;
    double alpha, beta;
    offset_calc<3> batches; /* a, b, c */
};

/* C: compute type of elements; S: type of the sum, f64 for 16- and 32-bit floats. 2·M·N·K operations; operands come
 * from the caches. */
template <typename C, typename S>
static __global__ void __launch_bounds__(THREADS) naive_kernel(const __grid_constant__ naive_args<C> p)
{
    int64_t at = (int64_t)blockIdx.x * THREADS + threadIdx.x, offset[3];
    if (at >= p.count)
        return;
    int64_t column = at % p.n, row = at / p.n % p.m;
    locate(p.batches, at / p.n / p.m, offset);
    S sum = 0;
    for (int64_t i = 0; i < p.k; i++)
        sum += (S)load_any<C>(p.a, p.a_dtype, offset[0] + row * p.a_down + i * p.a_across) *
               (S)load_any<C>(p.b, p.b_dtype, offset[1] + i * p.b_down + column * p.b_across);
    int64_t to = offset[2] + row * p.c_down + column * p.c_across;
    if (sizeof(C) == sizeof(int64_t) && (S)0.5 == (S)0) { /* integers: alpha and beta are 0 or 1 */
        sum = p.alpha == 1 ? sum : (S)(p.alpha * (double)sum);
        sum += p.beta != 0 ? (S)load_any<C>(p.c, p.c_dtype, to) : 0;
    } else {
        sum = (S)(p.alpha * (double)sum);
        if (p.beta != 0)
            sum += (S)(p.beta * (double)load_any<C>(p.c, p.c_dtype, to));
    }
    if (p.bias)
        sum += (S)load_any<C>(p.bias, p.bias_dtype, column * p.bias_across);
    store_any(p.c, p.c_dtype, to, sum);
}

/* Batch axes of a, b, c. The nest is made in the order c, a, b: its first operand decides which axes collapse. */
static tarn__nest batches_of(const tarn__call *call)
{
    tarn__view copy[3] = {*call->out[0], *call->in[0], *call->in[1]};
    const tarn__view *views[3];
    for (int k = 0; k < 3; k++) {
        copy[k].rank -= 2;
        views[k] = &copy[k];
    }
    tarn__nest nest;
    tarn__nest_make(&nest, 3, views);
    for (int i = 0; i < nest.rank; i++) { /* reorder to a, b, c */
        int64_t c = nest.stride[0][i];
        nest.stride[0][i] = nest.stride[1][i];
        nest.stride[1][i] = nest.stride[2][i];
        nest.stride[2][i] = c;
    }
    return nest;
}

/* Grid: an element per thread, 256 threads per block. */
template <typename C, typename S> static void launch_naive(const tarn__call *call)
{
    const tarn__view *a = call->in[0], *b = call->in[1], *c = call->out[0],
                     *bias = call->inputs > 2 ? call->in[2] : NULL;
    const tarn__matmul *params = (const tarn__matmul *)call->params;
    int last = c->rank - 1;
    tarn__nest nest = batches_of(call);
    naive_args<C> p = {};
    p.a = tarn__view_at(a), p.b = tarn__view_at(b), p.c = tarn__view_at(c), p.bias = bias ? tarn__view_at(bias) : NULL;
    p.a_dtype = a->dtype, p.b_dtype = b->dtype, p.c_dtype = c->dtype, p.bias_dtype = bias ? bias->dtype : c->dtype;
    p.m = c->shape[last - 1], p.n = c->shape[last], p.k = a->shape[a->rank - 1], p.count = tarn__view_count(c);
    p.a_down = a->stride[a->rank - 2], p.a_across = a->stride[a->rank - 1];
    p.b_down = b->stride[b->rank - 2], p.b_across = b->stride[b->rank - 1];
    p.c_down = c->stride[last - 1], p.c_across = c->stride[last];
    p.bias_across = bias && bias->rank > 0 && bias->shape[bias->rank - 1] > 1 ? bias->stride[bias->rank - 1] : 0;
    p.alpha = params->alpha, p.beta = params->beta;
    p.batches = offset_calc_of<3>(&nest);
    naive_kernel<C, S><<<blocks_for(p.count, THREADS), THREADS, 0, stream_of(call)>>>(p);
}

/* i64 for integers, f64 sums for all floats. */
void tarn__cuda_matmul_naive(const tarn__call *call)
{
    tarn_dtype dtype = call->in[0]->dtype;
    if (!tarn__is_float(dtype))
        launch_naive<int64_t, int64_t>(call);
    else if (dtype == TARN_F64)
        launch_naive<double, double>(call);
    else
        launch_naive<float, double>(call);
}

/* Random bits within the mask `keep`, ored with `add`: values of either sign from 0.5 to 2 in any float format. */
static __global__ void noise_kernel(uint32_t *to, int64_t count, uint32_t keep, uint32_t add)
{
    for (int64_t i = (int64_t)blockIdx.x * THREADS + threadIdx.x; i < count; i += (int64_t)gridDim.x * THREADS) {
        uint32_t x = (uint32_t)i * 0x9e3779b9u;
        x = (x ^ (x >> 16)) * 0x85ebca6bu;
        x = (x ^ (x >> 13)) * 0xc2b2ae35u;
        to[i] = ((x ^ (x >> 16)) & keep) | add;
    }
}

/* The mask keeps sign and mantissa; `add` sets the exponent. */
bool tarn__cuda_noise(void *memory, size_t bytes, tarn_dtype dtype, cudaStream_t stream)
{
    uint32_t keep = dtype == TARN_BF16  ? 0x80ff80ffu
                    : dtype == TARN_F16 ? 0x87ff87ffu
                    : dtype == TARN_F64 ? 0x800fffffu
                                        : 0x80ffffffu;
    uint32_t add = dtype == TARN_BF16  ? 0x3f003f00u
                   : dtype == TARN_F16 ? 0x38003800u
                   : dtype == TARN_F64 ? 0x3fe00000u
                                       : 0x3f000000u;
    noise_kernel<<<1024, THREADS, 0, stream>>>((uint32_t *)memory, (int64_t)(bytes / 4), keep, add);
    return cudaGetLastError() == cudaSuccess;
}

/* Grid-stride loop over 32-bit words. */
static __global__ void differs_kernel(const uint32_t *x, const uint32_t *y, int64_t count, int *flag)
{
    for (int64_t i = (int64_t)blockIdx.x * THREADS + threadIdx.x; i < count; i += (int64_t)gridDim.x * THREADS)
        if (x[i] != y[i])
            *flag = 1;
}

/* Several threads may write 1: the same value, so no race matters. */
bool tarn__cuda_differs(const void *x, const void *y, size_t bytes, int *flag, cudaStream_t stream)
{
    if (cudaMemsetAsync(flag, 0, sizeof(int), stream) != cudaSuccess)
        return false;
    differs_kernel<<<1024, THREADS, 0, stream>>>((const uint32_t *)x, (const uint32_t *)y, (int64_t)(bytes / 4), flag);
    return cudaGetLastError() == cudaSuccess;
}
