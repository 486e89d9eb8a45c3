/* copy.cl: copies with any strides, of bits or with conversion; and fill.
 *
 * On a CPU a work-item moves up to RUN elements of a row of the nest's last axis, so that offsets are divided out once;
 * in lockstep PER elements, a work-group apart, so that adjacent work-items touch adjacent elements, all of them read
 * before one is written. */
#ifdef IN_LOCKSTEP

/* Elements per work-item in lockstep; PER of copy.c. */
#define PER 4

#define EACH_OWN(own, i) \
    _Pragma("unroll") for (INDEX own = 0, \
                           i = (INDEX)get_group_id(0) * (INDEX)get_local_size(0) * PER + (INDEX)get_local_id(0); \
                           own < PER; own++, i += (INDEX)get_local_size(0)) if (i < count)

/* VALUE is the type that READ(at) gives and WRITE(at, value) takes. */
#define MOVE(VALUE, READ, WRITE) \
    { \
        VALUE loaded[PER]; \
        INDEX at[PER][2]; \
        EACH_OWN(own, i) \
        { \
            locate(&n, i, 2, at[own]); \
            loaded[own] = READ(at[own][1]); \
        } \
        EACH_OWN(own, i) \
        { \
            WRITE(at[own][0], loaded[own]); \
        } \
    }

#else

/* Elements per work-item on a CPU; RUN of copy.c. */
#define RUN 256

/* The row and range of a work-item; false beyond the last. */
typedef struct run {
    long row, begin, end;
} run;

bool run_of(const nest *n, run *r)
{
    long size = n->rank > 0 ? n->shape[n->rank - 1] : 1, runs = (size + RUN - 1) / RUN, i = get_global_id(0);
    if (i >= n->count / size * runs)
        return false;
    r->row = i / runs;
    r->begin = i % runs * RUN;
    r->end = min(size, r->begin + RUN);
    return true;
}

/* Offset of a row of an operand. */
long row_at(const nest *n, long row, int operand)
{
    long at = 0;
    for (int axis = n->rank - 2; axis >= 0; axis--) {
        long next = row / n->shape[axis];
        at += (row - next * n->shape[axis]) * n->stride[operand][axis];
        row = next;
    }
    return at;
}

#define MOVE(VALUE, READ, WRITE) \
    { \
        run r; \
        if (!run_of(&n, &r)) \
            return; \
        const long a = n.rank > 0 ? n.stride[0][n.rank - 1] : 0, b = n.rank > 0 ? n.stride[1][n.rank - 1] : 0; \
        const long to_row = row_at(&n, r.row, 0), from_row = row_at(&n, r.row, 1); \
        if (a == 1 && b == 1) \
            for (long i = r.begin; i < r.end; i++) \
                WRITE(to_row + i, READ(from_row + i)); \
        else \
            for (long i = r.begin; i < r.end; i++) \
                WRITE(to_row + i * a, READ(from_row + i * b)); \
    }

#endif

#if defined(BITS)

#define WRITE_BITS(at, value) to[to_first + (at)] = value

/* Copies bits; BITS is the element, or a vector of elements. */
__kernel void move(indexer n, INDEX count, __global BITS *to, long to_first, const __global BITS *from,
                   long from_first){
#define READ_BITS(at) from[from_first + (at)]
    MOVE(BITS, READ_BITS, WRITE_BITS)}

/* Writes one value everywhere. */
__kernel void fill(indexer n, INDEX count, __global BITS *to, long to_first, BITS value)
{
#define READ_VALUE(at) value
    MOVE(BITS, READ_VALUE, WRITE_BITS)
}

#else

/* PUT(TO, KIND, …): stores a float, double or long as an element of any dtype. */
#define PUT(TO, KIND, p, i, x) PUT_(TO, KIND, p, i, x)
#define PUT_(TO, KIND, p, i, x) put_##TO##_##KIND(p, i, x)

#define put_f32_float(p, i, x) STORE(f32, p, i, x)
#define put_bf16_float(p, i, x) STORE(bf16, p, i, x)
#define put_f16_float(p, i, x) STORE(f16, p, i, x)
#define put_f64_float(p, i, x) STORE(f64, p, i, (double)(x))
#define put_i32_float(p, i, x) STORE(i32, p, i, int_of_float(x))
#define put_i64_float(p, i, x) STORE(i64, p, i, long_of_float(x))
#define put_u8_float(p, i, x) STORE(u8, p, i, int_of_float(x))
#define put_boolean_float(p, i, x) STORE(boolean, p, i, (x) != 0)

#define put_f32_double(p, i, x) STORE_REAL(f32, p, i, x)
#define put_bf16_double(p, i, x) STORE_REAL(bf16, p, i, x)
#define put_f16_double(p, i, x) STORE_REAL(f16, p, i, x)
#define put_i32_double(p, i, x) STORE(i32, p, i, int_of_double(x))
#define put_i64_double(p, i, x) STORE(i64, p, i, long_of_double(x))
#define put_u8_double(p, i, x) STORE(u8, p, i, int_of_double(x))
#define put_boolean_double(p, i, x) STORE(boolean, p, i, (x) != 0)

#define put_f32_long(p, i, x) STORE(f32, p, i, (float)(x))
#define put_bf16_long(p, i, x) STORE(bf16, p, i, round_to_odd_i64(x))
#define put_f16_long(p, i, x) STORE(f16, p, i, round_to_odd_i64(x))
#define put_f64_long(p, i, x) STORE(f64, p, i, (double)(x))
#define put_i32_long(p, i, x) STORE(i32, p, i, x)
#define put_i64_long(p, i, x) STORE(i64, p, i, x)
#define put_u8_long(p, i, x) STORE(u8, p, i, x)
#define put_boolean_long(p, i, x) STORE(boolean, p, i, x)

/* KIND is the compute type of FROM. The target's dtype, a tarn_dtype, is chosen at run time: a program per pair would
 * take longer to compile than converting copies are worth. */
#if defined(TO_F64) && !defined(HAS_F64)
#error "this device has no f64"
#endif

#define INTO(number, TO) \
    case number: { \
        MOVE(KIND, READ_FROM, WRITE_##TO) \
        break; \
    }
#define READ_FROM(at) LOAD(FROM, from, from_first + (at))
#define WRITE_f32(at, value) PUT(f32, KIND, (__global f32 *)to + to_first, at, value)
#define WRITE_f64(at, value) PUT(f64, KIND, (__global f64 *)to + to_first, at, value)
#define WRITE_bf16(at, value) PUT(bf16, KIND, (__global bf16 *)to + to_first, at, value)
#define WRITE_f16(at, value) PUT(f16, KIND, (__global f16 *)to + to_first, at, value)
#define WRITE_i32(at, value) PUT(i32, KIND, (__global i32 *)to + to_first, at, value)
#define WRITE_i64(at, value) PUT(i64, KIND, (__global i64 *)to + to_first, at, value)
#define WRITE_u8(at, value) PUT(u8, KIND, (__global u8 *)to + to_first, at, value)
#define WRITE_boolean(at, value) PUT(boolean, KIND, (__global boolean *)to + to_first, at, value)

__kernel void convert(indexer n, INDEX count, __global void *to, long to_first, const __global FROM *from,
                      long from_first, int dtype)
{
    switch (dtype) {
        INTO(0, f32)
        INTO(2, bf16)
        INTO(3, f16)
        INTO(4, i32)
        INTO(5, i64)
        INTO(6, u8)
        INTO(7, boolean)
#if defined(HAS_F64) && !defined(FROM_F64)
        INTO(1, f64)
#endif
    }
}

#endif
