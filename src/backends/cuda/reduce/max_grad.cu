/* max_grad.cu: gradients of max and min, where ties share, and of prod.
 *
 * Three methods, from the fastest:
 *       registers     rows that fit a block: x is read once (max_grad_rows.cuh; for prod reduce_grad.cuh)
 *       speculative   max and min over columns and long rows: x is read once unless there are many ties
 *                     (max_grad_speculative.cuh)
 *       two-pass      any layout and dtype: states by a reduction, then every element from x and its output's state;
 *                     columns of prod are walked with the states in registers (prod_grad.cuh) */
#include "backends/cuda/reduce/prod_grad.cuh"

/* ---- states ------------------------------------------------------------------------------------------------------ */

/* Counts the elements that equal the result. */
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

/* ---- launching --------------------------------------------------------------------------------------------------- */

/* max and min have an aux operand, their result; prod has none. */
template <typename T> static void launch_registers(const reduce_args &a, void *gx, cudaStream_t stream)
{
    if (a.aux)
        launch_tie_rows<T>(a, gx, stream);
    else
        launch_register_rows<prod_grad_op, T>(a, gx, stream);
}

/* Columns of prod in vectors have their own second pass. */
template <template <typename> class Op> static void two_pass(const tarn__call *call, const gradient *d)
{
    tarn__view first, second;
    reduce_args a;
    if (!reduce_states<Op>(call, d, &a, &first, &second))
        return;
    if (!d->result && a.by_columns && a.vec_width > 1 && same_layout(d->x, d->gx)) {
        void *gx = tarn__view_at(d->gx);
        d->x->dtype == TARN_F32    ? launch_prod_grad<float>(a, gx, stream_of(call))
        : d->x->dtype == TARN_BF16 ? launch_prod_grad<bf16>(a, gx, stream_of(call))
                                   : launch_prod_grad<f16>(a, gx, stream_of(call));
        return;
    }
    grad_from_states<Op>(call, d, a, &first, &second);
}

/* ---- selection --------------------------------------------------------------------------------------------------- */

enum method { REGISTERS, SPECULATIVE, TWO_PASS };

/* By shape, dtypes and alignment. The plan is that of a reduction with g as its result. */
static enum method choose_method(const gradient *d, reduce_args *a)
{
    bool is_vectorized = plan_vectorized(d, a);
    /* registers compare bits: one dtype throughout */
    bool is_same = !d->result || (d->result->dtype == d->x->dtype && d->g->dtype == d->x->dtype);
    if (is_vectorized && is_same && fits_registers(*a))
        return REGISTERS;
    if (!is_vectorized || !d->result)
        return TWO_PASS;
    if (!a->by_columns) {
        a->width_bits = 8; /* a block per unit and chunk */
        split_walk(a, a->units, THREADS, 16);
    }
    return SPECULATIVE;
}

/* By the same choice as run_gradient(). */
static size_t scratch_gradient(const gradient *d)
{
    reduce_args a;
    switch (choose_method(d, &a)) {
    case REGISTERS: return 0;
    case SPECULATIVE: return totals_bytes(a) + sizeof(tie) * (size_t)(a.outputs * a.chunks);
    default: return two_pass_scratch(d);
    }
}

/* Selects the method, then the dtype. */
template <template <typename> class Op> static void run_gradient(const tarn__call *call, const gradient *d)
{
    reduce_args a;
    void *gx = tarn__view_at(d->gx);
    cudaStream_t stream = stream_of(call);
    if (tarn__view_count(d->gx) == 0)
        return;
    switch (choose_method(d, &a)) {
    case REGISTERS:
        d->x->dtype == TARN_F32    ? launch_registers<float>(a, gx, stream)
        : d->x->dtype == TARN_BF16 ? launch_registers<bf16>(a, gx, stream)
                                   : launch_registers<f16>(a, gx, stream);
        break;
    case SPECULATIVE: {
        unsigned long long *totals = (unsigned long long *)call->scratch;
        a.partial = (char *)call->scratch + totals_bytes(a);
        d->x->dtype == TARN_F32    ? launch_speculative<float>(a, gx, totals, stream)
        : d->x->dtype == TARN_BF16 ? launch_speculative<bf16>(a, gx, totals, stream)
                                   : launch_speculative<f16>(a, gx, totals, stream);
        break;
    }
    default: two_pass<Op>(call, d);
    }
}

/* Inputs x, result, g. */
static gradient max_operands(const tarn__call *call)
{
    return gradient{call->in[0], call->in[2], call->in[1], call->out[0]};
}

/* Inputs x, g. */
static gradient prod_operands(const tarn__call *call)
{
    return gradient{call->in[0], call->in[1], NULL, call->out[0]};
}

static void run_max_grad(const tarn__call *call)
{
    gradient d = max_operands(call);
    run_gradient<ties_op>(call, &d);
}

static void run_prod_grad(const tarn__call *call)
{
    gradient d = prod_operands(call);
    run_gradient<prod_grad_op>(call, &d);
}

static size_t scratch_max_grad(const tarn__call *call)
{
    gradient d = max_operands(call);
    return scratch_gradient(&d);
}

static size_t scratch_prod_grad(const tarn__call *call)
{
    gradient d = prod_operands(call);
    return scratch_gradient(&d);
}

void tarn__cuda_max_grad(tarn__kernel_row *rows)
{
    rows[TARN__K_max_grad] = tarn__kernel_row{run_max_grad, TARN__FLOATS, scratch_max_grad};
    rows[TARN__K_prod_grad] = tarn__kernel_row{run_prod_grad, TARN__FLOATS, scratch_prod_grad};
}
