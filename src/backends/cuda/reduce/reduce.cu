/* reduce.cu: sum, max, min, and the count of non-finite values. The loops are in reduce_loops.cuh, those of long
 * columns in long_columns.cuh; products and variances, which run in f64 throughout, in var.cu.
 *
 * Bytes: x once; 8 bytes per chunk and output twice, for at least 128 elements each. */
#include "backends/cuda/reduce/long_columns.cuh"

/* ---- sum --------------------------------------------------------------------------------------------------------- */

/* Batches in the elements' compute type, states in f64 or i64. */
template <typename C> struct sum_op {
    typedef typename total_of<C>::type state;
    typedef C batch;
    static constexpr bool has_columns = true;
    static __device__ __forceinline__ state start(void)
    {
        return 0;
    }
    static __device__ __forceinline__ batch open(void)
    {
        return 0;
    }
    static __device__ __forceinline__ C aux(const reduce_args &, int64_t)
    {
        return 0;
    }
    static __device__ __forceinline__ void take(batch &b, C x, C, int64_t)
    {
        b += x;
    }
    static __device__ __forceinline__ void absorb(state &s, const batch &b)
    {
        s += (state)b;
    }
    static __device__ __forceinline__ void merge(state &s, const state &other)
    {
        s += other;
    }
    static __device__ __forceinline__ state result(const state &s, const reduce_args &a)
    {
        if constexpr (std::is_same<C, int64_t>::value)
            return s; /* integers are not scaled */
        else
            return s * a.scale;
    }
    static __device__ __forceinline__ double second(const state &)
    {
        return 0;
    }
};

/* `scale` is 1 / count for mean. */
static void run_sum(const tarn__call *call)
{
    reduce_args a;
    if (!args_of_call(&a, call))
        return;
    a.scale = ((const tarn__reduce *)call->params)->scale;
    run_reduce<sum_op>(a, job_of<reduce_job>(call)->has_long_columns, stream_of(call));
}

/* ---- max, min ---------------------------------------------------------------------------------------------------- */

/* A NaN wins, and stays. */
template <typename C> __device__ __forceinline__ C max_nan(C a, C x)
{
    return x > a || x != x ? x : a;
}
template <> __device__ __forceinline__ float max_nan<float>(float a, float x)
{
    float y;
    asm("max.NaN.f32 %0, %1, %2;" : "=f"(y) : "f"(a), "f"(x));
    return y;
}

/* max, and min by flipped elements. State and batch are one element. */
template <typename C> struct max_op {
    typedef C state;
    typedef C batch;
    static constexpr bool has_columns = true;
    static __device__ __forceinline__ C start(void)
    {
        return lowest<C>();
    }
    static __device__ __forceinline__ C aux(const reduce_args &a, int64_t)
    {
        return flip_of<C>(a);
    }
    static __device__ __forceinline__ void take(C &b, C x, C flip, int64_t)
    {
        b = max_nan(b, flipped(x, flip));
    }
    static __device__ __forceinline__ void merge(C &s, const C &other)
    {
        s = max_nan(s, other);
    }
    static __device__ __forceinline__ C result(const C &s, const reduce_args &a)
    {
        return flipped(s, flip_of<C>(a));
    }
    static __device__ __forceinline__ double second(const C &)
    {
        return 0;
    }
};

/* flip -1: min. */
static void run_max_of(const tarn__call *call, double flip)
{
    reduce_args a;
    if (!args_of_call(&a, call))
        return;
    a.flip = flip;
    run_reduce<max_op>(a, job_of<reduce_job>(call)->has_long_columns, stream_of(call));
}

static void run_max(const tarn__call *call)
{
    run_max_of(call, 1);
}

static void run_min(const tarn__call *call)
{
    run_max_of(call, -1);
}

/* ---- nonfinite --------------------------------------------------------------------------------------------------- */

/* x - x is 0 for finite values and NaN for others. All axes are reduced, so there are no columns. */
template <typename C> struct nonfinite_op {
    typedef int64_t state;
    typedef int batch;
    static constexpr bool has_columns = false;
    static __device__ __forceinline__ state start(void)
    {
        return 0;
    }
    static __device__ __forceinline__ batch open(void)
    {
        return 0;
    }
    static __device__ __forceinline__ C aux(const reduce_args &, int64_t)
    {
        return 0;
    }
    static __device__ __forceinline__ void take(batch &b, C x, C, int64_t)
    {
        b += !(x - x == 0);
    }
    static __device__ __forceinline__ void absorb(state &s, const batch &b)
    {
        s += b;
    }
    static __device__ __forceinline__ void merge(state &s, const state &other)
    {
        s += other;
    }
    static __device__ __forceinline__ int64_t result(const state &s, const reduce_args &)
    {
        return s;
    }
    static __device__ __forceinline__ double second(const state &)
    {
        return 0;
    }
};

/* All axes: one output. */
static void run_nonfinite(const tarn__call *call)
{
    reduce_args a;
    if (args_of_call(&a, call))
        reduce_floats<nonfinite_op>(a, stream_of(call));
}

void tarn__cuda_register_reduce(tarn__kernel_row *rows)
{
    rows[TARN__K_sum] = tarn__row_planned(prepare_reduce, run_sum, TARN__ALL);
    rows[TARN__K_max] = tarn__row_planned(prepare_reduce, run_max, TARN__ALL);
    rows[TARN__K_min] = tarn__row_planned(prepare_reduce, run_min, TARN__ALL);
    rows[TARN__K_count_nonfinite] = tarn__row_planned(prepare_call, run_nonfinite, TARN__FLOATS);
}
