/* rows.cuh: kernels along one axis: where rows lie, and how elements of a row come into registers. Softmax, norms and
 * losses share it.
 *
 * A row belongs to a warp or to a block, and thread t of it owns packs t, t + threads, t + 2 · threads ... of the row:
 * all of an order that sums depend on is fixed by the row's length. */
#ifndef TARN__ROWS_CUH
#define TARN__ROWS_CUH

#include "backends/cuda/common/element.cuh"

/* ---- where rows lie ---------------------------------------------------------------------------------------------- */

struct row_operand {
    void *base;    /* NULL where there is no such operand */
    int64_t along; /* stride along the axis */
    tarn_dtype dtype;
};

/* N operands whose shapes are the same but on the axis. Row number r is element r of the nest over all other axes. */
template <int N> struct row_set {
    int64_t count, length;
    row_operand operand[N];
    places<N> at;
};

template <int N> static row_set<N> rows_of(int axis, const tarn__view *const *views, tarn__nest *nest)
{
    row_set<N> r = {};
    tarn__view held[N];
    const tarn__view *without[N];
    r.length = views[0]->rank > 0 ? views[0]->shape[axis] : 1;
    for (int k = 0; k < N; k++) {
        without[k] = NULL;
        if (!views[k])
            continue;
        held[k] = *views[k];
        r.operand[k] = row_operand{tarn__view_at(views[k]), 1, views[k]->dtype};
        if (held[k].rank > 0) {
            r.operand[k].along = held[k].shape[axis] > 1 ? held[k].stride[axis] : 1;
            held[k].shape[axis] = 1;
        }
        without[k] = &held[k];
    }
    tarn__nest_make(nest, N, without);
    r.count = nest->count;
    r.at = places_of<N>(nest);
    return r;
}

/* True when rows of operand k are made of whole, aligned packs of `width` elements. */
template <int N> static bool has_packs(const row_set<N> &r, int k, int width)
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

/* ---- elements of a row: two ways to move them, with one face ----------------------------------------------------- */

/* N numbers as elements: 16-bit ones are made two at a time, in one instruction. */
template <typename T, int N, typename C> __device__ __forceinline__ void narrow_pack(pack<T, N> &to, const C *x)
{
#pragma unroll
    for (int i = 0; i < N; i++)
        to.at[i] = narrow<T>(x[i]);
}
template <int N> __device__ __forceinline__ void narrow_pack(pack<bf16, N> &to, const float *x)
{
#pragma unroll
    for (int i = 0; i + 1 < N; i += 2) {
        __nv_bfloat162 two = __floats2bfloat162_rn(x[i], x[i + 1]);
        memcpy(&to.at[i], &two, sizeof(two));
    }
    if (N % 2)
        to.at[N - 1] = narrow<bf16>(x[N - 1]);
}
template <int N> __device__ __forceinline__ void narrow_pack(pack<f16, N> &to, const float *x)
{
#pragma unroll
    for (int i = 0; i + 1 < N; i += 2) {
        __half2 two = __floats2half2_rn(x[i], x[i + 1]);
        memcpy(&to.at[i], &two, sizeof(two));
    }
    if (N % 2)
        to.at[N - 1] = narrow<f16>(x[N - 1]);
}

/* Neighbours of one dtype, N at a time; single ones may lie apart. */
template <typename T, int N> struct typed {
    typedef wide<T> real;
    typedef pack<T, N> raw;
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
        narrow_pack(y, x);
        if constexpr (N > 1)
            store_pack(to + at * N, y);
        else
            to[at * o.along] = y.at[0];
    }
};

/* One element of whatever dtype, computed in C. */
template <typename C> struct untyped {
    typedef C real;
    typedef pack<C, 1> raw;
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

/* ---- the threads of a row ---------------------------------------------------------------------------------------- */

/* A row has a warp of a block of WARPS_A_BLOCK, or a block of any number of whole warps. */
#define WARPS_A_BLOCK 4

template <bool is_warp> __device__ __forceinline__ int row_thread()
{
    return is_warp ? (int)threadIdx.x % WARP : (int)threadIdx.x;
}
template <bool is_warp> __device__ __forceinline__ int row_threads()
{
    return is_warp ? WARP : (int)blockDim.x;
}
template <bool is_warp> __device__ __forceinline__ int64_t row_number()
{
    return is_warp ? (int64_t)blockIdx.x * WARPS_A_BLOCK + threadIdx.x / WARP : (int64_t)blockIdx.x;
}

/* Every thread of the row gets the result. All of a row's threads must come here. */
template <bool is_warp, typename How, typename C> __device__ __forceinline__ C over_row(C x, C nothing)
{
    if constexpr (is_warp) {
        return over_warp<How>(x);
    } else {
        __shared__ C space[WARP];
        return over_block<How>(x, space, nothing);
    }
}

/* The larger number; NaN is passed over, and finds its way into results by sums. */
struct take_larger {
    static __device__ __forceinline__ float of(float a, float b)
    {
        return fmaxf(a, b);
    }
    static __device__ __forceinline__ double of(double a, double b)
    {
        return fmax(a, b);
    }
};

__device__ __forceinline__ float exponential(float x)
{
    return expf(x);
}
__device__ __forceinline__ double exponential(double x)
{
    return exp(x);
}

/* For sums: three instructions instead of eight, an error of at most |x| · 2^-24 beside the last two bits, and 0 below
 * f32's normal numbers. */
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

/* A largest element and the sum of exponentials relative to it, found in one pass: the sum is scaled down whenever the
 * largest rises. The exponentials are added in C a few at a time and in f64 from there. While all is -infinity, the
 * shift is 0 and so is the sum. */
template <typename C> struct running {
    C most;
    double sum;

    template <int N> __device__ __forceinline__ void take(const C *x)
    {
        C here = x[0], part = 0;
#pragma unroll
        for (int i = 1; i < N; i++)
            here = take_larger::of(here, x[i]);
        if (here > most) {
            sum *= (double)exponential(most - here);
            most = here;
        }
        C shift = most == minus_infinity<C>() ? (C)0 : most;
#pragma unroll
        for (int i = 0; i < N; i++)
            part += exponential_in_sum(x[i] - shift);
        sum += (double)part;
    }

    /* Brings the sum to a largest element that is at least this one. */
    __device__ __forceinline__ void raise_to(C all)
    {
        sum *= most == all ? 1.0 : (double)exponential(most - all);
        most = all;
    }
};

/* ---- starting ---------------------------------------------------------------------------------------------------- */

/* Whole warps for `work` items, `each` a thread. */
static inline unsigned warps_for(int64_t work, int each, int most)
{
    int64_t threads = ((work + each - 1) / each + WARP - 1) / WARP * WARP;
    return (unsigned)(threads < WARP ? WARP : threads > most ? most : threads);
}

/* Rows that have a warp each. */
static inline unsigned warp_blocks(int64_t rows)
{
    return blocks_for(rows, WARPS_A_BLOCK);
}

#endif
