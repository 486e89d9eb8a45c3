/* pad.cu: pad: a tensor in a window of a larger one, a constant elsewhere; also the gradients of slices. Interior
 * padding (a step above 1) is supported.
 *
 * One pass over the result, which is written once; the source is read once. Within one dtype window.cu moves bits; with
 * a conversion it is one element per thread. */
#include "backends/cuda/common/element.cuh"
#include "backends/cuda/copy/copy.cuh"

struct pad_axis {
    divider size; /* of the result */
    tarn__pad_axis in;
};

/* The result is contiguous; the source may have any strides. */
struct pad_args {
    void *to;
    const void *from;
    tarn_dtype to_dtype, from_dtype;
    int64_t count;
    int rank;
    bool is_small;
    double value;
    pad_axis axis[TARN_MAX_RANK];
};

/* Index of the source at position `at` of an axis, or -1. */
__device__ __forceinline__ int64_t in_window(const tarn__pad_axis &axis, int64_t at)
{
    int64_t distance = at - axis.begin, i = distance;
    if (distance < 0)
        return -1;
    if (axis.step != 1) {
        i = (axis.step | distance) >> 31 ? distance / axis.step : (int64_t)((uint32_t)distance / (uint32_t)axis.step);
        if (i * axis.step != distance)
            return -1;
    }
    return i < axis.count ? i : -1;
}

/* One element of the result per thread. */
template <typename C> static __global__ void __launch_bounds__(THREADS) pad_kernel(const __grid_constant__ pad_args a)
{
    int64_t at = (int64_t)blockIdx.x * THREADS + threadIdx.x, offset = 0, rest = at;
    if (at >= a.count)
        return;
    bool is_inside = true;
    for (int i = a.rank - 1; i >= 0; i--) {
        const pad_axis &axis = a.axis[i];
        int64_t next = a.is_small ? (int64_t)divide_small((uint32_t)rest, axis.size)
                                  : (int64_t)divide_large((uint64_t)rest, axis.size.by);
        int64_t source = in_window(axis.in, rest - next * axis.in.size);
        is_inside = is_inside && source >= 0;
        offset += source * axis.in.from;
        rest = next;
    }
    store_any(a.to, a.to_dtype, at, is_inside ? load_any<C>(a.from, a.from_dtype, offset) : (C)a.value);
}

/* `value` is converted on the host, once. */
static void kernel_pad(const tarn__call *call)
{
    const tarn__pad *pad = (const tarn__pad *)call->params;
    const tarn__view *x = call->in[0], *y = call->out[0];
    pad_args a = {tarn__view_at(y), tarn__view_at(x), y->dtype, x->dtype, tarn__view_count(y)};
    if (a.count == 0)
        return;
    tarn__pad_axis axis[TARN_MAX_RANK];
    a.rank = tarn__pad_axes(call, axis);
    uint4 empty = tarn__cuda_bits_of(y->dtype, &pad->value);
    if (x->dtype == y->dtype && tarn__cuda_window(call, axis, a.rank, (int)tarn__dtype_bytes(y->dtype), empty))
        return;
    for (int i = 0; i < a.rank; i++)
        a.axis[i] = pad_axis{divider_of(axis[i].size), axis[i]};
    a.is_small = a.count < ((int64_t)1 << 31);
    a.value = pad->value.real;
    if (tarn__is_float(x->dtype))
        pad_kernel<double><<<blocks_for(a.count, THREADS), THREADS, 0, stream_of(call)>>>(a);
    else
        pad_kernel<int64_t><<<blocks_for(a.count, THREADS), THREADS, 0, stream_of(call)>>>(a);
}

void tarn__cuda_register_pad(tarn__kernel_row *rows)
{
    rows[TARN__K_pad] = tarn__row(kernel_pad, TARN__ALL);
}
