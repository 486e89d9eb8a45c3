/* prelude.cl: prepended to every program by the host: types, loads and stores by dtype name, offsets in nests, faults.
 *
 * A dtype is a word: f32, f64, bf16, f16, i32, i64, u8, boolean. A program gets it by an option, -DT=bf16, and pastes
 * it: LOAD(T, pointer, index).
 *
 * HAS_F16 is defined where the device computes in f16, HAS_F64 where it has f64; then `real`, the type of sums and
 * statistics, is double. A program that names f64 without it does not compile, and the CPU runs the call. */
#ifdef cl_khr_fp64
#pragma OPENCL EXTENSION cl_khr_fp64 : enable
#endif
#ifdef HAS_F16
#pragma OPENCL EXTENSION cl_khr_fp16 : enable
#endif

/* Integer types of C11, for sources shared with base/. */
typedef uchar uint8_t;
typedef char int8_t;
typedef ushort uint16_t;
typedef uint uint32_t;
typedef ulong uint64_t;
typedef long int64_t;

typedef float f32;
typedef int i32;
typedef long i64;
typedef uchar u8;
typedef uchar boolean;
typedef ushort
    bf16; /* storage only; bf16 and f16 are one type to the compiler, so loads and stores are selected by name */
typedef ushort f16;
#ifdef HAS_F64
typedef double f64;
typedef double real;
typedef double2 real2;
#else
typedef float real;
typedef float2 real2;
#endif

/* The type in which elements of a dtype are computed: float, double, or long for integers and boolean. */
#define COMPUTE(T) COMPUTE_(T)
#define COMPUTE_(T) compute_##T
typedef float compute_f32;
typedef float compute_bf16;
typedef float compute_f16;
typedef long compute_i32;
typedef long compute_i64;
typedef long compute_u8;
typedef long compute_boolean;
#ifdef HAS_F64
typedef double compute_f64;
#endif

/* For rare paths, whose registers would be charged to every work-item when inlined. A compiler may ignore it. */
#define NOINLINE __attribute__((noinline))

#define JOIN(a, b) JOIN_(a, b)
#define JOIN_(a, b) a##b

/* Type of element offsets; -DINDEX=int where 32 bits are enough. */
#ifndef INDEX
#define INDEX long
#endif

#define NAN_F as_float(0x7fc00000u)
#define INF_F as_float(0x7f800000u)

/* ---- loads: COMPUTE(T) of element `index` of a __global pointer of any type -------------------------------------- */

#define LOAD(T, pointer, index) LOAD_(T, pointer, index)
#define LOAD_(T, pointer, index) load_##T((const __global T *)(pointer), index)

/* bf16 is the upper half of an f32. */
float bf16_to_f32(bf16 x)
{
    return as_float((uint)x << 16);
}

float load_f32(const __global f32 *p, long i)
{
    return p[i];
}
float load_bf16(const __global bf16 *p, long i)
{
    return bf16_to_f32(p[i]);
}
#ifdef HAS_F16
float load_f16(const __global f16 *p, long i)
{
    return convert_float(((const __global half *)p)[i]);
}
#else
float load_f16(const __global f16 *p, long i)
{
    return vload_half(i, (const __global half *)p);
}
#endif
long load_i32(const __global i32 *p, long i)
{
    return p[i];
}
long load_i64(const __global i64 *p, long i)
{
    return p[i];
}
long load_u8(const __global u8 *p, long i)
{
    return p[i];
}
long load_boolean(const __global boolean *p, long i)
{
    return p[i] != 0;
}
#ifdef HAS_F64
double load_f64(const __global f64 *p, long i)
{
    return p[i];
}
#endif

/* ---- stores of a COMPUTE(T), rounded to nearest even; integers keep their low bits ------------------------------- */

#define STORE(T, pointer, index, value) STORE_(T, pointer, index, value)
#define STORE_(T, pointer, index, value) store_##T((__global T *)(pointer), index, value)

/* Round to nearest even: adding half of the last rounded bit, less one if that bit is even, carries exactly when
 * rounding goes up. NaN stays NaN, made quiet. */
bf16 f32_to_bf16(float x)
{
    uint u = as_uint(x);
    return (bf16)((x != x ? u | 0x00400000u : u + 0x7fffu + ((u >> 16) & 1u)) >> 16);
}

void store_f32(__global f32 *p, long i, float x)
{
    p[i] = x;
}
void store_bf16(__global bf16 *p, long i, float x)
{
    p[i] = f32_to_bf16(x);
}
#ifdef HAS_F16
void store_f16(__global f16 *p, long i, float x)
{
    ((__global half *)p)[i] = convert_half_rte(x);
}
#else
void store_f16(__global f16 *p, long i, float x)
{
    vstore_half_rte(x, i, (__global half *)p);
}
#endif
void store_i32(__global i32 *p, long i, long x)
{
    p[i] = (i32)x;
}
void store_i64(__global i64 *p, long i, long x)
{
    p[i] = x;
}
void store_u8(__global u8 *p, long i, long x)
{
    p[i] = (u8)x;
}
void store_boolean(__global boolean *p, long i, long x)
{
    p[i] = x != 0;
}
#ifdef HAS_F64
void store_f64(__global f64 *p, long i, double x)
{
    p[i] = x;
}
#endif

/* ---- stores of a real into floats, rounded once ------------------------------------------------------------------ */

#define STORE_REAL(T, pointer, index, value) STORE_REAL_(T, pointer, index, value)
#define STORE_REAL_(T, pointer, index, value) store_real_##T((__global T *)(pointer), index, value)

#ifdef HAS_F64
/* Round to odd: the float next to x towards 0, its last bit set where x is not exact. Rounding that to 16 bits equals
 * rounding x once. */
float round_to_odd(double x)
{
    float nearest = (float)x;
    double back = (double)nearest;
    uint u = as_uint(nearest);
    if (x != x || back == x || (u & 0x7fffffffu) == 0x7f800000u)
        return nearest;
    return as_float((fabs(back) > fabs(x) ? u - 1u : u) | 1u);
}

void store_real_f32(__global f32 *p, long i, double x)
{
    p[i] = (float)x;
}
void store_real_f64(__global f64 *p, long i, double x)
{
    p[i] = x;
}
void store_real_bf16(__global bf16 *p, long i, double x)
{
    p[i] = f32_to_bf16(round_to_odd(x));
}
void store_real_f16(__global f16 *p, long i, double x)
{
    store_f16(p, i, round_to_odd(x));
}
#else
void store_real_f32(__global f32 *p, long i, float x)
{
    p[i] = x;
}
void store_real_bf16(__global bf16 *p, long i, float x)
{
    store_bf16(p, i, x);
}
void store_real_f16(__global f16 *p, long i, float x)
{
    store_f16(p, i, x);
}
#endif

/* ---- conversions as on the CPU: NaN becomes 0, what is out of range the nearest integer, and an i64 is cut to its low
 * bits  */

long long_of_float(float x)
{
    return x != x ? 0 : x >= 0x1p63f ? LONG_MAX : x < -0x1p63f ? LONG_MIN : (long)x;
}

int int_of_float(float x)
{
    return x != x ? 0 : x >= 0x1p31f ? INT_MAX : x < -0x1p31f ? INT_MIN : (int)x;
}

#ifdef HAS_F64
long long_of_double(double x)
{
    return x != x ? 0 : x >= 0x1p63 ? LONG_MAX : x < -0x1p63 ? LONG_MIN : (long)x;
}

int int_of_double(double x)
{
    return x != x ? 0 : x >= 0x1p31 ? INT_MAX : x < -0x1p31 ? INT_MIN : (int)x;
}
#endif

/* An i64 for conversion to 16 bits: bits beyond f32 are collected in its last bit (round to odd). */
float round_to_odd_i64(long x)
{
    ulong size = x < 0 ? (ulong)0 - (ulong)x : (ulong)x;
    int spare = 40 - (int)clz(size);
    if (spare > 0)
        size = ((size >> spare) | ((size & (((ulong)1 << spare) - 1)) != 0)) << spare;
    return x < 0 ? -(float)size : (float)size;
}

/* ---- statistics stored as f64, with or without f64 in the device ------------------------------------- */

#ifdef HAS_F64
real load_stat(const __global void *p, long i)
{
    return ((const __global double *)p)[i];
}
void store_stat(__global void *p, long i, real x)
{
    ((__global double *)p)[i] = x;
}
#else
/* Converts the bits of a double to f32, rounded to nearest even; subnormals of f32 included. */
real load_stat(const __global void *p, long i)
{
    ulong u = ((const __global ulong *)p)[i], mantissa = u & 0xfffffffffffffUL;
    uint sign = (uint)(u >> 32) & 0x80000000u;
    int power = (int)((u >> 52) & 0x7ff) - 1023;
    if (power == 1024)
        return as_float(sign | 0x7f800000u | (mantissa ? 0x400000u : 0u));
    if (power < -150)
        return as_float(sign);
    int drop = power < -126 ? 29 + (-126 - power) : 29;
    mantissa |= 1UL << 52;
    ulong rounded = mantissa >> drop, rest = mantissa & ((1UL << drop) - 1), half_way = 1UL << (drop - 1);
    rounded += rest > half_way || (rest == half_way && (rounded & 1));
    /* a carry continues into the exponent, up to infinity */
    uint bits = power < -126 ? (uint)rounded : ((uint)(power + 126) << 23) + (uint)rounded;
    return as_float(sign | (power > 127 ? 0x7f800000u : bits));
}

void store_stat(__global void *p, long i, real x)
{
    uint u = as_uint(x), mantissa = u & 0x7fffffu;
    int power = (int)((u >> 23) & 0xff);
    ulong sign = (ulong)(u & 0x80000000u) << 32, bits;
    if (power == 255) {
        bits = 0x7ff0000000000000UL | (mantissa ? 0x8000000000000UL : 0);
    } else if (power == 0 && mantissa == 0) {
        bits = 0;
    } else {
        int up = power == 0 ? (int)clz(mantissa) - 8 : 0; /* a subnormal f32 is a normal double */
        mantissa = (mantissa << up) & 0x7fffffu;
        bits = ((ulong)((power == 0 ? 1 - up : power) - 127 + 1023) << 52) | ((ulong)mantissa << 29);
    }
    ((__global ulong *)p)[i] = sign | bits;
}
#endif

/* ---- nests: tarn__nest, passed by value -------------------------------------------------------------------------- */

#define MAX_RANK 8
#define MAX_OPERANDS 6

/* tarn__nest of base/kernel/view.h, passed by value: axes shared by several operands. */
typedef struct nest {
    int rank;
    int operands;
    long count;
    long shape[MAX_RANK];
    long stride[MAX_OPERANDS][MAX_RANK];
} nest;

/* Loops over the axes of a nest from the last to the first. Unrolled on GPUs, so that arrays indexed by the axis stay
 * in registers. Not on PoCL, which would take hours over the paths through the unrolled loop before a barrier. */
#ifndef IS_CPU
#define EACH_AXIS(axis, first, rank) \
    _Pragma("unroll") for (int axis = MAX_RANK - 1; axis >= (first); axis--) if (axis < (rank))
#else
#define EACH_AXIS(axis, first, rank) for (int axis = (rank)-1; axis >= (first); axis--)
#endif

/* Offset of element i, counted row-major, of one operand, relative to its first, in elements. */
long nest_at(const nest *n, long i, int operand)
{
    INDEX rest = (INDEX)i;
    long at = 0;
    EACH_AXIS(axis, 1, n->rank)
    {
        INDEX size = (INDEX)n->shape[axis], next = rest / size;
        at += (long)(rest - next * size) * n->stride[operand][axis];
        rest = next;
    }
    return n->rank > 0 ? at + (long)rest * n->stride[operand][0] : at;
}

/* Elementwise kernels compute offsets in 32 bits where those are enough (IS_SMALL), dividing by a multiplication and a
 * shift; see tarn__cl_arg_indexer(). */
#ifdef IS_SMALL
typedef struct indexer {
    int rank;
    int shape[MAX_RANK];
    uint factor[MAX_RANK];
    int shift[MAX_RANK];
    int stride[MAX_OPERANDS][MAX_RANK];
} indexer;
#define QUOTIENT(n, axis, i) ((INDEX)(mul_hi((uint)(i), (n)->factor[axis]) >> (n)->shift[axis]))
#else
typedef nest indexer;
#define QUOTIENT(n, axis, i) ((i) / (INDEX)(n)->shape[axis])
#endif

/* Offsets of element i, counted row-major, in the first `operands` operands; the number is a compile-time constant. */
void locate(const indexer *n, INDEX i, int operands, INDEX *at)
{
    for (int k = 0; k < operands; k++)
        at[k] = 0;
    EACH_AXIS(axis, 1, n->rank)
    {
        INDEX next = QUOTIENT(n, axis, i), here = i - next * (INDEX)n->shape[axis];
        for (int k = 0; k < operands; k++)
            at[k] += here * (INDEX)n->stride[k][axis];
        i = next;
    }
    for (int k = 0; k < operands && n->rank > 0; k++)
        at[k] += i * (INDEX)n->stride[k][0];
}

/* ---- faults ------------------------------------------------------------------------------------------------------ */

/* The last two parameters of a kernel whose launcher calls tarn__cl_arg_fault(); report_fault() uses their names. The
 * first fault is kept; the kernel continues as if the element did not exist. */
#define FAULT_PARAMETERS __global long *fault, long fault_function
#define report_fault(fault, value, limit) record_fault(fault, fault_function, value, limit)

/* Only the first fault of a device is kept, until the host has read and cleared the record. */
void record_fault(__global long *fault, long function, long value, long limit)
{
    if (atomic_cmpxchg((volatile __global int *)fault, 0, 1) == 0) {
        fault[1] = function;
        fault[2] = value;
        fault[3] = limit;
    }
}
