/* batchnorm_nhwc.cuh: batchnorm and groupnorm of NHWC tensors (channels last): statistics, result, sums and gradient.
 *
 * Adjacent elements belong to different channels: a block takes a chunk of positions of a tile of channels. `across`
 * adjacent threads own a vector of channels each, and the rows of threads take positions in turn.
 *
 * Four blocks per multiprocessor keep enough loads in flight, so a thread has 64 registers, and owns no more channels
 * than these hold statistics of: four, 8-byte vectors for 16-bit elements. Statistics are computed by one thread per
 * channel and shared: each needs several dependent loads, as long as the block's elements take. f64 accumulators are in
 * shared memory, too. */
#ifndef TARN__CUDA_BATCHNORM_NHWC_CUH
#define TARN__CUDA_BATCHNORM_NHWC_CUH

#include "backends/cuda/norm/batchnorm.cuh"

/* Vectors whose positions have one stride, at the same 32-bit offsets in all operands. */
template <typename T> struct linear : typed<T, COLUMN_VEC> {
};

template <typename R> struct is_linear {
    static constexpr bool value = false;
};
template <typename T> struct is_linear<linear<T>> {
    static constexpr bool value = true;
};

#define THREAD_BITS 8 /* of THREADS, a power of two */
static_assert(THREADS == 1 << THREAD_BITS, "rows of threads are found by shifts");

/* positions of a thread that are added in the compute type before they go to f64 */
#define STATS_POSITIONS 16
#define SUM_POSITIONS 8

/* Blocks per multiprocessor: general offsets need more registers. */
#define BLOCKS_PER_SM(R) (is_linear<R>::value ? 4 : 2)

/* Vectors that a thread loads of each of `operands` before it computes: 64 bytes in all. */
template <typename R> constexpr __host__ __device__ int loads_per_operand(int operands)
{
    return (sizeof(typename R::raw) > 8 ? 4 : 8) / operands;
}

/* Tiles of channels vary fastest, then chunks, then batches: adjacent blocks read adjacent memory. Threads past the
 * last channel of the last tile have no positions, but take part in barriers. */
template <int N> __device__ __forceinline__ block_range range_nhwc(const channel_args &a)
{
    block_range p;
    uint32_t id = a.is_reversed ? gridDim.x - 1 - blockIdx.x : blockIdx.x;
    p.tile = (int64_t)pop_index(id, a.by_tiles) * a.across * N;
    uint32_t chunk = pop_index(id, a.by_chunks);
    p.batch = id;
    p.channel = p.tile + ((int)threadIdx.x & (a.across - 1)) * N;
    p.partial = (p.batch * a.chunks + chunk) * a.channels + p.tile;
    chunk_bounds(a, chunk, &p.begin, &p.end);
    return p;
}

/* ---- positions --------------------------------------------------------------------------------------------------- */

/* Keeps a value in a register: otherwise the compiler recomputes it at each use. */
__device__ __forceinline__ int32_t in_register(int32_t x)
{
    asm volatile("" : "+r"(x));
    return x;
}
__device__ __forceinline__ float in_register(float x)
{
    asm volatile("" : "+f"(x));
    return x;
}
__device__ __forceinline__ double in_register(double x)
{
    return x;
}

/* Offsets of position `at` of a thread's channels: one per operand, or in the linear case one of 32 bits for all. */
template <typename R, bool = is_linear<R>::value> struct position {
    int64_t offset[CHANNEL_OPERANDS];

    __device__ __forceinline__ int64_t in(int k) const
    {
        return offset[k];
    }
    static __device__ __forceinline__ position of(const channel_args &a, const block_range &p, int64_t at)
    {
        position here;
        offsets_of(a, p, at, here.offset);
        return here;
    }
};
template <typename R> struct position<R, true> {
    int32_t offset;

    __device__ __forceinline__ int64_t in(int) const
    {
        return offset;
    }
    static __device__ __forceinline__ position of(const channel_args &a, const block_range &p, int64_t at)
    {
        return position{(int32_t)p.batch * (int32_t)a.batch_stride[X] + (int32_t)p.channel +
                        (int32_t)at * (int32_t)a.at.stride[X][0]};
    }
};

/* Positions of a thread, from the chunk's beginning or, reversed, from its end. */
struct turns_nhwc {
    int64_t first;   /* position */
    int step, count; /* positions between turns: rows of threads, negative if reversed; and turns */

    __device__ __forceinline__ turns_nhwc(const channel_args &a, const block_range &p)
    {
        const int row = (int)threadIdx.x >> a.across_bits, rows = THREADS >> a.across_bits,
                  length = (int)(p.end - p.begin);
        first = a.is_reversed ? p.end - 1 - row : p.begin + row;
        step = a.is_reversed ? -rows : rows;
        count = p.channel < a.channels && row < length ? ((length - 1 - row) >> (THREAD_BITS - a.across_bits)) + 1 : 0;
    }
};

/* Offsets of a thread's positions; in the linear case a start and a step, both kept in registers. */
template <typename R, bool = is_linear<R>::value> struct walk_nhwc {
    turns_nhwc turns;
    int count;

    __device__ __forceinline__ walk_nhwc(const channel_args &a, const block_range &p) : turns(a, p), count(turns.count)
    {
    }
    __device__ __forceinline__ position<R> at(const channel_args &a, const block_range &p, int turn) const
    {
        return position<R>::of(a, p, turns.first + (int64_t)turn * turns.step);
    }
};
template <typename R> struct walk_nhwc<R, true> {
    int32_t first, step;
    int count;

    __device__ __forceinline__ walk_nhwc(const channel_args &a, const block_range &p)
    {
        const turns_nhwc turns(a, p);
        first = in_register(position<R>::of(a, p, turns.first).offset);
        step = in_register(turns.step * (int32_t)a.at.stride[X][0]);
        count = turns.count;
    }
    __device__ __forceinline__ position<R> at(const channel_args &, const block_range &, int turn) const
    {
        return position<R>{first + turn * step};
    }
};

/* ---- channels ---------------------------------------------------------------------------------------------------- */

/* Statistics of the thread's channels. All threads of the block call it; `table` has space for WARP vectors. */
template <typename R>
__device__ __forceinline__ void fetch_stats(const channel_args &a, const block_range &p,
                                            channel_stats<typename R::real> *table,
                                            channel_stats<typename R::real> *mine)
{
    const int me = (int)threadIdx.x;
    if (me < a.across * R::width && p.tile + me < a.channels)
        table[me].fetch(a, p.batch, p.tile + me);
    __syncthreads();
#pragma unroll
    for (int i = 0; i < R::width; i++)
        mine[i] = table[(me & (a.across - 1)) * R::width + i];
}

/* Compiler fence: values in shared memory are not cached in registers across it, which are needed for loads. */
__device__ __forceinline__ void memory_fence()
{
    asm volatile("" ::: "memory");
}

/* Adds K values per thread, in space[k], over the lanes of its warp that own the same channels. */
template <int K> __device__ __forceinline__ void reduce_warps(const channel_args &a, double (*space)[THREADS])
{
#pragma unroll
    for (int k = 0; k < K; k++) {
        double sum = space[k][threadIdx.x];
        for (int step = WARP / 2; step >= a.across; step /= 2)
            sum += __shfl_xor_sync(FULL_WARP, sum, step);
        space[k][threadIdx.x] = sum;
    }
    __syncthreads();
}

/* Then over all warps, for the channels of thread `thread`. */
__device__ __forceinline__ double tile_sum(const double *space, int thread)
{
    double sum = 0;
#pragma unroll
    for (int warp = 0; warp < THREADS / WARP; warp++)
        sum += space[warp * WARP + thread];
    return sum;
}

/* ---- forward ----------------------------------------------------------------------------------------------------- */

/* Adds up to STATS_POSITIONS of a thread's positions from `begin` on, for its N channels, to its f64 sums in `space`:
 * as distances from the group's first element in the compute type, or in f64 if they may have left f32's range. */
template <typename R>
__device__ __forceinline__ void add_group(const channel_args &a, const block_range &p, const walk_nhwc<R> &walk,
                                          int begin, const typename R::real (*from)[THREADS], double (*space)[THREADS])
{
    constexpr int N = R::width, DEPTH = loads_per_operand<R>(1);
    group_moments<typename R::real> group[N];
    const int count = walk.count - begin < STATS_POSITIONS ? walk.count - begin : STATS_POSITIONS;
    bool is_exact = true;
    memory_fence();
#pragma unroll 1
    for (int part = 0; part < count; part += DEPTH) {
        typename R::raw x[DEPTH];
#pragma unroll
        for (int u = 0; u < DEPTH; u++)
            if (part + u < count)
                x[u] = R::fetch(a.operand[X], walk.at(a, p, begin + part + u).in(X), 0);
#pragma unroll
        for (int i = 0; i < N; i++) {
            if (part == 0)
                group[i].start(R::element(x[0], i));
#pragma unroll
            for (int u = 0; u < DEPTH; u++)
                if (part + u < count)
                    group[i].add(R::element(x[u], i));
        }
    }
#pragma unroll
    for (int i = 0; i < N; i++)
        is_exact = is_exact && group[i].is_exact();
    if (is_exact) {
#pragma unroll
        for (int i = 0; i < N; i++)
            group[i].add_to((double)from[i][threadIdx.x], (double)count, &space[i][threadIdx.x],
                            &space[N + i][threadIdx.x]);
        return;
    }
#pragma unroll 1
    for (int u = 0; u < count; u++) {
        typename R::raw x = R::fetch(a.operand[X], walk.at(a, p, begin + u).in(X), 0);
#pragma unroll
        for (int i = 0; i < N; i++)
            take_f64((double)R::element(x, i), (double)from[i][threadIdx.x], &space[i][threadIdx.x],
                     &space[N + i][threadIdx.x]);
    }
}

/* One block per chunk of positions of a tile of channels: mean and sum of squared distances of each channel, as
 * stats_nchw(). Bytes: x read. */
template <typename R, int>
static __global__ void __launch_bounds__(THREADS, BLOCKS_PER_SM(R)) stats_nhwc(const __grid_constant__ channel_args a)
{
    constexpr int N = R::width;
    const block_range p = range_nhwc<N>(a);
    const walk_nhwc<R> walk(a, p);
    const int thread = (int)threadIdx.x;
    __shared__ double space[2 * N][THREADS];
    __shared__ typename R::real from[N][THREADS]; /* the chunk's first elements */
#pragma unroll
    for (int k = 0; k < 2 * N; k++)
        space[k][thread] = 0;
    /* all distances are measured from the chunk's first position */
    if (walk.count > 0) {
        const typename R::raw x = R::fetch(a.operand[X], position<R>::of(a, p, p.begin).in(X), 0);
#pragma unroll
        for (int i = 0; i < N; i++)
            from[i][thread] = R::element(x, i);
#pragma unroll 1
        for (int begin = 0; begin < walk.count; begin += STATS_POSITIONS)
            add_group<R>(a, p, walk, begin, from, space);
    }
    /* thread c finishes channel c of the tile */
    reduce_warps<2 * N>(a, space);
    if (thread >= a.across * N || p.tile + thread >= a.channels)
        return;
    const double count = (double)(p.end - p.begin), sum = tile_sum(space[thread % N], thread / N),
                 squares = tile_sum(space[N + thread % N], thread / N);
    a.partial_one[p.partial + thread] = (double)from[thread % N][thread / N] + sum / count;
    a.partial_two[p.partial + thread] = squares - sum * sum / count;
}

/* The first vectors are in flight while the channels' statistics are computed. Bytes: x (and the residual) read, y
 * written. */
template <typename R, int MODE>
static __global__ void __launch_bounds__(THREADS, BLOCKS_PER_SM(R))
    normalize_nhwc(const __grid_constant__ channel_args a)
{
    typedef typename R::real C;
    constexpr int N = R::width, DEPTH = loads_per_operand<R>(MODE == ADD_RELU ? 2 : 1);
    const block_range p = range_nhwc<N>(a);
    const walk_nhwc<R> walk(a, p);
    __shared__ channel_stats<C> table[WARP * N];
    channel_stats<C> stats[N];
    typename R::raw x[DEPTH], residual[DEPTH];
    for (int begin = 0; begin == 0 || begin < walk.count; begin += DEPTH) {
#pragma unroll
        for (int u = 0; u < DEPTH; u++)
            if (begin + u < walk.count) {
                const position<R> at = walk.at(a, p, begin + u);
                x[u] = R::fetch(a.operand[X], at.in(X), 0);
                if (MODE == ADD_RELU)
                    residual[u] = R::fetch(a.operand[AUX], at.in(AUX), 0);
            }
        if (begin == 0)
            fetch_stats<R>(a, p, table, stats);
#pragma unroll
        for (int u = 0; u < DEPTH; u++) {
            if (begin + u >= walk.count)
                break;
            C y[N];
            normalize_vec<R, MODE, false>(stats, x[u], residual[u], y);
            R::store(a.operand[OUT], walk.at(a, p, begin + u).in(OUT), 0, y);
        }
    }
}

/* ---- backward ---------------------------------------------------------------------------------------------------- */

/* The limit stays in a register; a mode without it costs none. */
template <typename C, int MODE> __device__ __forceinline__ relu_gate<C> gate_nhwc(const channel_args &a)
{
    return relu_gate<C>{MODE == RELU_RECOMPUTED, MODE == RELU_RECOMPUTED ? in_register((C)a.relu_zero) : (C)0};
}

/* Vectors of x, g and, if it is read, relu's result. */
template <typename R, int MODE> struct vec_batch {
    static constexpr int DEPTH = loads_per_operand<R>(MODE == RELU_READ ? 3 : 2);
    typename R::raw x[DEPTH], g[DEPTH], y[DEPTH];

    /* From the thread's position `begin` on; x only if it is needed. */
    __device__ __forceinline__ void fetch(const channel_args &a, const block_range &p, const walk_nhwc<R> &walk,
                                          int begin, bool wants_x)
    {
#pragma unroll
        for (int u = 0; u < DEPTH; u++)
            if (begin + u < walk.count) {
                const position<R> at = walk.at(a, p, begin + u);
                g[u] = R::fetch(a.operand[G], at.in(G), 0);
                if (wants_x)
                    x[u] = R::fetch(a.operand[X], at.in(X), 0);
                if (MODE == RELU_READ)
                    y[u] = R::fetch(a.operand[AUX], at.in(AUX), 0);
            }
    }
};

/* Adds the sums of a group to the thread's f64 sums in `space`, and clears them. */
template <int N, typename C> __device__ __forceinline__ void flush_sums(C *g_sums, C *gx_sums, double (*space)[THREADS])
{
#pragma unroll
    for (int i = 0; i < N; i++) {
        space[i][threadIdx.x] += (double)g_sums[i];
        space[N + i][threadIdx.x] += (double)gx_sums[i];
        g_sums[i] = gx_sums[i] = 0;
    }
}

/* Σ g and Σ g · x̂ of a chunk. Bytes: x and g (and relu's result) read. The first vectors are in flight while the
 * channels' statistics are computed. */
template <typename R, int MODE>
static __global__ void __launch_bounds__(THREADS, BLOCKS_PER_SM(R)) sum_nhwc(const __grid_constant__ channel_args a)
{
    typedef typename R::real C;
    constexpr int N = R::width, DEPTH = vec_batch<R, MODE>::DEPTH;
    const block_range p = range_nhwc<N>(a);
    const walk_nhwc<R> walk(a, p);
    const int thread = (int)threadIdx.x;
    __shared__ double space[2 * N][THREADS];
    __shared__ channel_stats<C> table[WARP * N];
    const relu_gate<C> gate = gate_nhwc<C, MODE>(a);
    channel_stats<C> stats[N];
    vec_batch<R, MODE> vecs;
    C g_sums[N] = {}, gx_sums[N] = {};
#pragma unroll
    for (int k = 0; k < 2 * N; k++)
        space[k][thread] = 0;
        /* at least once, also without positions: fetch_stats() has a barrier */
#pragma unroll 1
    for (int begin = 0; begin == 0 || begin < walk.count; begin += DEPTH) {
        vecs.fetch(a, p, walk, begin, true);
        if (begin == 0)
            fetch_stats<R>(a, p, table, stats);
#pragma unroll
        for (int u = 0; u < DEPTH; u++) {
            if (begin + u >= walk.count)
                break;
            C gated[N];
            gate_grad<R, MODE != NO_RELU, false>(stats, gate, vecs.x[u], vecs.y[u], vecs.g[u], gated);
            add_grads<R, false>(stats, vecs.x[u], gated, g_sums, gx_sums);
            if (a.writes_scaled)
                store_scaled<R, false>(a, walk.at(a, p, begin + u).in(OUT), gated, stats);
            if (MODE == RELU_READ && a.operand[GATED].base)
                R::store(a.operand[GATED], walk.at(a, p, begin + u).in(GATED), 0, gated);
        }
        if ((begin + DEPTH) % SUM_POSITIONS == 0 || begin + DEPTH >= walk.count)
            flush_sums<N>(g_sums, gx_sums, space);
        memory_fence();
    }
    reduce_warps<2 * N>(a, space);
    if (thread >= a.across * N || p.tile + thread >= a.channels)
        return;
    a.partial_one[p.partial + thread] = tile_sum(space[thread % N], thread / N);
    a.partial_two[p.partial + thread] = tile_sum(space[N + thread % N], thread / N);
}

/* gx of a chunk, likewise. Bytes: x and g read, gx written. */
template <typename R, int MODE>
static __global__ void __launch_bounds__(THREADS, BLOCKS_PER_SM(R)) grad_nhwc(const __grid_constant__ channel_args a)
{
    constexpr int N = R::width, DEPTH = vec_batch<R, MODE>::DEPTH;
    const block_range p = range_nhwc<N>(a);
    const walk_nhwc<R> walk(a, p);
    const bool wants_x = a.mean_g || MODE == RELU_RECOMPUTED;
    __shared__ channel_stats<typename R::real> table[WARP * N];
    const relu_gate<typename R::real> gate = gate_nhwc<typename R::real, MODE>(a);
    channel_stats<typename R::real> stats[N];
    vec_batch<R, MODE> vecs;
    /* at least once, as above */
#pragma unroll 1
    for (int begin = 0; begin == 0 || begin < walk.count; begin += DEPTH) {
        vecs.fetch(a, p, walk, begin, wants_x);
        if (begin == 0)
            fetch_stats<R>(a, p, table, stats);
#pragma unroll
        for (int u = 0; u < DEPTH; u++) {
            if (begin + u >= walk.count)
                break;
            const position<R> at = walk.at(a, p, begin + u);
            store_grads<R, MODE != NO_RELU, false>(a, gate, at.in(OUT), at.in(GATED), vecs.x[u], vecs.y[u], vecs.g[u],
                                                   stats);
        }
    }
}

#endif
