/* var.c: the variance. A state is a mean and a sum of squared deviations.
 *
 * Deviations d = x - m from a center m are summed, and their squares; Σ d corrects both values, since m is not
 * exactly the mean. By rows m is the mean of the first vector, and one pass suffices; where m is farther from the
 * mean than the elements are on average, the correction would cancel, and a second pass is centered on the mean. By
 * columns a group of rows small enough for L1 or L2 is read twice. Pieces are merged in f64 by the formula of Chan,
 * Golub and LeVeque. */
#include "backends/cpu/common/vector_ext.h"
#include "backends/cpu/elementwise/two_paths.h"
#include "backends/cpu/reduce/reduce_loops.h"

/* Merges count_b elements into count; `share` is count_b / (count + count_b). */
static inline void merge_one(double *mean, double *squares, double count, double mean_b, double squares_b, double share)
{
    double delta = mean_b - *mean;
    *mean += delta * share;
    *squares += squares_b + delta * delta * count * share;
}

#define ADD(a, b) ((a) + (b))
#define PLUS(V, M, a, x) (a) += (x)
#define IDENTITY(x) (x)

/* ---- by rows ----------------------------------------------------------------------------------------------------- */

/* Σ (x - center) and Σ (x - center)² of a piece, in f64. */
typedef struct distances {
    double residual, squares;
} distances;

/* Types as in reduce.c. mean_: a plain mean, good enough for a center; around_: deviations from it; row_: one piece
 * merged into the state. */
#define ROW(name, S, T, V, LOAD, GET) \
    static T mean_##name(const S *x, int64_t n) \
    { \
        enum { LANES = sizeof(V) / sizeof(T), WIDTH = TARN__ACCUMULATORS * LANES }; \
        V v[TARN__ACCUMULATORS], y; \
        T sum; \
        int64_t i = 0; \
        for (int k = 0; k < TARN__ACCUMULATORS; k++) \
            v[k] = (V){0}; \
        for (; i + WIDTH <= n; i += WIDTH) \
            for (int k = 0; k < TARN__ACCUMULATORS; k++) { \
                LOAD(V, y, x + i + k * LANES); \
                v[k] += y; \
            } \
        for (; i + LANES <= n; i += LANES) { \
            LOAD(V, y, x + i); \
            v[0] += y; \
        } \
        TARN__MERGE_ACCUMULATORS(V, V, v, PLUS); \
        TARN__VEC_REDUCE(T, V, sum, v[0], ADD); \
        for (; i < n; i++) \
            sum += GET(x[i]); \
        return sum / (T)n; \
    } \
    /* Sums of deviations from the center, and of their squares. */ \
    static distances around_##name(const S *x, int64_t n, T center) \
    { \
        enum { LANES = sizeof(V) / sizeof(T), WIDTH = TARN__ACCUMULATORS * LANES }; \
        V d[TARN__ACCUMULATORS], s[TARN__ACCUMULATORS], y[TARN__ACCUMULATORS]; \
        T sum_d, sum_s; \
        int64_t i = 0; \
        for (int k = 0; k < TARN__ACCUMULATORS; k++) \
            d[k] = s[k] = (V){0}; \
        for (; i + WIDTH <= n; i += WIDTH) { \
            for (int k = 0; k < (int)(WIDTH * sizeof(S) / 64); k++) \
                TARN__PREFETCH((const char *)(x + i) + 64 * k); \
            for (int k = 0; k < TARN__ACCUMULATORS; k++) { \
                LOAD(V, y[k], x + i + k * LANES); \
                y[k] -= center; \
            } \
            for (int k = 0; k < TARN__ACCUMULATORS; k++) { \
                d[k] += y[k]; \
                s[k] += y[k] * y[k]; \
            } \
        } \
        TARN__MERGE_ACCUMULATORS(V, V, d, PLUS); \
        TARN__MERGE_ACCUMULATORS(V, V, s, PLUS); \
        TARN__VEC_REDUCE(T, V, sum_d, d[0], ADD); \
        TARN__VEC_REDUCE(T, V, sum_s, s[0], ADD); \
        distances sums = {sum_d, sum_s}; \
        for (; i < n; i++) { \
            T away = GET(x[i]) - center; \
            sums.residual += away; \
            sums.squares += away * away; \
        } \
        return sums; \
    } \
    static void row_##name(tarn__acc *a, tarn__acc *b, const void *from, int64_t n, int64_t at, const void *aux) \
    { \
        enum { LANES = sizeof(V) / sizeof(T) }; \
        T center = mean_##name(from, n < LANES ? n : LANES); \
        distances sums = around_##name(from, n, center); \
        (void)aux; \
        if (!(sums.residual * sums.residual <= 0.5 * sums.squares * (double)n)) { /* true for NaN, too */ \
            center = mean_##name(from, n); \
            sums = around_##name(from, n, center); \
        } \
        double residual = sums.residual / (double)n, squares = sums.squares - residual * sums.residual; \
        merge_one(&a->real, &b->real, (double)at, (double)center + residual, squares, (double)n / (double)(at + n)); \
    }

/* ---- by columns -------------------------------------------------------------------------------------------------- */

/* A few columns at a time, so that sums stay in registers while the rows pass. Leftover columns are computed as a
 * vector, too: a column has the same result wherever it is. Rows of one call (at most TARN__ROWS) are in L1 for the
 * second reading; the f64 merge costs a few operations per call and column. */
#define COLUMNS(name, S, T, V, LOAD) \
    static inline void columns_few_##name(double *restrict a, double *restrict b, const void *const *row, int rows, \
                                          int64_t c, int lanes, double at) \
    { \
        enum { LANES = sizeof(V) / sizeof(T) }; \
        double count = rows, part = 1.0 / count, share = count / (at + count); \
        V sum = {0}, residual = {0}, squares = {0}, y; \
        S few[LANES] = {0}; \
        for (int r = 0; r < rows; r++) { \
            const S *from = (const S *)row[r] + c; \
            if (lanes < LANES) \
                from = memcpy(few, from, sizeof(S) * (size_t)lanes); \
            LOAD(V, y, from); \
            sum += y; \
        } \
        sum *= (T)part; \
        for (int r = 0; r < rows; r++) { \
            const S *from = (const S *)row[r] + c; \
            if (lanes < LANES) \
                from = memcpy(few, from, sizeof(S) * (size_t)lanes); \
            LOAD(V, y, from); \
            y -= sum; \
            residual += y; \
            squares += y * y; \
        } \
        T mean[LANES], d[LANES], s[LANES]; \
        memcpy(mean, &sum, sizeof(sum)); \
        memcpy(d, &residual, sizeof(residual)); \
        memcpy(s, &squares, sizeof(squares)); \
        for (int j = 0; j < lanes; j++) { \
            double e = (double)d[j] * part; \
            merge_one(&a[c + j], &b[c + j], at, (double)mean[j] + e, (double)s[j] - e * e * count, share); \
        } \
    } \
    TARN__COLD static void columns_remainder_##name(double *a, double *b, const void *const *row, int rows, int64_t c, \
                                                    int lanes, double at) \
    { \
        columns_few_##name(a, b, row, rows, c, lanes, at); \
    } \
    static void columns_##name(tarn__columns *columns, const void *const *row, int rows, int64_t width, int64_t at, \
                               const void *aux) \
    { \
        enum { LANES = sizeof(V) / sizeof(T) }; \
        double *a = (double *)(void *)columns->first, *b = (double *)(void *)columns->second; \
        int64_t c = 0; \
        (void)aux; \
        for (; c + LANES <= width; c += LANES) \
            columns_few_##name(a, b, row, rows, c, LANES, (double)at); \
        if (c < width) \
            columns_remainder_##name(a, b, row, rows, c, (int)(width - c), (double)at); \
    }

ROW(f32, float, float, tarn__f32v, TARN__VEC_LOAD, IDENTITY)
ROW(bf16, uint16_t, float, tarn__f32v, TARN__VEC_LOAD_BF16, TARN__FROM_BF16)
ROW(f64, double, double, tarn__f64v, TARN__VEC_LOAD, IDENTITY)
COLUMNS(f32, float, float, tarn__f32v, TARN__VEC_LOAD)
COLUMNS(bf16, uint16_t, float, tarn__f32v, TARN__VEC_LOAD_BF16)
COLUMNS(f64, double, double, tarn__f64v, TARN__VEC_LOAD)

static void init_moments(tarn__columns *columns, int64_t width)
{
    memset(columns->first, 0, sizeof(double) * (size_t)width);
    memset(columns->second, 0, sizeof(double) * (size_t)width);
}

static void read_moments(const tarn__columns *columns, int64_t width, tarn__acc *const *state)
{
    memcpy(state[0], columns->first, sizeof(tarn__acc) * (size_t)width);
    memcpy(state[1], columns->second, sizeof(tarn__acc) * (size_t)width);
}

/* Merges states column by column; `share` is the same for all. */
static void merge(tarn__acc *const *a, const tarn__acc *const *b, int64_t width, int64_t count_a, int64_t count_b)
{
    double share = (double)count_b / (double)(count_a + count_b);
    for (int64_t c = 0; c < width; c++)
        merge_one(&a[0][c].real, &a[1][c].real, (double)count_a, b[0][c].real, b[1][c].real, share);
}

/* As torch: a negative divisor counts as 0, which gives NaN or infinity. */
static void finish(tarn__acc *const *state, int64_t width, int64_t count, const tarn__reduce *params)
{
    double divisor = (double)count - params->correction;
    divisor = divisor < 0 ? 0 : divisor;
    for (int64_t c = 0; c < width; c++)
        state[1][c].real /= divisor;
}

#define REDUCER(name, COMPUTE) \
    .compute = COMPUTE, .parts = 2, .add_row = row_##name, .init_columns = init_moments, \
    .add_columns = columns_##name, .read_columns = read_moments, .merge = merge, .finish = finish, .result = 1
static const tarn__reducer reducers[] = {
    {REDUCER(f32, COMPUTE_F32), .other = TARN_BF16, .add_row_other = row_bf16, .add_columns_other = columns_bf16},
    {REDUCER(f64, COMPUTE_F64)},
};

/* run() reads x once, or twice per piece where the first center was poor. */
static tarn__plan_status prepare_var(const tarn__call *call, tarn__plan *plan)
{
    return TARN__AT_LEVEL(tarn__prepare_reduce)(call, plan, reducers);
}

void TARN__AT_LEVEL(tarn__cpu_register_var)(tarn__kernel_row *rows)
{
    rows[TARN__K_var] = tarn__row_planned(prepare_var, TARN__AT_LEVEL(tarn__kernel_reduce), TARN__FLOATS);
}
