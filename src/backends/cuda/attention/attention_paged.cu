/* attention_paged.cu: attention over a paged KV cache, for the rows of many sequences at once.
 *
 * A block takes one row (token), up to QUERIES query heads of one KV head, and one split of SPLIT keys, or all splits
 * one after the other. A lane has 8 elements of a key, a few adjacent lanes a key; they keep running max, sum and
 * values of their own keys. Lanes, then warps, then splits are merged in order.
 *
 * Batch invariance: splits lie at multiples of SPLIT from the sequence's first key, and a key's lane depends on its
 * index in the split. A row's bits depend on its query and its keys alone. Few rows are split over blocks, whose
 * results merge_kernel() joins; many rows are not: join() is the same, so are the bits. */
#include "backends/cuda/attention/attention_paged.cuh"

#define WARPS 4
#define QUERIES 4 /* query heads per block */
#define SPLIT (4 * TARN__KV_PAGE)
#define MAX_DIM 256                    /* elements of a head */
#define MAX_SPLIT_ROWS 64              /* rows up to which splits are blocks */
#define MAX_PARTIAL_BYTES (64ll << 20) /* of their results */

/* Pages (P, TARN__KV_PAGE, KV, D) and their scales; innermost stride 1. */
struct page_rows {
    const char *base;
    int64_t stride[3];     /* in elements */
    const uint16_t *scale; /* bits of f16; NULL: not quantized */
    int64_t scale_stride[3];
};

struct paged_args {
    const void *q;
    void *y;
    int64_t q_stride[2], y_stride[2];
    tarn_dtype dtype; /* of q and y */
    page_rows key, value;
    paged_sequences rows;
    int heads, group, head_dim;
    int parts, splits; /* parts: blocks that share a group; splits: of a full table */
    float scale, cap;  /* · log2(e); cap 0: none */
    float *partial; /* (tokens, H, splits, D + 2): weighted values, max, sum; NULL: a block has all splits of a row */
};

/* ---- online softmax ---------------------------------------------------------------------------------------------- */

/* State of some keys: running max, sum, and weighted values of 8 columns. */
struct softmax_state {
    float row_max[QUERIES], sum[QUERIES], values[QUERIES][8];
};

/* Rescale factor from one running max to a larger one; 0 before any key. */
__device__ __forceinline__ float rescale_factor(float row_max, float new_max)
{
    return new_max == -CUDART_INF_F ? 0 : exp2f(row_max - new_max);
}

/* State (max, sum, value) joined with a later one. Written out, so that every caller rounds alike. */
__device__ __forceinline__ void join(float *row_max, float *sum, float *value, float other_max, float other_sum,
                                     float other_value)
{
    const float new_max = fmaxf(*row_max, other_max), mine = rescale_factor(*row_max, new_max),
                theirs = rescale_factor(other_max, new_max);
    *sum = __fmaf_rn(other_sum, theirs, __fmul_rn(*sum, mine));
    *value = __fmaf_rn(other_value, theirs, __fmul_rn(*value, mine));
    *row_max = new_max;
}

/* 8 elements of a row as floats. */
template <typename S>
__device__ __forceinline__ void load8(const page_rows &p, int64_t row, int64_t scale, int d, float *to)
{
    if constexpr (sizeof(S) == 1) {
        const vec<uint8_t, 8> q = *(const vec<uint8_t, 8> *)(p.base + row + d);
        const float factor = __half2float(__ushort_as_half(p.scale[scale + d / TARN__KV_Q8_GROUP]));
#pragma unroll
        for (int e = 0; e < 8; e++)
            to[e] = __fmul_rn((float)((int)q.at[e] - TARN__KV_Q8_ZERO), factor);
    } else if constexpr (sizeof(S) == 4) {
        const float4 *from = (const float4 *)((const float *)p.base + row + d);
        const float4 low = from[0], high = from[1];
        to[0] = low.x, to[1] = low.y, to[2] = low.z, to[3] = low.w;
        to[4] = high.x, to[5] = high.y, to[6] = high.z, to[7] = high.w;
    } else {
        widen_vec(*(const vec<S, 8> *)((const S *)p.base + row + d), to);
    }
}

/* Adds one key to a lane's state. `lanes` adjacent lanes share it; a lane without a key takes part in the shuffles. */
template <typename S>
__device__ __forceinline__ void add_key(const paged_args &a, int64_t page, int64_t row, int64_t head, bool is_there,
                                        int d, int lanes, const float (*query)[8], softmax_state *s)
{
    float element[8] = {0}, score[QUERIES];
    const bool has_columns = is_there && d < a.head_dim;
    if (has_columns)
        load8<S>(a.key, page * a.key.stride[0] + row * a.key.stride[1] + head * a.key.stride[2],
                 page * a.key.scale_stride[0] + row * a.key.scale_stride[1] + head * a.key.scale_stride[2], d, element);
#pragma unroll
    for (int h = 0; h < QUERIES; h++) {
        score[h] = 0;
#pragma unroll
        for (int e = 0; e < 8; e++)
            score[h] = __fmaf_rn(query[h][e], element[e], score[h]);
#pragma unroll
        for (int width = WARP / 2; width > 0; width /= 2) {
            const float other = __shfl_xor_sync(FULL_WARP, score[h], width);
            score[h] = width < lanes ? __fadd_rn(score[h], other) : score[h];
        }
        score[h] = a.cap > 0 ? a.cap * tanhf(score[h] / a.cap) : score[h];
    }
    if (!is_there)
        return;
    if (has_columns)
        load8<S>(a.value, page * a.value.stride[0] + row * a.value.stride[1] + head * a.value.stride[2],
                 page * a.value.scale_stride[0] + row * a.value.scale_stride[1] + head * a.value.scale_stride[2], d,
                 element);
#pragma unroll
    for (int h = 0; h < QUERIES; h++) {
        const float new_max = fmaxf(s->row_max[h], score[h]), rescale = rescale_factor(s->row_max[h], new_max),
                    weight = score[h] == -CUDART_INF_F ? 0 : exp2f(score[h] - new_max);
        s->row_max[h] = new_max;
        s->sum[h] = __fmaf_rn(s->sum[h], rescale, weight);
#pragma unroll
        for (int e = 0; e < 8; e++)
            s->values[h][e] = __fmaf_rn(weight, element[e], __fmul_rn(s->values[h][e], rescale));
    }
}

/* Merges the states of a warp's lanes; `lanes` adjacent ones share their keys. The first ones have the result. */
__device__ __forceinline__ void merge_lanes(softmax_state *s, int lanes)
{
#pragma unroll
    for (int step = 1; step < WARP; step *= 2) {
        if (step < lanes)
            continue;
#pragma unroll
        for (int h = 0; h < QUERIES; h++) {
            const float other_max = __shfl_down_sync(FULL_WARP, s->row_max[h], step),
                        other_sum = __shfl_down_sync(FULL_WARP, s->sum[h], step);
            float row_max = s->row_max[h], sum = s->sum[h];
#pragma unroll
            for (int e = 0; e < 8; e++) {
                const float other = __shfl_down_sync(FULL_WARP, s->values[h][e], step);
                row_max = s->row_max[h], sum = s->sum[h];
                join(&row_max, &sum, &s->values[h][e], other_max, other_sum, other);
            }
            s->row_max[h] = row_max, s->sum[h] = sum;
        }
    }
}

/* ---- kernels ----------------------------------------------------------------------------------------------------- */

__device__ __forceinline__ float load_query(const paged_args &a, int64_t row, int64_t head, int d)
{
    const int64_t at = row * a.q_stride[0] + head * a.q_stride[1] + d;
    return a.dtype == TARN_F32    ? ((const float *)a.q)[at]
           : a.dtype == TARN_BF16 ? widen(((const bf16 *)a.q)[at])
                                  : widen(((const f16 *)a.q)[at]);
}

/* One element of y: values / sum; 0 without keys, and where all scores are -infinity. */
__device__ __forceinline__ void store_result(const paged_args &a, int64_t row, int64_t head, int d, float value,
                                             float sum)
{
    const int64_t at = row * a.y_stride[0] + head * a.y_stride[1] + d;
    const float y = sum == 0 ? 0 : value / sum;
    if (a.dtype == TARN_F32)
        ((float *)a.y)[at] = y;
    else if (a.dtype == TARN_BF16)
        ((bf16 *)a.y)[at] = narrow<bf16>(y);
    else
        ((f16 *)a.y)[at] = narrow<f16>(y);
}

/* Block (row, KV head and part of its queries, split). S: element of the pages, uint8_t for quantized ones. Bytes: keys
 * and values once per row and part. */
template <typename S>
static __global__ void __launch_bounds__(WARPS *WARP) paged_kernel(const __grid_constant__ paged_args a)
{
    __shared__ float partials[WARPS][QUERIES][MAX_DIM + 2];
    const int64_t row = blockIdx.x, head = blockIdx.y / a.parts;
    const int part = blockIdx.y % a.parts, warp = threadIdx.x / WARP, lane = threadIdx.x % WARP,
              queries = min(QUERIES, a.group - part * QUERIES), head_0 = (int)head * a.group + part * QUERIES;
    const row_keys keys(a.rows, row, blockIdx.y == 0 && blockIdx.z == 0 && threadIdx.x == 0);
    int lanes = 1;
    while (lanes * 8 < a.head_dim)
        lanes *= 2;
    const int d = lane % lanes * 8, step = WARPS * (WARP / lanes), own = warp * (WARP / lanes) + lane / lanes;
    float query[QUERIES][8];
#pragma unroll
    for (int h = 0; h < QUERIES; h++)
#pragma unroll
        for (int e = 0; e < 8; e++)
            query[h][e] = h < queries && d < a.head_dim ? load_query(a, row, head_0 + h, d + e) * a.scale : 0;
    /* elements i, i + threads, … of the block's (query, column) pairs */
    enum { pairs = QUERIES * MAX_DIM / (WARPS * WARP) };
    float row_max[pairs], sum[pairs], value[pairs];
#pragma unroll
    for (int i = 0; i < pairs; i++)
        row_max[i] = -CUDART_INF_F, sum[i] = 0, value[i] = 0;
    const int64_t first_split = a.partial ? blockIdx.z : keys.first / SPLIT,
                  end_split = a.partial ? blockIdx.z + 1 : (keys.end + SPLIT - 1) / SPLIT;
    for (int64_t split = first_split; split < end_split; split++) {
        const int64_t base = split * SPLIT, begin = max(keys.first - base, (int64_t)0),
                      end = min(keys.end - base, (int64_t)SPLIT);
        if (begin >= end)
            continue; /* the same for all threads */
        softmax_state s;
#pragma unroll
        for (int h = 0; h < QUERIES; h++) {
            s.row_max[h] = -CUDART_INF_F, s.sum[h] = 0;
#pragma unroll
            for (int e = 0; e < 8; e++)
                s.values[h][e] = 0;
        }
        for (int start = 0; start < end; start += step) {
            const int key = start + own;
            const int64_t at = base + key, page = key >= begin && key < end ? a.rows.page_of(keys.sequence, at) : -1;
            add_key<S>(a, page, at % TARN__KV_PAGE, head, page >= 0, d, lanes, query, &s);
        }
        merge_lanes(&s, lanes);
        if (lane < lanes && d < a.head_dim)
#pragma unroll
            for (int h = 0; h < QUERIES; h++) {
#pragma unroll
                for (int e = 0; e < 8; e++)
                    partials[warp][h][d + e] = s.values[h][e];
                partials[warp][h][MAX_DIM] = s.row_max[h], partials[warp][h][MAX_DIM + 1] = s.sum[h];
            }
        __syncthreads();
#pragma unroll
        for (int i = 0; i < pairs; i++) {
            const int at = i * WARPS * WARP + (int)threadIdx.x, h = at / a.head_dim, e = at - h * a.head_dim;
            if (h >= queries)
                continue;
            float split_max = -CUDART_INF_F, split_sum = 0, split_value = 0;
#pragma unroll
            for (int w = 0; w < WARPS; w++)
                join(&split_max, &split_sum, &split_value, partials[w][h][MAX_DIM], partials[w][h][MAX_DIM + 1],
                     partials[w][h][e]);
            join(&row_max[i], &sum[i], &value[i], split_max, split_sum, split_value);
        }
        __syncthreads();
    }
#pragma unroll
    for (int i = 0; i < pairs; i++) {
        const int at = i * WARPS * WARP + (int)threadIdx.x, h = at / a.head_dim, e = at - h * a.head_dim;
        if (h >= queries)
            continue;
        if (!a.partial) {
            store_result(a, row, head_0 + h, e, value[i], sum[i]);
            continue;
        }
        float *to = a.partial + ((row * a.heads + head_0 + h) * a.splits + blockIdx.z) * (a.head_dim + 2);
        to[e] = value[i];
        if (e == 0)
            to[a.head_dim] = row_max[i], to[a.head_dim + 1] = sum[i];
    }
}

/* Block (row, query head): joins the splits in order. A split without keys has been written too, with max -infinity;
 * those before and after the row's keys are skipped, as the other form does. */
static __global__ void __launch_bounds__(WARPS *WARP) merge_kernel(const __grid_constant__ paged_args a)
{
    const int64_t row = blockIdx.x, head = blockIdx.y;
    const row_keys keys(a.rows, row, false);
    const float *from = a.partial + (row * a.heads + head) * a.splits * (a.head_dim + 2);
    for (int d = threadIdx.x; d < a.head_dim; d += WARPS * WARP) {
        float row_max = -CUDART_INF_F, sum = 0, value = 0;
        for (int64_t split = keys.first / SPLIT; split * SPLIT < keys.end; split++) {
            const float *some = from + split * (a.head_dim + 2);
            join(&row_max, &sum, &value, some[a.head_dim], some[a.head_dim + 1], some[d]);
        }
        store_result(a, row, head, d, value, sum);
    }
}

/* ---- launching --------------------------------------------------------------------------------------------------- */

static page_rows page_rows_of(const tarn__view *rows, const tarn__view *scale)
{
    page_rows p = {};
    p.base = (const char *)tarn__view_at(rows);
    p.scale = data_of<const uint16_t>(scale);
    for (int i = 0; i < 3; i++) {
        p.stride[i] = rows->stride[i];
        p.scale_stride[i] = scale ? scale->stride[i] : 0;
    }
    return p;
}

static int splits_of(const tarn__call *call)
{
    return (int)((call->in[3]->shape[1] * TARN__KV_PAGE + SPLIT - 1) / SPLIT);
}

/* Bytes of partial results; 0: a block has all splits of its row. Never changes a result. */
static size_t partial_bytes(const tarn__call *call)
{
    const tarn__view *q = call->in[0];
    const int64_t splits = splits_of(call), bytes = q->shape[0] * q->shape[1] * splits * (q->shape[2] + 2) * 4;
    return splits > 1 && splits <= 65535 && q->shape[0] <= MAX_SPLIT_ROWS && bytes <= MAX_PARTIAL_BYTES ? (size_t)bytes
                                                                                                        : 0;
}

/* Whole vectors of 8 elements in every row. */
static bool has_vectors(const tarn__view *pages)
{
    const int64_t bytes = (int64_t)tarn__dtype_bytes(pages->dtype) * 8;
    return pages->stride[3] == 1 && pages->stride[0] % 8 == 0 && pages->stride[1] % 8 == 0 &&
           pages->stride[2] % 8 == 0 && (uintptr_t)tarn__view_at(pages) % (uintptr_t)(bytes > 16 ? 16 : bytes) == 0;
}

static bool fits(const tarn__call *call)
{
    const tarn__view *q = call->in[0], *k = call->in[1], *v = call->in[2];
    return q->dtype != TARN_F64 && k->dtype != TARN_F64 && q->shape[2] % 8 == 0 && q->shape[2] <= MAX_DIM &&
           q->stride[2] == 1 && has_vectors(k) && has_vectors(v) && (!call->in[6] || call->in[6]->stride[3] == 1) &&
           (!call->in[7] || call->in[7]->stride[3] == 1) && q->shape[1] <= 65535;
}

static tarn__plan_status prepare(const tarn__call *call, tarn__plan *plan)
{
    plan->scratch_bytes = partial_bytes(call);
    return TARN__PLAN_READY;
}

/* Inputs q, k, v, table, row starts, lengths, scales of k and of v. Grid: rows, KV heads times parts, splits. */
static void kernel_attention_paged(const tarn__call *call)
{
    const tarn__attention *params = (const tarn__attention *)call->params;
    const tarn__view *q = call->in[0], *k = call->in[1], *y = call->out[0];
    if (tarn__view_count(q) == 0)
        return;
    const double log2e = 1.4426950408889634;
    paged_args a = {};
    a.q = tarn__view_at(q), a.y = tarn__view_at(y), a.dtype = q->dtype;
    for (int i = 0; i < 2; i++)
        a.q_stride[i] = q->stride[i], a.y_stride[i] = y->stride[i];
    a.key = page_rows_of(k, call->in[6]), a.value = page_rows_of(call->in[2], call->in[7]);
    a.rows = paged_sequences_of(call);
    a.heads = (int)q->shape[1];
    a.group = (int)(q->shape[1] / k->shape[2]), a.parts = (a.group + QUERIES - 1) / QUERIES;
    a.head_dim = (int)q->shape[2], a.splits = splits_of(call);
    a.scale = (float)(params->scale * log2e), a.cap = (float)(params->softcap * log2e);
    a.partial = partial_bytes(call) > 0 ? (float *)call->scratch : NULL;
    const dim3 grid((unsigned)q->shape[0], (unsigned)(k->shape[2] * a.parts), a.partial ? (unsigned)a.splits : 1);
    switch (k->dtype) {
    case TARN_F32: paged_kernel<float><<<grid, WARPS * WARP, 0, stream_of(call)>>>(a); break;
    case TARN_BF16: paged_kernel<bf16><<<grid, WARPS * WARP, 0, stream_of(call)>>>(a); break;
    case TARN_F16: paged_kernel<f16><<<grid, WARPS * WARP, 0, stream_of(call)>>>(a); break;
    default: paged_kernel<uint8_t><<<grid, WARPS * WARP, 0, stream_of(call)>>>(a); break;
    }
    if (a.partial)
        merge_kernel<<<dim3((unsigned)q->shape[0], (unsigned)a.heads), WARPS * WARP, 0, stream_of(call)>>>(a);
}

/* Ahead of the row of attention_paged_plain.cu. */
void tarn__cuda_register_attention_paged(tarn__kernel_row *rows)
{
    static tarn__kernel_row plain;
    const tarn__kernel_row row = tarn__row_planned(prepare, kernel_attention_paged, TARN__FLOATS | TARN__BIT(TARN_U8));
    tarn__push_row(rows, TARN__K_attention_paged, tarn__row_fits(tarn__row_named(row, "vectors"), fits), &plain);
}
