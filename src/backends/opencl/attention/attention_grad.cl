/* attention_grad.cl: the gradients of attention. See attention_tiles.cl for the tiles.
 *
 *   weights P = exp(q · kᵀ · scale - logarithm), divided by their sum, so that the logarithm's rounding does not count;
 * as they are dropped: P' gv = P'ᵀ · g,  dP = g · vᵀ, dropped like P,  dS = P · (dP - Σ P dP),  gq = scale · dS · k, gk
 * = scale · dSᵀ · q
 *
 * First each row's logarithm, factor and Σ P dP. Then a kernel whose groups have keys and go through the rows of all
 * heads that look at them, for gk and gv, and one whose groups have rows and go through keys, for gq: each sum has one
 * owner, so nothing is added across groups.
 *
 * Options: those of attention_tiles.cl; SUMS with T_L, the logarithms' dtype; ROWS with T_GQ, KEYS with T_GK and T_GV,
 * the gradients'. */
#include "backends/opencl/attention/attention_tiles.cl"

/* What the gradient knows of a row; beyond the last, no key is seen. */
typedef struct facts {
    span seen;
    REAL log_sum, factor, mean;
} facts;

facts facts_of(const attention *a, const slab *starts, const __global REAL *sums, long head, long valid, long t)
{
    const span seen = span_of(a, starts, valid, t);
    if (t >= a->rows)
        return (facts){seen, 0, 0, 0};
    const __global REAL *own = sums + 3 * (head * a->rows + t);
    return (facts){seen, own[0], own[1], own[2]};
}

/* A score, times the scale, becomes its weight as it is dropped, and the pull on it (g · v) its slope. */
REAL weight_of(const facts *row, long key, REAL score)
{
    return SEES(row->seen, key) ? exp(score - row->log_sum) * row->factor : 0;
}

REAL slope_of(const facts *row, REAL weight, REAL pull, REAL drop)
{
    return weight == 0 ? 0 : weight * (drop * pull - row->mean);
}

#define COMMON_PARAMETERS \
    const __global void *q, long q_place, const __global void *k, long k_place, const __global void *v, long v_place, \
        const __global void *g, long g_place, const __global void *lengths, long lengths_place, \
        const __global void *starts, long starts_place
#define A_GROUP __attribute__((reqd_work_group_size(ACROSS, ACROSS, 1)))

#ifdef SUMS

/* (B, H, T, 3): the logarithm, 1 / Σ P and Σ P dP / Σ P of each row. Of scores that are all -infinity the logarithm is
 * that, too; 0 makes weights of 0 of them, not NaN. */
A_GROUP __kernel void row_sums(COMMON_PARAMETERS, const __global void *logs, long logs_place, __global void *to,
                               long to_place, attention a, real scale_)
{
    A_STAGE(stage, STAGE);
    AN_EDGE(edge);
    ITEM_PLACE;
    const place at = place_of(&a, a.heads);
    const slab rows = slab_of(q, q_place, &a, Q, at.batch, at.head),
               slopes = slab_of(g, g_place, &a, G, at.batch, at.head),
               keys = slab_of(k, k_place, &a, K, at.batch, at.head / a.group),
               values = slab_of(v, v_place, &a, V, at.batch, at.head / a.group),
               begins = starts_of(starts, starts_place, &a, at.batch);
    const long first = at.block * SIDE_M, valid = valid_keys(&a, lengths, lengths_place, at.batch),
               head = at.batch * a.heads + at.head;
    const long end = keys_of(&a, valid, min(first + SIDE_M, a.rows) - 1);
    const REAL scale = (REAL)scale_;
    REAL log_sum[M], total[M], dot_sum[M];
    VECTOR score[M][VECTORS], pull[M][VECTORS];
    EACH_ROW(i)
    {
        const long t = min(first + ty * M + i, a.rows - 1);
        log_sum[i] = LOAD(
            T_L, logs, logs_place + at.batch * a.stride[LOGS][0] + at.head * a.stride[LOGS][1] + t * a.stride[LOGS][2]);
        log_sum[i] = log_sum[i] == -INFINITE ? 0 : log_sum[i];
        total[i] = dot_sum[i] = 0;
    }
    for (long key = first_key_of(&a, &begins, first, item, &edge); key < end; key += SIDE_N) {
        MULTIPLY_TILES(score, T, rows, first, a.rows, T, keys, key, end);
        MULTIPLY_TILES(pull, T_G, slopes, first, a.rows, T, values, key, end);
        EACH_ROW(i)
        {
            const long t = first + ty * M + i;
            const span seen = span_of(&a, &begins, valid, t);
            uint4 words = 0;
            EACH(j, VECTORS)
            {
                REAL weight[LANES], pulled[LANES];
                STORE_VECTOR(exp(score[i][j] * scale - log_sum[i]), 0, weight);
                STORE_VECTOR(pull[i][j], 0, pulled);
                EACH_LANE(e)
                {
                    const long s = key + (j * ACROSS + tx) * LANES + e;
                    const REAL p = SEES(seen, s) ? weight[e] : 0,
                               drop = drop_factor(&a, head * a.rows + t, s, e == 0, &words);
                    total[i] += p;
                    dot_sum[i] += p == 0 ? 0 : p * drop * pulled[e];
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
            __global REAL *own = (__global REAL *)to + to_place + 3 * (head * a.rows + t);
            own[0] = log_sum[i], own[1] = all == 0 ? 0 : 1 / all, own[2] = all == 0 ? 0 : dots / all;
        }
    }
}

#endif
#ifdef ROWS

/* A window of D of gq of some rows. */
A_GROUP __kernel void row_slopes(COMMON_PARAMETERS, const __global void *sums, long sums_place, __global void *gq,
                                 long gq_place, attention a, real scale_)
{
    A_STAGE(stage, STAGE);
    A_STAGE(slopes, SIDE_N * LINE); /* (keys, rows) */
    AN_EDGE(edge);
    ITEM_PLACE;
    const place at = place_of(&a, a.heads);
    const slab rows = slab_of(q, q_place, &a, Q, at.batch, at.head),
               pulls = slab_of(g, g_place, &a, G, at.batch, at.head),
               keys = slab_of(k, k_place, &a, K, at.batch, at.head / a.group),
               values = slab_of(v, v_place, &a, V, at.batch, at.head / a.group),
               begins = starts_of(starts, starts_place, &a, at.batch);
    const long first = at.block * SIDE_M, column = at.window * WINDOW,
               valid = valid_keys(&a, lengths, lengths_place, at.batch);
    const long end = keys_of(&a, valid, min(first + SIDE_M, a.rows) - 1), head = at.batch * a.heads + at.head;
    const REAL scale = (REAL)scale_;
    REAL scales[M];
    VECTOR score[M][VECTORS], pull[M][VECTORS], sum[M][WIDE];
    EACH_ROW(i)
    {
        scales[i] = scale;
        EACH(j, WIDE) sum[i][j] = 0;
    }
    for (long key = first_key_of(&a, &begins, first, item, &edge); key < end; key += SIDE_N) {
        MULTIPLY_TILES(score, T, rows, first, a.rows, T, keys, key, end);
        MULTIPLY_TILES(pull, T_G, pulls, first, a.rows, T, values, key, end);
        EACH_ROW(i)
        {
            const facts row =
                facts_of(&a, &begins, (const __global REAL *)sums + sums_place, head, valid, first + ty * M + i);
            uint4 words = 0;
            EACH(j, VECTORS)
            {
                REAL line[LANES], pulled[LANES];
                STORE_VECTOR(score[i][j] * scale, 0, line);
                STORE_VECTOR(pull[i][j], 0, pulled);
                EACH_LANE(e)
                {
                    const long s = key + (j * ACROSS + tx) * LANES + e;
                    const REAL drop = drop_factor(&a, head * a.rows + first + ty * M + i, s, e == 0, &words);
                    line[e] = slope_of(&row, weight_of(&row, s, line[e]), pulled[e], drop);
                }
                score[i][j] = LOAD_VECTOR(0, line);
            }
        }
        PUT_TILE(slopes, score)
        MULTIPLY_ROWS(sum, slopes, T, keys, key, end, column)
    }
    WRITE_ROWS(T_GQ, gq, gq_place, GQ, at.batch, at.head, sum, scales, first, a.rows, column)
}

#endif
#ifdef KEYS

/* A window of D of gk and gv of some keys: tiles are (keys, rows). */
A_GROUP __kernel void key_slopes(COMMON_PARAMETERS, const __global void *sums, long sums_place, __global void *gk,
                                 long gk_place, __global void *gv, long gv_place, attention a, real scale_)
{
    A_STAGE(stage, STAGE);
    A_STAGE(weights, SIDE_N * LINE); /* (rows, keys) */
    A_STAGE(slopes, SIDE_N * LINE);
    AN_EDGE(edge);
    ITEM_PLACE;
    const place at = place_of(&a, a.kv_heads);
    const slab keys = slab_of(k, k_place, &a, K, at.batch, at.head),
               values = slab_of(v, v_place, &a, V, at.batch, at.head),
               begins = starts_of(starts, starts_place, &a, at.batch);
    const long key = at.block * SIDE_M, column = at.window * WINDOW,
               valid = valid_keys(&a, lengths, lengths_place, at.batch);
    const long begin = first_row_of(&a, valid, key) / SIDE_N * SIDE_N,
               last = end_of_rows(&a, &begins, begin, key + SIDE_M - 1, item, &edge);
    const REAL scale = (REAL)scale_;
    REAL ones[M], scales[M];
    VECTOR score[M][VECTORS], pull[M][VECTORS], sum_k[M][WIDE], sum_v[M][WIDE];
    EACH_ROW(i)
    {
        ones[i] = 1, scales[i] = scale;
        EACH(j, WIDE) sum_k[i][j] = sum_v[i][j] = 0;
    }
    for (long head = at.head * a.group; head < (at.head + 1) * a.group; head++) {
        const slab rows = slab_of(q, q_place, &a, Q, at.batch, head),
                   pulls = slab_of(g, g_place, &a, G, at.batch, head);
        const long of_all = at.batch * a.heads + head;
        for (long first = begin; first < last; first += SIDE_N) {
            MULTIPLY_TILES(score, T, keys, key, valid, T, rows, first, a.rows);
            MULTIPLY_TILES(pull, T, values, key, valid, T_G, pulls, first, a.rows);
            EACH(j, VECTORS)
            EACH_LANE(e)
            {
                const int r = (j * ACROSS + tx) * LANES + e;
                const facts row =
                    facts_of(&a, &begins, (const __global REAL *)sums + sums_place, of_all, valid, first + r);
                REAL weight[M], slope[M];
                uint4 words = 0;
                EACH_ROW(i)
                {
                    REAL scores[LANES], pulled[LANES];
                    STORE_VECTOR(score[i][j], 0, scores);
                    STORE_VECTOR(pull[i][j], 0, pulled);
                    const REAL drop = drop_factor(&a, of_all * a.rows + first + r, key + ty * M + i, i == 0, &words);
                    const REAL own = weight_of(&row, key + ty * M + i, scores[e] * scale);
                    weight[i] = drop * own;
                    slope[i] = slope_of(&row, own, pulled[e], drop);
                }
                PUT_ROWS(weights + r * LINE + ty * M, weight[i])
                PUT_ROWS(slopes + r * LINE + ty * M, slope[i])
            }
            MULTIPLY_ROWS(sum_v, weights, T_G, pulls, first, a.rows, column)
            MULTIPLY_ROWS(sum_k, slopes, T, rows, first, a.rows, column)
        }
    }
    if (gk)
        WRITE_ROWS(T_GK, gk, gk_place, GK, at.batch, at.head, sum_k, scales, key, a.keys, column)
    if (gv)
        WRITE_ROWS(T_GV, gv, gv_place, GV, at.batch, at.head, sum_v, ones, key, a.keys, column)
}

#endif
