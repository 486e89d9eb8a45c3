/* attention.cl: softmax(q · kᵀ · scale) · v, a group some rows of a head. Weights are relative to the largest so far;
 * whenever a later tile has a larger one, what was summed before is scaled down.
 *
 * Options: those of attention_tiles.cl, T_L, the dtype of the logarithms. */
#include "backends/opencl/attention/attention_tiles.cl"

__attribute__((reqd_work_group_size(ACROSS, ACROSS, 1))) __kernel void
forward(const __global void *q, long q_place, const __global void *k, long k_place, const __global void *v,
        long v_place, const __global void *lengths, long lengths_place, const __global void *starts, long starts_place,
        __global void *y, long y_place, __global void *logs, long logs_place, attention a, real scale_,
        FAULT_PARAMETERS)
{
    A_STAGE(stage, STAGE);
    A_STAGE(weights, SIDE_N * LINE); /* (keys, rows) */
    AN_EDGE(edge);
    ITEM_PLACE;
    const place at = place_of(&a, a.heads);
    const slab rows = slab_of(q, q_place, &a, Q, at.batch, at.head),
               keys = slab_of(k, k_place, &a, K, at.batch, at.head / a.group),
               values = slab_of(v, v_place, &a, V, at.batch, at.head / a.group),
               begins = starts_of(starts, starts_place, &a, at.batch);
    const long first = at.block * SIDE_M, column = at.window * WINDOW,
               valid = valid_keys(&a, lengths, lengths_place, at.batch);
    const long end = keys_of(&a, valid, min(first + SIDE_M, a.rows) - 1),
               number = (at.batch * a.heads + at.head) * a.rows;
    const REAL scale = (REAL)scale_;
    REAL most[M], total[M];
    VECTOR score[M][VECTORS], sum[M][WIDE];
    if (lengths && item == 0) {
        long length = LOAD(LENGTH, lengths, lengths_place + at.batch * a.length_stride);
        if (length < 0 || length > a.keys)
            report_fault(fault, length, a.keys);
    }
    if (at.head == 0 && at.window == 0)
        check_starts(&a, &begins, first, item, fault, fault_function);
    EACH_ROW(i)
    {
        most[i] = -INFINITE, total[i] = 0;
        EACH(j, WIDE) sum[i][j] = 0;
    }
    for (long key = first_key_of(&a, &begins, first, item, &edge); key < end; key += SIDE_N) {
        MULTIPLY_TILES(score, T, rows, first, a.rows, T, keys, key, end);
        REAL own[M];
        EACH_ROW(i)
        {
            const span seen = span_of(&a, &begins, valid, first + ty * M + i);
            own[i] = most[i];
            EACH(j, VECTORS)
            {
                REAL line[LANES];
                score[i][j] *= scale;
                STORE_VECTOR(score[i][j], 0, line);
                EACH_LANE(e) own[i] = SEES(seen, key + (j * ACROSS + tx) * LANES + e) ? fmax(own[i], line[e]) : own[i];
            }
        }
        most_of_rows(own, ty, tx, stage);
        EACH_ROW(i)
        {
            const long t = first + ty * M + i;
            const span seen = span_of(&a, &begins, valid, t);
            const REAL factor = most[i] == own[i]      ? 1
                                : most[i] == -INFINITE ? 0
                                                       : exp(most[i] - own[i]),
                       shift = own[i] == -INFINITE ? 0 : own[i];
            most[i] = own[i];
            total[i] *= factor;
            EACH(j, WIDE) sum[i][j] *= factor;
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
        PUT_TILE(weights, score)
        MULTIPLY_ROWS(sum, weights, T, values, key, end, column)
    }
    sum_of_rows(total, ty, tx, stage);
    EACH_ROW(i)
    {
        const long t = first + ty * M + i;
        const REAL all = total[i];
        if (logs && at.window == 0 && tx == 0 && t < a.rows)
            STORE(T_L, logs,
                  logs_place + at.batch * a.stride[LOGS][0] + at.head * a.stride[LOGS][1] + t * a.stride[LOGS][2],
                  all == 0 ? -INFINITE : most[i] + log(all));
        most[i] = all == 0 ? 0 : 1 / all;
        EACH(j, WIDE) sum[i][j] = all == 0 ? (VECTOR)0 : sum[i][j];
    }
    WRITE_ROWS(T, y, y_place, Y, at.batch, at.head, sum, most, first, a.rows, column)
}
