/* compare.cu: comparisons, whose result is bool, and `where` with its gradient. */
#include "backends/cuda/elementwise/elementwise_loops.cuh"

/* A comparison gives 0 or 1 in the compute type, stored as bool. */
#define UNARY(name, ...)
#define BINARY(name, ...)
#define COMPARE(name, value) \
    EXPRESSION(name##_value, 2, 1, IN_F32, const real a = in[0], b = in[1]; out[0] = (real)(value);)
#include "base/kernel/elementwise.def"
#undef COMPARE

/* Results are bytes: vectors have as many elements as 16 bytes of operands. */
template <typename Op> static void run_compare(const tarn__call *call)
{
    tarn_dtype dtype = leading_dtype(call);
    if (is_empty(call))
        return;
    bool done = dtype == TARN_F32    ? launch_vectorized<Op, float, bool>(call)
                : dtype == TARN_BF16 ? launch_vectorized<Op, bf16, bool>(call)
                : dtype == TARN_F16  ? launch_vectorized<Op, f16, bool>(call)
                                     : false;
    if (!done && dtype == TARN_F64)
        launch_scalar<Op, f64_math>(call);
    else if (!done && tarn__is_float(dtype))
        launch_scalar<Op, f32_math>(call);
    else if (!done)
        launch_scalar<Op, int_math>(call);
}

/* ---- where ------------------------------------------------------------------------------------------------------- */

EXPRESSION(where_value, 3, 1, IN_F32, out[0] = in[0] != K(0) ? in[1] : in[2];)

#define SELECTS 2 /* vectors per thread */

/* How operands are read. Bit k of `dense`: operand k is contiguous along the last axis; of `present` alone: it has one
 * value there; else it is a constant. Outputs come first, then the condition, then the operands. */
struct select_layout {
    uint32_t dense, present;
    int64_t count; /* vectors */
    int tail;      /* elements after the last vector, if everything is one row */
    offset_calc<4> at;
};

/* where(condition, from[0], from[1]). */
struct select_args {
    void *to;
    const void *condition, *from[2];
    uint4 constant[2];
    select_layout offsets;
};

/* Gradient of where. */
struct route_args {
    void *to[2];
    const void *condition, *g;
    select_layout offsets;
};

/* One row needs no division. */
__device__ __forceinline__ void locate_select(const select_layout &p, int64_t at, int64_t *offset)
{
    if (p.at.rank <= 1) {
#pragma unroll
        for (int k = 0; k < 4; k++)
            offset[k] = at * p.at.stride[k][0];
    } else {
        locate(p.at, at, offset);
    }
}

/* N elements of operand k. */
template <typename B, int N>
__device__ __forceinline__ vec<B, N> load_operand(const select_layout &p, int k, const void *base, int64_t offset,
                                                  const uint4 &constant)
{
    const B *from = (const B *)base + offset;
    if ((p.dense >> k) & 1)
        return *(const vec<B, N> *)from;
    vec<B, N> x = *(const vec<B, N> *)&constant;
    if ((p.present >> k) & 1) {
        B one = *from;
#pragma unroll
        for (int i = 0; i < N; i++)
            x.at[i] = one;
    }
    return x;
}

/* The condition, a byte per element, as 16 bytes of masks for elements of type B: all bits set where it is true. */
template <typename B> struct select_mask {
    static constexpr int N = 16 / (int)sizeof(B);
    static __device__ __forceinline__ void of(const vec<uint8_t, N> &condition, uint32_t *mask)
    {
        /* four condition bytes per word */
        uint32_t words[(N + 3) / 4] = {};
        memcpy(words, &condition, sizeof(condition));
#pragma unroll
        for (int i = 0; i < (N + 3) / 4; i++)
            words[i] = __vcmpne4(words[i], 0);
#pragma unroll
        for (int w = 0; w < 4; w++)
            mask[w] = sizeof(B) == 1   ? words[w]
                      : sizeof(B) == 2 ? __byte_perm(words[w / 2], 0, w % 2 ? 0x3322 : 0x1100)
                                       : __byte_perm(words[0], 0, 0x1111u * (unsigned)(sizeof(B) == 4 ? w : w / 2));
    }
};

/* Selects bits of elements of type B, 16 bytes at a time: dtypes of one size share a kernel. */
template <typename B>
static __global__ void __launch_bounds__(THREADS) select_kernel(const __grid_constant__ select_args a)
{
    constexpr int N = 16 / (int)sizeof(B);
    const uint4 none = make_uint4(0, 0, 0, 0);
    int64_t first = (int64_t)blockIdx.x * (THREADS * SELECTS) + threadIdx.x, to[SELECTS];
    vec<uint8_t, N> condition[SELECTS];
    vec<B, N> x[SELECTS], y[SELECTS];
#pragma unroll
    for (int u = 0; u < SELECTS; u++) {
        int64_t offset[4];
        if (first + u * THREADS >= a.offsets.count)
            continue;
        locate_select(a.offsets, first + u * THREADS, offset);
        to[u] = offset[0];
        condition[u] = load_operand<uint8_t, N>(a.offsets, 1, a.condition, offset[1], none);
        x[u] = load_operand<B, N>(a.offsets, 2, a.from[0], offset[2], a.constant[0]);
        y[u] = load_operand<B, N>(a.offsets, 3, a.from[1], offset[3], a.constant[1]);
    }
#pragma unroll
    for (int u = 0; u < SELECTS; u++) {
        if (first + u * THREADS >= a.offsets.count)
            continue;
        uint32_t mask[4], one[4], other[4];
        select_mask<B>::of(condition[u], mask);
        memcpy(one, &x[u], sizeof(one));
        memcpy(other, &y[u], sizeof(other));
#pragma unroll
        for (int w = 0; w < 4; w++)
            one[w] = (one[w] & mask[w]) | (other[w] & ~mask[w]);
        *(uint4 *)((B *)a.to + to[u]) = make_uint4(one[0], one[1], one[2], one[3]);
    }
    if (blockIdx.x == 0 && (int)threadIdx.x < a.offsets.tail) {
        int64_t at = a.offsets.count * N + threadIdx.x;
        int k = load_operand<uint8_t, 1>(a.offsets, 1, a.condition, (a.offsets.dense >> 1) & 1 ? at : 0, none).at[0]
                    ? 0
                    : 1;
        int64_t offset = (a.offsets.dense >> (2 + k)) & 1 ? at : 0;
        ((B *)a.to)[at] = load_operand<B, 1>(a.offsets, 2 + k, a.from[k], offset, a.constant[k]).at[0];
    }
}

/* Routes the gradient to the first output where the condition is true, to the second elsewhere; the other gets 0. */
template <typename B>
static __global__ void __launch_bounds__(THREADS) route_kernel(const __grid_constant__ route_args a)
{
    constexpr int N = 16 / (int)sizeof(B);
    const uint4 none = make_uint4(0, 0, 0, 0);
    int64_t first = (int64_t)blockIdx.x * (THREADS * SELECTS) + threadIdx.x, offset[SELECTS][4];
    vec<uint8_t, N> condition[SELECTS];
    vec<B, N> g[SELECTS];
#pragma unroll
    for (int u = 0; u < SELECTS; u++) {
        if (first + u * THREADS >= a.offsets.count)
            continue;
        locate_select(a.offsets, first + u * THREADS, offset[u]);
        condition[u] = load_operand<uint8_t, N>(a.offsets, 2, a.condition, offset[u][2], none);
        g[u] = load_operand<B, N>(a.offsets, 3, a.g, offset[u][3], none);
    }
#pragma unroll
    for (int u = 0; u < SELECTS; u++) {
        if (first + u * THREADS >= a.offsets.count)
            continue;
        uint32_t mask[4], upstream[4];
        select_mask<B>::of(condition[u], mask);
        memcpy(upstream, &g[u], sizeof(upstream));
        *(uint4 *)((B *)a.to[0] + offset[u][0]) =
            make_uint4(upstream[0] & mask[0], upstream[1] & mask[1], upstream[2] & mask[2], upstream[3] & mask[3]);
        *(uint4 *)((B *)a.to[1] + offset[u][1]) =
            make_uint4(upstream[0] & ~mask[0], upstream[1] & ~mask[1], upstream[2] & ~mask[2], upstream[3] & ~mask[3]);
    }
    if (blockIdx.x == 0 && (int)threadIdx.x < a.offsets.tail) {
        int64_t at = a.offsets.count * N + threadIdx.x;
        bool is_true =
            load_operand<uint8_t, 1>(a.offsets, 2, a.condition, (a.offsets.dense >> 2) & 1 ? at : 0, none).at[0];
        B upstream = load_operand<B, 1>(a.offsets, 3, a.g, (a.offsets.dense >> 3) & 1 ? at : 0, none).at[0];
        ((B *)a.to[0])[at] = is_true ? upstream : (B)0;
        ((B *)a.to[1])[at] = is_true ? (B)0 : upstream;
    }
}

/* Fills in how four operands are read, and turns their nest into one of vectors of n; false if a layout or an address
 * does not allow it. */
static bool vectorize_select(const tarn__view *const *views, int outputs, int n, select_layout *p)
{
    tarn__nest nest;
    tarn__nest_make(&nest, 4, views);
    int last = nest.rank - 1;
    if (nest.rank == 0 || (nest.rank > 1 && nest.shape[last] % n != 0))
        return false;
    for (int k = 0; k < 4; k++) {
        int64_t inner = nest.stride[k][last];
        if (!views[k])
            continue;
        if (inner != 1 && (k < outputs || inner != 0))
            return false;
        if (inner == 1 && !is_aligned(tarn__view_at(views[k]), tarn__dtype_bytes(views[k]->dtype) * (size_t)n))
            return false;
        for (int i = 0; inner == 1 && i < last; i++)
            if (nest.stride[k][i] % n != 0)
                return false;
        p->present |= 1u << k;
        p->dense |= (uint32_t)inner << k;
        nest.stride[k][last] = inner * n;
    }
    p->tail = nest.rank == 1 ? (int)(nest.shape[last] % n) : 0;
    nest.shape[last] /= n;
    nest.count /= n;
    p->count = nest.count;
    p->at = offset_calc_of<4>(&nest);
    return true;
}

/* Launches for an element size: the bits of all dtypes of that size are treated alike. */
#define LAUNCH_SELECT(kernel, bytes, blocks, a, stream) \
    switch (bytes) { \
    case 1: kernel<uint8_t><<<blocks, THREADS, 0, stream>>>(a); break; \
    case 2: kernel<uint16_t><<<blocks, THREADS, 0, stream>>>(a); break; \
    case 4: kernel<uint32_t><<<blocks, THREADS, 0, stream>>>(a); break; \
    default: kernel<uint64_t><<<blocks, THREADS, 0, stream>>>(a); break; \
    }

/* Grid: two 16-byte vectors per thread, 256 threads per block. Bytes: one per element for the condition, and up to
 * three elements. */
static bool launch_select(const tarn__call *call)
{
    const tarn__elementwise *params = (const tarn__elementwise *)call->params;
    const tarn__view *views[] = {call->out[0], call->in[0], call->in[1], call->in[2]};
    tarn_dtype dtype = call->out[0]->dtype;
    size_t bytes = tarn__dtype_bytes(dtype);
    select_args a = {};
    /* conditions of other dtypes go one by one */
    if (!call->in[0] || call->in[0]->dtype != TARN_BOOL)
        return false;
    for (int k = 1; k < 3; k++) {
        if (call->in[k] && call->in[k]->dtype != dtype)
            return false;
        a.from[k - 1] = data_of<const void>(call->in[k]);
        if (!call->in[k])
            a.constant[k - 1] = tarn__cuda_bits_of(dtype, &params->constant[k]);
    }
    if (!vectorize_select(views, 1, (int)(16 / bytes), &a.offsets))
        return false;
    a.to = tarn__view_at(call->out[0]);
    a.condition = tarn__view_at(call->in[0]);
    LAUNCH_SELECT(select_kernel, bytes, blocks_for(a.offsets.count, THREADS * SELECTS), a, stream_of(call))
    return true;
}

/* Vectors if layouts allow it, else one by one. */
static void run_where(const tarn__call *call)
{
    tarn_dtype dtype = call->in[1] ? call->in[1]->dtype : call->in[2] ? call->in[2]->dtype : call->out[0]->dtype;
    if (is_empty(call) || launch_select(call))
        return;
    if (dtype == TARN_F64)
        launch_scalar<where_value, f64_math>(call);
    else if (tarn__is_float(dtype))
        launch_scalar<where_value, f32_math>(call);
    else
        launch_scalar<where_value, int_math>(call);
}

/* Grid as launch_select. Bytes: one per element for the condition, and three elements. */
static bool launch_route(const tarn__call *call)
{
    const tarn__view *views[] = {call->out[0], call->out[1], call->in[0], call->in[1]};
    tarn_dtype dtype = call->in[1]->dtype;
    size_t bytes = tarn__dtype_bytes(dtype);
    route_args a = {};
    if (call->in[0]->dtype != TARN_BOOL || call->out[0]->dtype != dtype || call->out[1]->dtype != dtype)
        return false;
    if (!vectorize_select(views, 2, (int)(16 / bytes), &a.offsets))
        return false;
    a.to[0] = tarn__view_at(call->out[0]);
    a.to[1] = tarn__view_at(call->out[1]);
    a.condition = tarn__view_at(call->in[0]);
    a.g = tarn__view_at(call->in[1]);
    LAUNCH_SELECT(route_kernel, bytes, blocks_for(a.offsets.count, THREADS * SELECTS), a, stream_of(call))
    return true;
}

/* Both outputs in one pass if layouts and dtypes allow it; else two selects between the gradient and 0. */
static void run_where_grad(const tarn__call *call)
{
    if (is_empty(call) || launch_route(call))
        return;
    for (int i = 0; i < 2; i++) {
        tarn__elementwise zero = {};
        tarn__call part = *call;
        /* the other branch is the constant 0 */
        zero.constants = i == 0 ? 4u : 2u;
        part.inputs = 3;
        part.outputs = 1;
        part.in[1] = i == 0 ? call->in[1] : NULL;
        part.in[2] = i == 0 ? NULL : call->in[1];
        part.out[0] = call->out[i];
        part.params = &zero;
        part.params_bytes = sizeof(zero);
        run_where(&part);
    }
}

/* where accepts every dtype: it moves bits. */
void tarn__cuda_register_compare(tarn__kernel_row *rows)
{
#define COMPARE(name, ...) rows[TARN__K_##name] = tarn__row(run_compare<name##_value>, TARN__ALL);
#include "base/kernel/elementwise.def"
    rows[TARN__K_where] = tarn__row(run_where, TARN__ALL);
    rows[TARN__K_where_grad] = tarn__row(run_where_grad, TARN__ALL);
}
