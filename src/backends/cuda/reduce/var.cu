/* var.cu: the reductions that run in f64 throughout: variance, and product, which would overflow and lose digits
 * sooner.
 *
 * A variance is made from the distances d of all elements from the output's first one: Σd² - (Σd)² / n. The first
 * element is no further from the mean than √n standard deviations, since it is one of those that make it; so of f64's
 * 16 digits no more than those of n can be lost. */
#include "backends/cuda/reduce/reduce_loops.cuh"

/* ---- var --------------------------------------------------------------------------------------------------------- */

struct distances {
    double sum, squares;
};

template <typename C> struct var_op {
    typedef distances state;
    typedef distances batch;
    static constexpr bool has_columns = true;
    static __device__ __forceinline__ distances start(void)
    {
        return distances{0, 0};
    }
    static __device__ __forceinline__ double aux(const fold_args &a, int64_t offset)
    {
        return a.count > 0 ? load_any<double>(a.aux, a.aux_dtype, offset) : 0;
    }
    static __device__ __forceinline__ void take(distances &b, C x, double first, int64_t)
    {
        double d = (double)x - first;
        b.sum += d;
        b.squares += d * d;
    }
    static __device__ __forceinline__ void merge(distances &s, const distances &other)
    {
        s.sum += other.sum;
        s.squares += other.squares;
    }
    /* As torch: a divisor below 0 counts as 0, which gives NaN or infinity. */
    static __device__ __forceinline__ double result(const distances &s, const fold_args &a)
    {
        double n = (double)a.count, divisor = n - a.correction;
        double squares = a.count > 0 ? s.squares - s.sum * s.sum / n : 0;
        return (squares < 0 ? 0 : squares) / (divisor < 0 ? 0 : divisor);
    }
    static __device__ __forceinline__ double second(const distances &)
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

static void run_var(const tarn__call *call)
{
    fold_args a;
    tarn__view first = first_of(call->in[0], call->out[0]);
    if (!plan_fold(&a, call->in[0], call->out[0], &first))
        return;
    a.partial = call->scratch;
    a.correction = ((const tarn__reduce *)call->params)->correction;
    fold_floats<var_op>(a, stream_of(call));
}

static size_t scratch_var(const tarn__call *call)
{
    tarn__view first = first_of(call->in[0], call->out[0]);
    return fold_scratch(call->in[0], call->out[0], &first);
}

/* ---- prod -------------------------------------------------------------------------------------------------------- */

template <typename C> struct prod_op {
    typedef typename total_of<C>::type state;
    typedef state batch;
    static constexpr bool has_columns = true;
    static __device__ __forceinline__ state start(void)
    {
        return 1;
    }
    static __device__ __forceinline__ C aux(const fold_args &, int64_t)
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
    static __device__ __forceinline__ state result(const state &s, const fold_args &)
    {
        return s;
    }
    static __device__ __forceinline__ double second(const state &)
    {
        return 0;
    }
};

static void run_prod(const tarn__call *call)
{
    fold_args a;
    if (plan_call(&a, call))
        fold_any<prod_op>(a, stream_of(call));
}

void tarn__cuda_var(tarn__kernel_row *rows)
{
    rows[TARN__K_var] = tarn__kernel_row{run_var, TARN__FLOATS, scratch_var};
    rows[TARN__K_prod] = tarn__kernel_row{run_prod, TARN__ALL, scratch_call};
}
