/* blocks.cu: numbers packed in blocks to f32, bit for bit as base/blocks.c has them: no product is fused with what follows it. */
#include "backends/cuda/kernel.cuh"

extern "C" {
#include "base/blocks.h"
}

#define ELEMENTS 4 /* a thread: neighbours go to neighbouring threads */

struct decode_args {
    const char *from;
    float *to;
    tarn_dtype dtype;
    int64_t count, below; /* elements in front of the view's first */
    places<2> places;
};

__device__ __forceinline__ float scale_of(uint16_t bits)
{
    return __half2float(__ushort_as_half(bits));
}

__device__ __forceinline__ float q4_k_at(const tarn__q4_k *block, int at)
{
    int group = at / 32, i = group & 3;
    const uint8_t *s = block->scales;
    int scale = group < 4 ? s[i] & 63 : (s[8 + i] & 15) | (s[i] >> 6 << 4);
    int least = group < 4 ? s[4 + i] & 63 : (s[8 + i] >> 4) | (s[4 + i] >> 6 << 4);
    int q = block->q[group / 2 * 32 + at % 32] >> group % 2 * 4 & 15;
    return __fsub_rn(__fmul_rn(__fmul_rn(scale_of(block->scale), (float)scale), (float)q), __fmul_rn(scale_of(block->least), (float)least));
}

__device__ __forceinline__ float q6_k_at(const tarn__q6_k *block, int at)
{
    int half = at / 128, part = at % 128 / 32, i = at % 32;
    int low = block->low[half * 64 + part % 2 * 32 + i] >> part / 2 * 4 & 15, high = block->high[half * 32 + i] >> part * 2 & 3;
    return __fmul_rn(__fmul_rn(scale_of(block->scale), (float)block->scales[at / 16]), (float)((low | high << 4) - 32));
}

/* Element `at` of a row of blocks, counted from `from`. */
__device__ __forceinline__ float element_at(const char *from, tarn_dtype dtype, int64_t at)
{
    int64_t small = at / 32, large = at / 256; /* numbers of blocks; at may not be negative: views of blocks begin at one */
    switch (dtype) {
    case TARN_Q8_0: {
        const tarn__q8_0 *block = (const tarn__q8_0 *)from + small;
        return __fmul_rn((float)block->q[at % 32], scale_of(block->scale));
    }
    case TARN_Q4_0: {
        const tarn__q4_0 *block = (const tarn__q4_0 *)from + small;
        int i = (int)(at % 32);
        return __fmul_rn(scale_of(block->scale), (float)((block->q[i % 16] >> i / 16 * 4 & 15) - 8));
    }
    case TARN_Q4_K: return q4_k_at((const tarn__q4_k *)from + large, (int)(at % 256));
    default: return q6_k_at((const tarn__q6_k *)from + large, (int)(at % 256));
    }
}

static __global__ void __launch_bounds__(THREADS) decode_kernel(const __grid_constant__ decode_args a)
{
    int64_t first = (int64_t)blockIdx.x * (THREADS * ELEMENTS) + threadIdx.x, offset[2];
#pragma unroll
    for (int u = 0; u < ELEMENTS; u++) {
        int64_t at = first + u * THREADS;
        if (at < a.count) {
            locate(a.places, at, offset);
            a.to[offset[0]] = element_at(a.from, a.dtype, a.below + offset[1]);
        }
    }
}

/* Four elements a thread, 1,024 a block of threads; a block's bytes come once from memory, and 4 bytes an element go there. A flipped axis would count elements
 * down from the first: the base is moved to the lowest row, so that they all lie behind it. */
static void kernel_blocks_decode(const tarn__call *call)
{
    tarn__view blocks = *call->in[0];
    int64_t below = 0;
    for (int i = 0; i < blocks.rank; i++)
        if (blocks.stride[i] < 0 && blocks.shape[i] > 0)
            below -= (blocks.shape[i] - 1) * blocks.stride[i];
    const tarn__view *views[2] = {call->out[0], &blocks};
    tarn__nest nest;
    tarn__nest_make(&nest, 2, views);
    if (nest.count == 0)
        return;
    decode_args a = {(const char *)tarn__view_at(&blocks) - tarn__bytes_of(blocks.dtype, below), data_of<float>(call->out[0]), blocks.dtype, nest.count,
                     below, places_of<2>(&nest)};
    decode_kernel<<<blocks_for(nest.count, THREADS * ELEMENTS), THREADS, 0, stream_of(call)>>>(a);
}

void tarn__cuda_blocks(tarn__kernel_row *rows)
{
    rows[TARN__K_blocks_decode] = {kernel_blocks_decode, TARN__BLOCKS, NULL};
}
