/* max_grad.cl: the gradients of max and min in the hope that the element that won is the only one of its kind, four
 * neighbours at a time.
 *
 * The gradient is written as if a tie were alone, and ties are counted: x is read once and gx written once. Where the
 * hope was wrong, it is done again with what the count says. Integers are counted, so that any order gives the same.
 * Operands of the nests: gx, x, g, y. */
#include "backends/opencl/common/vec4.cl"

#define AHEAD 4 /* fours that a work-item reads before it writes one */
#define OPERANDS \
    __global void *gx, long gx_first, __global const void *x, long x_first, __global const void *g, long g_first, \
        __global const void *y, long y_first

/* What ties get and all others, where there are `ties`. A NaN equals nothing: where it won, the count is 0 and all
 * gradients of its slice are NaN, as torch.amax's. */
typedef struct shares {
    float4 most, tied, other;
} shares;

static shares shares_of(float4 most, float4 slope, int4 ties)
{
    const int4 is_alone = ties == 1;
    shares s;
    s.most = most;
    s.tied = select(slope / convert_float4(ties), slope, is_alone);
    s.other = select(slope * 0 / convert_float4(ties), slope * 0, is_alone);
    return s;
}

/* Elements from, from + step, … below `end`, which lie x_step and gx_step apart; gives how many were ties. */
static int4 share(const shares *s, __global void *gx, long to, INDEX gx_step, __global const void *x, long from,
                  INDEX x_step, INDEX begin, INDEX end, INDEX step)
{
    int4 found = 0;
    for (INDEX i = begin; i < end; i += AHEAD * step) {
        float4 held[AHEAD];
#pragma unroll
        for (int k = 0; k < AHEAD; k++)
            if (i + k * step < end)
                held[k] = LOAD_4(T_X, x, from + (i + k * step) * x_step);
#pragma unroll
        for (int k = 0; k < AHEAD; k++)
            if (i + k * step < end) {
                const int4 same = held[k] == s->most;
                found -= same;
                STORE_4(T_GX, gx, to + (i + k * step) * gx_step, select(s->other, s->tied, same));
            }
    }
    return found;
}

#ifdef GROUP
/* A group for each row of `length` fours. */
__kernel __attribute__((reqd_work_group_size(GROUP, 1, 1))) void hope_rows(OPERANDS, INDEX length, places rows)
{
    __local int total;
    INDEX at[4];
    locate(&rows, (INDEX)get_group_id(0), 4, at);
    const float4 most = (float4)(LOAD(T_Y, y, y_first + at[3])), slope = (float4)(LOAD(T_G, g, g_first + at[2]));
    const INDEX me = (INDEX)get_local_id(0);
    if (me == 0)
        total = 0;
    barrier(CLK_LOCAL_MEM_FENCE);
    const shares hoped = shares_of(most, slope, (int4)(1));
    const int4 found = share(&hoped, gx, gx_first + at[0], 4, x, x_first + at[1], 4, me, length, GROUP);
    const int own = found.x + found.y + found.z + found.w;
    if (own > 0)
        atomic_add(&total, own);
    barrier(CLK_LOCAL_MEM_FENCE);
    if (total != 1) {
        const shares known = shares_of(most, slope, (int4)(total));
        share(&known, gx, gx_first + at[0], 4, x, x_first + at[1], 4, me, length, GROUP);
    }
}
#else
/* Four columns of `length` elements a work-item, or a chunk of them. `totals` has a number for each column, `found` one
 * for each chunk of each. */
#define COUNTS __global char *scratch, long totals_first, long found_first, INDEX units
#define TOTALS ((__global int *)(scratch + totals_first))
#define FOUND ((__global int4 *)(scratch + found_first))
#define WALK INDEX length, INDEX chunk, INDEX gx_step, INDEX x_step, places columns

__kernel void hope_nothing(COUNTS)
{
    if ((INDEX)get_global_id(0) < units * 4)
        TOTALS[get_global_id(0)] = 0;
}

__kernel void hope_columns(OPERANDS, COUNTS, WALK)
{
    const INDEX unit = (INDEX)get_global_id(0), part = (INDEX)get_global_id(1);
    INDEX at[4];
    if (unit >= units)
        return;
    locate(&columns, unit, 4, at);
    const shares hoped = shares_of(LOAD_4(T_Y, y, y_first + at[3]), LOAD_4(T_G, g, g_first + at[2]), (int4)(1));
    const int4 found = share(&hoped, gx, gx_first + at[0], gx_step, x, x_first + at[1], x_step, part * chunk,
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

/* Does chunks again whose columns have several ties, some of them here, or none. */
__kernel void mend_columns(OPERANDS, COUNTS, WALK)
{
    const INDEX unit = (INDEX)get_global_id(0), part = (INDEX)get_global_id(1);
    INDEX at[4];
    if (unit >= units)
        return;
    const int4 ties = ((__global const int4 *)TOTALS)[unit], found = FOUND[part * units + unit];
    if (!any(ties == 0 || (ties > 1 && found > 0)))
        return;
    locate(&columns, unit, 4, at);
    const shares known = shares_of(LOAD_4(T_Y, y, y_first + at[3]), LOAD_4(T_G, g, g_first + at[2]), ties);
    share(&known, gx, gx_first + at[0], gx_step, x, x_first + at[1], x_step, part * chunk,
          min(length, (part + 1) * chunk), 1);
}
#endif
