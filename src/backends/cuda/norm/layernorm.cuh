/* layernorm.cuh: shared by layernorm, rmsnorm and their gradients: mean and 1 / std of a row held in registers, by a
 * warp or a thread block. Rows of equal elements have exactly that mean: 1 / std amplifies no rounding error. */
#ifndef TARN__CUDA_LAYERNORM_CUH
#define TARN__CUDA_LAYERNORM_CUH

#include "backends/cuda/common/rows.cuh"

/* rows this short are computed in f64: the gradient is the small remainder of a cancellation */
#define SHORT_ROW WARP

/* A vector along the normalized axis; base NULL if there is none. */
static inline row_operand vector_of(const tarn__view *view)
{
    if (!view)
        return row_operand{NULL, 1, TARN_F32};
    return row_operand{tarn__view_at(view), view->shape[view->rank - 1] > 1 ? view->stride[view->rank - 1] : 1,
                       view->dtype};
}

/* True if the vector can be read in aligned vectors of `width` elements. */
static inline bool vector_has_vecs(const row_operand &o, int width)
{
    return !o.base || (o.along == 1 && is_aligned(o.base, tarn__dtype_bytes(o.dtype) * (size_t)width));
}

/* A row's sum divided by its length. In f64 an exact division: the mean of equal values is that value. */
__device__ __forceinline__ float mean_of(double sum, double length, double inverse, float)
{
    return (float)(sum * inverse);
}
__device__ __forceinline__ double mean_of(double sum, double length, double inverse, double)
{
    return sum / length;
}

__device__ __forceinline__ float inverse_root(double x, float)
{
    return 1.0f / sqrtf((float)x);
}
__device__ __forceinline__ double inverse_root(double x, double)
{
    return 1 / sqrt(x);
}

/* Sum of a vector, as its first element plus the distances from it: exact if all are equal. Otherwise the mean of equal
 * elements far from 0 could be off by a rounding error, which 1 / std amplifies. */
template <typename R> __device__ __forceinline__ double vec_sum(const typename R::raw &x)
{
    typename R::real first = R::element(x, 0), rest = 0;
#pragma unroll
    for (int i = 1; i < R::width; i++)
        rest += R::element(x, i) - first;
    return R::width > 1 ? (double)first * R::width + (double)rest : (double)first;
}

/* Accumulation type of a row's sums. 16-bit rows held by a warp, at most 1,024 elements, are summed in f32: if all are
 * equal the sum needs at most 21 bits and is exact. */
template <typename R, bool is_warp> struct row_sum {
    typedef double type;
};
template <int N> struct row_sum<typed<bf16, N>, true> {
    typedef float type;
};
template <int N> struct row_sum<typed<f16, N>, true> {
    typedef float type;
};

/* Sum of the vectors held by the row's threads. If f32 overflows, all threads sum again in f64. */
template <typename R, int P, bool is_warp> __device__ __forceinline__ double sum_row(const typename R::raw *x, int vecs)
{
    const int me = row_thread<is_warp>(), threads = row_threads<is_warp>();
    if constexpr (sizeof(typename row_sum<R, is_warp>::type) == sizeof(float)) {
        float part = 0;
#pragma unroll
        for (int p = 0; p < P; p++)
            if (me + p * threads < vecs) {
#pragma unroll
                for (int i = 0; i < R::width; i++)
                    part += R::element(x[p], i);
            }
        part = row_reduce<is_warp, plus>(part, 0.0f);
        /* an overflow of f32 repeats the sum in f64, in all threads */
        if (fabsf(part) < CUDART_INF_F)
            return (double)part;
    }
    double sum = 0;
#pragma unroll
    for (int p = 0; p < P; p++)
        if (me + p * threads < vecs)
            sum += vec_sum<R>(x[p]);
    return row_reduce<is_warp, plus>(sum, 0.0);
}

/* Sum of the threads' parts, likewise. */
template <typename R, bool is_warp, typename C> __device__ __forceinline__ double sum_parts(C part)
{
    if constexpr (sizeof(typename row_sum<R, is_warp>::type) == sizeof(float)) {
        float sum = row_reduce<is_warp, plus>((float)part, 0.0f);
        if (fabsf(sum) < CUDART_INF_F)
            return (double)sum;
    }
    return row_reduce<is_warp, plus>((double)part, 0.0);
}

/* Mean and 1 / std of a row held in registers: two passes, so that nothing cancels. rmsnorm's mean is 0. */
template <typename R, int P, bool is_warp>
__device__ __forceinline__ void row_stats(const typename R::raw *x, int vecs, bool is_centred, double length,
                                          double inverse, double epsilon, typename R::real *mean,
                                          typename R::real *rstd)
{
    typedef typename R::real C;
    const int me = row_thread<is_warp>(), threads = row_threads<is_warp>();
    C squares = 0;
    /* rmsnorm skips the mean: the spread is around 0 */
    *mean = is_centred ? mean_of(sum_row<R, P, is_warp>(x, vecs), length, inverse, (C)0) : (C)0;
#pragma unroll
    for (int p = 0; p < P; p++)
        if (me + p * threads < vecs) {
#pragma unroll
            for (int i = 0; i < R::width; i++) {
                C d = R::element(x[p], i) - *mean;
                squares += d * d;
            }
        }
    double total = sum_parts<R, is_warp>(squares);
    *rstd = inverse_root((double)mean_of(total, length, inverse, (C)0) + epsilon, (C)0);
}

/* Operands of a gradient; NULL: no such operand. */
struct layernorm_grad {
    const tarn__view *x, *weight, *mean, *rstd, *g;
    const tarn__view *residual; /* gradient of the residual stream, added to gx */
    const tarn__view *gx, *gweight, *gbias;
    bool is_centred;            /* layernorm, not rmsnorm */
    double epsilon, offset;     /* offset: of the weight */
    const tarn__view *dropped;  /* dropout of gx, contiguous as gx is then; NULL: none */
    const tarn__random *random; /* of it */
};

/* layernorm_grad.cu: prepares and runs a gradient with these operands. */
tarn__plan_status tarn__cuda_prepare_layernorm_grad(tarn__plan *plan, const layernorm_grad *of);
void tarn__cuda_run_layernorm_grad(const tarn__call *call, const layernorm_grad *of);

#endif
