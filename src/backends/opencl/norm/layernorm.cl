/* layernorm.cl: layernorm (CENTRED) and rmsnorm over the last axis, alone and fused with an addition (RESIDUAL); and
 * their gradients.
 *
 * gx = rstd · (gw - mean(gw) - x̂ · mean(gw · x̂)) with gw = gy · (weight + offset) and x̂ = (x - mean) · rstd; rmsnorm
 * lacks the first mean. The gradients of weight and bias are sums over rows, Σ gy · x̂ and Σ gy: rows are cut into
 * chunks, a work-item adds gy_row its columns over a chunk in order, and the chunks' sums are added in an order fixed
 * by their number. */
#include "backends/opencl/common/rows.cl"

#define VALUE(at) ((C)LOAD(T_X, x, from + (at)*ALONG(rows, IN)))
#define WEIGHT(at) (weight ? (C)LOAD(T_W, weight, weight_at + (at)*weight_step) + (C)offset : (C)1)

enum { OUT, IN, MEAN, RSTD, FIRST, SECOND }; /* forward */
enum { GY = 4, OWN };                        /* backward: gy, and the gradient that reaches the sum directly */

/* The mean, relative to the first element: exact where all are equal. Otherwise the mean of equal elements far from 0
 * could be off by a rounding, which rstd would magnify. */
real row_mean(const __global void *x, long from, long step, INDEX length, __local real *space)
{
    real sum = 0;
#ifdef CENTRED
#define IT(at) ((C)LOAD(T_X, x, from + (at)*step))
#define ADD(at, lane) part[lane] += IT(at) - first;
    const C first = IT(0);
    for (INDEX begin = 0; begin < length; begin += SPAN) {
        C part[LANES] = {0};
        const INDEX end = min(begin + (INDEX)SPAN, length);
        EACH(ADD, begin, end)
        sum += lanes_sum(part);
    }
    sum = (real)first + group_sum(sum, space) / (real)length;
#undef ADD
#undef IT
#endif
    return sum;
}

/* 1 / sqrt(mean of squared deviations + epsilon); rmsnorm passes mean 0. */
real row_rstd(const __global void *x, long from, long step, INDEX length, C mean, real epsilon, __local real *space)
{
    real sum = 0;
#define ADD(at, lane) \
    const C d = (C)LOAD(T_X, x, from + (at)*step) - mean; \
    part[lane] += d * d;
    for (INDEX begin = 0; begin < length; begin += SPAN) {
        C part[LANES] = {0};
        const INDEX end = min(begin + (INDEX)SPAN, length);
        EACH(ADD, begin, end)
        sum += lanes_sum(part);
    }
#undef ADD
    return 1 / sqrt(group_sum(sum, space) / (real)length + epsilon);
}

#ifdef FORWARD
/* A row per work-group. Bytes: x read and y written once; mean and rstd read the row again from a cache. */
__kernel void norm(row_set rows, OPERAND(y), OPERAND(x), OPERAND(mean), OPERAND(rstd), OPERAND(first), OPERAND(second),
                   VECTOR(weight), VECTOR(bias), real epsilon, real offset)
{
    __local real space[GROUP];
    const long row = MY_ROW;
    END_BEYOND(rows.count)
    const INDEX length = (INDEX)rows.length;
    const long from = x_at + nest_at(&rows.others, row, IN), to = y_at + nest_at(&rows.others, row, OUT);
#ifdef RESIDUAL
    const long one = first_at + nest_at(&rows.others, row, FIRST),
               other = second_at + nest_at(&rows.others, row, SECOND);
#define ADD(at, lane) \
    PUT(T_X, x, from + (at)*ALONG(rows, IN), \
        (C)LOAD(T_FIRST, first, one + (at)*ALONG(rows, FIRST)) + \
            (C)LOAD(T_SECOND, second, other + (at)*ALONG(rows, SECOND)));
    EACH(ADD, 0, length)
#undef ADD
#if GROUP > 1
    barrier(CLK_GLOBAL_MEM_FENCE); /* every work-item reads the first element of the sum */
#endif
#endif
    /* mean and rstd in `real`, rounded to the compute type for the elements */
    const real middle = row_mean(x, from, ALONG(rows, IN), length, space);
    const C m = (C)middle;
    const real inverse = row_rstd(x, from, ALONG(rows, IN), length, m, epsilon, space);
    const C s = (C)inverse;
#define NORMALIZE(at, lane) \
    PUT(T_Y, y, to + (at)*ALONG(rows, OUT), \
        (VALUE(at) - m) * s * WEIGHT(at) + (bias ? (C)LOAD(T_B, bias, bias_at + (at)*bias_step) : (C)0));
    EACH(NORMALIZE, 0, length)
#undef NORMALIZE
    if (MY_ITEM != 0)
        return;
    if (mean)
        STORE_REAL(T_STAT, mean, mean_at + nest_at(&rows.others, row, MEAN), middle);
    if (rstd)
        STORE_REAL(T_STAT, rstd, rstd_at + nest_at(&rows.others, row, RSTD), inverse);
}
#endif

#ifdef GRAD
/* gx, a row per work-group. With REMEASURE, where saved statistics were rounded, mean and rstd are recomputed and kept
 * in `stats` for the sums of columns. */
__kernel void norm_grad(row_set rows, OPERAND(gx), OPERAND(x), OPERAND(mean), OPERAND(rstd), OPERAND(g), OPERAND(own),
                        VECTOR(weight), OPERAND(stats), real epsilon, real offset)
{
    __local real space[GROUP];
    const long row = MY_ROW;
    END_BEYOND(rows.count)
    const INDEX length = (INDEX)rows.length;
    const long from = x_at + nest_at(&rows.others, row, IN), gy_row = g_at + nest_at(&rows.others, row, GY);
#ifdef REMEASURE
    const real middle = row_mean(x, from, ALONG(rows, IN), length, space);
    const real inverse = row_rstd(x, from, ALONG(rows, IN), length, (C)middle, epsilon, space);
    __global real *saved = (__global real *)((__global char *)stats + stats_at) + 2 * row;
    if (MY_ITEM == 0)
        saved[0] = middle, saved[1] = inverse;
#else
    const real middle = mean ? (real)LOAD(T_STAT, mean, mean_at + nest_at(&rows.others, row, MEAN)) : (real)0;
    const real inverse = (real)LOAD(T_STAT, rstd, rstd_at + nest_at(&rows.others, row, RSTD));
#endif
    const C m = (C)middle, s = (C)inverse;
    if (!gx)
        return;
    real sum = 0, product = 0;
#define ADD(at, lane) \
    const C gw = (C)LOAD(T_G, g, gy_row + (at)*ALONG(rows, GY)) * WEIGHT(at); \
    part[lane] += gw; \
    other[lane] += gw * ((VALUE(at) - m) * s);
    for (INDEX begin = 0; begin < length; begin += SPAN) {
        C part[LANES] = {0}, other[LANES] = {0};
        const INDEX end = min(begin + (INDEX)SPAN, length);
        EACH(ADD, begin, end)
        sum += lanes_sum(part);
        product += lanes_sum(other);
    }
#undef ADD
    const C second = (C)(group_sum(product, space) / (real)length);
#ifdef CENTRED
    const C first = (C)(group_sum(sum, space) / (real)length);
#else
    const C first = 0;
#endif
    const long to = gx_at + nest_at(&rows.others, row, OUT), beside = own_at + nest_at(&rows.others, row, OWN);
#define GRAD_X(at, lane) \
    const C gw = (C)LOAD(T_G, g, gy_row + (at)*ALONG(rows, GY)) * WEIGHT(at); \
    const C grad = s * (gw - first - (VALUE(at) - m) * s * second); \
    PUT(T_GX, gx, to + (at)*ALONG(rows, OUT), own ? grad + (C)LOAD(T_OWN, own, beside + (at)*ALONG(rows, OWN)) : grad);
    EACH(GRAD_X, 0, length)
#undef GRAD_X
}
#endif

#ifdef COLUMNS
/* LANES columns of a chunk of rows per work-item: its part of Σ gy · x̂ and Σ gy, (chunks, 2, length). Adjacent
 * work-items have adjacent columns. */
__kernel void norm_columns(row_set rows, OPERAND(x), OPERAND(mean), OPERAND(rstd), OPERAND(g), OPERAND(stats),
                           OPERAND(partial), long chunk_rows, long chunks)
{
    const long sets = (rows.length + LANES - 1) / LANES, chunk = get_global_id(0) / sets;
    const INDEX column = (INDEX)(get_global_id(0) % sets) * LANES;
    if (chunk >= chunks)
        return;
    const int wide = (int)min((long)LANES, rows.length - column);
    const long last = min(rows.count, (chunk + 1) * chunk_rows);
    real products[LANES] = {0}, sums[LANES] = {0};
    for (long begin = chunk * chunk_rows; begin < last; begin += 64) {
        C product[LANES] = {0}, sum[LANES] = {0};
        for (long row = begin; row < min(begin + 64, last); row++) {
            const long from = x_at + nest_at(&rows.others, row, IN), gy_row = g_at + nest_at(&rows.others, row, GY);
#ifdef REMEASURE
            const __global real *saved = (const __global real *)((const __global char *)stats + stats_at) + 2 * row;
            const C m = (C)saved[0], s = (C)saved[1];
#else
            const C m = mean ? (C)LOAD(T_STAT, mean, mean_at + nest_at(&rows.others, row, MEAN)) : (C)0;
            const C s = (C)LOAD(T_STAT, rstd, rstd_at + nest_at(&rows.others, row, RSTD));
#endif
#define ADD(lane) \
    const C gy = (C)LOAD(T_G, g, gy_row + (column + lane) * ALONG(rows, GY)); \
    product[lane] += gy * ((VALUE(column + lane) - m) * s); \
    sum[lane] += gy;
            if (wide == LANES) {
#pragma unroll
                for (int lane = 0; lane < LANES; lane++) {
                    ADD(lane)
                }
            } else {
                for (int lane = 0; lane < wide; lane++) {
                    ADD(lane)
                }
            }
#undef ADD
        }
        for (int lane = 0; lane < LANES; lane++)
            products[lane] += product[lane], sums[lane] += sum[lane];
    }
    __global real *to = (__global real *)((__global char *)partial + partial_at) + 2 * chunk * rows.length + column;
    for (int lane = 0; lane < wide; lane++)
        to[lane] = products[lane], to[rows.length + lane] = sums[lane];
}
#endif

#ifdef COMBINE
/* A work-group has COLUMNS_A_GROUP columns and SLICES work-items for each, which take every SLICES-th chunk. PART is
 * the type of the chunks' sums. */
__kernel void norm_combine(OPERAND(partial), long chunks, long length, VECTOR(gweight), VECTOR(gbias))
{
    __local real space[2 * COLUMNS_A_GROUP * SLICES];
    const int me = (int)get_local_id(0), slice = me / COLUMNS_A_GROUP;
    const long column = get_group_id(0) * COLUMNS_A_GROUP + me % COLUMNS_A_GROUP;
    const __global PART *from = (const __global PART *)((const __global char *)partial + partial_at) + column;
    real product = 0, sum = 0;
#pragma unroll 4
    for (long chunk = slice; chunk < chunks && column < length; chunk += SLICES) {
        product += from[2 * chunk * length];
        sum += from[(2 * chunk + 1) * length];
    }
#if SLICES > 1
    space[2 * me] = product, space[2 * me + 1] = sum;
    barrier(CLK_LOCAL_MEM_FENCE);
    if (slice > 0)
        return;
    for (int other = 1; other < SLICES; other++) {
        product += space[2 * (other * COLUMNS_A_GROUP + me)];
        sum += space[2 * (other * COLUMNS_A_GROUP + me) + 1];
    }
#endif
    if (column >= length)
        return;
    if (gweight)
        STORE_REAL(T_GW, gweight, gweight_at + column * gweight_step, product);
    if (gbias)
        STORE_REAL(T_GB, gbias, gbias_at + column * gbias_step, sum);
}
#endif
