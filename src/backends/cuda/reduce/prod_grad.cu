/* prod_grad.cu: gradient of prod: the upstream gradient times the product of all other elements.
 *
 * The state of an output is the product of its nonzero elements, in f64, and its number of zeros. Rows that fit a block
 * stay in registers: x read once, gx written once (reduce_grad.cuh). Everything else takes two passes, x read twice:
 * states by a reduction, then every element from x and its output's state; columns in vectors are walked again with the
 * states in registers. */
#include "backends/cuda/reduce/reduce_grad.cuh"

/* a / x to 2 ulp of f32: f64 divisions are slow, so a is multiplied by an approximate 1 / x and then corrected in
 * f32. */
static __device__ __noinline__ float quotient_f64(double a, float x)
{
    return (float)(a / (double)x);
}
__device__ __forceinline__ float quotient(double a, float x)
{
    float r, size = fabsf(x);
    /* one Newton correction below */
    asm("rcp.approx.ftz.f32 %0, %1;" : "=f"(r) : "f"(x));
    float y = (float)(a * (double)r);
    if (!(size > 1e-30f && size < 1e30f && fabsf(y) < 1e38f))
        return quotient_f64(a, x);
    return fmaf(y, fmaf(-x, r, 1.0f), y);
}
__device__ __forceinline__ double quotient(double a, double x)
{
    return a / x;
}

/* Product of the nonzero elements, and how many are zero. */
struct nonzero {
    double product;
    int zeros, unused; /* every byte of a state is written */
};

/* With no zero the gradient is g · product / x; with one zero only that element has a gradient; with more none has. */
template <typename C> struct prod_grad_op {
    typedef nonzero state;
    typedef nonzero batch;
    static constexpr bool has_columns = true;
    static __device__ __forceinline__ nonzero start(void)
    {
        return nonzero{1, 0, 0};
    }
    static __device__ __forceinline__ C aux(const reduce_args &, int64_t)
    {
        return 0;
    }
    static __device__ __forceinline__ void take(nonzero &b, C x, C, int64_t)
    {
        b.product *= (double)(x == 0 ? (C)1 : x);
        b.zeros += x == 0;
    }
    static __device__ __forceinline__ void merge(nonzero &s, const nonzero &other)
    {
        s.product *= other.product;
        s.zeros = min(s.zeros + other.zeros, 1 << 29); /* only none, one or more matters */
    }
    static __device__ __forceinline__ double result(const nonzero &s, const reduce_args &)
    {
        return s.product;
    }
    static __device__ __forceinline__ double second(const nonzero &s)
    {
        return (double)s.zeros;
    }
    /* Per output: g times the product; the gradient of elements that another zero annihilates; the zeros. */
    struct factors {
        double scaled;
        C zero;
        int zeros;
    };
    static __device__ __forceinline__ factors factors_of(C g, const nonzero &s)
    {
        return factors{(double)g * s.product, g * 0, s.zeros};
    }
    static __device__ __forceinline__ C grad(C x, C, const factors &by)
    {
        if (by.zeros == 0)
            return quotient(by.scaled, x);
        return by.zeros == 1 && x == 0 ? (C)by.scaled : by.zero;
    }
    static __device__ __forceinline__ nonzero state_of(double product, double zeros)
    {
        return nonzero{product, (int)zeros, 0};
    }
};

/* Walks columns again with the plan of the reduction: a.y and `second` are the states, aux is g, and gx has x's
 * strides. Grid as the reduction's. Bytes: x read, gx written. */
template <typename T, int N>
static __global__ void __launch_bounds__(THREADS, 2)
    prod_grad_columns(const __grid_constant__ reduce_args a, T *gx, const double *second)
{
    typedef compute<T> C;
    typedef prod_grad_op<C> op;
    int width = 1 << a.width_bits, rows = THREADS >> a.width_bits, row = (int)(threadIdx.x >> a.width_bits);
    int64_t unit = (int64_t)blockIdx.x * width + (threadIdx.x & (width - 1)), offset[3];
    int64_t begin = (int64_t)blockIdx.y * a.chunk, end = begin + a.chunk < a.length ? begin + a.chunk : a.length;
    if (unit >= a.units)
        return;
    typename op::factors by[N];
    locate(a.outer, unit, offset);
#pragma unroll
    for (int k = 0; k < N; k++) {
        int64_t at = offset[1] + k * a.column_y;
        C g = load_any<C>(a.aux, a.aux_dtype, offset[2] + k * a.column_aux);
        by[k] = op::factors_of(g, op::state_of(((const double *)a.y)[at], second[at]));
    }
#pragma unroll 1
    for (int64_t i = begin + row; i < end; i += rows * REG_VECS) {
        vec<T, N> x[REG_VECS];
#pragma unroll
        for (int u = 0; u < REG_VECS; u++)
            if (i + u * rows < end)
                x[u] = *(const vec<T, N> *)((const T *)a.x + offset[0] + step_offset<N>(a, i + u * rows));
#pragma unroll
        for (int u = 0; u < REG_VECS; u++)
            if (i + u * rows < end) {
#pragma unroll
                for (int k = 0; k < N; k++)
                    x[u].at[k] = narrow<T>(op::grad(widen(x[u].at[k]), (C)0, by[k]));
                *(vec<T, N> *)(gx + offset[0] + step_offset<N>(a, i + u * rows)) = x[u];
            }
    }
}

/* ---- launching --------------------------------------------------------------------------------------------------- */

/* Inputs x, g. */
static gradient operands_of(const tarn__call *call)
{
    return gradient{call->in[0], call->in[1], NULL, call->out[0]};
}

static tarn__plan_status prepare_prod_grad(const tarn__call *call, tarn__plan *plan)
{
    gradient d = operands_of(call);
    return prepare_grad(plan, &d);
}

/* The second pass over columns has the reduction's grid, one block row per chunk. */
static void run_prod_grad(const tarn__call *call)
{
    gradient d = operands_of(call);
    reduce_args a = job_of<grad_job>(call)->reduction;
    tarn__view first, second;
    if (tarn__view_count(d.gx) == 0 || run_in_registers<prod_grad_op>(call, &d) ||
        !reduce_states<prod_grad_op>(call, &d, &a, &first, &second))
        return;
    /* columns are walked again only if gx is written at x's offsets */
    if (!a.by_columns || a.vec_width == 1 || !same_layout(d.x, d.gx)) {
        grad_from_states<prod_grad_op>(call, &d, a, &first, &second);
        return;
    }
    by_vec_dtype(d.x->dtype, [&](auto of) {
        typedef decltype(of) T;
        dim3 grid(blocks_for(a.units, 1 << a.width_bits), (unsigned)a.chunks);
        prod_grad_columns<T, vec_size<T>::value>
            <<<grid, THREADS, 0, stream_of(call)>>>(a, (T *)tarn__view_at(d.gx), a.second);
    });
}

void tarn__cuda_register_prod_grad(tarn__kernel_row *rows)
{
    rows[TARN__K_prod_grad] = tarn__row_planned(prepare_prod_grad, run_prod_grad, TARN__FLOATS);
}
