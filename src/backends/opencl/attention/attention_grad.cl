/* attention_grad.cl: gradients of attention. See attention_tiles.cl for the tiles.
 *
 *   weights P = exp(cap(q · kᵀ · scale) - LSE), divided by their sum, so that the rounding of LSE cancels; after
 * dropout: P' gv = P'ᵀ · gy,  dP = gy · vᵀ, dropped like P,  dS = P · (dP - Σ P dP),  gq = scale · dS · k,  gk = scale
 * · dSᵀ · q with a soft cap c, cap(s) = c · tanh(s / c), and dS is multiplied by 1 - tanh²(s / c)
 *
 * First LSE, factor and Σ P dP of each row. Then a kernel whose groups have keys and loop over the rows of all heads
 * that attend to them, for gk and gv, and one whose groups have rows and loop over keys, for gq: each sum has one
 * owner, so nothing is added across groups. Weights are recomputed in each.
 *
 * Options: those of attention_tiles.cl; SUMS with T_LSE, ROWS with T_GQ, KEYS with T_GK and T_GV: dtypes. */
#include "backends/opencl/attention/attention_tiles.cl"

/* Statistics of a row; rows beyond the last see no key. */
typedef struct row_stats {
    key_range seen;
    REAL row_lse, factor, mean;
} row_stats;

row_stats row_stats_of(const attention *a, const head_view *starts, const __global REAL *sums, long head, long valid,
                       long t)
{
    const key_range seen = key_range_of(a, starts, valid, t);
    if (t >= a->rows)
        return (row_stats){seen, 0, 0, 0};
    const __global REAL *own = sums + 3 * (head * a->rows + t);
    return (row_stats){seen, own[0], own[1], own[2]};
}

/* From a scaled score to its weight, and from dP to the gradient of the score. */
REAL weight_of(const row_stats *row, long key, REAL score)
{
    return SEES(row->seen, key) ? exp(score - row->row_lse) * row->factor : 0;
}

REAL score_grad(const row_stats *row, REAL weight, REAL dp, REAL drop)
{
    return weight == 0 ? 0 : weight * (drop * dp - row->mean);
}

#define COMMON_PARAMETERS \
    const __global void *q, long q_offset, const __global void *k, long k_offset, const __global void *v, \
        long v_offset, const __global void *g, long g_offset, const __global void *lengths, long lengths_offset, \
        const __global void *starts, long starts_offset
#define A_GROUP __attribute__((reqd_work_group_size(ACROSS, ACROSS, 1)))

#ifdef SUMS

/* Writes (B, H, T, 3): LSE, 1 / Σ P and Σ P dP / Σ P of each row. A row whose scores are all -infinity has that LSE
 * too; 0 instead gives weights of 0, not NaN. */
A_GROUP __kernel void row_sums(COMMON_PARAMETERS, const __global void *lse, long lse_offset, __global void *to,
                               long to_offset, attention a, real scale_ CAP_PARAMETER)
{
    A_STAGE(stage, STAGE);
    AN_EDGE(edge);
    ITEM_INDEX;
    const tile_index at = tile_index_of(&a, a.heads);
    const head_view rows = head_view_of(q, q_offset, &a, Q, at.batch, at.head),
                    grads = head_view_of(g, g_offset, &a, G, at.batch, at.head),
                    keys = head_view_of(k, k_offset, &a, K, at.batch, at.head / a.group),
                    values = head_view_of(v, v_offset, &a, V, at.batch, at.head / a.group),
                    row_starts = starts_of(starts, starts_offset, &a, at.batch);
    const long first = at.block * SIDE_M, valid = valid_keys(&a, lengths, lengths_offset, at.batch),
               head = at.batch * a.heads + at.head;
    const long end = keys_of(&a, valid, min(first + SIDE_M, a.rows) - 1);
    const REAL scale = (REAL)scale_;
    CAP_VALUE;
    REAL row_lse[M], total[M], dot_sum[M];
    VECTOR score[M][VECTORS], dp[M][VECTORS];
    EACH_ROW(i)
    {
        const long t = min(first + ty * M + i, a.rows - 1);
        row_lse[i] = LOAD(T_LSE, lse,
                          lse_offset + at.batch * a.stride[LSE][0] + at.head * a.stride[LSE][1] + t * a.stride[LSE][2]);
        row_lse[i] = row_lse[i] == -INFINITE ? 0 : row_lse[i];
        total[i] = dot_sum[i] = 0;
    }
    for (long key = FIRST_KEY_OF(&a, &row_starts, valid, first, item, &edge); key < end; key += SIDE_N) {
        MULTIPLY_TILES(score, T, rows, first, a.rows, T, keys, key, end);
        MULTIPLY_TILES(dp, T_G, grads, first, a.rows, T, values, key, end);
        EACH_ROW(i)
        {
            const long t = first + ty * M + i;
            const key_range seen = key_range_of(&a, &row_starts, valid, t);
            uint4 words = 0;
            EACH(j, VECTORS)
            {
                REAL weight[LANES], dp_line[LANES];
                STORE_VECTOR(exp(CAPPED(score[i][j] * scale) - row_lse[i]), 0, weight);
                STORE_VECTOR(dp[i][j], 0, dp_line);
                EACH_LANE(e)
                {
                    const long s = key + (j * ACROSS + tx) * LANES + e;
                    const REAL p = SEES(seen, s) ? weight[e] : 0,
                               drop = drop_factor(&a, head * a.rows + t, s, e == 0, &words);
                    total[i] += p;
                    dot_sum[i] += p == 0 ? 0 : p * drop * dp_line[e];
                }
            }
        }
    }
    sum_of_rows(total, ty, tx, stage);
    sum_of_rows(dot_sum, ty, tx, stage);
    EACH_ROW(i)
    {
        const long t = first + ty * M + i;
        const REAL all = total[i], dots = dot_sum[i];
        if (tx == 0 && t < a.rows) {
            __global REAL *own = (__global REAL *)to + to_offset + 3 * (head * a.rows + t);
            own[0] = row_lse[i], own[1] = all == 0 ? 0 : 1 / all, own[2] = all == 0 ? 0 : dots / all;
        }
    }
}

#endif
#ifdef ROWS

/* A window of D of gq for a block of rows. */
A_GROUP __kernel void grad_q(COMMON_PARAMETERS, const __global void *sums, long sums_offset, __global void *gq,
                             long gq_offset, attention a, real scale_ CAP_PARAMETER)
{
    A_STAGE(stage, STAGE);
    A_STAGE(grads, SIDE_N * LINE); /* (keys, rows) */
    AN_EDGE(edge);
    ITEM_INDEX;
    const tile_index at = tile_index_of(&a, a.heads);
    const head_view rows = head_view_of(q, q_offset, &a, Q, at.batch, at.head),
                    gys = head_view_of(g, g_offset, &a, G, at.batch, at.head),
                    keys = head_view_of(k, k_offset, &a, K, at.batch, at.head / a.group),
                    values = head_view_of(v, v_offset, &a, V, at.batch, at.head / a.group),
                    row_starts = starts_of(starts, starts_offset, &a, at.batch);
    const long first = at.block * SIDE_M, column = at.window * WINDOW,
               valid = valid_keys(&a, lengths, lengths_offset, at.batch);
    const long end = keys_of(&a, valid, min(first + SIDE_M, a.rows) - 1), head = at.batch * a.heads + at.head;
    const REAL scale = (REAL)scale_;
    CAP_VALUE;
    REAL scales[M];
    VECTOR score[M][VECTORS], dp[M][VECTORS], sum[M][WINDOW_VECTORS];
    EACH_ROW(i)
    {
        scales[i] = scale;
        EACH(j, WINDOW_VECTORS) sum[i][j] = 0;
    }
    for (long key = FIRST_KEY_OF(&a, &row_starts, valid, first, item, &edge); key < end; key += SIDE_N) {
        MULTIPLY_TILES(score, T, rows, first, a.rows, T, keys, key, end);
        MULTIPLY_TILES(dp, T_G, gys, first, a.rows, T, values, key, end);
        EACH_ROW(i)
        {
            const row_stats row = row_stats_of(&a, &row_starts, (const __global REAL *)sums + sums_offset, head, valid,
                                               first + ty * M + i);
            uint4 words = 0;
            EACH(j, VECTORS)
            {
                REAL line[LANES], dp_line[LANES];
                STORE_VECTOR(CAPPED(score[i][j] * scale), 0, line);
                STORE_VECTOR(dp[i][j], 0, dp_line);
                EACH_LANE(e)
                {
                    const long s = key + (j * ACROSS + tx) * LANES + e;
                    const REAL drop = drop_factor(&a, head * a.rows + first + ty * M + i, s, e == 0, &words);
                    const REAL grad = score_grad(&row, weight_of(&row, s, line[e]), dp_line[e], drop);
                    line[e] = UNCAPPED_GRAD(grad, line[e]);
                }
                score[i][j] = LOAD_VECTOR(0, line);
            }
        }
        STORE_TILE(grads, score)
        MULTIPLY_ROWS(sum, grads, T, keys, key, end, column)
    }
    WRITE_ROWS(T_GQ, gq, gq_offset, GQ, at.batch, at.head, sum, scales, first, a.rows, column)
}

#endif
#ifdef KEYS

/* A window of D of gk and gv for a block of keys: tiles are (keys, rows). */
A_GROUP __kernel void grad_kv(COMMON_PARAMETERS, const __global void *sums, long sums_offset, __global void *gk,
                              long gk_offset, __global void *gv, long gv_offset, attention a, real scale_ CAP_PARAMETER)
{
    A_STAGE(stage, STAGE);
    A_STAGE(weights, SIDE_N * LINE); /* (rows, keys) */
    A_STAGE(grads, SIDE_N * LINE);
    AN_EDGE(edge);
    ITEM_INDEX;
    const tile_index at = tile_index_of(&a, a.kv_heads);
    const head_view keys = head_view_of(k, k_offset, &a, K, at.batch, at.head),
                    values = head_view_of(v, v_offset, &a, V, at.batch, at.head),
                    row_starts = starts_of(starts, starts_offset, &a, at.batch);
    const long key = at.block * SIDE_M, column = at.window * WINDOW,
               valid = valid_keys(&a, lengths, lengths_offset, at.batch);
    const long begin = first_row_of(&a, valid, key) / SIDE_N * SIDE_N,
               last = END_OF_ROWS(&a, &row_starts, valid, begin, key + SIDE_M - 1, item, &edge);
    const REAL scale = (REAL)scale_;
    CAP_VALUE;
    REAL ones[M], scales[M];
    VECTOR score[M][VECTORS], dp[M][VECTORS], sum_k[M][WINDOW_VECTORS], sum_v[M][WINDOW_VECTORS];
    EACH_ROW(i)
    {
        ones[i] = 1, scales[i] = scale;
        EACH(j, WINDOW_VECTORS) sum_k[i][j] = sum_v[i][j] = 0;
    }
    for (long head = at.head * a.group; head < (at.head + 1) * a.group; head++) {
        const head_view rows = head_view_of(q, q_offset, &a, Q, at.batch, head),
                        gys = head_view_of(g, g_offset, &a, G, at.batch, head);
        const long of_all = at.batch * a.heads + head;
        for (long first = begin; first < last; first += SIDE_N) {
            MULTIPLY_TILES(score, T, keys, key, valid, T, rows, first, a.rows);
            MULTIPLY_TILES(dp, T, values, key, valid, T_G, gys, first, a.rows);
            EACH(j, VECTORS)
            EACH_LANE(e)
            {
                const int r = (j * ACROSS + tx) * LANES + e;
                const row_stats row =
                    row_stats_of(&a, &row_starts, (const __global REAL *)sums + sums_offset, of_all, valid, first + r);
                REAL weight[M], grad[M];
                uint4 words = 0;
                EACH_ROW(i)
                {
                    REAL scores[LANES], dp_line[LANES];
                    STORE_VECTOR(score[i][j], 0, scores);
                    STORE_VECTOR(dp[i][j], 0, dp_line);
                    const REAL drop = drop_factor(&a, of_all * a.rows + first + r, key + ty * M + i, i == 0, &words);
                    const REAL capped = CAPPED(scores[e] * scale), own = weight_of(&row, key + ty * M + i, capped);
                    weight[i] = drop * own;
                    const REAL own_grad = score_grad(&row, own, dp_line[e], drop);
                    grad[i] = UNCAPPED_GRAD(own_grad, capped);
                }
                STORE_ROWS(weights + r * LINE + ty * M, weight[i])
                STORE_ROWS(grads + r * LINE + ty * M, grad[i])
            }
            /* gv += P'ᵀ · gy, gk += dSᵀ · q */
            MULTIPLY_ROWS(sum_v, weights, T_G, gys, first, a.rows, column)
            MULTIPLY_ROWS(sum_k, grads, T, rows, first, a.rows, column)
        }
    }
    if (gk)
        WRITE_ROWS(T_GK, gk, gk_offset, GK, at.batch, at.head, sum_k, scales, key, a.keys, column)
    if (gv)
        WRITE_ROWS(T_GV, gv, gv_offset, GV, at.batch, at.head, sum_v, ones, key, a.keys, column)
}

#endif
