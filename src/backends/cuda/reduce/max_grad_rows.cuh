/* max_grad_rows.cuh: gradient of max and min along rows that fit a block: x read once, gx written once.
 *
 * With many long rows a warp takes one and writes the gradient as it goes, assuming that the maximum it meets is
 * unique; a row for which that was wrong is in L2 by then, and is done again. Otherwise x stays in registers until the
 * ties are counted.
 *
 * Elements are compared and selected in 32-bit words, one f32 or two 16-bit floats: a word of x becomes a mask of its
 * ties, which selects between two words computed once per row. */
#ifndef TARN__CUDA_MAX_GRAD_ROWS_CUH
#define TARN__CUDA_MAX_GRAD_ROWS_CUH

#include "backends/cuda/reduce/reduce_loops.cuh"

#define TIE_PACKS 4     /* 16-byte vectors per thread in registers */
#define TIE_THREADS 512 /* per block, at most */
#define MANY_ROWS 4096  /* rows, from which on a warp suffices for a long one */

/* `equal` sets all bits of an element that equals the other word's; `ones` has a 1 per element. */
template <typename T> struct word_of;
template <> struct word_of<float> {
    static constexpr uint32_t ones = 1;
    static __device__ __forceinline__ uint32_t equal(uint32_t a, uint32_t b)
    {
        return __uint_as_float(a) == __uint_as_float(b) ? 0xffffffffu : 0;
    }
    static __device__ __forceinline__ uint32_t repeat(float x)
    {
        return __float_as_uint(x);
    }
    static __device__ __forceinline__ int count(uint32_t sums)
    {
        return (int)sums;
    }
};
/* Two 16-bit floats: the hardware compares both at once. */
template <typename T, typename Pair> struct word_of_pair {
    static constexpr uint32_t ones = 0x00010001;
    static __device__ __forceinline__ uint32_t equal(uint32_t a, uint32_t b)
    {
        Pair x, y;
        memcpy(&x, &a, sizeof(x));
        memcpy(&y, &b, sizeof(y));
        return __heq2_mask(x, y);
    }
    static __device__ __forceinline__ uint32_t repeat(T x)
    {
        uint16_t bits;
        memcpy(&bits, &x, sizeof(bits));
        return bits * ones;
    }
    static __device__ __forceinline__ int count(uint32_t sums)
    {
        return (int)(sums & 0xffff) + (int)(sums >> 16);
    }
};
template <> struct word_of<bf16> : word_of_pair<bf16, __nv_bfloat162> {
};
template <> struct word_of<f16> : word_of_pair<f16, __half2> {
};

/* Every thread of the group gets the sum: up to 32 adjacent threads, or the whole block. */
__device__ __forceinline__ int count_over(int count, int group)
{
    __shared__ int space[WARP];
    if (group < WARP) {
        for (int step = group / 2; step > 0; step /= 2)
            count += __shfl_xor_sync(FULL_WARP, count, step);
        return count;
    }
    count = __reduce_add_sync(FULL_WARP, count);
    if (group == WARP)
        return count;
    if (threadIdx.x % WARP == 0)
        space[threadIdx.x / WARP] = count;
    __syncthreads();
    return __reduce_add_sync(FULL_WARP, threadIdx.x % WARP < blockDim.x / WARP ? space[threadIdx.x % WARP] : 0);
}

/* A group of threads per row. x, the result (aux) and g (a.y) are of type T. */
template <typename T>
static __global__ void __launch_bounds__(TIE_THREADS, 3)
    tie_rows(const __grid_constant__ reduce_args a, T *gx, int group)
{
    typedef word_of<T> word;
    const int lane = (int)threadIdx.x % group, length = (int)a.length;
    const int64_t unit = (int64_t)blockIdx.x * (blockDim.x / group) + threadIdx.x / group;
    const bool is_here = unit < a.units;
    int64_t offset[3] = {0, 0, 0};
    uint4 loaded[TIE_PACKS];
    uint32_t x[TIE_PACKS][4], sums = 0;
    float g = 0;
    if (is_here) {
        if (a.outer.rank <= 1)
            offset[0] = unit * a.outer.stride[0][0], offset[1] = unit * a.outer.stride[1][0],
            offset[2] = unit * a.outer.stride[2][0];
        else
            locate(a.outer, unit, offset);
        const uint4 *from = (const uint4 *)((const T *)a.x + offset[0]);
        const uint32_t y = word::repeat(((const T *)a.aux)[offset[2]]);
        g = widen(((const T *)a.y)[offset[1]]);
#pragma unroll
        for (int u = 0; u < TIE_PACKS; u++)
            if (lane + u * group < length)
                loaded[u] = from[lane + u * group]; /* one load: memcpy() into words would be compiled to byte loads */
#pragma unroll
        for (int u = 0; u < TIE_PACKS; u++)
            if (lane + u * group < length) {
                const uint32_t words[4] = {loaded[u].x, loaded[u].y, loaded[u].z, loaded[u].w};
#pragma unroll
                for (int k = 0; k < 4; k++) {
                    x[u][k] = word::equal(words[k], y);
                    sums += x[u][k] & word::ones;
                }
            }
    }
    /* x is still in registers, as masks */
    const int ties = count_over(word::count(sums), group);
    if (!is_here)
        return;
    float tied = g, other = g * 0;
    /* ties are 0 if a NaN won: it equals nothing, and all gradients of its row are NaN, as with torch.amax */
    if (ties != 1)
        tied = g / (float)ties, other = other / (float)ties;
    const uint32_t tied_word = word::repeat(narrow<T>(tied)), other_word = word::repeat(narrow<T>(other));
    uint4 *to = (uint4 *)(gx + offset[0]);
#pragma unroll
    for (int u = 0; u < TIE_PACKS; u++)
        if (lane + u * group < length) {
            uint32_t out[4];
#pragma unroll
            for (int k = 0; k < 4; k++)
                out[k] = (x[u][k] & tied_word) | (~x[u][k] & other_word);
            to[lane + u * group] = make_uint4(out[0], out[1], out[2], out[3]);
        }
}

/* A word of x to a word of its gradient; counts ties. */
template <typename T>
__device__ __forceinline__ uint32_t grad_word(uint32_t x, uint32_t y, uint32_t tied, uint32_t other, uint32_t *sums)
{
    uint32_t mask = word_of<T>::equal(x, y);
    *sums += mask & word_of<T>::ones;
    return (mask & tied) | (~mask & other);
}

/* Writes the row's gradient as if there were `ties` ties; returns how many there are. */
template <typename T>
__device__ __forceinline__ int grad_row(const uint4 *from, uint4 *to, int length, uint32_t y, float g, int ties)
{
    typedef word_of<T> word;
    float tied = g, other = g * 0;
    /* ties are 0 if a NaN won: it equals nothing, and all gradients of its row are NaN, as with torch.amax */
    if (ties != 1)
        tied = g / (float)ties, other = other / (float)ties;
    const uint32_t tied_word = word::repeat(narrow<T>(tied)), other_word = word::repeat(narrow<T>(other));
    int count = 0;
#pragma unroll 1
    for (int at = (int)threadIdx.x % WARP; at < length; at += WARP * TIE_PACKS) {
        uint4 x[TIE_PACKS];
        uint32_t sums = 0;
#pragma unroll
        for (int u = 0; u < TIE_PACKS; u++)
            if (at + u * WARP < length)
                x[u] = from[at + u * WARP];
#pragma unroll
        for (int u = 0; u < TIE_PACKS; u++)
            if (at + u * WARP < length)
                to[at + u * WARP] = make_uint4(grad_word<T>(x[u].x, y, tied_word, other_word, &sums),
                                               grad_word<T>(x[u].y, y, tied_word, other_word, &sums),
                                               grad_word<T>(x[u].z, y, tied_word, other_word, &sums),
                                               grad_word<T>(x[u].w, y, tied_word, other_word, &sums));
        count += word::count(sums);
    }
    return __reduce_add_sync(FULL_WARP, count);
}

/* A warp per row. */
template <typename T>
static __global__ void __launch_bounds__(THREADS, 4) tie_long_rows(const __grid_constant__ reduce_args a, T *gx)
{
    const int64_t unit = (int64_t)blockIdx.x * (THREADS / WARP) + threadIdx.x / WARP;
    int64_t offset[3];
    if (unit >= a.units)
        return;
    locate(a.outer, unit, offset);
    const uint4 *from = (const uint4 *)((const T *)a.x + offset[0]);
    uint4 *to = (uint4 *)(gx + offset[0]);
    const uint32_t y = word_of<T>::repeat(((const T *)a.aux)[offset[2]]);
    const float g = widen(((const T *)a.y)[offset[1]]);
    const int ties = grad_row<T>(from, to, (int)a.length, y, g, 1);
    if (ties != 1)
        grad_row<T>(from, to, (int)a.length, y, g, ties);
}

/* Grid: short rows take groups of 1 … 32 of 256 threads, longer ones a block of as many threads as hold them. Bytes: a
 * read and a write per element. */
template <typename T> static void launch_tie_rows(const reduce_args &a, void *gx, cudaStream_t stream)
{
    int needed = (int)divide_up(a.length, TIE_PACKS);
    bool is_short = needed <= WARP;
    if (!is_short && a.units >= MANY_ROWS) {
        tie_long_rows<T><<<blocks_for(a.units, THREADS / WARP), THREADS, 0, stream>>>(a, (T *)gx);
        return;
    }
    int group = is_short ? 1 << bits_for(needed) : (int)divide_up(needed, WARP) * WARP,
        block = is_short ? THREADS : group;
    tie_rows<T><<<blocks_for(a.units, block / group), block, 0, stream>>>(a, (T *)gx, group);
}

#endif
