/* argmax.c: argmax and argmin, and the gradient of max and min.
 *
 * A state of argmax is a value and its index, counted from the state's first element. The first of equal values
 * wins: a later one replaces it only when it is strictly better. NaN is better than anything but NaN.
 *
 * Both layouts give the same index: the state keeps the first best element, whatever the order in which segments or
 * chunks are merged. */
#include <math.h>

#include "backends/cpu/common/convert.h"
#include "backends/cpu/common/nt_store.h"
#include "backends/cpu/common/vector_ext.h"
#include "backends/cpu/elementwise/elementwise_loops.h"
#include "backends/cpu/reduce/reduce_grad_rows.h"
#include "backends/cpu/reduce/reduce_loops.h"

/* Whether x replaces a: strictly better, or the first NaN. */
#define BETTER_max(x, a) ((x) > (a) || ((x) != (x) && (a) == (a)))
#define BETTER_min(x, a) ((x) < (a) || ((x) != (x) && (a) == (a)))
#define BEST_max(a, x) (BETTER_max(x, a) ? (x) : (a))
#define BEST_min(a, x) (BETTER_min(x, a) ? (x) : (a))
#define ABOVE_max(x, a) ((x) > (a))
#define ABOVE_min(x, a) ((x) < (a))

/* by rows: the best value of a segment with vectors, then its index, only where the segment beats the state */

#define SEGMENT 512
#define IDENTITY(x) (x)

/* Types as in reduce.c. best_op: the best value of a segment. row_op: scans a segment again for the index only if it
 * beats the state, which is rare after the first segments. */
#define ROW(op, name, S, T, V, M, LOAD, GET, START, part) \
    static T best_##op##_##name(const S *x, int64_t n) \
    { \
        enum { LANES = sizeof(V) / sizeof(T) }; \
        V v0 = (V){0} + (T)(START), v1 = v0, y0, y1; \
        T best; \
        int64_t i = 0; \
        for (; i + 2 * LANES <= n; i += 2 * LANES) { \
            LOAD(V, y0, x + i); \
            LOAD(V, y1, x + i + LANES); \
            v0 = TARN__SELECT(V, M, (M)ABOVE_##op(y0, v0) | (M)(y0 != y0), y0, v0); \
            v1 = TARN__SELECT(V, M, (M)ABOVE_##op(y1, v1) | (M)(y1 != y1), y1, v1); \
        } \
        v0 = TARN__SELECT(V, M, (M)ABOVE_##op(v1, v0) | (M)(v1 != v1), v1, v0); \
        TARN__VEC_REDUCE(T, V, best, v0, BEST_##op); \
        for (; i < n; i++) \
            best = BEST_##op(best, GET(x[i])); \
        return best; \
    } \
    static void row_##op##_##name(tarn__acc *a, tarn__acc *b, const void *from, int64_t n, int64_t at, \
                                  const void *aux) \
    { \
        (void)aux; \
        for (int64_t begin = 0; begin < n; begin += SEGMENT) { \
            const S *x = (const S *)from + begin; \
            int64_t length = n - begin < SEGMENT ? n - begin : SEGMENT, i = 0; \
            T best = best_##op##_##name(x, length), current = (T)a->part; \
            if (!BETTER_##op(best, current)) \
                continue; \
            /* The first element equal to the best; for NaN the first NaN. */ \
            while (best == best ? GET(x[i]) != best : GET(x[i]) == GET(x[i])) \
                i++; \
            a->part = best; \
            b->integer = at + begin + i; \
        } \
    }

/* ---- by columns -------------------------------------------------------------------------------------------------- */

/* Value and index of each column in two vectors; INT is the integer of T's size, so that masks apply to both. */
#define COLUMNS(op, name, S, T, V, M, INT, LOAD, GET) \
    static void columns_##op##_##name(tarn__columns *columns, const void *const *row, int rows, int64_t width, \
                                      int64_t at, const void *aux) \
    { \
        enum { LANES = sizeof(V) / sizeof(T) }; \
        T *restrict a = (T *)(void *)columns->first; \
        INT *restrict index = (INT *)(void *)columns->second; \
        int64_t c = 0; \
        (void)aux; \
        for (; c + LANES <= width; c += LANES) { \
            V v, y; \
            M indices; \
            TARN__VEC_LOAD(V, v, a + c); \
            TARN__VEC_LOAD(M, indices, index + c); \
            for (int r = 0; r < rows; r++) { \
                LOAD(V, y, (const S *)row[r] + c); \
                M better = (M)ABOVE_##op(y, v) | ((M)(y != y) & (M)(v == v)); \
                v = TARN__SELECT(V, M, better, y, v); \
                indices = TARN__SELECT(M, M, better, (M){0} + (INT)(at + r), indices); \
            } \
            memcpy(a + c, &v, sizeof(v)); \
            memcpy(index + c, &indices, sizeof(indices)); \
        } \
        for (; c < width; c++) \
            for (int r = 0; r < rows; r++) { \
                T y = GET(((const S *)row[r])[c]); \
                if (BETTER_##op(y, a[c])) { \
                    a[c] = y; \
                    index[c] = (INT)(at + r); \
                } \
            } \
    }

/* Indices of a block of rows fit INT: at most TARN__BLOCK_ROWS rows before they move to i64. */
#define TYPED(op, name, T, INT, START, part) \
    static void init_##op##_##name(tarn__columns *columns, int64_t width) \
    { \
        T *a = (T *)(void *)columns->first; \
        INT *index = (INT *)(void *)columns->second; \
        for (int64_t c = 0; c < width; c++) { \
            a[c] = (T)(START); \
            index[c] = 0; \
        } \
    } \
    static void read_##op##_##name(const tarn__columns *columns, int64_t width, tarn__acc *const *state) \
    { \
        const T *a = (const T *)(const void *)columns->first; \
        const INT *index = (const INT *)(const void *)columns->second; \
        for (int64_t c = 0; c < width; c++) { \
            state[0][c].part = a[c]; \
            state[1][c].integer = index[c]; \
        } \
    }

/* Indices of b count from the first element of b: they are shifted by count_a. */
#define MERGE(op, part) \
    static void merge_##op##_##part(tarn__acc *const *a, const tarn__acc *const *b, int64_t width, int64_t count_a, \
                                    int64_t count_b) \
    { \
        (void)count_b; \
        for (int64_t c = 0; c < width; c++) \
            if (BETTER_##op(b[0][c].part, a[0][c].part)) { \
                a[0][c] = b[0][c]; \
                a[1][c].integer = count_a + b[1][c].integer; \
            } \
    }

#define REDUCER(op, name, COMPUTE, START, part) \
    .compute = COMPUTE, .parts = 2, .start = {{.part = START}}, .add_row = row_##op##_##name, \
    .init_columns = init_##op##_##name, .add_columns = columns_##op##_##name, .read_columns = read_##op##_##name, \
    .merge = merge_##op##_##part, .result = 1, .integer_result = true

/* All types of an op, its reducers and prepare(). */
#define KERNEL(op, START, START_I64) \
    ROW(op, f32, float, float, tarn__f32v, tarn__i32v, TARN__VEC_LOAD, IDENTITY, START, real) \
    ROW(op, bf16, uint16_t, float, tarn__f32v, tarn__i32v, TARN__VEC_LOAD_BF16, TARN__FROM_BF16, START, real) \
    ROW(op, f64, double, double, tarn__f64v, tarn__i64v, TARN__VEC_LOAD, IDENTITY, START, real) \
    ROW(op, i64, int64_t, int64_t, tarn__i64v, tarn__i64v, TARN__VEC_LOAD, IDENTITY, START_I64, integer) \
    COLUMNS(op, f32, float, float, tarn__f32v, tarn__i32v, int32_t, TARN__VEC_LOAD, IDENTITY) \
    COLUMNS(op, bf16, uint16_t, float, tarn__f32v, tarn__i32v, int32_t, TARN__VEC_LOAD_BF16, TARN__FROM_BF16) \
    COLUMNS(op, f64, double, double, tarn__f64v, tarn__i64v, int64_t, TARN__VEC_LOAD, IDENTITY) \
    COLUMNS(op, i64, int64_t, int64_t, tarn__i64v, tarn__i64v, int64_t, TARN__VEC_LOAD, IDENTITY) \
    TYPED(op, f32, float, int32_t, START, real) \
    TYPED(op, f64, double, int64_t, START, real) \
    TYPED(op, i64, int64_t, int64_t, START_I64, integer) \
    MERGE(op, real) \
    MERGE(op, integer) \
    static const tarn__reducer arg##op##_reducers[] = { \
        {REDUCER(op, f32, COMPUTE_F32, START, real), .other = TARN_BF16, .add_row_other = row_##op##_bf16, \
         .add_columns_other = columns_##op##_bf16}, \
        {REDUCER(op, f64, COMPUTE_F64, START, real)}, \
        {REDUCER(op, i64, COMPUTE_I64, START_I64, integer)}, \
    }; \
    static tarn__plan_status prepare_arg##op(const tarn__call *call, tarn__plan *plan) \
    { \
        return TARN__AT_LEVEL(tarn__prepare_reduce)(call, plan, arg##op##_reducers); \
    }

KERNEL(max, -INFINITY, INT64_MIN)
KERNEL(min, INFINITY, INT64_MAX)

/* ---- gradient of max and min: elements equal to the result share it ---------------------------------------------- */

/* Number of elements equal to the result, which is the auxiliary operand. For one type: counting, and writing the
 * gradient: g / count where x equals the result, g · 0 / count elsewhere, so that a NaN or infinite g is not hidden. */
#define EQUAL(name, T, INT) \
    static void row_equal_##name(tarn__acc *a, tarn__acc *b, const void *from, int64_t n, int64_t at, const void *aux) \
    { \
        const T *x = from, y = *(const T *)aux; \
        INT found = 0; \
        (void)b, (void)at; \
        for (int64_t i = 0; i < n; i++) \
            found += x[i] == y; \
        a->real += (double)found; \
    } \
    static void init_equal_##name(tarn__columns *columns, int64_t width) \
    { \
        INT *found = (INT *)(void *)columns->first; \
        for (int64_t c = 0; c < width; c++) \
            found[c] = 0; \
    } \
    static void columns_equal_##name(tarn__columns *columns, const void *const *row, int rows, int64_t width, \
                                     int64_t at, const void *aux) \
    { \
        INT *restrict found = (INT *)(void *)columns->first; \
        const T *y = aux; \
        (void)at; \
        for (int r = 0; r < rows; r++) { \
            const T *x = row[r]; \
            for (int64_t c = 0; c < width; c++) \
                found[c] += x[c] == y[c]; \
        } \
    } \
    static void read_equal_##name(const tarn__columns *columns, int64_t width, tarn__acc *const *state) \
    { \
        const INT *found = (const INT *)(const void *)columns->first; \
        for (int64_t c = 0; c < width; c++) \
            state[0][c].real = (double)found[c]; \
    } \
    /* NaN equals nothing: where NaN won, the count is 0 and all gradients of its slice are NaN, as torch.amax has \
     * it. */ \
    static void tile_grad_##name(int64_t n, const void *const *in, void *const *out, const tarn__elementwise *params) \
    { \
        const T *x = in[0], *y = in[1], *g = in[2], *count = in[3]; \
        T *to = out[0]; \
        (void)params; \
        TARN__INDEPENDENT \
        for (int64_t i = 0; i < n; i++) \
            to[i] = (x[i] == y[i] ? g[i] : g[i] * 0) / count[i]; \
    } \
    static void write_grad_##name(T *to, const T *x, T y, T equal, T other, int64_t n) \
    { \
        TARN__INDEPENDENT \
        for (int64_t i = 0; i < n; i++) \
            to[i] = x[i] == y ? equal : other; \
    } \
    static void dense_grad_##name(char *const *at, int64_t n) \
    { \
        const T *x = (const T *)(const void *)at[1], y = *(const T *)(const void *)at[2], \
                g = *(const T *)(const void *)at[3]; \
        T count = (T) * (const double *)(const void *)at[4]; \
        write_grad_##name((T *)(void *)at[0], x, y, g / count, g * 0 / count, n); \
    }

EQUAL(f32, float, int32_t)
EQUAL(f64, double, int64_t)

/* Counts add up. */
static void merge_equal(tarn__acc *const *a, const tarn__acc *const *b, int64_t width, int64_t count_a, int64_t count_b)
{
    (void)count_a, (void)count_b;
    for (int64_t c = 0; c < width; c++)
        a[0][c].real += b[0][c].real;
}

#define EQUAL_REDUCER(name, COMPUTE) \
    { \
        .compute = COMPUTE, .parts = 1, .add_row = row_equal_##name, .init_columns = init_equal_##name, \
        .add_columns = columns_equal_##name, .read_columns = read_equal_##name, .merge = merge_equal \
    }
static const tarn__reducer equal_reducers[] = {EQUAL_REDUCER(f32, COMPUTE_F32), EQUAL_REDUCER(f64, COMPUTE_F64)};

/* ---- the same for contiguous reduced rows: counted and written while in cache ------------------------------------ */

#define MIN_GRAD_ROW 16 /* shorter and longer rows take the general form */
#define MAX_GRAD_ROW (32 * 1024)
#define GRAD_GRAIN (32 * 1024) /* elements per task */
#define GRAD_BUFFER 4096       /* bytes per non-temporal write */

/* Contiguous reduced rows: count and write in one visit per row. */
typedef struct row_form {
    tarn__nest nest; /* gradient, x, y, g; the last axis is the row */
    bool nontemporal;
    const tarn__call *call; /* set by run() */
} row_form;

/* Counts, then writes the gradient of one row, through an aligned buffer where stores are non-temporal. */
#define GRAD_ROW(name, T) \
    static int64_t count_##name(const T *x, T y, int64_t n) \
    { \
        int32_t found = 0; \
        for (int64_t i = 0; i < n; i++) \
            found += x[i] == y; \
        return found; \
    } \
    static void grad_row_##name(T *to, const T *x, const T *y, const T *g, int64_t n, bool nontemporal) \
    { \
        T count = (T)count_##name(x, *y, n), equal = *g / count, other = *g * 0 / count; \
        if (!nontemporal || ((uintptr_t)to & 63) != 0) { \
            write_grad_##name(to, x, *y, equal, other, n); \
            return; \
        } \
        enum { MAX = GRAD_BUFFER / sizeof(T) }; \
        _Alignas(64) T current[MAX]; \
        for (int64_t i = 0, here; i < n; i += here) { \
            here = n - i < MAX ? n - i : MAX; \
            write_grad_##name(current, x + i, *y, equal, other, here); \
            tarn__nt_store((char *)(to + i), (const char *)current, here *(int64_t)sizeof(T)); \
        } \
    }
GRAD_ROW(f32, float)
GRAD_ROW(f64, double)

/* One task is a range of rows; a thread that used non-temporal stores fences once at its end. */
static void max_grad_rows(int64_t begin, int64_t end, void *ctx)
{
    const row_form *p = ctx;
    const tarn__view *views[] = {p->call->out[0], p->call->in[0], p->call->in[1], p->call->in[2]};
    int64_t n = p->nest.shape[p->nest.rank - 1], size = (int64_t)tarn__dtype_bytes(views[0]->dtype);
    for (int64_t row = begin; row < end; row++) {
        char *at[4];
        for (int k = 0; k < 4; k++)
            at[k] = (char *)tarn__view_at(views[k]) + grad_row_offset(&p->nest, k, row) * size;
        if (size == 4)
            grad_row_f32((void *)at[0], (void *)at[1], (void *)at[2], (void *)at[3], n, p->nontemporal);
        else
            grad_row_f64((void *)at[0], (void *)at[1], (void *)at[2], (void *)at[3], n, p->nontemporal);
    }
    if (p->nontemporal)
        tarn__nt_fence();
}

/* True where the call has such rows. y has stride 0 on exactly the reduced axes. */
static bool describe_rows(row_form *p, const tarn__call *call)
{
    const tarn__view *views[] = {call->out[0], call->in[0], call->in[1], call->in[2]};
    for (int k = 0; k < 4; k++)
        if (views[k]->dtype != views[0]->dtype || (views[k]->dtype != TARN_F32 && views[k]->dtype != TARN_F64))
            return false;
    p->call = NULL;
    tarn__nest_make(&p->nest, 4, views);
    int last = p->nest.rank - 1;
    if (last < 0 || p->nest.count == 0 || p->nest.shape[last] < MIN_GRAD_ROW || p->nest.shape[last] > MAX_GRAD_ROW)
        return false;
    for (int k = 0; k < 4; k++)
        if (p->nest.stride[k][last] != (k < 2 ? 1 : 0))
            return false;
    /* A reduced axis before the row would make rows share their result: not this form. */
    for (int i = 0; i < last; i++)
        if (p->nest.stride[2][i] == 0)
            return false;
    p->nontemporal = p->nest.count * (int64_t)tarn__dtype_bytes(views[0]->dtype) >= TARN__NT_STORE_MIN;
    return true;
}

/* Three forms, by layout: contiguous rows in one pass; else counts first, then rows with one count each, or tiles. */
typedef struct max_grad_job {
    bool has_rows;
    union {
        row_form rows;
        tarn__reduction counts; /* of equal elements */
    } form;
} max_grad_job;

/* The counts are at the start of scratch: f64, in the result's shape. */
static tarn__view counts_view(const tarn__call *call, void *memory)
{
    tarn__view counts = *call->in[1];
    counts.memory = memory;
    counts.offset = 0;
    counts.dtype = TARN_F64;
    tarn__view_set_row_major(&counts);
    return counts;
}

static tarn__plan_status prepare_max_grad(const tarn__call *call, tarn__plan *plan)
{
    max_grad_job *j = tarn__plan_reserve(plan, sizeof(*j));
    if (!j)
        return TARN__PLAN_FAILED;
    j->has_rows = describe_rows(&j->form.rows, call);
    if (j->has_rows)
        return TARN__PLAN_READY;
    tarn__view counts = counts_view(call, NULL);
    plan->scratch_bytes =
        sizeof(double) * (size_t)tarn__view_count(&counts) +
        TARN__AT_LEVEL(tarn__describe_reduction)(&j->form.counts, &equal_reducers[tarn__compute_of(call->in[0]->dtype)],
                                                 call->in[0], &counts, call->in[1]);
    return TARN__PLAN_READY;
}

static void kernel_max_grad(const tarn__call *call)
{
    const max_grad_job *j = tarn__plan_job(call->plan);
    if (j->has_rows) {
        row_form form = j->form.rows;
        form.call = call;
        int64_t length = form.nest.shape[form.nest.rank - 1];
        tarn__parallel_for(form.nest.count / length, (GRAD_GRAIN + length - 1) / length, max_grad_rows, &form);
        return;
    }
    tarn__view counts = counts_view(call, call->scratch);
    tarn__reduction_operands operands = {.x = call->in[0],
                                         .y = &counts,
                                         .aux = call->in[1],
                                         .scratch = (double *)call->scratch + tarn__view_count(&counts)};
    TARN__AT_LEVEL(tarn__run_reduction)(&j->form.counts, &operands);
    int compute = j->form.counts.reducer->compute;
    grad_rows rows;
    tarn_dtype dtype = compute == COMPUTE_F32 ? TARN_F32 : TARN_F64;
    if (call->in[0]->dtype == dtype && call->in[2]->dtype == dtype &&
        grad_rows_make(&rows, 5,
                       (const tarn__view *[]){call->out[0], call->in[0], call->in[1], call->in[2], &counts})) {
        grad_rows_run(&rows, compute == COMPUTE_F32 ? dense_grad_f32 : dense_grad_f64);
        return;
    }
    tarn__elementwise none = {0};
    tarn__call tiles = {.inputs = 4,
                        .outputs = 1,
                        .in = {call->in[0], call->in[1], call->in[2], &counts},
                        .out = {call->out[0]},
                        .params = &none};
    TARN__AT_LEVEL(tarn__run_tiles)
    (&tiles, &(tarn__tile_job){.tile = compute == COMPUTE_F32 ? tile_grad_f32 : tile_grad_f64, .compute = compute});
}

void TARN__AT_LEVEL(tarn__cpu_register_argmax)(tarn__kernel_row *rows)
{
    tarn__kernel_fn run = TARN__AT_LEVEL(tarn__kernel_reduce);
    rows[TARN__K_argmax] = tarn__row_planned(prepare_argmax, run, TARN__ALL);
    rows[TARN__K_argmin] = tarn__row_planned(prepare_argmin, run, TARN__ALL);
    rows[TARN__K_max_grad] = tarn__row_planned(prepare_max_grad, kernel_max_grad, TARN__FLOATS);
}
