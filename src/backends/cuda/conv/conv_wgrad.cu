/* conv_wgrad.cu: the wgrad kernel on tensor cores; conv_wgrad.h has the formula, conv_wgrad_plan.c the tiling.
 *
 * A tile is some results (pixels of g) and all pixels of x in their windows, each loaded once and used for all taps: a
 * tap is an offset in shared memory. Both are stored pixel by pixel, so the summed axis is the outer one of both
 * operands, which are transposed on load. A warp owns UNITS units of 16 columns of dW (16 channels of one tap) and all
 * rows of the block. Warps with the same units take other pixels and are added up at the end.
 *
 * Pixels outside the image are zeros. A result outside the image, which pads a tile, is zero on both sides: it must not
 * meet an infinity in x. */
#include "backends/cuda/common/element.cuh"
#include "backends/cuda/common/mma.cuh"
#include "backends/cuda/conv/conv_wgrad.h"

#define UNIT 16
#define UNITS TARN__WGRAD_UNITS
#define GAP TARN__WGRAD_GAP
#define STAGES TARN__WGRAD_STAGES
#define BLOCK (TARN__WGRAD_WARPS * WARP)

struct wgrad_args {
    tarn__wgrad_plan p;
    const void *x, *g;
    float *parts; /* (parts, O, taps, C) */
};

/* ---- instructions ------------------------------------------------------------------------------------------------ */

/* Closes a group of asynchronous copies; waits until all but the newest STAGES - 2 groups have arrived (then
 * __syncthreads()). */
__device__ __forceinline__ void commit_group()
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
__device__ __forceinline__ void mma_tf32(float *sum, const uint32_t *left, uint32_t right0, uint32_t right1)
{
    asm volatile("mma.sync.aligned.m16n8k8.row.col.f32.tf32.tf32.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, "
                 "{%0, %1, %2, %3};"
                 : "+f"(sum[0]), "+f"(sum[1]), "+f"(sum[2]), "+f"(sum[3])
                 : "r"(left[0]), "r"(left[1]), "r"(left[2]), "r"(left[3]), "r"(right0), "r"(right1));
}

/* ---- positions and copies ---------------------------------------------------------------------------------------- */

/* An index split in three. */
struct pos3 {
    int image, row, column;
};

__device__ __forceinline__ pos3 pos3_of(int at, int rows, int columns)
{
    const uint32_t line = (uint32_t)at / (uint32_t)columns, image = line / (uint32_t)rows;
    return pos3{(int)image, (int)line - (int)image * rows, at - (int)line * columns};
}

/* The next index. */
__device__ __forceinline__ void advance(pos3 &s, int rows, int columns)
{
    if (++s.column == columns)
        s.column = 0, s.row++;
    if (s.row == rows)
        s.row = 0, s.image++;
}

/* An image in memory and a tile of it, with rows and columns `step` apart. */
struct source_image {
    const void *base;
    int pixel_bytes, rows, columns;
    pos3 at;    /* first pixel of the tile */
    int images; /* images that exist in the tile */
    int step[2];
};

/* Per pixel of a tile (·, rows, columns): its offset in memory from the tile's first, and its row and column in the
 * tile. Saves divisions in the copy loop. */
__device__ __forceinline__ void write_table(uint2 *table, int count, int rows, int columns, const source_image &from)
{
    for (int i = threadIdx.x; i < count; i += BLOCK) {
        const pos3 s = pos3_of(i, rows, columns);
        const uint32_t offset_in_image =
            ((uint32_t)s.image * from.rows + s.row * from.step[0]) * from.columns + s.column * from.step[1];
        table[i] = make_uint2(offset_in_image, (uint32_t)s.row << 16 | (uint32_t)s.column);
    }
}

/* What a thread copies of a tile: 16 bytes at `from` of each of its pixels. */
struct copier {
    int pixel, from;
    bool is_there; /* false beyond the last channel */
};

/* Threads are spread over pixels, 16 bytes each; a fixed assignment for all tiles. */
__device__ __forceinline__ copier copier_of(const tarn__wgrad_copies &copies, int first, int pixel_bytes)
{
    copier m;
    m.pixel = (int)(threadIdx.x / (uint32_t)copies.vecs);
    m.from = first + ((int)threadIdx.x - m.pixel * copies.vecs) * 16;
    m.is_there = m.from < pixel_bytes;
    return m;
}

/* Copies a tile, `count` pixels per image, to shared memory with `line` bytes per pixel; zeros outside the image. */
__device__ __forceinline__ void copy_pixels(const copier &m, const tarn__wgrad_copies &copies, const uint2 *table,
                                            char *to, const source_image &from, int count, int line, int first)
{
    const int limit = m.is_there ? from.images * count * line : 0;
    const uint32_t begin = ((uint32_t)from.at.image * from.rows + from.at.row) * from.columns + from.at.column;
    const char *base = (const char *)from.base + (m.is_there ? m.from : 0);
    to += m.from - first;
    table += m.pixel;
    for (int at = m.pixel * line; at < copies.bytes; at += copies.apart, table += copies.pixels) {
        const uint2 entry = *table;
        const uint32_t row = from.at.row + (entry.y >> 16) * from.step[0],
                       column = from.at.column + (entry.y & 0xffff) * from.step[1];
        const bool is_there = at < limit && row < (uint32_t)from.rows && column < (uint32_t)from.columns;
        copy_async16(to + at, base + (uint64_t)(is_there ? begin + entry.x : 0) * (uint32_t)from.pixel_bytes, is_there);
    }
}

/* ---- multiply ---------------------------------------------------------------------------------------------------- */

/* Per result of a tile: its column, and the pixel of x at which its window starts. */
__device__ __forceinline__ uint32_t *windows_of(const char *shared)
{
    return (uint32_t *)(shared + TARN__WGRAD_ZEROS);
}

/* A pixel tile as a lane sees it; offsets in bytes of shared memory. */
struct tile_view {
    int x, g;
    int limit, columns; /* pixels from `limit` on, and columns from `columns` on, are padding */
};

/* Offset of a pixel's window; *scale is 0 for a padding pixel, which then reads the zeros at offset 0. */
__device__ __forceinline__ int window_of(const char *shared, const tile_view &t, int pixel, int line, int *scale)
{
    const uint32_t entry = windows_of(shared)[pixel];
    const bool is_there = pixel < t.limit && (int)(entry >> 16) < t.columns;
    *scale = is_there;
    return is_there ? t.x + (int)(entry & 0xffff) * line : 0;
}

/* sums (MT · 16 rows, UNITS units) += gᵀ · x over the 16 pixels from `pixel`. */
template <int MT>
__device__ __forceinline__ void multiply_pixels(float (*sum)[UNITS][2][4], const char *shared, const tile_view &t,
                                                int pixel, int line, const int *offset)
{
    const int lane = threadIdx.x % WARP;
    uint32_t left[MT][4], right[UNITS][4];
    int scale;
    const int window = window_of(shared, t, pixel + lane % 16, line, &scale) + lane / 16 * 16;
    const int g = t.g + (pixel + lane % 8 + lane / 16 * 8) * (MT * 16 + GAP) * 2 + lane / 8 % 2 * 16;
#pragma unroll
    for (int m = 0; m < MT; m++)
        load_matrices_trans(left[m], shared + g + m * 32);
#pragma unroll
    for (int u = 0; u < UNITS; u++)
        load_matrices_trans(right[u], shared + (window + scale * offset[u]));
#pragma unroll
    for (int u = 0; u < UNITS; u++)
#pragma unroll
        for (int m = 0; m < MT; m++) {
            mma<bf16>(sum[m][u][0], left[m], right[u][0], right[u][1]);
            mma<bf16>(sum[m][u][1], left[m], right[u][2], right[u][3]);
        }
}

/* The same in TF32, over 8 pixels. */
template <int MT>
__device__ __forceinline__ void multiply_pixels_tf32(float (*sum)[UNITS][2][4], const char *shared, const tile_view &t,
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
        uint32_t right[2][2]; /* 8 channels each: 4 pixels and 4 more */
#pragma unroll
        for (int i = 0; i < 4; i++)
            right[i / 2][i % 2] =
                to_tf32(((const float *)(shared + (window[i % 2] + scale[i % 2] * offset[u])))[i / 2 * 8]);
#pragma unroll
        for (int m = 0; m < MT; m++) {
            mma_tf32(sum[m][u][0], left[m], right[0][0], right[0][1]);
            mma_tf32(sum[m][u][1], left[m], right[1][0], right[1][1]);
        }
    }
}

/* ---- a thread block ---------------------------------------------------------------------------------------------- */

/* The tile of dW that a block owns. */
struct weight_tile {
    int out, channel, tap, taps; /* first of each, and the number of taps */
};

/* blockIdx.x counts (rows of dW, tap groups, channel slices). */
__device__ __forceinline__ weight_tile weight_tile_of(const tarn__wgrad_plan &p)
{
    const pos3 s = pos3_of((int)blockIdx.x, p.groups, p.slices);
    weight_tile w = {s.image * p.outs, s.column * p.slice, s.row * p.taps, p.taps};
    const int all = p.kernel[0] * p.kernel[1];
    if (w.tap + w.taps > all)
        w.taps = all - w.tap;
    return w;
}

/* Bytes from a window's first pixel to a unit's. */
__device__ __forceinline__ int offset_of(const tarn__wgrad_plan &p, const weight_tile &w, int unit, int line, int bytes)
{
    const int parts = p.slice / UNIT, of_tap = unit >> parts / 2; /* parts: 1, 2 or 4 */
    const int tap = w.tap + of_tap, row = (int)((uint32_t)tap / (uint32_t)p.kernel[1]),
              column = tap - row * p.kernel[1];
    return (row * p.dilation[0] * p.halo[1] + column * p.dilation[1]) * line + (unit - of_tap * parts) * UNIT * bytes;
}

/* Adds up warps with the same units, in order, row by row in shared memory. */
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

/* Writes the block's f32 partial sums, coalesced along channels. */
__device__ __forceinline__ void write_part(const wgrad_args &a, const weight_tile &w, const float *space, int width)
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

/* Also writes the zeros at the start of shared memory. */
__device__ __forceinline__ void write_windows(const tarn__wgrad_plan &p, char *shared)
{
    const int step_rows = p.stride[0] / p.load[0], step_columns = p.stride[1] / p.load[1];
    if (threadIdx.x < TARN__WGRAD_ZEROS / 4)
        ((uint32_t *)shared)[threadIdx.x] = 0;
    for (int i = threadIdx.x; i < p.g.count; i += BLOCK) {
        const pos3 s = pos3_of(i, p.tile[1], p.tile[2]);
        const int window = (s.image * p.halo[0] + s.row * step_rows) * p.halo[1] + s.column * step_columns;
        windows_of(shared)[i] = (uint32_t)s.column << 16 | (uint32_t)(window & 0xffff);
    }
}

/* T: bf16, or float for TF32. MT: rows of dW per block / 16. Three-stage pipeline: one tile in use, two in flight. */
template <typename T, int MT>
static __global__ void __launch_bounds__(BLOCK, MT == 1 ? 2 : 1) wgrad_kernel(const __grid_constant__ wgrad_args a)
{
    extern __shared__ uint4 memory[];
    char *const shared = (char *)memory;
    const tarn__wgrad_plan &p = a.p;
    constexpr int bytes = (int)sizeof(T), each = is_bf16<T> ? 16 : 8;
    const int warp = threadIdx.x / WARP, mine = warp % p.across, turn = warp / p.across,
              turns = TARN__WGRAD_WARPS / p.across;
    const int tiles_at = TARN__WGRAD_TILES(p), tile_bytes = p.x.bytes + p.g.bytes, line = (p.slice + GAP) * bytes,
              line_g = (MT * 16 + GAP) * bytes;
    const weight_tile w = weight_tile_of(p);
    /* units of this warp; those beyond are duplicates of the first and are not written */
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
    const copier x_copier = copier_of(p.x, first_x, x.pixel_bytes), g_copier = copier_of(p.g, first_g, g.pixel_bytes);
    pos3 now = pos3_of(begin, p.tiles[1], p.tiles[2]), next = now;
    int staged = 0;
    auto stage = [&]() {
        if (staged < count) {
            char *to = shared + tiles_at + staged % STAGES * tile_bytes;
            g.at = pos3{next.image * p.tile[0], next.row * p.tile[1], next.column * p.tile[2]};
            x.at = pos3{g.at.image, g.at.row * p.stride[0] - p.padding[0], g.at.column * p.stride[1] - p.padding[1]};
            x.images = g.images = min(p.tile[0], p.images - g.at.image);
            copy_pixels(x_copier, p.x, x_table, to, x, p.halo[0] * p.halo[1], line, first_x);
            copy_pixels(g_copier, p.g, g_table, to + p.x.bytes, g, p.tile[1] * p.tile[2], line_g, first_g);
            advance(next, p.tiles[1], p.tiles[2]);
        }
        staged++;
        commit_group();
    };
    for (int i = 0; i < STAGES - 1; i++)
        stage();
    for (int tile = 0; tile < count; tile++, advance(now, p.tiles[1], p.tiles[2])) {
        wait_group();
        /* this tile has arrived, and all warps are done with the previous one, whose buffer the next copy reuses */
        __syncthreads();
        const int images = min(p.tile[0], p.images - now.image * p.tile[0]),
                  rows = min(p.tile[1], p.result[0] - now.row * p.tile[1]);
        const int at = tiles_at + tile % STAGES * tile_bytes;
        const tile_view t = {at, at + p.x.bytes, ((images - 1) * p.tile[1] + rows) * p.tile[2],
                             p.result[1] - now.column * p.tile[2]};
#pragma unroll 1
        /* half of the warps copy first, half multiply first: the tensor cores stay busy */
        for (int half = 0; half < 2; half++) {
            if (half == warp / (TARN__WGRAD_WARPS / 2))
                stage();
            else if (units > 0)
#pragma unroll 1
                for (int pixel = turn * each; pixel < t.limit; pixel += turns * each)
                    if constexpr (is_bf16<T>)
                        multiply_pixels<MT>(sum, shared, t, pixel, line, offset);
                    else
                        multiply_pixels_tf32<MT>(sum, shared, t, pixel, line, offset);
        }
    }
    wait_copies();
    __syncthreads();
    const int width = p.across * UNITS * UNIT + 8;
    float *space = (float *)(shared + tiles_at);
    gather_sums<MT>(space, width, sum, mine * UNITS, turn, turns);
    write_part(a, w, space, width);
}

/* ---- sum over splits --------------------------------------------------------------------------------------------- */

#define SUM_THREADS 512

/* Arguments of the kernel that adds the splits. */
struct sum_args {
    const float *parts;
    int64_t count; /* elements of a part */
    int number;    /* parts */
    divider in, columns, taps;
    void *to;
    tarn_dtype dtype;
    int64_t stride[4];
    float beta;
};

/* One element per column of threads; row y adds parts y, y + blockDim.y ...; then the rows are added in order. */
static __global__ void __launch_bounds__(SUM_THREADS) wgrad_sum_kernel(const __grid_constant__ sum_args a)
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

/* ---- launching --------------------------------------------------------------------------------------------------- */

/* Grid: (tiles of dW, splits); 384 threads per block, 1 or 2 blocks per multiprocessor. Bytes: x once per block of dW
 * rows, g once per slice of channels. The device's maximum of shared memory is requested once. */
template <auto kernel> static bool launch_wgrad(const tarn__call *call, const wgrad_args &a)
{
    static std::atomic<bool> is_set[TARN__CUDA_MAX_DEVICES];
    const tarn__wgrad_plan &p = a.p;
    if (!is_set[call->device].load(std::memory_order_relaxed)) {
        if (!tarn__cuda_good(cudaFuncSetAttribute((const void *)kernel, cudaFuncAttributeMaxDynamicSharedMemorySize,
                                                  tarn__cuda_at(call->device)->shared_bytes),
                             "cannot reserve shared memory for wgrad"))
            return false;
        is_set[call->device].store(true, std::memory_order_relaxed);
    }
    kernel<<<dim3((unsigned)(p.slices * p.groups * p.blocks), (unsigned)p.parts), BLOCK, (size_t)p.shared_bytes,
             stream_of(call)>>>(a);
    return true;
}

template <typename T> static bool launch_wgrad_of(const tarn__call *call, const wgrad_args &a)
{
    return a.p.outs == 16   ? launch_wgrad<wgrad_kernel<T, 1>>(call, a)
           : a.p.outs == 32 ? launch_wgrad<wgrad_kernel<T, 2>>(call, a)
                            : launch_wgrad<wgrad_kernel<T, 4>>(call, a);
}

/* Two launches: partial sums, then their sum with beta · dW. Few splits need one row of threads, many up to 16. */
bool tarn__cuda_conv_wgrad(const tarn__call *call, const tarn__wgrad_plan *plan, const void *x, const void *g,
                           void *scratch)
{
    const tarn__view *to = call->out[0];
    wgrad_args a = {*plan, x, g, (float *)scratch};
    if (!(plan->is_tf32 ? launch_wgrad_of<float>(call, a) : launch_wgrad_of<bf16>(call, a)))
        return false;
    sum_args s = {a.parts, tarn__view_count(to), plan->parts};
    s.in = divider_of(plan->in), s.columns = divider_of(plan->kernel[1]),
    s.taps = divider_of((int64_t)plan->kernel[0] * plan->kernel[1]);
    s.to = tarn__view_at(to), s.dtype = to->dtype, s.beta = (float)((const tarn__conv2d *)call->params)->beta;
    for (int i = 0; i < 4; i++)
        s.stride[i] = to->stride[i];
    const int lanes = plan->parts < 4 ? 1 : plan->parts < 32 ? 4 : 16, across = SUM_THREADS / lanes;
    wgrad_sum_kernel<<<blocks_for(s.count, across), dim3((unsigned)across, (unsigned)lanes), 0, stream_of(call)>>>(s);
    return true;
}
