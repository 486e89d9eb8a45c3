/* decode_argmax.cu: greedy sampling: the token with the largest logit. Each of a row's blocks finds the best of its
 * split; the last one to finish takes the best of all. Bytes: the logits, once. */
#include "backends/cuda/decode/decode.cuh"

#define MAX_SPLITS 64 /* blocks per row */
#define MIN_SPLIT 2048
#define MAX_BLOCKS 2048 /* with many rows: more blocks only start and end more often */

struct candidate {
    float value;
    int at;
};

/* x is (rows, classes) with any strides. */
struct argmax_args {
    const void *x;
    tarn_dtype dtype;
    int64_t down, across;
    int length, split;  /* elements of a split: whole groups of eight */
    bool is_vectorized; /* groups of eight are contiguous and 16-byte aligned */
    int64_t *y;
    int64_t y_down;
    candidate *best; /* (rows, MAX_SPLITS) */
    int *counters;
};

/* NaN beats everything but NaN; of equal ones the first wins, in any order of merging. */
__device__ __forceinline__ candidate better(const candidate &a, const candidate &b)
{
    bool a_wins = a.value > b.value || (a.value != a.value && b.value == b.value),
         b_wins = b.value > a.value || (b.value != b.value && a.value == a.value);
    return a_wins ? a : b_wins ? b : a.at < b.at ? a : b;
}

/* Thread 0 gets the best of the block. */
__device__ __forceinline__ candidate best_of_block(candidate c)
{
    __shared__ candidate space[THREADS / WARP];
    for (int round = 0; round < 2; round++) {
#pragma unroll
        for (int step = WARP / 2; step > 0; step /= 2)
            c = better(c, candidate{__shfl_xor_sync(FULL_WARP, c.value, step), __shfl_xor_sync(FULL_WARP, c.at, step)});
        if (round == 0) {
            if (threadIdx.x % WARP == 0)
                space[threadIdx.x / WARP] = c;
            __syncthreads();
            c = space[threadIdx.x % (THREADS / WARP)];
        }
    }
    return c;
}

/* Eight elements from `at` on. They are compared one by one only if their max may change the result, or if their sum is
 * NaN, which it is if an element is. */
__device__ __forceinline__ candidate better_of_group(candidate c, const float *v, int at)
{
    float largest = v[0], sum = v[0];
#pragma unroll
    for (int k = 1; k < 8; k++)
        largest = fmaxf(largest, v[k]), sum += v[k];
    if (!(largest > c.value) && sum == sum)
        return c;
    if (sum != sum) {
#pragma unroll
        for (int k = 0; k < 8; k++)
            c = better(c, candidate{v[k], at + k});
        return c;
    }
    c.value = largest;
#pragma unroll
    for (int k = 7; k >= 0; k--)
        c.at = v[k] == largest ? at + k : c.at;
    return c;
}

/* The best of a thread's elements. Several groups are in flight. */
template <typename T> __device__ __forceinline__ candidate best_of_groups(const T *row, int first, int end)
{
    candidate c = {-CUDART_INF_F, first};
#pragma unroll 4
    for (int i = first + (int)threadIdx.x * 8; i < end; i += THREADS * 8) {
        float v[8];
        if (i + 8 <= end) {
            vec8<T> group;
            group.load((const char *)(row + i));
            group.unpack(0, v);
        } else {
#pragma unroll
            for (int k = 0; k < 8; k++)
                v[k] = i + k < end ? widen(row[i + k]) : -CUDART_INF_F;
        }
        c = better_of_group(c, v, i);
    }
    return c;
}

/* Vectors of eight if aligned, else one by one. */
__device__ __forceinline__ candidate best_of_thread(const argmax_args &a, int64_t row, int first, int end)
{
    candidate c = {-CUDART_INF_F, first};
    if (a.is_vectorized)
        return a.dtype == TARN_F32    ? best_of_groups((const float *)a.x + row * a.down, first, end)
               : a.dtype == TARN_BF16 ? best_of_groups((const bf16 *)a.x + row * a.down, first, end)
                                      : best_of_groups((const f16 *)a.x + row * a.down, first, end);
    for (int i = first + (int)threadIdx.x; i < end; i += THREADS)
        c = better(c, candidate{load_float(a.x, a.dtype, row * a.down + i * a.across), i});
    return c;
}

/* A NaN or infinite maximum gives -1: the caller stops with an error. */
static __global__ void __launch_bounds__(THREADS) argmax_kernel(const __grid_constant__ argmax_args a)
{
    const int64_t row = blockIdx.y;
    const int first = (int)blockIdx.x * a.split, end = min(first + a.split, a.length);
    pdl_launch_dependents();
    pdl_wait();
    candidate c = best_of_block(best_of_thread(a, row, first, end));
    if (threadIdx.x == 0)
        a.best[row * MAX_SPLITS + blockIdx.x] = c;
    /* the last block of the row takes the best of all */
    if (!is_last_block(&a.counters[row], (int)gridDim.x))
        return;
    candidate *best = a.best + row * MAX_SPLITS;
    c = candidate{-CUDART_INF_F, 0x7fffffff};
    for (int i = threadIdx.x; i < (int)gridDim.x; i += THREADS)
        c = better(c, candidate{__ldcg(&best[i].value), __ldcg(&best[i].at)});
    c = best_of_block(c);
    if (threadIdx.x == 0)
        a.y[row * a.y_down] = fabsf(c.value) < CUDART_INF_F ? c.at : -1;
}

/* One candidate per split of a row. */
static tarn__plan_status prepare_argmax(const tarn__call *call, tarn__plan *plan)
{
    plan->scratch_bytes = (size_t)(call->in[0]->shape[0] * MAX_SPLITS) * sizeof(candidate);
    return TARN__PLAN_READY;
}

/* Grid: (splits of a row, rows); 256 threads per block, at least 2,048 logits each. */
static void kernel_argmax(const tarn__call *call)
{
    const tarn__view *x = call->in[0], *y = call->out[0];
    argmax_args a = {};
    a.x = tarn__view_at(x), a.dtype = x->dtype, a.down = x->stride[0], a.across = x->stride[1],
    a.length = (int)x->shape[1];
    a.y = (int64_t *)tarn__view_at(y), a.y_down = y->stride[0];
    a.best = (candidate *)call->scratch, a.counters = tarn__cuda_at(call->device)->counters;
    const unsigned rows = (unsigned)x->shape[0];
    if (rows == 0)
        return;
    const unsigned most = MAX_BLOCKS / rows;
    unsigned splits = blocks_for(a.length, MIN_SPLIT);
    splits = splits < MAX_SPLITS ? splits : MAX_SPLITS;
    splits = splits < most ? splits : most > 0 ? most : 1; /* the result does not depend on it */
    a.split = ((a.length + (int)splits - 1) / (int)splits + 7) / 8 * 8;
    a.is_vectorized = a.across == 1 && (uintptr_t)a.x % 16 == 0 && (x->shape[0] == 1 || a.down % 8 == 0);
    launch_decode(call, argmax_kernel, dim3(splits, rows), THREADS, 0, a);
}

/* A counter per row; 32-bit positions. */
static bool fits(const tarn__call *call)
{
    const int64_t *shape = call->in[0]->shape;
    return shape[0] <= TARN__CUDA_COUNTERS && shape[1] < INT32_MAX / 2;
}

void tarn__cuda_register_decode_argmax(tarn__kernel_row *rows)
{
    rows[TARN__K_argmax_finite] =
        tarn__row_fits(tarn__row_planned(prepare_argmax, kernel_argmax,
                                         TARN__BIT(TARN_F32) | TARN__BIT(TARN_BF16) | TARN__BIT(TARN_F16)),
                       fits);
}
