/* scale_grad.cl: gx = g · w and gw = Σ g · x for rows with one element of w each, by vec4s. Products are added in f32
 * four at a time, and in `real` from there. */
#include "backends/opencl/common/rows.cl"
#include "backends/opencl/common/vec4.cl"

#define AHEAD 2 /* vec4s of x and of g read before one is written */

/* One row of `length` vec4s per work-group. Operands of `rows`: gx, x, w, g, gw. Bytes: x and g read, gx written. */
__kernel __attribute__((reqd_work_group_size(GROUP, 1, 1))) void
scale_rows(OPERAND(gx), OPERAND(x), OPERAND(w), OPERAND(g), OPERAND(gw), INDEX length, indexer rows)
{
    __local real space[GROUP];
    INDEX at[5];
    real sum = 0;
    locate(&rows, (INDEX)get_group_id(0), 5, at);
    const float4 factor = (float4)(LOAD(T_W, w, w_at + at[2]));
    for (INDEX i = (INDEX)get_local_id(0); i < length; i += GROUP * AHEAD) {
        float4 from[AHEAD], gradient[AHEAD];
#pragma unroll
        for (int k = 0; k < AHEAD; k++)
            if (i + k * GROUP < length) {
                from[k] = LOAD_4(T_X, x, x_at + at[1] + (i + k * GROUP) * 4);
                gradient[k] = LOAD_4(T_G, g, g_at + at[3] + (i + k * GROUP) * 4);
            }
#pragma unroll
        for (int k = 0; k < AHEAD; k++)
            if (i + k * GROUP < length) {
                const float4 product = gradient[k] * from[k];
                STORE_4(T_GX, gx, gx_at + at[0] + (i + k * GROUP) * 4, gradient[k] * factor);
                sum += (real)((product.x + product.y) + (product.z + product.w));
            }
    }
    sum = group_sum(sum, space);
    if (get_local_id(0) == 0)
        STORE_REAL(T_GW, gw, gw_at + at[4], sum);
}
