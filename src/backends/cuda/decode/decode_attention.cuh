/* decode_attention.cuh: operands of decode_attention.cu, and the token itself: its queries and key turned by its
 * position, key and value as they are stored. */
#ifndef TARN__CUDA_STEP_TOKEN_CUH
#define TARN__CUDA_STEP_TOKEN_CUH

#include "backends/cuda/attention/attention.cuh"
#include "backends/cuda/decode/decode.cuh"
#include "backends/cuda/quant/kv_q8.cuh"

#define NEXT_WARPS 8
#define HEADS 4        /* queries of a block */
#define MOST_SPLITS 64 /* blocks of a head */
#define MOST_DEPTH 256 /* elements of a head */

/* Rows of the cache: (B, KV, room, D) and its scales. */
struct stored {
    char *base;
    int64_t stride[3]; /* in elements */
    f16 *scale;        /* of groups of a row, one behind the other; NULL: none */
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
    float scale;                           /* with the logarithm of e to base 2 */
    float *partial;                        /* (B, H, MOST_SPLITS, D + 2): values, largest, sum */
    int *counters;                         /* (B, KV, parts): blocks that have come to their end */
    fault_place fault;
    double frequency[MOST_DEPTH / 2]; /* in turns a position: what is left of whole ones is small enough for f32 */
};

/* ---- the token itself -------------------------------------------------------------------------------------------- */

/* Room for heads of that many elements. */
template <int ROOM> struct token_space {
    float query[HEADS][ROOM], key[ROOM], value[ROOM];
    float cosine[ROOM / 2], sine[ROOM / 2];
};

/* Each warp reads 64 bytes of frequencies: what a kernel is called with comes slowly at first, and so it comes for all
 * at once. */
template <int ROOM> __device__ __forceinline__ void make_angles(const next_args &a, token_space<ROOM> &t, int64_t at)
{
    const int lane = threadIdx.x % WARP;
    for (int i = threadIdx.x / WARP * 8 + lane; lane < 8 && i < a.pairs; i += NEXT_WARPS * 8) {
        const double turns = (double)at * a.frequency[i];
        sincospif((float)(2 * (turns - rint(turns))), &t.sine[i], &t.cosine[i]);
    }
}

/* A row of floats as codes, whose numbers `row` holds from then on; written where `is_writer`. One warp does that, a
 * group at a time. */
__device__ __forceinline__ void store_codes(const stored &to, int64_t batch, int64_t head, int64_t at, float *row,
                                            int depth, bool is_writer)
{
    uint8_t *place = (uint8_t *)to.base + batch * to.stride[0] + head * to.stride[1] + at * to.stride[2];
    f16 *scales = to.scale + batch * to.scale_stride[0] + head * to.scale_stride[1] + at * to.scale_stride[2];
    const int lane = threadIdx.x % WARP;
    for (int first = 0; first < depth; first += TARN__KV_Q8_GROUP) {
        const int d = first + lane;
        f16 scale;
        const uint8_t code = code_of(d < depth ? row[d] : 0, d < depth, &scale);
        if (d < depth)
            row[d] = (float)((int)code - TARN__KV_Q8_ZERO) * widen(scale);
        if (is_writer && d < depth)
            place[d] = code;
        if (is_writer && lane == 0)
            scales[first / TARN__KV_Q8_GROUP] = scale;
    }
}

/* The token's part in a block: queries, and where the block has the token's own key, key and value, which join the
 * cache. Rows of them are HEADS queries, key and value. A thread has some elements, which are all asked for before the
 * first is used. */
template <typename S, int ROOM> struct token_part {
    enum { threads = NEXT_WARPS * WARP, each = ((HEADS + 2) * ROOM + threads - 1) / threads };
    uint32_t own[each], other[each];

    /* The partner of element d in a turn, and the number of their pair. */
    __device__ __forceinline__ static int partner(const next_args &a, int d, int *pair)
    {
        *pair = a.is_interleaved ? d / 2 : d < a.pairs ? d : d - a.pairs;
        return a.is_interleaved ? d ^ 1 : d < a.pairs ? d + a.pairs : d - a.pairs;
    }
    __device__ __forceinline__ void ask(const next_args &a, int depth, int64_t batch, int64_t head, int part,
                                        bool is_last)
    {
        const int first = (int)head * a.group + part * HEADS, count = min(HEADS, a.group - part * HEADS);
#pragma unroll
        for (int k = 0; k < each; k++) {
            const int i = k * threads + (int)threadIdx.x, row = i / depth, d = i - row * depth;
            const fresh &from = row < HEADS ? a.q : row == HEADS ? a.k : a.v;
            own[k] = other[k] = 0;
            if (row < HEADS ? row >= count : row > HEADS + 1 || !is_last)
                continue;
            const int64_t begin = batch * from.stride[0] + (row < HEADS ? first + row : head) * from.stride[1];
            int pair;
            own[k] = bits_at(from.base, a.dtype, begin + d);
            if (row <= HEADS && d < 2 * a.pairs)
                other[k] = bits_at(from.base, a.dtype, begin + partner(a, d, &pair));
        }
    }
    /* Turned by the angles, as a tensor holds it, and as it is stored. __syncthreads() comes after it. */
    __device__ __forceinline__ void take(const next_args &a, token_space<ROOM> &t, int depth, int64_t batch,
                                         int64_t head, int64_t at, bool is_last, bool is_writer) const
    {
#pragma unroll
        for (int k = 0; k < each; k++) {
            const int i = k * threads + (int)threadIdx.x, row = i / depth, d = i - row * depth;
            if (row > HEADS + 1 || (row >= HEADS && !is_last))
                continue;
            float x = opened(own[k], a.dtype);
            if (row <= HEADS && d < 2 * a.pairs) {
                int pair, with = partner(a, d, &pair);
                float y = opened(other[k], a.dtype) * t.sine[pair];
                x = rounded(x * t.cosine[pair] + (with > d ? -y : y), a.dtype);
            }
            if (row < HEADS) {
                t.query[row][d] = x * a.scale;
                continue;
            }
            const stored &to = row == HEADS ? a.key : a.value;
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
                store_codes(threadIdx.x < WARP ? a.key : a.value, batch, head, at, threadIdx.x < WARP ? t.key : t.value,
                            depth, is_writer);
        }
    }
};

#endif
