/* attention_wgmma_grad.cuh: gradients of attention in bf16 and f16 for D of 33 to 128 on compute capability 9.0a;
 * attention_grad.cu has the formulas, wgmma.cuh the products.
 *
 * One kernel, two roles. A block owns 128 rows of two operands, `own`, and walks tiles of N rows of two others:
 *
 *             own     tiles   S = own[0] · tile[0]ᵀ   dP = own[1] · tile[1]ᵀ
 *   of keys   k, v    q, g    Sᵀ                      dPᵀ                       gv += Pᵀ · g,  gk += dSᵀ · q
 *   of rows   q, g    k, v    S                       dP                        gq += dS · k
 *
 * P and dS stay in the registers of the two warpgroups that compute them, as left operands: 64 of the 128 rows each. A
 * third warpgroup copies tiles ahead through a ring of stages. Blocks are persistent: the next operands arrive while
 * the results of the last are written. Of causal heads a unit of work is one of the first tiles with one of the last,
 * so that units are equally long. Nothing is added across blocks: runs are bitwise identical.
 *
 * Dropout masks are drawn once, by a kernel before the two (attention_wgmma_grad_masks.cuh), as bits in the order in
 * which the lanes of each role read them. */
#ifndef TARN__CUDA_ATTENTION_WGMMA_GRAD_CUH
#define TARN__CUDA_ATTENTION_WGMMA_GRAD_CUH

#include "backends/cuda/attention/attention_mma.cuh"
#include "backends/cuda/common/wgmma.cuh"

#define OWN_ROWS (2 * GROUP_ROWS)
#define WGMMA_THREADS (3 * GROUP_THREADS)
#define ALIGNMENT 1024 /* of tiles */
#define USERS 8        /* warps that use a stage: each says when it is done */

/* The shape of a kernel: D, rows of a tile, its role, how many operands of `own` are in registers, stages, and buffers
 * of `own`. */
template <int DEPTH_, int N_, bool is_of_keys_, int HELD_, int STAGES_, int BUFFERS_, bool drops_ = false>
struct grad_shape {
    static constexpr int DEPTH = DEPTH_, N = N_, HELD = HELD_, STAGES = STAGES_, BUFFERS = BUFFERS_;
    static constexpr bool is_of_keys = is_of_keys_, drops = drops_;
    /* Registers of a thread where tiles overlap: results, S and dP, P and dS as left operands, P without dropout, and
     * `own`. If there are too many, a tile's products end before the next begin. */
    static constexpr int REGISTERS = (is_of_keys ? 2 : 1) * DEPTH / 2 + N / 4 + (is_of_keys ? N / 4 : N / 2) + N +
                                     (is_of_keys && drops ? N / 4 : 0) + HELD * DEPTH / 4;
    static constexpr bool is_crowded = REGISTERS > 208;
    static constexpr uint32_t OWN_BYTES = OWN_ROWS * DEPTH * 2, TILE_BYTES = N * DEPTH * 2;
    /* Of keys: LSE and delta with every tile. Of rows: the LSE with `own`, and a third operand, y, for delta. */
    static constexpr int OPERANDS = is_of_keys ? 2 : 3, STATS_BYTES = is_of_keys ? N * 8 : OWN_ROWS * 4;
    /* offsets in shared memory */
    static constexpr uint32_t TILES = OPERANDS * BUFFERS * OWN_BYTES, STATS = TILES + 2 * STAGES * TILE_BYTES,
                              BARRIERS = STATS + (is_of_keys ? STAGES : BUFFERS) * STATS_BYTES,
                              BYTES = BARRIERS + (STAGES + BUFFERS) * 16;
};

/* ---- work -------------------------------------------------------------------------------------------------------- */

struct grad_work {
    int own, other; /* rows of `own` and of the tiles' operands, in a head */
    int shift;      /* causal: row t attends to keys up to t + shift */
    int tiles;      /* of OWN_ROWS */
    int pairs;      /* units of a head */
    int units, group;
    bool is_causal;
};

/* Rows `begin` … `end` of the other operands that an own tile needs. */
struct row_range {
    int begin, end;
};

/* Of OWN_ROWS rows; and units of a head. */
__host__ __device__ static inline int64_t tiles_of(int64_t own)
{
    return (own + OWN_ROWS - 1) / OWN_ROWS;
}
__host__ __device__ static inline int64_t pairs_of(int64_t tiles, bool is_causal)
{
    return is_causal ? (tiles + 1) / 2 : tiles;
}

template <bool is_of_keys> static inline int64_t units_of(const attention_args &a)
{
    return a.batches * (is_of_keys ? a.kv_heads : a.heads) *
           pairs_of(tiles_of(is_of_keys ? a.keys : a.rows), a.is_causal);
}

template <bool is_of_keys> __device__ __forceinline__ grad_work work_of(const attention_args &a)
{
    grad_work w;
    w.own = (int)(is_of_keys ? a.keys : a.rows), w.other = (int)(is_of_keys ? a.rows : a.keys);
    w.is_causal = a.is_causal;
    w.shift = (int)(a.keys - a.rows);
    w.tiles = (int)tiles_of(w.own);
    w.pairs = (int)pairs_of(w.tiles, w.is_causal);
    w.units = (int)(a.batches * (is_of_keys ? a.kv_heads : a.heads)) * w.pairs;
    w.group = is_of_keys ? (int)a.group : 1;
    return w;
}

/* For own rows `first` … `first + count - 1`: whole tiles from the first that is needed. */
template <bool is_of_keys, int N>
__device__ __forceinline__ row_range range_of(const grad_work &w, int first, int count)
{
    if (!w.is_causal)
        return {0, w.other};
    if (is_of_keys)
        return {max(0, first - w.shift) / N * N, w.other};
    return {0, min(w.other, max(0, min(first + count, w.own) + w.shift))};
}

template <int N> __device__ __forceinline__ int tiles_in(const row_range &r)
{
    return r.begin < r.end ? (r.end - r.begin + N - 1) / N : 0;
}

/* One own tile: its head, and its first row. */
struct own_tile {
    int batch, head, first;
};

/* Calls f(own_tile) for every own tile of this block, in the same order in all its warps. */
template <bool is_of_keys, typename F>
__device__ __forceinline__ void for_own_tiles(const attention_args &a, const grad_work &w, const F &f)
{
    const int heads = (int)(is_of_keys ? a.kv_heads : a.heads);
    for (int unit = blockIdx.x; unit < w.units; unit += gridDim.x) {
        const int head = unit / w.pairs, tile = unit % w.pairs, other = w.tiles - 1 - tile,
                  count = w.is_causal && other != tile ? 2 : 1;
        for (int i = 0; i < count; i++)
            f(own_tile{head / heads, head % heads, (i == 0 ? tile : other) * OWN_ROWS});
    }
}

/* A place in a ring of SIZE buffers; its parity is the phase of the barriers. */
template <int SIZE> struct ring {
    int slot = 0;
    uint32_t parity = 0;
    __device__ __forceinline__ void advance()
    {
        slot = slot + 1 == SIZE ? 0 : slot + 1;
        parity ^= slot == 0;
    }
};

/* Barriers of the rings: of stage s, then of buffer b of `own`. */
template <typename S> struct grad_barriers {
    uint32_t at;
    __device__ __forceinline__ uint32_t full(int slot) const
    {
        return at + slot * 16;
    }
    __device__ __forceinline__ uint32_t empty(int slot) const
    {
        return at + slot * 16 + 8;
    }
    __device__ __forceinline__ uint32_t own_full(int buffer) const
    {
        return full(S::STAGES + buffer);
    }
    __device__ __forceinline__ uint32_t own_empty(int buffer) const
    {
        return empty(S::STAGES + buffer);
    }
};

/* This warp is done with a buffer. */
__device__ __forceinline__ void release(uint32_t empty)
{
    __syncwarp();
    if (threadIdx.x % WARP == 0)
        barrier_arrive(empty);
}

#endif
