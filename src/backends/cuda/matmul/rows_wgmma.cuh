/* rows_wgmma.cuh: y = x · weightᵀ with quantized weights and 17 to 256 rows of x, as in decoding many sequences, by
 * wgmma: up to three weights that share x, or a gate and up; with bias, activation, scale, soft cap and residual.
 *
 * The product is transposed: 64 rows of a weight are the left operand of a warpgroup, dequantized in registers, and the
 * rows of x, columns of the sum, are the right one, in shared memory. So a weight is read from memory once, in its
 * quantized form. Both operands arrive through a ring of stages of DEPTH elements: the weight by asynchronous copies of
 * all threads, x by the bulk tensor copy engine, which swizzles it and adds rows of zeros. (wgmma reads x in the async
 * proxy: after ordinary copies it would need a fence, which waits for all copies under way.)
 *
 * A cluster of thread blocks shares the rows of a tile: each has a slice of `in`. Their sums are added in order, over
 * distributed shared memory. How `in` is cut depends on the weights' shapes, and on whether x has up to 64 rows. */
#ifndef TARN__CUDA_ROWS_WGMMA_CUH
#define TARN__CUDA_ROWS_WGMMA_CUH

#include <cuda.h>

#include "backends/cuda/decode/decode_gemv.cuh"
#include "backends/cuda/matmul/rows_formats.cuh"

#define GROUPS 2 /* warpgroups of a block */
#define BLOCK_THREADS (GROUPS * GROUP_THREADS)
#define TILE_ROWS (GROUPS * GROUP_ROWS) /* of a weight */
#define MAX_CLUSTER 8

/* (out, in), rows contiguous. */
struct rows_weight {
    const char *base;
    int64_t pitch;    /* bytes between rows */
    const bf16 *bias; /* or NULL */
    int64_t bias_across, y_down;
    bf16 *y;
    int out, first_tile;
};

struct rows_args {
    CUtensorMap x; /* (rows, in), boxes of a panel */
    rows_weight weight[3];
    int weights, rows, stages; /* rows of x; stages of all slices together */
    const bf16 *sum;           /* residual added to the result; NULL: none */
    int64_t sum_down;
    bool is_gated; /* y of weight 0 = act(first) · second */
    int act;       /* tarn__act */
    float scale;   /* of the result, before soft cap and residual */
    float cap;     /* 0: none */
};

/* ---- stages ------------------------------------------------------------------------------------------------------ */

/* A stage: two panels of x, then rows of the weight. */
template <tarn_dtype Q, int TOKENS> struct stage_layout {
    typedef stage_format<Q> format;
    enum {
        panel_bytes = TOKENS * PANEL_ROW_BYTES,
        x_bytes = DEPTH / PANEL * panel_bytes,
        bytes = (x_bytes + TILE_ROWS * format::line + 1023) / 1024 * 1024
    };
};

/* A thread's copies of a stage of the weight: one vector of every `step`th row. */
template <tarn_dtype Q> struct weight_copies {
    typedef stage_format<Q> format;
    enum { step = BLOCK_THREADS / format::vectors, turns = (TILE_ROWS + step - 1) / step };
    const char *from;
    int64_t turn, up; /* bytes to the next of the thread's rows; from the gate's rows to those of up */
    uint32_t to;      /* offset in a stage */
    int row, rows;    /* rows: existing rows of the tile, of each half if it is gated */
    bool is_whole, is_gated;

    __device__ __forceinline__ weight_copies(const rows_args &a, const rows_weight &w, int tile)
    {
        /* a gated tile has 64 rows of the gate, then the same rows of up; the last threads copy nothing */
        const int part = (int)threadIdx.x % format::vectors;
        is_gated = a.is_gated;
        rows = min(is_gated ? GROUP_ROWS : TILE_ROWS, w.out - tile * (is_gated ? GROUP_ROWS : TILE_ROWS));
        is_whole = rows == (is_gated ? GROUP_ROWS : TILE_ROWS);
        row = (int)threadIdx.x / format::vectors, turn = step * w.pitch;
        up = is_gated ? a.weight[1].base - w.base - GROUP_ROWS * w.pitch : 0;
        from = w.base + ((int64_t)tile * (is_gated ? GROUP_ROWS : TILE_ROWS) + row) * w.pitch + part * format::vector;
        to = (uint32_t)(row * format::line + part * format::vector);
        if (row >= step)
            row = TILE_ROWS;
    }
    /* Copies stage `stage` to the rows at `rows_at`. */
    __device__ __forceinline__ void issue(int stage, uint32_t rows_at) const
    {
        const int part = (int)threadIdx.x % format::vectors;
        const char *at = from + format::offset_of(stage, part);
        if (is_whole && !is_gated)
            copy_rows<true, false>(at, rows_at + to);
        else if (is_whole)
            copy_rows<true, true>(at, rows_at + to);
        else
            copy_rows<false, true>(at, rows_at + to);
    }

  private:
    template <bool all, bool halves> __device__ __forceinline__ void copy_rows(const char *at, uint32_t place) const
    {
#pragma unroll
        for (int i = 0; i < turns; i++, at += turn) {
            const int here = row + i * step;
            const char *vector = halves && here >= GROUP_ROWS ? at + up : at;
            if (here < TILE_ROWS && (all || (is_gated ? here % GROUP_ROWS : here) < rows)) {
                if (format::vector == 8)
                    copy_async8(place + i * step * format::line, vector);
                else
                    copy_async16(place + i * step * format::line, vector, 16);
            }
        }
    }
};

/* Arrives; the phase ends after `bytes` more bytes of the copy engine. One thread. */
__device__ __forceinline__ void barrier_expect(uint32_t barrier, int bytes)
{
    asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" ::"r"(barrier), "r"(bytes) : "memory");
}

/* Copies a box of x, from column `column` on, to shared memory; one thread. */
__device__ __forceinline__ void copy_box(uint32_t to, const CUtensorMap *map, int column, uint32_t barrier)
{
    asm volatile("cp.async.bulk.tensor.2d.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1, {%2, %3}], "
                 "[%4];" ::"r"(to),
                 "l"(map), "r"(column), "r"(0), "r"(barrier)
                 : "memory");
}

/* Copies stage `stage` of x; one thread. */
template <tarn_dtype Q, int TOKENS>
__device__ __forceinline__ void copy_x(const rows_args &a, int stage, uint32_t to, uint32_t barrier)
{
    typedef stage_layout<Q, TOKENS> layout;
    barrier_expect(barrier, layout::x_bytes);
#pragma unroll
    for (int panel = 0; panel < DEPTH / PANEL; panel++)
        copy_box(to + panel * layout::panel_bytes, &a.x, stage * DEPTH + panel * PANEL, barrier);
}

/* ---- clusters ---------------------------------------------------------------------------------------------------- */

__device__ __forceinline__ void cluster_barrier(void)
{
    asm volatile("barrier.cluster.arrive.release.aligned;\nbarrier.cluster.wait.acquire.aligned;" ::: "memory");
}

/* Four floats of shared memory of a block of the cluster. */
__device__ __forceinline__ float4 load_of_block(uint32_t address, int block)
{
    float4 x;
    asm volatile("{\n.reg .b32 there;\nmapa.shared::cluster.u32 there, %4, %5;\n"
                 "ld.shared::cluster.v4.f32 {%0, %1, %2, %3}, [there];\n}"
                 : "=f"(x.x), "=f"(x.y), "=f"(x.z), "=f"(x.w)
                 : "r"(address), "r"(block)
                 : "memory");
    return x;
}

/* ---- the kernel -------------------------------------------------------------------------------------------------- */

/* Columns of a product: all rows of x, up to 128. */
template <int TOKENS> static constexpr int product_width = TOKENS < 128 ? TOKENS : 128;

template <tarn_dtype Q, int TOKENS, int STAGES> static constexpr size_t rows_shared(void)
{
    return 1024 + (size_t)STAGES * stage_layout<Q, TOKENS>::bytes;
}

/* Writes the warpgroup's sums to shared memory: rows of x, `line` floats each. */
template <int TOKENS>
__device__ __forceinline__ void store_sums(float *to, int line, const float (*sum)[product_width<TOKENS> / 8][4])
{
    const int lane = threadIdx.x % WARP, row = (int)threadIdx.x / WARP * 16 + lane / 4;
#pragma unroll
    for (int t = 0; t < TOKENS / 8; t++) {
        const float *four = sum[t * 8 / product_width<TOKENS>][t % (product_width<TOKENS> / 8)];
#pragma unroll
        for (int i = 0; i < 4; i++)
            to[(t * 8 + lane % 4 * 2 + i % 2) * line + row + i / 2 * 8] = four[i];
    }
}

/* Four sums of the blocks of a cluster, added in order. */
__device__ __forceinline__ float4 add_slices(const float *own, int slices)
{
    if (slices == 1)
        return *(const float4 *)own;
    const uint32_t at = shared_address(own);
    float4 part[MAX_CLUSTER], y = make_float4(0, 0, 0, 0);
#pragma unroll
    for (int s = 0; s < MAX_CLUSTER; s++) /* all loads are issued before the first is used */
        part[s] = s < slices ? load_of_block(at, s) : y;
    y = part[0];
#pragma unroll
    for (int s = 1; s < MAX_CLUSTER; s++)
        y.x += part[s].x, y.y += part[s].y, y.z += part[s].z, y.w += part[s].w;
    return y;
}

/* Four adjacent outputs from `column` on. */
__device__ __forceinline__ void finish(const rows_args &a, const rows_weight &w, int row, int column, float *y)
{
    bf16 *to = w.y + row * w.y_down + column;
    float sum[4] = {};
    if (a.sum) {
        const uint2 words = *(const uint2 *)(a.sum + row * a.sum_down + column);
        sum[0] = __uint_as_float(words.x << 16), sum[1] = __uint_as_float(words.x & 0xffff0000u);
        sum[2] = __uint_as_float(words.y << 16), sum[3] = __uint_as_float(words.y & 0xffff0000u);
    }
#pragma unroll
    for (int i = 0; i < 4; i++) {
        if (w.bias)
            y[i] += widen(w.bias[(column + i) * w.bias_across]);
        y[i] = (a.is_gated ? y[i] : activate(a.act, y[i])) * a.scale;
        if (a.cap > 0)
            y[i] = a.cap * tanhf(y[i] / a.cap);
        y[i] += sum[i];
    }
    *(uint2 *)to = make_uint2(pack2<bf16>(y[0], y[1]), pack2<bf16>(y[2], y[3]));
}

/* Grid: (slices of `in`, tiles of the weights' rows); a cluster is all slices of a tile. Bytes: the weights once, x
 * once per tile. FLOPs: 2 · TOKENS · in · out. */
template <tarn_dtype Q, int TOKENS, int STAGES, int BLOCKS>
static __global__ void __launch_bounds__(BLOCK_THREADS, BLOCKS) rows_kernel(const __grid_constant__ rows_args a)
{
    typedef stage_layout<Q, TOKENS> layout;
    enum { width = product_width<TOKENS>, products = TOKENS / width, sum_line = TILE_ROWS + 4 };
    extern __shared__ __align__(1024) char shared[];
    __shared__ __align__(8) uint64_t arrived[STAGES]; /* x of the stages */
    /* an offset: the compiler would not know that a rounded address is in shared memory */
    const uint32_t before = (1024 - shared_address(shared) % 1024) % 1024, ring_at = shared_address(shared) + before,
                   arrived_at = shared_address(arrived);
    char *ring = shared + before;
    const int slices = (int)gridDim.x, slice = (int)blockIdx.x, warp = threadIdx.x / WARP,
              which = (a.weights > 1 && !a.is_gated && (int)blockIdx.y >= a.weight[1].first_tile) +
                      (a.weights > 2 && (int)blockIdx.y >= a.weight[2].first_tile),
              first = (int)((int64_t)a.stages * slice / slices), end = (int)((int64_t)a.stages * (slice + 1) / slices);
    const rows_weight &weight = a.weight[which];
    const int tile = (int)blockIdx.y - weight.first_tile;
    const weight_copies<Q> copies(a, weight, tile);
    pdl_launch_dependents();
    if (threadIdx.x == 0) {
#pragma unroll
        for (int i = 0; i < STAGES; i++)
            barrier_init(arrived_at + i * 8, 1);
        publish_shared();
    }
    /* weights are loaded before the wait: no kernel writes them */
#pragma unroll
    for (int i = 0; i < STAGES - 1; i++) {
        if (first + i < end)
            copies.issue(first + i, ring_at + i * layout::bytes + layout::x_bytes);
        commit_stage();
    }
    pdl_wait();
    if (threadIdx.x == 0)
        for (int i = 0; i < STAGES - 1 && first + i < end; i++)
            copy_x<Q, TOKENS>(a, first + i, ring_at + i * layout::bytes, arrived_at + i * 8);
    float sum[products][width / 8][4];
#pragma unroll
    for (int p = 0; p < products; p++)
#pragma unroll
        for (int n = 0; n < width / 8; n++)
            sum[p][n][0] = sum[p][n][1] = sum[p][n][2] = sum[p][n][3] = 0;
    uint32_t left[DEPTH / PANEL][CHUNK_STEPS][4];
    for (int stage = first, place = 0, parity = 0; stage < end; stage++) {
        wait_stage<STAGES - 2>();
        __syncthreads(); /* the weight's stage has arrived, and the previous one is no longer used */
        const int ahead = stage + STAGES - 1, place_ahead = place == 0 ? STAGES - 1 : place - 1;
        if (ahead < end) {
            const uint32_t to = ring_at + place_ahead * layout::bytes;
            if (threadIdx.x == 0)
                copy_x<Q, TOKENS>(a, ahead, to, arrived_at + place_ahead * 8);
            copies.issue(ahead, to + layout::x_bytes);
        }
        commit_stage();
        const char *rows = ring + place * layout::bytes + layout::x_bytes + warp * 16 * stage_format<Q>::line;
        const uint32_t x_at = ring_at + place * layout::bytes;
#pragma unroll
        for (int half = 0; half < DEPTH / PANEL; half++) {
            stage_format<Q>::chunk(rows, stage, half, left[half]);
            if (half == 0)
                barrier_wait(arrived_at + place * 8, parity);
            begin_products();
#pragma unroll
            for (int step = 0; step < CHUNK_STEPS; step++)
#pragma unroll
                for (int p = 0; p < products; p++)
                    product_held<bf16, width, false>(
                        sum[p], left[half][step],
                        matrix_at(x_at + half * layout::panel_bytes + p * width * PANEL_ROW_BYTES + step * 32), 1);
            commit_products();
        }
        wait_products<0>();
        place = place == STAGES - 1 ? 0 : place + 1;
        parity ^= place == 0;
    }
#pragma unroll
    for (int p = 0; p < products; p++)
        pin(sum[p]);
    __syncthreads();
    float *own = (float *)ring;
    store_sums<TOKENS>(own, sum_line, sum);
    if (slices > 1)
        cluster_barrier();
    else
        __syncthreads();
    /* a block's share of the rows of x: four outputs per thread */
    const int columns = a.is_gated ? GROUP_ROWS : TILE_ROWS, fours = columns / 4;
    for (int i = slice * BLOCK_THREADS + (int)threadIdx.x; i < a.rows * fours; i += slices * BLOCK_THREADS) {
        const int row = i / fours, at = i % fours * 4;
        const float *from = own + row * sum_line + at;
        const float4 four = add_slices(from, slices);
        float y[4] = {four.x, four.y, four.z, four.w};
        if (a.is_gated) {
            const float4 up = add_slices(from + GROUP_ROWS, slices);
            y[0] = activate(a.act, y[0]) * up.x, y[1] = activate(a.act, y[1]) * up.y;
            y[2] = activate(a.act, y[2]) * up.z, y[3] = activate(a.act, y[3]) * up.w;
        }
        if (tile * columns + at < weight.out)
            finish(a, weight, row, tile * columns + at, y);
    }
    if (slices > 1)
        cluster_barrier(); /* others may still read these sums */
}

#endif
