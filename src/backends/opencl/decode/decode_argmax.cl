/* decode_argmax.cl: greedy sampling: the first index of each row's max, or -1 if the row has NaN or its max is
 * infinite. A work-group computes a row. NaN counts as infinity: neither selects a token.
 *
 * Options: T; GROUP; VEC4 where rows are contiguous aligned vec4s. */
#include "backends/opencl/common/vec4.cl"

/* Grid: GROUP · rows. Bytes: x, once. */
__attribute__((reqd_work_group_size(GROUP, 1, 1))) __kernel void
argmax(const __global void *x, long x_at, __global long *y, long y_at, long length, long down, long across, long y_down)
{
    __local float values[GROUP];
    __local long places[GROUP];
    const int item = (int)get_local_id(0);
    const long row = get_group_id(0), from = x_at + row * down;
    float best = -INF_F;
    long place = length;
#define TAKE(v, i) \
    if ((v) > best) { \
        best = v; \
        place = i; \
    }
#ifdef VEC4
#ifndef IS_CPU
#pragma unroll 8
#endif
    for (long i = item * 4; i < length; i += GROUP * 4) {
        const float4 v = LOAD_4(T, x, from + i);
        const float sum = (v.x + v.y) + (v.z + v.w); /* NaN with a NaN, or with both infinities */
        if (fmax(fmax(v.x, v.y), fmax(v.z, v.w)) > best) {
            TAKE(v.x, i)
            TAKE(v.y, i + 1)
            TAKE(v.z, i + 2)
            TAKE(v.w, i + 3)
        }
        best = sum != sum ? INF_F : best;
    }
#else
    for (long i = item; i < length; i += GROUP) {
        const float v = LOAD(T, x, from + i * across);
        TAKE(v, i)
        best = v != v ? INF_F : best;
    }
#endif
    for (int step = GROUP / 2; step > 0; step /= 2) {
        values[item] = best;
        places[item] = place;
        barrier(CLK_LOCAL_MEM_FENCE);
        if (item < step &&
            (values[item + step] > best || (values[item + step] == best && places[item + step] < place))) {
            best = values[item + step];
            place = places[item + step];
        }
        barrier(CLK_LOCAL_MEM_FENCE);
    }
    if (item == 0)
        y[y_at + row * y_down] = best == INF_F || best == -INF_F ? -1 : place;
}
