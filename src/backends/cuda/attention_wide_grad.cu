/* attention_wide_grad.cu: the gradients of attention in bf16 and f16 for heads of 33 to 64 and 97 to 128 columns; attention_grad.cu has the formulas.
 *
 * A block has 128 keys or rows and goes through the others 32 at a time. A warp has 32 of them, so that what it loads from shared memory as a right
 * operand serves two products of 16: that traffic is what limits kernels whose warps have 16.
 *
 * Keys have two sums, gv and gk, and both of 32 keys do not fit into a warp's registers. So two warps share them: one makes weights (k · qᵀ) and gv,
 * the other slopes (v · gᵀ) and gk. Weights are handed over in shared memory, as the packed pairs that they are as left operands, a tile later: in
 * each round the first four warps work on one tile and the last four on the one before. Slopes are made of these rounded weights. */
#include "backends/cuda/attention_mma.cuh"

#define SIDE 128 /* keys or rows of a block */
#define OWN 32   /* of a warp */
#define NEXT 32  /* rows of a tile that comes and goes */
#define STAGES 3 /* tiles of rows: one for weights, one for slopes, one on its way */
#define KEYS_THREADS (2 * MMA_THREADS)
#define PACKS (2 * NEXT / 16) /* of 16 bytes, that a lane has of a tile of weights */

/* Shared memory: two operands that stay, and tiles of two others; beside keys also two tiles of weights for each pair of warps. */
template <typename T, int DEPTH> constexpr size_t keys_bytes =
    (size_t)((2 * SIDE + 2 * STAGES * NEXT) * line_of<DEPTH>) * sizeof(T) + 2 * MMA_THREADS * PACKS * sizeof(uint4);
template <typename T, int DEPTH> constexpr size_t rows_bytes = (size_t)((2 * SIDE + 4 * NEXT) * line_of<DEPTH>) * sizeof(T);

/* ---- tiles that come and go --------------------------------------------------------------------------------------------------- */

/* This thread's pack of each row of a head. */
template <typename T> struct pack_column {
    const T *from; /* in the first row */
    uint32_t line; /* elements from row to row */
    bool is_there; /* not behind D */
};

template <typename T, int DEPTH> __device__ __forceinline__ pack_column<T> column_of(const cube &x, int64_t batch, int64_t head, int64_t depth)
{
    const int column = threadIdx.x % (DEPTH / 8) * 8;
    const slab s = slab_of(x, batch, head);
    return {(const T *)s.base + (column < depth ? column : 0), (uint32_t)s.row, column < depth};
}

/* NEXT rows from `row`; what is not below `rows` is 0. */
template <typename T, int DEPTH, int THREADS_OF_BLOCK>
__device__ __forceinline__ void stage_next(T *to, const pack_column<T> &x, int row, int rows)
{
    constexpr int AT_ONCE = THREADS_OF_BLOCK / (DEPTH / 8);
    const int first = threadIdx.x / (DEPTH / 8), column = threadIdx.x % (DEPTH / 8) * 8;
#pragma unroll
    for (int i = 0; i < NEXT; i += AT_ONCE) {
        const bool is_there = x.is_there && row + first + i < rows;
        copy_pack(to + (first + i) * line_of<DEPTH> + column, x.from + (uint64_t)(uint32_t)(is_there ? row + first + i : 0) * x.line, is_there);
    }
}

/* ---- products of a warp's 32 rows -------------------------------------------------------------------------------------------- */

typedef float tile_sums[2][NEXT / 8][4];       /* (32, NEXT): two times 16 rows, 8 columns a product */
typedef uint32_t left_operands[2][NEXT / 16][4]; /* the same as a left operand */

/* sum (32, NEXT) = rows · rightᵀ over all of D. */
template <typename T, int DEPTH> __device__ __forceinline__ void multiply_both_across(tile_sums &sum, const T *rows, const T *right)
{
    const int lane = threadIdx.x % WARP;
#pragma unroll
    for (int m = 0; m < 2; m++)
#pragma unroll
        for (int n = 0; n < NEXT / 8; n++)
            sum[m][n][0] = sum[m][n][1] = sum[m][n][2] = sum[m][n][3] = 0;
#pragma unroll
    for (int step = 0; step < DEPTH / 16; step++) {
        uint32_t left[2][4];
        load_left<T, DEPTH>(left[0], rows, step);
        load_left<T, DEPTH>(left[1], rows + 16 * line_of<DEPTH>, step);
#pragma unroll
        for (int n = 0; n < NEXT / 16; n++) {
            uint32_t b[4];
            load_matrices(b, right + (n * 16 + lane % 8 + lane / 16 * 8) * line_of<DEPTH> + step * 16 + lane / 8 % 2 * 8);
#pragma unroll
            for (int m = 0; m < 2; m++) {
                multiply<T>(sum[m][2 * n], left[m], b[0], b[1]);
                multiply<T>(sum[m][2 * n + 1], left[m], b[2], b[3]);
            }
        }
    }
}

/* sum (32, D) += left (32, NEXT) · right. */
template <typename T, int DEPTH>
__device__ __forceinline__ void multiply_both_along(float (&sum)[2][DEPTH / 8][4], const left_operands &left, const T *right)
{
    const int lane = threadIdx.x % WARP;
#pragma unroll
    for (int n = 0; n < NEXT / 16; n++)
#pragma unroll
        for (int w = 0; w < DEPTH / 16; w++) {
            uint32_t b[4];
            load_turned(b, right + (n * 16 + lane % 16) * line_of<DEPTH> + w * 16 + lane / 16 * 8);
#pragma unroll
            for (int m = 0; m < 2; m++) {
                multiply<T>(sum[m][2 * w], left[m][n], b[0], b[1]);
                multiply<T>(sum[m][2 * w + 1], left[m][n], b[2], b[3]);
            }
        }
}

/* ---- gk and gv --------------------------------------------------------------------------------------------------------------- */

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
                    counts = t.row + at >= first_row_of(a, t.valid, key) && t.row + at < a.rows && (!is_general || t.starts[at] <= key % SIDE);
                product[m][n][i] = counts ? p : 0;
            }
        }
}

/* Weights as left operands, and the same handed over. */
template <typename T> __device__ __forceinline__ void hand_over(const tile_sums &weight, left_operands &left, uint4 *handed)
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
__device__ __forceinline__ void drop_handed(const attention_args &a, tile_sums &weight, const row_tile &t, left_operands &left, uint4 *handed)
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

/* Products v · gᵀ (32 keys, NEXT rows) and handed weights become slopes, as left operands. Those of masked weights are 0 whatever v is. */
template <typename T, bool is_masked, bool is_dropping>
__device__ __forceinline__ void make_slopes(const attention_args &a, const tile_sums &product, const row_tile &t, left_operands &left, const uint4 *handed)
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
template <typename T, bool is_general>
__device__ __forceinline__ void make_left(const attention_args &a, bool is_of_slopes, tile_sums &product, const row_tile &t, left_operands &left,
                                          uint4 *handed)
{
    const bool is_dropping = is_general && a.is_dropping, is_plain = !is_dropping && is_whole<is_general>(a, t);
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

/* gk and gv of 128 keys, over the rows of all heads that look at them, in order. */
template <typename T, int DEPTH, bool is_general>
static __global__ void __launch_bounds__(KEYS_THREADS, DEPTH <= 64 ? 2 : 1) keys_kernel(const __grid_constant__ attention_args a)
{
    extern __shared__ uint4 shared[];
    __shared__ alignas(8) float sums[STAGES][2][NEXT]; /* logarithms, and Σ g · y */
    __shared__ int starts[STAGES][is_general ? NEXT : 1];
    constexpr int LINE = line_of<DEPTH>, TILE = NEXT * LINE;
    T *const k_at = (T *)shared, *const v_at = k_at + SIDE * LINE, *const q_at = v_at + SIDE * LINE, *const g_at = q_at + STAGES * TILE;
    const int warp = threadIdx.x / WARP % MMA_WARPS;
    const bool is_of_slopes = threadIdx.x >= MMA_THREADS;
    uint4 *const handed_at = (uint4 *)(g_at + STAGES * TILE) + warp * 2 * PACKS * WARP;
    const block_place at = place_of(a, a.kv_heads, false);
    const int rows = (int)a.rows, valid = (int)valid_keys(a, at.batch), key = (int)at.block * SIDE, begin = (int)first_row_of(a, valid, key) / NEXT * NEXT;
    int end = rows;
    if constexpr (is_general) {
        __shared__ int64_t space[WARP];
        end = (int)end_of_rows(a, at.batch, begin, key + SIDE - 1, space);
    }
    const int tiles = begin < end ? (end - begin + NEXT - 1) / NEXT : 0, count = tiles * (int)a.group;
    const int own = key + warp * OWN; /* the warp's first key; and the first rows that look at any and at all of its keys */
    const int seen_from = (int)first_row_of(a, valid, own), all_from = (int)first_row_of(a, valid, own + OWN - 1);
    const pack_column<T> q_column = column_of<T, DEPTH>(a.q, at.batch, 0, a.depth), g_column = column_of<T, DEPTH>(a.g, at.batch, 0, a.depth);
    const float2 *const sums_at = (const float2 *)a.rows_sums + at.batch * a.heads * a.rows;
    auto stage = [&](int slot, int head, int row) {
        const pack_column<T> q = {q_column.from + (uint64_t)(uint32_t)head * (uint32_t)a.q.stride[1], q_column.line, q_column.is_there};
        const pack_column<T> g = {g_column.from + (uint64_t)(uint32_t)head * (uint32_t)a.g.stride[1], g_column.line, g_column.is_there};
        stage_next<T, DEPTH, KEYS_THREADS>(q_at + slot * TILE, q, row, rows);
        stage_next<T, DEPTH, KEYS_THREADS>(g_at + slot * TILE, g, row, rows);
        const int which = threadIdx.x / NEXT, t = row + threadIdx.x % NEXT;
        const uint64_t number = (uint64_t)(uint32_t)head * (uint32_t)rows + (uint32_t)(t < rows ? t : 0);
        if (which < 2)
            copy_word(&sums[slot][which][threadIdx.x % NEXT], (const float *)(sums_at + number) + which, t < rows);
    };
    int head = (int)(at.head * a.group), row = begin, own_head = head, own_row = begin; /* of the next tile, and of the one that the warp works on */
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
            const row_tile t = {sums[slot][0], sums[slot][1], starts[slot], at.batch * a.heads + own_head, own_row, own, valid, all_from};
            if (seen_from < own_row + NEXT && (!is_general || __any_sync(FULL_WARP, t.starts[threadIdx.x % NEXT] < warp * OWN + OWN))) {
                const T *q = q_at + slot * TILE, *g = g_at + slot * TILE;
                tile_sums product;
                left_operands left;
                multiply_both_across<T, DEPTH>(product, (is_of_slopes ? v_at : k_at) + warp * OWN * LINE, is_of_slopes ? g : q);
                make_left<T, is_general>(a, is_of_slopes, product, t, left, handed_at + mine % 2 * PACKS * WARP);
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

/* ---- gq ---------------------------------------------------------------------------------------------------------------------- */

/* A lane's four rows: l / 4, and 8, 16 and 24 further. */
struct four_rows {
    float2 sums[4]; /* the logarithm and Σ g · y */
    int start[4];   /* the first key that they look at */
};

template <bool is_general>
__device__ __forceinline__ four_rows rows_of(const attention_args &a, int64_t batch, int64_t head, int row)
{
    four_rows r = {};
#pragma unroll
    for (int i = 0; i < 4; i++) {
        const int64_t t = row + threadIdx.x % WARP / 4 + i * 8;
        if (t >= a.rows)
            continue;
        r.sums[i] = ((const float2 *)a.rows_sums)[head * a.rows + t];
        if constexpr (is_general)
            r.start[i] = (int)start_of(a, batch, t);
    }
    return r;
}

/* Products (32 rows, NEXT keys) become weights. */
template <bool is_general, bool is_masked>
__device__ __forceinline__ void weigh_rows(const attention_args &a, tile_sums &product, const four_rows &r, int row, int valid, int key)
{
    const int column = threadIdx.x % 4 * 2;
    const float scale = (float)(a.scale * LOG2_E);
#pragma unroll
    for (int m = 0; m < 2; m++)
#pragma unroll
        for (int n = 0; n < NEXT / 8; n++)
#pragma unroll
            for (int i = 0; i < 4; i++) {
                const int of = 2 * m + i / 2, at = key + n * 8 + column + i % 2;
                const float p = power_of_2(product[m][n][i] * scale - r.sums[of].x);
                bool counts = true;
                if constexpr (is_masked)
                    counts = at < keys_of(a, valid, row + threadIdx.x % WARP / 4 + of * 8) && (!is_general || at >= r.start[of]);
                product[m][n][i] = counts ? p : 0;
            }
}

/* Weights and g · vᵀ become slopes, as left operands. */
template <typename T, bool is_masked, bool is_dropping>
__device__ __forceinline__ void make_row_slopes(const attention_args &a, const tile_sums &weight, const tile_sums &pull, const four_rows &r,
                                                int64_t head, int row, int key, left_operands &left)
{
#pragma unroll
    for (int at = 0; at < PACKS; at++) {
        const int m = at / 2;
        const uint32_t kept = is_dropping ? kept_by_rows(a, settled(a.random), head, row + m * 16, key + at % 2 * 16) : 0;
        float slope[8];
#pragma unroll
        for (int i = 0; i < 8; i++) {
            const int n = at % 2 * 2 + i / 4;
            const float p = weight[m][n][i % 4], factor = is_dropping ? drop_factor(a, kept, bit_by_rows(i / 4, i % 4)) : 1;
            slope[i] = p * (factor * pull[m][n][i % 4] - r.sums[2 * m + i % 4 / 2].y);
            if constexpr (is_masked)
                slope[i] = p == 0 ? 0 : slope[i];
        }
#pragma unroll
        for (int i = 0; i < 4; i++)
            left[m][at % 2][i] = two_of<T>(slope[2 * i], slope[2 * i + 1]);
    }
}

/* gq of 128 rows. */
template <typename T, int DEPTH, bool is_general>
static __global__ void __launch_bounds__(MMA_THREADS, DEPTH <= 64 ? 3 : 2) rows_kernel(const __grid_constant__ attention_args a)
{
    extern __shared__ uint4 shared[];
    constexpr int LINE = line_of<DEPTH>, TILE = NEXT * LINE;
    T *const q_at = (T *)shared, *const g_at = q_at + SIDE * LINE, *const k_at = g_at + SIDE * LINE, *const v_at = k_at + 2 * TILE;
    const int warp = threadIdx.x / WARP;
    const block_place at = place_of(a, a.heads, true);
    const pack_column<T> k = column_of<T, DEPTH>(a.k, at.batch, at.head / a.group, a.depth), v = column_of<T, DEPTH>(a.v, at.batch, at.head / a.group, a.depth);
    const int rows = (int)a.rows, first = (int)at.block * SIDE, last = (first + SIDE < rows ? first + SIDE : rows) - 1, row = first + warp * OWN;
    const int valid = (int)valid_keys(a, at.batch), keys = (int)keys_of(a, valid, last);
    const int most_seen = row < rows ? (int)keys_of(a, valid, row + OWN - 1) : 0, least_seen = (int)keys_of(a, valid, row); /* by any row of the warp, by all */
    const int64_t head = at.batch * a.heads + at.head;
    const four_rows r = rows_of<is_general>(a, at.batch, head, row);
    int from = 0, least_start = 0, most_start = 0; /* of any row of the block, in whole tiles, and of the warp */
    if constexpr (is_general) {
        __shared__ int64_t space[WARP];
        from = (int)first_tile_of(a, at.batch, first, last, NEXT, space);
        least_start = __reduce_min_sync(FULL_WARP, min(min(r.start[0], r.start[1]), min(r.start[2], r.start[3])));
        most_start = __reduce_max_sync(FULL_WARP, max(max(r.start[0], r.start[1]), max(r.start[2], r.start[3])));
    }
    float gq[2][DEPTH / 8][4] = {};
    stage_tile<T, SIDE, DEPTH>(q_at, slab_of(a.q, at.batch, at.head), first, rows, a.depth);
    stage_tile<T, SIDE, DEPTH>(g_at, slab_of(a.g, at.batch, at.head), first, rows, a.depth);
    stage_next<T, DEPTH, MMA_THREADS>(k_at, k, from, keys);
    stage_next<T, DEPTH, MMA_THREADS>(v_at, v, from, keys);
    for (int key = from; key < keys; key += NEXT) {
        const int now = (key - from) / NEXT % 2 * TILE, next = TILE - now;
        wait_copies();
        __syncthreads(); /* this tile is here, and all are done with the one before */
        if (key + NEXT < keys) {
            stage_next<T, DEPTH, MMA_THREADS>(k_at + next, k, key + NEXT, keys);
            stage_next<T, DEPTH, MMA_THREADS>(v_at + next, v, key + NEXT, keys);
        }
        if (key >= most_seen || (is_general && key + NEXT <= least_start))
            continue;
        const bool is_dropping = is_general && a.is_dropping;
        const bool is_plain = !is_dropping && key + NEXT <= least_seen && (!is_general || key >= most_start);
        tile_sums weight, pull;
        left_operands left;
        multiply_both_across<T, DEPTH>(weight, q_at + warp * OWN * LINE, k_at + now);
        if (is_plain)
            weigh_rows<is_general, false>(a, weight, r, row, valid, key);
        else
            weigh_rows<is_general, true>(a, weight, r, row, valid, key);
        multiply_both_across<T, DEPTH>(pull, g_at + warp * OWN * LINE, v_at + now);
        if (is_plain)
            make_row_slopes<T, false, false>(a, weight, pull, r, head, row, key, left);
        else if (!is_dropping)
            make_row_slopes<T, true, false>(a, weight, pull, r, head, row, key, left);
        else
            make_row_slopes<T, true, true>(a, weight, pull, r, head, row, key, left);
        multiply_both_along<T, DEPTH>(gq, left, k_at + now);
    }
    wait_copies(); /* also where there is no key */
    const float scale[2] = {(float)a.scale, (float)a.scale};
#pragma unroll
    for (int m = 0; m < 2; m++)
        write_tile<T, DEPTH>(slab_of(a.gq, at.batch, at.head), gq[m], scale, row + m * 16, rows, 0, a.depth);
}

/* ---- starting them ----------------------------------------------------------------------------------------------------------- */

/* Grid: a block for 128 keys (or rows) of a head. Multiplications: rows · keys · D · 4 and · 3. Of shared memory 81 and 55 KB for D = 64, so that two
 * and three blocks fit on a multiprocessor of 228 KB, and 139 and 104 KB for D = 128, one and two. */
template <typename T, int DEPTH, bool is_general> static bool launch_all(const tarn__call *call, attention_args &a)
{
    bool done = true;
    a.windows = 1;
    a.blocks = (a.keys + SIDE - 1) / SIDE;
    if ((a.gk.base || a.gv.base) && a.blocks > 0)
        done = start<keys_kernel<T, DEPTH, is_general>, KEYS_THREADS>(call, a, a.batches * a.kv_heads * a.blocks, keys_bytes<T, DEPTH>);
    a.blocks = (a.rows + SIDE - 1) / SIDE;
    if (done && a.gq.base && a.blocks > 0)
        done = start<rows_kernel<T, DEPTH, is_general>>(call, a, a.batches * a.heads * a.blocks, rows_bytes<T, DEPTH>);
    return done;
}

template <typename T> static bool launch(const tarn__call *call, attention_args &a)
{
    const bool is_general = a.starts || a.is_dropping;
    if (a.depth <= 64)
        return is_general ? launch_all<T, 64, true>(call, a) : launch_all<T, 64, false>(call, a);
    return is_general ? launch_all<T, 128, true>(call, a) : launch_all<T, 128, false>(call, a);
}

static bool is_near(const cube &x) { return x.stride[1] >= 0 && x.stride[1] <= INT32_MAX && x.stride[2] >= 0 && x.stride[2] <= INT32_MAX; }

#define MOST_ROWS (1 << 30) /* so that places of rows and keys, and of what is behind them, are of 32 bits */

bool tarn__cuda_attention_wide_grad(const tarn__call *call, attention_args *a)
{
    const bool is_wide = (a->depth > 32 && a->depth <= 64) || (a->depth > 96 && a->depth <= 128);
    const bool are_near = is_near(a->q) && is_near(a->k) && is_near(a->v) && is_near(a->g);
    if (!is_wide || !are_near || a->rows > MOST_ROWS || a->keys > MOST_ROWS || a->rows / NEXT * a->group >= MOST_ROWS)
        return false;
    return a->q.dtype == TARN_BF16 ? launch<bf16>(call, *a) : launch<f16>(call, *a);
}
