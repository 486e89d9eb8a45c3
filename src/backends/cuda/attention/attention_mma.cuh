/* attention_mma.cuh: what attention in bf16 and f16 on tensor cores (mma.cuh) has in common: tiles of a head, which
 * weights count, dropout.
 *
 * Two neighbouring products (16, 16) of weights, narrowed, are a left operand just as they lie, so that weights never
 * leave registers. */
#ifndef TARN__ATTENTION_MMA_CUH
#define TARN__ATTENTION_MMA_CUH

#include "backends/cuda/attention/attention_documents.cuh"
#include "backends/cuda/common/mma.cuh"

__device__ __forceinline__ float power_of_2(float x)
{
    float y;
    asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
    return y;
}

/* ---- tiles ------------------------------------------------------------------------------------------------------- */

/* ROWS rows from `row` of x, D wide; what is not below `rows` is 0. */
template <typename T, int ROWS, int DEPTH, int THREADS_OF_BLOCK = MMA_THREADS>
__device__ __forceinline__ void stage_tile(T *to, const slab &x, int64_t row, int64_t rows, int64_t depth)
{
    stage_lines<T, ROWS, DEPTH, THREADS_OF_BLOCK>(to, (const T *)x.base, x.row, row, rows, depth);
}

/* A warp's (16, W) times two factors, of rows l / 4 and l / 4 + 8, to columns from `column` of x, which is of T or of
 * f32. */
template <typename T, int W>
__device__ __forceinline__ void write_tile(const slab &to, const float (*sum)[4], const float *factor, int64_t row,
                                           int64_t rows, int64_t column, int64_t depth)
{
    const int lane = threadIdx.x % WARP;
    const bool is_packed = to.along == 1 && to.row % 2 == 0 && (uintptr_t)to.base % 4 == 0 &&
                           to.dtype == (is_bf16<T> ? TARN_BF16 : TARN_F16);
#pragma unroll
    for (int half = 0; half < 2; half++) {
        int64_t i = row + lane / 4 + half * 8;
        if (i >= rows)
            continue;
#pragma unroll
        for (int w = 0; w < W / 8; w++) {
            int64_t j = column + w * 8 + lane % 4 * 2; /* D is a multiple of 8 */
            float x = sum[w][2 * half] * factor[half], y = sum[w][2 * half + 1] * factor[half];
            if (j >= depth)
                continue;
            if (is_packed) {
                *(uint32_t *)((T *)to.base + i * to.row + j) = two_of<T>(x, y);
            } else if (to.dtype == TARN_F32) {
                ((float *)to.base)[i * to.row + j * to.along] = x;
                ((float *)to.base)[i * to.row + (j + 1) * to.along] = y;
            } else {
                ((T *)to.base)[i * to.row + j * to.along] = narrow<T>(x);
                ((T *)to.base)[i * to.row + (j + 1) * to.along] = narrow<T>(y);
            }
        }
    }
}

/* ---- which weights count ----------------------------------------------------------------------------------------- */

/* The keys that a lane's two rows attend to, from `start` on and below `end`. */
struct two_reaches {
    int64_t start[2], end[2];
};

template <bool has_starts>
__device__ __forceinline__ two_reaches reaches_of(const attention_args &a, int64_t batch, int64_t valid, int64_t row)
{
    two_reaches r = {};
#pragma unroll
    for (int half = 0; half < 2; half++) {
        const int64_t t = row + threadIdx.x % WARP / 4 + half * 8;
        if (t >= a.rows)
            continue;
        r.end[half] = keys_of(a, valid, t);
        if constexpr (has_starts)
            r.start[half] = start_of(a, batch, t);
    }
    return r;
}

/* The same of a tile of N keys from `key`, counted from the lane's own first column. */
struct two_spans {
    int begin[2], end[2];
};

template <int N> __device__ __forceinline__ two_spans spans_of(const two_reaches &r, int64_t key)
{
    const int column = threadIdx.x % 4 * 2;
    two_spans s;
#pragma unroll
    for (int half = 0; half < 2; half++) {
        const int64_t begin = r.start[half] - key, end = r.end[half] - key;
        s.begin[half] = (int)(begin < 0 ? 0 : begin < N ? begin : N) - column;
        s.end[half] = (int)(end < N ? end : N) - column;
    }
    return s;
}

/* Whether number i of product n counts. */
template <bool has_starts> __device__ __forceinline__ bool counts(const two_spans &s, int n, int i)
{
    return n * 8 + i % 2 < s.end[i / 2] && (!has_starts || n * 8 + i % 2 >= s.begin[i / 2]);
}

/* ---- dropout ----------------------------------------------------------------------------------------------------- */

/* A lane needs the numbers of a few rows, 8 keys a counter, and shares them with others: each draws one counter, and
 * they put together which are kept. */

/* The bit of number i of product m, of two neighbours. */
__device__ __forceinline__ constexpr int bit_by_rows(int m, int i)
{
    return 8 * (i / 2 + 2 * m) + i % 2;
}
__device__ __forceinline__ constexpr int bit_by_keys(int i)
{
    return 8 * (i / 2 + 2 * (i % 2));
}

/* For two products (16 rows, 8 keys each) from `row` and `key`: four lanes have two rows and 16 keys. */
__device__ __forceinline__ uint32_t kept_by_rows(const attention_args &a, const source &random, int64_t head,
                                                 int64_t row, int64_t key)
{
    const int lane = threadIdx.x % WARP, mine = lane % 4;
    uint32_t kept = kept_keys(a, random, head * a.rows + row + lane / 4 + mine % 2 * 8, key + mine / 2 * 8) << 8 * mine;
    kept |= __shfl_xor_sync(FULL_WARP, kept, 1);
    kept |= __shfl_xor_sync(FULL_WARP, kept, 2);
    return kept >> 2 * mine;
}

/* For two products (16 keys, 8 rows each): eight lanes have four rows, two of each product, and 16 keys. */
__device__ __forceinline__ void kept_by_keys(const attention_args &a, const source &random, int64_t head, int64_t row,
                                             int64_t key, uint32_t *kept)
{
    const int lane = threadIdx.x % WARP, mine = lane / 4;
    const int64_t number = head * a.rows + row + mine / 4 * 8 + lane % 4 * 2 + mine / 2 % 2;
    uint32_t own = kept_keys(a, random, number, key + mine % 2 * 8) << mine % 4 * 8, other;
    own |= __shfl_xor_sync(FULL_WARP, own, 4);
    own |= __shfl_xor_sync(FULL_WARP, own, 8);
    other = __shfl_xor_sync(FULL_WARP, own, 16);
    kept[0] = (mine < 4 ? own : other) >> mine;
    kept[1] = (mine < 4 ? other : own) >> mine;
}

/* ---- starting ---------------------------------------------------------------------------------------------------- */

/* Rows of whole, aligned packs. */
static inline bool has_rows_of_packs(const tarn__view *x, tarn_dtype dtype)
{
    bool fits = x->dtype == dtype && x->stride[3] == 1 && is_aligned(tarn__view_at(x), 16);
    for (int i = 0; i < 3; i++)
        fits = fits && (x->shape[i] <= 1 || x->stride[i] % 8 == 0);
    return fits;
}

/* What write_tile() can write to; NULL: nothing is. */
static inline bool is_writable(const tarn__view *x, tarn_dtype dtype)
{
    return !x || x->dtype == dtype || x->dtype == TARN_F32;
}

/* Runs `...` with D filled up. */
#define FOR_DEPTH(depth, ...) \
    if ((depth) <= 32) { \
        constexpr int DEPTH = 32; \
        __VA_ARGS__; \
    } else if ((depth) <= 64) { \
        constexpr int DEPTH = 64; \
        __VA_ARGS__; \
    } else if ((depth) <= 96) { \
        constexpr int DEPTH = 96; \
        __VA_ARGS__; \
    } else if ((depth) <= 128) { \
        constexpr int DEPTH = 128; \
        __VA_ARGS__; \
    } else { \
        constexpr int DEPTH = 256; \
        __VA_ARGS__; \
    }

#endif
