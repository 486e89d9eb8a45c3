/* conv_wgrad.cu: the gradient of a convolution's weight on tensor cores; conv_wgrad.h has the formula,
 * conv_wgrad_plan.c the sizes.
 *
 * A tile is some results (pixels of g) and all pixels of x that their windows see, each loaded once and used for all
 * taps: a tap is an offset in shared memory. Both lie pixel by pixel, so that the sum's axis is the outer one of both
 * operands, which are turned as they are loaded. A warp has UNITS units of 16 columns of dW, a tap's 16 channels each,
 * and all rows of the block; warps that have the same units take products of other pixels, and are added up at the end.
 *
 * Windows' pixels outside the image are zeros. A result outside the image, which fills up a tile, has zeros on both
 * sides: an infinity in x must not meet them. */
#include "backends/cuda/common/element.cuh"
#include "backends/cuda/common/mma.cuh"
#include "backends/cuda/conv/conv_wgrad.h"

#define UNIT 16
#define UNITS TARN__WGRAD_UNITS
#define GAP TARN__WGRAD_GAP
#define STAGES TARN__WGRAD_STAGES
#define BLOCK (TARN__WGRAD_WARPS * WARP)

struct weight_args {
    tarn__wgrad_plan p;
    const void *x, *g;
    float *parts; /* (parts, O, taps, C) */
};

/* ---- instructions ------------------------------------------------------------------------------------------------ */

/* Copies since the last call are one group; and all groups but the newest STAGES - 2 are here after the next
 * __syncthreads(). */
__device__ __forceinline__ void close_group()
{
    asm volatile("cp.async.commit_group;" ::: "memory");
}
__device__ __forceinline__ void wait_group()
{
    asm volatile("cp.async.wait_group %0;" ::"n"(STAGES - 2) : "memory");
}

__device__ __forceinline__ uint32_t to_tf32(float x)
{
    uint32_t bits;
    asm("cvt.rna.tf32.f32 %0, %1;" : "=r"(bits) : "f"(x));
    return bits;
}

/* m16n8k8: of the left operand, lane l has columns l % 4 and + 4 of rows l / 4 and + 8; of the right one rows l % 4 and
 * + 4 of column l / 4. */
__device__ __forceinline__ void multiply_tf32(float *sum, const uint32_t *left, uint32_t right0, uint32_t right1)
{
    asm volatile("mma.sync.aligned.m16n8k8.row.col.f32.tf32.tf32.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, "
                 "{%0, %1, %2, %3};"
                 : "+f"(sum[0]), "+f"(sum[1]), "+f"(sum[2]), "+f"(sum[3])
                 : "r"(left[0]), "r"(left[1]), "r"(left[2]), "r"(left[3]), "r"(right0), "r"(right1));
}

/* ---- places ------------------------------------------------------------------------------------------------------ */

/* A number as three digits. */
struct spot {
    int image, row, column;
};

__device__ __forceinline__ spot spot_of(int at, int rows, int columns)
{
    const uint32_t line = (uint32_t)at / (uint32_t)columns, image = line / (uint32_t)rows;
    return spot{(int)image, (int)line - (int)image * rows, at - (int)line * columns};
}

/* The next number. */
__device__ __forceinline__ void advance(spot &s, int rows, int columns)
{
    if (++s.column == columns)
        s.column = 0, s.row++;
    if (s.row == rows)
        s.row = 0, s.image++;
}

/* An image in memory, and a tile of it: rows and columns that are `step` apart. */
struct source_image {
    const void *base;
    int pixel_bytes, rows, columns;
    spot at;    /* the tile's first pixel */
    int images; /* of the tile that there are */
    int step[2];
};

/* Of each pixel of a tile (·, rows, columns), where it is in memory from the tile's first on, and its row and column in
 * the tile. */
__device__ __forceinline__ void write_table(uint2 *table, int count, int rows, int columns, const source_image &from)
{
    for (int i = threadIdx.x; i < count; i += BLOCK) {
        const spot s = spot_of(i, rows, columns);
        const uint32_t place =
            ((uint32_t)s.image * from.rows + s.row * from.step[0]) * from.columns + s.column * from.step[1];
        table[i] = make_uint2(place, (uint32_t)s.row << 16 | (uint32_t)s.column);
    }
}

/* What a thread copies of a tile: `from` bytes behind the beginning of its pixels. */
struct mover {
    int pixel, from;
    bool is_there; /* not behind the last channel */
};

__device__ __forceinline__ mover mover_of(const tarn__wgrad_copies &moves, int first, int pixel_bytes)
{
    mover m;
    m.pixel = (int)(threadIdx.x / (uint32_t)moves.packs);
    m.from = first + ((int)threadIdx.x - m.pixel * moves.packs) * 16;
    m.is_there = m.from < pixel_bytes;
    return m;
}

/* A tile of `count` pixels an image, from its table to shared memory, where pixels are `line` bytes apart; what is
 * outside the image is zeros. */
__device__ __forceinline__ void copy_pixels(const mover &m, const tarn__wgrad_copies &moves, const uint2 *table,
                                            char *to, const source_image &from, int count, int line, int first)
{
    const int limit = m.is_there ? from.images * count * line : 0;
    const uint32_t begin = ((uint32_t)from.at.image * from.rows + from.at.row) * from.columns + from.at.column;
    const char *base = (const char *)from.base + (m.is_there ? m.from : 0);
    to += m.from - first;
    table += m.pixel;
    for (int at = m.pixel * line; at < moves.bytes; at += moves.apart, table += moves.pixels) {
        const uint2 entry = *table;
        const uint32_t row = from.at.row + (entry.y >> 16) * from.step[0],
                       column = from.at.column + (entry.y & 0xffff) * from.step[1];
        const bool is_there = at < limit && row < (uint32_t)from.rows && column < (uint32_t)from.columns;
        copy_pack(to + at, base + (uint64_t)(is_there ? begin + entry.x : 0) * (uint32_t)from.pixel_bytes, is_there);
    }
}

/* ---- products ---------------------------------------------------------------------------------------------------- */

/* Of each result of a tile, its column, and the pixel of x that its window begins with. */
__device__ __forceinline__ uint32_t *windows_of(const char *shared)
{
    return (uint32_t *)(shared + TARN__WGRAD_ZEROS);
}

/* A tile of pixels as a lane sees it; places are bytes of shared memory. */
struct seen_tile {
    int x, g;
    int limit, columns; /* pixels from `limit` on are none, nor are those in columns from `columns` on */
};

/* The place of a pixel's window, and what offsets of taps are multiplied by: nothing, for a pixel that is none. */
__device__ __forceinline__ int window_of(const char *shared, const seen_tile &t, int pixel, int line, int *scale)
{
    const uint32_t entry = windows_of(shared)[pixel];
    const bool is_there = pixel < t.limit && (int)(entry >> 16) < t.columns;
    *scale = is_there;
    return is_there ? t.x + (int)(entry & 0xffff) * line : 0;
}

/* sums (MT · 16 rows, UNITS units) += gᵀ · x over the 16 pixels from `pixel`. */
template <int MT>
__device__ __forceinline__ void multiply_pixels(float (*sum)[UNITS][2][4], const char *shared, const seen_tile &t,
                                                int pixel, int line, const int *offset)
{
    const int lane = threadIdx.x % WARP;
    uint32_t left[MT][4], right[UNITS][4];
    int scale;
    const int window = window_of(shared, t, pixel + lane % 16, line, &scale) + lane / 16 * 16;
    const int g = t.g + (pixel + lane % 8 + lane / 16 * 8) * (MT * 16 + GAP) * 2 + lane / 8 % 2 * 16;
#pragma unroll
    for (int m = 0; m < MT; m++)
        load_turned(left[m], shared + g + m * 32);
#pragma unroll
    for (int u = 0; u < UNITS; u++)
        load_turned(right[u], shared + (window + scale * offset[u]));
#pragma unroll
    for (int u = 0; u < UNITS; u++)
#pragma unroll
        for (int m = 0; m < MT; m++) {
            multiply<bf16>(sum[m][u][0], left[m], right[u][0], right[u][1]);
            multiply<bf16>(sum[m][u][1], left[m], right[u][2], right[u][3]);
        }
}

/* The same in TF32, over 8 pixels. */
template <int MT>
__device__ __forceinline__ void multiply_wide_pixels(float (*sum)[UNITS][2][4], const char *shared, const seen_tile &t,
                                                     int pixel, int line, const int *offset)
{
    const int lane = threadIdx.x % WARP;
    constexpr int LINE = MT * 16 + GAP;
    uint32_t left[MT][4];
    int scale[2], window[2];
#pragma unroll
    for (int i = 0; i < 2; i++)
        window[i] = window_of(shared, t, pixel + lane % 4 + i * 4, line, &scale[i]) + lane / 4 * 4;
    const float *g = (const float *)(shared + t.g) + (pixel + lane % 4) * LINE + lane / 4;
#pragma unroll
    for (int m = 0; m < MT; m++)
#pragma unroll
        for (int i = 0; i < 4; i++)
            left[m][i] = to_tf32(g[i / 2 * 4 * LINE + m * 16 + i % 2 * 8]);
#pragma unroll
    for (int u = 0; u < UNITS; u++) {
        uint32_t right[2][2]; /* of 8 channels each, 4 pixels and 4 more */
#pragma unroll
        for (int i = 0; i < 4; i++)
            right[i / 2][i % 2] =
                to_tf32(((const float *)(shared + (window[i % 2] + scale[i % 2] * offset[u])))[i / 2 * 8]);
#pragma unroll
        for (int m = 0; m < MT; m++) {
            multiply_tf32(sum[m][u][0], left[m], right[0][0], right[0][1]);
            multiply_tf32(sum[m][u][1], left[m], right[1][0], right[1][1]);
        }
    }
}

/* ---- a block ----------------------------------------------------------------------------------------------------- */

/* Which tile of dW a block has. */
struct weight_place {
    int out, channel, tap, taps; /* the first of each, and how many taps */
};

__device__ __forceinline__ weight_place place_of(const tarn__wgrad_plan &p)
{
    const spot s = spot_of((int)blockIdx.x, p.groups, p.slices);
    weight_place w = {s.image * p.outs, s.column * p.slice, s.row * p.taps, p.taps};
    const int all = p.kernel[0] * p.kernel[1];
    if (w.tap + w.taps > all)
        w.taps = all - w.tap;
    return w;
}

/* Bytes from a window's first pixel to a unit's. */
__device__ __forceinline__ int offset_of(const tarn__wgrad_plan &p, const weight_place &w, int unit, int line,
                                         int bytes)
{
    const int parts = p.slice / UNIT, of_tap = unit >> parts / 2; /* parts: 1, 2 or 4 */
    const int tap = w.tap + of_tap, row = (int)((uint32_t)tap / (uint32_t)p.kernel[1]),
              column = tap - row * p.kernel[1];
    return (row * p.dilation[0] * p.halo[1] + column * p.dilation[1]) * line + (unit - of_tap * parts) * UNIT * bytes;
}

/* What warps with the same units have, added up in their order, row by row in shared memory. */
template <int MT>
__device__ __forceinline__ void gather_sums(float *space, int width, const float (*sum)[UNITS][2][4], int first,
                                            int turn, int turns)
{
    const int lane = threadIdx.x % WARP;
    for (int i = 0; i < turns; i++) {
        if (i == turn)
#pragma unroll
            for (int m = 0; m < MT; m++)
#pragma unroll
                for (int u = 0; u < UNITS; u++)
#pragma unroll
                    for (int k = 0; k < 4; k++) { /* 8 columns, and 8 rows */
                        float2 *to = (float2 *)(space + (m * 16 + lane / 4 + k / 2 * 8) * width + (first + u) * UNIT +
                                                k % 2 * 8 + lane % 4 * 2);
                        const float x = sum[m][u][k % 2][k / 2 * 2], y = sum[m][u][k % 2][k / 2 * 2 + 1];
                        *to = i == 0 ? make_float2(x, y) : make_float2(to->x + x, to->y + y);
                    }
        __syncthreads();
    }
}

__device__ __forceinline__ void write_part(const weight_args &a, const weight_place &w, const float *space, int width)
{
    const tarn__wgrad_plan &p = a.p;
    const int parts = p.slice / UNIT, taps = p.kernel[0] * p.kernel[1], columns = w.taps * p.slice;
    float *to = a.parts + (int64_t)blockIdx.y * p.out * taps * p.in;
    for (int row = threadIdx.x / WARP; row < p.outs && w.out + row < p.out; row += TARN__WGRAD_WARPS)
        for (int at = threadIdx.x % WARP; at < columns; at += WARP) {
            const int unit = at / UNIT, channel = w.channel + (unit & (parts - 1)) * UNIT + at % UNIT;
            if (channel < p.in)
                to[((int64_t)(w.out + row) * taps + w.tap + (unit >> parts / 2)) * p.in + channel] =
                    space[row * width + at];
        }
}

/* And the zeros before them. */
__device__ __forceinline__ void write_windows(const tarn__wgrad_plan &p, char *shared)
{
    const int step_rows = p.stride[0] / p.load[0], step_columns = p.stride[1] / p.load[1];
    if (threadIdx.x < TARN__WGRAD_ZEROS / 4)
        ((uint32_t *)shared)[threadIdx.x] = 0;
    for (int i = threadIdx.x; i < p.g.count; i += BLOCK) {
        const spot s = spot_of(i, p.tile[1], p.tile[2]);
        const int window = (s.image * p.halo[0] + s.row * step_rows) * p.halo[1] + s.column * step_columns;
        windows_of(shared)[i] = (uint32_t)s.column << 16 | (uint32_t)(window & 0xffff);
    }
}

template <typename T, int MT>
static __global__ void __launch_bounds__(BLOCK, MT == 1 ? 2 : 1) weight_kernel(const __grid_constant__ weight_args a)
{
    extern __shared__ uint4 memory[];
    char *const shared = (char *)memory;
    const tarn__wgrad_plan &p = a.p;
    constexpr int bytes = (int)sizeof(T), each = is_bf16<T> ? 16 : 8;
    const int warp = threadIdx.x / WARP, mine = warp % p.across, turn = warp / p.across,
              turns = TARN__WGRAD_WARPS / p.across;
    const int tiles_at = TARN__WGRAD_TILES(p), tile_bytes = p.x.bytes + p.g.bytes, line = (p.slice + GAP) * bytes,
              line_g = (MT * 16 + GAP) * bytes;
    const weight_place w = place_of(p);
    /* of the warp; what it has beyond these is the first again, and not written */
    const int units = w.taps * (p.slice / UNIT) - mine * UNITS;
    int offset[UNITS];
    float sum[MT][UNITS][2][4] = {};
#pragma unroll
    for (int u = 0; u < UNITS; u++)
        offset[u] = offset_of(p, w, mine * UNITS + (u < units ? u : 0), line, bytes);

    source_image x = {a.x, p.in * bytes, p.size[0], p.size[1], {}, 0, {p.load[0], p.load[1]}},
                 g = {a.g, p.out * bytes, p.result[0], p.result[1], {}, 0, {1, 1}};
    uint2 *const g_table = (uint2 *)(windows_of(shared) + p.g.count), *const x_table = g_table + p.g.count;
    write_table(x_table, p.x.count, p.halo[0], p.halo[1], x);
    write_table(g_table, p.g.count, p.tile[1], p.tile[2], g);
    write_windows(p, shared);
    __syncthreads();

    const int part = (int)blockIdx.y, begin = part * p.each + min(part, p.more), count = p.each + (part < p.more);
    const int first_x = w.channel * bytes, first_g = w.out * bytes;
    const mover x_mover = mover_of(p.x, first_x, x.pixel_bytes), g_mover = mover_of(p.g, first_g, g.pixel_bytes);
    spot now = spot_of(begin, p.tiles[1], p.tiles[2]), next = now;
    int staged = 0;
    auto stage = [&]() {
        if (staged < count) {
            char *to = shared + tiles_at + staged % STAGES * tile_bytes;
            g.at = spot{next.image * p.tile[0], next.row * p.tile[1], next.column * p.tile[2]};
            x.at = spot{g.at.image, g.at.row * p.stride[0] - p.padding[0], g.at.column * p.stride[1] - p.padding[1]};
            x.images = g.images = min(p.tile[0], p.images - g.at.image);
            copy_pixels(x_mover, p.x, x_table, to, x, p.halo[0] * p.halo[1], line, first_x);
            copy_pixels(g_mover, p.g, g_table, to + p.x.bytes, g, p.tile[1] * p.tile[2], line_g, first_g);
            advance(next, p.tiles[1], p.tiles[2]);
        }
        staged++;
        close_group();
    };
    for (int i = 0; i < STAGES - 1; i++)
        stage();
    for (int tile = 0; tile < count; tile++, advance(now, p.tiles[1], p.tiles[2])) {
        wait_group();
        /* this tile is here, and all are done with the one before, whose place the next to come takes */
        __syncthreads();
        const int images = min(p.tile[0], p.images - now.image * p.tile[0]),
                  rows = min(p.tile[1], p.result[0] - now.row * p.tile[1]);
        const int at = tiles_at + tile % STAGES * tile_bytes;
        const seen_tile t = {at, at + p.x.bytes, ((images - 1) * p.tile[1] + rows) * p.tile[2],
                             p.result[1] - now.column * p.tile[2]};
#pragma unroll 1
        /* of the warps copy before their products, half behind them: tensor cores have work all the time */
        for (int half = 0; half < 2; half++) {
            if (half == warp / (TARN__WGRAD_WARPS / 2))
                stage();
            else if (units > 0)
#pragma unroll 1
                for (int pixel = turn * each; pixel < t.limit; pixel += turns * each)
                    if constexpr (is_bf16<T>)
                        multiply_pixels<MT>(sum, shared, t, pixel, line, offset);
                    else
                        multiply_wide_pixels<MT>(sum, shared, t, pixel, line, offset);
        }
    }
    wait_copies();
    __syncthreads();
    const int width = p.across * UNITS * UNIT + 8;
    float *space = (float *)(shared + tiles_at);
    gather_sums<MT>(space, width, sum, mine * UNITS, turn, turns);
    write_part(a, w, space, width);
}

/* ---- the sum of the parts ---------------------------------------------------------------------------------------- */

#define SUM_THREADS 512

struct sum_args {
    const float *parts;
    int64_t count; /* of elements of a part */
    int number;    /* of parts */
    divider in, columns, taps;
    void *to;
    tarn_dtype dtype;
    int64_t stride[4];
    float beta;
};

/* An element for each column of threads, of which each adds every blockDim.y-th part; then these in order. */
static __global__ void __launch_bounds__(SUM_THREADS) weight_sum_kernel(const __grid_constant__ sum_args a)
{
    __shared__ float space[SUM_THREADS];
    const int64_t at = (int64_t)blockIdx.x * blockDim.x + threadIdx.x;
    float sum = 0;
    if (at < a.count)
#pragma unroll 4
        for (int part = threadIdx.y; part < a.number; part += (int)blockDim.y)
            sum += a.parts[part * a.count + at];
    space[threadIdx.y * blockDim.x + threadIdx.x] = sum;
    __syncthreads();
    if (threadIdx.y > 0 || at >= a.count)
        return;
    for (int i = 1; i < (int)blockDim.y; i++)
        sum += space[i * blockDim.x + threadIdx.x];
    const uint32_t rest = divide_small((uint32_t)at, a.in), channel = (uint32_t)at - rest * (uint32_t)a.in.by;
    const uint32_t out = divide_small(rest, a.taps), tap = rest - out * (uint32_t)a.taps.by;
    const uint32_t row = divide_small(tap, a.columns), column = tap - row * (uint32_t)a.columns.by;
    const int64_t to = out * a.stride[0] + channel * a.stride[1] + row * a.stride[2] + column * a.stride[3];
    if (a.beta != 0)
        sum += a.beta * load_any<float>(a.to, a.dtype, to);
    store_any(a.to, a.dtype, to, sum);
}

/* ---- starting them ----------------------------------------------------------------------------------------------- */

/* 384 threads a block, 1 or 2 blocks a multiprocessor. As much shared memory as a device has is asked for once. */
template <auto kernel> static bool start_weight(const tarn__call *call, const weight_args &a)
{
    static std::atomic<bool> is_set[64];
    const tarn__wgrad_plan &p = a.p;
    if (!is_set[call->device].load(std::memory_order_relaxed)) {
        if (!tarn__cuda_good(cudaFuncSetAttribute((const void *)kernel, cudaFuncAttributeMaxDynamicSharedMemorySize,
                                                  tarn__cuda_at(call->device)->shared_bytes),
                             "shared memory for the gradient of a weight"))
            return false;
        is_set[call->device].store(true, std::memory_order_relaxed);
    }
    kernel<<<dim3((unsigned)(p.slices * p.groups * p.blocks), (unsigned)p.parts), BLOCK, (size_t)p.shared_bytes,
             stream_of(call)>>>(a);
    return true;
}

template <typename T> static bool start_weight_of(const tarn__call *call, const weight_args &a)
{
    return a.p.outs == 16   ? start_weight<weight_kernel<T, 1>>(call, a)
           : a.p.outs == 32 ? start_weight<weight_kernel<T, 2>>(call, a)
                            : start_weight<weight_kernel<T, 4>>(call, a);
}

bool tarn__cuda_conv_wgrad(const tarn__call *call, const tarn__wgrad_plan *plan, const void *x, const void *g,
                           void *scratch)
{
    const tarn__view *to = call->out[0];
    weight_args a = {*plan, x, g, (float *)scratch};
    if (!(plan->is_wide ? start_weight_of<float>(call, a) : start_weight_of<bf16>(call, a)))
        return false;
    sum_args s = {a.parts, tarn__view_count(to), plan->parts};
    s.in = divider_of(plan->in), s.columns = divider_of(plan->kernel[1]),
    s.taps = divider_of((int64_t)plan->kernel[0] * plan->kernel[1]);
    s.to = tarn__view_at(to), s.dtype = to->dtype, s.beta = (float)((const tarn__conv2d *)call->params)->beta;
    for (int i = 0; i < 4; i++)
        s.stride[i] = to->stride[i];
    const int lanes = plan->parts < 4 ? 1 : plan->parts < 32 ? 4 : 16, across = SUM_THREADS / lanes;
    weight_sum_kernel<<<blocks_for(s.count, across), dim3((unsigned)across, (unsigned)lanes), 0, stream_of(call)>>>(s);
    return true;
}
