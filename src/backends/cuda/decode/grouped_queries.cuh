/* grouped_queries.cuh: the queries of one token that share a KV head, against its keys, on tensor cores.
 *
 * Keys and values are read once for up to eight queries, from global memory straight into the registers that
 * mma.m16n8k16 reads: no shared memory, no barriers. The sums over D and over keys may run in any fixed order, so lanes
 * load whole vectors. Of the 16 keys of a product lane l has 8 elements of keys l / 4 and l / 4 + 8; of their values it
 * has 8 elements of rows i, i + 1, i + 8 and i + 9, i = 2 (l % 4). Products are keys · queriesᵀ (16, 8) and
 * valuesᵀ · weights (16, 8): queries are columns, those beyond the group are zero.
 *
 * A warp keeps running max, sum and weighted values of its own keys. Weights are rounded to T for the second product;
 * their sum is taken before rounding. */
#ifndef TARN__CUDA_GROUPED_QUERIES_CUH
#define TARN__CUDA_GROUPED_QUERIES_CUH

#include "backends/cuda/common/mma.cuh"

#define MAX_GROUP 8 /* queries: columns of a product */

/* Keys of a warp whose loads are in flight: 64 registers with their values. */
template <int D> static constexpr int keys_in_flight = D <= 64 ? 32 : 16;

/* An (8, 8) matrix of 16-bit elements transposed: lane l has elements 2 (l % 4) and the next of row l / 4. */
__device__ __forceinline__ uint32_t transpose_matrix(uint32_t x)
{
    uint32_t y;
    asm volatile("movmatrix.sync.aligned.m8n8.trans.b16 %0, %1;" : "=r"(y) : "r"(x));
    return y;
}

/* 2^x with a relative error of 2^-22; 0 for results below the normal range. */
__device__ __forceinline__ float exp2_fast(float x)
{
    float y;
    asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
    return y;
}

/* Queries as right operands: elements 32 i + 8 (l % 4) ... of query l / 4. */
template <int D> struct query_columns {
    uint4 at[D / 32];

    /* Rows of `line` elements in shared memory; all MAX_GROUP of them are there. */
    template <typename T> __device__ __forceinline__ void load(const T *rows, int line)
    {
        const int lane = threadIdx.x % WARP;
#pragma unroll
        for (int i = 0; i < D / 32; i++)
            at[i] = *(const uint4 *)(rows + lane / 4 * line + 32 * i + lane % 4 * 8);
    }
};

/* Rows of keys or values: `line` bytes from one to the next. */
struct kv_lines {
    const char *base;
    int64_t line;
};

/* TILE keys and their values in T. */
template <typename T, int D, int TILE = keys_in_flight<D>> struct kv_tile {
    enum { keys = TILE, steps = TILE / 16 };
    uint4 key[steps][2][D / 32], value[steps][4][D / 64];

    /* Keys, of which `left` are there; others repeat the last one. */
    __device__ __forceinline__ void load_keys(const kv_lines &rows, int left)
    {
        const int lane = threadIdx.x % WARP;
#pragma unroll
        for (int step = 0; step < steps; step++)
#pragma unroll
            for (int half = 0; half < 2; half++) {
                const int row = min(step * 16 + half * 8 + lane / 4, left - 1);
                const uint4 *from = (const uint4 *)(rows.base + row * rows.line) + lane % 4;
#pragma unroll
                for (int i = 0; i < D / 32; i++)
                    key[step][half][i] = from[4 * i];
            }
    }
    /* Values; rows that are not there become 0, since 0 times anything else may be NaN. */
    __device__ __forceinline__ void load_values(const kv_lines &rows, int left)
    {
        if (left >= TILE)
            load_some_values<true>(rows, left);
        else
            load_some_values<false>(rows, left);
    }
    template <bool is_full> __device__ __forceinline__ void load_some_values(const kv_lines &rows, int left)
    {
        const int lane = threadIdx.x % WARP;
#pragma unroll
        for (int step = 0; step < steps; step++)
#pragma unroll
            for (int k = 0; k < 4; k++) {
                const int row = step * 16 + k / 2 * 8 + lane % 4 * 2 + k % 2;
                const uint4 *from = (const uint4 *)(rows.base + row * rows.line) + lane / 4;
#pragma unroll
                for (int i = 0; i < D / 64; i++)
                    value[step][k][i] = is_full || row < left ? from[8 * i] : make_uint4(0, 0, 0, 0);
            }
    }
    /* score (16 keys, 8 queries) of each step. */
    __device__ __forceinline__ void multiply_keys(const query_columns<D> &query, float (*score)[4]) const
    {
#pragma unroll
        for (int step = 0; step < steps; step++) {
            score[step][0] = score[step][1] = score[step][2] = score[step][3] = 0;
#pragma unroll
            for (int i = 0; i < D / 32; i++) {
                const uint4 low = key[step][0][i], high = key[step][1][i], q = query.at[i];
                const uint32_t one[4] = {low.x, high.x, low.y, high.y}, two[4] = {low.z, high.z, low.w, high.w};
                mma<T>(score[step], one, q.x, q.y);
                mma<T>(score[step], two, q.z, q.w);
            }
        }
    }
    /* sum (16 elements, 8 queries), each D / 16 of them, += valuesᵀ · weights of a step. */
    __device__ __forceinline__ void add_values(float (*sum)[4], int step, const float *weights) const
    {
        const uint32_t right0 = transpose_matrix(pack2<T>(weights[0], weights[1])),
                       right1 = transpose_matrix(pack2<T>(weights[2], weights[3]));
#pragma unroll
        for (int i = 0; i < D / 64; i++)
#pragma unroll
            for (int k = 0; k < 4; k++) {
                const uint32_t row[4] = {word(step, 0, i, k), word(step, 1, i, k), word(step, 2, i, k),
                                         word(step, 3, i, k)};
                const uint32_t left[4] = {__byte_perm(row[0], row[1], 0x5410), __byte_perm(row[0], row[1], 0x7632),
                                          __byte_perm(row[2], row[3], 0x5410), __byte_perm(row[2], row[3], 0x7632)};
                mma<T>(sum[i * 4 + k], left, right0, right1);
            }
    }

  private:
    __device__ __forceinline__ uint32_t word(int step, int row, int i, int k) const
    {
        const uint4 &v = value[step][row][i];
        return k == 0 ? v.x : k == 1 ? v.y : k == 2 ? v.z : v.w;
    }
};

/* Online softmax state of a warp: of queries 2 (l % 4) and the next. Running max and weighted values are of all its
 * keys, sums of the lane's. */
template <int D> struct grouped_state {
    float row_max[2], sum[2], values[D / 16][4];

    __device__ __forceinline__ grouped_state(void) : row_max{-INFINITY, -INFINITY}, sum{0, 0}, values{}
    {
    }
    /* Scores of `left` keys to weights, 0 beyond; rescales what there is. `scale` includes log2(e), and
     * so does `cap`, 0: none. */
    template <int STEPS> __device__ __forceinline__ void weigh(float (*score)[4], int left, float scale, float cap)
    {
        const int lane = threadIdx.x % WARP;
#pragma unroll
        for (int i = 0; i < STEPS * 4; i++)
            score[i / 4][i % 4] *= scale;
        if (cap > 0)
#pragma unroll
            for (int i = 0; i < STEPS * 4; i++)
                score[i / 4][i % 4] = cap * tanhf(score[i / 4][i % 4] / cap);
        if (left < STEPS * 16)
#pragma unroll
            for (int i = 0; i < STEPS * 4; i++)
                if (i / 4 * 16 + i % 4 / 2 * 8 + lane / 4 >= left)
                    score[i / 4][i % 4] = -CUDART_INF_F;
        float rescale[2];
#pragma unroll
        for (int q = 0; q < 2; q++) {
            float new_max = row_max[q];
#pragma unroll
            for (int i = q; i < STEPS * 4; i += 2)
                new_max = fmaxf(new_max, score[i / 4][i % 4]);
#pragma unroll
            for (int step = 4; step < WARP; step *= 2)
                new_max = fmaxf(new_max, __shfl_xor_sync(FULL_WARP, new_max, step));
            const float from = new_max == -CUDART_INF_F ? 0 : new_max; /* no key yet: weights are 0 */
            rescale[q] = exp2_fast(row_max[q] - from);
            row_max[q] = new_max, sum[q] *= rescale[q];
#pragma unroll
            for (int i = q; i < STEPS * 4; i += 2) {
                score[i / 4][i % 4] = exp2_fast(score[i / 4][i % 4] - from);
                sum[q] += score[i / 4][i % 4];
            }
        }
#pragma unroll
        for (int i = 0; i < D / 16; i++)
#pragma unroll
            for (int k = 0; k < 4; k++)
                values[i][k] *= rescale[k % 2];
    }
    /* Adds the lanes' sums. */
    __device__ __forceinline__ void finish(void)
    {
#pragma unroll
        for (int q = 0; q < 2; q++)
#pragma unroll
            for (int step = 4; step < WARP; step *= 2)
                sum[q] += __shfl_xor_sync(FULL_WARP, sum[q], step);
    }
    /* Rows of queries: D weighted values, max, sum; `line` elements from one to the next. */
    __device__ __forceinline__ void store(float *rows, int line, int queries) const
    {
        const int lane = threadIdx.x % WARP;
#pragma unroll
        for (int q = 0; q < 2; q++) {
            const int query = lane % 4 * 2 + q;
            if (query >= queries)
                continue;
            float *to = rows + query * line;
#pragma unroll
            for (int i = 0; i < D / 16; i++)
                *(float2 *)(to + i / 4 * 64 + lane / 4 * 8 + i % 4 * 2) = make_float2(values[i][q], values[i][2 + q]);
            if (lane < 4)
                *(float2 *)(to + D) = make_float2(row_max[q], sum[q]);
        }
    }
};

/* Keys and values of a sequence that lie one after another; *_at(row) are those from a row on. */
struct adjacent_rows {
    kv_lines keys, values;

    __device__ __forceinline__ kv_lines keys_at(int row) const
    {
        return kv_lines{keys.base + row * keys.line, keys.line};
    }
    __device__ __forceinline__ kv_lines values_at(int row) const
    {
        return kv_lines{values.base + row * values.line, values.line};
    }
};

/* Attends to the warp's tiles of `count` keys, `step` tiles apart, from tile `first` on. `tile` holds that one if
 * `is_loaded`. */
template <typename K, int D>
__device__ __forceinline__ void attend_to_tiles(K &tile, const query_columns<D> &query, const adjacent_rows &rows,
                                                int first, int step, int count, bool is_loaded, float scale, float cap,
                                                grouped_state<D> *state)
{
    int at = first * K::keys;
    if (!is_loaded && at < count) {
        tile.load_keys(rows.keys_at(at), count - at);
        tile.load_values(rows.values_at(at), count - at);
    }
    for (; at < count; at += step * K::keys) {
        const int next = at + step * K::keys;
        float score[K::steps][4];
        tile.multiply_keys(query, score);
        if (next < count)
            tile.load_keys(rows.keys_at(next), count - next);
        state->template weigh<K::steps>(score, count - at, scale, cap);
#pragma unroll
        for (int i = 0; i < K::steps; i++)
            tile.add_values(state->values, i, score[i]);
        if (next < count)
            tile.load_values(rows.values_at(next), count - next);
    }
}

#endif
