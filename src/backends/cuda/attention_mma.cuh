/* attention_mma.cuh: tiles of attention in bf16 and f16 on tensor cores, with sums in f32.
 *
 * A block has 4 warps and 64 rows, 16 a warp. A warp's products are made of mma.m16n8k16: of a product (16, 8), lane l has, as numbers 0 and 1,
 * columns 2 (l % 4) and the next of row l / 4, and as 2 and 3 those of row l / 4 + 8. Two neighbouring products (16, 16) of weights, narrowed,
 * are a left operand just as they lie, so that weights never leave registers. Tiles lie in shared memory row by row, D filled up with zeros to
 * DEPTH; rows are DEPTH + 8 elements apart, an odd number of 16-byte packs, so that 8 rows of a matrix are on different banks. The next tile is
 * copied while this one is worked on. */
#ifndef TARN__ATTENTION_MMA_CUH
#define TARN__ATTENTION_MMA_CUH

#include <atomic>

#include "backends/cuda/attention_starts.cuh"

#define MMA_WARPS 4
#define MMA_THREADS (MMA_WARPS * WARP)
#define MMA_ROWS (MMA_WARPS * 16)

template <int DEPTH> constexpr int line_of = DEPTH + 8;
template <typename T> constexpr bool is_bf16 = false;
template <> constexpr bool is_bf16<bf16> = true;

/* ---- instructions ------------------------------------------------------------------------------------------------------------ */

template <typename T> __device__ __forceinline__ void multiply(float *sum, const uint32_t *left, uint32_t right0, uint32_t right1)
{
    if constexpr (is_bf16<T>)
        asm volatile("mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};"
                     : "+f"(sum[0]), "+f"(sum[1]), "+f"(sum[2]), "+f"(sum[3])
                     : "r"(left[0]), "r"(left[1]), "r"(left[2]), "r"(left[3]), "r"(right0), "r"(right1));
    else
        asm volatile("mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};"
                     : "+f"(sum[0]), "+f"(sum[1]), "+f"(sum[2]), "+f"(sum[3])
                     : "r"(left[0]), "r"(left[1]), "r"(left[2]), "r"(left[3]), "r"(right0), "r"(right1));
}

/* Four matrices (8, 8): lane l gives the address of row l % 8 of matrix l / 8, and gets elements 2 (l % 4) and the next of row l / 4 of each. */
__device__ __forceinline__ void load_matrices(uint32_t *to, const void *from)
{
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0, %1, %2, %3}, [%4];"
                 : "=r"(to[0]), "=r"(to[1]), "=r"(to[2]), "=r"(to[3])
                 : "r"((uint32_t)__cvta_generic_to_shared(from)));
}
/* The same, each turned: columns for rows. */
__device__ __forceinline__ void load_turned(uint32_t *to, const void *from)
{
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0, %1, %2, %3}, [%4];"
                 : "=r"(to[0]), "=r"(to[1]), "=r"(to[2]), "=r"(to[3])
                 : "r"((uint32_t)__cvta_generic_to_shared(from)));
}

/* 16 bytes to shared memory, or zeros; they are there after the next wait_copies() and __syncthreads(). */
__device__ __forceinline__ void copy_pack(void *to, const void *from, bool is_there)
{
    asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"((uint32_t)__cvta_generic_to_shared(to)), "l"(from), "r"(is_there ? 16 : 0)
                 : "memory");
}
__device__ __forceinline__ void wait_copies() { asm volatile("cp.async.wait_all;" ::: "memory"); }

__device__ __forceinline__ float power_of_2(float x)
{
    float y;
    asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
    return y;
}

/* ---- tiles ------------------------------------------------------------------------------------------------------------------- */

/* ROWS rows from `row` of x, D wide; what is not below `rows` is 0. */
template <typename T, int ROWS, int DEPTH>
__device__ __forceinline__ void stage_tile(T *to, const slab &x, int64_t row, int64_t rows, int64_t depth)
{
    constexpr int PACKS = DEPTH / 8, STEPS = ROWS * PACKS / MMA_THREADS;
    static_assert(ROWS * PACKS % MMA_THREADS == 0, "every thread has as many packs");
#pragma unroll 4
    for (int step = 0; step < STEPS; step++) {
        int at = step * MMA_THREADS + threadIdx.x, i = at / PACKS, pack = at % PACKS;
        bool is_there = row + i < rows && pack * 8 < depth;
        copy_pack(to + i * line_of<DEPTH> + pack * 8, (const T *)x.base + (is_there ? (row + i) * x.row + pack * 8 : 0), is_there);
    }
}

/* The left operand of columns 16 · step ... of 16 rows. */
template <typename T, int DEPTH> __device__ __forceinline__ void load_left(uint32_t *to, const T *rows, int step)
{
    const int lane = threadIdx.x % WARP;
    load_matrices(to, rows + lane % 16 * line_of<DEPTH> + step * 16 + lane / 16 * 8);
}

/* sum (16, N) += left (16, 16) · rightᵀ, columns 16 · step ... of N rows of a tile. */
template <typename T, int DEPTH, int N>
__device__ __forceinline__ void multiply_step(float (*sum)[4], const uint32_t *left, const T *right, int step)
{
    const int lane = threadIdx.x % WARP;
#pragma unroll
    for (int n = 0; n < N / 16; n++) {
        uint32_t b[4];
        load_matrices(b, right + (n * 16 + lane % 8 + lane / 16 * 8) * line_of<DEPTH> + step * 16 + lane / 8 % 2 * 8);
        multiply<T>(sum[2 * n], left, b[0], b[1]);
        multiply<T>(sum[2 * n + 1], left, b[2], b[3]);
    }
}

/* sum (16, N) = rows · rightᵀ over all of D. */
template <typename T, int DEPTH, int N> __device__ __forceinline__ void multiply_across(float (*sum)[4], const T *rows, const T *right)
{
#pragma unroll
    for (int n = 0; n < N / 8; n++)
        sum[n][0] = sum[n][1] = sum[n][2] = sum[n][3] = 0;
#pragma unroll
    for (int step = 0; step < DEPTH / 16; step++) {
        uint32_t left[4];
        load_left<T, DEPTH>(left, rows, step);
        multiply_step<T, DEPTH, N>(sum, left, right, step);
    }
}

template <typename T> __device__ __forceinline__ uint32_t two_of(float x, float y)
{
    const float both[2] = {x, y};
    pack<T, 2> narrowed;
    narrow_pack(both, narrowed);
    return *(uint32_t *)&narrowed;
}

/* sum (16, W) += weights (16, N), rounded to T, · right, W columns of N rows of a tile. */
template <typename T, int DEPTH, int N, int W>
__device__ __forceinline__ void multiply_along(float (*sum)[4], const float (*weights)[4], const T *right)
{
    const int lane = threadIdx.x % WARP;
#pragma unroll
    for (int n = 0; n < N / 16; n++) {
        const float *one = weights[2 * n], *next = weights[2 * n + 1];
        const uint32_t left[4] = {two_of<T>(one[0], one[1]), two_of<T>(one[2], one[3]), two_of<T>(next[0], next[1]), two_of<T>(next[2], next[3])};
#pragma unroll
        for (int w = 0; w < W / 16; w++) {
            uint32_t b[4];
            load_turned(b, right + (n * 16 + lane % 16) * line_of<DEPTH> + w * 16 + lane / 16 * 8);
            multiply<T>(sum[2 * w], left, b[0], b[1]);
            multiply<T>(sum[2 * w + 1], left, b[2], b[3]);
        }
    }
}

/* A warp's (16, W) times two factors, of rows l / 4 and l / 4 + 8, to columns from `column` of x, which is of T or of f32. */
template <typename T, int W>
__device__ __forceinline__ void write_tile(const slab &to, const float (*sum)[4], const float *factor, int64_t row, int64_t rows, int64_t column,
                                           int64_t depth)
{
    const int lane = threadIdx.x % WARP;
    const bool is_packed = to.along == 1 && to.row % 2 == 0 && (uintptr_t)to.base % 4 == 0 && to.dtype == (is_bf16<T> ? TARN_BF16 : TARN_F16);
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

/* ---- which weights count ------------------------------------------------------------------------------------------------------ */

/* The keys that a lane's two rows attend to, from `start` on and below `end`. */
struct two_reaches {
    int64_t start[2], end[2];
};

template <bool has_starts> __device__ __forceinline__ two_reaches reaches_of(const attention_args &a, int64_t batch, int64_t valid, int64_t row)
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

/* ---- dropout ------------------------------------------------------------------------------------------------------------------ */

/* A lane needs the numbers of a few rows, 8 keys a counter, and shares them with others: each draws one counter, and they put together which are kept. */

/* The bit of number i of product m, of two neighbours. */
__device__ __forceinline__ constexpr int bit_by_rows(int m, int i) { return 8 * (i / 2 + 2 * m) + i % 2; }
__device__ __forceinline__ constexpr int bit_by_keys(int i) { return 8 * (i / 2 + 2 * (i % 2)); }

/* For two products (16 rows, 8 keys each) from `row` and `key`: four lanes have two rows and 16 keys. */
__device__ __forceinline__ uint32_t kept_by_rows(const attention_args &a, const source &random, int64_t head, int64_t row, int64_t key)
{
    const int lane = threadIdx.x % WARP, mine = lane % 4;
    uint32_t kept = kept_keys(a, random, head * a.rows + row + lane / 4 + mine % 2 * 8, key + mine / 2 * 8) << 8 * mine;
    kept |= __shfl_xor_sync(FULL_WARP, kept, 1);
    kept |= __shfl_xor_sync(FULL_WARP, kept, 2);
    return kept >> 2 * mine;
}

/* For two products (16 keys, 8 rows each): eight lanes have four rows, two of each product, and 16 keys. */
__device__ __forceinline__ void kept_by_keys(const attention_args &a, const source &random, int64_t head, int64_t row, int64_t key, uint32_t *kept)
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

/* ---- starting ---------------------------------------------------------------------------------------------------------------- */

/* Rows of whole, aligned packs. */
static inline bool has_rows_of_packs(const tarn__view *x, tarn_dtype dtype)
{
    bool fits = x->dtype == dtype && x->stride[3] == 1 && is_aligned(tarn__view_at(x), 16);
    for (int i = 0; i < 3; i++)
        fits = fits && (x->shape[i] <= 1 || x->stride[i] % 8 == 0);
    return fits;
}

/* What write_tile() can write to; NULL: nothing is. */
static inline bool is_writable(const tarn__view *x, tarn_dtype dtype) { return !x || x->dtype == dtype || x->dtype == TARN_F32; }

/* With more shared memory than a kernel has without asking, which is asked for once on each device. False where a device has not as much. */
template <void (*kernel)(attention_args)> static bool start(const tarn__call *call, const attention_args &a, int64_t blocks, size_t bytes)
{
    static std::atomic<int8_t> answers[64]; /* 1: yes, -1: no; threads that ask at once get the same */
    std::atomic<int8_t> &answer = answers[call->device];
    if (answer.load(std::memory_order_relaxed) == 0) {
        bool is_allowed = cudaFuncSetAttribute((const void *)kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, (int)bytes) == cudaSuccess;
        answer.store(is_allowed ? 1 : -1, std::memory_order_relaxed);
        if (!is_allowed)
            cudaGetLastError(); /* not kept for the next poll to find */
    }
    if (answer.load(std::memory_order_relaxed) < 0)
        return false;
    kernel<<<blocks_for(blocks, 1), MMA_THREADS, bytes, stream_of(call)>>>(a);
    return true;
}

/* Runs `...` with D filled up. */
#define FOR_DEPTH(depth, ...)                                                                                                            \
    if ((depth) <= 32) { constexpr int DEPTH = 32; __VA_ARGS__; }                                                                        \
    else if ((depth) <= 64) { constexpr int DEPTH = 64; __VA_ARGS__; }                                                                   \
    else if ((depth) <= 96) { constexpr int DEPTH = 96; __VA_ARGS__; }                                                                   \
    else if ((depth) <= 128) { constexpr int DEPTH = 128; __VA_ARGS__; }                                                                 \
    else { constexpr int DEPTH = 256; __VA_ARGS__; }

#endif
