/* norm.cuh: what layernorm and rmsnorm share with their gradients. */
#ifndef TARN__NORM_CUH
#define TARN__NORM_CUH

#include "backends/cuda/rows.cuh"

#define SHORT_ROW WARP /* rows this short are computed in f64: their gradient is what little normalising leaves */

/* A vector over the axis; base NULL where there is none. */
static inline row_operand vector_of(const tarn__view *view)
{
    if (!view)
        return row_operand{NULL, 1, TARN_F32};
    return row_operand{tarn__view_at(view), view->shape[view->rank - 1] > 1 ? view->stride[view->rank - 1] : 1, view->dtype};
}

static inline bool vector_has_packs(const row_operand &o, int width)
{
    return !o.base || (o.along == 1 && is_aligned(o.base, tarn__dtype_bytes(o.dtype) * (size_t)width));
}

/* A sum over a row, divided by its length. An exact quotient in f64: the mean of equal numbers is that number. */
__device__ __forceinline__ float mean_of(double sum, double length, double inverse, float) { return (float)(sum * inverse); }
__device__ __forceinline__ double mean_of(double sum, double length, double inverse, double) { return sum / length; }

__device__ __forceinline__ float inverse_root(double x, float) { return 1.0f / sqrtf((float)x); }
__device__ __forceinline__ double inverse_root(double x, double) { return 1 / sqrt(x); }

/* The sum of a pack, as its first element and the distances from it: exact where all are equal. Else the mean of equal elements far from 0
 * could be off by a rounding, which 1 / deviation makes large. */
template <typename R> __device__ __forceinline__ double pack_sum(const typename R::raw &x)
{
    typename R::real first = R::element(x, 0), rest = 0;
#pragma unroll
    for (int i = 1; i < R::width; i++)
        rest += R::element(x, i) - first;
    return R::width > 1 ? (double)first * R::width + (double)rest : (double)first;
}

/* Mean and 1 / deviation of a row whose elements the row's threads hold, two passes, so that nothing cancels. rmsnorm's mean is 0. */
template <typename R, int P, bool is_warp>
__device__ __forceinline__ void measure(const typename R::raw *x, int packs, bool is_centred, double length, double inverse, double epsilon,
                                        typename R::real *mean, typename R::real *rstd)
{
    typedef typename R::real C;
    const int me = row_thread<is_warp>(), threads = row_threads<is_warp>();
    C spread = 0;
    *mean = 0;
    if (is_centred) {
        double sum = 0;
#pragma unroll
        for (int p = 0; p < P; p++)
            if (me + p * threads < packs)
                sum += pack_sum<R>(x[p]);
        *mean = mean_of(over_row<is_warp, add_up>(sum, 0.0), length, inverse, (C)0);
    }
#pragma unroll
    for (int p = 0; p < P; p++)
        if (me + p * threads < packs) {
#pragma unroll
            for (int i = 0; i < R::width; i++) {
                C d = R::element(x[p], i) - *mean;
                spread += d * d;
            }
        }
    double total = over_row<is_warp, add_up>((double)spread, 0.0);
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

/* In norm_grad.cu. */
void tarn__cuda_run_norm_grad(const tarn__call *call, const norm_grad *of);
size_t tarn__cuda_norm_grad_scratch(const norm_grad *of);

#endif
