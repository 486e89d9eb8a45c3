/* element.cl: conversion of one element between storage and compute type, for kernels of any layout and dtype.
 *
 * A program computes in one type C, named by the host: float (COMPUTES_F32), double (COMPUTES_F64) or long
 * (COMPUTES_I64). GET loads an element of dtype T into it and PUT stores it by the CPU's rules
 * (backends/cpu/common/convert.h): rounded once, integers saturate, NaN becomes 0, u8 takes the low byte, bool is x !=
 * 0. INDEX is the type of offsets. */

#define GET(T, pointer, index) ((C)LOAD(T, pointer, index))
#define PUT(T, pointer, index, value) JOIN(put_, T)(pointer, index, value)

#if defined(COMPUTES_F32)
#define INT_OF int_of_float
#define LONG_OF long_of_float
#define NARROW(x) (x)
#elif defined(COMPUTES_F64)
#define INT_OF int_of_double
#define LONG_OF long_of_double
#define NARROW round_to_odd
#else
#define INT_OF (int)(uint)(ulong)
#define LONG_OF
#define NARROW round_to_odd_i64
#endif

static void put_i32(__global void *y, long at, C x)
{
    ((__global int *)y)[at] = INT_OF(x);
}
static void put_i64(__global void *y, long at, C x)
{
    ((__global long *)y)[at] = LONG_OF(x);
}
static void put_u8(__global void *y, long at, C x)
{
    ((__global uchar *)y)[at] = (uchar)(uint)INT_OF(x);
}
static void put_boolean(__global void *y, long at, C x)
{
    ((__global uchar *)y)[at] = x != 0;
}
static void put_f32(__global void *y, long at, C x)
{
    ((__global float *)y)[at] = (float)x;
}
static void put_bf16(__global void *y, long at, C x)
{
    STORE(bf16, y, at, NARROW(x));
}
static void put_f16(__global void *y, long at, C x)
{
    STORE(f16, y, at, NARROW(x));
}
#ifdef HAS_F64
static void put_f64(__global void *y, long at, C x)
{
    ((__global double *)y)[at] = (double)x;
}
#endif
