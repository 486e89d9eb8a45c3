/* probe.cl: what a device says it has, tried. Options: GROUP, the work-items of a group. */
#ifdef HAS_SUBGROUPS
#define LANES 1
#define T_X f32
#define INDEX int
#include "backends/opencl/common/rows.cl"

/* A sum in which work-items have different shares, and the largest of their numbers. */
__kernel __attribute__((reqd_work_group_size(GROUP, 1, 1))) void subgroups(__global float *to)
{
    __local real space[GROUP];
    const int me = (int)get_local_id(0);
    const real sum = group_sum((real)((1 << me % 8) * (1 + me / 8)), space);
    to[get_global_id(0)] = (float)(sum * GROUP + group_most((real)me, space));
}
#endif

#ifdef HAS_F16
/* Numbers there and back. */
__kernel void halves(__global f16 *to)
{
    const int i = (int)get_global_id(0);
    STORE(f16, to, i, LOAD(f16, to, i) * 1.0f);
}
#endif
