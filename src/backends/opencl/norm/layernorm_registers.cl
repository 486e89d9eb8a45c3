/* layernorm_registers.cl: the kernels of layernorm.cl for rows of aligned vec4s on GPUs: a work-group has a row, and
 * each work-item keeps VECS vec4s of it in registers, so that each element is read once. Arguments and options are
 * those of layernorm.cl. */
#include "backends/opencl/common/rows.cl"
#include "backends/opencl/common/vec4.cl"

enum { OUT, IN, MEAN, RSTD, FIRST, SECOND }; /* forward */
enum { GY = 4, OWN };                        /* backward */

#define EACH_VEC(k, at) _Pragma("unroll") for (int k = 0, at = 4 * MY_ITEM; k < VECS; k++, at += 4 * GROUP)

/* The sum of a vec4, in a fixed order. */
float sum_of(float4 x)
{
    return (x.x + x.y) + (x.z + x.w);
}

#ifdef FORWARD
__kernel void norm(row_set rows, OPERAND(y), OPERAND(x), OPERAND(mean), OPERAND(rstd), OPERAND(first), OPERAND(second),
                   VECTOR(weight), VECTOR(bias), real epsilon, real offset)
{
    __local real space[GROUP];
    __local float start;
    const long row = MY_ROW, from = x_at + nest_at(&rows.others, row, IN), to = y_at + nest_at(&rows.others, row, OUT);
    const int length = (int)rows.length;
    float4 vec[VECS];
#ifdef RESIDUAL
    const long one = first_at + nest_at(&rows.others, row, FIRST),
               other = second_at + nest_at(&rows.others, row, SECOND);
    EACH_VEC(k, at)
    {
        vec[k] = LOAD_4(T_FIRST, first, one + at) + LOAD_4(T_SECOND, second, other + at);
        STORE_4(T_X, x, from + at, vec[k]);
#ifdef ROUNDS
        vec[k] = LOAD_4(T_X, x, from + at);
#endif
    }
#else
    EACH_VEC(k, at) vec[k] = LOAD_4(T_X, x, from + at);
#endif
    real middle = 0;
    float sum = 0;
#ifdef CENTRED
    if (MY_ITEM == 0)
        start = vec[0].x;
    barrier(CLK_LOCAL_MEM_FENCE);
    const float base = start; /* as in layernorm.cl */
    EACH_VEC(k, at) sum += sum_of(vec[k] - base);
    middle = (real)base + group_sum((real)sum, space) / (real)length;
    sum = 0;
#endif
    /* deviations from the rounded mean: what normalizing subtracts */
    const float m = (float)middle;
    EACH_VEC(k, at)
    {
        const float4 d = vec[k] - m;
        sum += sum_of(d * d);
    }
    const real inverse = 1 / sqrt(group_sum((real)sum, space) / (real)length + epsilon);
    const float s = (float)inverse;
    EACH_VEC(k, at)
    {
        float4 result = (vec[k] - m) * s;
        if (weight)
            result *= LOAD_4(T_W, weight, weight_at + at) + (float)offset;
        if (bias)
            result += LOAD_4(T_B, bias, bias_at + at);
        STORE_4(T_Y, y, to + at, result);
    }
    if (MY_ITEM != 0)
        return;
    if (mean)
        STORE_REAL(T_STAT, mean, mean_at + nest_at(&rows.others, row, MEAN), middle);
    if (rstd)
        STORE_REAL(T_STAT, rstd, rstd_at + nest_at(&rows.others, row, RSTD), inverse);
}
#endif

#ifdef GRAD
/* Two sums over the work-group with two barriers, or one with subgroups: `space` is free again after the next call. */
#ifdef HAS_SUBGROUPS
real2 group_sums(real a, real b, __local real *space)
{
    EACH_HALF(lanes) a += across_real(a, lanes), b += across_real(b, lanes);
    if (MY_LANE == 0)
        space[MY_SUBGROUP] = a, space[GROUP + MY_SUBGROUP] = b;
    barrier(CLK_LOCAL_MEM_FENCE);
    a = space[0], b = space[GROUP];
    for (int at = 1; at < SUBGROUPS; at++)
        a += space[at], b += space[GROUP + at];
    return (real2)(a, b);
}
#else
real2 group_sums(real a, real b, __local real *space)
{
    const int me = (int)get_local_id(0);
    space[me] = a, space[GROUP + me] = b;
    barrier(CLK_LOCAL_MEM_FENCE);
    if (me < 2 * ROOT) {
        __local real *mine = space + (me < ROOT ? me : GROUP + me - ROOT);
        real x = mine[0];
        _Pragma("unroll") for (int at = ROOT; at < GROUP; at += ROOT) x += mine[at];
        mine[0] = x;
    }
    barrier(CLK_LOCAL_MEM_FENCE);
    a = space[0], b = space[GROUP];
    _Pragma("unroll") for (int at = 1; at < ROOT; at++) a += space[at], b += space[GROUP + at];
    return (real2)(a, b);
}
#endif

/* Loads a row and its statistics. */
#define FETCH(row, x_, gy_, m_, s_) \
    { \
        const long from = x_at + nest_at(&rows.others, row, IN), gy_from = g_at + nest_at(&rows.others, row, GY); \
        m_ = mean ? (float)LOAD(T_STAT, mean, mean_at + nest_at(&rows.others, row, MEAN)) : 0.0f; \
        s_ = (float)LOAD(T_STAT, rstd, rstd_at + nest_at(&rows.others, row, RSTD)); \
        EACH_VEC(k, at) x_[k] = LOAD_4(T_X, x, from + at), gy_[k] = LOAD_4(T_G, g, gy_from + at); \
    }

/* gx for a chunk of rows per work-group, the next row being loaded while one is computed; and in `partial`, if given,
 * the chunk's part of Σ gy · x̂ and Σ gy, (chunks, 2, length). A work-item has the same columns of all rows. Bytes: x
 * and gy read, gx written. */
__kernel void norm_grad(row_set rows, OPERAND(gx), OPERAND(x), OPERAND(mean), OPERAND(rstd), OPERAND(g), OPERAND(own),
                        VECTOR(weight), OPERAND(partial), long chunk_rows, real offset)
{
    __local real space[4 * GROUP];
    const long chunk = get_group_id(0), last = min(rows.count, (chunk + 1) * chunk_rows);
    const int length = (int)rows.length;
    float4 value[VECS], gy[VECS], next_value[VECS], next_gy[VECS], by[VECS], products[VECS], sums[VECS];
    float m, s, next_m = 0, next_s = 0;
    EACH_VEC(k, at)
    {
        by[k] = weight ? LOAD_4(T_W, weight, weight_at + at) + (float)offset : (float4)(1.0f);
        products[k] = sums[k] = 0;
    }
    FETCH(chunk * chunk_rows, value, gy, m, s)
    for (long row = chunk * chunk_rows; row < last; row++) {
        if (row + 1 < last)
            FETCH(row + 1, next_value, next_gy, next_m, next_s)
        float sum = 0, product = 0;
        EACH_VEC(k, at)
        {
            value[k] = (value[k] - m) * s;
            products[k] += gy[k] * value[k];
            sums[k] += gy[k];
            gy[k] *= by[k];
            sum += sum_of(gy[k]);
            product += sum_of(gy[k] * value[k]);
        }
        if (gx) {
            const real2 all = group_sums((real)sum, (real)product, space + (row & 1) * 2 * GROUP) / (real)length;
            const long to = gx_at + nest_at(&rows.others, row, OUT), beside = own_at + nest_at(&rows.others, row, OWN);
#ifdef CENTRED
            const float first = (float)all.x;
#else
            const float first = 0;
#endif
            const float second = (float)all.y;
            EACH_VEC(k, at)
            {
                float4 grad = s * (gy[k] - first - value[k] * second);
                if (own)
                    grad += LOAD_4(T_OWN, own, beside + at);
                STORE_4(T_GX, gx, to + at, grad);
            }
        }
        EACH_VEC(k, at) value[k] = next_value[k], gy[k] = next_gy[k];
        m = next_m, s = next_s;
    }
    if (!partial)
        return;
    __global float *to = (__global float *)((__global char *)partial + partial_at) + 2 * chunk * length;
    EACH_VEC(k, at)
    {
        STORE_4(f32, to, at, products[k]);
        STORE_4(f32, to + length, at, sums[k]);
    }
}
#endif
