/* window.cu: elements of any strides laid into a window of a target, which is written once and whole: copies whose rows do not lie alike,
 * padding, and the gradients of parts.
 *
 * Rows that are not aligned with each other cannot be moved in 16 bytes, so what counts is that a warp's accesses are neighbours and that an
 * element costs few instructions. A thread writes a unit of up to 8 bytes, loading its elements one by one: the loads of a warp cover one
 * piece of a row, and those after the first find it in the cache. Its place is worked out once for several units, which lie apart on the
 * longest of the outer axes: the units of neighbouring threads are neighbours in every turn. */
#include "backends/cuda/moves.cuh"

struct window_axis {
    divider size, step;
    uint32_t begin, span; /* span: from the first place that holds an element to after the last */
    int64_t to, from;
};

struct window_args {
    void *to;
    const void *from;
    uint32_t units;     /* of one turn */
    int outer;          /* axes before the last */
    int turning;        /* the one that is walked in turns; its size here is what one turn covers */
    uint32_t turn_size; /* and this its own */
    uint4 empty;
    window_axis last; /* sizes in units */
    window_axis axis[TARN_MAX_RANK];
};

/* Whether an element lies at place `at` of an axis, and which. */
__device__ __forceinline__ bool find_source(const window_axis &axis, uint32_t at, uint32_t *source)
{
    uint32_t far = at - axis.begin;
    *source = divide_small(far, axis.step);
    return far < axis.span && *source * (uint32_t)axis.step.by == far;
}

template <typename B, int N, int TURNS> static __global__ void __launch_bounds__(THREADS) window_kernel(const __grid_constant__ window_args a)
{
    uint32_t at = blockIdx.x * THREADS + threadIdx.x, source;
    if (at >= a.units)
        return;
    uint32_t rest = divide_small(at, a.last.size), first = (at - rest * (uint32_t)a.last.size.by) * N, start = 0;
    int64_t to = (int64_t)first * a.last.to, from = 0;
    bool inside = true;
    for (int i = a.outer - 1; i >= 0; i--) {
        const window_axis &axis = a.axis[i];
        uint32_t next = divide_small(rest, axis.size), here = rest - next * (uint32_t)axis.size.by;
        rest = next;
        to += (int64_t)here * axis.to;
        if (i == a.turning) {
            start = here;
        } else {
            inside = find_source(axis, here, &source) && inside;
            from += (int64_t)source * axis.from;
        }
    }
    int32_t along[N];
    bool has[N];
#pragma unroll
    for (int i = 0; i < N; i++) {
        has[i] = find_source(a.last, first + i, &source) && inside;
        along[i] = (int32_t)source * (int32_t)a.last.from;
    }
    const window_axis &turning = a.axis[a.turning];
    const uint32_t turn = (uint32_t)turning.size.by;
    pack<B, N> x[TURNS];
#pragma unroll
    for (int u = 0; u < TURNS; u++) {
        bool is_here = find_source(turning, start + u * turn, &source) && start + u * turn < a.turn_size;
        const B *row = (const B *)a.from + from + (int64_t)source * turning.from;
#pragma unroll
        for (int i = 0; i < N; i++) {
            x[u].at[i] = *(const B *)&a.empty;
            if (is_here && has[i])
                x[u].at[i] = row[along[i]];
        }
    }
#pragma unroll
    for (int u = 0; u < TURNS; u++)
        if (start + u * turn < a.turn_size)
            *(pack<B, N> *)((B *)a.to + to + (int64_t)(u * turn) * turning.to) = x[u];
}

/* ---- starting it ----------------------------------------------------------------------------------------------------------- */

#define SMALL ((int64_t)1 << 31)

static window_axis axis_for(const tarn__cuda_axis *axis)
{
    int64_t span = axis->count > 0 ? (axis->count - 1) * axis->step + 1 : 0;
    return window_axis{divider_of(axis->size), divider_of(axis->step), (uint32_t)axis->begin, (uint32_t)span, axis->to, axis->from};
}

/* How many elements make a unit: the most, up to 8 bytes, that target rows are made of and aligned to. */
static int unit_of(const void *to, const tarn__cuda_axis *axis, int rank, int bytes)
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

/* 256 threads a block, a unit of each turn a thread: 32 bytes a thread where the turning axis is long enough. Moves the target's bytes, and those
 * of the source. */
template <typename B, int N> static bool launch(const tarn__call *call, window_args a)
{
    constexpr int TURNS = N * (int)sizeof(B) < 8 ? 8 : 4;
    divider &size = a.axis[a.turning].size;
    size = divider_of((a.turn_size + TURNS - 1) / TURNS);
    a.last.size = divider_of((int64_t)a.last.size.by / N);
    int64_t units = (int64_t)a.last.size.by;
    for (int i = 0; i < a.outer; i++) {
        units *= (int64_t)a.axis[i].size.by; /* a factor below 2^31 each, and stopped there: no overflow */
        if (units >= SMALL)
            return false;
    }
    a.units = (uint32_t)units;
    window_kernel<B, N, TURNS><<<blocks_for(units, THREADS), THREADS, 0, stream_of(call)>>>(a);
    return true;
}

bool tarn__cuda_window(const tarn__call *call, const tarn__cuda_axis *axis, int rank, int bytes, uint4 empty)
{
    window_args a = {tarn__view_at(call->out[0]), tarn__view_at(call->in[0])};
    a.empty = empty;
    for (int i = 0; i < rank; i++)
        if (axis[i].size >= SMALL || axis[i].step >= SMALL || axis[i].begin >= SMALL)
            return false;
    const tarn__cuda_axis *last = &axis[rank - 1];
    if (last->count * (last->from < 0 ? -last->from : last->from) >= SMALL)
        return false;
    a.last = axis_for(last);
    a.outer = rank - 1;
    for (int i = 0; i < a.outer; i++) {
        a.axis[i] = axis_for(&axis[i]);
        if (axis[i].size > axis[a.turning].size)
            a.turning = i;
    }
    if (a.outer == 0) {
        const tarn__cuda_axis none = {1, 0, 1, 1, 0, 0};
        a.axis[a.outer++] = axis_for(&none);
    }
    a.turn_size = (uint32_t)a.axis[a.turning].size.by;
    int n = unit_of(a.to, axis, rank, bytes);
    switch (bytes) {
    case 1: return n >= 4 ? launch<uint8_t, 4>(call, a) : launch<uint8_t, 1>(call, a);
    case 2: return n >= 4 ? launch<uint16_t, 4>(call, a) : n == 2 ? launch<uint16_t, 2>(call, a) : launch<uint16_t, 1>(call, a);
    case 4: return n >= 2 ? launch<uint32_t, 2>(call, a) : launch<uint32_t, 1>(call, a);
    default: return launch<uint64_t, 1>(call, a);
    }
}
