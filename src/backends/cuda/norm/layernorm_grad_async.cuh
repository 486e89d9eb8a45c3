/* layernorm_grad_async.cuh: layernorm gradient of 16-bit rows of up to 1,024 elements, one warp per row, with
 * asynchronous loads.
 *
 * A row of 768 elements is 1.5 KiB of x and of g: too little in flight per warp to hide the latency of memory, and the
 * column sums in registers leave room for few warps. So a warp has a ring of rows in shared memory and prefetches some
 * rows ahead, without using registers. A thread reads only what it loaded itself: the ring needs no barrier. */
#ifndef TARN__CUDA_LAYERNORM_GRAD_ASYNC_CUH
#define TARN__CUDA_LAYERNORM_GRAD_ASYNC_CUH

#include <cuda_pipeline.h>

#include "backends/cuda/norm/layernorm.cuh"
#include "backends/cuda/random/dropout.cuh"

/* Operands of a row. */
enum { OUT, IN, MEAN, RSTD, GRADIENT, RESIDUAL, OPERANDS };

/* Arguments of all gradient kernels, those of layernorm_grad.cu as well. */
struct grad_args {
    row_set<OPERANDS> rows; /* gx, or x if gx is not needed */
    row_operand weight;
    bool wants_gx, wants_weight, wants_bias, is_centred, is_short;
    double epsilon, length, inverse;
    double offset; /* of the weight; 0 without one */
    int64_t chunk_rows;
    void *partial; /* (chunks, 2, length), in the compute type */
    void *dropped; /* dropout of gx, contiguous; NULL: none */
    dropout drop;
    source random;
};

/* A saved statistic of a row; 0 if there is none. */
template <typename C> __device__ __forceinline__ C load_row_stat(const grad_args &a, int k, int64_t at)
{
    return a.rows.operand[k].base ? load_any<C>(a.rows.operand[k].base, a.rows.operand[k].dtype, at) : (C)0;
}

#define RING_BYTES (48 << 10) /* per block */
#define ASYNC_BLOCKS 3        /* per multiprocessor */
#define ASYNC_BLOCKS_SHORT 4
#define ASYNC_SHORT (4 * WARP * 4) /* elements of a short row: vectors of 4 leave fewer lanes without work */

/* P vectors of N elements, of 16 bits, per thread. A slot holds a row of x, of g, and of the residual's gradient. */
template <int N, int P, bool has_residual> struct ring_layout {
    enum {
        operands = has_residual ? 3 : 2,
        slot_vecs = operands * P * WARP,
        fits = RING_BYTES / (WARPS_PER_BLOCK * slot_vecs * N * 2)
    };
    enum { slots = fits < 4 ? fits : 4 };
    static_assert(fits >= 2, "one row is computed while the next one is copied");
};

/* The type of an explicit load of 8 or 16 bytes. */
template <int BYTES> struct words_of {
    typedef uint2 type;
};
template <> struct words_of<16> {
    typedef uint4 type;
};

/* A warp's ring. Its i-th row is in slot i % slots. */
template <typename T, int N, int P, bool has_residual> struct row_pipeline {
    typedef ring_layout<N, P, has_residual> shape;
    vec<T, N> *at; /* this thread's first vector of the first slot */
    int vecs, lane;

    /* Prefetches a row; every call commits one group of copies, with or without a row. */
    __device__ __forceinline__ void prefetch(const grad_args &a, int64_t row, int64_t end, int slot)
    {
        if (row < end) {
            int64_t offset[OPERANDS];
            locate_row(a.rows, row, offset);
#pragma unroll
            for (int k = 0; k < shape::operands; k++) {
                const int operand = k == 0 ? IN : k == 1 ? GRADIENT : RESIDUAL;
                const T *from = (const T *)a.rows.operand[operand].base + offset[operand];
#pragma unroll
                for (int p = 0; p < P; p++)
                    if (lane + p * WARP < vecs)
                        __pipeline_memcpy_async(at + slot * shape::slot_vecs + (k * P + p) * WARP,
                                                from + (lane + p * WARP) * N, N * sizeof(T));
            }
        }
        __pipeline_commit();
    }
    __device__ __forceinline__ void get(int slot, int k, int p, float *x) const
    {
        typedef typename words_of<N *(int)sizeof(T)>::type words_type;
        const words_type words = *(const words_type *)(at + slot * shape::slot_vecs + (k * P + p) * WARP);
        vec<T, N> loaded;
        memcpy(&loaded, &words, sizeof(words));
        widen_vec(loaded, x);
    }
};

/* Statistics of a row, and the address of its gradient; loaded while the previous row is in use. */
struct row_loader {
    float mean, rstd;
    int64_t to;
    __device__ __forceinline__ row_loader(const grad_args &a, int64_t row, int64_t end)
    {
        int64_t offset[OPERANDS];
        mean = rstd = 0;
        to = 0;
        if (row >= end)
            return;
        locate_row(a.rows, row, offset);
        to = offset[OUT];
        mean = load_row_stat<float>(a, MEAN, offset[MEAN]);
        rstd = load_row_stat<float>(a, RSTD, offset[RSTD]);
    }
};

template <typename T, int N> __device__ __forceinline__ void fill_vec(vec<T, N> &x, T value)
{
#pragma unroll
    for (int i = 0; i < N; i++)
        x.at[i] = value;
}

/* Column sums of a thread: N columns of each of its vectors. */
template <int N, int P> struct column_sums {
    float weight[P][N], bias[P][N];
};

/* Adds a row to the column sums, and computes its two row sums over the thread's columns. */
template <typename T, int N, int P, bool has_residual>
__device__ __forceinline__ void add_row(const row_pipeline<T, N, P, has_residual> &ring, int slot,
                                        const vec<T, N> *weight, float offset, float mean, float rstd,
                                        column_sums<N, P> *columns, float *sums)
{
#pragma unroll
    for (int p = 0; p < P; p++)
        if (ring.lane + p * WARP < ring.vecs) {
            float x[N], g[N], w[N];
            ring.get(slot, 0, p, x);
            ring.get(slot, 1, p, g);
            widen_vec(weight[p], w);
#pragma unroll
            for (int i = 0; i < N; i++) {
                float hat = (x[i] - mean) * rstd, gw = g[i] * (w[i] + offset);
                sums[0] += gw;
                sums[1] += gw * hat;
                columns->weight[p][i] += g[i] * hat;
                columns->bias[p][i] += g[i];
            }
        }
}

/* Writes gx of a row from the ring, and dropout of the rounded gx; `first` is the index of its first element in all of
 * gx. */
template <typename T, int N, int P, bool has_residual, bool drops>
__device__ __forceinline__ void
write_row(const grad_args &a, const source &random, const row_pipeline<T, N, P, has_residual> &ring, int slot,
          const vec<T, N> *weight, float mean, float rstd, const float *means, T *to, int64_t first)
{
    const float offset = (float)a.offset;
    const float factor = -rstd * means[1]; /* x̂ · means[1] = (x - mean) · (rstd · means[1]) */
#pragma unroll
    for (int p = 0; p < P; p++)
        if (ring.lane + p * WARP < ring.vecs) {
            float x[N], g[N], w[N], residual[N], gx[N];
            vec<T, N> result;
            ring.get(slot, 0, p, x);
            ring.get(slot, 1, p, g);
            if (has_residual)
                ring.get(slot, 2, p, residual);
            widen_vec(weight[p], w);
#pragma unroll
            for (int i = 0; i < N; i++)
                gx[i] = rstd * ((g[i] * (w[i] + offset) - means[0]) + (x[i] - mean) * factor) +
                        (has_residual ? residual[i] : 0.0f);
            narrow_vec(gx, result);
            store_vec(to + (ring.lane + p * WARP) * N, result);
            if constexpr (drops) {
                const int64_t at = first + (ring.lane + p * WARP) * N;
                drop_vec(a.drop, random, (uint64_t)at, result);
                store_vec((T *)a.dropped + at, result);
            }
        }
}

/* Writes a chunk's column sums, added over the warps in order. `space` is the ring's memory, no longer needed. */
template <int N, int P>
__device__ __forceinline__ void write_columns(const grad_args &a, int operand, const float (*sums)[N], float *space)
{
    const int lane = (int)threadIdx.x % WARP, length = (int)a.rows.length;
    float *to = (float *)a.partial + ((int64_t)blockIdx.x * 2 + operand) * length;
    __syncthreads();
#pragma unroll
    for (int p = 0; p < P; p++)
        if ((lane + p * WARP) * N < length) {
            float4 *to_warp = (float4 *)(space + (threadIdx.x / WARP) * (P * WARP * N) + (lane + p * WARP) * N);
#pragma unroll
            for (int i = 0; i < N; i += 4)
                to_warp[i / 4] = make_float4(sums[p][i], sums[p][i + 1], sums[p][i + 2], sums[p][i + 3]);
        }
    __syncthreads();
    for (int column = threadIdx.x; column < length; column += WARP * WARPS_PER_BLOCK) {
        float sum = space[column];
        for (int warp = 1; warp < WARPS_PER_BLOCK; warp++)
            sum += space[warp * (P * WARP * N) + column];
        to[column] = sum;
    }
}

/* Blocks per multiprocessor; more for short rows, whose column sums need fewer registers. */
template <int N> constexpr int async_blocks = N == 4 ? ASYNC_BLOCKS_SHORT : ASYNC_BLOCKS;

/* Two sums over the warp at once, as sum_parts() adds each. */
__device__ __forceinline__ void sum_both(const float *part, double *sum)
{
    float x = part[0], y = part[1];
#pragma unroll
    for (int step = WARP / 2; step > 0; step /= 2) {
        x += __shfl_xor_sync(FULL_WARP, x, step);
        y += __shfl_xor_sync(FULL_WARP, y, step);
    }
    sum[0] = (double)x, sum[1] = (double)y;
    if (!(fabsf(x) < CUDART_INF_F))
        sum[0] = warp_reduce<plus>((double)part[0]);
    if (!(fabsf(y) < CUDART_INF_F))
        sum[1] = warp_reduce<plus>((double)part[1]);
}

/* A block owns a chunk of rows; its 4 warps take rows in turn. */
template <typename T, int N, int P, bool has_residual, bool drops>
static __global__ void __launch_bounds__(WARP *WARPS_PER_BLOCK, async_blocks<N>)
    async_kernel(const __grid_constant__ grad_args a)
{
    typedef row_pipeline<T, N, P, has_residual> rows;
    enum { slots = rows::shape::slots };
    __shared__ uint4 space[WARPS_PER_BLOCK * slots * rows::shape::slot_vecs * N / 8];
    const int lane = (int)threadIdx.x % WARP, warp = (int)threadIdx.x / WARP;
    rows ring = {(vec<T, N> *)space + warp * (slots * rows::shape::slot_vecs) + lane, (int)(a.rows.length / N), lane};
    column_sums<N, P> columns = {};
    vec<T, N> weight[P];
#pragma unroll
    for (int p = 0; p < P; p++)
        if (lane + p * WARP < ring.vecs) {
            if (a.weight.base)
                weight[p] = load_vec<T, N>((const T *)a.weight.base + (lane + p * WARP) * N);
            else
                fill_vec(weight[p], narrow<T>(1.0f));
        }
    const int64_t begin = blockIdx.x * a.chunk_rows,
                  end = begin + a.chunk_rows < a.rows.count ? begin + a.chunk_rows : a.rows.count;
    const int64_t first = begin + warp;
#pragma unroll
    for (int i = 0; i < slots - 1; i++)
        /* fill all slots but one; rows past the end commit empty groups */
        ring.prefetch(a, first + i * WARPS_PER_BLOCK, end, i);
    int slot = 0;
    const source random = drops ? resolved(a.random) : source{};
    row_loader next(a, first, end);
    for (int64_t row = first; row < end; row += WARPS_PER_BLOCK) {
        /* statistics were loaded one row ahead */
        const row_loader here = next;
        ring.prefetch(a, row + (slots - 1) * WARPS_PER_BLOCK, end, slot == 0 ? slots - 1 : slot - 1);
        next = row_loader(a, row + WARPS_PER_BLOCK, end);
        /* the oldest group: this row has arrived */
        __pipeline_wait_prior(slots - 1);
        float sums[2] = {0, 0}, means[2];
        add_row(ring, slot, weight, (float)a.offset, here.mean, here.rstd, &columns, sums);
        if (a.wants_gx) {
            double both[2];
            sum_both(sums, both);
            means[0] = a.is_centred ? mean_of(both[0], a.length, a.inverse, 0.0f) : 0.0f;
            means[1] = mean_of(both[1], a.length, a.inverse, 0.0f);
            write_row<T, N, P, has_residual, drops>(a, random, ring, slot, weight, here.mean, here.rstd, means,
                                                    (T *)a.rows.operand[OUT].base + here.to, row * a.rows.length);
        }
        slot = slot + 1 < slots ? slot + 1 : 0;
    }
    if (a.wants_weight)
        write_columns<N, P>(a, 0, columns.weight, (float *)space);
    if (a.wants_bias)
        write_columns<N, P>(a, 1, columns.bias, (float *)space);
}

/* Grid: a block per chunk; 128 threads. Bytes: x and g read, gx written, once each. */
template <typename T, bool has_residual, bool drops>
static void launch_async(const grad_args &a, unsigned blocks, cudaStream_t stream)
{
    const unsigned threads = WARP * WARPS_PER_BLOCK;
    if (a.rows.length <= 3 * WARP * 4)
        async_kernel<T, 4, 3, has_residual, drops><<<blocks, threads, 0, stream>>>(a);
    else if (a.rows.length <= ASYNC_SHORT)
        async_kernel<T, 4, 4, has_residual, drops><<<blocks, threads, 0, stream>>>(a);
    else if (a.rows.length <= 3 * WARP * 8)
        async_kernel<T, 8, 3, has_residual, drops><<<blocks, threads, 0, stream>>>(a);
    else
        async_kernel<T, 8, 4, has_residual, drops><<<blocks, threads, 0, stream>>>(a);
}

#endif
