/* exp_sum.cl: maximum of a row and the sum of exponentials relative to it, where softmax and cross entropy spend their
 * time. A row with an infinity of the wrong sign, or of nothing but -infinity, becomes NaN by arithmetic. */
#include "backends/opencl/common/rows.cl"
#ifdef VEC4
#include "backends/opencl/common/vec4.cl"
#endif

/* LANES adjacent elements of x in the compute type; beyond the end -infinity, whose exponential is 0. With VEC4 rows
 * are whole vec4s. */
void fetch_lanes(const __global void *x, long from, long step, INDEX left, C *to)
{
#ifdef VEC4
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

/* Stores LANES adjacent results, as many as are left. */
#ifdef VEC4
#define STORE_LANES(T, y, at, step, left, result) STORE_4(T, y, at, vload4(0, result));
#else
#define STORE_LANES(T, y, at, step, left, result) \
    for (int k = 0; k < LANES && k < (left); k++) \
        STORE(T, y, (at) + k * (step), result[k]);
#endif

/* 16 lanes are one vector. */
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
/* One pass (online softmax): the sum is rescaled when a larger element appears. NaN is no maximum: it returns with the
 * sum. */
real row_exp_sum(const __global void *x, long from, long step, INDEX length, C *max_value, __local real *space)
{
    C running_max = -(C)INFINITY, x_[LANES];
    real sum = 0;
    for (INDEX at = MY_ITEM * LANES; at < length; at += GROUP * LANES) {
        fetch_lanes(x, from + at * step, step, length - at, x_);
        C new_max = running_max, part = 0;
#pragma unroll
        for (int k = 0; k < LANES; k++)
            new_max = x_[k] > new_max ? x_[k] : new_max;
        if (new_max > running_max)
            /* earlier terms were relative to a smaller maximum */
            sum *= exp((real)running_max - (real)new_max);
        running_max = new_max;
#pragma unroll
        for (int k = 0; k < LANES; k++)
            /* -infinity minus itself would be NaN. */
            x_[k] -= running_max > -(C)INFINITY ? running_max : (C)0;
        exp_lanes(x_);
#pragma unroll
        for (int k = 0; k < LANES; k++)
            part += x_[k];
        sum += (real)part;
    }
    /* each work-item has a maximum of its own; sums are rescaled to the common one */
    const real largest = group_max((real)running_max, space);
    *max_value = (C)largest;
    sum = group_sum(running_max > -(C)INFINITY ? sum * exp((real)running_max - largest) : sum, space);
    return largest > -(real)INFINITY ? sum : (real)NAN_F;
}
#else
/* NaN is no maximum: it returns with the sum. */
C row_max(const __global void *x, long from, long step, INDEX length)
{
    C max_value[LANES], x_[LANES];
    for (int k = 0; k < LANES; k++)
        max_value[k] = -(C)INFINITY;
    for (INDEX at = MY_ITEM * LANES; at < length; at += GROUP * LANES) {
        fetch_lanes(x, from + at * step, step, length - at, x_);
#pragma unroll
        for (int k = 0; k < LANES; k++)
            max_value[k] = x_[k] > max_value[k] ? x_[k] : max_value[k];
    }
    for (int k = 1; k < LANES; k++)
        max_value[0] = max_value[k] > max_value[0] ? max_value[k] : max_value[0];
    return max_value[0];
}

/* Two passes, maximum first. One work-item has the row, as on CPUs: the second pass reads it from a cache. */
real row_exp_sum(const __global void *x, long from, long step, INDEX length, C *largest, __local real *space)
{
    const C max_value = row_max(x, from, step, length);
    real sum = 0;
    *largest = max_value;
    /* Sums in the compute type over SPAN elements at most, added up in `real`. */
    for (INDEX begin = 0; begin < length; begin += SPAN) {
        C part[LANES] = {0}, x_[LANES];
        const INDEX end = min(begin + (INDEX)SPAN, length);
        for (INDEX at = begin + MY_ITEM * LANES; at < end; at += GROUP * LANES) {
            fetch_lanes(x, from + at * step, step, end - at, x_);
#pragma unroll
            for (int k = 0; k < LANES; k++)
                x_[k] -= max_value;
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
