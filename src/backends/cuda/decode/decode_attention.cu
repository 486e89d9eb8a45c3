/* decode_attention.cu: attention of a decode step: rotates the token's queries and key (RoPE), appends key and value to
 * the KV cache, and attends to the cached keys, all or those of a sliding window, in the cache's own dtype.
 *
 * A block takes some keys of one KV head, and up to MAX_HEADS queries (grouped-query attention). A lane has 8
 * elements of a key, a few adjacent lanes a key; they keep running max, sum and values of their own keys. Lanes, warps
 * and blocks are merged in order; the last block to finish merges all blocks (split-K). The split depends on the
 * numbers of keys and KV heads alone, not on the cache's capacity, so results do not change with it. */
#include "backends/cuda/decode/decode_attention_grouped.h"
#include "backends/cuda/decode/decode_attention_merge.cuh"

#define SHORT_HEAD 64 /* elements: up to this head_dim a block has at least 64 keys, one batch of loads; beyond, 32 */
#define MANY_HEADS 16 /* KV heads from which a block has twice as many keys, or four times from twice as many */

/* Keys per lane whose loads are in flight: as many as the registers of a block's query heads leave space for. */
template <int HEADS> static __device__ __forceinline__ constexpr int keys_ahead(void)
{
    return HEADS == 1 ? 4 : 2;
}

/* log2 of the least keys of a block; `heads` is the number of a sequence's blocks for a split: with more of them, fewer
 * splits occupy the device. */
static inline int least_shift(int head_dim, int heads)
{
    return (head_dim <= SHORT_HEAD ? 6 : 5) + (heads >= MANY_HEADS) + (heads >= 2 * MANY_HEADS);
}

/* ---- keys -------------------------------------------------------------------------------------------------------- */

/* Online softmax state of some lanes: running max, sum, and weighted values of 8 columns. */
template <int HEADS> struct softmax_state {
    float row_max[HEADS], sum[HEADS], values[HEADS][8];
};

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
template <typename S, int AHEAD> struct kv_loads {
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
template <typename S, int HEADS, int AHEAD, int MAX_DIM, bool is_limited>
__device__ __forceinline__ void attend(const kv_loads<S, AHEAD> &u, const token_smem<HEADS, MAX_DIM> &t,
                                       const float (*query)[8], int first, int step, int end, int own, int d,
                                       int head_dim, int lanes, float cap, softmax_state<HEADS> *s)
{
    float score[AHEAD][HEADS], values[AHEAD][8];
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
        for (int h = 0; h < HEADS; h++) {
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
            for (int k = 0; k < AHEAD * HEADS; k++)
                score[k / HEADS][k % HEADS] += __shfl_xor_sync(FULL_WARP, score[k / HEADS][k % HEADS], width);
    if (is_limited && cap > 0) {
#pragma unroll
        for (int k = 0; k < AHEAD * HEADS; k++)
            score[k / HEADS][k % HEADS] = cap * tanhf(score[k / HEADS][k % HEADS] / cap);
    }
#pragma unroll
    for (int k = 0; k < AHEAD * HEADS; k++)
        score[k / HEADS][k % HEADS] = first + k / HEADS * step < end ? score[k / HEADS][k % HEADS] : -CUDART_INF_F;
#pragma unroll
    for (int h = 0; h < HEADS; h++) {
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
template <int HEADS> __device__ __forceinline__ void merge_lanes(softmax_state<HEADS> *s, int lanes)
{
#pragma unroll
    for (int step = 1; step < WARP; step *= 2) {
        if (step < lanes)
            continue;
#pragma unroll
        for (int h = 0; h < HEADS; h++) {
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

/* Partial results whose loads are in flight together: a round trip costs more than all else. Blocks of many query heads
 * have fewer registers, and code that runs once costs its fetch. */
template <int HEADS> static __device__ __forceinline__ constexpr int merge_loads(void)
{
    return HEADS <= 2 ? 2 * MERGE_BATCH : MERGE_BATCH;
}

/* Elements d and d + 1 of adjacent partial results, from `rows` on; L1 is bypassed, because other blocks wrote them. */
template <int LOADS> struct split_values {
    float2 value[LOADS];

    __device__ __forceinline__ void load(const float *rows, int start, int count, int d, int head_dim)
    {
#pragma unroll
        for (int i = 0; i < LOADS; i++)
            value[i] = start + i < count ? __ldcg((const float2 *)(rows + (start + i) * (head_dim + 2) + d))
                                         : make_float2(0, 0);
    }
    /* Merges those of splits `start` and on; `heads` has the max and the sum of each split. */
    __device__ __forceinline__ void merge(merged<2> &m, const float2 *heads, int start, int count) const
    {
#pragma unroll
        for (int first = 0; first < LOADS; first += MERGE_BATCH)
            if (start + first < count)
                m.add<MERGE_BATCH>(
                    [&](int i) {
                        const int at = start + first + i;
                        return at < count ? heads[at] : make_float2(-CUDART_INF_F, 0);
                    },
                    [&](int i, int e) { return e ? value[first + i].y : value[first + i].x; });
    }
};

/* Merges all splits of a block's queries, whose partial results begin at `rows`. `heads` is shared memory for the max
 * and the sum of each split of each query. */
template <int HEADS>
__device__ __forceinline__ void merge_blocks(const decode_args &a, const float *rows, float2 *heads, int64_t batch,
                                             int head_0, int queries, int splits, int head_dim)
{
    static_assert(MAX_HEADS * MAX_SPLITS <= ATTENTION_WARPS * WARP, "a thread loads at most one max and sum");
    const int total = queries * head_dim, across = MAX_SPLITS * (head_dim + 2), mine = (int)threadIdx.x;
    int i = mine * 2, h = i / head_dim, e = i - h * head_dim;
    enum { loads = merge_loads<HEADS>() };
    split_values<loads> loaded;
    float2 head = {};
    if (mine < queries * splits)
        head = __ldcg((const float2 *)(rows + mine / splits * across + mine % splits * (head_dim + 2) + head_dim));
    if (i < total)
        loaded.load(rows + h * across, 0, splits, e, head_dim);
    if (mine < queries * splits)
        heads[mine] = head;
    __syncthreads();
    for (bool is_first = true; i < total; is_first = false) {
        merged<2> m;
        for (int start = 0; start < splits; start += loads) {
            if (!is_first || start > 0)
                loaded.load(rows + h * across, start, splits, e, head_dim);
            loaded.merge(m, heads + h * splits, start, splits);
        }
        write_value(a, batch, head_0 + h, e, m.value[0], m.sum);
        write_value(a, batch, head_0 + h, e + 1, m.value[1], m.sum);
        i += 2 * ATTENTION_WARPS * WARP, h = i / head_dim, e = i - h * head_dim;
    }
}

/* HEADS: query heads at most; DEPTH: head_dim if compiled in, or 0; is_limited: there may be a window or a soft cap.
 * Multiply-adds: 2 · heads · keys · D. Bytes: keys and values, once per block of queries. */
template <typename S, int HEADS, int DEPTH, bool is_limited>
static __global__ void __launch_bounds__(ATTENTION_WARPS *WARP, 2)
    decode_attention_kernel(const __grid_constant__ decode_args a)
{
    enum { max_dim = DEPTH ? DEPTH : MAX_HEAD_DIM, AHEAD = keys_ahead<HEADS>() };
    __shared__ token_smem<HEADS, max_dim> token;
    __shared__ __align__(16) float partials[ATTENTION_WARPS][HEADS][max_dim + 2];
    const int head_dim = DEPTH ? DEPTH : a.head_dim;
    const int64_t batch = blockIdx.z, head = blockIdx.y / a.parts,
                  at = index_at(a.position, a.is_i64, batch * a.position_stride);
    const int part = blockIdx.y % a.parts, warp = threadIdx.x / WARP, lane = threadIdx.x % WARP;
    int lanes = 1, shift = a.shift;
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
    kv_loads<S, AHEAD> ahead;
    ahead.load(a, past, key, step, cached);
    /* before the wait: depends on the position only */
    make_angles<ATTENTION_WARPS>(a, token.cosine, token.sine, at);
    pdl_wait();
    token_loader<S, HEADS, max_dim> mine;
    mine.load(a, head_dim, batch, head, part, is_last);
    __syncthreads();
    mine.rotate_and_store(a, token, head_dim, batch, head, at, is_last, part == 0);
    __syncthreads();
    float query[HEADS][8];
    softmax_state<HEADS> s;
#pragma unroll
    for (int h = 0; h < HEADS; h++) {
        s.row_max[h] = -CUDART_INF_F, s.sum[h] = 0;
#pragma unroll
        for (int e = 0; e < 8; e++) {
            query[h][e] = d < head_dim ? token.query[h][d + e] : 0;
            s.values[h][e] = 0;
        }
    }
    for (int base = 0; base < end; base += AHEAD * step, key += AHEAD * step) {
        attend<S, HEADS, AHEAD, max_dim, is_limited>(ahead, token, query, key, step, end, own, d, head_dim, lanes,
                                                     a.cap, &s);
        ahead.load(a, past, key + AHEAD * step, step, cached);
    }
    merge_lanes(&s, lanes);
    if (lane < lanes && d < head_dim)
#pragma unroll
        for (int h = 0; h < HEADS; h++) {
#pragma unroll
            for (int e = 0; e < 8; e++)
                partials[warp][h][d + e] = s.values[h][e];
            partials[warp][h][head_dim] = s.row_max[h], partials[warp][h][head_dim + 1] = s.sum[h];
        }
    __syncthreads();
    const int queries = min(HEADS, a.group - part * HEADS), head_0 = (int)head * a.group + part * HEADS;
    for (int i = threadIdx.x; i < queries * head_dim; i += ATTENTION_WARPS * WARP) {
        const int h = i / head_dim, e = i - h * head_dim;
        const merged<1> m = merge_warps<ATTENTION_WARPS>(&partials[0][h][0], HEADS * (max_dim + 2), e, head_dim);
        if (splits == 1) {
            write_value(a, batch, head_0 + h, e, m.value[0], m.sum);
            continue;
        }
        float *to = a.partial + ((batch * a.heads + head_0 + h) * MAX_SPLITS + blockIdx.x) * (head_dim + 2);
        to[e] = m.value[0];
        if (e == 0)
            to[head_dim] = m.row_max, to[head_dim + 1] = m.sum;
    }
    /* the last block merges all splits */
    if (splits == 1 || !is_last_block(&a.counters[batch * gridDim.y + blockIdx.y], splits))
        return;
    const float *rows = a.partial + (batch * a.heads + head_0) * MAX_SPLITS * (head_dim + 2);
    if constexpr (HEADS == MAX_HEADS && DEPTH == SHORT_HEAD) {
        for (int i = threadIdx.x; i < queries * head_dim; i += ATTENTION_WARPS * WARP) {
            const int h = i / head_dim, e = i - h * head_dim;
            const merged<1> m = merge_in_batches(rows + h * MAX_SPLITS * (head_dim + 2), splits, e, head_dim);
            write_value(a, batch, head_0 + h, e, m.value[0], m.sum);
        }
    } else {
        merge_blocks<HEADS>(a, rows, (float2 *)partials, batch, head_0, queries, splits, head_dim);
    }
}

/* ---- launching --------------------------------------------------------------------------------------------------- */

/* Partial results of all splits, whether they are used or not. */
static tarn__plan_status prepare_attention_decode(const tarn__call *call, tarn__plan *plan)
{
    const int64_t *q = call->in[0]->shape;
    plan->scratch_bytes = (size_t)(q[0] * q[2] * MAX_SPLITS * (q[3] + 2)) * sizeof(float);
    return TARN__PLAN_READY;
}

/* Blocks of one or two query heads have one form for each head_dim; of more, one for windows and soft caps too. */
template <typename S> static void (*kernel_of(const decode_args &a))(decode_args)
{
    const int dim = a.head_dim;
    if (a.group == 1)
        return dim == 64    ? decode_attention_kernel<S, 1, 64, true>
               : dim == 96  ? decode_attention_kernel<S, 1, 96, true>
               : dim == 128 ? decode_attention_kernel<S, 1, 128, true>
                            : decode_attention_kernel<S, 1, 0, true>;
    if (a.group == 2)
        return dim == 128   ? decode_attention_kernel<S, 2, 128, true>
               : dim == 256 ? decode_attention_kernel<S, 2, 256, true>
                            : decode_attention_kernel<S, 2, 0, true>;
    if (a.window > 0 || a.cap > 0)
        return dim == 128   ? decode_attention_kernel<S, MAX_HEADS, 128, true>
               : dim == 256 ? decode_attention_kernel<S, MAX_HEADS, 256, true>
                            : decode_attention_kernel<S, MAX_HEADS, 0, true>;
    return dim == 64    ? decode_attention_kernel<S, MAX_HEADS, 64, false>
           : dim == 128 ? decode_attention_kernel<S, MAX_HEADS, 128, false>
                        : decode_attention_kernel<S, MAX_HEADS, 0, false>;
}

/* Grid: (splits of the keys, KV heads · blocks of their queries, sequences); 256 threads. Sized for the cache's
 * capacity, since a graph is captured once: blocks beyond the current length return. */
template <typename S> static void launch(const tarn__call *call, const decode_args &a)
{
    const int64_t keys = a.window > 0 && a.window < a.capacity ? a.window : a.capacity;
    const int heads = a.heads / a.group * a.parts;
    const unsigned splits = blocks_for(keys, (int64_t)1 << a.shift);
    launch_decode(call, kernel_of<S>(a),
                  dim3(splits < MAX_SPLITS ? splits : MAX_SPLITS, (unsigned)heads, (unsigned)call->in[0]->shape[0]),
                  ATTENTION_WARPS * WARP, 0, a);
}

/* Dispatches on the cache's dtype; u8 is the quantized cache. */
static void kernel_attention_decode(const tarn__call *call)
{
    if (tarn__view_count(call->in[0]) == 0)
        return;
    decode_args a = args_of(call);
    a.parts = (a.group + MAX_HEADS - 1) / MAX_HEADS;
    a.shift = least_shift(a.head_dim, a.heads / a.group * a.parts);
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
    static tarn__kernel_row split;
    const uint32_t dtypes = TARN__BIT(TARN_F32) | TARN__BIT(TARN_BF16) | TARN__BIT(TARN_F16) | TARN__BIT(TARN_U8);
    rows[TARN__K_attention_decode] = tarn__row_fits(
        tarn__row_named(tarn__row_planned(prepare_attention_decode, kernel_attention_decode, dtypes), "split"), fits);
    const tarn__kernel_row grouped =
        tarn__row_planned(prepare_attention_decode, tarn__cuda_decode_attention_grouped, dtypes);
    tarn__push_row(rows, TARN__K_attention_decode,
                   tarn__row_fits(tarn__row_named(grouped, "grouped"), tarn__cuda_decode_attention_grouped_fits),
                   &split);
}
