/* nccl_sum.cu: sums of rows in f32 as a tree: the bits of the CPU's sum, which adds the same numbers in the same order.
 *
 * An element is one thread: it reads the rows of its element, adjacent threads adjacent elements, and writes once. A
 * sum of N rows moves N + 1 times their bytes, where one addition at a time would move three per addition. Additions
 * are plain: no fused or reordered ones, and denormal numbers stay. */
#include "backends/cuda/nccl/nccl.h"

namespace
{

constexpr int THREADS = 256;
constexpr int MAX_BLOCKS = 4096;
constexpr int DEPTH = 16; /* sums that wait for another: one per level, of at most TARN__LINK_ROWS rows */

struct merge_list {
    uint8_t merges[TARN__LINK_ROWS];
};

/* COUNT rows, a power of two, each of them a node of one level: what a job has where the ranks are such a number. */
template <int COUNT>
__global__ void sum_balanced(const float *__restrict__ rows, int64_t stride, int64_t elements, float *__restrict__ sum)
{
    int64_t step = (int64_t)gridDim.x * THREADS;
    for (int64_t i = (int64_t)blockIdx.x * THREADS + threadIdx.x; i < elements; i += step) {
        float x[COUNT];
#pragma unroll
        for (int k = 0; k < COUNT; k++)
            x[k] = rows[k * stride + i];
#pragma unroll
        for (int width = 1; width < COUNT; width *= 2)
#pragma unroll
            for (int k = 0; k < COUNT; k += 2 * width)
                x[k] = __fadd_rn(x[k], x[k + width]);
        sum[i] = x[0];
    }
}

/* Any number of rows and any tree: sums that wait for another are a stack. */
__global__ void sum_any(const float *__restrict__ rows, int count, __grid_constant__ const merge_list list,
                        int64_t stride, int64_t elements, float *__restrict__ sum)
{
    int64_t step = (int64_t)gridDim.x * THREADS;
    for (int64_t i = (int64_t)blockIdx.x * THREADS + threadIdx.x; i < elements; i += step) {
        float waiting[DEPTH];
        int used = 0;
        for (int k = 0; k < count; k++) {
            float x = rows[k * stride + i];
            for (int m = list.merges[k]; m > 0; m--)
                x = __fadd_rn(waiting[--used], x);
            waiting[used++] = x;
        }
        sum[i] = waiting[0];
    }
}

/* True where row k is merged as often as k + 1 is divisible by two. */
bool is_balanced(const tarn__link_sum *s)
{
    bool good = (s->count & (s->count - 1)) == 0;
    for (int k = 0; good && k < s->count; k++)
        good = s->merges[k] == __builtin_ctz((unsigned)k + 1);
    return good;
}

} // namespace

extern "C" bool tarn__nccl_tree_sum(const tarn__link_sum *s, cudaStream_t stream)
{
    int64_t needed = (s->elements + THREADS - 1) / THREADS;
    int blocks = (int)(needed < MAX_BLOCKS ? needed : MAX_BLOCKS);
    bool balanced = is_balanced(s);
    if (s->elements == 0)
        return true;
    if (balanced && s->count == 2) {
        sum_balanced<2><<<blocks, THREADS, 0, stream>>>(s->rows, s->stride, s->elements, s->sum);
    } else if (balanced && s->count == 4) {
        sum_balanced<4><<<blocks, THREADS, 0, stream>>>(s->rows, s->stride, s->elements, s->sum);
    } else if (balanced && s->count == 8) {
        sum_balanced<8><<<blocks, THREADS, 0, stream>>>(s->rows, s->stride, s->elements, s->sum);
    } else {
        merge_list list;
        for (int k = 0; k < s->count; k++)
            list.merges[k] = s->merges[k];
        sum_any<<<blocks, THREADS, 0, stream>>>(s->rows, s->count, list, s->stride, s->elements, s->sum);
    }
    return tarn__cuda_good(cudaGetLastError(), "the sum of the ranks cannot be started");
}
