/* attention_wgmma_grad_masks.cuh: dropout masks of attention gradients as bits (attention_wgmma_grad.cuh). Both roles
 * compute the weights, and need the mask; drawing it by Philox would cost each as much as its products.
 *
 * A word has the bits of the 32 values of a lane in a block of 16 own rows by 64 others, in accumulators n = 0 … 7. One
 * array is for the role that owns rows, (rows / 16, keys / 64, lanes) per head. After its last head follows the array
 * for the role that owns keys, (keys / 16, rows / 64, lanes) per head. Rows and keys are padded to OWN_ROWS. */
#ifndef TARN__CUDA_ATTENTION_WGMMA_GRAD_MASKS_CUH
#define TARN__CUDA_ATTENTION_WGMMA_GRAD_MASKS_CUH

#include "backends/cuda/attention/wgmma/attention_wgmma_grad.cuh"

#define MASK_SIDE 64                            /* rows and keys of the block that a warp draws */
#define MASK_WORDS (MASK_SIDE * MASK_SIDE / 32) /* of a block, in one of the two orders */
#define MAX_MASK_KEYS 1024 /* bytes per row: masks 64 per 256 keys; q, k, v and their gradients over 1,000 */

/* Blocks of a side. */
__host__ __device__ static inline int mask_blocks_of(int64_t size)
{
    return (int)(tiles_of(size) * (OWN_ROWS / MASK_SIDE));
}

/* ---- use --------------------------------------------------------------------------------------------------------- */

/* The words of this lane for the 16 own rows of its warp: one word per 64 others. */
struct keep_source {
    const uint32_t *at;
};

template <bool is_of_keys>
__device__ __forceinline__ keep_source keep_source_of(const attention_args &a, int64_t head, int own_row)
{
    const int rows = mask_blocks_of(a.rows), keys = mask_blocks_of(a.keys), own = is_of_keys ? keys : rows,
              other = is_of_keys ? rows : keys;
    const int64_t of_rows = a.batches * a.heads * rows * keys * MASK_WORDS;
    return {(const uint32_t *)a.keep_masks + (is_of_keys ? of_rows : 0) +
            ((head * own * (MASK_SIDE / 16) + own_row / 16) * other) * WARP + threadIdx.x % WARP};
}

/* The words of a tile of N others. */
template <typename S> struct keep_words {
    uint32_t word[S::drops ? S::N / MASK_SIDE : 1];
    float scale; /* of weights that are kept */
    __device__ __forceinline__ keep_words(const attention_args &a) : scale(a.keep_scale)
    {
    }
    __device__ __forceinline__ void load(const keep_source &from, int row)
    {
        if constexpr (S::drops)
#pragma unroll
            for (int i = 0; i < S::N / MASK_SIDE; i++)
                word[i] = __ldg(from.at + (row / MASK_SIDE + i) * WARP);
    }
    /* Whether value i of accumulator n is kept. */
    __device__ __forceinline__ bool has(int n, int i) const
    {
        return word[S::drops ? n / 8 : 0] >> (n % 4 * 8 + n / 4 % 2 * 4 + i) & 1;
    }
};

/* ---- drawing ----------------------------------------------------------------------------------------------------- */

/* Bit j of lane i to bit i of lane j. */
__device__ __forceinline__ uint32_t transpose_bits(uint32_t x)
{
    constexpr uint32_t low[] = {0x55555555, 0x33333333, 0x0f0f0f0f, 0x00ff00ff, 0x0000ffff};
#pragma unroll
    for (int i = 4; i >= 0; i--) {
        const int step = 1 << i;
        const uint32_t y = __shfl_xor_sync(FULL_WARP, x, step);
        x = threadIdx.x & step ? (x & ~low[i]) | (y & ~low[i]) >> step : (x & low[i]) | (y & low[i]) << step;
    }
    return x;
}

/* Writes the words of 64 lines of 64 bits, for 16 lines at a time; these groups are `pitch` words apart. */
__device__ __forceinline__ void write_words(uint32_t *to, int64_t pitch, const uint2 *lines)
{
    const int lane = threadIdx.x % WARP, shift = lane % 4 * 2;
#pragma unroll
    for (int i = 0; i < MASK_SIDE / 16; i++) {
        const uint2 one = lines[i * 16 + lane / 4], other = lines[i * 16 + lane / 4 + 8];
        to[i * pitch + lane] = (one.x >> shift & 0x03030303) | (other.x >> shift & 0x03030303) << 2 |
                               (one.y >> shift & 0x03030303) << 4 | (other.y >> shift & 0x03030303) << 6;
    }
}

/* A warp draws 64 rows of 64 keys, and writes them in both orders. Blocks without a visible weight are 0. */
static __global__ void __launch_bounds__(THREADS) mask_kernel(const __grid_constant__ attention_args a)
{
    __shared__ uint2 space[THREADS / WARP][MASK_SIDE];
    const int lane = threadIdx.x % WARP, warp = threadIdx.x / WARP, rows = mask_blocks_of(a.rows),
              keys = mask_blocks_of(a.keys);
    const int64_t heads = a.batches * a.heads, block = (int64_t)blockIdx.x * (THREADS / WARP) + warp;
    if (block >= heads * rows * keys)
        return;
    const int64_t head = block / (rows * keys);
    const int of_head = (int)(block % (rows * keys)), row_block = of_head / keys, key_block = of_head % keys,
              row = row_block * MASK_SIDE, key = key_block * MASK_SIDE;
    uint2 *const lines = space[warp];
    const bool is_visible =
        row < (int)a.rows && key < (int)a.keys && (!a.is_causal || key <= row + MASK_SIDE - 1 + (int)(a.keys - a.rows));
    if (is_visible) {
        const source random = resolved(a.random);
        const uint32_t words = (uint32_t)((a.keys + 7) / 8);
        const uint64_t first =
            ((uint64_t)head * (uint64_t)a.rows + (uint64_t)(row + lane / 8)) * words + (uint32_t)(key / 8 + lane % 8);
#pragma unroll 4
        for (int i = 0; i < MASK_SIDE * MASK_SIDE / 8 / WARP; i++)
            ((uint8_t *)lines)[i * WARP + lane] =
                (uint8_t)keep_bits(random, first + (uint32_t)(i * 4) * words, a.limit);
    } else {
        lines[lane] = lines[lane + WARP] = make_uint2(0, 0);
    }
    __syncwarp();
    uint32_t *const by_rows =
                        (uint32_t *)a.keep_masks + (head * rows + row_block) * keys * MASK_WORDS + key_block * WARP,
                    *const by_keys = (uint32_t *)a.keep_masks + heads * rows * keys * MASK_WORDS +
                                     (head * keys + key_block) * rows * MASK_WORDS + row_block * WARP;
    write_words(by_rows, keys * WARP, lines);
    const uint2 low = lines[lane], high = lines[lane + WARP];
    const uint2 one = make_uint2(transpose_bits(low.x), transpose_bits(high.x)),
                other = make_uint2(transpose_bits(low.y), transpose_bits(high.y));
    __syncwarp();
    lines[lane] = one, lines[lane + WARP] = other;
    __syncwarp();
    write_words(by_keys, rows * WARP, lines);
}

/* Grid: a warp per 64 rows and 64 keys. Bytes: a quarter of rows · keys. */
static void launch_masks(const tarn__call *call, const attention_args &a)
{
    const int64_t blocks = a.batches * a.heads * mask_blocks_of(a.rows) * mask_blocks_of(a.keys);
    mask_kernel<<<blocks_for(blocks, THREADS / WARP), THREADS, 0, stream_of(call)>>>(a);
}

static inline size_t mask_bytes_of(int64_t heads, int64_t rows, int64_t keys)
{
    return (size_t)(heads * mask_blocks_of(rows) * mask_blocks_of(keys)) * (2 * MASK_WORDS * sizeof(uint32_t));
}

#endif
