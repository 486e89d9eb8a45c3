/* attention.cl: softmax(cap(q · kᵀ · scale)) · v, a work-group per block of rows of a head, with an online softmax:
 * weights are relative to the running maximum, and earlier sums are rescaled when a tile raises it.
 *
 * Options: those of attention_tiles.cl; T_LSE, dtype of the logsumexp. */
#include "backends/opencl/attention/attention_tiles.cl"

__attribute__((reqd_work_group_size(ACROSS, ACROSS, 1))) __kernel void
forward(const __global void *q, long q_offset, const __global void *k, long k_offset, const __global void *v,
        long v_offset, const __global void *lengths, long lengths_offset, const __global void *starts,
        long starts_offset, __global void *y, long y_offset, __global void *lse, long lse_offset, attention a,
        real scale_ CAP_PARAMETER, FAULT_PARAMETERS)
{
    /* Local memory: a stage of operands, and the tile of weights between the two products. */
    A_STAGE(stage, STAGE);
    A_STAGE(weights, SIDE_N * LINE); /* (keys, rows) */
    AN_EDGE(edge);
    ITEM_INDEX;
    const tile_index at = tile_index_of(&a, a.heads);
    const head_view rows = head_view_of(q, q_offset, &a, Q, at.batch, at.head),
                    keys = head_view_of(k, k_offset, &a, K, at.batch, at.head / a.group),
                    values = head_view_of(v, v_offset, &a, V, at.batch, at.head / a.group),
                    row_starts = starts_of(starts, starts_offset, &a, at.batch);
    const long first = at.block * SIDE_M, column = at.window * WINDOW,
               valid = valid_keys(&a, lengths, lengths_offset, at.batch);
    const long end = keys_of(&a, valid, min(first + SIDE_M, a.rows) - 1),
               number = (at.batch * a.heads + at.head) * a.rows;
    const REAL scale = (REAL)scale_;
    CAP_VALUE;
    REAL running_max[M], total[M];
    VECTOR score[M][VECTORS], sum[M][WINDOW_VECTORS];
    if (lengths && item == 0) {
        long length = LOAD(LENGTH, lengths, lengths_offset + at.batch * a.length_stride);
        if (length < 0 || length > a.keys)
            report_fault(fault, length, a.keys);
    }
    /* once per row: other heads and windows have the same starts */
    if (at.head == 0 && at.window == 0)
        check_starts(&a, &row_starts, first, item, fault, fault_function);
    EACH_ROW(i)
    {
        running_max[i] = -INFINITE, total[i] = 0;
        EACH(j, WINDOW_VECTORS) sum[i][j] = 0;
    }
    for (long key = FIRST_KEY_OF(&a, &row_starts, valid, first, item, &edge); key < end; key += SIDE_N) {
        /* scores of the tile, q · kᵀ (SIDE_M, SIDE_N) */
        MULTIPLY_TILES(score, T, rows, first, a.rows, T, keys, key, end);
        REAL tile_max[M];
        EACH_ROW(i)
        {
            const key_range seen = key_range_of(&a, &row_starts, valid, first + ty * M + i);
            tile_max[i] = running_max[i];
            EACH(j, VECTORS)
            {
                REAL line[LANES];
                score[i][j] = CAPPED(score[i][j] * scale);
                STORE_VECTOR(score[i][j], 0, line);
                EACH_LANE(e)
                tile_max[i] =
                    SEES(seen, key + (j * ACROSS + tx) * LANES + e) ? fmax(tile_max[i], line[e]) : tile_max[i];
            }
        }
        /* the new running maximum of each row, over all work-items that share it */
        max_of_rows(tile_max, ty, tx, stage);
        EACH_ROW(i)
        {
            const long t = first + ty * M + i;
            const key_range seen = key_range_of(&a, &row_starts, valid, t);
            const REAL rescale = running_max[i] == tile_max[i] ? 1
                                 : running_max[i] == -INFINITE ? 0
                                                               : exp(running_max[i] - tile_max[i]),
                       shift = tile_max[i] == -INFINITE ? 0 : tile_max[i];
            running_max[i] = tile_max[i];
            total[i] *= rescale;
            EACH(j, WINDOW_VECTORS) sum[i][j] *= rescale;
            uint4 words = 0;
            EACH(j, VECTORS)
            {
                REAL line[LANES];
                STORE_VECTOR(exp(score[i][j] - shift), 0, line);
                EACH_LANE(e)
                {
                    const long s = key + (j * ACROSS + tx) * LANES + e;
                    const REAL p = SEES(seen, s) ? line[e] : 0;
                    total[i] += p;
                    line[e] = p * drop_factor(&a, number + t, s, e == 0, &words);
                }
                score[i][j] = LOAD_VECTOR(0, line);
            }
        }
        STORE_TILE(weights, score)
        MULTIPLY_ROWS(sum, weights, T, values, key, end, column)
    }
    /* sums of weights were kept per work-item until here */
    sum_of_rows(total, ty, tx, stage);
    EACH_ROW(i)
    {
        const long t = first + ty * M + i;
        const REAL all = total[i];
        if (lse && at.window == 0 && tx == 0 && t < a.rows)
            STORE(T_LSE, lse,
                  lse_offset + at.batch * a.stride[LSE][0] + at.head * a.stride[LSE][1] + t * a.stride[LSE][2],
                  all == 0 ? -INFINITE : running_max[i] + log(all));
        running_max[i] = all == 0 ? 0 : 1 / all;
        EACH(j, WINDOW_VECTORS) sum[i][j] = all == 0 ? (VECTOR)0 : sum[i][j];
    }
    WRITE_ROWS(T, y, y_offset, Y, at.batch, at.head, sum, running_max, first, a.rows, column)
}
