/* decode_attention_merge.cuh: merges partial results of attention of one token: those of a block's warps, and of all
 * splits of the keys. */
#ifndef TARN__CUDA_DECODE_ATTENTION_MERGE_CUH
#define TARN__CUDA_DECODE_ATTENTION_MERGE_CUH

#include "backends/cuda/decode/decode_attention.cuh"

/* Rescale factor from one running max to a larger one; 0 before any key. */
__device__ __forceinline__ float rescale_factor(float row_max, float new_max)
{
    return new_max == -CUDART_INF_F ? 0 : exp2f(row_max - new_max);
}

/* Adjacent elements of one column, from several partial results: those of the block's warps or of all splits. */
template <int N> struct merged {
    float row_max, sum, value[N];

    __device__ __forceinline__ merged(void) : row_max(-INFINITY), sum(0), value{}
    {
    }
    /* Adds a batch in order; get(i) is the max and the sum of partial result i, at(i) its elements. */
    template <int COUNT, typename G, typename V> __device__ __forceinline__ void add(G get, V at)
    {
        float new_max = row_max;
#pragma unroll
        for (int i = 0; i < COUNT; i++)
            new_max = fmaxf(new_max, get(i).x);
        float rescale = rescale_factor(row_max, new_max);
        sum *= rescale;
#pragma unroll
        for (int e = 0; e < N; e++)
            value[e] *= rescale;
#pragma unroll
        for (int i = 0; i < COUNT; i++) {
            const float2 here = get(i);
            const float factor = rescale_factor(here.x, new_max);
            sum += here.y * factor;
#pragma unroll
            for (int e = 0; e < N; e++)
                value[e] += at(i, e) * factor;
        }
        row_max = new_max;
    }
};

/* Merges element d of the warps' partial results, `step` apart in shared memory. */
template <int WARPS> __device__ __forceinline__ merged<1> merge_warps(const float *rows, int step, int d, int head_dim)
{
    merged<1> m;
    m.add<WARPS>([&](int i) { return make_float2(rows[i * step + head_dim], rows[i * step + head_dim + 1]); },
                 [&](int i, int) { return rows[i * step + d]; });
    return m;
}

#define MERGE_BATCH 16 /* partial results */

/* Merges element d of `count` partial results in batches, each a round trip. The blocks of short heads do: merging them
 * all at once takes code and registers that cost more than it saves (llama-1b, measured). */
__device__ __forceinline__ merged<1> merge_in_batches(const float *rows, int count, int d, int head_dim)
{
    merged<1> m;
    for (int start = 0; start < count; start += MERGE_BATCH) {
        float2 heads[MERGE_BATCH];
        float values[MERGE_BATCH];
#pragma unroll
        for (int i = 0; i < MERGE_BATCH; i++) {
            const float *row = rows + (start + i) * (head_dim + 2);
            const bool is_there = start + i < count;
            heads[i] = is_there ? __ldcg((const float2 *)(row + head_dim)) : make_float2(-CUDART_INF_F, 0);
            values[i] = is_there ? __ldcg(row + d) : 0;
        }
        m.add<MERGE_BATCH>([&](int i) { return heads[i]; }, [&](int i, int) { return values[i]; });
    }
    return m;
}

/* One element of y: values / sum. */
__device__ __forceinline__ void write_value(const decode_args &a, int64_t batch, int head, int d, float value,
                                            float sum)
{
    /* all scores -infinity: 0 */
    store_float(a.y, a.dtype, batch * a.y_stride[0] + head * a.y_stride[1] + d, sum == 0 ? 0 : value / sum);
}

#endif
