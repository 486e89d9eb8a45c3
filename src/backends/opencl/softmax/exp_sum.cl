/* exp_sum.cl: the largest element of a row of x and the sum of exponentials beside it: what softmax and cross entropy
 * spend their time on. A row with an infinity of the wrong sign, or with nothing but -infinity, becomes NaN by
 * arithmetic. */
#include "backends/opencl/common/rows.cl"
#ifdef QUADS
#include "backends/opencl/common/vec4.cl"
#endif

/* Some neighbours of x in the type computed in; beyond the end -infinity, whose exponential is 0. With QUADS rows lie
 * in fours. */
void fetch_lanes(const __global void *x, long from, long step, INDEX left, C *to)
{
#ifdef QUADS
    vstore4(LOAD_4(T_X, x, from), 0, to);
#else
    if (left >= LANES) {
#pragma unroll
        for (int k = 0; k < LANES; k++)
            to[k] = (C)LOAD(T_X, x, from + k * step);
    } else {
        for (int k = 0; k < LANES; k++)
            to[k] = k < left ? (C)LOAD(T_X, x, from + k * step) : -(C)INFINITY;
    }
#endif
}

/* Some neighbours of a result of dtype T, as many as are left. */
#ifdef QUADS
#define STORE_LANES(T, y, at, step, left, made) STORE_4(T, y, at, vload4(0, made));
#else
#define STORE_LANES(T, y, at, step, left, made) \
    for (int k = 0; k < LANES && k < (left); k++) \
        STORE(T, y, (at) + k * (step), made[k]);
#endif

/* Many lanes are one vector. */
void exp_lanes(C *x)
{
#if LANES == 16
    vstore16(exp(vload16(0, x)), 0, x);
#else
#pragma unroll
    for (int k = 0; k < LANES; k++)
        x[k] = exp(x[k]);
#endif
}

#if GROUP > 1
/* The sum of exponentials of distances from the largest element, which goes to `most`, in one pass: what is summed up
 * is made smaller when a larger element comes. NaN is no largest element: it comes back with the sum. */
real row_exps(const __global void *x, long from, long step, INDEX length, C *most, __local real *space)
{
    C top = -(C)INFINITY, x_[LANES];
    real sum = 0;
    for (INDEX at = MY_PLACE * LANES; at < length; at += GROUP * LANES) {
        fetch_lanes(x, from + at * step, step, length - at, x_);
        C here = top, part = 0;
#pragma unroll
        for (int k = 0; k < LANES; k++)
            here = x_[k] > here ? x_[k] : here;
        if (here > top)
            sum *= exp((real)top - (real)here);
        top = here;
#pragma unroll
        for (int k = 0; k < LANES; k++)
            x_[k] -= top > -(C)INFINITY ? top : (C)0;
        exp_lanes(x_);
#pragma unroll
        for (int k = 0; k < LANES; k++)
            part += x_[k];
        sum += (real)part;
    }
    const real largest = group_most((real)top, space);
    *most = (C)largest;
    sum = group_sum(top > -(C)INFINITY ? sum * exp((real)top - largest) : sum, space);
    return largest > -(real)INFINITY ? sum : (real)NAN_F;
}
#else
/* NaN is no largest element: it comes back with the sum. */
C row_most(const __global void *x, long from, long step, INDEX length)
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
    return most[0];
}

real row_exps(const __global void *x, long from, long step, INDEX length, C *largest, __local real *space)
{
    const C most = row_most(x, from, step, length);
    real sum = 0;
    *largest = most;
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
    return sum;
}
#endif
