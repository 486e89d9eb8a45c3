/* cross_entropy_async.cuh: cross entropy and its gradient for long rows, which are prefetched.
 *
 * A multiprocessor has one block, with two rows in shared memory. The block computes every gridDim-th row. One loop
 * over the vectors of a row computes its max and sum, writes the gradient of the previous row from the other slot, and
 * prefetches the next row into the vectors that this frees. So memory is read and written all the time, with up to one
 * row in flight. A thread reads only what it has fetched itself, so the slots need no barrier. One barrier per row
 * separates its max and sum from its gradient. Nothing is fetched between two loops, so they must be close together:
 * one warp, the loss warp, reads the targets and computes the loss and the target's gradient in f64 while the others
 * continue.
 *
 * The order of all sums of a row depends on its length alone. */
#ifndef TARN__CUDA_CROSS_ENTROPY_ASYNC_CUH
#define TARN__CUDA_CROSS_ENTROPY_ASYNC_CUH

#include <cuda_pipeline.h>
#include <limits.h>

#include "backends/cuda/softmax/cross_entropy.cuh"

enum { GRADIENT = ROW_OPERANDS, GRAD, LOSS, OPERANDS };

#define ASYNC_WARPS 16 /* besides the loss warp */
#define ASYNC_THREADS (ASYNC_WARPS * WARP)
#define ASYNC_GROUPS 4                                             /* of the vectors of a row, per thread */
#define ASYNC_VECS 4                                               /* of a group */
#define MAX_ASYNC_VECS (ASYNC_THREADS * ASYNC_GROUPS * ASYNC_VECS) /* of a row */

/* Rows: logits, target, g, gradient, loss. */
struct fused_args {
    row_set<OPERANDS> rows;
    target_rule targets;
    fault_slot faults;
    double smoothing, scale;
};

/* lse, the target's logit and the mean logit (for label smoothing) relative to the row's max. */
__device__ __forceinline__ double row_loss(const fused_args &a, double lse, double logit, double mean_logit)
{
    double loss = lse - logit;
    if (a.smoothing > 0)
        loss = (1 - a.smoothing) * loss + a.smoothing * (lse - mean_logit);
    return loss;
}

__device__ __forceinline__ void write_loss(const fused_args &a, int64_t offset, double loss)
{
    store_any(a.rows.operand[LOSS].base, a.rows.operand[LOSS].dtype, offset, loss);
}

/* ---- rows -------------------------------------------------------------------------------------------------------- */

/* A row's target, and its upstream gradient times the scale. */
struct row_job {
    int64_t target;
    double g;
    bool exists, counts;
};

__device__ __forceinline__ row_job load_job(const fused_args &a, int64_t row)
{
    row_job job = {0, 0, row < a.rows.count, false};
    if (job.exists) {
        int64_t offset[OPERANDS];
        locate_row(a.rows, row, offset);
        job.target = target_of(a.rows, a.targets, offset);
        job.g =
            load_any<double>(a.rows.operand[GRADIENT].base, a.rows.operand[GRADIENT].dtype, offset[GRADIENT]) * a.scale;
        job.counts = counts(a.targets, job.target, a.rows.length);
    }
    return job;
}

/* Offset of a row in operand k; 0 for a row that does not exist. */
__device__ __forceinline__ int64_t offset_in(const fused_args &a, int k, const row_job &job, int64_t row)
{
    int64_t offset[OPERANDS];
    if (!job.exists)
        return 0;
    locate_row(a.rows, row, offset);
    return offset[k];
}

/* ---- max and sum ------------------------------------------------------------------------------------------------- */

/* Max, sum of exponentials and, for label smoothing, sum of logits, over some elements of a row. */
template <typename C> struct row_stats {
    running<C> softmax;
    double logit_sum;
};

/* The largest element: 16-bit floats by pairs. A NaN is ignored, as by max_op. */
template <typename T, int N> __device__ __forceinline__ compute<T> max_in(const vec<T, N> *x, int vecs)
{
    compute<T> max = widen(x[0].at[0]);
#pragma unroll
    for (int v = 0; v < vecs; v++)
#pragma unroll
        for (int i = 0; i < N; i++)
            max = max_op::of(max, widen(x[v].at[i]));
    return max;
}
template <typename Pair, typename T, int N> __device__ __forceinline__ float max_pairs(const vec<T, N> *x, int vecs)
{
    Pair max, here;
    memcpy(&max, &x[0].at[0], sizeof(max));
#pragma unroll
    for (int v = 0; v < vecs; v++)
#pragma unroll
        for (int i = 0; i < N; i += 2) {
            memcpy(&here, &x[v].at[i], sizeof(here));
            max = __hmax2(max, here);
        }
    return fmaxf(widen(max.x), widen(max.y));
}
template <int N> __device__ __forceinline__ float max_in(const vec<bf16, N> *x, int vecs)
{
    return max_pairs<__nv_bfloat162>(x, vecs);
}
template <int N> __device__ __forceinline__ float max_in(const vec<f16, N> *x, int vecs)
{
    return max_pairs<__half2>(x, vecs);
}

/* Adds V vectors. */
template <typename R, int V>
__device__ __forceinline__ void take_vecs(row_stats<typename R::real> &stats, const typename R::raw *raw,
                                          bool is_smoothed)
{
    typename R::real sum = 0;
    stats.softmax.raise_to(max_in(raw, V));
    const typename R::real shift = stats.softmax.shift();
#pragma unroll
    for (int v = 0; v < V; v++) {
        typename R::real part = 0;
#pragma unroll
        for (int i = 0; i < R::width; i++)
            part += exponential_in_sum(R::element(raw[v], i) - shift);
        sum += part;
    }
    stats.softmax.sum += (double)sum;
    if (is_smoothed)
#pragma unroll
        for (int v = 0; v < V; v++) {
            typename R::real part = 0;
#pragma unroll
            for (int i = 0; i < R::width; i++)
                part += R::element(raw[v], i);
            stats.logit_sum += (double)part;
        }
}

/* The warp's max in one instruction, on floats mapped to integers of the same order. Not for NaN. */
__device__ __forceinline__ float warp_max(float x)
{
    const int bits = __float_as_int(x), max = __reduce_max_sync(FULL_WARP, bits >= 0 ? bits : bits ^ INT_MAX);
    return __int_as_float(max >= 0 ? max : max ^ INT_MAX);
}

/* Reduces over the warp; every lane gets the result. */
template <typename C> __device__ __forceinline__ void reduce_warp(row_stats<C> &stats, bool is_smoothed)
{
    stats.softmax.rescale_to(warp_max(stats.softmax.row_max));
    stats.softmax.sum = warp_reduce<plus>(stats.softmax.sum);
    if (is_smoothed)
        stats.logit_sum = warp_reduce<plus>(stats.logit_sum);
}

/* What the warps exchange in a turn. */
template <typename C> struct row_exchange {
    row_stats<C> warp[ASYNC_WARPS];
    double logit; /* the target's */
    row_job next; /* of the next turn */
};

/* The row's statistics, from those of its warps. */
template <typename C> __device__ __forceinline__ row_stats<C> stats_of(const row_exchange<C> &shared, bool is_smoothed)
{
    const int lane = (int)threadIdx.x % WARP;
    row_stats<C> stats = {{minus_infinity<C>(), 0}, 0};
    if (lane < ASYNC_WARPS)
        stats = shared.warp[lane];
    reduce_warp(stats, is_smoothed);
    return stats;
}

/* ---- gradient ---------------------------------------------------------------------------------------------------- */

/* The gradient of a logit x is exp(x - shift) · factor - less. */
template <typename C> struct row_factors {
    C shift, factor, less;
};

/* exp for the gradient: in 16 bits the error of the approximation disappears in the rounding of the result. */
template <typename R> __device__ __forceinline__ typename R::real gradient_exponential(typename R::real x)
{
    if constexpr (sizeof(typename R::raw) / R::width == 2)
        return exponential_in_sum(x);
    else
        return exp_of(x);
}

template <typename R>
__device__ __forceinline__ void write_grad(const fused_args &a, int64_t grad_row, int at, const typename R::raw &raw,
                                           const row_factors<typename R::real> &by)
{
    typename R::real y[R::width];
#pragma unroll
    for (int i = 0; i < R::width; i++)
        y[i] = gradient_exponential<R>(R::element(raw, i) - by.shift) * by.factor - by.less;
    R::store(a.rows.operand[GRAD], grad_row, at, y);
}

template <typename R> __device__ __forceinline__ void write_zeros(const fused_args &a, int64_t grad_row, int at)
{
    const typename R::real none[R::width] = {};
    R::store(a.rows.operand[GRAD], grad_row, at, none);
}

template <typename C>
__device__ __forceinline__ row_factors<C> factors_of(const fused_args &a, const row_job &job, const row_stats<C> &stats)
{
    return row_factors<C>{stats.softmax.row_max, (C)job.g / (C)stats.softmax.sum,
                          (C)(job.g * (a.smoothing / (double)a.rows.length))};
}

/* ---- the loss warp ----------------------------------------------------------------------------------------------- */

/* Writes the loss of a row; returns the gradient of its target. Both in f64. */
template <typename C>
__device__ __forceinline__ double finish_row(const fused_args &a, int64_t row, const row_job &job,
                                             const row_stats<C> &stats, double target_logit)
{
    const double row_max = (double)stats.softmax.row_max, logit = target_logit - row_max,
                 length = (double)a.rows.length;
    double loss = 0, gradient = 0;
    if (job.counts) {
        loss = row_loss(a, log(stats.softmax.sum), logit, stats.logit_sum / length - row_max);
        gradient = (exp(logit) / stats.softmax.sum - a.smoothing / length - (1 - a.smoothing)) * job.g;
    } else if (!is_ignored(a.targets, job.target)) {
        report_fault(a.faults, job.target, a.rows.length);
    }
    write_loss(a, offset_in(a, LOSS, job, row), loss);
    return gradient;
}

__device__ __forceinline__ void write_target(const fused_args &a, int64_t row, const row_job &job, double gradient)
{
    const row_operand &to = a.rows.operand[GRAD];
    store_any(to.base, to.dtype, offset_in(a, GRAD, job, row) + job.target * to.along, gradient);
}

/* Has the same turns as the other warps in async_kernel(). After the barrier of a row's second turn its gradient has
 * been written; then the target's gradient overwrites one element of it. */
template <typename C> __device__ __forceinline__ void run_loss_warp(const fused_args &a, row_exchange<C> *exchange)
{
    const int64_t blocks = gridDim.x;
    const bool is_first = threadIdx.x % WARP == 0;
    row_job before = {}, here = {}, next = load_job(a, blockIdx.x);
    double gradient = 0;
    for (int64_t row = blockIdx.x, turn = 0;; row += blocks, turn ^= 1) {
        const row_job later = load_job(a, row + blocks);
        if (is_first)
            exchange[turn].next = later;
        __syncthreads();
        if (is_first && before.counts)
            write_target(a, row - 2 * blocks, before, gradient);
        if (!here.exists && !next.exists)
            return;
        row_stats<C> stats = {};
        if (here.counts)
            stats = stats_of(exchange[turn], a.smoothing > 0);
        if (is_first && here.exists)
            gradient = finish_row(a, row - blocks, here, stats, exchange[turn].logit);
        before = here;
        here = next;
        next = later;
    }
}

/* ---- the other warps --------------------------------------------------------------------------------------------- */

/* One 16-byte load: nvcc may split the assignment of a vector. */
template <typename V> __device__ __forceinline__ V vec_in(const V *slot)
{
    const uint4 words = *(const uint4 *)slot;
    V x;
    memcpy(&x, &words, sizeof(x));
    return x;
}

/* The three rows of a turn, and their memory. */
template <typename R> struct row_window {
    row_job before, here, next;
    typename R::raw *slot, *other; /* of `here`; of `before`, then of `next` */
    const typename R::raw *from;   /* next */
    int64_t grad_row;              /* before */
};

/* V vectors of each of the three rows: statistics of `here`, gradient of `before`, copy of `next`. */
template <typename R, int V>
__device__ __forceinline__ void process_vecs(const fused_args &a, const row_window<R> &rows, int first,
                                             row_stats<typename R::real> &stats,
                                             const row_factors<typename R::real> &by)
{
    typename R::raw raw[V];
    if (rows.here.counts) {
#pragma unroll
        for (int v = 0; v < V; v++)
            raw[v] = vec_in(rows.slot + first + v * ASYNC_THREADS);
        take_vecs<R, V>(stats, raw, a.smoothing > 0);
    }
    if (rows.before.counts) {
#pragma unroll
        for (int v = 0; v < V; v++)
            raw[v] = vec_in(rows.other + first + v * ASYNC_THREADS);
#pragma unroll
        for (int v = 0; v < V; v++)
            write_grad<R>(a, rows.grad_row, first + v * ASYNC_THREADS, raw[v], by);
    } else if (rows.before.exists) {
#pragma unroll
        for (int v = 0; v < V; v++)
            write_zeros<R>(a, rows.grad_row, first + v * ASYNC_THREADS);
    }
    if (rows.next.counts)
#pragma unroll
        for (int v = 0; v < V; v++)
            __pipeline_memcpy_async(rows.other + first + v * ASYNC_THREADS, rows.from + first + v * ASYNC_THREADS,
                                    sizeof(raw[0]));
}

/* One turn over a thread's vectors. Every turn commits as many groups of copies as a row has. */
template <typename R>
__device__ __forceinline__ void process_row(const fused_args &a, const row_window<R> &rows, int vecs,
                                            row_stats<typename R::real> &stats, const row_factors<typename R::real> &by)
{
    int first = (int)threadIdx.x;
#pragma unroll 1
    for (int group = 0; group < ASYNC_GROUPS; group++, first += ASYNC_VECS * ASYNC_THREADS) {
        /* all but the last groups committed: this one of `here` has arrived */
        __pipeline_wait_prior(ASYNC_GROUPS - 1);
        if (first + (ASYNC_VECS - 1) * ASYNC_THREADS < vecs)
            process_vecs<R, ASYNC_VECS>(a, rows, first, stats, by);
        else
#pragma unroll 1
            for (int at = first; at < vecs; at += ASYNC_THREADS)
                process_vecs<R, 1>(a, rows, at, stats, by);
        __pipeline_commit();
    }
}

/* Before the barrier: the warp's statistics, and the target's logit from the thread that fetched it. */
template <typename R>
__device__ __forceinline__ void publish_stats(const row_job &here, const typename R::raw *slot,
                                              row_stats<typename R::real> &stats, bool is_smoothed,
                                              row_exchange<typename R::real> &shared)
{
    const int at = (int)(here.target / R::width);
    if (at % ASYNC_THREADS == (int)threadIdx.x)
        shared.logit = (double)R::element(slot[at], (int)(here.target % R::width));
    reduce_warp(stats, is_smoothed);
    if (threadIdx.x % WARP == 0)
        shared.warp[threadIdx.x / WARP] = stats;
}

/* Grid: a block per multiprocessor; its last warp is the loss warp. Bytes: logits read, gradient written, once each. */
template <typename R>
static __global__ void __launch_bounds__(ASYNC_THREADS + WARP, 1) async_kernel(const __grid_constant__ fused_args a)
{
    typedef typename R::raw vector;
    typedef typename R::real C;
    extern __shared__ uint4 shared[];
    __shared__ row_exchange<C> exchange[2]; /* alternating: one turn's is read while the next one's is written */
    const int vecs = (int)(a.rows.length / R::width);
    if (threadIdx.x >= ASYNC_THREADS) {
        run_loss_warp(a, exchange);
        return;
    }
    const int64_t blocks = gridDim.x;
    const vector *const logits = (const vector *)a.rows.operand[LOGITS].base;
    row_window<R> rows = {};
    row_factors<C> by = {};
    /* the first turn only fetches, and the last one only writes */
    rows.next = load_job(a, blockIdx.x);
    for (int64_t row = blockIdx.x, turn = 0;; row += blocks, turn ^= 1) {
        rows.from = logits + offset_in(a, LOGITS, rows.next, row) / R::width;
        rows.grad_row = offset_in(a, GRAD, rows.before, row - 2 * blocks);
        rows.slot = (vector *)shared + turn * vecs;
        rows.other = (vector *)shared + (turn ^ 1) * vecs;
        row_stats<C> stats = {{minus_infinity<C>(), 0}, 0};
        process_row<R>(a, rows, vecs, stats, by);
        if (rows.here.counts)
            publish_stats<R>(rows.here, rows.slot, stats, a.smoothing > 0, exchange[turn]);
        __syncthreads();
        if (!rows.here.exists && !rows.next.exists)
            return;
        if (rows.here.counts)
            by = factors_of(a, rows.here, stats_of(exchange[turn], a.smoothing > 0));
        rows.before = rows.here;
        rows.here = rows.next;
        rows.next = exchange[turn].next;
    }
}

/* ---- launching --------------------------------------------------------------------------------------------------- */

/* Blocks of the grid: at most one per row. */
static inline unsigned async_blocks(int device, int64_t rows)
{
    const int64_t blocks = tarn__cuda_at(device)->multiprocessors;
    return blocks_for(rows < blocks ? rows : blocks, 1);
}

#endif
