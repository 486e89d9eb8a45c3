/* spread.cu: a tensor laid into a window of another, a number everywhere else: padding, and the gradients of parts.
 *
 * One pass over the result, which is written once and whole; what lies in the window is read. A thread writes 16 bytes of the result and works
 * out its place once, stepping along the last axis from there. */
#include "backends/cuda/element.cuh"

struct spread_axis {
    divider size;  /* of the result */
    int64_t begin, count, step; /* of the window: its first place, how many elements, and how far apart */
    int64_t stride;             /* of the source */
};

struct spread_args {
    void *to;
    const void *from;
    tarn_dtype to_dtype, from_dtype;
    int64_t count;
    int rank;
    bool is_small;
    uint4 bits; /* of the number, repeated */
    double value;
    spread_axis axis[TARN_MAX_RANK];
};

/* The element of the source at place `at` of an axis, or -1. */
__device__ __forceinline__ int64_t in_window(const spread_axis &axis, int64_t at)
{
    int64_t far = at - axis.begin;
    if (far < 0)
        return -1;
    if (axis.step != 1) {
        int64_t i = (int64_t)((uint32_t)far / (uint32_t)axis.step);
        if (axis.step >> 31 || far >> 31)
            i = far / axis.step;
        if (i * axis.step != far)
            return -1;
        far = i;
    }
    return far < axis.count ? far : -1;
}

/* Splits an element's number into its place on the last axis and the rest; offset is the source's without the last axis, and `inside` whether
 * the rest lies in the window. */
__device__ __forceinline__ int64_t find_row(const spread_args &a, int64_t at, int64_t *offset, bool *inside)
{
    int64_t last = 0;
    *offset = 0;
    *inside = true;
    for (int i = a.rank - 1; i >= 0; i--) {
        int64_t next = a.is_small ? (int64_t)divide_small((uint32_t)at, a.axis[i].size) : (int64_t)divide_large((uint64_t)at, a.axis[i].size.by);
        int64_t here = at - next * (int64_t)a.axis[i].size.by;
        at = next;
        if (i == a.rank - 1) {
            last = here;
            continue;
        }
        int64_t source = in_window(a.axis[i], here);
        *inside = *inside && source >= 0;
        *offset += source * a.axis[i].stride;
    }
    return last;
}

/* Elements of one dtype: bits of B, a pack of 16 bytes a thread. */
template <typename B> static __global__ void __launch_bounds__(THREADS) spread_kernel(const __grid_constant__ spread_args a)
{
    constexpr int N = 16 / (int)sizeof(B);
    int64_t first = ((int64_t)blockIdx.x * THREADS + threadIdx.x) * N, offset;
    if (first >= a.count)
        return;
    bool inside;
    const spread_axis &axis = a.axis[a.rank - 1];
    const B *from = (const B *)a.from;
    const B empty = *(const B *)&a.bits;
    int64_t last = find_row(a, first, &offset, &inside);
    int n = (int)(a.count - first < N ? a.count - first : N);
    pack<B, N> x;
#pragma unroll
    for (int i = 0; i < N; i++) {
        x.at[i] = empty;
        if (i < n) {
            if (last == (int64_t)axis.size.by) {
                find_row(a, first + i, &offset, &inside);
                last = 0;
            }
            int64_t source = inside ? in_window(axis, last) : -1;
            if (source >= 0)
                x.at[i] = from[offset + source * axis.stride];
            last++;
        }
    }
    B *to = (B *)a.to + first;
    if (n == N) {
        *(pack<B, N> *)to = x;
    } else {
        for (int i = 0; i < n; i++)
            to[i] = x.at[i];
    }
}

/* With a conversion: one element a thread. */
template <typename C> static __global__ void __launch_bounds__(THREADS) spread_convert_kernel(const __grid_constant__ spread_args a)
{
    int64_t at = (int64_t)blockIdx.x * THREADS + threadIdx.x, offset;
    if (at >= a.count)
        return;
    bool inside;
    int64_t last = find_row(a, at, &offset, &inside), source = inside ? in_window(a.axis[a.rank - 1], last) : -1;
    store_any(a.to, a.to_dtype, at, source < 0 ? (C)a.value : load_any<C>(a.from, a.from_dtype, offset + source * a.axis[a.rank - 1].stride));
}

/* The axes, size-1 ones of the result left out; a whole axis is joined with the one before it where both sides allow it. */
static void describe(const tarn__call *call, spread_args *a)
{
    const tarn__spread *spread = (const tarn__spread *)call->params;
    const tarn__view *x = call->in[0], *y = call->out[0];
    for (int i = 0; i < y->rank; i++) {
        bool is_whole = spread->begin[i] == 0 && spread->step[i] == 1 && x->shape[i] == y->shape[i];
        if (is_whole && y->shape[i] == 1)
            continue;
        spread_axis *before = a->rank > 0 ? &a->axis[a->rank - 1] : NULL;
        bool was_whole = before && before->begin == 0 && before->step == 1 && before->count == (int64_t)before->size.by;
        if (is_whole && was_whole && before->stride == x->stride[i] * x->shape[i]) {
            before->count *= x->shape[i];
            before->size = divider_of(before->count);
            before->stride = x->stride[i];
        } else {
            a->axis[a->rank++] = spread_axis{divider_of(y->shape[i]), spread->begin[i], x->shape[i], spread->step[i], x->stride[i]};
        }
    }
    if (a->rank == 0)
        a->axis[a->rank++] = spread_axis{divider_of(1), 0, 1, 1, 0};
}

template <typename B> static void launch(const tarn__call *call, const spread_args &a)
{
    spread_kernel<B><<<blocks_for(a.count, THREADS * (16 / (int)sizeof(B))), THREADS, 0, stream_of(call)>>>(a);
}

static void kernel_spread(const tarn__call *call)
{
    const tarn__spread *spread = (const tarn__spread *)call->params;
    const tarn__view *x = call->in[0], *y = call->out[0];
    spread_args a = {tarn__view_at(y), tarn__view_at(x), y->dtype, x->dtype, tarn__view_count(y)};
    if (a.count == 0)
        return;
    describe(call, &a);
    a.is_small = a.count < ((int64_t)1 << 31);
    a.bits = tarn__cuda_bits_of(y->dtype, &spread->value);
    a.value = spread->value.real;
    size_t size = tarn__dtype_bytes(y->dtype);
    if (x->dtype == y->dtype && is_aligned(a.to, 16)) {
        switch (size) {
        case 1: launch<uint8_t>(call, a); break;
        case 2: launch<uint16_t>(call, a); break;
        case 4: launch<uint32_t>(call, a); break;
        default: launch<uint64_t>(call, a); break;
        }
    } else if (tarn__is_float(x->dtype)) {
        spread_convert_kernel<double><<<blocks_for(a.count, THREADS), THREADS, 0, stream_of(call)>>>(a);
    } else {
        spread_convert_kernel<int64_t><<<blocks_for(a.count, THREADS), THREADS, 0, stream_of(call)>>>(a);
    }
}

void tarn__cuda_spread(tarn__kernel_row *rows)
{
    rows[TARN__K_spread] = tarn__kernel_row{kernel_spread, TARN__ALL, NULL};
}
