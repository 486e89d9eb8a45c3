/* softmax.cl: softmax or, with LOG, log_softmax along one axis, and the gradient: from the output y or, with FROM_X
 * where y was rounded to 16 bits, from x, from which y is recomputed. */
#include "backends/opencl/softmax/exp_sum.cl"

enum { OUT, IN, GY }; /* operands, along the axis */

/* LANES adjacent outputs from x: `by` is 1 / sum of exponentials, or its logarithm. */
void compute_lanes(const __global void *x, long from, long step, INDEX left, C max_value, C by, C *to)
{
    fetch_lanes(x, from, step, left, to);
#pragma unroll
    for (int k = 0; k < LANES; k++)
        to[k] -= max_value;
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

/* The factor, or with LOG the subtrahend, of a row. */
C normalizer(real sum)
{
#ifdef LOG
    return (C)log(sum);
#else
    return (C)(1 / sum);
#endif
}

/* The lanes that are left; of vec4s all are. */
#ifdef VEC4
#define EACH_LANE(k, left) _Pragma("unroll") for (int k = 0; k < LANES; k++)
#else
#define EACH_LANE(k, left) for (int k = 0; k < LANES && k < (left); k++)
#endif

#ifdef FORWARD
/* A row per work-group. Bytes: x read and y written once; the second pass reads x from a cache. */
__kernel void softmax(row_set rows, OPERAND(y), OPERAND(x))
{
    __local real space[GROUP];
    const long row = MY_ROW;
    END_BEYOND(rows.count)
    const INDEX length = (INDEX)rows.length, step = ALONG(rows, IN);
    const long from = x_at + nest_at(&rows.others, row, IN), to = y_at + nest_at(&rows.others, row, OUT);
    C max_value;
    const C by = normalizer(row_exp_sum(x, from, step, length, &max_value, space));
    for (INDEX at = MY_ITEM * LANES; at < length; at += GROUP * LANES) {
        C output[LANES];
        compute_lanes(x, from + at * step, step, length - at, max_value, by, output);
        STORE_LANES(T_Y, y, to + at * ALONG(rows, OUT), ALONG(rows, OUT), length - at, output)
    }
}
#endif

#ifdef BACKWARD
/* LANES adjacent outputs: loaded, or recomputed from x. */
void result_lanes(const __global void *y, long from, long step, INDEX left, C max_value, C by, C *to)
{
#ifdef FROM_X
    compute_lanes(y, from, step, left, max_value, by, to);
#else
    fetch_lanes(y, from, step, left, to);
#endif
}

/* LANES adjacent gradients, as many as are left. */
void fetch_grads(const __global void *g, long from, long step, INDEX left, C *to)
{
#ifdef VEC4
    vstore4(LOAD_4(T_G, g, from), 0, to);
#else
    EACH_LANE(k, left)
    to[k] = (C)LOAD(T_G, g, from + k * step);
#endif
}

/* A sum so large, infinite or NaN that its product with an exponential below the range of f32 still matters. */
bool is_extreme(real sum)
{
    return !(fabs(sum) < (real)0x1p64f);
}

/* One element of gx. */
C grad_x(C y, C g, real sum)
{
#ifdef LOG
    return is_extreme(sum) ? (C)((real)g - exp((real)y) * sum) : g - exp(y) * (C)sum;
#else
    /* the sum is more precise than an element: for a row with one large y the difference nearly cancels */
    return y * (C)((real)g - sum);
#endif
}

/* A row per work-group. Bytes: y and gy read, gx written; the second pass reads from a cache. */
__kernel void softmax_grad(row_set rows, OPERAND(gx), OPERAND(y), OPERAND(g))
{
    __local real space[GROUP];
    const long row = MY_ROW;
    END_BEYOND(rows.count)
    const INDEX length = (INDEX)rows.length, step = ALONG(rows, IN);
    const long from = y_at + nest_at(&rows.others, row, IN), to = gx_at + nest_at(&rows.others, row, OUT),
               gy_row = g_at + nest_at(&rows.others, row, GY);
    /* Not read unless FROM_X. */
    C max_value = 0, by = 0;
#ifdef FROM_X
    by = normalizer(row_exp_sum(y, from, step, length, &max_value, space));
#endif
    /* Σ y · gy, or with LOG Σ gy */
    real part[LANES] = {0}, sum = 0;
    C gys[LANES];
    for (INDEX at = MY_ITEM * LANES; at < length; at += GROUP * LANES) {
        C result[LANES];
#ifndef LOG
        result_lanes(y, from + at * step, step, length - at, max_value, by, result);
#endif
        fetch_grads(g, gy_row + at * ALONG(rows, GY), ALONG(rows, GY), length - at, gys);
        EACH_LANE(k, length - at)
#ifdef LOG
        part[k] += (real)gys[k];
#else
        part[k] += (real)result[k] * (real)gys[k];
#endif
    }
#pragma unroll
    for (int k = 0; k < LANES; k++)
        sum += part[k];
    /* all work-items need the sum before they write */
    sum = group_sum(sum, space);
    for (INDEX at = MY_ITEM * LANES; at < length; at += GROUP * LANES) {
        C result[LANES];
        result_lanes(y, from + at * step, step, length - at, max_value, by, result);
        fetch_grads(g, gy_row + at * ALONG(rows, GY), ALONG(rows, GY), length - at, gys);
        EACH_LANE(k, length - at)
        result[k] = grad_x(result[k], gys[k], sum);
        STORE_LANES(T_GX, gx, to + at * ALONG(rows, OUT), ALONG(rows, OUT), length - at, result)
    }
}
#endif
