/* max_grad.cu: gradients of max and min: the upstream gradient at the maximum, in equal parts where several are tied.
 *
 * Three methods, from the fastest:
 *       registers     rows that fit a block: x is read once (max_grad.cuh)
 *       speculative   columns and long rows: x is read once unless there are many ties (max_grad.cuh)
 *       two-pass      any layout and dtype: ties are counted by a reduction, then every element follows from x, the
 *                     result and its output's count (reduce_grad.cuh) */
#include "backends/cuda/reduce/max_grad.cuh"

/* Counts the elements that equal the result: an exact count in i64, so the order of additions does not matter. */
template <typename C> struct ties_op {
    typedef int64_t state;
    typedef int batch;
    static constexpr bool has_columns = true;
    static __device__ __forceinline__ state start(void)
    {
        return 0;
    }
    static __device__ __forceinline__ batch open(void)
    {
        return 0;
    }
    static __device__ __forceinline__ C aux(const reduce_args &a, int64_t offset)
    {
        return load_any<C>(a.aux, a.aux_dtype, offset);
    }
    static __device__ __forceinline__ void take(batch &b, C x, C y, int64_t)
    {
        b += x == y;
    }
    static __device__ __forceinline__ void absorb(state &s, const batch &b)
    {
        s += b;
    }
    static __device__ __forceinline__ void merge(state &s, const state &other)
    {
        s += other;
    }
    static __device__ __forceinline__ double result(const state &s, const reduce_args &)
    {
        return (double)s;
    }
    static __device__ __forceinline__ double second(const state &)
    {
        return 0;
    }
    /* A NaN equals nothing: if it won, the count is 0 and all gradients of its slice are NaN, as with torch.amax. */
    struct factors {
        C tied, other;
    };
    static __device__ __forceinline__ factors factors_of(C g, const state &s)
    {
        return factors{g / (C)s, g * 0 / (C)s};
    }
    static __device__ __forceinline__ C grad(C x, C y, const factors &by)
    {
        return x == y ? by.tied : by.other;
    }
    static __device__ __forceinline__ state state_of(double count, double)
    {
        return (state)count;
    }
};

/* ---- selection --------------------------------------------------------------------------------------------------- */

enum method { REGISTERS, SPECULATIVE, TWO_PASS };

/* Inputs x, result, g. */
static gradient operands_of(const tarn__call *call)
{
    return gradient{call->in[0], call->in[2], call->in[1], call->out[0]};
}

/* By shape, dtypes and alignment. The plan is that of a reduction with g as its result. */
static enum method choose_method(const gradient *d, reduce_args *a)
{
    if (!plan_vectorized(d, a))
        return TWO_PASS;
    /* registers compare bits: one dtype throughout */
    if (d->result->dtype == d->x->dtype && d->g->dtype == d->x->dtype && fits_registers(*a))
        return REGISTERS;
    if (!a->by_columns) {
        a->width_bits = 8; /* a block per unit and chunk */
        split_walk(a, a->units, THREADS, 16);
    }
    return SPECULATIVE;
}

struct max_grad_job {
    enum method method;
    reduce_args reduction;
};

static tarn__plan_status prepare_max_grad(const tarn__call *call, tarn__plan *plan)
{
    gradient d = operands_of(call);
    max_grad_job *j = reserve_job<max_grad_job>(plan);
    if (!j)
        return TARN__PLAN_FAILED;
    reduce_args *a = &j->reduction;
    j->method = choose_method(&d, a);
    if (j->method == SPECULATIVE)
        plan->scratch_bytes = totals_bytes(*a) + sizeof(tie) * (size_t)(a->outputs * a->chunks);
    else if (j->method == TWO_PASS)
        plan->scratch_bytes = plan_states(a, &d);
    return TARN__PLAN_READY;
}

static void run_max_grad(const tarn__call *call)
{
    gradient d = operands_of(call);
    const max_grad_job *j = job_of<max_grad_job>(call);
    reduce_args a = j->reduction;
    tarn__view first, second;
    void *gx = tarn__view_at(d.gx);
    if (tarn__view_count(d.gx) == 0)
        return;
    if (j->method != TWO_PASS)
        set_addresses(&a, d.x, d.g, d.result);
    switch (j->method) {
    case REGISTERS:
        by_vec_dtype(d.x->dtype, [&](auto of) { launch_tie_rows<decltype(of)>(a, gx, stream_of(call)); });
        break;
    case SPECULATIVE:
        a.partial = (char *)call->scratch + totals_bytes(a);
        by_vec_dtype(d.x->dtype, [&](auto of) {
            launch_speculative<decltype(of)>(a, gx, (unsigned long long *)call->scratch, stream_of(call));
        });
        break;
    default: /* any layout and dtype */
        if (reduce_states<ties_op>(call, &d, &a, &first, &second))
            grad_from_states<ties_op>(call, &d, a, &first, &second);
    }
}

void tarn__cuda_register_max_grad(tarn__kernel_row *rows)
{
    rows[TARN__K_max_grad] = tarn__row_planned(prepare_max_grad, run_max_grad, TARN__FLOATS);
}
