/* copy.cl: copies with any strides, bits or conversions; and one element's bits everywhere.
 *
 * A work-item moves some elements of a row of the nest's last axis: on a CPU up to RUN of them, so that places are divided out once; on a GPU one, so
 * that neighbours touch neighbours. */
#ifdef IS_CPU
#define RUN 256
#else
#define RUN 1
#endif

/* Which run of which row this is; false behind the last one. */
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

/* Where a row of an operand begins. */
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

#if defined(BITS)

__kernel void move(nest n, __global BITS *to, long to_first, const __global BITS *from, long from_first)
{
    run r;
    if (!run_of(&n, &r))
        return;
    long a = n.rank > 0 ? n.stride[0][n.rank - 1] : 0, b = n.rank > 0 ? n.stride[1][n.rank - 1] : 0;
    to += to_first + row_at(&n, r.row, 0);
    from += from_first + row_at(&n, r.row, 1);
    if (a == 1 && b == 1)
        for (long i = r.begin; i < r.end; i++)
            to[i] = from[i];
    else
        for (long i = r.begin; i < r.end; i++)
            to[i * a] = from[i * b];
}

__kernel void fill(nest n, __global BITS *to, long to_first, BITS value)
{
    run r;
    if (!run_of(&n, &r))
        return;
    long a = n.rank > 0 ? n.stride[0][n.rank - 1] : 0;
    to += to_first + row_at(&n, r.row, 0);
    for (long i = r.begin; i < r.end; i++)
        to[i * a] = value;
}

#else

/* PUT(TO, KIND, …): a float, double or long into an element of any dtype. */
#define PUT(TO, KIND, p, i, x) PUT_(TO, KIND, p, i, x)
#define PUT_(TO, KIND, p, i, x) put_##TO##_##KIND(p, i, x)

#define put_f32_float(p, i, x) STORE(f32, p, i, x)
#define put_bf16_float(p, i, x) STORE(bf16, p, i, x)
#define put_f16_float(p, i, x) STORE(f16, p, i, x)
#define put_f64_float(p, i, x) STORE(f64, p, i, (double)(x))
#define put_i32_float(p, i, x) STORE(i32, p, i, int_of_float(x))
#define put_i64_float(p, i, x) STORE(i64, p, i, integer_of_float(x))
#define put_u8_float(p, i, x) STORE(u8, p, i, int_of_float(x))
#define put_boolean_float(p, i, x) STORE(boolean, p, i, (x) != 0)

#define put_f32_double(p, i, x) STORE_REAL(f32, p, i, x)
#define put_bf16_double(p, i, x) STORE_REAL(bf16, p, i, x)
#define put_f16_double(p, i, x) STORE_REAL(f16, p, i, x)
#define put_i32_double(p, i, x) STORE(i32, p, i, int_of_double(x))
#define put_i64_double(p, i, x) STORE(i64, p, i, integer_of_double(x))
#define put_u8_double(p, i, x) STORE(u8, p, i, int_of_double(x))
#define put_boolean_double(p, i, x) STORE(boolean, p, i, (x) != 0)

#define put_f32_long(p, i, x) STORE(f32, p, i, (float)(x))
#define put_bf16_long(p, i, x) STORE(bf16, p, i, odd_of_integer(x))
#define put_f16_long(p, i, x) STORE(f16, p, i, odd_of_integer(x))
#define put_f64_long(p, i, x) STORE(f64, p, i, (double)(x))
#define put_i32_long(p, i, x) STORE(i32, p, i, x)
#define put_i64_long(p, i, x) STORE(i64, p, i, x)
#define put_u8_long(p, i, x) STORE(u8, p, i, x)
#define put_boolean_long(p, i, x) STORE(boolean, p, i, x)

/* KIND is what FROM is computed in. The target's dtype, a number of tarn_dtype, is chosen while the kernel runs: a program for each pair would take longer to compile
 * than copies that convert are worth. */
#if defined(TO_F64) && !defined(HAS_F64)
#error "this device has no f64"
#endif

#define INTO(number, TO)                                                                                                                  \
    case number:                                                                                                                          \
        for (long i = r.begin; i < r.end; i++)                                                                                            \
            PUT(TO, KIND, (__global TO *)to + to_first, i * a, LOAD(FROM, from, i * b));                                                  \
        break;

__kernel void convert(nest n, __global void *to, long to_first, const __global FROM *from, long from_first, int dtype)
{
    run r;
    if (!run_of(&n, &r))
        return;
    long a = n.rank > 0 ? n.stride[0][n.rank - 1] : 0, b = n.rank > 0 ? n.stride[1][n.rank - 1] : 0;
    to_first += row_at(&n, r.row, 0);
    from += from_first + row_at(&n, r.row, 1);
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
