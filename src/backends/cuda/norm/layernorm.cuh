/* layernorm.cuh: what layernorm and rmsnorm share with their gradients. */
#ifndef TARN__NORM_CUH
#define TARN__NORM_CUH

#include "backends/cuda/common/rows.cuh"

#define SHORT_ROW WARP /* rows this short are computed in f64: their gradient is what little normalising leaves */

/* A vector over the axis; base NULL where there is none. */
static inline row_operand vector_of(const tarn__view *view)
{
    if (!view)
        return row_operand{NULL, 1, TARN_F32};
    return row_operand{tarn__view_at(view), view->shape[view->rank - 1] > 1 ? view->stride[view->rank - 1] : 1,
                       view->dtype};
}

static inline bool vector_has_packs(const row_operand &o, int width)
{
    return !o.base || (o.along == 1 && is_aligned(o.base, tarn__dtype_bytes(o.dtype) * (size_t)width));
}

/* A sum over a row, divided by its length. An exact quotient in f64: the mean of equal numbers is that number. */
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

/* The sum of a pack, as its first element and the distances from it: exact where all are equal. Else the mean of equal
 * elements far from 0 could be off by a rounding, which 1 / deviation makes large. */
template <typename R> __device__ __forceinline__ double pack_sum(const typename R::raw &x)
{
    typename R::real first = R::element(x, 0), rest = 0;
#pragma unroll
    for (int i = 1; i < R::width; i++)
        rest += R::element(x, i) - first;
    return R::width > 1 ? (double)first * R::width + (double)rest : (double)first;
}

/* What a row's sums are made in. 16-bit elements of a row that a warp holds, at most 1024, are summed in f32: where all
 * are equal the sum needs no more than 21 bits, so it is exact, and the mean is that element. */
template <typename R, bool is_warp> struct row_sum {
    typedef double type;
};
template <int N> struct row_sum<typed<bf16, N>, true> {
    typedef float type;
};
template <int N> struct row_sum<typed<f16, N>, true> {
    typedef float type;
};

/* The sum of the packs that the row's threads hold. What leaves f32's range on the way is summed again in f64, by all
 * of them. */
template <typename R, int P, bool is_warp>
__device__ __forceinline__ double sum_row(const typename R::raw *x, int packs)
{
    const int me = row_thread<is_warp>(), threads = row_threads<is_warp>();
    if constexpr (sizeof(typename row_sum<R, is_warp>::type) == sizeof(float)) {
        float part = 0;
#pragma unroll
        for (int p = 0; p < P; p++)
            if (me + p * threads < packs) {
#pragma unroll
                for (int i = 0; i < R::width; i++)
                    part += R::element(x[p], i);
            }
        part = over_row<is_warp, add_up>(part, 0.0f);
        if (fabsf(part) < CUDART_INF_F)
            return (double)part;
    }
    double sum = 0;
#pragma unroll
    for (int p = 0; p < P; p++)
        if (me + p * threads < packs)
            sum += pack_sum<R>(x[p]);
    return over_row<is_warp, add_up>(sum, 0.0);
}

/* The sum of the threads' parts, likewise. */
template <typename R, bool is_warp, typename C> __device__ __forceinline__ double sum_parts(C part)
{
    if constexpr (sizeof(typename row_sum<R, is_warp>::type) == sizeof(float)) {
        float sum = over_row<is_warp, add_up>((float)part, 0.0f);
        if (fabsf(sum) < CUDART_INF_F)
            return (double)sum;
    }
    return over_row<is_warp, add_up>((double)part, 0.0);
}

/* Mean and 1 / deviation of a row whose elements the row's threads hold, two passes, so that nothing cancels. rmsnorm's
 * mean is 0. */
template <typename R, int P, bool is_warp>
__device__ __forceinline__ void measure(const typename R::raw *x, int packs, bool is_centred, double length,
                                        double inverse, double epsilon, typename R::real *mean, typename R::real *rstd)
{
    typedef typename R::real C;
    const int me = row_thread<is_warp>(), threads = row_threads<is_warp>();
    C spread = 0;
    *mean = is_centred ? mean_of(sum_row<R, P, is_warp>(x, packs), length, inverse, (C)0) : (C)0;
#pragma unroll
    for (int p = 0; p < P; p++)
        if (me + p * threads < packs) {
#pragma unroll
            for (int i = 0; i < R::width; i++) {
                C d = R::element(x[p], i) - *mean;
                spread += d * d;
            }
        }
    double total = sum_parts<R, is_warp>(spread);
    *rstd = inverse_root((double)mean_of(total, length, inverse, (C)0) + epsilon, (C)0);
}

/* What a gradient is made of; NULL where there is no such operand. */
struct norm_grad {
    const tarn__view *x, *weight, *mean, *rstd, *g;
    const tarn__view *own; /* the gradient that x has besides, added to gx */
    const tarn__view *gx, *gweight, *gbias;
    bool is_centred; /* layernorm */
    double epsilon;
};

/* In layernorm_grad.cu. */
void tarn__cuda_run_layernorm_grad(const tarn__call *call, const norm_grad *of);
size_t tarn__cuda_layernorm_grad_scratch(const norm_grad *of);

#endif
