/* scale_grad.cl: gx = g · w and gw, the sum of g · x, of rows that have one number of w each, four neighbours at a
 * time. Products are added in f32 four at a time, and in `real` from there. */
#include "backends/opencl/common/rows.cl"
#include "backends/opencl/common/vec4.cl"

#define AHEAD 2 /* fours of x and of g that a work-item reads before it writes one */

/* A group for each row of `length` fours. Operands of `rows`: gx, x, w, g, gw. */
__kernel __attribute__((reqd_work_group_size(GROUP, 1, 1))) void
scale_rows(OPERAND(gx), OPERAND(x), OPERAND(w), OPERAND(g), OPERAND(gw), INDEX length, places rows)
{
    __local real space[GROUP];
    INDEX at[5];
    real sum = 0;
    locate(&rows, (INDEX)get_group_id(0), 5, at);
    const float4 factor = (float4)(LOAD(T_W, w, w_at + at[2]));
    for (INDEX i = (INDEX)get_local_id(0); i < length; i += GROUP * AHEAD) {
        float4 from[AHEAD], slope[AHEAD];
#pragma unroll
        for (int k = 0; k < AHEAD; k++)
            if (i + k * GROUP < length) {
                from[k] = LOAD_4(T_X, x, x_at + at[1] + (i + k * GROUP) * 4);
                slope[k] = LOAD_4(T_G, g, g_at + at[3] + (i + k * GROUP) * 4);
            }
#pragma unroll
        for (int k = 0; k < AHEAD; k++)
            if (i + k * GROUP < length) {
                const float4 product = slope[k] * from[k];
                STORE_4(T_GX, gx, gx_at + at[0] + (i + k * GROUP) * 4, slope[k] * factor);
                sum += (real)((product.x + product.y) + (product.z + product.w));
            }
    }
    sum = group_sum(sum, space);
    if (get_local_id(0) == 0)
        STORE_REAL(T_GW, gw, gw_at + at[4], sum);
}
