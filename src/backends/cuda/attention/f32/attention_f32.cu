/* attention_f32.cu: f32 attention forward in registers, without tensor cores. attention_f32.cuh has the tiles.
 *
 * A block owns ROWS rows of one head and walks tiles of COLUMNS keys. A tile's scores stay in registers until they are
 * weights; these go through shared memory to the product with v, summed separately per tile: rows of thousands of keys
 * keep their precision. k of the next tile is copied while v is in use, v while k is.
 *
 * Multiply-adds: 2 · rows · keys · D. At 8 × 8 values per thread 2 D = 128 of them share 8 loads from shared memory and
 * about 9 instructions of the softmax: 88 % of the issue slots multiply. Soft caps are left to attention.cu. */
#include "backends/cuda/attention/f32/attention_f32.cuh"

/* Online softmax of a tile: scores become exp(score - running max), `sum` the thread's part of the row's sum. */
template <typename T>
__device__ __forceinline__ void f32_softmax(const attention_args &a, float (*score)[T::N], int64_t batch, int64_t valid,
                                            int64_t first, int64_t key, bool is_full, float *row_max, float *sum,
                                            float *rescale)
{
    const int tx = f32_tx<T>(), ty = f32_ty<T>();
    const float scale = (float)(a.scale * LOG2_E), masked = -CUDART_INF_F;
#pragma unroll
    for (int m = 0; m < T::M; m++)
#pragma unroll
        for (int n = 0; n < T::N; n++)
            score[m][n] *= scale;
    if (!is_full) {
#pragma unroll
        for (int m = 0; m < T::M; m++) {
            const int64_t row = first + ty + T::TY * m;
            const int end = row < a.rows ? tile_position(keys_of(a, valid, row), key, T::COLUMNS) : 0,
                      start = row < a.rows ? tile_position(start_of(a, batch, row), key, T::COLUMNS) : 0;
#pragma unroll
            for (int n = 0; n < T::N; n++)
                score[m][n] = tx + T::TX * n >= start && tx + T::TX * n < end ? score[m][n] : masked;
        }
    }
#pragma unroll
    for (int m = 0; m < T::M; m++) {
        float here = row_max[m], part = 0;
#pragma unroll
        for (int n = 0; n < T::N; n++)
            here = fmaxf(here, score[m][n]);
#pragma unroll
        for (int step = 2; step <= T::TX; step *= 2) /* lanes of one row: bit 0 is part of ty */
            here = fmaxf(here, __shfl_xor_sync(FULL_WARP, here, step));
        const float shift = here == masked ? 0.0f : here;
        rescale[m] = exp2_fast(row_max[m] - shift);
        row_max[m] = here;
#pragma unroll
        for (int n = 0; n < T::N; n++) {
            score[m][n] = exp2_fast(score[m][n] - shift);
            part += score[m][n];
        }
        sum[m] = sum[m] * rescale[m] + part;
    }
}

/* Weights after dropout. */
template <typename T>
__device__ __forceinline__ void drop_weights(const attention_args &a, float (*weight)[T::N], const uint8_t *keep)
{
#pragma unroll
    for (int m = 0; m < T::M; m++)
#pragma unroll
        for (int n = 0; n < T::N; n++)
            weight[m][n] *= keep_factor<T::COLUMNS>(keep, a, f32_ty<T>() + T::TY * m, f32_tx<T>() + T::TX * n);
}

/* y and the LSE of the block's rows. */
template <typename T>
__device__ __forceinline__ void write_forward(const attention_args &a, const block_pos &at, int64_t first,
                                              float (*result)[T::VECS * 4], float *row_max, float *sum)
{
    const head_matrix lse_head = head_of(a.lse, at.batch, at.head);
    float factor[T::M];
#pragma unroll
    for (int m = 0; m < T::M; m++) {
#pragma unroll
        for (int step = 2; step <= T::TX; step *= 2)
            sum[m] += __shfl_xor_sync(FULL_WARP, sum[m], step);
        factor[m] = sum[m] != 0 ? 1 / sum[m] : 0.0f; /* no keys, or all scores -infinity: 0 */
        const int64_t row = first + f32_ty<T>() + T::TY * m;
        if (a.lse.base && f32_tx<T>() == 0 && row < a.rows)
            ((float *)lse_head.base)[row * lse_head.row] =
                sum[m] == 0 ? -CUDART_INF_F : (row_max[m] + log2f(sum[m])) * (float)LN_2;
    }
    write_results<T>(head_of(a.y, at.batch, at.head), result, factor, first, a.rows, a.head_dim);
}

template <typename T>
constexpr size_t
    f32_forward_bytes = (size_t)((T::ROWS + 2 * T::COLUMNS) * T::LINE + T::ROWS * T::PITCH) * sizeof(float) + T::KEEP;

template <typename T, int BLOCKS>
static __global__ void __launch_bounds__(T::SIZE, BLOCKS) f32_forward_kernel(const __grid_constant__ attention_args a)
{
    extern __shared__ float4 shared_vectors[];
    __shared__ int64_t space[WARP];
    float *const qs = (float *)shared_vectors, *const ks = qs + T::ROWS * T::LINE,
                 *const vs = ks + T::COLUMNS * T::LINE, *const weights = vs + T::COLUMNS * T::LINE;
    uint8_t *const keep = (uint8_t *)(weights + T::ROWS * T::PITCH);
    const block_pos at = block_pos_of(a, a.heads, true);
    const head_matrix k = head_of(a.k, at.batch, at.head / a.group), v = head_of(a.v, at.batch, at.head / a.group);
    const int64_t first = at.block * T::ROWS, last = (first + T::ROWS < a.rows ? first + T::ROWS : a.rows) - 1;
    const int64_t valid = valid_keys(a, at.batch), keys = keys_of(a, valid, last),
                  full = a.document_starts ? 0 : keys_of(a, valid, first);
    if (at.block == 0 && at.head == 0 && threadIdx.x == 0)
        check_length(a, at.batch);
    if (at.head == 0)
        check_starts(a, at.batch, first, last);
    float row_max[T::M], sum[T::M], rescale[T::M], result[T::M][T::VECS * 4] = {};
#pragma unroll
    for (int m = 0; m < T::M; m++)
        row_max[m] = -CUDART_INF_F, sum[m] = 0;
    int64_t key = first_tile_of(a, at.batch, first, last, T::COLUMNS, space);
    copy_rows<T, T::ROWS>(qs, head_of(a.q, at.batch, at.head), first, a.rows, a.head_dim);
    copy_rows<T, T::COLUMNS>(ks, k, key, keys, a.head_dim);
    commit_copies();
    copy_rows<T, T::COLUMNS>(vs, v, key, keys, a.head_dim);
    commit_copies();
    for (; key < keys; key += T::COLUMNS) {
        const bool is_last = key + T::COLUMNS >= keys;
        float score[T::M][T::N];
        if (a.is_dropping)
            draw_keep_bits<T, T::ROWS, T::COLUMNS>(keep, a, at.batch * a.heads + at.head, first, key);
        wait_for_copies<1>();
        __syncthreads();
        f32_gemm_nt<T>(score, qs, ks);
        f32_softmax<T>(a, score, at.batch, valid, first, key, key + T::COLUMNS <= full, row_max, sum, rescale);
        if (a.is_dropping)
            drop_weights<T>(a, score, keep);
        store_weights<T>(weights, score);
        wait_for_copies<0>();
        __syncthreads();
        if (!is_last)
            copy_rows<T, T::COLUMNS>(ks, k, key + T::COLUMNS, keys, a.head_dim);
        commit_copies();
        float part[T::M][T::VECS * 4] = {};
        f32_gemm_nn<T>(part, weights, vs);
#pragma unroll
        for (int m = 0; m < T::M; m++)
#pragma unroll
            for (int n = 0; n < T::VECS * 4; n++)
                result[m][n] = fmaf(result[m][n], rescale[m], part[m][n]);
        __syncthreads();
        if (!is_last)
            copy_rows<T, T::COLUMNS>(vs, v, key + T::COLUMNS, keys, a.head_dim);
        commit_copies();
    }
    wait_for_copies<0>(); /* also without keys: copies must not outlive the block */
    write_forward<T>(a, at, first, result, row_max, sum);
}

/* ---- launching --------------------------------------------------------------------------------------------------- */

bool tarn__cuda_attention_f32_fits(const tarn__call *call)
{
    return is_f32(call->in[0]) && is_f32(call->in[1]) && is_f32(call->in[2]) && is_f32(call->out[0]) &&
           is_f32(call->out[1]) && call->in[0]->shape[3] <= F32_MAX_DEPTH && !has_softcap(call);
}

/* Grid: a block per ROWS rows of a head. False: the device has too little shared memory. */
template <typename T, int BLOCKS> static bool launch(const tarn__call *call, attention_args &a)
{
    constexpr size_t bytes = f32_forward_bytes<T>;
    a.blocks = (a.rows + T::ROWS - 1) / T::ROWS;
    a.d_windows = 1;
    const int64_t blocks = a.batches * a.heads * a.blocks;
    return launch_large_smem<f32_forward_kernel<T, BLOCKS>, T::SIZE>(call, a, blocks, bytes);
}

/* Tiles for D rounded up: as large as registers and shared memory allow with two blocks per multiprocessor, one from
 * D = 128 on. */
bool tarn__cuda_attention_f32(const tarn__call *call, attention_args *a)
{
    if (a->head_dim <= 32)
        return launch<f32_tile<32, 128, 64, 8, 4>, 2>(call, *a);
    if (a->head_dim <= 64)
        return launch<f32_tile<64, 128, 64, 8, 4>, 2>(call, *a);
    if (a->head_dim <= 96)
        return launch<f32_tile<96, 64, 64, 8, 4>, 2>(call, *a);
    if (a->head_dim <= 128) /* 173 KB of shared memory; the other where the device has less */
        return launch<f32_tile<128, 128, 64, 16, 8>, 1>(call, *a) || launch<f32_tile<128, 64, 32, 8, 4>, 2>(call, *a);
    return launch<f32_tile<256, 64, 32, 16, 8>, 1>(call, *a);
}
