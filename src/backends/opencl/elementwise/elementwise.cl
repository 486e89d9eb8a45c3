/* elementwise.cl: one row of elementwise.def. The host names the function (EXPRESSION, and SECOND where both gradients
 * are computed), the compute type (C), the dtypes of outputs (T_Y0, T_Y1) and inputs (T_X0 …), and the access to each
 * input: IS_DENSE, IS_ONE (one element for all) or IS_CONSTANT.
 *
 * Without a nest (CONTIGUOUS) every output, and every input that is IS_DENSE, is one contiguous row. A work-item has
 * PER elements, a work-group apart; with VEC4 PER vec4s, which the row or the nest's last axis counts, and along that
 * axis an input may be IS_REPEATED. */
#include "backends/opencl/common/element.cl"
#include "backends/opencl/elementwise/math.cl"
#ifdef VEC4
#include "backends/opencl/common/vec4.cl"
#endif

/* Ways to read an input, by compile-time constants M_X0, M_X1 and M_X2. */
#define IS_DENSE 0
#define IS_ONE 1
#define IS_CONSTANT 2
#define IS_REPEATED 3

/* The expressions of all rows; EXPRESSION picks one, and the compiler drops the others. */
#define ROW(name) name
#include "backends/opencl/elementwise/expressions.cl"
#undef ROW

/* The outputs of an element. With F64_RANGE those outside the range that f32 can be trusted with are computed in f64.
 */
#ifdef F64_RANGE
#include "backends/opencl/elementwise/f64_range.cl"
#define RESULT(name, in_f32, in_f64) \
    NOINLINE static C f64_##name(C a, C b, C c, C p0, C p1) \
    { \
        return (C)in_f64(a, b, c, p0, p1); \
    } \
    static C name(C a, C b, C c, C p0, C p1) \
    { \
        const C y = in_f32(a, b, c, p0, p1); \
        return needs_f64(y, a, b, c) ? f64_##name(a, b, c, p0, p1) : y; \
    }
#else
#define RESULT(name, in_f32, in_f64) \
    static C name(C a, C b, C c, C p0, C p1) \
    { \
        return in_f32(a, b, c, p0, p1); \
    }
#endif
RESULT(first_result, EXPRESSION, F64_RANGE)
RESULT(second_result, SECOND, F64_RANGE_SECOND)

/* Operand k at offset `at`; the access is resolved at compile time. */
#define OPERAND(k, at) \
    (M_X##k == IS_CONSTANT ? constant##k : GET_X##k(x##k, x##k##_first + (M_X##k == IS_ONE ? (INDEX)0 : (at))))
#define GET_X0(x, at) GET(T_X0, x, at)
#define GET_X1(x, at) GET(T_X1, x, at)
#define GET_X2(x, at) GET(T_X2, x, at)

/* Loads the operands of an element; computes and stores its outputs. */
#if INPUTS > 2
#define READ(a, b, c, at_a, at_b, at_c) a = OPERAND(0, at_a), b = OPERAND(1, at_b), c = OPERAND(2, at_c);
#elif INPUTS > 1
#define READ(a, b, c, at_a, at_b, at_c) a = OPERAND(0, at_a), b = OPERAND(1, at_b);
#else
#define READ(a, b, c, at_a, at_b, at_c) a = OPERAND(0, at_a);
#endif
#if OUTPUTS > 1
#define WRITE(a, b, c, at_0, at_1) \
    { \
        PUT(T_Y0, y0, y0_first + (at_0), first_result(a, b, c, p0, p1)); \
        PUT(T_Y1, y1, y1_first + (at_1), second_result(a, b, c, p0, p1)); \
    }
#else
#define WRITE(a, b, c, at_0, at_1) \
    { \
        PUT(T_Y0, y0, y0_first + (at_0), first_result(a, b, c, p0, p1)); \
    }
#endif

/* Four elements of an operand from offset `at` on. */
#define VEC4_OF(k, at) (M_X##k == IS_DENSE ? LOAD_X##k(x##k, x##k##_first + (at)) : (float4)(OPERAND(k, at)))
#define LOAD_X0(x, at) LOAD_4(T_X0, x, at)
#define LOAD_X1(x, at) LOAD_4(T_X1, x, at)
#define LOAD_X2(x, at) LOAD_4(T_X2, x, at)
#if INPUTS > 2
#define READ_4(a, b, c, at) \
    a = VEC4_OF(0, at[OUTPUTS]), b = VEC4_OF(1, at[OUTPUTS + 1]), c = VEC4_OF(2, at[OUTPUTS + 2]);
#elif INPUTS > 1
#define READ_4(a, b, c, at) a = VEC4_OF(0, at[OUTPUTS]), b = VEC4_OF(1, at[OUTPUTS + 1]);
#else
#define READ_4(a, b, c, at) a = VEC4_OF(0, at[OUTPUTS]);
#endif
#define EACH_OF_4(f, a, b, c) \
    (float4)(f(a.x, b.x, c.x, p0, p1), f(a.y, b.y, c.y, p0, p1), f(a.z, b.z, c.z, p0, p1), f(a.w, b.w, c.w, p0, p1))

/* The elements of a work-item, a work-group apart: all are loaded before anything is stored, so that many loads are in
 * flight. */
#define EACH_OWN(i, own) \
    _Pragma("unroll") for (INDEX own = 0, i = first; own < PER; own++, i += (INDEX)get_local_size(0)) if (i < count)

/* Bytes: each input read once, each output written once. */
__kernel void elementwise(__global void *y0, long y0_first, __global void *y1, long y1_first, __global const void *x0,
                          long x0_first, __global const void *x1, long x1_first, __global const void *x2, long x2_first,
                          C constant0, C constant1, C constant2, C p0, C p1, INDEX count
#ifndef CONTIGUOUS
                          ,
                          indexer shape
#endif
)
{
    INDEX first = (INDEX)get_group_id(0) * (INDEX)get_local_size(0) * PER + (INDEX)get_local_id(0);
#ifdef VEC4
    /* unused operands stay 0 and are optimized away */
    float4 a[PER], b[PER], c[PER];
    INDEX at[PER][OUTPUTS + 3];
    EACH_OWN(i, own)
    {
#ifdef CONTIGUOUS
#pragma unroll
        for (int k = 0; k < OUTPUTS + INPUTS; k++)
            at[own][k] = i * 4;
#else
        locate(&shape, i, OUTPUTS + INPUTS, at[own]);
#endif
        b[own] = c[own] = 0;
        READ_4(a[own], b[own], c[own], at[own])
    }
    EACH_OWN(i, own)
    {
        STORE_4(T_Y0, y0, y0_first + at[own][0], EACH_OF_4(first_result, a[own], b[own], c[own]));
#if OUTPUTS > 1
        STORE_4(T_Y1, y1, y1_first + at[own][1], EACH_OF_4(second_result, a[own], b[own], c[own]));
#endif
    }
#else
    C a[PER], b[PER], c[PER];
#ifdef CONTIGUOUS
#define AT(own, i, k) (i)
#else
    INDEX at[PER][OUTPUTS + 3];
#define AT(own, i, k) at[own][k]
#endif
    EACH_OWN(i, own)
    {
#ifndef CONTIGUOUS
        locate(&shape, i, OUTPUTS + INPUTS, at[own]);
#endif
        b[own] = c[own] = 0;
        READ(a[own], b[own], c[own], AT(own, i, OUTPUTS), AT(own, i, OUTPUTS + 1), AT(own, i, OUTPUTS + 2))
    }
    EACH_OWN(i, own) WRITE(a[own], b[own], c[own], AT(own, i, 0), AT(own, i, OUTPUTS - 1))
#endif
}
