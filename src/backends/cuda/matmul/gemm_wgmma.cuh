/* gemm_wgmma.cuh: c (M, N) = (a (M, K) @ b (K, N)) · gelu'(x) and the column sums of c, in bf16 by wgmma, on compute
 * capability 9.0a.
 *
 * A thread block computes tiles of 128 × 256, one after another. The two blocks of a cluster compute tiles one above
 * the other, and each copies half of their common operand b to both. Warpgroup 0 copies boxes of 64 along k, in a ring
 * of STAGES. Warpgroups 1 and 2 multiply: each has 64 rows of the tile in 128 registers per thread.
 *
 * The epilogue of a tile runs during the products of the next one: its sums are held, rounded to 16 bits, in 64
 * registers per thread, and one piece of 32 columns is processed while a box is multiplied. x is loaded and c stored
 * through shared memory, in panels of 64 columns. The columns of a panel are summed over its 64 rows by products with
 * ones; a second kernel adds these partial sums in order.
 *
 * The order of all sums depends on the shape alone. c is bitwise identical to a matmul followed by the elementwise
 * kernel. */
#ifndef TARN__CUDA_GEMM_WGMMA_CUH
#define TARN__CUDA_GEMM_WGMMA_CUH

#include "backends/cuda/common/tma.cuh"
#include "backends/cuda/elementwise/math.cuh"

#define TILE_M 128
#define TILE_N 256
#define TILE_K 64
#define PIECES 8 /* of an epilogue, 32 columns each, one per box; also the fewest boxes along k */
#define CLUSTER 2
#define GEMM_THREADS (3 * GROUP_THREADS)

/* Tensor maps, boxes of 64 columns. Rows of a box: a 128, c and x 64, b 64 if its rows are k, else 256 / CLUSTER. */
typedef struct gemm_args {
    CUtensorMap a, b, c, x; /* x: GELU's argument */
    float *sums;            /* (rows / 64, N): column sums of c over 64 rows */
    int m, n, blocks_k, tiles_n, tiles;
} gemm_args;

/* The form of operand b, and the layout of shared memory. */
template <bool IS_ROW_MAJOR_> struct gemm_shape {
    static constexpr bool IS_ROW_MAJOR = IS_ROW_MAJOR_; /* rows of b are k */
    static constexpr int STAGES = 4;
    static constexpr int A_BYTES = TILE_M * TILE_K * 2, B_BYTES = TILE_N * TILE_K * 2, STAGE_BYTES = A_BYTES + B_BYTES;
    static constexpr int PANEL_BYTES = GROUP_ROWS * PANEL_ROW_BYTES; /* of an epilogue; two per warpgroup */
    static constexpr int PANELS = STAGES * STAGE_BYTES, BARRIERS = PANELS + 4 * PANEL_BYTES;
    static constexpr int SHARED = BARRIERS + (2 * STAGES + 4) * 8 + 1024; /* aligned by hand */
};

/* Addresses of barriers: stage full, stage empty, panel of x loaded. */
template <typename S> struct gemm_barriers {
    uint32_t first;
    __device__ __forceinline__ uint32_t full(int slot) const
    {
        return first + slot * 8;
    }
    __device__ __forceinline__ uint32_t empty(int slot) const
    {
        return first + (S::STAGES + slot) * 8;
    }
    __device__ __forceinline__ uint32_t panel(int group, int slot) const
    {
        return first + (2 * S::STAGES + 2 * group + slot) * 8;
    }
};

/* A slot of a ring and the parity of its phase. */
template <int SLOTS> struct gemm_ring {
    int slot = 0;
    uint32_t parity = 0;
    __device__ __forceinline__ void advance()
    {
        slot++;
        if (slot == SLOTS)
            slot = 0, parity ^= 1;
    }
};

/* Iterates over the tiles of a cluster; row(rank) is that of the cluster's block `rank`. */
struct gemm_walk {
    int at, step, all, tiles_n;
    __device__ __forceinline__ gemm_walk(const gemm_args &g)
        : at(blockIdx.x / CLUSTER), step(gridDim.x / CLUSTER), all(g.tiles), tiles_n(g.tiles_n)
    {
    }
    __device__ __forceinline__ bool has_next() const
    {
        return at < all;
    }
    __device__ __forceinline__ void advance()
    {
        at += step;
    }
    __device__ __forceinline__ int row(int rank) const
    {
        return (at / tiles_n * CLUSTER + rank) * TILE_M;
    }
    __device__ __forceinline__ int column() const
    {
        return at % tiles_n * TILE_N;
    }
};

/* ---- copying ----------------------------------------------------------------------------------------------------- */

/* This block's part of operand b, for all blocks of the cluster. */
template <typename S>
__device__ __forceinline__ void copy_b(const gemm_args &g, uint32_t to, int k, int column, int rank, uint32_t barrier)
{
    constexpr int PART = TILE_N / CLUSTER;
    constexpr uint16_t ALL = (1 << CLUSTER) - 1;
    if constexpr (S::IS_ROW_MAJOR) {
#pragma unroll
        for (int panel = 0; panel < PART / PANEL; panel++) {
            const int first = rank * PART + panel * PANEL;
            load_box_to(to + first * TILE_K * 2, &g.b, column + first, k, barrier, ALL);
        }
    } else {
        load_box_to(to + rank * PART * PANEL_ROW_BYTES, &g.b, k, column + rank * PART, barrier, ALL);
    }
}

/* One thread. */
template <typename S>
__device__ __forceinline__ void copy_all(const gemm_args &g, uint32_t shared, const gemm_barriers<S> &barriers,
                                         int rank)
{
    gemm_ring<S::STAGES> stage;
    for (gemm_walk walk(g); walk.has_next(); walk.advance()) {
        const int row = walk.row(rank), column = walk.column();
        for (int block = 0; block < g.blocks_k; block++) {
            const uint32_t to = shared + stage.slot * S::STAGE_BYTES, full = barriers.full(stage.slot);
            barrier_wait(barriers.empty(stage.slot), stage.parity ^ 1);
            barrier_expect(full, S::STAGE_BYTES);
            load_box(to, &g.a, block * TILE_K, row, full);
            copy_b<S>(g, to + S::A_BYTES, block * TILE_K, column, rank, full);
            stage.advance();
        }
    }
}

/* ---- multiplying ------------------------------------------------------------------------------------------------- */

/* State of a multiplying warpgroup. */
template <typename S> struct gemm_group {
    const gemm_args &g;
    gemm_barriers<S> barriers;
    uint32_t shared, panels; /* its panels */
    uint32_t matrix;         /* of this lane's rows in a panel: see store_matrices() */
    int group, rank, lane, warp;
    bool is_first; /* thread of the warpgroup */
};

/* Products of one box. */
template <typename S>
__device__ __forceinline__ void issue_box(const gemm_group<S> &w, float (&sum)[32][4], int slot, int adds)
{
    const uint32_t stage = w.shared + slot * S::STAGE_BYTES, a = stage + w.group * GROUP_ROWS * PANEL_ROW_BYTES,
                   b = stage + S::A_BYTES;
    begin_products();
#pragma unroll
    for (int k = 0; k < TILE_K / 16; k++)
        product_wide<bf16, S::IS_ROW_MAJOR>(
            sum, matrix_at(a + k * 32),
            S::IS_ROW_MAJOR ? matrix_at(b + k * 16 * PANEL_ROW_BYTES, TILE_K * PANEL_ROW_BYTES) : matrix_at(b + k * 32),
            k > 0 ? 1 : adds);
    commit_products();
}

/* Releases the box: any block that copies to it may overwrite it. */
template <typename S> __device__ __forceinline__ void release_box(const gemm_group<S> &w, int slot)
{
    if (w.lane < CLUSTER)
        barrier_arrive_at(w.barriers.empty(slot), w.lane);
}

/* ---- epilogue ---------------------------------------------------------------------------------------------------- */

__device__ __forceinline__ void group_sync(int group)
{
    asm volatile("bar.sync %0, %1;" ::"r"(group + 1), "n"(GROUP_THREADS) : "memory");
}

/* Two values in one register. */
__device__ __forceinline__ float low_of(uint32_t two)
{
    return __uint_as_float(two << 16);
}
__device__ __forceinline__ float high_of(uint32_t two)
{
    return __uint_as_float(two & 0xffff0000u);
}

/* Position of the held sums in c. */
typedef struct held_tile {
    int row, column; /* of this warpgroup */
} held_tile;

/* Column sums of a panel over its 64 rows: each warp has 16 columns, and multiplies by ones. */
template <typename S>
__device__ __forceinline__ void sum_panel(const gemm_group<S> &w, uint32_t panel, const held_tile &at, int column)
{
    const uint32_t ones[4] = {0x3f803f80u, 0x3f803f80u, 0x3f803f80u, 0x3f803f80u};
    float sum[2][4] = {};
#pragma unroll
    for (int k = 0; k < GROUP_ROWS / 16; k++) {
        uint32_t right[4];
        load_matrices_trans_at(right, panel + swizzled(k * 16 + w.lane % 16, w.warp * 2 + w.lane / 16));
        mma<bf16>(sum[0], ones, right[0], right[1]);
        mma<bf16>(sum[1], ones, right[2], right[3]);
    }
    const int to = column + w.warp * 16 + w.lane * 2;
    float *line = w.g.sums + (int64_t)(at.row / GROUP_ROWS) * w.g.n;
    if (w.lane < 4 && at.row < w.g.m) {
        if (to < w.g.n)
            *(float2 *)(line + to) = make_float2(sum[0][0], sum[0][1]);
        if (to + 8 < w.g.n)
            *(float2 *)(line + to + 8) = make_float2(sum[1][0], sum[1][1]);
    }
}

/* Results of 16 columns from the held sums, in place. */
__device__ __forceinline__ void finish(uint32_t *c, const uint32_t *x)
{
#pragma unroll
    for (int i = 0; i < 4; i++)
        c[i] = pack2<bf16>(low_of(c[i]) * approx_math::gelu_grad(low_of(x[i])),
                           high_of(c[i]) * approx_math::gelu_grad(high_of(x[i])));
}

/* Starts the copy of a panel of x; one thread. */
template <typename S> __device__ __forceinline__ void load_panel(const gemm_group<S> &w, int slot, int column, int row)
{
    const uint32_t barrier = w.barriers.panel(w.group, slot);
    barrier_expect(barrier, S::PANEL_BYTES);
    load_box(w.panels + slot * S::PANEL_BYTES, &w.g.x, column, row, barrier);
}

/* Before the first piece of a panel: waits until its memory is free, and starts the copy of the next panel of x; `next`
 * is the tile after this one. */
template <typename S>
__device__ __forceinline__ void open_panel(const gemm_group<S> &w, int panel, const held_tile &at,
                                           const held_tile &next, bool has_next, uint32_t parity)
{
    if (w.is_first)
        wait_stores_read<0>();
    group_sync(w.group);
    const bool is_last = panel == PIECES / 2 - 1;
    if (w.is_first && (!is_last || has_next))
        load_panel(w, (panel + 1) % 2, is_last ? next.column : at.column + (panel + 1) * PANEL,
                   is_last ? next.row : at.row);
    barrier_wait(w.barriers.panel(w.group, panel % 2), parity);
}

/* After the last piece of a panel: stores it. */
template <typename S>
__device__ __forceinline__ void close_panel(const gemm_group<S> &w, int panel, const held_tile &at)
{
    const uint32_t c = w.panels + panel % 2 * S::PANEL_BYTES;
    const int column = at.column + panel * PANEL;
    publish_shared();
    group_sync(w.group);
    if (w.is_first) {
        store_box(&w.g.c, column, at.row, c);
        commit_stores();
    }
    sum_panel(w, c, at, column);
}

/* Processes one piece of the held sums. */
template <typename S>
__device__ __forceinline__ void finish_piece(const gemm_group<S> &w, uint32_t (&held)[64], int piece,
                                             const held_tile &at, const held_tile &next, bool has_next,
                                             uint32_t &parity)
{
    const int panel = piece / 2;
    if (piece % 2 == 0)
        open_panel(w, panel, at, next, has_next, parity);
    const uint32_t to = w.panels + panel % 2 * S::PANEL_BYTES;
#pragma unroll
    for (int i = 0; i < 2; i++) {
        const uint32_t matrix = to + (w.matrix ^ ((piece % 2 * 2 + i) * 32));
        uint32_t *c = held + piece * 8 + i * 4, x[4];
        load_matrices_at(x, matrix);
        finish(c, x);
        store_matrices(matrix, c);
    }
    if (piece % 2 == 1) {
        close_panel(w, panel, at);
        if (panel % 2 == 1)
            parity ^= 1;
    }
}

/* Rounds the accumulators into held sums. */
__device__ __forceinline__ void hold_sums(const float (&sum)[32][4], uint32_t (&held)[64])
{
#pragma unroll
    for (int n = 0; n < 32; n++) {
        held[2 * n] = pack2<bf16>(sum[n][0], sum[n][1]);
        held[2 * n + 1] = pack2<bf16>(sum[n][2], sum[n][3]);
    }
}

/* Warpgroups 1 and 2. */
template <typename S> __device__ __forceinline__ void multiply_all(const gemm_group<S> &w)
{
    gemm_ring<S::STAGES> stage;
    float sum[32][4] = {};
    uint32_t held[64] = {}, parity = 0;
    held_tile at = {0, 0};
    bool has_held = false;
    for (gemm_walk walk(w.g); walk.has_next(); walk.advance()) {
        const held_tile next = {walk.row(w.rank) + w.group * GROUP_ROWS, walk.column()};
        int before = 0; /* slot of the box before */
        if (!has_held && w.is_first)
            load_panel(w, 0, next.column, next.row);
#pragma unroll
        for (int block = 0; block < PIECES; block++) {
            barrier_wait(w.barriers.full(stage.slot), stage.parity);
            issue_box(w, sum, stage.slot, block > 0);
            if (has_held)
                finish_piece(w, held, block, at, next, true, parity);
            wait_products<1>();
            if (block > 0)
                release_box(w, before);
            before = stage.slot;
            stage.advance();
        }
        for (int block = PIECES; block < w.g.blocks_k; block++) {
            barrier_wait(w.barriers.full(stage.slot), stage.parity);
            issue_box(w, sum, stage.slot, 1);
            wait_products<1>();
            release_box(w, before);
            before = stage.slot;
            stage.advance();
        }
        wait_products<0>();
        pin(sum);
        release_box(w, before);
        hold_sums(sum, held);
        at = next;
        has_held = true;
    }
    if (has_held) {
#pragma unroll
        for (int piece = 0; piece < PIECES; piece++)
            finish_piece(w, held, piece, at, at, false, parity);
    }
    if (w.is_first)
        wait_stores();
}

/* ---- kernel ------------------------------------------------------------------------------------------------------ */

template <typename S>
static __global__ void __cluster_dims__(CLUSTER, 1, 1) __launch_bounds__(GEMM_THREADS, 1)
    gemm_wgmma(const __grid_constant__ gemm_args g)
{
    extern __shared__ char memory[];
    const uint32_t shared = (shared_address(memory) + 1023) & ~1023u;
    const gemm_barriers<S> barriers = {shared + S::BARRIERS};
    const int warp = __shfl_sync(FULL_WARP, threadIdx.x / WARP, 0), rank = (int)cluster_rank();
    if (threadIdx.x == 0) {
        for (int slot = 0; slot < S::STAGES; slot++) {
            barrier_init(barriers.full(slot), 1);
            barrier_init(barriers.empty(slot), 8 * CLUSTER);
        }
        for (int slot = 0; slot < 4; slot++)
            barrier_init(barriers.panel(slot / 2, slot % 2), 1);
        publish_barriers();
    }
    cluster_sync();
    if (warp < 4) {
        lower_registers<24>();
        if (threadIdx.x == 0)
            copy_all<S>(g, shared, barriers, rank);
    } else {
        raise_registers<240>();
        const int lane = threadIdx.x % WARP, group = warp / 4 - 1;
        multiply_all<S>({g, barriers, shared, shared + S::PANELS + group * 2 * S::PANEL_BYTES,
                         warp % 4 * 16 * PANEL_ROW_BYTES + swizzled(lane % 16, lane / 16), group, rank, lane, warp % 4,
                         threadIdx.x % GROUP_THREADS == 0});
    }
    __syncwarp();
    cluster_sync();
}

#endif
