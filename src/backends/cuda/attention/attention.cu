/* attention.cu: attention forward for every dtype, layout and size of D, and the choice between it, tensor cores and
 * cuDNN. See attention_simt.cuh for the tiles.
 *
 * A block has SIDE rows of one head. For each tile of keys it makes the products, raises each row's largest, scales
 * down what it has when that changes, and adds the tile's weighted values, summed by themselves first: a row of
 * thousands of keys keeps its digits. */
#include "backends/cuda/attention/attention_simt.cuh"
#include "backends/cuda/attention/cudnn_attention.h"

/* Weights of a tile: exponentials relative to each row's largest so far; `fading` is what the row's earlier sums are to
 * be multiplied by. */
template <typename C>
__device__ __forceinline__ void weigh(const attention_args &a, C (*score)[tile_of<C>::M], int64_t batch, int64_t valid,
                                      int64_t row, int64_t key, C *most, C *sum, C *fading)
{
    constexpr int M = tile_of<C>::M;
    const C scale = (C)(a.scale * LOG2_E), nothing = (C)-CUDART_INF_F;
#pragma unroll
    for (int m = 0; m < M; m++) {
        int64_t keys = row + m < a.rows ? keys_of(a, valid, row + m) : 0,
                start = row + m < a.rows ? start_of(a, batch, row + m) : 0;
        C here = most[m], part = 0;
#pragma unroll
        for (int n = 0; n < M; n++) {
            score[m][n] = key + n >= start && key + n < keys ? score[m][n] * scale : nothing;
            here = larger(here, score[m][n]);
        }
#pragma unroll
        for (int step = ACROSS / 2; step > 0; step /= 2)
            here = larger(here, __shfl_xor_sync(FULL_WARP, here, step));
        C shift = here == nothing ? (C)0 : here;
        fading[m] = exponential2(most[m] - shift);
        most[m] = here;
#pragma unroll
        for (int n = 0; n < M; n++) {
            score[m][n] = exponential2(score[m][n] - shift);
            part += score[m][n];
        }
#pragma unroll
        for (int step = ACROSS / 2; step > 0; step /= 2)
            part += __shfl_xor_sync(FULL_WARP, part, step);
        sum[m] = sum[m] * fading[m] + part;
    }
}

template <typename C, int W>
static __global__ void __launch_bounds__(THREADS) forward_kernel(const __grid_constant__ attention_args a)
{
    typedef tile_of<C> tile;
    constexpr int M = tile::M, SIDE = tile::SIDE;
    __shared__ alignas(16) C stage[tile::STAGE];
    __shared__ alignas(16) C weights[SIDE * tile::LINE]; /* (keys, rows) */
    __shared__ int64_t space[WARP];
    const int tx = threadIdx.x % ACROSS, ty = threadIdx.x / ACROSS;
    const block_place at = place_of(a, a.heads, true);
    const slab q = slab_of(a.q, at.batch, at.head), k = slab_of(a.k, at.batch, at.head / a.group),
               v = slab_of(a.v, at.batch, at.head / a.group);
    const int64_t first = at.block * SIDE, last = (first + SIDE < a.rows ? first + SIDE : a.rows) - 1,
                  row = first + ty * M, column = at.window * W;
    const int64_t valid = valid_keys(a, at.batch), keys = keys_of(a, valid, last), head = at.batch * a.heads + at.head;
    if (at.block == 0 && at.head == 0 && threadIdx.x == 0)
        check_length(a, at.batch);
    if (at.head == 0)
        check_starts(a, at.batch, first, last);
    C score[M][M], most[M], sum[M], fading[M], result[M][W / ACROSS] = {};
#pragma unroll
    for (int m = 0; m < M; m++)
        most[m] = (C)-CUDART_INF_F, sum[m] = 0;
    for (int64_t key = first_tile_of(a, at.batch, first, last, SIDE, space); key < keys; key += SIDE) {
        multiply_tiles(score, stage, q, first, a.rows, k, key, keys, a.depth);
        weigh(a, score, at.batch, valid, row, key + tx * M, most, sum, fading);
#pragma unroll
        for (int m = 0; m < M; m++) {
            const uint32_t kept = a.is_dropping ? kept_from(a, head, row + m, key + tx * M) : 0;
#pragma unroll
            for (int n = 0; n < M; n++)
                weights[(tx * M + n) * tile::LINE + ty * M + m] =
                    a.is_dropping ? score[m][n] * (C)drop_factor(a, kept, n) : score[m][n];
#pragma unroll
            for (int n = 0; n < W / ACROSS; n++)
                result[m][n] *= fading[m];
        }
        C part[M][W / ACROSS] = {};
        multiply_rows<C, W>(part, weights, stage, v, key, keys, column, a.depth);
#pragma unroll
        for (int m = 0; m < M; m++)
#pragma unroll
            for (int n = 0; n < W / ACROSS; n++)
                result[m][n] += part[m][n];
    }
    C factor[M];
#pragma unroll
    for (int m = 0; m < M; m++)
        factor[m] =
            row + m < a.rows && sum[m] != 0 ? 1 / sum[m] : (C)0; /* no keys, or scores that are all -infinity: 0 */
    write_rows<C, W>(slab_of(a.y, at.batch, at.head), result, factor, first, a.rows, column, a.depth);
    const slab logs = slab_of(a.log_sum, at.batch, at.head);
#pragma unroll
    for (int m = 0; a.log_sum.base && tx == 0 && at.window == 0 && m < M; m++)
        if (row + m < a.rows)
            store_any(logs.base, logs.dtype, (row + m) * logs.row,
                      sum[m] == 0 ? (C)-CUDART_INF_F : (C)((most[m] + logarithm2(sum[m])) * (C)LN_2));
}

/* ---- starting it ------------------------------------------------------------------------------------------------- */

/* Grid: a block for SIDE rows of a head and a window of D. Multiplications: rows · keys · D · 2, once more of the first
 * half for each window. */
template <typename C, int W> static void launch(const tarn__call *call, attention_args &a)
{
    a.blocks = (a.rows + tile_of<C>::SIDE - 1) / tile_of<C>::SIDE;
    a.windows = (a.depth + W - 1) / W;
    forward_kernel<C, W><<<blocks_for(a.batches * a.heads * a.blocks * a.windows, 1), THREADS, 0, stream_of(call)>>>(a);
}

void tarn__cuda_attention_native(const tarn__call *call)
{
    attention_args a = attention_of(call, false);
    if (a.batches == 0 || a.rows == 0 || tarn__cuda_attention_mma(call, &a))
        return;
    FOR_PLAIN(a, launch<C, W>(call, a))
}

/* By cuDNN where it is there and does this one best, else by our own kernels. */
static size_t scratch(const tarn__call *call)
{
    size_t bytes;
    return tarn__cudnn_attention_call(call, false, false, &bytes) ? bytes : 0;
}

static size_t grad_scratch(const tarn__call *call)
{
    size_t bytes;
    return tarn__cudnn_attention_call(call, true, false, &bytes) ? bytes
                                                                 : tarn__cuda_attention_grad_native_scratch(call);
}

static void run(const tarn__call *call)
{
    size_t bytes;
    if (!tarn__cudnn_attention_call(call, false, true, &bytes))
        tarn__cuda_attention_native(call);
}

static void run_grad(const tarn__call *call)
{
    size_t bytes;
    if (!tarn__cudnn_attention_call(call, true, true, &bytes))
        tarn__cuda_attention_grad_native(call);
}

void tarn__cuda_attention(tarn__kernel_row *rows)
{
    rows[TARN__K_attention] = tarn__kernel_row{run, TARN__FLOATS, scratch};
    rows[TARN__K_attention_grad] = tarn__kernel_row{run_grad, TARN__FLOATS, grad_scratch};
    rows[TARN__K_attention_documents] = tarn__kernel_row{tarn__cuda_attention_native, TARN__FLOATS, NULL};
    rows[TARN__K_attention_documents_grad] =
        tarn__kernel_row{tarn__cuda_attention_grad_native, TARN__FLOATS, tarn__cuda_attention_grad_native_scratch};
}
