/* max_grad.cl: gradient of max and min by vec4s, speculating that each maximum is unique.
 *
 * The gradient is written as if each equal element were alone, and equal elements are counted: x is read once and gx
 * written once. Where the speculation fails, the slice is computed again with the count. Counts are integers, so that
 * any order gives the same result. Operands of the nests: gx, x, g, y. */
#include "backends/opencl/common/vec4.cl"

#define AHEAD 4 /* vec4s read before one is written */
#define OPERANDS \
    __global void *gx, long gx_first, __global const void *x, long x_first, __global const void *g, long g_first, \
        __global const void *y, long y_first

/* Gradients of ties and of all others, where there are `ties`. NaN equals nothing: where it is the maximum the count is
 * 0, and all gradients of the slice are NaN, as torch.amax's. */
typedef struct grads {
    float4 max_value, tied, other;
} grads;

static grads grads_of(float4 max_value, float4 gradient, int4 ties)
{
    const int4 is_alone = ties == 1;
    grads s;
    s.max_value = max_value;
    s.tied = select(gradient / convert_float4(ties), gradient, is_alone);
    s.other = select(gradient * 0 / convert_float4(ties), gradient * 0, is_alone);
    return s;
}

/* Writes the gradients of elements begin, begin + step, … below `end`, x_step and gx_step apart. Returns the number of
 * ties. */
static int4 write_grads(const grads *s, __global void *gx, long to, INDEX gx_step, __global const void *x, long from,
                        INDEX x_step, INDEX begin, INDEX end, INDEX step)
{
    int4 found = 0;
    for (INDEX i = begin; i < end; i += AHEAD * step) {
        float4 loaded[AHEAD];
#pragma unroll
        for (int k = 0; k < AHEAD; k++)
            if (i + k * step < end)
                loaded[k] = LOAD_4(T_X, x, from + (i + k * step) * x_step);
#pragma unroll
        for (int k = 0; k < AHEAD; k++)
            if (i + k * step < end) {
                const int4 same = loaded[k] == s->max_value;
                found -= same;
                STORE_4(T_GX, gx, to + (i + k * step) * gx_step, select(s->other, s->tied, same));
            }
    }
    return found;
}

#ifdef GROUP
/* One row of `length` vec4s per work-group. */
__kernel __attribute__((reqd_work_group_size(GROUP, 1, 1))) void speculate_rows(OPERANDS, INDEX length, indexer rows)
{
    __local int total;
    INDEX at[4];
    locate(&rows, (INDEX)get_group_id(0), 4, at);
    const float4 max_value = (float4)(LOAD(T_Y, y, y_first + at[3])),
                 gradient = (float4)(LOAD(T_G, g, g_first + at[2]));
    const INDEX me = (INDEX)get_local_id(0);
    if (me == 0)
        total = 0;
    barrier(CLK_LOCAL_MEM_FENCE);
    const grads guess = grads_of(max_value, gradient, (int4)(1));
    const int4 found = write_grads(&guess, gx, gx_first + at[0], 4, x, x_first + at[1], 4, me, length, GROUP);
    const int own = found.x + found.y + found.z + found.w;
    if (own > 0)
        atomic_add(&total, own);
    barrier(CLK_LOCAL_MEM_FENCE);
    if (total != 1) {
        const grads known = grads_of(max_value, gradient, (int4)(total));
        write_grads(&known, gx, gx_first + at[0], 4, x, x_first + at[1], 4, me, length, GROUP);
    }
}
#else
/* Four columns of `length` elements, or a chunk of them, per work-item. `totals` has a count per column, `found` one
 * per chunk of each. */
#define COUNTS __global char *scratch, long totals_first, long found_first, INDEX units
#define TOTALS ((__global int *)(scratch + totals_first))
#define FOUND ((__global int4 *)(scratch + found_first))
#define WALK INDEX length, INDEX chunk, INDEX gx_step, INDEX x_step, indexer columns

/* Counts start at 0. */
__kernel void clear_totals(COUNTS)
{
    if ((INDEX)get_global_id(0) < units * 4)
        TOTALS[get_global_id(0)] = 0;
}

/* Counts are added by integer atomics, whose order does not matter. */
__kernel void speculate_columns(OPERANDS, COUNTS, WALK)
{
    const INDEX unit = (INDEX)get_global_id(0), part = (INDEX)get_global_id(1);
    INDEX at[4];
    if (unit >= units)
        return;
    locate(&columns, unit, 4, at);
    const grads guess = grads_of(LOAD_4(T_Y, y, y_first + at[3]), LOAD_4(T_G, g, g_first + at[2]), (int4)(1));
    const int4 found = write_grads(&guess, gx, gx_first + at[0], gx_step, x, x_first + at[1], x_step, part * chunk,
                                   min(length, (part + 1) * chunk), 1);
    FOUND[part * units + unit] = found;
    if (found.x > 0)
        atomic_add(&TOTALS[unit * 4], found.x);
    if (found.y > 0)
        atomic_add(&TOTALS[unit * 4 + 1], found.y);
    if (found.z > 0)
        atomic_add(&TOTALS[unit * 4 + 2], found.z);
    if (found.w > 0)
        atomic_add(&TOTALS[unit * 4 + 3], found.w);
}

/* Repeats chunks of columns with several ties, some of them here, or with none. */
__kernel void fix_columns(OPERANDS, COUNTS, WALK)
{
    const INDEX unit = (INDEX)get_global_id(0), part = (INDEX)get_global_id(1);
    INDEX at[4];
    if (unit >= units)
        return;
    const int4 ties = ((__global const int4 *)TOTALS)[unit], found = FOUND[part * units + unit];
    if (!any(ties == 0 || (ties > 1 && found > 0)))
        return;
    locate(&columns, unit, 4, at);
    const grads known = grads_of(LOAD_4(T_Y, y, y_first + at[3]), LOAD_4(T_G, g, g_first + at[2]), ties);
    write_grads(&known, gx, gx_first + at[0], gx_step, x, x_first + at[1], x_step, part * chunk,
                min(length, (part + 1) * chunk), 1);
}
#endif
