/* channel_nhwc.cuh: NHWC passes: the positions of a thread, their addresses, the statistics of a tile's channels, and
 * sums over a block.
 *
 * Four blocks per multiprocessor keep enough loads in flight, so a thread has 64 registers, and owns no more channels
 * than these hold statistics of: four, 8-byte vectors for 16-bit elements. Statistics are computed by one thread per
 * channel and shared: each needs several dependent loads, as long as the block's elements take. f64 accumulators are in
 * shared memory, too. */
#ifndef TARN__CUDA_CHANNEL_NHWC_CUH
#define TARN__CUDA_CHANNEL_NHWC_CUH

#include "backends/cuda/norm/channel_stats.cuh"

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

/* Blocks per multiprocessor: general offsets need more registers. */
#define BLOCKS_PER_SM(R) (is_linear<R>::value ? 4 : 2)

/* Vectors that a thread loads of each of `operands` before it computes: 64 bytes in all. */
template <typename R> constexpr __host__ __device__ int loads_per_operand(int operands)
{
    return (sizeof(typename R::raw) > 8 ? 4 : 8) / operands;
}

/* Tiles of channels vary fastest: adjacent blocks read adjacent memory. */
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
    int64_t first;
    int step, count;

    __device__ __forceinline__ turns_nhwc(const channel_args &a, const block_range &p)
    {
        const int row = (int)threadIdx.x >> a.across_bits, rows = THREADS >> a.across_bits,
                  length = (int)(p.end - p.begin);
        first = a.is_reversed ? p.end - 1 - row : p.begin + row;
        step = a.is_reversed ? -rows : rows;
        count = p.channel < a.channels && row < length ? ((length - 1 - row) >> (THREAD_BITS - a.across_bits)) + 1 : 0;
    }
};
/* Offsets of a thread's positions; in the linear case a start and a step. */
template <typename R, bool = is_linear<R>::value> struct walk_nhwc {
    turns_nhwc turns;
    int count;

    __device__ __forceinline__ walk_nhwc(const channel_args &a, const block_range &p) : turns(a, p), count(turns.count)
    {
    }
    __device__ __forceinline__ position<R> at(const channel_args &a, const block_range &p, int number) const
    {
        return position<R>::of(a, p, turns.first + (int64_t)number * turns.step);
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
    __device__ __forceinline__ position<R> at(const channel_args &, const block_range &, int number) const
    {
        return position<R>{first + number * step};
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

#endif
