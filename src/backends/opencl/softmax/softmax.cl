/* softmax.cl: softmax, or with LOG log_softmax, along one axis, and its gradient: from the result y, or with FROM_X
 * from x, where y was rounded to 16 bits; then it is made again. */
#include "backends/opencl/softmax/exp_sum.cl"

enum { OUT, IN, UP };

/* Some neighbours of the result, from x: `by` is 1 / the sum of exponentials, or its logarithm. */
void make_lanes(const __global void *x, long from, long step, INDEX left, C most, C by, C *to)
{
    fetch_lanes(x, from, step, left, to);
#pragma unroll
    for (int k = 0; k < LANES; k++)
        to[k] -= most;
#ifdef LOG
#pragma unroll
    for (int k = 0; k < LANES; k++)
        to[k] -= by;
#else
    exp_lanes(to);
#pragma unroll
    for (int k = 0; k < LANES; k++)
        to[k] *= by;
#endif
}

/* What results are made with. */
C turned(real sum)
{
#ifdef LOG
    return (C)log(sum);
#else
    return (C)(1 / sum);
#endif
}

/* Each of the neighbours that are left; of fours all are. */
#ifdef QUADS
#define EACH_LANE(k, left) _Pragma("unroll") for (int k = 0; k < LANES; k++)
#else
#define EACH_LANE(k, left) for (int k = 0; k < LANES && k < (left); k++)
#endif

#ifdef FORWARD
/* A row for each group. Bytes: x read and y written once; a row that is not kept in registers is read again from a
 * cache. */
__kernel void softmax(row_set rows, OPERAND(y), OPERAND(x))
{
    __local real space[GROUP];
    const long row = MY_ROW;
    END_BEYOND(rows.count)
    const INDEX length = (INDEX)rows.length, step = ALONG(rows, IN);
    const long from = x_at + nest_at(&rows.others, row, IN), to = y_at + nest_at(&rows.others, row, OUT);
    C most;
    const C by = turned(row_exps(x, from, step, length, &most, space));
    for (INDEX at = MY_PLACE * LANES; at < length; at += GROUP * LANES) {
        C made[LANES];
        make_lanes(x, from + at * step, step, length - at, most, by, made);
        STORE_LANES(T_Y, y, to + at * ALONG(rows, OUT), ALONG(rows, OUT), length - at, made)
    }
}
#endif

#ifdef BACKWARD
/* Some neighbours of y, operand IN, or made from it. */
void result_lanes(const __global void *y, long from, long step, INDEX left, C most, C by, C *to)
{
#ifdef FROM_X
    make_lanes(y, from, step, left, most, by, to);
#else
    fetch_lanes(y, from, step, left, to);
#endif
}

/* Some neighbours of g, as many as are left. */
void fetch_slopes(const __global void *g, long from, long step, INDEX left, C *to)
{
#ifdef QUADS
    vstore4(LOAD_4(T_G, g, from), 0, to);
#else
    EACH_LANE(k, left)
    to[k] = (C)LOAD(T_G, g, from + k * step);
#endif
}

/* A sum of gradients so large, infinite or NaN that its product with an exponential below the range of f32 still
 * counts. */
bool is_extreme(real sum)
{
    return !(fabs(sum) < (real)0x1p64f);
}

/* One element of gx. */
C slope(C y, C g, real sum)
{
#ifdef LOG
    return is_extreme(sum) ? (C)((real)g - exp((real)y) * sum) : g - exp(y) * (C)sum;
#else
    /* the sum has more digits than an element: a row with one large y leaves little of the difference */
    return y * (C)((real)g - sum);
#endif
}

/* A row for each group. Bytes: y and g read, gx written; each row is read again from a cache. */
__kernel void softmax_grad(row_set rows, OPERAND(gx), OPERAND(y), OPERAND(g))
{
    __local real space[GROUP];
    const long row = MY_ROW;
    END_BEYOND(rows.count)
    const INDEX length = (INDEX)rows.length, step = ALONG(rows, IN);
    const long from = y_at + nest_at(&rows.others, row, IN), to = gx_at + nest_at(&rows.others, row, OUT),
               up = g_at + nest_at(&rows.others, row, UP);
    C most = 0, by = 0;
#ifdef FROM_X
    by = turned(row_exps(y, from, step, length, &most, space));
#endif
    real part[LANES] = {0}, sum = 0;
    C slopes[LANES];
    for (INDEX at = MY_PLACE * LANES; at < length; at += GROUP * LANES) {
        C result[LANES];
#ifndef LOG
        result_lanes(y, from + at * step, step, length - at, most, by, result);
#endif
        fetch_slopes(g, up + at * ALONG(rows, UP), ALONG(rows, UP), length - at, slopes);
        EACH_LANE(k, length - at)
#ifdef LOG
        part[k] += (real)slopes[k];
#else
        part[k] += (real)result[k] * (real)slopes[k];
#endif
    }
#pragma unroll
    for (int k = 0; k < LANES; k++)
        sum += part[k];
    sum = group_sum(sum, space);
    for (INDEX at = MY_PLACE * LANES; at < length; at += GROUP * LANES) {
        C result[LANES];
        result_lanes(y, from + at * step, step, length - at, most, by, result);
        fetch_slopes(g, up + at * ALONG(rows, UP), ALONG(rows, UP), length - at, slopes);
        EACH_LANE(k, length - at)
        result[k] = slope(result[k], slopes[k], sum);
        STORE_LANES(T_GX, gx, to + at * ALONG(rows, OUT), ALONG(rows, OUT), length - at, result)
    }
}
#endif
