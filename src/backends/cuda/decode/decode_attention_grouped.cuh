/* decode_attention_grouped.cuh: attention of a decode step of many sequences: RoPE, the token's key and value appended
 * to the cache, and attention, as decode_attention.cu does, on tensor cores (grouped_queries.cuh).
 *
 * A block computes all queries of a KV head over up to GROUPED_SPLIT keys, as many as a sequence usually has: with many
 * sequences, more blocks would only rotate and merge more often. Its warps take tiles of keys in turn. How the keys of
 * a sequence are split depends on their number alone. */
#ifndef TARN__CUDA_DECODE_ATTENTION_GROUPED_CUH
#define TARN__CUDA_DECODE_ATTENTION_GROUPED_CUH

#include "backends/cuda/decode/decode_attention_merge.cuh"
#include "backends/cuda/decode/grouped_queries.cuh"

#define GROUPED_WARPS 4
#define GROUPED_THREADS (GROUPED_WARPS * WARP)
#define GROUPED_SPLIT 1024 /* keys of a block, at most, up to MAX_SPLITS blocks */

/* The token in a block. */
template <typename T, int D> struct grouped_token {
    enum { line = D + 8, each = ((MAX_GROUP + 2) * (D / 2) + GROUPED_THREADS - 1) / GROUPED_THREADS };
    T query[MAX_GROUP][line];
    float cosine[D / 2], sine[D / 2];

    /* Rotates the queries, and appends the token's key and value to the cache. A thread has pairs of elements that are
     * rotated together; rows are MAX_GROUP queries, then key and value. All loads are issued before the first use. */
    __device__ __forceinline__ void rotate_and_store(const decode_args &a, int64_t batch, int64_t head, int64_t at,
                                                     bool is_last)
    {
        T own[each], other[each];
#pragma unroll
        for (int k = 0; k < each; k++) {
            const int i = k * GROUPED_THREADS + (int)threadIdx.x, row = i / (D / 2);
            const int2 pair = elements_of(a, i % (D / 2));
            own[k] = other[k] = narrow<T>(0.0f);
            if (row < MAX_GROUP ? row >= a.group : row > MAX_GROUP + 1 || !is_last)
                continue;
            const token_rows &from = row < MAX_GROUP ? a.q : row == MAX_GROUP ? a.k : a.v;
            const int64_t which = row < MAX_GROUP ? head * a.group + row : head,
                          first = batch * from.stride[0] + which * from.stride[1];
            own[k] = ((const T *)from.base)[first + pair.x], other[k] = ((const T *)from.base)[first + pair.y];
        }
        __syncthreads(); /* the angles */
#pragma unroll
        for (int k = 0; k < each; k++) {
            const int i = k * GROUPED_THREADS + (int)threadIdx.x, row = i / (D / 2), j = i % (D / 2);
            const int2 pair = elements_of(a, j);
            if (row > MAX_GROUP + 1 || (row >= MAX_GROUP && !is_last))
                continue;
            if (row <= MAX_GROUP && j < a.pairs) {
                const float x = widen(own[k]), y = widen(other[k]);
                own[k] = narrow<T>(x * cosine[j] + -(y * sine[j]));
                other[k] = narrow<T>(y * cosine[j] + x * sine[j]);
            }
            const cache_rows &cache = row == MAX_GROUP ? a.key : a.value;
            T *to = row < MAX_GROUP
                        ? query[row]
                        : (T *)cache.base + batch * cache.stride[0] + head * cache.stride[1] + at * cache.stride[2];
            to[pair.x] = own[k], to[pair.y] = other[k];
        }
    }

  private:
    /* The elements of pair j: rotated ones, then those that stay, two by two. */
    __device__ __forceinline__ static int2 elements_of(const decode_args &a, int j)
    {
        return j >= a.pairs || a.is_interleaved ? make_int2(2 * j, 2 * j + 1) : make_int2(j, j + a.pairs);
    }
};

/* The keys of a block, counted from the first that the token attends to. */
struct key_split {
    int64_t begin; /* position of the first key of all */
    int splits, first, count;

    __device__ __forceinline__ key_split(const decode_args &a, int64_t at, int tile)
    {
        begin = a.window > 0 && at >= a.window ? at + 1 - a.window : 0;
        const int keys = (int)(at + 1 - begin), most = min((keys + GROUPED_SPLIT - 1) / GROUPED_SPLIT, MAX_SPLITS),
                  turn = GROUPED_WARPS * tile, each = ((keys + most - 1) / most + turn - 1) / turn * turn;
        splits = (keys + each - 1) / each;
        first = (int)blockIdx.x * each, count = min(each, keys - first);
    }
};

/* A sequence's rows of the cache from `row` on. */
template <typename T>
__device__ __forceinline__ kv_lines lines_of(const cache_rows &cache, int64_t batch, int64_t head, int64_t row)
{
    const int64_t size = sizeof(T);
    return kv_lines{cache.base + size * (batch * cache.stride[0] + head * cache.stride[1] + row * cache.stride[2]),
                    size * cache.stride[2]};
}

/* Grid: (splits, KV heads, sequences). Bytes: keys and values once. */
template <typename T, int D>
static __global__ void __launch_bounds__(GROUPED_THREADS, 4) grouped_kernel(const __grid_constant__ decode_args a)
{
    typedef kv_tile<T, D> tile_type;
    enum { line = D + 2 };
    __shared__ __align__(16) grouped_token<T, D> token;
    __shared__ __align__(16) float partials[GROUPED_WARPS][MAX_GROUP][line];
    const int64_t batch = blockIdx.z, head = blockIdx.y, at = index_at(a.position, a.is_i64, batch * a.position_stride);
    const int warp = threadIdx.x / WARP;
    pdl_launch_dependents();
    /* an invalid position must not write the cache */
    if (at < 0 || at >= a.capacity) {
        if (blockIdx.x == 0 && blockIdx.y == 0 && threadIdx.x == 0)
            report_fault(a.fault, at, a.capacity);
        pdl_wait();
        return;
    }
    const key_split split(a, at, tile_type::keys);
    if ((int)blockIdx.x >= split.splits)
        return;
    const bool is_last = (int)blockIdx.x == split.splits - 1;
    const int64_t row = split.begin + split.first;
    const adjacent_rows rows = {lines_of<T>(a.key, batch, head, row), lines_of<T>(a.value, batch, head, row)};
    /* before the wait: whole tiles of keys that were cached in earlier steps */
    tile_type tile;
    const bool is_early = (warp + 1) * tile_type::keys <= split.count - (is_last ? 1 : 0);
    if (is_early) {
        tile.load_keys(rows.keys_at(warp * tile_type::keys), tile_type::keys);
        tile.load_values(rows.values_at(warp * tile_type::keys), tile_type::keys);
    }
    make_angles<GROUPED_WARPS>(a, token.cosine, token.sine, at);
    pdl_wait();
    token.rotate_and_store(a, batch, head, at, is_last);
    __syncthreads(); /* the queries, and the token's key and value in the cache */
    query_columns<D> query;
    query.load(&token.query[0][0], token.line);
    grouped_state<D> state;
    attend_to_tiles(tile, query, rows, warp, GROUPED_WARPS, split.count, is_early, a.scale, a.cap, &state);
    state.finish();
    state.store(&partials[warp][0][0], line, a.group);
    __syncthreads();
    const int head_0 = (int)head * a.group;
    for (int i = threadIdx.x; i < a.group * D; i += GROUPED_THREADS) {
        const int h = i / D, e = i % D;
        const merged<1> m = merge_warps<GROUPED_WARPS>(&partials[0][h][0], MAX_GROUP * line, e, D);
        if (split.splits == 1) {
            write_value(a, batch, head_0 + h, e, m.value[0], m.sum);
            continue;
        }
        float *to = a.partial + ((batch * a.heads + head_0 + h) * MAX_SPLITS + blockIdx.x) * line;
        to[e] = m.value[0];
        if (e == 0)
            to[D] = m.row_max, to[D + 1] = m.sum;
    }
    /* the last block merges all splits */
    if (split.splits == 1 || !is_last_block(&a.counters[batch * gridDim.y + blockIdx.y], split.splits))
        return;
    const float *partial = a.partial + (batch * a.heads + head_0) * MAX_SPLITS * line;
    for (int i = threadIdx.x; i < a.group * D; i += GROUPED_THREADS) {
        const int h = i / D, e = i % D;
        const merged<1> m = merge_in_batches(partial + h * MAX_SPLITS * line, split.splits, e, D);
        write_value(a, batch, head_0 + h, e, m.value[0], m.sum);
    }
}

#endif
