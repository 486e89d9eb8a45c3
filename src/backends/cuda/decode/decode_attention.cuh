/* decode_attention.cuh: operands of decode_attention.cu, and the token itself: RoPE of its queries and key, and its key
 * and value appended to the KV cache. */
#ifndef TARN__CUDA_DECODE_ATTENTION_CUH
#define TARN__CUDA_DECODE_ATTENTION_CUH

#include "backends/cuda/attention/attention.cuh"
#include "backends/cuda/decode/decode.cuh"
#include "backends/cuda/quant/kv_q8.cuh"

#define ATTENTION_WARPS 8
#define MAX_HEADS 4      /* query heads per block */
#define MAX_SPLITS 64    /* blocks per KV head */
#define MAX_HEAD_DIM 256 /* elements */

/* The KV cache: (B, KV, capacity, D), and its scales. */
struct cache_rows {
    char *base;
    int64_t stride[3]; /* in elements */
    f16 *scale;        /* per group of a row, contiguous; NULL: not quantized */
    int64_t scale_stride[3];
};

/* Rows (B, heads, D) of the token. */
struct token_rows {
    const void *base;
    int64_t stride[2];
};

/* Kernel arguments; frequencies included, so that a graph captures them. */
struct decode_args {
    token_rows q, k, v;
    cache_rows key, value;
    void *y;
    int64_t y_stride[2];
    tarn_dtype dtype; /* of q, k, v and y */
    const void *position;
    bool is_i64, is_interleaved;
    int64_t position_stride, capacity;
    int heads, group, parts, head_dim, pairs; /* H, H / KV, blocks that share a group, D, rotated pairs */
    int shift;                                /* log2 of the least keys of a block */
    float scale;                              /* softmax scale · log2(e) */
    float magnitude;                          /* factor of cos and sin */
    float *partial;                           /* (B, H, MAX_SPLITS, D + 2): weighted values, max, sum */
    int *counters;                            /* (B, KV, parts): finished blocks */
    fault_slot fault;
    /* in rotations per position: the fraction left after whole ones is small enough for f32 */
    double frequency[MAX_HEAD_DIM / 2];
    int64_t window; /* keys attended to, the token's included; 0: all */
    float cap;      /* soft cap · log2(e); 0: none */
};

/* ---- the token --------------------------------------------------------------------------------------------------- */

/* Shared memory of a block for up to HEADS query heads of up to MAX_DIM elements. */
template <int HEADS, int MAX_DIM> struct token_smem {
    float query[HEADS][MAX_DIM], key[MAX_DIM], value[MAX_DIM];
    float cosine[MAX_DIM / 2], sine[MAX_DIM / 2];
};

/* Each warp reads 64 bytes of frequencies: kernel parameters are slow on first access, so all warps access them at
 * once. */
template <int WARPS>
__device__ __forceinline__ void make_angles(const decode_args &a, float *cosines, float *sines, int64_t at)
{
    const int lane = threadIdx.x % WARP;
    for (int i = threadIdx.x / WARP * 8 + lane; lane < 8 && i < a.pairs; i += WARPS * 8) {
        const double turns = (double)at * a.frequency[i];
        float sine, cosine;
        sincospif((float)(2 * (turns - rint(turns))), &sine, &cosine);
        sines[i] = a.magnitude * sine, cosines[i] = a.magnitude * cosine;
    }
}

/* Quantizes a row in place to what the cache holds; writes it if `is_writer`. One warp, a group at a time. */
__device__ __forceinline__ void store_q8(const cache_rows &to, int64_t batch, int64_t head, int64_t at, float *row,
                                         int head_dim, bool is_writer)
{
    uint8_t *row_bytes = (uint8_t *)to.base + batch * to.stride[0] + head * to.stride[1] + at * to.stride[2];
    f16 *scales = to.scale + batch * to.scale_stride[0] + head * to.scale_stride[1] + at * to.scale_stride[2];
    const int lane = threadIdx.x % WARP;
    for (int first = 0; first < head_dim; first += TARN__KV_Q8_GROUP) {
        const int d = first + lane;
        f16 scale;
        const uint8_t q = quantize_q8(d < head_dim ? row[d] : 0, d < head_dim, &scale);
        if (d < head_dim)
            row[d] = (float)((int)q - TARN__KV_Q8_ZERO) * widen(scale);
        if (is_writer && d < head_dim)
            row_bytes[d] = q;
        if (is_writer && lane == 0)
            scales[first / TARN__KV_Q8_GROUP] = scale;
    }
}

/* The token's part in a block: its queries, and in the block with the token's own key, key and value, which join the
 * cache. Rows are HEADS queries, key and value. All loads of a thread are issued before the first use. */
template <typename S, int HEADS, int MAX_DIM> struct token_loader {
    enum { threads = ATTENTION_WARPS * WARP, each = ((HEADS + 2) * MAX_DIM + threads - 1) / threads };
    uint32_t own[each], other[each];

    /* The element that d is rotated with, and the index of their pair. */
    __device__ __forceinline__ static int partner(const decode_args &a, int d, int *pair)
    {
        *pair = a.is_interleaved ? d / 2 : d < a.pairs ? d : d - a.pairs;
        return a.is_interleaved ? d ^ 1 : d < a.pairs ? d + a.pairs : d - a.pairs;
    }
    __device__ __forceinline__ void load(const decode_args &a, int head_dim, int64_t batch, int64_t head, int part,
                                         bool is_last)
    {
        const int first = (int)head * a.group + part * HEADS, count = min(HEADS, a.group - part * HEADS);
#pragma unroll
        for (int k = 0; k < each; k++) {
            const int i = k * threads + (int)threadIdx.x, row = i / head_dim, d = i - row * head_dim;
            const token_rows &from = row < HEADS ? a.q : row == HEADS ? a.k : a.v;
            own[k] = other[k] = 0;
            if (row < HEADS ? row >= count : row > HEADS + 1 || !is_last)
                continue;
            const int64_t first_element = batch * from.stride[0] + (row < HEADS ? first + row : head) * from.stride[1];
            int pair;
            own[k] = load_bits(from.base, a.dtype, first_element + d);
            if (row <= HEADS && d < 2 * a.pairs)
                other[k] = load_bits(from.base, a.dtype, first_element + partner(a, d, &pair));
        }
    }
    /* RoPE, rounded as a tensor would be, then as the cache stores it. __syncthreads() must follow. */
    __device__ __forceinline__ void rotate_and_store(const decode_args &a, token_smem<HEADS, MAX_DIM> &t, int head_dim,
                                                     int64_t batch, int64_t head, int64_t at, bool is_last,
                                                     bool is_writer) const
    {
#pragma unroll
        for (int k = 0; k < each; k++) {
            const int i = k * threads + (int)threadIdx.x, row = i / head_dim, d = i - row * head_dim;
            if (row > HEADS + 1 || (row >= HEADS && !is_last))
                continue;
            float x = widen_bits(own[k], a.dtype);
            if (row <= HEADS && d < 2 * a.pairs) {
                int pair, with = partner(a, d, &pair);
                float y = widen_bits(other[k], a.dtype) * t.sine[pair];
                x = round_to(x * t.cosine[pair] + (with > d ? -y : y), a.dtype);
            }
            if (row < HEADS) {
                t.query[row][d] = x * a.scale;
                continue;
            }
            const cache_rows &to = row == HEADS ? a.key : a.value;
            if constexpr (sizeof(S) > 1) {
                S narrowed = narrow<S>(x);
                x = widen(narrowed);
                if (is_writer)
                    ((S *)to.base)[batch * to.stride[0] + head * to.stride[1] + at * to.stride[2] + d] = narrowed;
            }
            (row == HEADS ? t.key : t.value)[d] = x;
        }
        if constexpr (sizeof(S) == 1) {
            if (!is_last)
                return;
            __syncthreads();
            if (threadIdx.x < 2 * WARP)
                store_q8(threadIdx.x < WARP ? a.key : a.value, batch, head, at, threadIdx.x < WARP ? t.key : t.value,
                         head_dim, is_writer);
        }
    }
};

/* ---- launching --------------------------------------------------------------------------------------------------- */

/* (B, 1, heads, D): the token axis has size 1. */
static inline token_rows token_rows_of(const tarn__view *view)
{
    return token_rows{tarn__view_at(view), {view->stride[0], view->stride[2]}};
}

/* `scale` is NULL for a float cache. */
static inline cache_rows cache_rows_of(const tarn__view *rows, const tarn__view *scale)
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
 * place. `parts` is 1, `shift` 0. */
static inline decode_args args_of(const tarn__call *call)
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
    a.heads = (int)q->shape[2], a.group = (int)(q->shape[2] / key->shape[1]), a.parts = 1,
    a.head_dim = (int)q->shape[3];
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

#endif
