/* reduce.c: sum, prod, max, min, and the count of non-finite values.
 *
 * Every step exists twice: on vectors, and on single elements for the remainder. Sums of f32 and bf16 accumulate in
 * f32 for one piece, then in f64. Products overflow and lose precision sooner: they run in f64, or as double-floats
 * (compensated.h). */
#include "backends/cpu/reduce/reduce_loops.h"

#include <math.h>

#include "backends/cpu/common/convert.h"
#include "backends/cpu/common/vector_ext.h"
#include "backends/cpu/reduce/compensated.h"

/* ---- steps ------------------------------------------------------------------------------------------------------- */

/* ONE_op: a step on single elements; STEP_op: the same on vectors V, with masks of type M for selections. */
#define ONE_sum(a, x) ((a) + (x))
#define ONE_prod(a, x) ((a) * (x))
#define ONE_max(a, x) ((x) > (a) || (x) != (x) ? (x) : (a)) /* NaN wins, and stays */
#define ONE_min(a, x) ((x) < (a) || (x) != (x) ? (x) : (a))

#define STEP_sum(V, M, a, x) (a) += (x)
#define STEP_prod(V, M, a, x) (a) *= (x)
#define STEP_max(V, M, a, x) (a) = TARN__VEC_MAX_##V(M, a, x)
#define STEP_min(V, M, a, x) (a) = TARN__VEC_MIN_##V(M, a, x)

#define IDENTITY(x) (x)

/* By columns: rows per pass over some vectors of accumulators. AArch64 reads memory fastest along many rows, a cache
 * line of each. */
#if defined(__aarch64__)
#define ROWS_PER_PASS TARN__ROWS
#define VECTORS_PER_PASS 4
#else
#define ROWS_PER_PASS 4
#define VECTORS_PER_PASS 1
#endif

/* ROW: n contiguous elements into one state: several vectors of accumulators, then one, then single elements, in
 * this fixed order. COLUMNS: rows into a tile of accumulators, four rows per step, pairwise. S is the stored type, T
 * the type computed in, V a vector of T, M its mask type; LOAD reads a V from S, GET converts one element. START is
 * the neutral element, `part` the member of tarn__acc that holds the state. Reads n · sizeof(S) bytes; one step per
 * element. */
#define ROW(op, name, S, T, V, M, LOAD, GET, START, part) \
    static void row_##op##_##name(tarn__acc *a, tarn__acc *b, const void *from, int64_t n, int64_t at, \
                                  const void *aux) \
    { \
        enum { LANES = sizeof(V) / sizeof(T), WIDTH = TARN__ACCUMULATORS * LANES }; \
        const S *x = from; \
        V v[TARN__ACCUMULATORS], y[TARN__ACCUMULATORS]; \
        int64_t i = 0; \
        (void)b, (void)at, (void)aux; \
        for (int k = 0; k < TARN__ACCUMULATORS; k++) \
            v[k] = (V){0} + (T)(START); \
        for (; i + WIDTH <= n; i += WIDTH) { \
            for (int k = 0; k < (int)(WIDTH * sizeof(S) / 64); k++) \
                TARN__PREFETCH((const char *)(x + i) + 64 * k); \
            for (int k = 0; k < TARN__ACCUMULATORS; k++) \
                LOAD(V, y[k], x + i + k * LANES); \
            for (int k = 0; k < TARN__ACCUMULATORS; k++) \
                STEP_##op(V, M, v[k], y[k]); \
        } \
        for (; i + LANES <= n; i += LANES) { \
            LOAD(V, y[0], x + i); \
            STEP_##op(V, M, v[0], y[0]); \
        } \
        TARN__MERGE_ACCUMULATORS(V, M, v, STEP_##op); \
        T total; \
        TARN__VEC_REDUCE(T, V, total, v[0], ONE_##op); \
        for (; i < n; i++) \
            total = ONE_##op(total, GET(x[i])); \
        a->part = ONE_##op(a->part, total); \
    }

/* pass_op: `vectors` vectors of columns from c over `rows` rows; accumulators are loaded and stored once per pass.
 * The scalar tail repeats the same tree, so that a column's result does not depend on where it is in the tile. */
#define COLUMNS(op, name, S, T, V, M, LOAD, GET) \
    static inline __attribute__((always_inline)) void pass_##op##_##name(T *a, const S *const *x, int rows, int64_t c, \
                                                                         int vectors) \
    { \
        enum { LANES = sizeof(V) / sizeof(T) }; \
        V v[VECTORS_PER_PASS], y0, y1, y2, y3; \
        int r = 0; \
        for (int k = 0; k < vectors; k++) \
            TARN__VEC_LOAD(V, v[k], a + c + k * LANES); \
        for (; r + 4 <= rows; r += 4) \
            for (int k = 0; k < vectors; k++) { \
                int64_t at = c + k * LANES; \
                LOAD(V, y0, x[r] + at); \
                LOAD(V, y1, x[r + 1] + at); \
                LOAD(V, y2, x[r + 2] + at); \
                LOAD(V, y3, x[r + 3] + at); \
                STEP_##op(V, M, y0, y1); \
                STEP_##op(V, M, y2, y3); \
                STEP_##op(V, M, y0, y2); \
                STEP_##op(V, M, v[k], y0); \
            } \
        for (; r < rows; r++) \
            for (int k = 0; k < vectors; k++) { \
                LOAD(V, y0, x[r] + c + k * LANES); \
                STEP_##op(V, M, v[k], y0); \
            } \
        for (int k = 0; k < vectors; k++) \
            memcpy(a + c + k * LANES, &v[k], sizeof(V)); \
    } \
    static void columns_##op##_##name(tarn__columns *columns, const void *const *row, int rows, int64_t width, \
                                      int64_t at, const void *aux) \
    { \
        enum { LANES = sizeof(V) / sizeof(T) }; \
        T *restrict a = (T *)(void *)columns->first; \
        (void)at, (void)aux; \
        for (; rows > 0; rows -= ROWS_PER_PASS, row += ROWS_PER_PASS) { \
            int64_t c = 0; \
            int here = rows < ROWS_PER_PASS ? rows : ROWS_PER_PASS; \
            const S *x[ROWS_PER_PASS]; \
            for (int r = 0; r < ROWS_PER_PASS; r++) \
                x[r] = row[r < here ? r : 0]; \
            for (; here == ROWS_PER_PASS && c + VECTORS_PER_PASS * LANES <= width; c += VECTORS_PER_PASS * LANES) \
                pass_##op##_##name(a, x, ROWS_PER_PASS, c, VECTORS_PER_PASS); \
            for (; c + LANES <= width; c += LANES) \
                pass_##op##_##name(a, x, here, c, 1); \
            for (; c < width; c++) { \
                int r = 0; \
                for (; r + 4 <= here; r += 4) { \
                    T y0 = ONE_##op((T)GET(x[r][c]), (T)GET(x[r + 1][c])); \
                    T y2 = ONE_##op((T)GET(x[r + 2][c]), (T)GET(x[r + 3][c])); \
                    y0 = ONE_##op(y0, y2); \
                    a[c] = ONE_##op(a[c], y0); \
                } \
                for (; r < here; r++) \
                    a[c] = ONE_##op(a[c], GET(x[r][c])); \
            } \
        } \
    }

/* Initial and final conversion of column accumulators, per compute type. */
#define TYPED(op, name, T, START, part) \
    static void init_##op##_##name(tarn__columns *columns, int64_t width) \
    { \
        T *a = (T *)(void *)columns->first; \
        for (int64_t c = 0; c < width; c++) \
            a[c] = (T)(START); \
    } \
    static void read_##op##_##name(const tarn__columns *columns, int64_t width, tarn__acc *const *state) \
    { \
        const T *a = (const T *)(const void *)columns->first; \
        for (int64_t c = 0; c < width; c++) \
            state[0][c].part = a[c]; \
    }

/* States of later elements into earlier ones, as f64 or i64. */
#define MERGE(op, name, part) \
    static void merge_##op##_##name(tarn__acc *const *a, const tarn__acc *const *b, int64_t width, int64_t count_a, \
                                    int64_t count_b) \
    { \
        (void)count_a, (void)count_b; \
        for (int64_t c = 0; c < width; c++) \
            a[0][c].part = ONE_##op(a[0][c].part, b[0][c].part); \
    }

/* Everything op needs for f32 elements, and for bf16 read directly. */
#define OP_F32(op, START) \
    ROW(op, f32, float, float, tarn__f32v, tarn__i32v, TARN__VEC_LOAD, IDENTITY, START, real) \
    ROW(op, bf16, uint16_t, float, tarn__f32v, tarn__i32v, TARN__VEC_LOAD_BF16, TARN__FROM_BF16, START, real) \
    COLUMNS(op, f32, float, float, tarn__f32v, tarn__i32v, TARN__VEC_LOAD, IDENTITY) \
    COLUMNS(op, bf16, uint16_t, float, tarn__f32v, tarn__i32v, TARN__VEC_LOAD_BF16, TARN__FROM_BF16) \
    TYPED(op, f32, float, START, real)

/* The same for f64 and i64, with the merges all types share. */
#define OP_F64_I64(op, START, START_I64) \
    ROW(op, f64, double, double, tarn__f64v, tarn__i64v, TARN__VEC_LOAD, IDENTITY, START, real) \
    ROW(op, i64, int64_t, int64_t, tarn__i64v, tarn__i64v, TARN__VEC_LOAD, IDENTITY, START_I64, integer) \
    COLUMNS(op, f64, double, double, tarn__f64v, tarn__i64v, TARN__VEC_LOAD, IDENTITY) \
    COLUMNS(op, i64, int64_t, int64_t, tarn__i64v, tarn__i64v, TARN__VEC_LOAD, IDENTITY) \
    TYPED(op, f64, double, START, real) \
    TYPED(op, i64, int64_t, START_I64, integer) \
    MERGE(op, real, real) \
    MERGE(op, integer, integer)

OP_F32(sum, 0)
OP_F32(max, -INFINITY)
OP_F32(min, INFINITY)
OP_F64_I64(sum, 0, 0)
OP_F64_I64(prod, 1, 1)
ROW(prod, f32, float, double, tarn__f64v, tarn__i64v, TARN__VEC_LOAD_F32, IDENTITY, 1, real)
COLUMNS(prod, f32, float, double, tarn__f64v, tarn__i64v, TARN__VEC_LOAD_F32, IDENTITY)
OP_F64_I64(max, -INFINITY, INT64_MIN)
OP_F64_I64(min, INFINITY, INT64_MAX)

/* ---- sum, prod, max, min ----------------------------------------------------------------------------------------- */

/* mean is a sum with scale 1 / n, applied in f64 before the one rounding. */
static void finish_sum(tarn__acc *const *state, int64_t width, int64_t count, const tarn__reduce *params)
{
    (void)count;
    for (int64_t c = 0; params->scale != 1 && c < width; c++)
        state[0][c].real *= params->scale;
}

/* Members common to the reducers of one op. */
#define REDUCER(op, name, COMPUTE, START, part, finisher) \
    .compute = COMPUTE, .parts = 1, .joins_rows = true, .start = {{.part = START}}, .add_row = row_##op##_##name, \
    .init_columns = init_##op##_##name, .add_columns = columns_##op##_##name, .read_columns = read_##op##_##name, \
    .merge = merge_##op##_##part, .finish = finisher

#define REDUCERS(op, START, START_I64, finisher) \
    static const tarn__reducer op##_reducers[] = { \
        {REDUCER(op, f32, COMPUTE_F32, START, real, finisher), .other = TARN_BF16, .add_row_other = row_##op##_bf16, \
         .add_columns_other = columns_##op##_bf16}, \
        {REDUCER(op, f64, COMPUTE_F64, START, real, finisher)}, \
        {REDUCER(op, i64, COMPUTE_I64, START_I64, integer, NULL), .integer_result = true}, \
    };
REDUCERS(sum, 0, 0, finish_sum)
REDUCERS(max, -INFINITY, INT64_MIN, NULL)
REDUCERS(min, INFINITY, INT64_MAX, NULL)

#if TARN__VEC_LANES == 16

/* Double-floats for long rows; f64 for short ones and where the range fails. */
static void row_product(tarn__acc *a, tarn__acc *b, const void *from, int64_t n, int64_t at, const void *aux)
{
    double product;
    /* df_product_row() declines where the range fails. */
    if (n >= 4 * TARN__VEC_LANES && df_product_row(from, n, &product))
        a->real *= product;
    else
        row_prod_f32(a, b, from, n, at, aux);
}

#else
#define row_product row_prod_f32
#endif

/* prod of f32 accumulates in f64: compute is F64, with f32 as the other dtype read directly. */
static const tarn__reducer prod_reducers[] = {
    {REDUCER(prod, f64, COMPUTE_F64, 1, real, NULL), .other = TARN_F32, .add_row_other = row_product,
     .add_columns_other = columns_prod_f32},
    {REDUCER(prod, f64, COMPUTE_F64, 1, real, NULL)},
    {REDUCER(prod, i64, COMPUTE_I64, 1, integer, NULL), .integer_result = true},
};

#define PREPARE(op) \
    static tarn__plan_status prepare_##op(const tarn__call *call, tarn__plan *plan) \
    { \
        return TARN__AT_LEVEL(tarn__prepare_reduce)(call, plan, op##_reducers); \
    }

PREPARE(sum)
PREPARE(prod)
PREPARE(max)
PREPARE(min)

/* ---- count_nonfinite --------------------------------------------------------------------------------------------- */

/* x - x is 0 for finite values and NaN for others. All axes are reduced, so there are no columns. */
#define COUNT_NONFINITE(name, T, INT) \
    static void row_nonfinite_##name(tarn__acc *a, tarn__acc *b, const void *from, int64_t n, int64_t at, \
                                     const void *aux) \
    { \
        const T *x = from; \
        INT found = 0; \
        (void)b, (void)at, (void)aux; \
        for (int64_t i = 0; i < n; i++) \
            found += !(x[i] - x[i] == 0); \
        a->integer += found; \
    }
COUNT_NONFINITE(f32, float, int32_t)
COUNT_NONFINITE(f64, double, int64_t)

static const tarn__reducer count_nonfinite_reducers[] = {
    {.compute = COMPUTE_F32,
     .parts = 1,
     .add_row = row_nonfinite_f32,
     .merge = merge_sum_integer,
     .integer_result = true},
    {.compute = COMPUTE_F64,
     .parts = 1,
     .add_row = row_nonfinite_f64,
     .merge = merge_sum_integer,
     .integer_result = true},
};

PREPARE(count_nonfinite)

void TARN__AT_LEVEL(tarn__cpu_register_reduce)(tarn__kernel_row *rows)
{
    tarn__kernel_fn run = TARN__AT_LEVEL(tarn__kernel_reduce);
    rows[TARN__K_sum] = tarn__row_planned(prepare_sum, run, TARN__ALL);
    rows[TARN__K_prod] = tarn__row_planned(prepare_prod, run, TARN__ALL);
    rows[TARN__K_max] = tarn__row_planned(prepare_max, run, TARN__ALL);
    rows[TARN__K_min] = tarn__row_planned(prepare_min, run, TARN__ALL);
    rows[TARN__K_count_nonfinite] = tarn__row_planned(prepare_count_nonfinite, run, TARN__FLOATS);
}
