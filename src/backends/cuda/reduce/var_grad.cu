/* var_grad.cu: gradient of a variance: (x - mean) · g, where g already has the factor 2 / (count - correction).
 *
 * The state of an output is its sum and count: the mean is recomputed in f64, nothing is saved by forward. Rows that
 * fit a block stay in registers: x read once, gx written once. Everything else takes two passes, x read twice: states
 * by a reduction, then every element from x and its output's state (reduce_grad.cuh). */
#include "backends/cuda/reduce/reduce_grad.cuh"

/* Elements are added in their own type a few at a time, and in f64 from there. */
template <typename C> struct mean_op {
    struct state {
        double sum, count;
    };
    struct batch {
        C sum;
        int count;
    };
    static constexpr bool has_columns = true;
    static __device__ __forceinline__ state start(void)
    {
        return state{0, 0};
    }
    static __device__ __forceinline__ batch open(void)
    {
        return batch{0, 0};
    }
    static __device__ __forceinline__ C aux(const reduce_args &, int64_t)
    {
        return 0;
    }
    static __device__ __forceinline__ void take(batch &b, C x, C, int64_t)
    {
        b.sum += x;
        b.count++;
    }
    static __device__ __forceinline__ void absorb(state &s, const batch &b)
    {
        s.sum += (double)b.sum;
        s.count += (double)b.count;
    }
    static __device__ __forceinline__ void merge(state &s, const state &other)
    {
        s.sum += other.sum;
        s.count += other.count;
    }
    static __device__ __forceinline__ double result(const state &s, const reduce_args &)
    {
        return s.sum;
    }
    static __device__ __forceinline__ double second(const state &s)
    {
        return s.count;
    }
    static __device__ __forceinline__ state state_of(double sum, double count)
    {
        return state{sum, count};
    }
    /* The mean in two parts: rounded to C it would cost the precision of a small distance. */
    struct factors {
        C mean, rest, g;
    };
    static __device__ __forceinline__ factors factors_of(C g, const state &s)
    {
        double mean = s.sum / s.count;
        C high = (C)mean;
        return factors{high, isfinite(high) ? (C)(mean - (double)high) : (C)0, g};
    }
    static __device__ __forceinline__ C grad(C x, C, const factors &by)
    {
        return ((x - by.mean) - by.rest) * by.g;
    }
};

/* Inputs x, g. */
static gradient operands_of(const tarn__call *call)
{
    return gradient{call->in[0], call->in[1], NULL, call->out[0]};
}

static tarn__plan_status prepare_var_grad(const tarn__call *call, tarn__plan *plan)
{
    gradient d = operands_of(call);
    return prepare_grad(plan, &d);
}

static void run_var_grad(const tarn__call *call)
{
    gradient d = operands_of(call);
    reduce_args a = job_of<grad_job>(call)->reduction;
    tarn__view first, second;
    if (tarn__view_count(d.gx) == 0 || run_in_registers<mean_op>(call, &d))
        return;
    if (reduce_states<mean_op>(call, &d, &a, &first, &second))
        grad_from_states<mean_op>(call, &d, a, &first, &second);
}

void tarn__cuda_register_var_grad(tarn__kernel_row *rows)
{
    rows[TARN__K_var_grad] = tarn__row_planned(prepare_var_grad, run_var_grad, TARN__FLOATS);
}
