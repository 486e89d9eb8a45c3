/* attention.cu: attention forward for every dtype, layout and D, and the choice between it, tensor cores and cuDNN.
 * attention_simt.cuh has the tiles.
 *
 * A block owns SIDE rows of one head. Per tile of keys it computes the scores, updates each row's running max, rescales
 * its sums if that rises, and adds the tile's weighted values, summed separately first: rows of thousands of keys keep
 * their precision. */
#include "backends/cuda/attention/attention_simt.cuh"
#include "backends/cuda/attention/cudnn_attention.h"

/* Online softmax of a tile: scores become exp(score - running max). `rescale` is the factor for the row's earlier
 * sums. */
template <typename C, bool is_capped>
__device__ __forceinline__ void online_softmax(const attention_args &a, C (*score)[tile_of<C>::M], int64_t batch,
                                               int64_t valid, int64_t row, int64_t key, C *row_max, C *sum, C *rescale)
{
    constexpr int M = tile_of<C>::M;
    const C scale = (C)(a.scale * LOG2_E), masked = (C)-CUDART_INF_F;
#pragma unroll
    for (int m = 0; m < M; m++) {
        int64_t keys = row + m < a.rows ? keys_of(a, valid, row + m) : 0,
                start = row + m < a.rows ? start_of(a, batch, row + m) : 0;
        C here = row_max[m], part = 0;
#pragma unroll
        for (int n = 0; n < M; n++) {
            score[m][n] =
                key + n >= start && key + n < keys ? cap_score<C, is_capped>(a, score[m][n], scale).score : masked;
            here = max_of(here, score[m][n]);
        }
#pragma unroll
        for (int step = ACROSS / 2; step > 0; step /= 2)
            here = max_of(here, __shfl_xor_sync(FULL_WARP, here, step));
        C shift = here == masked ? (C)0 : here;
        rescale[m] = exp2_of(row_max[m] - shift);
        row_max[m] = here;
#pragma unroll
        for (int n = 0; n < M; n++) {
            score[m][n] = exp2_of(score[m][n] - shift);
            part += score[m][n];
        }
#pragma unroll
        for (int step = ACROSS / 2; step > 0; step /= 2)
            part += __shfl_xor_sync(FULL_WARP, part, step);
        sum[m] = sum[m] * rescale[m] + part;
    }
}

/* C: compute type; W: columns of D per block. Reads k and v once per block of rows. */
template <typename C, int W, bool is_capped>
static __global__ void __launch_bounds__(THREADS) forward_kernel(const __grid_constant__ attention_args a)
{
    typedef tile_of<C> tile;
    constexpr int M = tile::M, SIDE = tile::SIDE;
    __shared__ alignas(16) C stage[tile::STAGE];
    __shared__ alignas(16) C weights[SIDE * tile::LINE]; /* (keys, rows) */
    __shared__ int64_t space[WARP];
    const int tx = threadIdx.x % ACROSS, ty = threadIdx.x / ACROSS;
    const block_pos at = block_pos_of(a, a.heads, true);
    const head_matrix q = head_of(a.q, at.batch, at.head), k = head_of(a.k, at.batch, at.head / a.group),
                      v = head_of(a.v, at.batch, at.head / a.group);
    const int64_t first = at.block * SIDE, last = (first + SIDE < a.rows ? first + SIDE : a.rows) - 1,
                  row = first + ty * M, column = at.d_window * W;
    const int64_t valid = valid_keys(a, at.batch), keys = keys_of(a, valid, last), head = at.batch * a.heads + at.head;
    if (at.block == 0 && at.head == 0 && threadIdx.x == 0)
        check_length(a, at.batch);
    if (at.head == 0)
        check_starts(a, at.batch, first, last);
    C score[M][M], row_max[M], sum[M], rescale[M], result[M][W / ACROSS] = {};
#pragma unroll
    for (int m = 0; m < M; m++)
        row_max[m] = (C)-CUDART_INF_F, sum[m] = 0;
    for (int64_t key = first_tile_of(a, at.batch, first, last, SIDE, space); key < keys; key += SIDE) {
        gemm_tile_nt(score, stage, q, first, a.rows, k, key, keys, a.head_dim);
        online_softmax<C, is_capped>(a, score, at.batch, valid, row, key + tx * M, row_max, sum, rescale);
#pragma unroll
        for (int m = 0; m < M; m++) {
            const uint32_t mask = a.is_dropping ? keep_mask_from(a, head, row + m, key + tx * M) : 0;
#pragma unroll
            for (int n = 0; n < M; n++)
                weights[(tx * M + n) * tile::LINE + ty * M + m] =
                    a.is_dropping ? score[m][n] * (C)drop_factor(a, mask, n) : score[m][n];
#pragma unroll
            for (int n = 0; n < W / ACROSS; n++)
                result[m][n] *= rescale[m];
        }
        C part[M][W / ACROSS] = {};
        gemm_tile_tn<C, W>(part, weights, stage, v, key, keys, column, a.head_dim);
#pragma unroll
        for (int m = 0; m < M; m++)
#pragma unroll
            for (int n = 0; n < W / ACROSS; n++)
                result[m][n] += part[m][n];
    }
    C factor[M];
#pragma unroll
    for (int m = 0; m < M; m++)
        factor[m] = row + m < a.rows && sum[m] != 0 ? 1 / sum[m] : (C)0; /* no keys, or all scores -infinity: 0 */
    write_rows<C, W>(head_of(a.y, at.batch, at.head), result, factor, first, a.rows, column, a.head_dim);
    const head_matrix lse_head = head_of(a.lse, at.batch, at.head);
#pragma unroll
    for (int m = 0; a.lse.base && tx == 0 && at.d_window == 0 && m < M; m++)
        if (row + m < a.rows)
            store_any(lse_head.base, lse_head.dtype, (row + m) * lse_head.row,
                      sum[m] == 0 ? (C)-CUDART_INF_F : (C)((row_max[m] + log2_of(sum[m])) * (C)LN_2));
}

/* ---- sliding window ---------------------------------------------------------------------------------------------- */

/* A thread per row of a sequence. Reports invalid document starts, which the kernels after it cannot see any more;
 * backward has no fault slot, and reports none. */
static __global__ void __launch_bounds__(THREADS)
    window_starts_kernel(const __grid_constant__ attention_args a, int64_t *to, bool reports)
{
    const int64_t at = (int64_t)blockIdx.x * THREADS + threadIdx.x;
    if (at >= a.batches * a.rows)
        return;
    const int64_t batch = at / a.rows, row = at % a.rows;
    to[at] = max_op::of(start_of(a, batch, row), window_start_of(a, valid_keys(a, batch), row));
    if (!reports || !a.document_starts)
        return;
    const int64_t start =
        index_at(a.document_starts, a.are_starts_i64, batch * a.start_stride[0] + row * a.start_stride[1]);
    if (!is_within_keys(a, start))
        report_fault(a.fault, start, a.keys);
}

/* Grid: 256 rows per block. Bytes: 8 per row, and the document starts. */
void tarn__cuda_attention_window_starts(const tarn__call *call, attention_args *a, size_t offset)
{
    if (a->window == 0)
        return;
    const bool is_forward = !a->g.base;
    int64_t *starts = (int64_t *)((char *)call->scratch + offset);
    window_starts_kernel<<<blocks_for(a->batches * a->rows, THREADS), THREADS, 0, stream_of(call)>>>(*a, starts,
                                                                                                     is_forward);
    a->document_starts = starts;
    a->are_starts_i64 = true;
    a->start_stride[0] = a->rows, a->start_stride[1] = 1;
}

/* ---- launching --------------------------------------------------------------------------------------------------- */

/* Grid: a block per SIDE rows of a head and window of D. Multiply-adds: 2 · rows · keys · D; the first half again for
 * each further window. */
template <typename C, int W, bool is_capped> static void launch(const tarn__call *call, attention_args &a)
{
    a.blocks = (a.rows + tile_of<C>::SIDE - 1) / tile_of<C>::SIDE;
    a.d_windows = (a.head_dim + W - 1) / W;
    forward_kernel<C, W, is_capped>
        <<<blocks_for(a.batches * a.heads * a.blocks * a.d_windows, 1), THREADS, 0, stream_of(call)>>>(a);
}

static void run_simt(const tarn__call *call)
{
    attention_args a = attention_of(call, false);
    if (a.batches == 0 || a.rows == 0)
        return;
    tarn__cuda_attention_window_starts(call, &a, 0);
    if (a.cap > 0) {
        FOR_SIMT(a, launch<C, W, true>(call, a))
    } else {
        FOR_SIMT(a, launch<C, W, false>(call, a))
    }
}

/* SIMT where the device has too little shared memory. */
static void run_mma(const tarn__call *call)
{
    attention_args a = attention_of(call, false);
    if (a.batches == 0 || a.rows == 0)
        return;
    tarn__cuda_attention_window_starts(call, &a, 0);
    if (!tarn__cuda_attention_mma(call, &a))
        run_simt(call);
}

/* The same. */
static void run_f32(const tarn__call *call)
{
    attention_args a = attention_of(call, false);
    if (a.batches == 0 || a.rows == 0)
        return;
    tarn__cuda_attention_window_starts(call, &a, 0);
    if (!tarn__cuda_attention_f32(call, &a))
        run_simt(call);
}

/* The same. */
static void run_tf32(const tarn__call *call)
{
    attention_args a = attention_of(call, false);
    if (a.batches == 0 || a.rows == 0)
        return;
    tarn__cuda_attention_window_starts(call, &a, 0);
    if (!tarn__cuda_attention_tf32(call, &a))
        run_simt(call);
}

void tarn__cuda_attention_native(const tarn__call *call)
{
    if (tarn__cuda_attention_mma_fits(call))
        run_mma(call);
    else
        run_simt(call);
}

/* ---- rows -------------------------------------------------------------------------------------------------------- */

static tarn__plan_status prepare_grad(const tarn__call *call, tarn__plan *plan)
{
    plan->scratch_bytes = tarn__cuda_attention_grad_native_scratch(call);
    return TARN__PLAN_READY;
}

static tarn__plan_status prepare_forward(const tarn__call *call, tarn__plan *plan)
{
    plan->scratch_bytes = window_starts_bytes(call);
    return TARN__PLAN_READY;
}

static tarn__plan_status prepare_f32_grad(const tarn__call *call, tarn__plan *plan)
{
    plan->scratch_bytes = tarn__cuda_attention_f32_grad_scratch(call);
    return TARN__PLAN_READY;
}

/* A kernel's rows: tensor cores, in TF32 for f32 tensors where the caller allows it, f32 tiles, then SIMT for every
 * call. */
struct attention_rows {
    tarn__kernel_row tf32, mma, f32, simt, storage[3];
};

static void add_rows(tarn__kernel_row *rows, tarn__kernel kernel, attention_rows *of)
{
    rows[kernel] = tarn__row_named(of->simt, "simt");
    tarn__push_row(rows, kernel, tarn__row_named(of->f32, "f32"), &of->storage[0]);
    tarn__push_row(rows, kernel, tarn__row_named(of->mma, "mma"), &of->storage[1]);
    tarn__push_row(rows, kernel, tarn__row_named(of->tf32, "tf32"), &of->storage[2]);
}

static attention_rows forward_rows()
{
    const uint32_t f32 = TARN__BIT(TARN_F32);
    return {tarn__row_fits(tarn__row_planned(prepare_forward, run_tf32, f32), tarn__cuda_attention_tf32_fits),
            tarn__row_fits(tarn__row_planned(prepare_forward, run_mma, TARN__FLOATS), tarn__cuda_attention_mma_fits),
            tarn__row_fits(tarn__row_planned(prepare_forward, run_f32, f32), tarn__cuda_attention_f32_fits),
            tarn__row_planned(prepare_forward, run_simt, TARN__FLOATS)};
}

static attention_rows backward_rows()
{
    const uint32_t f32 = TARN__BIT(TARN_F32);
    return {tarn__row_fits(tarn__row_planned(prepare_grad, tarn__cuda_attention_grad_tf32, f32),
                           tarn__cuda_attention_tf32_grad_fits),
            tarn__row_fits(tarn__row_planned(prepare_grad, tarn__cuda_attention_grad_mma, TARN__FLOATS),
                           tarn__cuda_attention_mma_grad_fits),
            tarn__row_fits(tarn__row_planned(prepare_f32_grad, tarn__cuda_attention_grad_f32, f32),
                           tarn__cuda_attention_f32_grad_fits),
            tarn__row_planned(prepare_grad, tarn__cuda_attention_grad_simt, TARN__FLOATS)};
}

/* cuDNN where it supports the call reliably (cudnn_attention.c) and was measured to be faster (cudnn_attention_tune.c),
 * then our own kernels. */
void tarn__cuda_register_attention(tarn__kernel_row *rows)
{
    static attention_rows all[4];
    const tarn__kernel kernels[] = {TARN__K_attention, TARN__K_attention_documents, TARN__K_attention_grad,
                                    TARN__K_attention_documents_grad};
    for (int i = 0; i < 4; i++) {
        all[i] = i < 2 ? forward_rows() : backward_rows();
        add_rows(rows, kernels[i], &all[i]);
    }
    static tarn__kernel_row next;
    const tarn__kernel_row wgmma = tarn__row_fits(
        tarn__row_planned(prepare_grad, tarn__cuda_attention_grad_wgmma, TARN__BIT(TARN_BF16) | TARN__BIT(TARN_F16)),
        tarn__cuda_attention_wgmma_grad_fits);
    tarn__push_row(rows, TARN__K_attention_grad, tarn__row_named(wgmma, "wgmma"), &next);
    tarn__cudnn_attention_push_rows(rows);
}
