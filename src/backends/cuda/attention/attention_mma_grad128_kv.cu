/* attention_mma_grad128_kv.cu: gk and gv; attention_mma_grad128.cuh has the tiles, attention_grad.cu the formulas.
 *
 * Both sums of 32 keys do not fit into a warp's registers. So two warps share them: one makes weights (k · qᵀ) and gv,
 * the other slopes (v · gᵀ) and gk. Weights are handed over in shared memory, as the packed pairs that they are as left
 * operands, a tile later: in each round the first four warps work on one tile and the last four on the one before.
 * Slopes are made of these rounded weights. */
#include "backends/cuda/attention/attention_mma_grad128.cuh"

#define STAGES 3 /* tiles of rows: one for weights, one for slopes, one on its way */
#define KEYS_THREADS (2 * MMA_THREADS)

/* Of shared memory: two operands that stay and tiles of two others, and two tiles of weights for each pair of warps. */
template <typename T, int DEPTH>
constexpr size_t keys_bytes = (size_t)((2 * SIDE + 2 * STAGES * NEXT) * line_of<DEPTH>)*sizeof(T) +
                              2 * MMA_THREADS *PACKS * sizeof(uint4);

/* ---- weights and slopes ------------------------------------------------------------------------------------------ */

/* A tile of rows as a warp of keys sees it. */
struct row_tile {
    const float *logarithms, *sums; /* of its rows; Σ g · y */
    const int *starts;              /* counted from the block's first key */
    int64_t head;                   /* of those of all batches */
    int row, key, valid;            /* the first row, the warp's first key, and how many keys there are */
    int all_from;                   /* the first row that looks at all of the warp's keys */
};

/* Where row t begins, from the block's first key on: SIDE is behind its last. */
__device__ __forceinline__ int block_start_of(const attention_args &a, int64_t batch, int t, int key)
{
    const int64_t start = t < a.rows ? start_of(a, batch, t) - key : SIDE;
    return (int)(start < 0 ? 0 : start < SIDE ? start : SIDE);
}

/* Whether every row of the tile looks at every key of the warp. */
template <bool is_general> __device__ __forceinline__ bool is_whole(const attention_args &a, const row_tile &t)
{
    const bool is_seen = t.row >= t.all_from && t.row + NEXT <= (int)a.rows;
    return is_seen && (!is_general || __all_sync(FULL_WARP, t.starts[threadIdx.x % NEXT] <= t.key % SIDE));
}

/* Products (32 keys, NEXT rows) become weights. */
template <bool is_general, bool is_masked>
__device__ __forceinline__ void weigh(const attention_args &a, tile_sums &product, const row_tile &t)
{
    const int lane = threadIdx.x % WARP, column = lane % 4 * 2;
    const float scale = (float)(a.scale * LOG2_E);
#pragma unroll
    for (int m = 0; m < 2; m++)
#pragma unroll
        for (int n = 0; n < NEXT / 8; n++) {
            const float2 logarithms = *(const float2 *)&t.logarithms[n * 8 + column];
#pragma unroll
            for (int i = 0; i < 4; i++) {
                const int key = t.key + m * 16 + lane / 4 + i / 2 * 8, at = n * 8 + column + i % 2;
                const float p = power_of_2(product[m][n][i] * scale - (i % 2 ? logarithms.y : logarithms.x));
                bool counts = true;
                if constexpr (is_masked)
                    counts = t.row + at >= first_row_of(a, t.valid, key) && t.row + at < a.rows &&
                             (!is_general || t.starts[at] <= key % SIDE);
                product[m][n][i] = counts ? p : 0;
            }
        }
}

/* Weights as left operands, and the same handed over. */
template <typename T>
__device__ __forceinline__ void hand_over(const tile_sums &weight, left_operands &left, uint4 *handed)
{
#pragma unroll
    for (int at = 0; at < PACKS; at++) {
        const int m = at / 2, n = at % 2;
        const float *one = weight[m][2 * n], *next = weight[m][2 * n + 1];
        uint32_t *words = left[m][n];
        words[0] = two_of<T>(one[0], one[1]), words[1] = two_of<T>(one[2], one[3]);
        words[2] = two_of<T>(next[0], next[1]), words[3] = two_of<T>(next[2], next[3]);
        handed[at * WARP + threadIdx.x % WARP] = make_uint4(words[0], words[1], words[2], words[3]);
    }
}

/* Weights that were handed over are dropped: their signs are set, and they are 0 on the left. */
template <typename T>
__device__ __forceinline__ void drop_handed(const attention_args &a, tile_sums &weight, const row_tile &t,
                                            left_operands &left, uint4 *handed)
{
    const source random = settled(a.random);
    left_operands dropped;
#pragma unroll
    for (int at = 0; at < PACKS; at++) {
        uint32_t kept[2];
        kept_by_keys(a, random, t.head, t.row + at % 2 * 16, t.key + at / 2 * 16, kept);
#pragma unroll
        for (int i = 0; i < 8; i++) {
            float &p = weight[at / 2][at % 2 * 2 + i / 4][i % 4];
            p = kept[i / 4] >> bit_by_keys(i % 4) & 1 ? p : -p;
        }
    }
    hand_over<T>(weight, dropped, handed);
#pragma unroll
    for (int at = 0; at < PACKS; at++)
#pragma unroll
        for (int i = 0; i < 4; i++) {
            const float *p = &weight[at / 2][at % 2 * 2 + i / 2][i % 2 * 2];
            left[at / 2][at % 2][i] = two_of<T>(signbit(p[0]) ? 0 : a.kept * p[0], signbit(p[1]) ? 0 : a.kept * p[1]);
        }
}

/* Products v · gᵀ (32 keys, NEXT rows) and handed weights become slopes, as left operands. Those of masked weights are
 * 0 whatever v is. */
template <typename T, bool is_masked, bool is_dropping>
__device__ __forceinline__ void make_slopes(const attention_args &a, const tile_sums &product, const row_tile &t,
                                            left_operands &left, const uint4 *handed)
{
    const int lane = threadIdx.x % WARP, column = lane % 4 * 2;
#pragma unroll
    for (int at = 0; at < PACKS; at++) {
        const uint4 packed = handed[at * WARP + lane];
        const uint32_t words[4] = {packed.x, packed.y, packed.z, packed.w};
#pragma unroll
        for (int i = 0; i < 4; i++) {
            const int n = at % 2 * 2 + i / 2;
            const float2 both = *(const float2 *)&t.sums[n * 8 + column];
            const float *pull = &product[at / 2][n][i % 2 * 2], sums[2] = {both.x, both.y};
            float p[2], slope[2];
            pack<T, 2> two;
            memcpy(&two, &words[i], sizeof(two));
            widen_pack(two, p);
#pragma unroll
            for (int j = 0; j < 2; j++) {
                const float factor = is_dropping ? (signbit(p[j]) ? 0 : a.kept) : 1;
                slope[j] = fabsf(p[j]) * (factor * pull[j] - sums[j]);
                if constexpr (is_masked)
                    slope[j] = p[j] == 0 ? 0 : slope[j];
            }
            left[at / 2][at % 2][i] = two_of<T>(slope[0], slope[1]);
        }
    }
}

/* The left operands of one of the two warps that share keys. */
template <typename T, bool is_general, bool can_drop>
__device__ __forceinline__ void make_left(const attention_args &a, bool is_of_slopes, tile_sums &product,
                                          const row_tile &t, left_operands &left, uint4 *handed)
{
    const bool is_dropping = is_general && can_drop && a.is_dropping,
               is_plain = !is_dropping && is_whole<is_general>(a, t);
    if (is_of_slopes) {
        if (is_plain)
            make_slopes<T, false, false>(a, product, t, left, handed);
        else if (!is_dropping)
            make_slopes<T, true, false>(a, product, t, left, handed);
        else
            make_slopes<T, true, true>(a, product, t, left, handed);
        return;
    }
    if (is_plain)
        weigh<is_general, false>(a, product, t);
    else
        weigh<is_general, true>(a, product, t);
    if (is_dropping)
        drop_handed<T>(a, product, t, left, handed);
    else
        hand_over<T>(product, left, handed);
}

/* ---- the kernel -------------------------------------------------------------------------------------------------- */

/* gk and gv of 128 keys, over the rows of all heads that look at them, in order. */
template <typename T, int DEPTH, bool is_general>
static __global__ void __launch_bounds__(KEYS_THREADS, DEPTH <= 64 ? 2 : 1)
    keys_kernel(const __grid_constant__ attention_args a)
{
    extern __shared__ uint4 shared[];
    __shared__ alignas(8) float sums[STAGES][2][NEXT]; /* logarithms, and Σ g · y */
    __shared__ int starts[STAGES][is_general ? NEXT : 1];
    constexpr int LINE = line_of<DEPTH>, TILE = NEXT * LINE;
    T *const k_at = (T *)shared, *const v_at = k_at + SIDE * LINE, *const q_at = v_at + SIDE * LINE,
             *const g_at = q_at + STAGES * TILE;
    const int warp = threadIdx.x / WARP % MMA_WARPS;
    const bool is_of_slopes = threadIdx.x >= MMA_THREADS;
    uint4 *const handed_at = (uint4 *)(g_at + STAGES * TILE) + warp * 2 * PACKS * WARP;
    const block_place at = place_of(a, a.kv_heads, false);
    const int rows = (int)a.rows, valid = (int)valid_keys(a, at.batch), key = (int)at.block * SIDE,
              begin = (int)first_row_of(a, valid, key) / NEXT * NEXT;
    int end = rows;
    if constexpr (is_general) {
        __shared__ int64_t space[WARP];
        end = (int)end_of_rows(a, at.batch, begin, key + SIDE - 1, space);
    }
    const int tiles = begin < end ? (end - begin + NEXT - 1) / NEXT : 0, count = tiles * (int)a.group;
    /* the warp's first key; and the first rows that look at any and at all of its keys */
    const int own = key + warp * OWN;
    const int seen_from = (int)first_row_of(a, valid, own), all_from = (int)first_row_of(a, valid, own + OWN - 1);
    const pack_column<T> q_column = column_of<T, DEPTH>(a.q, at.batch, 0, a.depth),
                         g_column = column_of<T, DEPTH>(a.g, at.batch, 0, a.depth);
    const float2 *const sums_at = (const float2 *)a.rows_sums + at.batch * a.heads * a.rows;
    auto stage = [&](int slot, int head, int row) {
        const pack_column<T> q = {q_column.from + (uint64_t)(uint32_t)head * (uint32_t)a.q.stride[1], q_column.line,
                                  q_column.is_there};
        const pack_column<T> g = {g_column.from + (uint64_t)(uint32_t)head * (uint32_t)a.g.stride[1], g_column.line,
                                  g_column.is_there};
        stage_next<T, DEPTH, KEYS_THREADS>(q_at + slot * TILE, q, row, rows);
        stage_next<T, DEPTH, KEYS_THREADS>(g_at + slot * TILE, g, row, rows);
        const int which = threadIdx.x / NEXT, t = row + threadIdx.x % NEXT;
        const uint64_t number = (uint64_t)(uint32_t)head * (uint32_t)rows + (uint32_t)(t < rows ? t : 0);
        if (which < 2)
            copy_word(&sums[slot][which][threadIdx.x % NEXT], (const float *)(sums_at + number) + which, t < rows);
    };
    /* of the next tile, and of the one that the warp works on */
    int head = (int)(at.head * a.group), row = begin, own_head = head, own_row = begin;
    if (count > 0) {
        stage_tile<T, SIDE, DEPTH, KEYS_THREADS>(k_at, slab_of(a.k, at.batch, at.head), key, valid, a.depth);
        stage_tile<T, SIDE, DEPTH, KEYS_THREADS>(v_at, slab_of(a.v, at.batch, at.head), key, valid, a.depth);
        stage(0, head, row);
        if (is_general && threadIdx.x < NEXT)
            starts[0][threadIdx.x] = block_start_of(a, at.batch, row + threadIdx.x, key);
    }
    float sum[2][DEPTH / 8][4] = {};
    for (int tile = 0; count > 0 && tile <= count; tile++) {
        wait_copies();
        __syncthreads(); /* this tile is here, and all are done with the one two before */
        const int next = (tile + 1) % STAGES;
        const bool has_next = tile + 1 < count;
        int next_start = 0; /* on its way while this tile is worked on */
        head += row + NEXT >= end, row = row + NEXT >= end ? begin : row + NEXT;
        if (has_next) {
            stage(next, head, row);
            if (is_general && threadIdx.x < NEXT)
                next_start = block_start_of(a, at.batch, row + threadIdx.x, key);
        }
        const int mine = tile - is_of_slopes, slot = (mine + STAGES) % STAGES;
        if (mine >= 0 && mine < count) {
            const row_tile t = {sums[slot][0], sums[slot][1], starts[slot], at.batch * a.heads + own_head,
                                own_row,       own,           valid,        all_from};
            if (seen_from < own_row + NEXT &&
                (!is_general || __any_sync(FULL_WARP, t.starts[threadIdx.x % NEXT] < warp * OWN + OWN))) {
                const T *q = q_at + slot * TILE, *g = g_at + slot * TILE;
                tile_sums product;
                left_operands left;
                multiply_both_across<T, DEPTH>(product, (is_of_slopes ? v_at : k_at) + warp * OWN * LINE,
                                               is_of_slopes ? g : q);
                make_left<T, is_general, drops_wide<DEPTH>>(a, is_of_slopes, product, t, left,
                                                            handed_at + mine % 2 * PACKS * WARP);
                multiply_both_along<T, DEPTH>(sum, left, is_of_slopes ? q : g);
            }
            own_head += own_row + NEXT >= end, own_row = own_row + NEXT >= end ? begin : own_row + NEXT;
        }
        if (is_general && has_next && threadIdx.x < NEXT)
            starts[next][threadIdx.x] = next_start;
    }
    const float factor = is_of_slopes ? (float)a.scale : 1, factors[2] = {factor, factor};
    const cube &to = is_of_slopes ? a.gk : a.gv;
#pragma unroll
    for (int m = 0; m < 2; m++)
        if (to.base)
            write_tile<T, DEPTH>(slab_of(to, at.batch, at.head), sum[m], factors, own + m * 16, a.keys, 0, a.depth);
}

/* Grid: a block for 128 keys of a head. Multiplications: rows · keys · D · 4. Of shared memory 81 KB for D = 64, so
 * that two blocks fit on a multiprocessor of 228 KB, and 139 KB for D = 128. */
template <typename T> static bool launch(const tarn__call *call, const attention_args &a)
{
    const int64_t blocks = a.batches * a.kv_heads * a.blocks;
    FOR_WIDE(a, return start<keys_kernel<T, DEPTH, is_general>, KEYS_THREADS>(call, a, blocks, keys_bytes<T, DEPTH>))
}

bool tarn__cuda_attention_mma_grad128_kv(const tarn__call *call, attention_args *a)
{
    a->windows = 1;
    a->blocks = (a->keys + SIDE - 1) / SIDE;
    if ((!a->gk.base && !a->gv.base) || a->blocks == 0)
        return true;
    return a->q.dtype == TARN_BF16 ? launch<bf16>(call, *a) : launch<f16>(call, *a);
}
