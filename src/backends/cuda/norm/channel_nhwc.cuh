/* channel_nhwc.cuh: passes by columns: which positions a thread takes, where they lie, the numbers of a tile's
 * channels, and sums over a block.
 *
 * Four blocks of a multiprocessor keep enough loads under way, so a thread has 64 registers, and owns no more channels
 * than these hold the numbers of: four, packs of 8 bytes where elements have 16 bits. The numbers are made by one
 * thread a channel and lie in shared memory: each takes several loads one after the other, which a thread that made all
 * of its own would wait for as long as for the block's elements. What a thread adds up in f64 lies in shared memory,
 * too. */
#ifndef TARN__CHANNELS_LAST_CUH
#define TARN__CHANNELS_LAST_CUH

#include "backends/cuda/norm/channel_stats.cuh"

/* Packs whose positions all lie a step apart, at the same offsets of 32 bits in all operands. */
template <typename T> struct straight : typed<T, COLUMN_PACK> {
};

template <typename R> struct is_straight {
    static constexpr bool value = false;
};
template <typename T> struct is_straight<straight<T>> {
    static constexpr bool value = true;
};

#define THREAD_BITS 8 /* of THREADS, a power of two */
static_assert(THREADS == 1 << THREAD_BITS, "rows of threads are found by shifts");

/* Blocks of a multiprocessor: offsets of any layout need more registers. */
#define BLOCKS_BY(R) (is_straight<R>::value ? 4 : 2)

/* Packs that a thread loads of each of `operands` before it computes: 64 bytes in all where they are whole packs. */
template <typename R> constexpr __host__ __device__ int at_once(int operands)
{
    return (sizeof(typename R::raw) > 8 ? 4 : 8) / operands;
}

template <int N> __device__ __forceinline__ channel_piece piece_by_columns(const channel_args &a)
{
    channel_piece p;
    uint32_t id = a.from_end ? gridDim.x - 1 - blockIdx.x : blockIdx.x;
    p.tile = (int64_t)block_digit(id, a.by_tiles) * a.across * N;
    uint32_t chunk = block_digit(id, a.by_chunks);
    p.batch = id;
    p.channel = p.tile + ((int)threadIdx.x & (a.across - 1)) * N;
    p.part = (p.batch * a.chunks + chunk) * a.channels + p.tile;
    chunk_bounds(a, chunk, &p.begin, &p.end);
    return p;
}

/* ---- positions --------------------------------------------------------------------------------------------------- */

/* A number that is kept in a register: without this the compiler makes it again wherever it is needed. */
__device__ __forceinline__ int32_t kept(int32_t x)
{
    asm volatile("" : "+r"(x));
    return x;
}
__device__ __forceinline__ float kept(float x)
{
    asm volatile("" : "+f"(x));
    return x;
}
__device__ __forceinline__ double kept(double x)
{
    return x;
}

/* Where position `at` of a thread's channels lies in the operands. */
template <typename R, bool = is_straight<R>::value> struct position {
    int64_t offset[CHANNEL_OPERANDS];

    __device__ __forceinline__ int64_t in(int k) const
    {
        return offset[k];
    }
    static __device__ __forceinline__ position of(const channel_args &a, const channel_piece &p, int64_t at)
    {
        position here;
        place(a, p, at, here.offset);
        return here;
    }
};
template <typename R> struct position<R, true> {
    int32_t offset;

    __device__ __forceinline__ int64_t in(int) const
    {
        return offset;
    }
    static __device__ __forceinline__ position of(const channel_args &a, const channel_piece &p, int64_t at)
    {
        return position{(int32_t)p.batch * (int32_t)a.batch_stride[X] + (int32_t)p.channel +
                        (int32_t)at * (int32_t)a.at.stride[X][0]};
    }
};

/* The positions that a thread takes, `count` of them, from the chunk's beginning or from its end. */
struct column_turns {
    int64_t first;
    int step, count;

    __device__ __forceinline__ column_turns(const channel_args &a, const channel_piece &p)
    {
        const int row = (int)threadIdx.x >> a.across_bits, rows = THREADS >> a.across_bits,
                  length = (int)(p.end - p.begin);
        first = a.from_end ? p.end - 1 - row : p.begin + row;
        step = a.from_end ? -rows : rows;
        count = p.channel < a.channels && row < length ? ((length - 1 - row) >> (THREAD_BITS - a.across_bits)) + 1 : 0;
    }
};
template <typename R, bool = is_straight<R>::value> struct column_walk {
    column_turns turns;
    int count;

    __device__ __forceinline__ column_walk(const channel_args &a, const channel_piece &p)
        : turns(a, p), count(turns.count)
    {
    }
    __device__ __forceinline__ position<R> at(const channel_args &a, const channel_piece &p, int number) const
    {
        return position<R>::of(a, p, turns.first + (int64_t)number * turns.step);
    }
};
template <typename R> struct column_walk<R, true> {
    int32_t first, step;
    int count;

    __device__ __forceinline__ column_walk(const channel_args &a, const channel_piece &p)
    {
        const column_turns turns(a, p);
        first = kept(position<R>::of(a, p, turns.first).offset);
        step = kept(turns.step * (int32_t)a.at.stride[X][0]);
        count = turns.count;
    }
    __device__ __forceinline__ position<R> at(const channel_args &, const channel_piece &, int number) const
    {
        return position<R>{first + number * step};
    }
};

/* ---- channels ---------------------------------------------------------------------------------------------------- */

/* The numbers of the thread's channels. All threads of the block come here; `table` has room for WARP packs. */
template <typename R>
__device__ __forceinline__ void fetch_numbers(const channel_args &a, const channel_piece &p,
                                              channel_numbers<typename R::real> *table,
                                              channel_numbers<typename R::real> *own)
{
    const int me = (int)threadIdx.x;
    if (me < a.across * R::width && p.tile + me < a.channels)
        table[me].fetch(a, p.batch, p.tile + me);
    __syncthreads();
#pragma unroll
    for (int i = 0; i < R::width; i++)
        own[i] = table[(me & (a.across - 1)) * R::width + i];
}

/* What lies in shared memory is not kept in registers beyond here, as the compiler would: they are for what is loaded.
 */
__device__ __forceinline__ void leave_in_memory()
{
    asm volatile("" ::: "memory");
}

/* Adds K numbers of each thread, which it has written to space[k], over the threads of its warp that own the same
 * channels. */
template <int K> __device__ __forceinline__ void over_warps(const channel_args &a, double (*space)[THREADS])
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

/* Then of all warps, for the channels of thread `owner`. */
__device__ __forceinline__ double over_tile(const double *space, int owner)
{
    double sum = 0;
#pragma unroll
    for (int warp = 0; warp < THREADS / WARP; warp++)
        sum += space[warp * WARP + owner];
    return sum;
}

#endif
