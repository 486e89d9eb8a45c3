/* clip.cl: sums of squares over the segments of a flat gradient, and the factor that limits its global norm.
 *
 * Squares and sums are `real`: in f64 no square overflows. Chunks, and the chunks of a segment, are summed in an order
 * fixed by their number. Without f64, elements beyond 1e19 have an infinite square, and the gradient counts as
 * non-finite. */
#include "backends/opencl/common/rows.cl"

#ifdef CHUNKS
/* One chunk per work-group. Bytes: the gradient read. */
__kernel void square_chunks(OPERAND(gradient), OPERAND(chunks), OPERAND(partial), long count)
{
    __local real space[GROUP];
    const long number = MY_ROW;
    END_BEYOND(count)
    const long begin = LOAD(i64, chunks, chunks_at + 2 * number), end = LOAD(i64, chunks, chunks_at + 2 * number + 1);
    real part[LANES] = {0}, sum = 0;
#define ADD(at, lane) \
    const real x = (real)LOAD(T_X, gradient, gradient_at + (at)); \
    part[lane] += x * x;
    EACH(ADD, begin, end)
#undef ADD
    for (int k = 0; k < LANES; k++)
        sum += part[k];
    sum = group_sum(sum, space);
    if (MY_ITEM == 0)
        ((__global real *)((__global char *)partial + partial_at))[number] = sum;
}
#endif

#ifdef SEGMENTS
/* One segment per work-group; its chunks are numbered from the first given. */
__kernel void square_segments(OPERAND(firsts), OPERAND(partial), OPERAND(sums), long count)
{
    __local real space[GROUP];
    const long segment = MY_ROW;
    END_BEYOND(count)
    const __global real *from =
        (const __global real *)((const __global char *)partial + partial_at) - LOAD(i64, firsts, firsts_at);
    const long end = LOAD(i64, firsts, firsts_at + segment + 1);
    real sum = 0;
#define ADD(k) sum += from[k];
    EACH_OF(ADD, LOAD(i64, firsts, firsts_at + segment), end)
#undef ADD
    sum = group_sum(sum, space);
    if (MY_ITEM == 0)
        store_stat(sums, sums_at + segment, sum);
}
#endif

#ifdef FACTOR
/* One work-group. As torch.nn.utils.clip_grad_norm_: NaN stays NaN, and an infinite norm gives a factor of 0. */
__kernel void clip_factor(OPERAND(sums), long count, OPERAND(total), OPERAND(factor), real max_norm, real tiny,
                          int again)
{
    __local real space[GROUP];
    real squares = 0;
#define ADD(i) squares += load_stat(sums, sums_at + i);
    EACH_OF(ADD, 0, count)
#undef ADD
    squares = group_sum(squares, space);
    if (get_global_id(0) != 0)
        return;
    /* a second clipping of the same gradients multiplies the first factor */
    const real so_far = again ? load_stat(factor, factor_at) : (real)1, length = sqrt(squares) * so_far,
               by = max_norm / (length + tiny);
    STORE_REAL(T_NORM, total, total_at, length);
    store_stat(factor, factor_at, so_far * (by >= 1 ? (real)1 : by));
}
#endif
