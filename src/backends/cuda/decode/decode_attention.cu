/* decode_attention.cu: attention of a decode step: rotates the token's queries and key (RoPE), appends key and value to
 * the KV cache, and attends to the cached keys, all or those of a sliding window, in the cache's own dtype.
 *
 * A block takes some keys of one KV head, and up to HEADS_PER_BLOCK queries (grouped-query attention). A lane has 8
 * elements of a key, a few adjacent lanes a key; they keep running max, sum and values of their own keys. Lanes, warps
 * and blocks are merged in order; the last block to finish merges all blocks (split-K). The split depends on the number
 * of keys alone, not on the cache's capacity, so results do not change with it. */
#include "backends/cuda/decode/decode_attention.cuh"

#define AHEAD 2       /* keys per lane whose loads are in flight */
#define SHORT_HEAD 64 /* elements: up to this head_dim a block has at least 64 keys, one batch of loads; beyond, 32 */

/* ---- keys -------------------------------------------------------------------------------------------------------- */

/* Online softmax state of some lanes: running max, sum, and weighted values of 8 columns. */
struct softmax_state {
    float row_max[HEADS_PER_BLOCK], sum[HEADS_PER_BLOCK], values[HEADS_PER_BLOCK][8];
};

/* Rescale factor from one running max to a larger one; 0 before any key. */
__device__ __forceinline__ float rescale_factor(float row_max, float new_max)
{
    return new_max == -CUDART_INF_F ? 0 : exp2f(row_max - new_max);
}

/* Start of a lane's elements of a block's keys, and of their scales; values have the same layout. */
template <typename S> struct lane_keys {
    int64_t rows, scales;

    __device__ __forceinline__ lane_keys(const decode_args &a, int64_t batch, int64_t head, int64_t first, int d)
    {
        rows = batch * a.key.stride[0] + head * a.key.stride[1] + first * a.key.stride[2] + d;
        scales = sizeof(S) == 1 ? batch * a.key.scale_stride[0] + head * a.key.scale_stride[1] +
                                      first * a.key.scale_stride[2] + d / TARN__KV_Q8_GROUP
                                : 0;
    }
};

/* Keys and values of a lane in flight. */
template <typename S> struct kv_loads {
    vec8<S> key[AHEAD], value[AHEAD];
    uint32_t key_scale[AHEAD], value_scale[AHEAD]; /* bits of f16 */

    /* From key `first` on, `step` apart, before `end`. */
    __device__ __forceinline__ void load(const decode_args &a, const lane_keys<S> &past, int first, int step, int end)
    {
#pragma unroll
        for (int i = 0; i < AHEAD; i++) {
            int64_t at = first + i * step;
            key[i] = vec8<S>{}, value[i] = vec8<S>{};
            key_scale[i] = value_scale[i] = 0;
            if (at >= end)
                continue;
            const int64_t row = (past.rows + at * a.key.stride[2]) * (int64_t)sizeof(S),
                          scale = past.scales + at * a.key.scale_stride[2];
            key[i].load(a.key.base + row);
            value[i].load(a.value.base + row);
            if (sizeof(S) == 1) {
                key_scale[i] = ((const uint16_t *)a.key.scale)[scale];
                value_scale[i] = ((const uint16_t *)a.value.scale)[scale];
            }
        }
    }
};

/* Adds the loaded keys before `end`; key `own` is the token's, taken from shared memory. `lanes` lanes share a key. A
 * `cap` above 0 caps the scores, which are to base 2, like it. */
template <typename S, int MAX_DIM, bool is_limited>
__device__ __forceinline__ void attend(const kv_loads<S> &u, const token_smem<MAX_DIM> &t, const float (*query)[8],
                                       int first, int step, int end, int own, int d, int head_dim, int lanes, float cap,
                                       softmax_state *s)
{
    float score[AHEAD][HEADS_PER_BLOCK], values[AHEAD][8];
#pragma unroll
    for (int i = 0; i < AHEAD; i++) {
        float keys[8];
        u.key[i].unpack(scale_of((uint16_t)u.key_scale[i]), keys);
        u.value[i].unpack(scale_of((uint16_t)u.value_scale[i]), values[i]);
        if (first + i * step == own && d < head_dim) {
#pragma unroll
            for (int e = 0; e < 8; e++)
                keys[e] = t.key[d + e], values[i][e] = t.value[d + e];
        }
#pragma unroll
        for (int h = 0; h < HEADS_PER_BLOCK; h++) {
            float sum = 0;
#pragma unroll
            for (int e = 0; e < 8; e++)
                sum += query[h][e] * keys[e];
            score[i][h] = sum;
        }
    }
#pragma unroll
    for (int width = WARP / 2; width > 0; width /= 2)
        if (width < lanes)
#pragma unroll
            for (int k = 0; k < AHEAD * HEADS_PER_BLOCK; k++)
                score[k / HEADS_PER_BLOCK][k % HEADS_PER_BLOCK] +=
                    __shfl_xor_sync(FULL_WARP, score[k / HEADS_PER_BLOCK][k % HEADS_PER_BLOCK], width);
    if (is_limited && cap > 0) {
#pragma unroll
        for (int k = 0; k < AHEAD * HEADS_PER_BLOCK; k++)
            score[k / HEADS_PER_BLOCK][k % HEADS_PER_BLOCK] =
                cap * tanhf(score[k / HEADS_PER_BLOCK][k % HEADS_PER_BLOCK] / cap);
    }
#pragma unroll
    for (int k = 0; k < AHEAD * HEADS_PER_BLOCK; k++)
        score[k / HEADS_PER_BLOCK][k % HEADS_PER_BLOCK] =
            first + k / HEADS_PER_BLOCK * step < end ? score[k / HEADS_PER_BLOCK][k % HEADS_PER_BLOCK] : -CUDART_INF_F;
#pragma unroll
    for (int h = 0; h < HEADS_PER_BLOCK; h++) {
        float row_max = s->row_max[h], weight[AHEAD];
#pragma unroll
        for (int i = 0; i < AHEAD; i++)
            row_max = fmaxf(row_max, score[i][h]);
        float rescale = rescale_factor(s->row_max[h], row_max);
        s->sum[h] *= rescale;
        s->row_max[h] = row_max;
#pragma unroll
        for (int i = 0; i < AHEAD; i++) {
            weight[i] = score[i][h] == -CUDART_INF_F ? 0 : exp2f(score[i][h] - row_max);
            s->sum[h] += weight[i];
        }
#pragma unroll
        for (int e = 0; e < 8; e++) {
            float value = s->values[h][e] * rescale;
#pragma unroll
            for (int i = 0; i < AHEAD; i++)
                value += weight[i] * values[i][e];
            s->values[h][e] = value;
        }
    }
}

/* Merges the states of a warp's lanes; `lanes` adjacent ones share their keys. */
__device__ __forceinline__ void merge_lanes(softmax_state *s, int lanes)
{
#pragma unroll
    for (int step = 1; step < WARP; step *= 2) {
        if (step < lanes)
            continue;
#pragma unroll
        for (int h = 0; h < HEADS_PER_BLOCK; h++) {
            float other = __shfl_xor_sync(FULL_WARP, s->row_max[h], step), row_max = fmaxf(s->row_max[h], other);
            float mine = rescale_factor(s->row_max[h], row_max), theirs = rescale_factor(other, row_max);
            s->sum[h] = s->sum[h] * mine + __shfl_xor_sync(FULL_WARP, s->sum[h], step) * theirs;
            s->row_max[h] = row_max;
#pragma unroll
            for (int e = 0; e < 8; e++)
                s->values[h][e] = s->values[h][e] * mine + __shfl_xor_sync(FULL_WARP, s->values[h][e], step) * theirs;
        }
    }
}

/* ---- merging ----------------------------------------------------------------------------------------------------- */

/* From memory that other blocks have written, bypassing L1; or from shared memory. */
template <bool is_shared> __device__ __forceinline__ float read(const float *from)
{
    return is_shared ? *from : __ldcg(from);
}

/* Merges element d of `count` partial results, `step` apart, in order; loads are batched. */
template <bool is_shared>
__device__ __forceinline__ float merge_partials(const float *rows, int count, int64_t step, int d, int head_dim,
                                                float *max_out, float *sum_out)
{
    enum { batch = is_shared ? ATTENTION_WARPS : 16 };
    float row_max = -CUDART_INF_F, sum = 0, value = 0;
    for (int start = 0; start < count; start += batch) {
        float maxes[batch], sums[batch], values[batch], new_max = row_max;
#pragma unroll
        for (int i = 0; i < batch; i++) {
            const float *row = rows + (start + i) * step;
            const bool is_there = start + i < count;
            maxes[i] = is_there ? read<is_shared>(row + head_dim) : -CUDART_INF_F;
            sums[i] = is_there ? read<is_shared>(row + head_dim + 1) : 0;
            values[i] = is_there ? read<is_shared>(row + d) : 0;
        }
#pragma unroll
        for (int i = 0; i < batch; i++)
            new_max = fmaxf(new_max, maxes[i]);
        float rescale = rescale_factor(row_max, new_max);
        sum *= rescale, value *= rescale;
#pragma unroll
        for (int i = 0; i < batch; i++) {
            float factor = rescale_factor(maxes[i], new_max);
            sum += sums[i] * factor;
            value += values[i] * factor;
        }
        row_max = new_max;
    }
    *max_out = row_max;
    *sum_out = sum;
    return value;
}

/* One element of y: values / sum. */
__device__ __forceinline__ void write_value(const decode_args &a, int64_t batch, int head, int d, float value,
                                            float sum)
{
    /* all scores -infinity: 0 */
    store_float(a.y, a.dtype, batch * a.y_stride[0] + head * a.y_stride[1] + d, sum == 0 ? 0 : value / sum);
}

/* DEPTH: head_dim if compiled in (64, 128, 256), or 0; is_limited: with a window or a soft cap. Multiply-adds: 2 ·
 * heads · keys · D. Bytes: keys and values, once per block of queries. */
template <typename S, int DEPTH, bool is_limited>
static __global__ void __launch_bounds__(ATTENTION_WARPS *WARP, 2)
    decode_attention_kernel(const __grid_constant__ decode_args a)
{
    enum { max_dim = DEPTH ? DEPTH : MAX_HEAD_DIM };
    __shared__ token_smem<max_dim> token;
    __shared__ float partials[ATTENTION_WARPS][HEADS_PER_BLOCK][max_dim + 2];
    const int head_dim = DEPTH ? DEPTH : a.head_dim;
    const int64_t batch = blockIdx.z, head = blockIdx.y / a.parts,
                  at = index_at(a.position, a.is_i64, batch * a.position_stride);
    const int part = blockIdx.y % a.parts, warp = threadIdx.x / WARP, lane = threadIdx.x % WARP;
    int lanes = 1, shift = head_dim <= SHORT_HEAD ? 6 : 5;
    pdl_launch_dependents();
    /* an invalid position must not write the cache */
    if (at < 0 || at >= a.capacity) {
        if (blockIdx.x == 0 && blockIdx.y == 0 && threadIdx.x == 0)
            report_fault(a.fault, at, a.capacity);
        pdl_wait();
        return;
    }
#pragma unroll
    for (int i = 0; i < 5; i++)
        lanes = lanes * 8 < head_dim ? lanes * 2 : lanes;
    /* keys before the window are neither split nor loaded; the token is `past_keys` after the first key */
    const int64_t begin = is_limited && a.window > 0 && at >= a.window ? at + 1 - a.window : 0, past_keys = at - begin;
    /* more keys per block for long caches */
    while (past_keys >> shift >= MAX_SPLITS)
        shift++;
    const int splits = (int)(past_keys >> shift) + 1, d = lane % lanes * 8, step = ATTENTION_WARPS * (WARP / lanes);
    if ((int)blockIdx.x >= splits)
        return;
    const bool is_last = (int)blockIdx.x == splits - 1;
    const int64_t first = begin + ((int64_t)blockIdx.x << shift);
    const int end = (int)min((int64_t)1 << shift, at + 1 - first), own = is_last ? end - 1 : -1,
              cached = d >= head_dim ? 0
                       : is_last     ? end - 1
                                     : end;
    const lane_keys<S> past(a, batch, head, first, d);
    int key = warp * (WARP / lanes) + lane / lanes; /* the lane's next key */
    kv_loads<S> ahead;
    ahead.load(a, past, key, step, cached);
    /* before the wait: depends on the position only */
    make_angles(a, token, at);
    pdl_wait();
    token_loader<S, max_dim> mine;
    mine.load(a, head_dim, batch, head, part, is_last);
    __syncthreads();
    mine.rotate_and_store(a, token, head_dim, batch, head, at, is_last, part == 0);
    __syncthreads();
    float query[HEADS_PER_BLOCK][8];
    softmax_state s;
#pragma unroll
    for (int h = 0; h < HEADS_PER_BLOCK; h++) {
        s.row_max[h] = -CUDART_INF_F, s.sum[h] = 0;
#pragma unroll
        for (int e = 0; e < 8; e++) {
            query[h][e] = d < head_dim ? token.query[h][d + e] : 0;
            s.values[h][e] = 0;
        }
    }
    for (int base = 0; base < end; base += AHEAD * step, key += AHEAD * step) {
        attend<S, max_dim, is_limited>(ahead, token, query, key, step, end, own, d, head_dim, lanes, a.cap, &s);
        ahead.load(a, past, key + AHEAD * step, step, cached);
    }
    merge_lanes(&s, lanes);
    if (lane < lanes && d < head_dim)
#pragma unroll
        for (int h = 0; h < HEADS_PER_BLOCK; h++) {
#pragma unroll
            for (int e = 0; e < 8; e++)
                partials[warp][h][d + e] = s.values[h][e];
            partials[warp][h][head_dim] = s.row_max[h], partials[warp][h][head_dim + 1] = s.sum[h];
        }
    __syncthreads();
    const int queries = min(HEADS_PER_BLOCK, a.group - part * HEADS_PER_BLOCK),
              head_0 = (int)head * a.group + part * HEADS_PER_BLOCK;
    float row_max, sum;
    for (int i = threadIdx.x; i < queries * head_dim; i += ATTENTION_WARPS * WARP) {
        int h = i / head_dim, e = i - h * head_dim;
        float value = merge_partials<true>(&partials[0][h][0], ATTENTION_WARPS, HEADS_PER_BLOCK * (max_dim + 2), e,
                                           head_dim, &row_max, &sum);
        if (splits == 1) {
            write_value(a, batch, head_0 + h, e, value, sum);
            continue;
        }
        float *to = a.partial + ((batch * a.heads + head_0 + h) * MAX_SPLITS + blockIdx.x) * (head_dim + 2);
        to[e] = value;
        if (e == 0)
            to[head_dim] = row_max, to[head_dim + 1] = sum;
    }
    /* the last block merges all splits */
    if (splits == 1 || !is_last_block(&a.counters[batch * gridDim.y + blockIdx.y], splits))
        return;
    for (int i = threadIdx.x; i < queries * head_dim; i += ATTENTION_WARPS * WARP) {
        int h = i / head_dim, e = i - h * head_dim;
        const float *from = a.partial + (batch * a.heads + head_0 + h) * MAX_SPLITS * (head_dim + 2);
        float value = merge_partials<false>(from, splits, head_dim + 2, e, head_dim, &row_max, &sum);
        write_value(a, batch, head_0 + h, e, value, sum);
    }
}

/* ---- launching --------------------------------------------------------------------------------------------------- */

/* (B, 1, heads, D): the token axis has size 1. */
static token_rows token_rows_of(const tarn__view *view)
{
    return token_rows{tarn__view_at(view), {view->stride[0], view->stride[2]}};
}

/* `scale` is NULL for a float cache. */
static cache_rows cache_rows_of(const tarn__view *rows, const tarn__view *scale)
{
    cache_rows s = {};
    s.base = (char *)tarn__view_at(rows);
    s.scale = data_of<f16>(scale);
    for (int i = 0; i < 3; i++) {
        s.stride[i] = rows->stride[i];
        s.scale_stride[i] = scale ? scale->stride[i] : 0;
    }
    return s;
}

/* Inputs q, k, v, position; outputs y, keys, values and, for an 8-bit cache, their scales. The cache is updated in
 * place. */
static decode_args args_of(const tarn__call *call)
{
    const tarn__attention_decode *params = (const tarn__attention_decode *)call->params;
    const tarn__view *q = call->in[0], *position = call->in[3], *y = call->out[0], *key = call->out[1];
    decode_args a = {};
    a.q = token_rows_of(q), a.k = token_rows_of(call->in[1]), a.v = token_rows_of(call->in[2]);
    a.key = cache_rows_of(key, call->out[3]), a.value = cache_rows_of(call->out[2], call->out[4]);
    a.y = tarn__view_at(y), a.y_stride[0] = y->stride[0], a.y_stride[1] = y->stride[2], a.dtype = q->dtype;
    a.position = tarn__view_at(position), a.is_i64 = position->dtype == TARN_I64,
    a.position_stride = position->stride[0];
    a.capacity = key->shape[2];
    a.heads = (int)q->shape[2], a.group = (int)(q->shape[2] / key->shape[1]),
    a.parts = (a.group + HEADS_PER_BLOCK - 1) / HEADS_PER_BLOCK, a.head_dim = (int)q->shape[3];
    a.pairs = (int)(params->rope.dims / 2), a.is_interleaved = params->rope.interleaved != 0;
    a.magnitude = (float)params->rope.magnitude;
    a.scale = (float)(params->scale * LOG2_E);
    a.window = params->window, a.cap = (float)(params->softcap * LOG2_E);
    a.partial = (float *)call->scratch;
    a.counters = tarn__cuda_at(call->device)->counters;
    a.fault = faults_of(call);
    for (int i = 0; i < a.pairs; i++)
        a.frequency[i] = params->rope.frequency[i] / (2 * CUDART_PI);
    return a;
}

/* Partial results of all splits, whether they are used or not. */
static tarn__plan_status prepare_attention_decode(const tarn__call *call, tarn__plan *plan)
{
    const int64_t *q = call->in[0]->shape;
    plan->scratch_bytes = (size_t)(q[0] * q[2] * MAX_SPLITS * (q[3] + 2)) * sizeof(float);
    return TARN__PLAN_READY;
}

/* Grid: (splits of the keys, KV heads · blocks of their queries, sequences); 256 threads. Sized for the cache's
 * capacity, since a graph is captured once: blocks beyond the current length return. */
template <typename S> static void launch(const tarn__call *call, const decode_args &a)
{
    const int64_t keys = a.window > 0 && a.window < a.capacity ? a.window : a.capacity;
    unsigned splits = blocks_for(keys, a.head_dim <= SHORT_HEAD ? 64 : 32);
    void (*kernel)(decode_args) = a.head_dim == 64    ? decode_attention_kernel<S, 64, false>
                                  : a.head_dim == 128 ? decode_attention_kernel<S, 128, false>
                                                      : decode_attention_kernel<S, 0, false>;
    if (a.window > 0 || a.cap > 0)
        kernel = a.head_dim == 128   ? decode_attention_kernel<S, 128, true>
                 : a.head_dim == 256 ? decode_attention_kernel<S, 256, true>
                                     : decode_attention_kernel<S, 0, true>;
    launch_decode(call, kernel,
                  dim3(splits < MAX_SPLITS ? splits : MAX_SPLITS, (unsigned)(a.heads / a.group * a.parts),
                       (unsigned)call->in[0]->shape[0]),
                  ATTENTION_WARPS * WARP, 0, a);
}

/* Dispatches on the cache's dtype; u8 is the quantized cache. */
static void kernel_attention_decode(const tarn__call *call)
{
    if (tarn__view_count(call->in[0]) == 0)
        return;
    decode_args a = args_of(call);
    switch (call->out[1]->dtype) {
    case TARN_F32: launch<float>(call, a); break;
    case TARN_BF16: launch<bf16>(call, a); break;
    case TARN_F16: launch<f16>(call, a); break;
    default: launch<uint8_t>(call, a); break;
    }
}

/* q in whole vectors, counters for the heads of all sequences, and caches that can be read by vectors. */
static bool fits(const tarn__call *call)
{
    const tarn__view *q = call->in[0], *keys = call->out[1];
    return q->stride[3] == 1 && q->shape[3] % 8 == 0 && q->shape[3] <= MAX_HEAD_DIM &&
           q->shape[0] * q->shape[2] <= TARN__CUDA_COUNTERS && keys->stride[3] == 1 &&
           (uintptr_t)tarn__view_at(keys) % 16 == 0;
}

/* u8 is the 8-bit cache. */
void tarn__cuda_register_decode_attention(tarn__kernel_row *rows)
{
    rows[TARN__K_attention_decode] = tarn__row_fits(
        tarn__row_planned(prepare_attention_decode, kernel_attention_decode,
                          TARN__BIT(TARN_F32) | TARN__BIT(TARN_BF16) | TARN__BIT(TARN_F16) | TARN__BIT(TARN_U8)),
        fits);
}
