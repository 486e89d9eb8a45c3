/* var.cu: reductions that run in f64 throughout: variance, and product, which would overflow and lose precision sooner.
 *
 * A variance is computed from the distances d of all elements from the output's first: Σd² - (Σd)² / n. The first
 * element is within √n standard deviations of the mean, being one of those that define it; so at most log10(n) of f64's
 * 16 digits are lost. */
#include "backends/cuda/reduce/reduce_loops.cuh"

/* ---- var --------------------------------------------------------------------------------------------------------- */

struct shifted_moments {
    double sum, squares;
};

/* aux is the output's first element: the shift of all distances. */
template <typename C> struct var_op {
    typedef shifted_moments state;
    typedef shifted_moments batch;
    static constexpr bool has_columns = true;
    static __device__ __forceinline__ shifted_moments start(void)
    {
        return shifted_moments{0, 0};
    }
    static __device__ __forceinline__ double aux(const reduce_args &a, int64_t offset)
    {
        return a.count > 0 ? load_any<double>(a.aux, a.aux_dtype, offset) : 0;
    }
    static __device__ __forceinline__ void take(shifted_moments &b, C x, double first, int64_t)
    {
        double d = (double)x - first;
        b.sum += d;
        b.squares += d * d;
    }
    static __device__ __forceinline__ void merge(shifted_moments &s, const shifted_moments &other)
    {
        s.sum += other.sum;
        s.squares += other.squares;
    }
    /* As torch: a negative divisor counts as 0, which gives NaN or infinity. */
    static __device__ __forceinline__ double result(const shifted_moments &s, const reduce_args &a)
    {
        double n = (double)a.count, divisor = n - a.correction;
        /* shifted variance; rounding may leave it slightly negative */
        double squares = a.count > 0 ? s.squares - s.sum * s.sum / n : 0;
        return (squares < 0 ? 0 : squares) / (divisor < 0 ? 0 : divisor);
    }
    static __device__ __forceinline__ double second(const shifted_moments &)
    {
        return 0;
    }
};

/* The first element of every output, as an operand of y's shape. */
static tarn__view first_of(const tarn__view *x, const tarn__view *y)
{
    tarn__view first = *x;
    for (int i = 0; i < x->rank; i++)
        if (y->shape[i] != x->shape[i])
            first.shape[i] = 1;
    return first;
}

static tarn__plan_status prepare_var(const tarn__call *call, tarn__plan *plan)
{
    reduce_args *a = reserve_job<reduce_args>(plan);
    tarn__view first = first_of(call->in[0], call->out[0]);
    if (!a)
        return TARN__PLAN_FAILED;
    if (plan_reduce(a, call->in[0], call->out[0], &first))
        plan->scratch_bytes = states_bytes(*a);
    return TARN__PLAN_READY;
}

/* `correction` is subtracted from the count: 1 for the sample variance. */
static void run_var(const tarn__call *call)
{
    reduce_args a = *job_of<reduce_args>(call);
    if (a.outputs == 0)
        return;
    set_addresses(&a, call->in[0], call->out[0], call->in[0]); /* the first elements of x begin where x does */
    a.partial = call->scratch;
    a.correction = ((const tarn__reduce *)call->params)->correction;
    reduce_floats<var_op>(a, stream_of(call));
}

/* ---- prod -------------------------------------------------------------------------------------------------------- */

/* Integers wrap in i64. */
template <typename C> struct prod_op {
    typedef typename total_of<C>::type state;
    typedef state batch;
    static constexpr bool has_columns = true;
    static __device__ __forceinline__ state start(void)
    {
        return 1;
    }
    static __device__ __forceinline__ C aux(const reduce_args &, int64_t)
    {
        return 0;
    }
    static __device__ __forceinline__ void take(state &b, C x, C, int64_t)
    {
        b *= (state)x;
    }
    static __device__ __forceinline__ void merge(state &s, const state &other)
    {
        s *= other;
    }
    static __device__ __forceinline__ state result(const state &s, const reduce_args &)
    {
        return s;
    }
    static __device__ __forceinline__ double second(const state &)
    {
        return 0;
    }
};

/* f64 states; integers in i64. */
static void run_prod(const tarn__call *call)
{
    reduce_args a;
    if (args_of_call(&a, call))
        reduce_any<prod_op>(a, stream_of(call));
}

void tarn__cuda_register_var(tarn__kernel_row *rows)
{
    rows[TARN__K_var] = tarn__row_planned(prepare_var, run_var, TARN__FLOATS);
    rows[TARN__K_prod] = tarn__row_planned(prepare_call, run_prod, TARN__ALL);
}
