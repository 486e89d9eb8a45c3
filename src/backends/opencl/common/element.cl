/* element.cl: one element on its way between storage and computation, for kernels that take any layout and dtype.
 *
 * A program computes in one type, C: float (COMPUTES_F32), double (COMPUTES_F64) or long (COMPUTES_I64); the host names
 * it. GET brings an element of dtype T there and PUT takes it back by the CPU's rules (backends/cpu/common/convert.h):
 * rounded once, integers saturate, NaN as an integer is 0, u8 is the low byte, bool is x != 0. INDEX is the type of
 * places: int where all of them fit. */

#define GET(T, pointer, index) ((C)LOAD(T, pointer, index))
#define PUT(T, pointer, index, value) JOIN(put_, T)(pointer, index, value)

#if defined(COMPUTES_F32)
#define INT_OF int_of_float
#define LONG_OF integer_of_float
#define NARROW(x) (x)
#elif defined(COMPUTES_F64)
#define INT_OF int_of_double
#define LONG_OF integer_of_double
#define NARROW to_odd
#else
#define INT_OF (int)(uint)(ulong)
#define LONG_OF
#define NARROW odd_of_integer
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
