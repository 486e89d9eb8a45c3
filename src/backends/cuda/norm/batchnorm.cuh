/* batchnorm.cuh: shared by the forward kernels of batchnorm and groupnorm: moments of a few elements, arguments of the
 * statistics, and relu. */
#ifndef TARN__CUDA_BATCHNORM_CUH
#define TARN__CUDA_BATCHNORM_CUH

#include "backends/cuda/norm/channel_stats.cuh"

/* Sums of a group's distances from its first element, and of their squares: shifted by an element, nothing cancels. */
template <typename C> struct group_moments {
    C first, sum, squares;

    __device__ __forceinline__ void start(C x)
    {
        first = x;
        sum = squares = 0;
    }
    __device__ __forceinline__ void add(C x)
    {
        C d = x - first;
        sum += d;
        squares += d * d;
    }
    /* False if the squares may have left f32's range: the group is then measured in f64. */
    __device__ __forceinline__ bool is_exact() const
    {
        return sizeof(C) == sizeof(double) || (squares > (C)1e-30 && squares < (C)1e30) || (squares == 0 && sum == 0);
    }
    /* Adds the group's `count` elements, as distances from `from`, to f64 sums. */
    __device__ __forceinline__ void add_to(double from, double count, double *all, double *all_squares) const
    {
        double apart = (double)first - from, step = count * apart;
        *all += step + (double)sum;
        *all_squares += (double)squares + apart * (step + 2 * (double)sum);
    }
};

/* One element, measured in f64. */
__device__ __forceinline__ void take_f64(double x, double from, double *sum, double *squares)
{
    double d = x - from;
    *sum += d;
    *squares += d * d;
}

/* Inputs and outputs of the statistics. */
struct stat_args {
    double epsilon, momentum;
    row_operand fixed_mean, fixed_variance; /* base NULL: computed from x */
    row_operand running_mean, running_variance;
    double *mean, *rstd; /* saved for backward; NULL: not needed */
};

__device__ __forceinline__ double load_param(const row_operand &vector, int64_t at)
{
    return vector.base ? load_any<double>(vector.base, vector.dtype, at * vector.along) : 0;
}

/* Exponential moving average, as in PyTorch. */
__device__ __forceinline__ void update_running(const row_operand &running, int64_t at, double old, double momentum,
                                               double value)
{
    if (running.base)
        store_any(running.base, running.dtype, at * running.along, (1 - momentum) * old + momentum * value);
}

enum { NO_RELU, RELU, ADD_RELU };

/* Adds the residual, if any, and applies relu to a vector of results. */
template <typename R, int HOW>
__device__ __forceinline__ void add_relu(const typename R::raw &residual, typename R::real *y)
{
#pragma unroll
    for (int i = 0; i < R::width; i++) {
        if (HOW == ADD_RELU)
            y[i] += R::element(residual, i);
        if (HOW != NO_RELU)
            y[i] = y[i] < 0 ? (typename R::real)0 : y[i];
    }
}

/* batchnorm_persistent.cu: batchnorm in one kernel, if that is the way to run it; else false, and nothing is launched.
 * And the scratch it needs after that of the sets. */
bool tarn__cuda_batchnorm_persistent(const tarn__call *call, const channel_args &a, const stat_args &s, bool has_relu);
size_t tarn__cuda_batchnorm_persistent_scratch(const tarn__call *call, const channel_args &a);

#endif
