/* conv_direct.cu: the gradient of a 3 by 3 weight in f32: for each pair of channels nine sums over all pixels, 2 · 9 · N · O · C · H · W operations.
 *
 * A block has 16 channels of x and KT of g, and goes over its share of the tiles of pixels. A tile of both lies in shared memory, the next one is on its
 * way there meanwhile. A thread has one channel of x and four of g, so 36 sums in registers: four pixels of a row cost it 13 loads of 16 bytes and 144
 * multiplications. Groups of threads of a block take different rows of a tile, and are added up at its end.
 *
 * Bytes: x is read O / KT times, g C / 16 times, from the second-level cache but for the first time. Sums of shares go to scratch, and a second kernel adds
 * them up in order. Shares depend on the shape alone, so that the bits do. */
#include "backends/cuda/conv_direct.h"
#include "backends/cuda/kernel.cuh"

#define WORKERS 256        /* threads of a block */
#define CHANNELS 16        /* of x in a block */
#define AT_ONCE 4          /* channels of g, and pixels, of a thread */
#define TAPS 9
#define MOST_COLUMNS 32    /* of a tile */
#define TILE_PIXELS 128
#define BLOCKS 1024        /* about as many as keep any device busy for a few rounds */
#define BEFORE 4           /* columns of a tile of x in front of its results': one is needed, four keep 16 bytes aligned */
#define COMBINED 32        /* sums that a block of the second kernel makes */
#define MOST_TERMS 16384   /* of one sum in f32 */

struct direct_args {
    const float *x, *g;
    float *partial;         /* [shares][O][C][9] */
    int in, out, height, width;
    int rows, columns;      /* of a tile */
    int down, across;       /* tiles of an image */
    int tiles, shares;
    int x_pitch, x_channel; /* of shared memory: floats from row to row, and from channel to channel */
    int g_channel;          /* rows of g are `columns` apart */
};

/* ---- loading --------------------------------------------------------------------------------------------------------------- */

template <int BYTES> __device__ __forceinline__ void copy_async(float *to, const float *from, bool is_there)
{
    uint32_t at = (uint32_t)__cvta_generic_to_shared(to);
    if (BYTES == 16)
        asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"(at), "l"(from), "r"(is_there ? 16 : 0) : "memory");
    else
        asm volatile("cp.async.ca.shared.global [%0], [%1], 4, %2;" ::"r"(at), "l"(from), "r"(is_there ? 4 : 0) : "memory");
}

__device__ __forceinline__ void close_copies() { asm volatile("cp.async.commit_group;" ::: "memory"); }
__device__ __forceinline__ void wait_but_one() { asm volatile("cp.async.wait_group 1;" ::: "memory"); }

/* Rows of `count` channels from `channel` on, `wide` floats from column `column` on, zeros outside: lanes go along a row, and what does not fill a warp is
 * several rows. W floats at once. */
template <int W>
static __device__ __forceinline__ void load_rows(const direct_args &a, const float *image, int channels, int channel, int count, int row, int rows, int column,
                                                 int wide, float *to, int pitch, int apart)
{
    const int packs = wide / W, lines = count * rows;
    const int lanes = packs <= 4 ? 4 : packs <= 8 ? 8 : packs <= 16 ? 16 : 32; /* of a row */
    const int lane = threadIdx.x & (lanes - 1), first = threadIdx.x / lanes;
    for (int line = first; line < lines; line += WORKERS / lanes) {
        const int c = line / rows, r = line - c * rows;
        const bool is_row = (unsigned)(row + r) < (unsigned)a.height && channel + c < channels;
        const float *from = image + ((int64_t)(channel + c) * a.height + row + r) * a.width;
        float *there = to + c * apart + r * pitch;
        for (int p = lane; p < packs; p += lanes) {
            const bool is_there = is_row && (unsigned)(column + p * W) < (unsigned)a.width;
            copy_async<4 * W>(there + p * W, is_there ? from + column + p * W : image, is_there);
        }
    }
}

struct tile_place {
    int image, row, column;
};

__device__ __forceinline__ tile_place place_of_tile(const direct_args &a, int tile)
{
    const int across = tile % a.across, rest = tile / a.across;
    return {rest / a.down, rest % a.down * a.rows, across * a.columns};
}

/* Both tiles: x with a row and columns around it, behind it g. */
template <int W, int KT> static __device__ __forceinline__ void load_tile(const direct_args &a, int tile, float *stage)
{
    const tile_place p = place_of_tile(a, tile);
    const int64_t pixels = (int64_t)a.height * a.width;
    load_rows<W>(a, a.x + (int64_t)p.image * a.in * pixels, a.in, blockIdx.z * CHANNELS, CHANNELS, p.row - 1, a.rows + 2, p.column - BEFORE,
                 a.columns + 2 * BEFORE, stage, a.x_pitch, a.x_channel);
    load_rows<W>(a, a.g + (int64_t)p.image * a.out * pixels, a.out, blockIdx.y * KT, KT, p.row, a.rows, p.column, a.columns,
                 stage + CHANNELS * a.x_channel, a.columns, a.g_channel);
    close_copies();
}

/* ---- adding up ------------------------------------------------------------------------------------------------------------- */

/* Products of four pixels with a row of taps; pixels from `left` on are beyond the row, and do not count even where x is not finite. */
template <bool ALL>
static __device__ __forceinline__ void add_products(float sums[AT_ONCE][TAPS], const float g[AT_ONCE][4], const float *x, int taps, int left)
{
    float seen[12];
#pragma unroll
    for (int i = 0; i < 3; i++)
        *(float4 *)&seen[4 * i] = *(const float4 *)(x + 4 * i);
#pragma unroll
    for (int q = 0; q < 4; q++)
        if (ALL || q < left)
#pragma unroll
            for (int t = 0; t < 3; t++)
#pragma unroll
                for (int k = 0; k < AT_ONCE; k++)
                    sums[k][taps + t] = fmaf(g[k][q], seen[BEFORE - 1 + t + q], sums[k][taps + t]);
}

/* A group's rows of a tile. A thread's channels of g lie KT / 4 apart, so that a warp's loads hit different banks. */
template <int W, int KT> static __device__ __forceinline__ void add_tile(const direct_args &a, int tile, const float *stage, float sums[AT_ONCE][TAPS])
{
    constexpr int KG = KT / AT_ONCE, GROUPS = WORKERS / (KG * CHANNELS);
    const int own = threadIdx.x % (KG * CHANNELS), group = threadIdx.x / (KG * CHANNELS), kg = own % KG, c = own / KG;
    const tile_place p = place_of_tile(a, tile);
    const int rows = min(a.rows, a.height - p.row), columns = min(a.columns, a.width - p.column);
    const float *xs = stage + c * a.x_channel, *gs = stage + CHANNELS * a.x_channel + kg * a.g_channel;
    for (int row = group; row < rows; row += GROUPS)
        for (int column = 0; column < columns; column += 4) {
            float g[AT_ONCE][4];
#pragma unroll
            for (int k = 0; k < AT_ONCE; k++)
                *(float4 *)g[k] = *(const float4 *)(gs + k * KG * a.g_channel + row * a.columns + column);
#pragma unroll
            for (int t = 0; t < 3; t++)
                add_products<W == 4>(sums, g, xs + (row + t) * a.x_pitch + column, 3 * t, columns - column);
        }
}

/* The groups of a block are added up in order, and go to scratch. */
template <int KT> static __device__ __forceinline__ void store_sums(const direct_args &a, const float sums[AT_ONCE][TAPS], float *space)
{
    constexpr int KG = KT / AT_ONCE, OWN = KG * CHANNELS, GROUPS = WORKERS / OWN, COUNT = KT * CHANNELS * TAPS;
    const int own = threadIdx.x % OWN, group = threadIdx.x / OWN, kg = own % KG, c = own / KG;
#pragma unroll
    for (int k = 0; k < AT_ONCE; k++)
#pragma unroll
        for (int t = 0; t < TAPS; t++)
            space[group * COUNT + ((k * KG + kg) * CHANNELS + c) * TAPS + t] = sums[k][t];
    __syncthreads();
    float *to = a.partial + (int64_t)blockIdx.x * a.out * a.in * TAPS;
    for (int at = threadIdx.x; at < COUNT; at += WORKERS) {
        const int k = blockIdx.y * KT + at / (CHANNELS * TAPS), rest = at % (CHANNELS * TAPS), from = blockIdx.z * CHANNELS;
        float sum = space[at];
        for (int i = 1; i < GROUPS; i++)
            sum += space[i * COUNT + at];
        if (k < a.out && from + rest / TAPS < a.in)
            to[((int64_t)k * a.in + from) * TAPS + rest] = sum;
    }
}

template <int W, int KT> static __global__ void __launch_bounds__(WORKERS, 2) grad_weight_kernel(const __grid_constant__ direct_args a)
{
    extern __shared__ __align__(16) float space[];
    const int stage = CHANNELS * a.x_channel + KT * a.g_channel;
    const int begin = (int)((int64_t)a.tiles * blockIdx.x / a.shares), end = (int)((int64_t)a.tiles * (blockIdx.x + 1) / a.shares);
    float sums[AT_ONCE][TAPS] = {};
    load_tile<W, KT>(a, begin, space);
    for (int tile = begin; tile < end; tile++) {
        float *here = space + ((tile - begin) & 1) * stage, *other = space + ((tile - begin + 1) & 1) * stage;
        if (tile + 1 < end)
            load_tile<W, KT>(a, tile + 1, other);
        else
            close_copies();
        wait_but_one();
        __syncthreads();
        add_tile<W, KT>(a, tile, here, sums);
        __syncthreads();
    }
    store_sums<KT>(a, sums, space);
}

/* ---- the shares ------------------------------------------------------------------------------------------------------------ */

struct combine_args {
    const float *partial;
    float *to;
    int64_t stride[4];
    int64_t count; /* O · C · 9 */
    int in, shares;
    double beta;
};

/* A warp takes every eighth share of 32 sums, then one warp the eight. */
static __global__ void __launch_bounds__(WORKERS) combine_kernel(const __grid_constant__ combine_args a)
{
    __shared__ double space[WORKERS / 32][COMBINED];
    const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
    const int64_t at = (int64_t)blockIdx.x * COMBINED + lane;
    double sum = 0;
#pragma unroll 8
    for (int i = warp; i < a.shares; i += WORKERS / 32)
        sum += at < a.count ? (double)a.partial[i * a.count + at] : 0;
    space[warp][lane] = sum;
    __syncthreads();
    if (warp > 0 || at >= a.count)
        return;
    for (int i = 1; i < WORKERS / 32; i++)
        sum += space[i][lane];
    const int64_t pair = at / TAPS, tap = at % TAPS;
    float *to = a.to + pair / a.in * a.stride[0] + pair % a.in * a.stride[1] + tap / 3 * a.stride[2] + tap % 3 * a.stride[3];
    *to = (float)(a.beta != 0 ? sum + a.beta * (double)*to : sum);
}

/* ---- launching ------------------------------------------------------------------------------------------------------------- */

/* Channels of g in a block. */
static int channels_at_once(int64_t out)
{
    return out > 16 ? 32 : 16;
}

static int padded(int floats) /* to 4 more than a multiple of 32: neighbouring channels begin in other banks */
{
    return (floats + 27) / 32 * 32 + 4;
}

/* Tiles and shares: from the shape alone. */
static direct_args plan_tiles(int64_t images, int64_t in, int64_t out, int64_t height, int64_t width)
{
    direct_args a = {};
    int64_t across = (width + MOST_COLUMNS - 1) / MOST_COLUMNS, columns = ((width + across - 1) / across + 3) / 4 * 4;
    int64_t rows = TILE_PIXELS / columns < height ? TILE_PIXELS / columns : height;
    a.in = (int)in, a.out = (int)out, a.height = (int)height, a.width = (int)width;
    a.rows = (int)rows, a.columns = (int)columns;
    a.down = (int)((height + rows - 1) / rows), a.across = (int)((width + columns - 1) / columns);
    a.tiles = (int)(images * a.down * a.across);
    int64_t kt = channels_at_once(out), pairs = (out + kt - 1) / kt * ((in + CHANNELS - 1) / CHANNELS), shares = BLOCKS / pairs;
    int64_t groups = WORKERS * AT_ONCE / (kt * CHANNELS), least = images * height * width / (groups * MOST_TERMS) + 1;
    shares = shares > least ? shares : least;
    a.shares = (int)(shares < a.tiles ? shares : a.tiles);
    a.x_pitch = a.columns + 2 * BEFORE;
    a.x_channel = padded((a.rows + 2) * a.x_pitch);
    a.g_channel = padded(a.rows * a.columns);
    return a;
}

extern "C" size_t tarn__conv_direct_scratch(int64_t images, int64_t in, int64_t out, int64_t rows, int64_t columns)
{
    return (size_t)plan_tiles(images, in, out, rows, columns).shares * (size_t)(out * in * TAPS) * sizeof(float);
}

/* Grid: shares, channels of g / KT, channels of x / 16. Two blocks of 256 threads fit a multiprocessor by their registers and 67 KB of shared memory each. */
template <int W, int KT> static void launch(const tarn__call *call, const direct_args &a)
{
    size_t stages = 2 * (size_t)(CHANNELS * a.x_channel + KT * a.g_channel) * sizeof(float);
    size_t sums = (size_t)WORKERS * AT_ONCE * TAPS * sizeof(float), bytes = stages > sums ? stages : sums;
    if (cudaFuncSetAttribute((const void *)grad_weight_kernel<W, KT>, cudaFuncAttributeMaxDynamicSharedMemorySize, (int)bytes) != cudaSuccess) {
        tarn__cuda_set_failed(call->device);
        return;
    }
    dim3 grid((unsigned)a.shares, (unsigned)((a.out + KT - 1) / KT), (unsigned)((a.in + CHANNELS - 1) / CHANNELS));
    grad_weight_kernel<W, KT><<<grid, WORKERS, bytes, stream_of(call)>>>(a);
}

extern "C" void tarn__conv_direct_grad_weight(const tarn__call *call, const tarn__view *x, const tarn__view *g, const tarn__view *gw, double beta,
                                              void *scratch)
{
    direct_args a = plan_tiles(x->shape[0], x->shape[1], g->shape[1], x->shape[2], x->shape[3]);
    a.x = (const float *)tarn__view_at(x), a.g = (const float *)tarn__view_at(g), a.partial = (float *)scratch;
    bool by_packs = a.width % 4 == 0 && ((uintptr_t)a.x | (uintptr_t)a.g) % 16 == 0, is_wide = channels_at_once(a.out) == 32;
    if (by_packs)
        is_wide ? launch<4, 32>(call, a) : launch<4, 16>(call, a);
    else
        is_wide ? launch<1, 32>(call, a) : launch<1, 16>(call, a);
    combine_args c = {a.partial, (float *)tarn__view_at(gw), {gw->stride[0], gw->stride[1], gw->stride[2], gw->stride[3]},
                      (int64_t)a.out * a.in * TAPS, a.in, a.shares, beta};
    combine_kernel<<<(unsigned)((c.count + COMBINED - 1) / COMBINED), WORKERS, 0, stream_of(call)>>>(c);
}
