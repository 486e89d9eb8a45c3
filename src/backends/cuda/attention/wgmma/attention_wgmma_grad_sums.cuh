/* attention_wgmma_grad_sums.cuh: what a computing warpgroup does with its 64 own rows (attention_wgmma_grad.cuh). */
#ifndef TARN__CUDA_ATTENTION_WGMMA_GRAD_SUMS_CUH
#define TARN__CUDA_ATTENTION_WGMMA_GRAD_SUMS_CUH

#include "backends/cuda/attention/wgmma/attention_wgmma_grad_masks.cuh"

/* ---- own rows ---------------------------------------------------------------------------------------------------- */

/* What a warpgroup has of its 64 own rows. */
template <typename S> struct grad_group {
    uint32_t own; /* address of its rows of own[0]; own[1] is OWN_BYTES further */
    uint32_t held[S::HELD ? S::HELD : 1][S::DEPTH / 16][4]; /* the same as left operands */
    float stats[2][2];  /* LSE and delta of a lane's two rows, where own rows are rows */
    int group_row, row; /* the first of the group, and of this warp's 16, in the head */
};

/* Operands of the group's 64 rows, from shared memory to registers. */
template <typename S> __device__ __forceinline__ void hold(grad_group<S> &g)
{
    const int lane = threadIdx.x % WARP, row = threadIdx.x / WARP % 4 * 16 + lane % 16;
#pragma unroll
    for (int which = 0; which < S::HELD; which++)
#pragma unroll
        for (int k = 0; k < S::DEPTH / 16; k++) {
            uint32_t(&to)[4] = g.held[which][k];
            asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0, %1, %2, %3}, [%4];"
                         : "=r"(to[0]), "=r"(to[1]), "=r"(to[2]), "=r"(to[3])
                         : "r"(g.own + which * S::OWN_BYTES + k / 4 * OWN_ROWS * PANEL_ROW_BYTES +
                               swizzled(row, k % 4 * 2 + lane / 16)));
        }
}

/* Σ g · y of a lane's share of a row: 16-byte vectors c, c + 4, ... of its four lanes c. */
template <typename T, int DEPTH> __device__ __forceinline__ float partial_delta(const char *g, const char *y, int row)
{
    float sum = 0;
#pragma unroll
    for (int v = 0; v < DEPTH / 8; v += 4) {
        const uint32_t at = v / 8 * OWN_ROWS * PANEL_ROW_BYTES + swizzled(row, v % 8 + threadIdx.x % 4);
        const vec<T, 8> left = *(const vec<T, 8> *)(g + at), right = *(const vec<T, 8> *)(y + at);
#pragma unroll
        for (int i = 0; i < 8; i++)
            sum += widen(left.at[i]) * widen(right.at[i]);
    }
    return sum;
}

/* LSE, to base 2, and delta of a lane's two rows; also written for the kernel of keys. `own` and `lse` are the group's
 * rows of them. If all scores are -infinity the LSE is 0 instead: weights of 0, not NaN. */
template <typename T, typename S>
__device__ __forceinline__ void make_stats(const attention_args &a, grad_group<S> &g, const char *own, const float *lse,
                                           int64_t first_row)
{
    const int lane = threadIdx.x % WARP;
#pragma unroll
    for (int half = 0; half < 2; half++) {
        const int row = g.row - g.group_row + lane / 4 + half * 8, t = g.group_row + row;
        float sum = partial_delta<T, S::DEPTH>(own + S::OWN_BYTES, own + 2 * S::OWN_BYTES, row);
        sum += __shfl_xor_sync(FULL_WARP, sum, 1);
        sum += __shfl_xor_sync(FULL_WARP, sum, 2);
        g.stats[half][0] = lse[row] == -CUDART_INF_F ? 0 : lse[row] * (float)LOG2_E;
        g.stats[half][1] = sum;
        if (lane % 4 == 0 && t < a.rows)
            ((float2 *)a.row_stats)[first_row + t] = make_float2(g.stats[half][0], sum);
    }
}

/* ---- products ---------------------------------------------------------------------------------------------------- */

/* own[which] · tileᵀ, (64, N). */
template <typename T, typename S, int which>
__device__ __forceinline__ void issue_scores(float (&sum)[S::N / 8][4], const grad_group<S> &g, uint32_t tile)
{
    begin_products();
#pragma unroll
    for (int k = 0; k < S::DEPTH / 16; k++) {
        const uint64_t right = matrix_at(tile + k / 4 * S::N * PANEL_ROW_BYTES + k % 4 * 32);
        if constexpr (which < S::HELD)
            product_held<T, S::N, false>(sum, g.held[which][k], right, k > 0);
        else
            product_shared<T, S::N>(
                sum, matrix_at(g.own + which * S::OWN_BYTES + k / 4 * OWN_ROWS * PANEL_ROW_BYTES + k % 4 * 32), right,
                k > 0);
    }
    commit_products();
}

/* sum (64, D) += left (64, N) · tile. */
template <typename T, typename S>
__device__ __forceinline__ void issue_sum(float (&sum)[S::DEPTH / 8][4], const uint32_t (&left)[S::N / 16][4],
                                          uint32_t tile)
{
    begin_products();
#pragma unroll
    for (int k = 0; k < S::N / 16; k++)
        product_held<T, S::DEPTH, true>(sum, left[k],
                                        matrix_at(tile + k * 16 * PANEL_ROW_BYTES, S::N * PANEL_ROW_BYTES), 1);
    commit_products();
}

/* ---- weights and dS ---------------------------------------------------------------------------------------------- */

/* Which values of a lane's accumulators are visible: columns from `begin` up to `end`, for each of its two rows. */
struct lane_span {
    int begin[2], end[2];
};

/* Of the tile from `row` of the other operands. */
template <bool is_of_keys> __device__ __forceinline__ lane_span lane_span_of(const grad_work &w, int own_row, int row)
{
    const int lane = threadIdx.x % WARP, column = row + lane % 4 * 2;
    lane_span s;
#pragma unroll
    for (int half = 0; half < 2; half++) {
        const int own = own_row + lane / 4 + half * 8;
        s.begin[half] = is_of_keys && w.is_causal ? own - w.shift - column : 0;
        s.end[half] = is_of_keys || !w.is_causal ? w.other - column : min(w.other, own + w.shift + 1) - column;
    }
    return s;
}

/* Weights: left operands where own rows are keys, with dropout also before it; else f32, before it. */
template <typename S> struct grad_weights {
    uint32_t left[S::is_of_keys ? S::N / 16 : 1][4], plain[S::is_of_keys && S::drops ? S::N / 16 : 1][4];
    float p[S::is_of_keys ? 1 : S::N / 8][4];
};

/* Scores to weights. `lse`: of the lane's columns, where own rows are keys. */
template <typename T, typename S, bool is_masked>
__device__ __forceinline__ void make_weights(const float (&score)[S::N / 8][4], grad_weights<S> &weights,
                                             const grad_group<S> &g, const float *lse, float scale, const lane_span &s,
                                             const keep_words<S> &keep)
{
#pragma unroll
    for (int n = 0; n < S::N / 8; n++) {
        float2 both = make_float2(0, 0);
        float p[4];
        if constexpr (S::is_of_keys)
            both = *(const float2 *)&lse[n * 8];
#pragma unroll
        for (int i = 0; i < 4; i++) {
            const float shift = S::is_of_keys ? (i % 2 ? both.y : both.x) : g.stats[i / 2][0];
            p[i] = exp2_approx(score[n][i] * scale - shift);
            if constexpr (is_masked)
                p[i] = n * 8 + i % 2 >= s.begin[i / 2] && n * 8 + i % 2 < s.end[i / 2] ? p[i] : 0;
            if constexpr (!S::is_of_keys)
                weights.p[n][i] = p[i];
        }
        if constexpr (S::is_of_keys && S::drops) {
            weights.plain[n / 2][n % 2 * 2] = pack2<T>(p[0], p[1]);
            weights.plain[n / 2][n % 2 * 2 + 1] = pack2<T>(p[2], p[3]);
#pragma unroll
            for (int i = 0; i < 4; i++)
                p[i] = keep.has(n, i) ? p[i] : 0;
        }
        if constexpr (S::is_of_keys) {
            weights.left[n / 2][n % 2 * 2] = pack2<T>(p[0], p[1]);
            weights.left[n / 2][n % 2 * 2 + 1] = pack2<T>(p[2], p[3]);
        }
    }
}

/* Weights and dP to dS, as left operands. dS of a masked weight is 0 whatever dP is. */
template <typename T, typename S, bool is_masked>
__device__ __forceinline__ void make_ds_left(const grad_weights<S> &weights, const float (&dp)[S::N / 8][4],
                                             uint32_t (&left)[S::N / 16][4], const grad_group<S> &g, const float *delta,
                                             const keep_words<S> &keep)
{
#pragma unroll
    for (int n = 0; n < S::N / 8; n++) {
        float2 both = make_float2(0, 0);
        float ds[4], p[4];
        if constexpr (S::is_of_keys) {
            both = *(const float2 *)&delta[n * 8];
#pragma unroll
            for (int i = 0; i < 2; i++) {
                vec<T, 2> two;
                memcpy(&two,
                       S::drops ? &weights.plain[n / 2 % (S::N / 16)][n % 2 * 2 + i]
                                : &weights.left[n / 2][n % 2 * 2 + i],
                       sizeof(two));
                widen_vec(two, p + 2 * i);
            }
        }
#pragma unroll
        for (int i = 0; i < 4; i++) {
            if constexpr (!S::is_of_keys)
                p[i] = weights.p[n][i];
            const float of_row = S::is_of_keys ? (i % 2 ? both.y : both.x) : g.stats[i / 2][1];
            if constexpr (S::drops)
                ds[i] = p[i] * ((keep.has(n, i) ? keep.scale : 0.0f) * dp[n][i] - of_row);
            else
                ds[i] = p[i] * (dp[n][i] - of_row);
            if constexpr (is_masked)
                ds[i] = p[i] == 0 ? 0 : ds[i];
        }
        left[n / 2][n % 2 * 2] = pack2<T>(ds[0], ds[1]);
        left[n / 2][n % 2 * 2 + 1] = pack2<T>(ds[2], ds[3]);
    }
}

/* ---- tiles ------------------------------------------------------------------------------------------------------- */

/* A warpgroup's sums: gk and gv, or gq. */
template <typename S> struct grad_sums {
    float first[S::DEPTH / 8][4];                      /* dS · tile[0] */
    float second[S::is_of_keys ? S::DEPTH / 8 : 1][4]; /* P · tile[1] */
};

template <typename S> __device__ __forceinline__ void pin_sums(grad_sums<S> &sums)
{
    pin(sums.first);
    if constexpr (S::is_of_keys)
        pin(sums.second);
}

/* The tiles of one head, as a warpgroup walks them. */
template <typename S> struct tile_walk {
    ring<S::STAGES> &stage;
    uint32_t shared;     /* address of all shared memory */
    const char *generic; /* the same */
    grad_barriers<S> barriers;
    int row;          /* of the tile's operands */
    keep_source keep; /* of the warp's own rows */
    __device__ __forceinline__ uint32_t tile() const
    {
        return shared + S::TILES + stage.slot * 2 * S::TILE_BYTES;
    }
    __device__ __forceinline__ const float *stats() const
    {
        return (const float *)(generic + S::STATS + stage.slot * S::STATS_BYTES) + threadIdx.x % 4 * 2;
    }
    __device__ __forceinline__ void wait() const
    {
        barrier_wait(barriers.full(stage.slot), stage.parity);
    }
    /* True if not all of the tile is visible to all of the group. */
    __device__ __forceinline__ bool is_masked(const grad_work &w, const grad_group<S> &g) const
    {
        return S::is_of_keys ? w.is_causal && row + w.shift < g.group_row + GROUP_ROWS - 1
                             : row + S::N > w.other || (w.is_causal && row + S::N - 1 > g.group_row + w.shift);
    }
};

template <typename T, typename S>
__device__ __forceinline__ void make_weights_of(const float (&score)[S::N / 8][4], grad_weights<S> &weights,
                                                const grad_work &w, const grad_group<S> &g, const tile_walk<S> &walk,
                                                float scale, const keep_words<S> &keep)
{
    if (walk.is_masked(w, g))
        make_weights<T, S, true>(score, weights, g, walk.stats(), scale,
                                 lane_span_of<S::is_of_keys>(w, g.row, walk.row), keep);
    else
        make_weights<T, S, false>(score, weights, g, walk.stats(), scale, lane_span{}, keep);
}

template <typename T, typename S>
__device__ __forceinline__ void make_ds_of(const grad_weights<S> &weights, const float (&dp)[S::N / 8][4],
                                           uint32_t (&ds)[S::N / 16][4], const grad_group<S> &g, bool is_masked,
                                           const float *delta, const keep_words<S> &keep)
{
    if (is_masked)
        make_ds_left<T, S, true>(weights, dp, ds, g, delta, keep);
    else
        make_ds_left<T, S, false>(weights, dp, ds, g, delta, keep);
}

/* One tile of many, its weights and dP known, and those of the next: each of its two halves has two products in flight
 * while registers are computed. */
template <typename T, typename S, bool has_next>
__device__ __forceinline__ void add_tile(float (&score)[S::N / 8][4], float (&dp)[S::N / 8][4],
                                         grad_weights<S> &weights, uint32_t (&ds)[S::N / 16][4], const grad_work &w,
                                         const grad_group<S> &g, grad_sums<S> &sums, tile_walk<S> &walk, float scale,
                                         keep_words<S> &keep)
{
    const uint32_t tile = walk.tile();
    const float *delta = walk.stats() + S::N;
    const int slot = walk.stage.slot;
    const bool is_masked = walk.is_masked(w, g);
    keep_words<S> next = keep;
    if constexpr (S::is_of_keys)
        issue_sum<T, S>(sums.second, weights.left, tile + S::TILE_BYTES);
    walk.stage.advance(), walk.row += S::N;
    if constexpr (has_next) {
        next.load(walk.keep, walk.row);
        walk.wait();
        issue_scores<T, S, 0>(score, g, walk.tile());
    }
    make_ds_of<T, S>(weights, dp, ds, g, is_masked, delta, keep);
    issue_sum<T, S>(sums.first, ds, tile);
    keep = next;
    if constexpr (has_next) {
        issue_scores<T, S, 1>(dp, g, walk.tile() + S::TILE_BYTES);
        wait_products<2>();
        pin(score);
        make_weights_of<T, S>(score, weights, w, g, walk, scale, keep);
    }
    wait_products<0>();
    pin(dp);
    pin_sums(sums);
    release(walk.barriers.empty(slot));
}

/* Adds `count` tiles, each overlapping the next. */
template <typename T, typename S>
__device__ __forceinline__ void add_tiles_overlapped(const attention_args &a, const grad_work &w,
                                                     const grad_group<S> &g, grad_sums<S> &sums, tile_walk<S> &walk,
                                                     int count)
{
    const float scale = (float)(a.scale * LOG2_E);
    float score[S::N / 8][4], dp[S::N / 8][4];
    grad_weights<S> weights;
    keep_words<S> keep(a);
    uint32_t ds[S::N / 16][4];
    keep.load(walk.keep, walk.row);
    walk.wait();
    issue_scores<T, S, 0>(score, g, walk.tile());
    issue_scores<T, S, 1>(dp, g, walk.tile() + S::TILE_BYTES);
    wait_products<1>();
    pin(score);
    make_weights_of<T, S>(score, weights, w, g, walk, scale, keep);
    wait_products<0>();
    pin(dp);
    for (int i = 1; i < count; i++)
        add_tile<T, S, true>(score, dp, weights, ds, w, g, sums, walk, scale, keep);
    add_tile<T, S, false>(score, dp, weights, ds, w, g, sums, walk, scale, keep);
}

/* Adds `count` tiles, one after the other: the other warpgroup's products run meanwhile. */
template <typename T, typename S>
__device__ __forceinline__ void add_tiles_in_turn(const attention_args &a, const grad_work &w, const grad_group<S> &g,
                                                  grad_sums<S> &sums, tile_walk<S> &walk, int count)
{
    const float scale = (float)(a.scale * LOG2_E);
    float score[S::N / 8][4], dp[S::N / 8][4];
    grad_weights<S> weights;
    keep_words<S> keep(a);
    uint32_t ds[S::N / 16][4];
    for (int i = 0; i < count; i++, walk.row += S::N) {
        keep.load(walk.keep, walk.row);
        walk.wait();
        issue_scores<T, S, 0>(score, g, walk.tile());
        issue_scores<T, S, 1>(dp, g, walk.tile() + S::TILE_BYTES);
        wait_products<1>();
        pin(score);
        make_weights_of<T, S>(score, weights, w, g, walk, scale, keep);
        if constexpr (S::is_of_keys)
            issue_sum<T, S>(sums.second, weights.left, walk.tile() + S::TILE_BYTES);
        wait_products<S::is_of_keys>();
        pin(dp);
        make_ds_of<T, S>(weights, dp, ds, g, walk.is_masked(w, g), walk.stats() + S::N, keep);
        issue_sum<T, S>(sums.first, ds, walk.tile());
        wait_products<0>();
        pin_sums(sums);
        release(walk.barriers.empty(walk.stage.slot));
        walk.stage.advance();
    }
}

template <typename T, typename S>
__device__ __forceinline__ void add_tiles(const attention_args &a, const grad_work &w, const grad_group<S> &g,
                                          grad_sums<S> &sums, tile_walk<S> walk, int count)
{
    if constexpr (S::is_crowded)
        add_tiles_in_turn<T, S>(a, w, g, sums, walk, count);
    else if (count > 0)
        add_tiles_overlapped<T, S>(a, w, g, sums, walk, count);
}

/* Passes tiles that this warpgroup does not need. */
template <typename S>
__device__ __forceinline__ void skip_tiles(const grad_barriers<S> &barriers, ring<S::STAGES> &stage, int count)
{
    for (; count > 0; count--) {
        barrier_wait(barriers.full(stage.slot), stage.parity);
        release(barriers.empty(stage.slot));
        stage.advance();
    }
}

/* ---- results ----------------------------------------------------------------------------------------------------- */

/* Exchanges words among the four lanes of a row: lane c of them gets word c of each, in their order. */
__device__ __forceinline__ uint4 transpose_words(const uint32_t (&word)[4])
{
    const bool is_odd = threadIdx.x % 2, is_upper = threadIdx.x / 2 % 2;
    const uint32_t low = __shfl_xor_sync(FULL_WARP, is_odd ? word[0] : word[1], 1),
                   high = __shfl_xor_sync(FULL_WARP, is_odd ? word[2] : word[3], 1);
    /* words 0 or 1, and 2 or 3, of lanes 0 and 1 or 2 and 3 */
    const uint2 first = is_odd ? make_uint2(low, word[1]) : make_uint2(word[0], low),
                second = is_odd ? make_uint2(high, word[3]) : make_uint2(word[2], high),
                sent = is_upper ? first : second, kept = is_upper ? second : first;
    const uint2 got = make_uint2(__shfl_xor_sync(FULL_WARP, sent.x, 2), __shfl_xor_sync(FULL_WARP, sent.y, 2));
    return is_upper ? make_uint4(got.x, got.y, kept.x, kept.y) : make_uint4(kept.x, kept.y, got.x, got.y);
}

/* Writes a warp's (16, D) sums, scaled, as write_tile() does, in vectors of 16 bytes where the result has them. */
template <typename T, int DEPTH>
__device__ __forceinline__ void write_sums(const head_matrix &to, const float (&sum)[DEPTH / 8][4], float factor,
                                           int row, int rows, int head_dim)
{
    const int lane = threadIdx.x % WARP;
    const float factors[2] = {factor, factor};
    const bool has_vectors = to.column == 1 && to.row % 8 == 0 && (uintptr_t)to.base % 16 == 0 &&
                             to.dtype == (is_bf16<T> ? TARN_BF16 : TARN_F16);
    if (!has_vectors) {
        write_tile<T, DEPTH>(to, sum, factors, row, rows, 0, head_dim);
        return;
    }
#pragma unroll
    for (int half = 0; half < 2; half++) {
        const int i = row + lane / 4 + half * 8;
        T *const line = (T *)to.base + i * to.row;
#pragma unroll
        for (int n = 0; n < DEPTH / 8; n += 4) {
            const int column = (n + lane % 4) * 8;
            uint32_t word[4];
#pragma unroll
            for (int j = 0; j < 4; j++)
                word[j] = pack2<T>(sum[n + j][2 * half] * factor, sum[n + j][2 * half + 1] * factor);
            const uint4 vector = transpose_words(word);
            if (i < rows && column < head_dim)
                *(uint4 *)(line + column) = vector;
        }
    }
}

#endif
