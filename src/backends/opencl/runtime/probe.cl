/* probe.cl: kernels that test announced features, run by features.c once per device. Options: GROUP, work-items per
 * group. */
#ifdef HAS_SUBGROUPS
#define LANES 1
#define T_X f32
#define INDEX int
#include "backends/opencl/common/rows.cl"

/* A sum in which every work-item has another share, and the maximum of their indices. */
__kernel __attribute__((reqd_work_group_size(GROUP, 1, 1))) void subgroups(__global float *to)
{
    __local real space[GROUP];
    const int me = (int)get_local_id(0);
    const real sum = group_sum((real)((1 << me % 8) * (1 + me / 8)), space);
    to[get_global_id(0)] = (float)(sum * GROUP + group_max((real)me, space));
}
#endif

#ifdef HAS_F16
/* f16 to f32 and back. */
__kernel void halves(__global f16 *to)
{
    const int i = (int)get_global_id(0);
    STORE(f16, to, i, LOAD(f16, to, i) * 1.0f);
}
#endif

#ifdef HAS_MMA
/* A product of a tile by the tensor cores: all elements of row r are r + 1, all of column c are c + 1. */
__kernel void tensor_cores(__global float *to)
{
    const int i = (int)get_global_id(0), line = i % 32 / 4, pair = i % 4;
    const uint low = as_uint((float)(line + 1)) >> 16, high = as_uint((float)(line + 9)) >> 16, a = low * 0x10001,
               b = high * 0x10001;
    float x = 0, y = 0, z = 0, w = 0;
    asm volatile("mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0, %1, %2, %3}, {%4, %5, %4, %5}, {%4, %4}, "
                 "{%0, %1, %2, %3};"
                 : "+f"(x), "+f"(y), "+f"(z), "+f"(w)
                 : "r"(a), "r"(b));
    to[i] = x + y * 3 + z * 5 + w * 7 + (float)pair;
}
#endif
