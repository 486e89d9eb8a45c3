/* batchnorm.cuh: what the forms of batchnorm and groupnorm share: moments of a few elements, what is known of sets, and
 * relu. */
#ifndef TARN__BATCHNORM_CUH
#define TARN__BATCHNORM_CUH

#include "backends/cuda/norm/channel_stats.cuh"

/* Sums of a group's distances from its first element, and of their squares. */
template <typename C> struct group_sums {
    C first, sum, squares;

    __device__ __forceinline__ void begin(C x)
    {
        first = x;
        sum = squares = 0;
    }
    __device__ __forceinline__ void take(C x)
    {
        C d = x - first;
        sum += d;
        squares += d * d;
    }
    /* False where squares may have left what f32 can hold: the group is then measured in f64. */
    __device__ __forceinline__ bool is_exact() const
    {
        return sizeof(C) == sizeof(double) || (squares > (C)1e-30 && squares < (C)1e30) || (squares == 0 && sum == 0);
    }
    /* Adds the group's `count` elements as distances from `from`. */
    __device__ __forceinline__ void add_to(double from, double count, double *all, double *all_squares) const
    {
        double apart = (double)first - from, step = count * apart;
        *all += step + (double)sum;
        *all_squares += (double)squares + apart * (step + 2 * (double)sum);
    }
};

__device__ __forceinline__ void take_exactly(double x, double from, double *sum, double *squares)
{
    double d = x - from;
    *sum += d;
    *squares += d * d;
}

struct set_args {
    double epsilon, momentum;
    row_operand fixed_mean, fixed_variance; /* base NULL: the set's own */
    row_operand running_mean, running_variance;
    double *mean, *rstd; /* kept for backward; NULL: not wanted */
};

__device__ __forceinline__ double number_at(const row_operand &vector, int64_t at)
{
    return vector.base ? load_any<double>(vector.base, vector.dtype, at * vector.along) : 0;
}

__device__ __forceinline__ void take_in(const row_operand &running, int64_t at, double old, double momentum,
                                        double value)
{
    if (running.base)
        store_any(running.base, running.dtype, at * running.along, (1 - momentum) * old + momentum * value);
}

enum { NO_RELU, RELU, RELU_OF_SUM };

/* What is added to a pack of results, if anything, and relu. */
template <typename R, int HOW>
__device__ __forceinline__ void add_and_cut(const typename R::raw &beside, typename R::real *y)
{
#pragma unroll
    for (int i = 0; i < R::width; i++) {
        if (HOW == RELU_OF_SUM)
            y[i] += R::element(beside, i);
        if (HOW != NO_RELU)
            y[i] = y[i] < 0 ? (typename R::real)0 : y[i];
    }
}

/* In batchnorm_persistent.cu: batchnorm with its own statistics in one kernel, where that is the way to take; else
 * false, and nothing is started. What it needs behind the scratch of sets. */
bool tarn__cuda_batchnorm_persistent(const tarn__call *call, const channel_args &a, const set_args &s, bool has_relu);
size_t tarn__cuda_batchnorm_persistent_scratch(const tarn__call *call, const channel_args &a);

#endif
