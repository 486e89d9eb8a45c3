/* compare.cu: comparisons, whose result is bool, and the choice between two operands. */
#include "backends/cuda/elementwise.cuh"

#define UNARY(name, ...)
#define BINARY(name, ...)
#define COMPARE(name, value) EXPRESSION(name##_value, 2, 1, PLAIN, const real a = in[0], b = in[1]; out[0] = (real)(value);)
#include "base/elementwise.def"
#undef COMPARE

/* Results are bytes: packs are as long as 16 bytes of operands. */
template <typename Op> static void run_compare(const tarn__call *call)
{
    tarn_dtype dtype = leading_dtype(call);
    if (is_nothing(call))
        return;
    bool done = dtype == TARN_F32    ? launch_packed<Op, float, bool>(call)
                : dtype == TARN_BF16 ? launch_packed<Op, bf16, bool>(call)
                : dtype == TARN_F16  ? launch_packed<Op, f16, bool>(call)
                                     : false;
    if (!done && dtype == TARN_F64)
        launch_single<Op, twice>(call);
    else if (!done && tarn__is_float(dtype))
        launch_single<Op, fine>(call);
    else if (!done)
        launch_single<Op, whole>(call);
}

/* ---- where ----------------------------------------------------------------------------------------------------------------- */

EXPRESSION(where_value, 3, 1, PLAIN, out[0] = in[0] != K(0) ? in[1] : in[2];)

/* Operands: 0 the result, 1 the condition, 2 and 3 what is chosen from. */
struct choice_args {
    void *to;
    const void *from[3];
    uint32_t dense, present; /* bit k of `dense`: from[k] lies dense along the last axis; of `present` alone: one value there; else `constant` */
    uint4 constant[3];
    int64_t count; /* packs */
    int tail;      /* elements after the last pack, where all of it is one row */
    places<4> places;
};

#define CHOICES 2 /* packs a thread */

/* One of the two operands, N elements of it. */
template <typename B, int N> __device__ __forceinline__ pack<B, N> load_choice(const choice_args &a, int k, int64_t offset)
{
    pack<B, N> x = *(const pack<B, N> *)&a.constant[k];
    const B *from = (const B *)a.from[k] + offset;
    if ((a.dense >> k) & 1) {
        x = *(const pack<B, N> *)from;
    } else if ((a.present >> k) & 1) {
        B one = *from;
#pragma unroll
        for (int i = 0; i < N; i++)
            x.at[i] = one;
    }
    return x;
}

/* The bits of elements of type B are chosen, 16 bytes at a time; the condition is one byte an element. */
template <typename B> static __global__ void __launch_bounds__(THREADS) choose_kernel(const __grid_constant__ choice_args a)
{
    constexpr int N = 16 / (int)sizeof(B);
    int64_t first = (int64_t)blockIdx.x * (THREADS * CHOICES) + threadIdx.x, to[CHOICES];
    pack<uint8_t, N> condition[CHOICES];
    pack<B, N> x[CHOICES], y[CHOICES];
#pragma unroll
    for (int u = 0; u < CHOICES; u++) {
        int64_t at = first + u * THREADS, offset[4];
        if (at >= a.count)
            continue;
        if (a.places.rank <= 1) {
#pragma unroll
            for (int k = 0; k < 4; k++)
                offset[k] = at * a.places.stride[k][0];
        } else {
            locate(a.places, at, offset);
        }
        to[u] = offset[0];
        condition[u] = load_choice<uint8_t, N>(a, 0, offset[1]);
        x[u] = load_choice<B, N>(a, 1, offset[2]);
        y[u] = load_choice<B, N>(a, 2, offset[3]);
    }
#pragma unroll
    for (int u = 0; u < CHOICES; u++) {
        if (first + u * THREADS >= a.count)
            continue;
#pragma unroll
        for (int i = 0; i < N; i++)
            x[u].at[i] = condition[u].at[i] ? x[u].at[i] : y[u].at[i];
        *(pack<B, N> *)((B *)a.to + to[u]) = x[u];
    }
    if (blockIdx.x == 0 && (int)threadIdx.x < a.tail) {
        int64_t at = a.count * N + threadIdx.x;
        bool is_first = load_choice<uint8_t, 1>(a, 0, (a.dense & 1) ? at : 0).at[0];
        int k = is_first ? 1 : 2;
        ((B *)a.to)[at] = load_choice<B, 1>(a, k, (a.dense >> k) & 1 ? at : 0).at[0];
    }
}

/* Fills in what is read how, and turns the nest into one of packs of n; false where a layout or an address is in the way. */
static bool pack_choice(const tarn__call *call, tarn__nest *nest, int n, choice_args *a)
{
    const tarn__elementwise *params = (const tarn__elementwise *)call->params;
    int last = nest->rank - 1;
    if (nest->rank == 0 || (nest->rank > 1 && nest->shape[last] % n != 0))
        return false;
    for (int k = 0; k < 4; k++) {
        const tarn__view *view = k == 0 ? call->out[0] : call->in[k - 1];
        int64_t inner = nest->stride[k][last];
        if (!view) {
            a->constant[k - 1] = tarn__cuda_bits_of(call->out[0]->dtype, &params->constant[k - 1]);
            continue;
        }
        if (inner != 1 && (k == 0 || inner != 0))
            return false;
        if (inner == 1 && !is_aligned(tarn__view_at(view), tarn__dtype_bytes(view->dtype) * (size_t)n))
            return false;
        for (int i = 0; inner == 1 && i < last; i++)
            if (nest->stride[k][i] % n != 0)
                return false;
        if (k > 0) {
            a->from[k - 1] = tarn__view_at(view);
            a->present |= 1u << (k - 1);
            a->dense |= (uint32_t)inner << (k - 1);
        }
        nest->stride[k][last] = inner * n;
    }
    a->to = tarn__view_at(call->out[0]);
    a->tail = nest->rank == 1 ? (int)(nest->shape[last] % n) : 0;
    nest->shape[last] /= n;
    nest->count /= n;
    a->count = nest->count;
    a->places = places_of<4>(nest);
    return true;
}

/* Two packs of 16 bytes a thread, 256 threads a block. Moves a byte an element for the condition, and up to three elements. */
static bool launch_choice(const tarn__call *call)
{
    tarn_dtype dtype = call->out[0]->dtype;
    size_t bytes = tarn__dtype_bytes(dtype);
    for (int k = 1; k < 3; k++)
        if (call->in[k] && call->in[k]->dtype != dtype)
            return false;
    if (!call->in[0] || call->in[0]->dtype != TARN_BOOL)
        return false;
    tarn__nest nest;
    nest_of<where_value>(call, &nest);
    choice_args a = {};
    if (!pack_choice(call, &nest, (int)(16 / bytes), &a))
        return false;
    unsigned blocks = blocks_for(a.count, THREADS * CHOICES);
    switch (bytes) {
    case 1: choose_kernel<uint8_t><<<blocks, THREADS, 0, stream_of(call)>>>(a); break;
    case 2: choose_kernel<uint16_t><<<blocks, THREADS, 0, stream_of(call)>>>(a); break;
    case 4: choose_kernel<uint32_t><<<blocks, THREADS, 0, stream_of(call)>>>(a); break;
    default: choose_kernel<uint64_t><<<blocks, THREADS, 0, stream_of(call)>>>(a); break;
    }
    return true;
}

/* Packs where layouts allow it, else one by one. */
static void run_where(const tarn__call *call)
{
    tarn_dtype dtype = call->in[1] ? call->in[1]->dtype : call->in[2] ? call->in[2]->dtype : call->out[0]->dtype;
    if (is_nothing(call) || launch_choice(call))
        return;
    if (dtype == TARN_F64)
        launch_single<where_value, twice>(call);
    else if (tarn__is_float(dtype))
        launch_single<where_value, fine>(call);
    else
        launch_single<where_value, whole>(call);
}

void tarn__cuda_compare(tarn__kernel_row *rows)
{
#define COMPARE(name, ...) rows[TARN__K_##name] = tarn__kernel_row{run_compare<name##_value>, TARN__ALL, NULL};
#include "base/elementwise.def"
    rows[TARN__K_where] = tarn__kernel_row{run_where, TARN__ALL, NULL};
}
