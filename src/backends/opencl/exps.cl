/* exps.cl: the largest element of a row of x and the sum of exponentials beside it: what softmax and cross entropy spend their time on. A row with an
 * infinity of the wrong sign, or with nothing but -infinity, becomes NaN by arithmetic. */
#include "rows.cl"

/* Some neighbours of x in the type computed in; beyond the end -infinity, whose exponential is 0. */
void fetch_lanes(const __global void *x, long from, long step, INDEX left, C *to)
{
    if (left >= LANES) {
#pragma unroll
        for (int k = 0; k < LANES; k++)
            to[k] = (C)LOAD(T_X, x, from + k * step);
    } else {
        for (int k = 0; k < LANES; k++)
            to[k] = k < left ? (C)LOAD(T_X, x, from + k * step) : -(C)INFINITY;
    }
}

/* Many lanes are one vector. */
void exp_lanes(C *x)
{
#if LANES == 16
    vstore16(exp(vload16(0, x)), 0, x);
#else
    for (int k = 0; k < LANES; k++)
        x[k] = exp(x[k]);
#endif
}

/* NaN is no largest element: it comes back with the sum. */
C row_most(const __global void *x, long from, long step, INDEX length, __local real *space)
{
    C most[LANES], x_[LANES];
    for (int k = 0; k < LANES; k++)
        most[k] = -(C)INFINITY;
    for (INDEX at = MY_PLACE * LANES; at < length; at += GROUP * LANES) {
        fetch_lanes(x, from + at * step, step, length - at, x_);
#pragma unroll
        for (int k = 0; k < LANES; k++)
            most[k] = x_[k] > most[k] ? x_[k] : most[k];
    }
    for (int k = 1; k < LANES; k++)
        most[0] = most[k] > most[0] ? most[k] : most[0];
    return (C)group_most((real)most[0], space);
}

real row_exps(const __global void *x, long from, long step, INDEX length, C most, __local real *space)
{
    real sum = 0;
    for (INDEX begin = 0; begin < length; begin += SPAN) {
        C part[LANES] = {0}, x_[LANES];
        const INDEX end = min(begin + (INDEX)SPAN, length);
        for (INDEX at = begin + MY_PLACE * LANES; at < end; at += GROUP * LANES) {
            fetch_lanes(x, from + at * step, step, end - at, x_);
#pragma unroll
            for (int k = 0; k < LANES; k++)
                x_[k] -= most;
            exp_lanes(x_);
#pragma unroll
            for (int k = 0; k < LANES; k++)
                part[k] += x_[k];
        }
        sum += lanes_sum(part);
    }
    return group_sum(sum, space);
}
