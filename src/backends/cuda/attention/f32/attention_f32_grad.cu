/* attention_f32_grad.cu: gradients of f32 attention in registers, without tensor cores. attention_f32.cuh has the
 * tiles, attention_grad.cu the equations.
 *
 * One kernel computes all three gradients with five products per tile, the fewest there are. A block owns every
 * `splits`-th tile of keys of a head, one after the other: gk and gv stay in registers while it walks the rows that
 * attend to the tile. gq is added to a copy of its own, one per split: each of its elements has one thread that adds to
 * it, in an order fixed by the shape. Then the copies are summed.
 *
 * Multiply-adds: 5 · rows · keys · D. Bytes: a gq of f32 per split, read and written once per tile of keys; these are
 * in the L2 cache while a head is in work. */
#include "backends/cuda/attention/cudnn_attention.h"
#include "backends/cuda/attention/f32/attention_f32.cuh"

/* Arguments of the kernels: those of all attention kernels, and gq's copies. */
struct f32_grad_args {
    attention_args a;
    float *copies; /* (splits, B, H, T, line) */
    int64_t splits, line;
};

/* ---- delta ------------------------------------------------------------------------------------------------------- */

/* One warp per row: its LSE, to base 2, and delta = Σ g · y, summed in f64: an error of delta is one for all keys of
 * the row, and does not average out. If all scores are -infinity the LSE is 0 instead: weights of 0, not NaN. */
static __global__ void __launch_bounds__(THREADS) f32_delta_kernel(const __grid_constant__ attention_args a)
{
    const int64_t row = (int64_t)blockIdx.x * (THREADS / WARP) + threadIdx.x / WARP;
    if (row >= a.batches * a.heads * a.rows)
        return;
    const int64_t t = row % a.rows, head = row / a.rows % a.heads, batch = row / a.rows / a.heads;
    const head_matrix g = head_of(a.g, batch, head), y = head_of(a.y, batch, head), lse = head_of(a.lse, batch, head);
    const float *left = (const float *)g.base + t * g.row, *right = (const float *)y.base + t * y.row;
    double sum = 0;
    for (int64_t d = threadIdx.x % WARP; d < a.head_dim; d += WARP)
        sum += (double)left[d * g.column] * right[d * y.column];
    sum = warp_reduce<plus>(sum);
    if (threadIdx.x % WARP == 0) {
        const float x = ((const float *)lse.base)[t * lse.row];
        ((float2 *)a.row_stats)[row] = make_float2(x == -CUDART_INF_F ? 0 : (float)(x * LOG2_E), (float)sum);
    }
}

/* ---- one tile ---------------------------------------------------------------------------------------------------- */

/* Where a tile (keys, rows) of weights lies. */
struct grad_tile {
    int64_t batch, head, valid, key, row;
    bool is_full; /* every row sees every key */
};

/* Scores (keys, rows) and dP become weights and dS, both of the thread alone. */
template <typename T>
__device__ __forceinline__ void f32_ds(const attention_args &a, const grad_tile &tile, float (*score)[T::N],
                                       float (*dp)[T::N], const uint8_t *keep)
{
    const int tx = f32_tx<T>(), ty = f32_ty<T>();
    const float scale = (float)(a.scale * LOG2_E);
    const float2 *stats = (const float2 *)a.row_stats + (tile.batch * a.heads + tile.head) * a.rows + tile.row;
#pragma unroll
    for (int n = 0; n < T::N; n++) {
        const int column = tx + T::TX * n;
        const bool is_there = tile.row + column < a.rows;
        const float2 info = is_there ? stats[column] : make_float2(0, 0);
        int start = 0, end = T::ROWS;
        if (!tile.is_full) {
            const int64_t t = tile.row + column;
            start = is_there ? tile_position(start_of(a, tile.batch, t), tile.key, T::ROWS) : 0;
            end = is_there ? tile_position(keys_of(a, tile.valid, t), tile.key, T::ROWS) : 0;
        }
#pragma unroll
        for (int m = 0; m < T::M; m++) {
            const int key = ty + T::TY * m;
            float p = exp2_fast(score[m][n] * scale - info.x);
            if (!tile.is_full)
                p = key >= start && key < end ? p : 0.0f;
            const float drop = a.is_dropping ? keep_factor<T::ROWS>(keep, a, column, key) : 1.0f;
            score[m][n] = drop * p;
            dp[m][n] = p == 0 ? 0.0f : p * (drop * dp[m][n] - info.y);
        }
    }
}

/* Adds the thread's part of gq, COLUMNS rows from tile.row on, to the split's copy. */
template <typename T>
__device__ __forceinline__ void add_gq(const f32_grad_args &b, const grad_tile &tile, int64_t split,
                                       float (*sum)[T::VECS * 4])
{
    const attention_args &a = b.a;
    float *to = b.copies + (((split * a.batches + tile.batch) * a.heads + tile.head) * a.rows + tile.row) * b.line;
#pragma unroll
    for (int m = 0; m < T::COLUMNS / T::TY; m++) {
        const int row = 4 * (f32_ty<T>() + T::TY * (m / 4)) + m % 4;
        if (tile.row + row >= a.rows)
            continue;
#pragma unroll
        for (int n = 0; n < T::VECS; n++) {
            const int column = 4 * (f32_tx<T>() + T::TX * n);
            float4 *at = (float4 *)(to + row * b.line + column);
            if (column < b.line) {
                const float4 old = *at;
                const float *x = sum[m] + 4 * n;
                *at = make_float4(old.x + x[0], old.y + x[1], old.z + x[2], old.w + x[3]);
            }
        }
    }
}

/* ---- all tiles of a head ----------------------------------------------------------------------------------------- */

template <typename T>
constexpr size_t
    f32_grad_bytes = (size_t)(2 * (T::ROWS + T::COLUMNS) * T::LINE + T::ROWS * T::PITCH) * sizeof(float) + T::KEEP;

/* gk and gv of one tile of keys, and its part of gq, for the rows of all heads that share the keys. */
template <typename T>
__device__ __forceinline__ void f32_grad_keys(const f32_grad_args &b, int64_t batch, int64_t kv_head, int64_t split,
                                              int64_t key, float *shared, int64_t *space)
{
    const attention_args &a = b.a;
    float *const ks = shared, *const vs = ks + T::ROWS * T::LINE, *const qs = vs + T::ROWS * T::LINE,
                 *const gs = qs + T::COLUMNS * T::LINE, *const weights = gs + T::COLUMNS * T::LINE;
    uint8_t *const keep = (uint8_t *)(weights + T::ROWS * T::PITCH);
    const int64_t valid = valid_keys(a, batch), begin = first_row_of(a, valid, key) / T::COLUMNS * T::COLUMNS,
                  end = end_of_rows(a, batch, begin, key + T::ROWS - 1, space);
    const int64_t tiles = end > begin ? (end - begin + T::COLUMNS - 1) / T::COLUMNS : 0;
    float gk[T::M][T::VECS * 4] = {}, gv[T::M][T::VECS * 4] = {};
    __syncthreads(); /* the tiles of the keys before are not read any more */
    if (tiles > 0) {
        copy_rows<T, T::ROWS>(ks, head_of(a.k, batch, kv_head), key, valid, a.head_dim);
        copy_rows<T, T::ROWS>(vs, head_of(a.v, batch, kv_head), key, valid, a.head_dim);
        copy_rows<T, T::COLUMNS>(qs, head_of(a.q, batch, kv_head * a.group), begin, a.rows, a.head_dim);
        copy_rows<T, T::COLUMNS>(gs, head_of(a.g, batch, kv_head * a.group), begin, a.rows, a.head_dim);
    }
    for (int64_t i = 0; i < tiles * a.group; i++) {
        const int64_t head = kv_head * a.group + i / tiles, row = begin + i % tiles * T::COLUMNS,
                      next_head = kv_head * a.group + (i + 1) / tiles, next = begin + (i + 1) % tiles * T::COLUMNS;
        const bool is_last = i + 1 == tiles * a.group, is_full = !a.document_starts && row + T::COLUMNS <= a.rows &&
                                                                 key + T::ROWS <= keys_of(a, valid, row);
        const grad_tile tile = {batch, head, valid, key, row, is_full};
        if (a.is_dropping)
            draw_keep_bits<T, T::COLUMNS, T::ROWS>(keep, a, batch * a.heads + head, row, key);
        wait_copies();
        __syncthreads();
        {
            float score[T::M][T::N], dp[T::M][T::N];
            f32_gemm_nt<T>(score, ks, qs);
            f32_gemm_nt<T>(dp, vs, gs);
            f32_ds<T>(a, tile, score, dp, keep);
            store_weights<T>(weights, score);
            __syncthreads();
            f32_gemm_nn<T>(gv, weights, gs);
            __syncthreads();
            store_weights<T>(weights, dp);
        }
        if (!is_last)
            copy_rows<T, T::COLUMNS>(gs, head_of(a.g, batch, next_head), next, a.rows, a.head_dim);
        __syncthreads();
        f32_gemm_nn<T>(gk, weights, qs);
        __syncthreads();
        if (!is_last)
            copy_rows<T, T::COLUMNS>(qs, head_of(a.q, batch, next_head), next, a.rows, a.head_dim);
        if (a.gq.base) {
            float part[T::COLUMNS / T::TY][T::VECS * 4];
            f32_gemm_tn<T>(part, weights, ks);
            add_gq<T>(b, tile, split, part);
        }
    }
    float one[T::M], scale[T::M];
#pragma unroll
    for (int m = 0; m < T::M; m++)
        one[m] = 1, scale[m] = (float)a.scale;
    if (a.gv.base)
        write_results<T>(head_of(a.gv, batch, kv_head), gv, one, key, a.keys, a.head_dim);
    if (a.gk.base)
        write_results<T>(head_of(a.gk, batch, kv_head), gk, scale, key, a.keys, a.head_dim);
}

/* Blocks of one split follow each other; with a causal mask the first split has the most work. */
template <typename T, int BLOCKS>
static __global__ void __launch_bounds__(T::SIZE, BLOCKS) f32_grad_kernel(const __grid_constant__ f32_grad_args b)
{
    extern __shared__ float4 shared_vectors[];
    __shared__ int64_t space[WARP];
    const int64_t heads = b.a.batches * b.a.kv_heads, split = blockIdx.x / heads, head = blockIdx.x % heads;
    for (int64_t key = split * T::ROWS; key < b.a.keys; key += b.splits * T::ROWS)
        f32_grad_keys<T>(b, head / b.a.kv_heads, head % b.a.kv_heads, split, key, (float *)shared_vectors, space);
}

/* ---- gq ---------------------------------------------------------------------------------------------------------- */

/* A thread per vector of gq: the sum of its copies, in order. */
static __global__ void __launch_bounds__(THREADS) f32_gq_kernel(const __grid_constant__ f32_grad_args b)
{
    const attention_args &a = b.a;
    const int64_t vecs = b.line / 4, all = a.batches * a.heads * a.rows * vecs,
                  at = (int64_t)blockIdx.x * THREADS + threadIdx.x;
    if (at >= all)
        return;
    float4 sum = ((const float4 *)b.copies)[at];
    for (int64_t split = 1; split < b.splits; split++) {
        const float4 x = ((const float4 *)b.copies)[split * all + at];
        sum = make_float4(sum.x + x.x, sum.y + x.y, sum.z + x.z, sum.w + x.w);
    }
    const int64_t row = at / vecs, head = row / a.rows;
    const head_matrix to = head_of(a.gq, head / a.heads, head % a.heads);
    write_vector(to, is_of_vectors(to, a.head_dim), row % a.rows, (int)(at % vecs * 4), &sum.x, (float)a.scale,
                 a.head_dim);
}

/* ---- launching --------------------------------------------------------------------------------------------------- */

/* Blocks that a call is divided into, if it has the keys: a few for each multiprocessor of a large device. The count
 * does not depend on the device, so that sums do not. The most copies of gq: memory is linear in the rows. And the most
 * bytes of those beyond the first. */
#define TARGET_BLOCKS 768
#define MAX_SPLITS 16
#define MAX_COPY_BYTES ((int64_t)256 << 20)
#define LEAST_KEYS 128 /* of a split */

static int64_t line_of_gq(const tarn__call *call)
{
    return (call->in[0]->shape[3] + 3) / 4 * 4;
}

/* Bytes of one copy of gq. */
static int64_t copy_bytes(const tarn__call *call)
{
    const int64_t *q = call->in[0]->shape;
    return q[0] * q[1] * q[2] * line_of_gq(call) * (int64_t)sizeof(float);
}

static int64_t splits_of(const tarn__call *call)
{
    const int64_t *k = call->in[1]->shape, heads = k[0] * k[1], bytes = copy_bytes(call),
                  tiles = (k[2] + LEAST_KEYS - 1) / LEAST_KEYS, allowed = 1 + (bytes > 0 ? MAX_COPY_BYTES / bytes : 0);
    int64_t splits = heads > 0 ? (TARGET_BLOCKS + heads - 1) / heads : 1;
    splits = splits < tiles ? splits : tiles;
    splits = splits < allowed ? splits : allowed;
    splits = splits < MAX_SPLITS ? splits : MAX_SPLITS;
    return splits > 1 ? splits : 1;
}

bool tarn__cuda_attention_f32_grad_fits(const tarn__call *call)
{
    bool fits = call->in[0]->shape[3] <= F32_MAX_DEPTH && !has_softcap(call);
    for (int i = 0; i < 7; i++)
        fits = fits && (i == 3 || is_f32(call->in[i])); /* 3: lengths */
    for (int i = 0; i < 3; i++)
        fits = fits && is_f32(call->out[i]);
    return fits;
}

size_t tarn__cuda_attention_f32_grad_scratch(const tarn__call *call)
{
    const size_t before = tarn__cuda_align(tarn__cuda_attention_grad_native_scratch(call));
    return before + (call->out[0] ? (size_t)(splits_of(call) * copy_bytes(call)) : 0);
}

/* Grid: a block per split of a head of k. False: the device has too little shared memory. */
template <typename T, int BLOCKS> static bool launch(const tarn__call *call, const f32_grad_args &b)
{
    constexpr size_t bytes = f32_grad_bytes<T>;
    const int64_t blocks = b.a.batches * b.a.kv_heads * b.splits;
    return launch_large_smem<f32_grad_kernel<T, BLOCKS>, T::SIZE>(call, b, blocks, bytes);
}

/* Tiles for D rounded up. 96 of its own were measured to be slower than 128 (11.8 and 10.2 ms): four warps of 255
 * registers on a multiprocessor, not eight. */
static bool launch_any(const tarn__call *call, const f32_grad_args &b)
{
    if (b.a.head_dim <= 32)
        return launch<f32_tile<32, 64, 64, 8, 4>, 2>(call, b);
    if (b.a.head_dim <= 64)
        return launch<f32_tile<64, 128, 64, 16, 8>, 1>(call, b);
    return b.a.head_dim <= 128 ? launch<f32_tile<128, 64, 64, 16, 8>, 1>(call, b)
                               : launch<f32_tile<256, 32, 32, 16, 4>, 1>(call, b);
}

bool tarn__cuda_attention_f32_grad(const tarn__call *call, const attention_args *a)
{
    const size_t before = tarn__cuda_align(tarn__cuda_attention_grad_native_scratch(call));
    f32_grad_args b = {*a, (float *)((char *)call->scratch + before), splits_of(call), line_of_gq(call)};
    const int64_t rows = a->batches * a->heads * a->rows;
    const bool has_gq = a->gq.base && rows > 0;
    if (has_gq && !tarn__cuda_good(cudaMemsetAsync(b.copies, 0, (size_t)(b.splits * copy_bytes(call)), stream_of(call)),
                                   "memset"))
        tarn__cuda_set_failed(call->device);
    if (rows > 0)
        f32_delta_kernel<<<blocks_for(rows, THREADS / WARP), THREADS, 0, stream_of(call)>>>(*a);
    if (!launch_any(call, b))
        return false;
    if (has_gq)
        f32_gq_kernel<<<blocks_for(rows * (b.line / 4), THREADS), THREADS, 0, stream_of(call)>>>(b);
    return true;
}
