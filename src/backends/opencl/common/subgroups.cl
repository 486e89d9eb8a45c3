/* subgroups.cl: exchange between work-items that run in lockstep, without local memory. Only with HAS_SUBGROUPS:
 * Intel's extension (SUBGROUPS_INTEL) or the KHR shuffles (SUBGROUPS_KHR); SUBGROUPS_ONE makes every work-item a
 * subgroup, which tests the rest on devices without.
 *
 * Sums use xor shuffles, never sub_group_reduce_add(), whose order the standard leaves to the driver. Subgroups have a
 * power of two of work-items and divide groups evenly: features.c probes that. */
#ifdef SUBGROUPS_ONE
#define SUBGROUP_SIZE 1u
#define SUBGROUPS ((int)get_local_size(0))
#define MY_SUBGROUP ((int)get_local_id(0))
#define MY_LANE 0
uint across_uint(uint x, uint lanes)
{
    return x;
}
#else
#define SUBGROUP_SIZE get_sub_group_size()
#define SUBGROUPS ((int)get_num_sub_groups())
#define MY_SUBGROUP ((int)get_sub_group_id())
#define MY_LANE ((int)get_sub_group_local_id())
#ifdef SUBGROUPS_INTEL
#pragma OPENCL EXTENSION cl_intel_subgroups : enable
uint across_uint(uint x, uint lanes)
{
    return intel_sub_group_shuffle_xor(x, lanes);
}
#else
#pragma OPENCL EXTENSION cl_khr_subgroup_shuffle : enable
uint across_uint(uint x, uint lanes)
{
    return sub_group_shuffle_xor(x, lanes);
}
#endif
#endif

/* The value of the work-item whose index in the subgroup differs in the bit `lanes`. */
float across_float(float x, uint lanes)
{
    return as_float(across_uint(as_uint(x), lanes));
}

long across_long(long x, uint lanes)
{
    const uint2 halves = as_uint2(x);
    return as_long((uint2)(across_uint(halves.x, lanes), across_uint(halves.y, lanes)));
}

#ifdef HAS_F64
double across_double(double x, uint lanes)
{
    return as_double(across_long(as_long(x), lanes));
}
#define across_real across_double
#else
#define across_real across_float
#endif

#define EACH_HALF(lanes) for (uint lanes = SUBGROUP_SIZE / 2; lanes > 0; lanes /= 2)
