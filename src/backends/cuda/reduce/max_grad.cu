/* max_grad.cu: the gradients of max and min, where equal elements share, and of prod.
 *
 * Three ways, from the quickest:
 *   in registers   rows that a block can hold: x is read once, whatever the state (ties, see max_grad_rows.cuh; or
 * product and zeros) turns out to be. hopefully      max and min over columns and long rows: x is read once unless
 * there are many ties; see max_grad_speculative.cuh. in two steps   any layout and dtype: states by a fold, then every
 * element from x and its output's state. Columns of products are walked down again, with the states in registers. */
#include "backends/cuda/reduce/prod_grad.cuh"

/* ---- what is shared, and how ------------------------------------------------------------------------------------- */

/* The count of elements that equal the result. */
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
    static __device__ __forceinline__ C aux(const fold_args &a, int64_t offset)
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
    static __device__ __forceinline__ double result(const state &s, const fold_args &)
    {
        return (double)s;
    }
    static __device__ __forceinline__ double second(const state &)
    {
        return 0;
    }
    /* A NaN equals nothing: where it won, the count is 0 and all gradients of its slice are NaN, as torch.amax's. */
    struct shares {
        C tied, other;
    };
    static __device__ __forceinline__ shares shares_of(C g, const state &s)
    {
        return shares{g / (C)s, g * 0 / (C)s};
    }
    static __device__ __forceinline__ C share(C x, C y, const shares &by)
    {
        return x == y ? by.tied : by.other;
    }
    static __device__ __forceinline__ state state_of(double count, double)
    {
        return (state)count;
    }
};

/* ---- carrying it out --------------------------------------------------------------------------------------------- */

template <typename T> static void launch_held(const fold_args &a, void *gx, cudaStream_t stream)
{
    if (a.aux)
        launch_ties<T>(a, gx, stream);
    else
        launch_shared_rows<others_op, T>(a, gx, stream);
}

template <template <typename> class Op> static void two_steps(const tarn__call *call, const gradient *d)
{
    tarn__view first, second;
    fold_args a;
    if (!fold_states<Op>(call, d, &a, &first, &second))
        return;
    if (!d->result && a.by_columns && a.pack > 1 && same_layout(d->x, d->gx)) {
        void *gx = tarn__view_at(d->gx);
        d->x->dtype == TARN_F32    ? launch_others<float>(a, gx, stream_of(call))
        : d->x->dtype == TARN_BF16 ? launch_others<bf16>(a, gx, stream_of(call))
                                   : launch_others<f16>(a, gx, stream_of(call));
        return;
    }
    share_states<Op>(call, d, a, &first, &second);
}

/* ---- choosing ---------------------------------------------------------------------------------------------------- */

enum way { IN_REGISTERS, HOPEFULLY, IN_TWO_STEPS };

/* Shape, dtypes and addresses' alignment. The plan is that of a fold with g as its result. */
static enum way choose(const gradient *d, fold_args *a)
{
    bool is_packed = plan_packs(d, a);
    bool is_same = !d->result || (d->result->dtype == d->x->dtype && d->g->dtype == d->x->dtype);
    if (is_packed && is_same && holds_rows(*a))
        return IN_REGISTERS;
    if (!is_packed || !d->result)
        return IN_TWO_STEPS;
    if (!a->by_columns) {
        a->width_bits = 8; /* a block for each unit and chunk */
        cut_walk(a, a->units, THREADS, 16);
    }
    return HOPEFULLY;
}

static size_t scratch_gradient(const gradient *d)
{
    fold_args a;
    switch (choose(d, &a)) {
    case IN_REGISTERS: return 0;
    case HOPEFULLY: return totals_bytes(a) + sizeof(tie) * (size_t)(a.outputs * a.chunks);
    default: return two_steps_scratch(d);
    }
}

template <template <typename> class Op> static void run_gradient(const tarn__call *call, const gradient *d)
{
    fold_args a;
    void *gx = tarn__view_at(d->gx);
    cudaStream_t stream = stream_of(call);
    if (tarn__view_count(d->gx) == 0)
        return;
    switch (choose(d, &a)) {
    case IN_REGISTERS:
        d->x->dtype == TARN_F32    ? launch_held<float>(a, gx, stream)
        : d->x->dtype == TARN_BF16 ? launch_held<bf16>(a, gx, stream)
                                   : launch_held<f16>(a, gx, stream);
        break;
    case HOPEFULLY: {
        unsigned long long *totals = (unsigned long long *)call->scratch;
        a.partial = (char *)call->scratch + totals_bytes(a);
        d->x->dtype == TARN_F32    ? launch_hope<float>(a, gx, totals, stream)
        : d->x->dtype == TARN_BF16 ? launch_hope<bf16>(a, gx, totals, stream)
                                   : launch_hope<f16>(a, gx, totals, stream);
        break;
    }
    default: two_steps<Op>(call, d);
    }
}

static gradient extremum_operands(const tarn__call *call)
{
    return gradient{call->in[0], call->in[2], call->in[1], call->out[0]};
}

static gradient prod_operands(const tarn__call *call)
{
    return gradient{call->in[0], call->in[1], NULL, call->out[0]};
}

static void run_extremum_grad(const tarn__call *call)
{
    gradient d = extremum_operands(call);
    run_gradient<ties_op>(call, &d);
}

static void run_prod_grad(const tarn__call *call)
{
    gradient d = prod_operands(call);
    run_gradient<others_op>(call, &d);
}

static size_t scratch_extremum_grad(const tarn__call *call)
{
    gradient d = extremum_operands(call);
    return scratch_gradient(&d);
}

static size_t scratch_prod_grad(const tarn__call *call)
{
    gradient d = prod_operands(call);
    return scratch_gradient(&d);
}

void tarn__cuda_max_grad(tarn__kernel_row *rows)
{
    rows[TARN__K_max_grad] = tarn__kernel_row{run_extremum_grad, TARN__FLOATS, scratch_extremum_grad};
    rows[TARN__K_prod_grad] = tarn__kernel_row{run_prod_grad, TARN__FLOATS, scratch_prod_grad};
}
