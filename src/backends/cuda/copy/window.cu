/* window.cu: elements of any strides into a window of a target, which is written once: copies of differently aligned
 * rows, pad, and gradients of slices.
 *
 * Rows with different alignment cannot move in 16 bytes, so what counts is that a warp's accesses are adjacent and that
 * an element costs few instructions. A thread writes a unit of up to 8 bytes and loads its elements one by one: the
 * loads of a warp cover one piece of a row, and all but the first hit the cache. Its offsets are computed once for
 * several units, which are spread along the longest outer axis: units of adjacent threads are adjacent in every
 * copy. */
#include "backends/cuda/copy/copy.cuh"

#define COPIES 8

/* An axis in 32-bit arithmetic. */
struct window_axis {
    divider size, step;
    uint32_t begin, span; /* span: from the first position with an element to after the last */
    int64_t to, from;
};

/* Kernel arguments; the last axis is separate, since a unit spans it. */
struct window_args {
    void *to;
    const void *from;
    uint32_t units; /* of one copy */
    int outer;      /* axes before the last */
    int loop_axis;  /* the axis walked in copies: its step is 1, and its size in `axis` is what one copy covers */
    uint32_t loop_extent, loop_size, loop_begin, loop_span;
    int64_t loop_to, loop_from; /* from one copy to the next */
    uint4 empty;
    window_axis last; /* sizes in units */
    window_axis axis[TARN_MAX_RANK];
};

/* Whether position `at` of an axis has an element, and which. */
__device__ __forceinline__ bool find_source(const window_axis &axis, uint32_t at, uint32_t *source)
{
    uint32_t distance = at - axis.begin;
    *source = divide_small(distance, axis.step);
    return (distance < axis.span) & (*source * (uint32_t)axis.step.by == distance);
}

/* IS_ROW: the source's last axis is contiguous with step 1, so a unit's elements are adjacent there too. */
template <typename B, int N, bool IS_ROW>
static __global__ void __launch_bounds__(THREADS) window_kernel(const __grid_constant__ window_args a)
{
    uint32_t at = blockIdx.x * THREADS + threadIdx.x, source;
    if (at >= a.units)
        return;
    uint32_t rest = divide_small(at, a.last.size), first = (at - rest * (uint32_t)a.last.size.by) * N, position = 0;
    B *to = (B *)a.to + (int64_t)first * a.last.to;
    const B *from = (const B *)a.from;
    bool is_inside = true;
#pragma unroll 1
    for (int i = a.outer - 1; i >= 0; i--) {
        const window_axis &axis = a.axis[i];
        uint32_t next = divide_small(rest, axis.size), here = rest - next * (uint32_t)axis.size.by;
        rest = next;
        to += (int64_t)here * axis.to;
        if (i == a.loop_axis) {
            position = here - axis.begin;
            from += (int64_t)(int32_t)position * axis.from;
        } else {
            is_inside = find_source(axis, here, &source) & is_inside;
            from += (int64_t)source * axis.from;
        }
    }
    int32_t along[N];
    bool has[N];
#pragma unroll
    for (int i = 0; i < N; i++) {
        has[i] = IS_ROW ? first + i - a.last.begin < a.last.span : find_source(a.last, first + i, &source);
        along[i] = IS_ROW ? i : (int32_t)source * (int32_t)a.last.from;
    }
    if (IS_ROW)
        from += (int32_t)(first - a.last.begin);
    vec<B, N> x[COPIES];
#pragma unroll
    for (int k = 0; k < COPIES * N; k++)
        x[k / N].at[k % N] = *(const B *)&a.empty;
    if (is_inside) { /* warps in rows outside only write */
#pragma unroll
        for (int u = 0; u < COPIES; u++) {
            bool is_here = position + u * a.loop_extent < a.loop_span;
#pragma unroll
            for (int i = 0; i < N; i++)
                if (is_here & has[i])
                    x[u].at[i] = from[along[i]];
            from += a.loop_from;
        }
    }
#pragma unroll
    for (int u = 0; u < COPIES; u++) {
        if (position + a.loop_begin + u * a.loop_extent < a.loop_size)
            *(vec<B, N> *)to = x[u];
        to += a.loop_to;
    }
}

/* ---- launching --------------------------------------------------------------------------------------------------- */

#define SMALL ((int64_t)1 << 31)

static window_axis axis_for(const tarn__pad_axis *axis)
{
    int64_t span = axis->count > 0 ? (axis->count - 1) * axis->step + 1 : 0;
    return window_axis{
        divider_of(axis->size), divider_of(axis->step), (uint32_t)axis->begin, (uint32_t)span, axis->to, axis->from};
}

/* Elements per unit: the most, up to 8 bytes, that the target's rows are aligned to. */
static int unit_of(const void *to, const tarn__pad_axis *axis, int rank, int bytes)
{
    for (int n = 8 / bytes; n > 1; n /= 2) {
        bool fits = axis[rank - 1].to == 1 && axis[rank - 1].size % n == 0 && is_aligned(to, (size_t)(n * bytes));
        for (int i = 0; fits && i < rank - 1; i++)
            fits = axis[i].size == 1 || axis[i].to % n == 0;
        if (fits)
            return n;
    }
    return 1;
}

/* Grid: a unit of each copy per thread, 256 threads per block: up to 64 bytes per thread, all loaded before the first
 * is stored. Bytes: the target's and the source's. */
template <typename B, int N> static bool launch(const tarn__call *call, window_args a)
{
    window_axis *loop_axis = &a.axis[a.loop_axis];
    a.loop_size = (uint32_t)loop_axis->size.by;
    a.loop_begin = loop_axis->begin;
    a.loop_span = loop_axis->span;
    a.loop_extent = (a.loop_size + COPIES - 1) / COPIES;
    a.loop_to = a.loop_extent * loop_axis->to;
    a.loop_from = a.loop_extent * loop_axis->from;
    loop_axis->size = divider_of(a.loop_extent);
    bool is_row = a.last.from == 1 && a.last.step.by == 1;
    int64_t units = (int64_t)a.last.size.by / N;
    a.last.size = divider_of(units);
    for (int i = 0; i < a.outer; i++) {
        units *= (int64_t)a.axis[i].size.by; /* both below 2^31 */
        if (units >= SMALL)
            return false;
    }
    a.units = (uint32_t)units;
    if (is_row)
        window_kernel<B, N, true><<<blocks_for(units, THREADS), THREADS, 0, stream_of(call)>>>(a);
    else
        window_kernel<B, N, false><<<blocks_for(units, THREADS), THREADS, 0, stream_of(call)>>>(a);
    return true;
}

/* The longest outer axis with step 1 becomes the loop axis; without one, an axis of size 1 is appended. */
bool tarn__cuda_window(const tarn__call *call, const tarn__pad_axis *axis, int rank, int bytes, uint4 empty)
{
    window_args a = {tarn__view_at(call->out[0]), tarn__view_at(call->in[0])};
    const tarn__pad_axis *last = &axis[rank - 1], none = {1, 0, 1, 1, 0, 0};
    a.empty = empty;
    for (int i = 0; i < rank; i++)
        if (axis[i].size >= SMALL || axis[i].step >= SMALL || axis[i].begin >= SMALL)
            return false;
    if (last->count * (last->from < 0 ? -last->from : last->from) >= SMALL)
        return false;
    a.last = axis_for(last);
    int64_t longest = 0;
    for (int i = 0; i < rank - 1; i++) {
        a.axis[a.outer++] = axis_for(&axis[i]);
        if (axis[i].step == 1 && axis[i].size > longest) {
            longest = axis[i].size;
            a.loop_axis = i;
        }
    }
    if (longest == 0) {
        a.loop_axis = a.outer;
        a.axis[a.outer++] = axis_for(&none);
    }
    int n = unit_of(a.to, axis, rank, bytes);
    switch (bytes) {
    case 1: return n >= 4 ? launch<uint8_t, 4>(call, a) : launch<uint8_t, 1>(call, a);
    case 2:
        return n >= 4   ? launch<uint16_t, 4>(call, a)
               : n == 2 ? launch<uint16_t, 2>(call, a)
                        : launch<uint16_t, 1>(call, a);
    case 4: return n >= 2 ? launch<uint32_t, 2>(call, a) : launch<uint32_t, 1>(call, a);
    default: return launch<uint64_t, 1>(call, a);
    }
}
