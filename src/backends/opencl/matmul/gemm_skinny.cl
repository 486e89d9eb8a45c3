/* gemm_skinny.cl: GEMM with up to 4 rows (GEMV), as in decoding: bound by reading b, which is read once, in place.
 *
 * Options: those of gemm.cl; T_A and T_B, dtypes of the operands; ROWS, at least m; with ON_GPU LANES, work-items per
 * work-group. */
#include "backends/opencl/matmul/gemm.cl"

#define EACH_ROW _Pragma("unroll") for (int i = 0; i < ROWS; i++)

#ifdef ON_GPU

/* Grid (groups · LANES, 1, batches). Where the terms of a column are contiguous a work-group has a column, and its
 * work-items take every LANES-th term; else it has LANES columns, one per work-item. Partial sums are added in a tree.
 */
__kernel void skinny(const __global void *a, long a_offset, const __global void *b, long b_offset, __global void *c,
                     long c_offset, const __global void *bias, long bias_offset, nest batches, sizes s, real alpha,
                     real beta)
{
    __local REAL sums[LANES];
    const int item = (int)get_local_id(0);
    const bool is_along = s.b_row_stride == 1;
    const long column = is_along ? get_group_id(0) : get_global_id(0), batch = s.first + get_global_id(2);
    a_offset += nest_at(&batches, batch, 1);
    b_offset += nest_at(&batches, batch, 2) + column * s.b_col_stride;
    c_offset += nest_at(&batches, batch, 0);
    bias_offset += nest_at(&batches, batch, 3);
    REAL sum[ROWS];
    EACH_ROW sum[i] = 0;
    if (column < s.n)
        for (long k = is_along ? item : 0; k < s.k; k += is_along ? LANES : 1) {
            REAL x = LOAD(T_B, b, b_offset + k * s.b_row_stride);
            EACH_ROW sum[i] += i < s.m ? LOAD(T_A, a, a_offset + i * s.a_row_stride + k * s.a_col_stride) * x : 0;
        }
    EACH_ROW
    {
        for (int step = is_along ? LANES / 2 : 0; step > 0; step /= 2) {
            barrier(CLK_LOCAL_MEM_FENCE);
            sums[item] = sum[i];
            barrier(CLK_LOCAL_MEM_FENCE);
            sum[i] += sums[item ^ step];
        }
        if (column < s.n && i < s.m && (!is_along || item == 0))
            finish(c, c_offset, bias, bias_offset, &s, i, column, sum[i], (REAL)alpha, (REAL)beta);
    }
}

#else

#define VECTOR JOIN(REAL, 16)

/* 16 contiguous elements. */
float16 load_16_f32(const __global f32 *p)
{
    return vload16(0, p);
}
float16 load_16_bf16(const __global bf16 *p)
{
    return as_float16(convert_uint16(vload16(0, p)) << 16);
}
float16 load_16_f16(const __global f16 *p)
{
    return vload_half16(0, (const __global half *)p);
}
#ifdef HAS_F64
double16 load_16_f64(const __global f64 *p)
{
    return vload16(0, p);
}
#endif
#define LOAD_16(T, pointer, index) LOAD_16_(T, pointer, index)
#define LOAD_16_(T, pointer, index) load_16_##T((const __global T *)(pointer) + (index))

/* The sum of all lanes, in a fixed order. */
REAL total(VECTOR x)
{
    JOIN(REAL, 8) y = x.lo + x.hi;
    JOIN(REAL, 4) z = y.lo + y.hi;
    return (z.x + z.z) + (z.y + z.w);
}

/* One column with contiguous terms; rows of a are contiguous too. */
void multiply_along(const __global void *a, long a_offset, const __global void *b, long b_offset, const sizes *s,
                    REAL *sum)
{
    VECTOR parts[ROWS];
    EACH_ROW parts[i] = 0;
    long k = 0;
    for (; k + 16 <= s->k; k += 16) {
        VECTOR x = LOAD_16(T_B, b, b_offset + k);
        EACH_ROW if (i < s->m) parts[i] += x * LOAD_16(T_A, a, a_offset + i * s->a_row_stride + k);
    }
    EACH_ROW sum[i] = total(parts[i]);
    for (; k < s->k; k++)
        EACH_ROW if (i < s->m) sum[i] += LOAD(T_B, b, b_offset + k) * LOAD(T_A, a, a_offset + i * s->a_row_stride + k);
}

/* 16 contiguous columns. */
void multiply_across(const __global void *a, long a_offset, const __global void *b, long b_offset, const sizes *s,
                     REAL *sum)
{
    VECTOR parts[ROWS];
    EACH_ROW parts[i] = 0;
    for (long k = 0; k < s->k; k++) {
        VECTOR x = LOAD_16(T_B, b, b_offset + k * s->b_row_stride);
        EACH_ROW if (i < s->m) parts[i] += x * (REAL)LOAD(T_A, a, a_offset + i * s->a_row_stride + k * s->a_col_stride);
    }
    EACH_ROW vstore16(parts[i], i, sum);
}

/* One column with any strides. */
void multiply_any(const __global void *a, long a_offset, const __global void *b, long b_offset, const sizes *s,
                  REAL *sum)
{
    EACH_ROW sum[i] = 0;
    for (long k = 0; k < s->k; k++) {
        REAL x = LOAD(T_B, b, b_offset + k * s->b_row_stride);
        EACH_ROW if (i < s->m) sum[i] += x * LOAD(T_A, a, a_offset + i * s->a_row_stride + k * s->a_col_stride);
    }
}

/* Grid (columns / 16, 1, batches): 16 columns per work-item. */
__attribute__((reqd_work_group_size(1, 1, 1))) __kernel void
skinny(const __global void *a, long a_offset, const __global void *b, long b_offset, __global void *c, long c_offset,
       const __global void *bias, long bias_offset, nest batches, sizes s, real alpha, real beta)
{
    long column = get_global_id(0) * 16, batch = s.first + get_global_id(2);
    int columns = (int)min(16L, s.n - column);
    a_offset += nest_at(&batches, batch, 1);
    b_offset += nest_at(&batches, batch, 2) + column * s.b_col_stride;
    c_offset += nest_at(&batches, batch, 0);
    bias_offset += nest_at(&batches, batch, 3);
    REAL sum[ROWS * 16];
    bool across = columns == 16 && s.b_col_stride == 1;
    if (across)
        multiply_across(a, a_offset, b, b_offset, &s, sum);
    for (int j = 0; j < columns; j++) {
        REAL own[ROWS];
        if (!across && s.b_row_stride == 1 && s.a_col_stride == 1)
            multiply_along(a, a_offset, b, b_offset + j * s.b_col_stride, &s, own);
        else if (!across)
            multiply_any(a, a_offset, b, b_offset + j * s.b_col_stride, &s, own);
        for (int i = 0; i < ROWS; i++)
            if (i < s.m)
                finish(c, c_offset, bias, bias_offset, &s, i, column + j, across ? sum[i * 16 + j] : own[i],
                       (REAL)alpha, (REAL)beta);
    }
}

#endif
