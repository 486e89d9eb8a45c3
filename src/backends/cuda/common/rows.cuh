/* rows.cuh: kernels along one axis (softmax, norms, losses): addresses of rows, elements of a row in registers,
 * reductions over a row.
 *
 * A row belongs to a warp or to a block. Thread t of it owns vectors t, t + threads, t + 2 · threads ... of the row, so
 * the order of every sum follows from the row's length alone. */
#ifndef TARN__CUDA_ROWS_CUH
#define TARN__CUDA_ROWS_CUH

#include "backends/cuda/common/element.cuh"

/* ---- row addresses ----------------------------------------------------------------------------------------------- */

/* One operand of a row kernel. */
struct row_operand {
    void *base;    /* NULL: no such operand */
    int64_t along; /* stride along the axis, in elements */
    tarn_dtype dtype;
};

/* N operands that have the same shape but for the axis. Row r is element r of the nest over all other axes. */
template <int N> struct row_set {
    int64_t count, length;
    row_operand operand[N];
    offset_calc<N> at;
};

/* `axis` is removed from every view; `nest` receives the collapsed remainder. Missing operands are NULL. */
template <int N> static row_set<N> rows_of(int axis, const tarn__view *const *views, tarn__nest *nest)
{
    row_set<N> r = {};
    tarn__view copy[N];
    const tarn__view *without[N];
    r.length = views[0]->rank > 0 ? views[0]->shape[axis] : 1;
    for (int k = 0; k < N; k++) {
        without[k] = NULL;
        if (!views[k])
            continue;
        copy[k] = *views[k];
        r.operand[k] = row_operand{tarn__view_at(views[k]), 1, views[k]->dtype};
        if (copy[k].rank > 0) {
            r.operand[k].along = copy[k].shape[axis] > 1 ? copy[k].stride[axis] : 1;
            copy[k].shape[axis] = 1;
        }
        without[k] = &copy[k];
    }
    tarn__nest_make(nest, N, without);
    r.count = nest->count;
    r.at = offset_calc_of<N>(nest);
    return r;
}

/* A plan keeps rows without the addresses of a call; run() sets them again. */
template <int N> static void clear_addresses(row_set<N> *r)
{
    for (int k = 0; k < N; k++)
        r->operand[k].base = NULL;
}
template <int N> static void set_addresses(row_set<N> *r, const tarn__view *const *views)
{
    for (int k = 0; k < N; k++)
        r->operand[k].base = data_of<void>(views[k]);
}

/* True if the rows of operand k are whole, aligned vectors of `width` elements. */
template <int N> static bool has_vecs(const row_set<N> &r, int k, int width)
{
    const row_operand &o = r.operand[k];
    if (!o.base)
        return true;
    if (o.along != 1 || r.length % width != 0 || !is_aligned(o.base, tarn__dtype_bytes(o.dtype) * (size_t)width))
        return false;
    for (int i = 0; i < r.at.rank; i++)
        if (r.at.stride[k][i] % width != 0)
            return false;
    return true;
}

/* One axis needs a multiplication per operand and no division. */
template <int N> __device__ __forceinline__ void locate_row(const row_set<N> &r, int64_t row, int64_t *offset)
{
    if (r.at.rank <= 1) {
#pragma unroll
        for (int k = 0; k < N; k++)
            offset[k] = row * r.at.stride[k][0];
    } else {
        locate(r.at, row, offset);
    }
}

/* ---- elements of a row: typed<T, N> and untyped<C> have the same interface --------------------------------------- */

/* N values to a vector: 16-bit floats are narrowed in pairs. Stays separate from kernel.cuh's narrow_vec, whose
 * arguments are in the other order: an odd N is allowed here. */
template <typename T, int N, typename C> __device__ __forceinline__ void narrow_vec(vec<T, N> &to, const C *x)
{
#pragma unroll
    for (int i = 0; i < N; i++)
        to.at[i] = narrow<T>(x[i]);
}
template <int N> __device__ __forceinline__ void narrow_vec(vec<bf16, N> &to, const float *x)
{
#pragma unroll
    for (int i = 0; i + 1 < N; i += 2) {
        __nv_bfloat162 two = __floats2bfloat162_rn(x[i], x[i + 1]);
        memcpy(&to.at[i], &two, sizeof(two));
    }
    if (N % 2)
        to.at[N - 1] = narrow<bf16>(x[N - 1]);
}
template <int N> __device__ __forceinline__ void narrow_vec(vec<f16, N> &to, const float *x)
{
#pragma unroll
    for (int i = 0; i + 1 < N; i += 2) {
        __half2 two = __floats2half2_rn(x[i], x[i + 1]);
        memcpy(&to.at[i], &two, sizeof(two));
    }
    if (N % 2)
        to.at[N - 1] = narrow<f16>(x[N - 1]);
}

/* One dtype, N adjacent elements at a time; single ones may be strided. */
template <typename T, int N> struct typed {
    typedef compute<T> real;
    typedef vec<T, N> raw;
    enum { width = N };
    static __device__ __forceinline__ raw fetch(const row_operand &o, int64_t row, int64_t at)
    {
        const T *from = (const T *)o.base + row;
        return N > 1 ? *(const raw *)(from + at * N) : *(const raw *)(from + at * o.along);
    }
    static __device__ __forceinline__ real element(const raw &x, int i)
    {
        return widen(x.at[i]);
    }
    static __device__ __forceinline__ void store(const row_operand &o, int64_t row, int64_t at, const real *x)
    {
        T *to = (T *)o.base + row;
        raw y;
        narrow_vec(y, x);
        if constexpr (N > 1)
            store_vec(to + at * N, y);
        else
            to[at * o.along] = y.at[0];
    }
};

/* One element of any dtype, computed in C. */
template <typename C> struct untyped {
    typedef C real;
    typedef vec<C, 1> raw;
    enum { width = 1 };
    static __device__ __forceinline__ raw fetch(const row_operand &o, int64_t row, int64_t at)
    {
        return raw{{load_any<C>(o.base, o.dtype, row + at * o.along)}};
    }
    static __device__ __forceinline__ real element(const raw &x, int i)
    {
        return x.at[i];
    }
    static __device__ __forceinline__ void store(const row_operand &o, int64_t row, int64_t at, const real *x)
    {
        store_any(o.base, o.dtype, row + at * o.along, x[0]);
    }
};

/* ---- threads of a row -------------------------------------------------------------------------------------------- */

/* A row has one warp of a block of WARPS_PER_BLOCK, or a whole block of any number of warps. */
#define WARPS_PER_BLOCK 4

template <bool is_warp> __device__ __forceinline__ int row_thread()
{
    return is_warp ? (int)threadIdx.x % WARP : (int)threadIdx.x;
}
template <bool is_warp> __device__ __forceinline__ int row_threads()
{
    return is_warp ? WARP : (int)blockDim.x;
}
/* The row of this thread's warp or block. */
template <bool is_warp> __device__ __forceinline__ int64_t row_number()
{
    return is_warp ? (int64_t)blockIdx.x * WARPS_PER_BLOCK + threadIdx.x / WARP : (int64_t)blockIdx.x;
}

/* Every thread of the row gets the result. All threads of the row must call it. */
template <bool is_warp, typename How, typename C> __device__ __forceinline__ C row_reduce(C x, C nothing)
{
    if constexpr (is_warp) {
        return warp_reduce<How>(x);
    } else {
        __shared__ C space[WARP];
        return block_reduce<How>(x, space, nothing);
    }
}

/* Maximum that ignores NaN: a NaN reaches the result through the sum. */
struct max_op {
    static __device__ __forceinline__ float of(float a, float b)
    {
        return fmaxf(a, b);
    }
    static __device__ __forceinline__ double of(double a, double b)
    {
        return fmax(a, b);
    }
};

__device__ __forceinline__ float exp_of(float x)
{
    return expf(x);
}
__device__ __forceinline__ double exp_of(double x)
{
    return exp(x);
}

/* Approximate exp for sums: three instructions instead of eight. Error at most |x| · 2^-24 plus two units in the last
 * place; results below f32's normal range are 0. */
__device__ __forceinline__ float exponential_in_sum(float x)
{
    float y;
    asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x * 1.4426950408889634f));
    return y;
}
__device__ __forceinline__ double exponential_in_sum(double x)
{
    return exp(x);
}

template <typename C> __device__ __forceinline__ C minus_infinity()
{
    return (C)-CUDART_INF_F;
}

/* Online softmax: running max and the sum of exp(x - max), in one pass. The sum is rescaled when the max rises.
 * Exponentials are added in C within one call, in f64 across calls. While all elements are -infinity the shift is 0,
 * and so is the sum. */
template <typename C> struct running {
    C row_max;
    double sum;

    /* Before elements of this max are added. */
    __device__ __forceinline__ void raise_to(C here)
    {
        if (here > row_max) {
            sum *= (double)exp_of(row_max - here);
            row_max = here;
        }
    }
    __device__ __forceinline__ C shift() const
    {
        return row_max == minus_infinity<C>() ? (C)0 : row_max;
    }

    template <int N> __device__ __forceinline__ void take(const C *x)
    {
        C here = x[0], part = 0;
#pragma unroll
        for (int i = 1; i < N; i++)
            here = max_op::of(here, x[i]);
        raise_to(here);
        const C from = shift();
#pragma unroll
        for (int i = 0; i < N; i++)
            part += exponential_in_sum(x[i] - from);
        sum += (double)part;
    }

    /* Rescales the sum to a max that is at least this one. */
    __device__ __forceinline__ void rescale_to(C all)
    {
        sum *= row_max == all ? 1.0 : (double)exp_of(row_max - all);
        row_max = all;
    }
};

/* ---- launching --------------------------------------------------------------------------------------------------- */

/* Block size: whole warps for `work` items, `each` per thread, at most `most` threads. */
static inline unsigned warps_for(int64_t work, int each, int row_max)
{
    int64_t threads = ((work + each - 1) / each + WARP - 1) / WARP * WARP;
    return (unsigned)(threads < WARP ? WARP : threads > row_max ? row_max : threads);
}

/* Grid for one warp per row. */
static inline unsigned warp_blocks(int64_t rows)
{
    return blocks_for(rows, WARPS_PER_BLOCK);
}

#endif
