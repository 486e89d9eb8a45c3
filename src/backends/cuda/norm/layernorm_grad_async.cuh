/* layernorm_grad_async.cuh: the gradient of a norm whose 16-bit rows a warp holds, with rows on their way while others
 * are worked on.
 *
 * A row of 768 elements is 1.5 KiB of x and of g: what a warp loads at once is too little to fill the memory's latency
 * with as few warps as the columns' sums in registers leave room for. So a warp has a ring of rows in shared memory and
 * asks for one some rows ahead, without holding registers for it. A thread reads what it has asked for itself and
 * nothing else: the ring needs no barrier. */
#ifndef TARN__NORM_RING_CUH
#define TARN__NORM_RING_CUH

#include <cuda_pipeline.h>

#include "backends/cuda/norm/norm_grad.cuh"

#define RING_BYTES (48 << 10) /* of a block */

/* P packs of 8 elements a thread. A place of the ring has a row of x, of g, and of the gradient that x has besides. */
template <int P, bool has_own> struct ring_shape {
    enum {
        operands = has_own ? 3 : 2,
        place_packs = operands * P * WARP,
        fits = RING_BYTES / (WARPS_A_BLOCK * place_packs * 16)
    };
    enum { places = fits < 4 ? fits : 4 };
    static_assert(fits >= 2, "one row is worked on while the next one comes");
};

/* A warp's ring. Its row number i lies at place i % places. */
template <typename T, int P, bool has_own> struct row_ring {
    typedef ring_shape<P, has_own> shape;
    typedef pack<T, 8> packed;
    packed *at; /* this thread's first pack of the first place */
    int packs, lane;

    /* Asks for a row; every call is a group of its own, with or without a row. */
    __device__ __forceinline__ void ask(const grad_args &a, int64_t row, int64_t end, int place)
    {
        if (row < end) {
            int64_t offset[OPERANDS];
            locate_row(a.rows, row, offset);
#pragma unroll
            for (int k = 0; k < shape::operands; k++) {
                const int operand = k == 0 ? IN : k == 1 ? GRADIENT : OWN;
                const T *from = (const T *)a.rows.operand[operand].base + offset[operand];
#pragma unroll
                for (int p = 0; p < P; p++)
                    if (lane + p * WARP < packs)
                        __pipeline_memcpy_async(at + place * shape::place_packs + (k * P + p) * WARP,
                                                from + (lane + p * WARP) * 8, 16);
            }
        }
        __pipeline_commit();
    }
    __device__ __forceinline__ void get(int place, int k, int p, float *x) const
    {
        uint4 words = *(const uint4 *)(at + place * shape::place_packs + (k * P + p) * WARP);
        packed held;
        memcpy(&held, &words, sizeof(words));
        widen_pack(held, x);
    }
};

/* A row's numbers, and where its gradient goes; loaded while the row before is worked on. */
struct row_numbers {
    float mean, rstd;
    int64_t to;
    __device__ __forceinline__ row_numbers(const grad_args &a, int64_t row, int64_t end)
    {
        int64_t offset[OPERANDS];
        mean = rstd = 0;
        to = 0;
        if (row >= end)
            return;
        locate_row(a.rows, row, offset);
        to = offset[OUT];
        mean = read_number<float>(a, MEAN, offset[MEAN]);
        rstd = read_number<float>(a, RSTD, offset[RSTD]);
    }
};

template <typename T, int N> __device__ __forceinline__ void fill_pack(pack<T, N> &x, T value)
{
#pragma unroll
    for (int i = 0; i < N; i++)
        x.at[i] = value;
}

/* The columns' sums of a thread: 8 columns of each of its packs. */
template <int P> struct column_sums {
    float weight[P][8], bias[P][8];
};

/* A row's part in the columns' sums, and its own two sums over the thread's columns. */
template <typename T, int P, bool has_own>
__device__ __forceinline__ void take_row(const row_ring<T, P, has_own> &ring, int place, const pack<T, 8> *weight,
                                         float mean, float rstd, column_sums<P> *columns, float *sums)
{
#pragma unroll
    for (int p = 0; p < P; p++)
        if (ring.lane + p * WARP < ring.packs) {
            float x[8], g[8], w[8];
            ring.get(place, 0, p, x);
            ring.get(place, 1, p, g);
            widen_pack(weight[p], w);
#pragma unroll
            for (int i = 0; i < 8; i++) {
                float hat = (x[i] - mean) * rstd, gw = g[i] * w[i];
                sums[0] += gw;
                sums[1] += gw * hat;
                columns->weight[p][i] += g[i] * hat;
                columns->bias[p][i] += g[i];
            }
        }
}

template <typename T, int P, bool has_own>
__device__ __forceinline__ void write_row(const row_ring<T, P, has_own> &ring, int place, const pack<T, 8> *weight,
                                          float mean, float rstd, const float *means, T *to)
{
    const float slope = -rstd * means[1]; /* x̂ · means[1] = (x - mean) · (rstd · means[1]) */
#pragma unroll
    for (int p = 0; p < P; p++)
        if (ring.lane + p * WARP < ring.packs) {
            float x[8], g[8], w[8], own[8], gx[8];
            pack<T, 8> result;
            ring.get(place, 0, p, x);
            ring.get(place, 1, p, g);
            if (has_own)
                ring.get(place, 2, p, own);
            widen_pack(weight[p], w);
#pragma unroll
            for (int i = 0; i < 8; i++)
                gx[i] = rstd * ((g[i] * w[i] - means[0]) + (x[i] - mean) * slope) + (has_own ? own[i] : 0.0f);
            narrow_pack(gx, result);
            store_pack(to + (ring.lane + p * WARP) * 8, result);
        }
}

/* A chunk's sums of the columns, added over the warps in order. `space` is the ring's, which is done with. */
template <int P>
__device__ __forceinline__ void put_columns(const grad_args &a, int which, const float (*sums)[8], float *space)
{
    const int lane = (int)threadIdx.x % WARP, length = (int)a.rows.length;
    float *to = (float *)a.partial + ((int64_t)blockIdx.x * 2 + which) * length;
    __syncthreads();
#pragma unroll
    for (int p = 0; p < P; p++)
        if ((lane + p * WARP) * 8 < length) {
            float4 *own = (float4 *)(space + (threadIdx.x / WARP) * (P * WARP * 8) + (lane + p * WARP) * 8);
            own[0] = make_float4(sums[p][0], sums[p][1], sums[p][2], sums[p][3]);
            own[1] = make_float4(sums[p][4], sums[p][5], sums[p][6], sums[p][7]);
        }
    __syncthreads();
    for (int column = threadIdx.x; column < length; column += WARP * WARPS_A_BLOCK) {
        float sum = space[column];
        for (int warp = 1; warp < WARPS_A_BLOCK; warp++)
            sum += space[warp * (P * WARP * 8) + column];
        to[column] = sum;
    }
}

template <typename T, int P, bool has_own>
static __global__ void __launch_bounds__(WARP *WARPS_A_BLOCK, 3) ring_kernel(const __grid_constant__ grad_args a)
{
    typedef row_ring<T, P, has_own> rows;
    enum { places = rows::shape::places };
    __shared__ uint4 space[WARPS_A_BLOCK * places * rows::shape::place_packs];
    const int lane = (int)threadIdx.x % WARP, warp = (int)threadIdx.x / WARP;
    rows ring = {(pack<T, 8> *)space + warp * (places * rows::shape::place_packs) + lane, (int)(a.rows.length / 8),
                 lane};
    column_sums<P> columns = {};
    pack<T, 8> weight[P];
#pragma unroll
    for (int p = 0; p < P; p++)
        if (lane + p * WARP < ring.packs) {
            if (a.weight.base)
                weight[p] = load_pack<T, 8>((const T *)a.weight.base + (lane + p * WARP) * 8);
            else
                fill_pack(weight[p], narrow<T>(1.0f));
        }
    const int64_t begin = blockIdx.x * a.chunk_rows,
                  end = begin + a.chunk_rows < a.rows.count ? begin + a.chunk_rows : a.rows.count;
    const int64_t first = begin + warp;
#pragma unroll
    for (int i = 0; i < places - 1; i++)
        ring.ask(a, first + i * WARPS_A_BLOCK, end, i);
    int place = 0;
    row_numbers next(a, first, end);
    for (int64_t row = first; row < end; row += WARPS_A_BLOCK) {
        const row_numbers here = next;
        ring.ask(a, row + (places - 1) * WARPS_A_BLOCK, end, place == 0 ? places - 1 : place - 1);
        next = row_numbers(a, row + WARPS_A_BLOCK, end);
        __pipeline_wait_prior(places - 1);
        float sums[2] = {0, 0}, means[2];
        take_row(ring, place, weight, here.mean, here.rstd, &columns, sums);
        if (a.wants_gx) {
            means[0] = a.is_centred ? mean_of(sum_parts<typed<T, 8>, true>(sums[0]), a.length, a.inverse, 0.0f) : 0.0f;
            means[1] = mean_of(sum_parts<typed<T, 8>, true>(sums[1]), a.length, a.inverse, 0.0f);
            write_row(ring, place, weight, here.mean, here.rstd, means, (T *)a.rows.operand[OUT].base + here.to);
        }
        place = place + 1 < places ? place + 1 : 0;
    }
    if (a.wants_weight)
        put_columns<P>(a, 0, columns.weight, (float *)space);
    if (a.wants_bias)
        put_columns<P>(a, 1, columns.bias, (float *)space);
}

/* Grid: a block a chunk. Bytes: x and g read, gx written, once each. */
template <typename T, bool has_own> static void launch_ring(const grad_args &a, unsigned blocks, cudaStream_t stream)
{
    if (a.rows.length <= 3 * WARP * 8)
        ring_kernel<T, 3, has_own><<<blocks, WARP * WARPS_A_BLOCK, 0, stream>>>(a);
    else
        ring_kernel<T, 4, has_own><<<blocks, WARP * WARPS_A_BLOCK, 0, stream>>>(a);
}

#endif
