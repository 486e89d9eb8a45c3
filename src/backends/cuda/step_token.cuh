/* step_token.cuh: operands of step_attention.cu, and the token itself: its queries and key turned by its position, key and value as they are stored. */
#ifndef TARN__CUDA_STEP_TOKEN_CUH
#define TARN__CUDA_STEP_TOKEN_CUH

#include "backends/cuda/attention.cuh"
#include "backends/cuda/step.cuh"

#define HEADS 4        /* queries of a block */
#define MOST_SPLITS 64 /* blocks of a head */
#define MOST_DEPTH 256 /* elements of a head */

/* Rows of the cache: (B, KV, room, D) and its scales. */
struct stored {
    char *base;
    int64_t stride[3]; /* in elements */
    float *scale;      /* NULL: none */
    int64_t scale_stride[3];
};

/* Rows of heads (B, heads, D) of the token. */
struct fresh {
    const void *base;
    int64_t stride[2];
};

struct next_args {
    fresh q, k, v;
    stored key, value;
    void *y;
    int64_t y_stride[2];
    tarn_dtype dtype; /* of q, k, v and y */
    const void *begin;
    bool are_long, is_interleaved;
    int64_t begin_stride, reach;
    int heads, group, parts, depth, pairs; /* H, H / KV, blocks that share the group, D, pairs of it that are turned */
    float scale; /* with the logarithm of e to base 2 */
    float *partial; /* (B, H, MOST_SPLITS, D + 2): values, largest, sum */
    int *counters;  /* (B, KV, parts): blocks that have come to their end */
    fault_place fault;
    double frequency[MOST_DEPTH / 2];
};

/* ---- the token itself ------------------------------------------------------------------------------------------------------ */

struct token_space {
    float query[HEADS][MOST_DEPTH], key[MOST_DEPTH], value[MOST_DEPTH];
    float cosine[MOST_DEPTH / 2], sine[MOST_DEPTH / 2];
};

/* Element d of a row, turned by its angle, as a tensor holds it. */
__device__ __forceinline__ float turned(const next_args &a, const token_space &t, const void *base, int64_t row, int d)
{
    float x = load_float(base, a.dtype, row + d);
    if (d >= 2 * a.pairs)
        return x;
    int pair = a.is_interleaved ? d / 2 : d % a.pairs;
    bool is_first = a.is_interleaved ? d % 2 == 0 : d < a.pairs;
    int other = a.is_interleaved ? d ^ 1 : is_first ? d + a.pairs : d - a.pairs;
    float y = load_float(base, a.dtype, row + other) * t.sine[pair];
    return rounded(x * t.cosine[pair] + (is_first ? -y : y), a.dtype);
}

__device__ __forceinline__ void make_angles(const next_args &a, token_space &t, int64_t at)
{
    for (int i = threadIdx.x; i < a.pairs; i += blockDim.x) {
        double sine, cosine;
        sincos((double)at * a.frequency[i], &sine, &cosine);
        t.cosine[i] = (float)cosine;
        t.sine[i] = (float)sine;
    }
}

/* A row of floats as it is stored, which `row` holds from then on; written where `is_writer`. One warp does that. */
template <typename S> __device__ __forceinline__ void store_row(const next_args &a, const stored &to, int64_t batch, int64_t head, int64_t at, float *row, bool is_writer)
{
    S *place = (S *)to.base + batch * to.stride[0] + head * to.stride[1] + at * to.stride[2];
    const int lane = threadIdx.x % WARP;
    if constexpr (sizeof(S) == 1) {
        uint32_t most = 0; /* NaN is the largest of all */
        for (int d = lane; d < a.depth; d += WARP)
            most = max(most, __float_as_uint(row[d]) & 0x7fffffffu);
#pragma unroll
        for (int step = WARP / 2; step > 0; step /= 2)
            most = max(most, __shfl_xor_sync(FULL_WARP, most, step));
        float scale = __fmul_rn(__uint_as_float(most), (float)(1.0 / 127)), nonzero = scale > 0 ? scale : 1;
        for (int d = lane; d < a.depth; d += WARP) {
            float code = fminf(fmaxf(__fdiv_rn(row[d], nonzero), -127), 127);
            uint8_t stored_code = (uint8_t)(int)__fadd_rn(code, 128.5f);
            row[d] = ((float)stored_code - 128) * scale;
            if (is_writer)
                place[d] = stored_code;
        }
        if (is_writer && lane == 0)
            to.scale[batch * to.scale_stride[0] + head * to.scale_stride[1] + at * to.scale_stride[2]] = scale;
    } else {
        for (int d = lane; d < a.depth; d += WARP) {
            S narrowed = narrow<S>(row[d]);
            row[d] = widen(narrowed);
            if (is_writer)
                place[d] = narrowed;
        }
    }
}

/* Queries, and in the block that has the token's own key, key and value, which join the cache. */
template <typename S>
__device__ __forceinline__ void take_token(const next_args &a, token_space &t, int64_t batch, int64_t head, int part, int64_t at, bool is_last)
{
    const int first = (int)head * a.group + part * HEADS, count = min(HEADS, a.group - part * HEADS);
    for (int i = threadIdx.x; i < HEADS * a.depth; i += blockDim.x) {
        int h = i / a.depth, d = i - h * a.depth;
        t.query[h][d] = h < count ? turned(a, t, a.q.base, batch * a.q.stride[0] + (first + h) * a.q.stride[1], d) * a.scale : 0;
    }
    for (int d = threadIdx.x; is_last && d < a.depth; d += blockDim.x) {
        t.key[d] = turned(a, t, a.k.base, batch * a.k.stride[0] + head * a.k.stride[1], d);
        t.value[d] = load_float(a.v.base, a.dtype, batch * a.v.stride[0] + head * a.v.stride[1] + d);
    }
    __syncthreads();
    if (is_last && threadIdx.x < 2 * WARP) {
        bool is_key = threadIdx.x < WARP;
        store_row<S>(a, is_key ? a.key : a.value, batch, head, at, is_key ? t.key : t.value, part == 0);
    }
    __syncthreads();
}

#endif
