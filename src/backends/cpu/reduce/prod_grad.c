/* prod_grad.c: the gradient of prod: g times the product of the other elements, from the product of the nonzero
 * elements and the number of zeros. Two passes: these two values per output, in f64, then one over x. */
#include "backends/cpu/common/vector_ext.h"
#include "backends/cpu/elementwise/elementwise_loops.h"
#include "backends/cpu/reduce/reduce_grad_rows.h"
#include "backends/cpu/reduce/reduce_loops.h"

#define TIMES(V, M, a, x) (a) *= (x)
#define PRODUCT(a, b) ((a) * (b))

/* ---- product of the nonzero elements, and number of zeros -------------------------------------------------------- */

/* a *= product of the nonzero elements, b += number of zeros; zeros are replaced by 1 without a branch. */
static void row_nonzero(tarn__acc *a, tarn__acc *b, const void *from, int64_t n, int64_t at, const void *aux)
{
    enum { LANES = sizeof(tarn__f64v) / sizeof(double) };
    const double *x = from;
    double product = 1;
    int64_t zeros = 0, i = 0;
    tarn__f64v v = (tarn__f64v){0} + 1, y;
    tarn__i64v none = {0};
    (void)at, (void)aux;
    for (; i + LANES <= n; i += LANES) {
        TARN__VEC_LOAD(tarn__f64v, y, x + i);
        tarn__i64v is_zero = (tarn__i64v)(y == 0);
        none -= is_zero;
        v *= TARN__SELECT(tarn__f64v, tarn__i64v, is_zero, (tarn__f64v){0} + 1, y);
    }
    for (int k = 0; k < LANES; k++) {
        product *= v[k];
        zeros += none[k];
    }
    for (; i < n; i++) {
        product *= x[i] == 0 ? 1 : x[i];
        zeros += x[i] == 0;
    }
    a->real *= product;
    b->real += (double)zeros;
}

#if defined(__aarch64__)

/* A plain product that is neither 0 nor NaN proves that no element is 0. */
static void row_nonzero_f32(tarn__acc *a, tarn__acc *b, const void *from, int64_t n, int64_t at, const void *aux)
{
    enum { LANES = sizeof(tarn__f64v) / sizeof(double), WIDTH = TARN__ACCUMULATORS * LANES };
    const float *x = from;
    tarn__f64v v[TARN__ACCUMULATORS], y;
    double product;
    int64_t i = 0;
    for (int k = 0; k < TARN__ACCUMULATORS; k++)
        v[k] = (tarn__f64v){0} + 1;
    for (; i + WIDTH <= n; i += WIDTH)
        for (int k = 0; k < TARN__ACCUMULATORS; k++) {
            TARN__VEC_LOAD_F32(tarn__f64v, y, x + i + k * LANES);
            v[k] *= y;
        }
    TARN__MERGE_ACCUMULATORS(tarn__f64v, tarn__f64v, v, TIMES);
    TARN__VEC_REDUCE(double, tarn__f64v, product, v[0], PRODUCT);
    for (; i < n; i++)
        product *= (double)x[i];
    /* No zero, no NaN: the usual case, decided after one pass. */
    if (product != 0 && product == product) {
        a->real *= product;
        return;
    }
    double x64[TARN__PIECE];
    for (i = 0; i < n; i++)
        x64[i] = (double)x[i];
    row_nonzero(a, b, x64, n, at, aux);
}

#endif

static void init_nonzero(tarn__columns *columns, int64_t width)
{
    double *product = (double *)(void *)columns->first, *zeros = (double *)(void *)columns->second;
    for (int64_t c = 0; c < width; c++) {
        product[c] = 1;
        zeros[c] = 0;
    }
}

/* Columns of f64 accumulators directly: products would overflow f32. */
#define COLUMNS_NONZERO(name, T) \
    static void columns_##name(tarn__columns *columns, const void *const *row, int rows, int64_t width, int64_t at, \
                               const void *aux) \
    { \
        double *restrict product = (double *)(void *)columns->first, *restrict zeros = \
                                                                         (double *)(void *)columns->second; \
        (void)at, (void)aux; \
        for (int r = 0; r < rows; r++) { \
            const T *x = row[r]; \
            for (int64_t c = 0; c < width; c++) { \
                double value = (double)x[c]; \
                product[c] *= value == 0 ? 1 : value; \
                zeros[c] += value == 0 ? 1 : 0; \
            } \
        } \
    }
COLUMNS_NONZERO(nonzero, double)
#if defined(__aarch64__)
COLUMNS_NONZERO(nonzero_f32, float)
#define FROM_F32 .other = TARN_F32, .add_row_other = row_nonzero_f32, .add_columns_other = columns_nonzero_f32
#else
#define FROM_F32 .other = TARN_F64
#endif

static void read_nonzero(const tarn__columns *columns, int64_t width, tarn__acc *const *state)
{
    memcpy(state[0], columns->first, sizeof(tarn__acc) * (size_t)width);
    memcpy(state[1], columns->second, sizeof(tarn__acc) * (size_t)width);
}

/* Products multiply, counts add. */
static void merge_nonzero(tarn__acc *const *a, const tarn__acc *const *b, int64_t width, int64_t count_a,
                          int64_t count_b)
{
    (void)count_a, (void)count_b;
    for (int64_t c = 0; c < width; c++) {
        a[0][c].real *= b[0][c].real;
        a[1][c].real += b[1][c].real;
    }
}

static const tarn__reducer nonzero_reducer = {.compute = COMPUTE_F64,
                                              .parts = 2,
                                              .joins_rows = true,
                                              .start = {{.real = 1}, {.real = 0}},
                                              .add_row = row_nonzero,
                                              .init_columns = init_nonzero,
                                              .add_columns = columns_nonzero,
                                              .read_columns = read_nonzero,
                                              .merge = merge_nonzero,
                                              FROM_F32};

/* ---- the pass over x --------------------------------------------------------------------------------------------- */

/* in: x, g, product of nonzero elements, number of zeros. */
static void tile_prod_grad(int64_t n, const void *const *in, void *const *out, const tarn__elementwise *params)
{
    const double *x = in[0], *g = in[1], *product = in[2], *zeros = in[3];
    double *y = out[0];
    (void)params;
    TARN__INDEPENDENT
    for (int64_t i = 0; i < n; i++) {
        double others = zeros[i] == 0 ? product[i] / x[i] : zeros[i] == 1 && x[i] == 0 ? product[i] : 0;
        y[i] = g[i] * others;
    }
}

/* to = g · product / x, where no x is 0. */
static void divide_row(float *to, const float *x, double g, double product, int64_t n)
{
    int64_t i = 0;
#if defined(__aarch64__)
    /* Two Newton steps from an estimate of 1 / x give 32 bits, in less time than a division. */
    for (; i + 4 <= n; i += 4) {
        float32x2_t half[2];
        for (int k = 0; k < 2; k++) {
            float64x2_t d = vcvt_f64_f32(vld1_f32(x + i + 2 * k)), r = vrecpeq_f64(d);
            r = r * vrecpsq_f64(d, r);
            r = r * vrecpsq_f64(d, r);
            half[k] = vcvt_f32_f64(r * product * g);
        }
        vst1q_f32(to + i, vcombine_f32(half[0], half[1]));
    }
#endif
    for (; i < n; i++)
        to[i] = (float)(g * (product / (double)x[i]));
}

/* The same for a contiguous row, with one g, product and zero count. */
static void dense_prod_grad(char *const *at, int64_t n)
{
    float *to = (float *)(void *)at[0];
    const float *x = (const float *)(const void *)at[1];
    double g = (double)*(const float *)(const void *)at[2], product = *(const double *)(const void *)at[3];
    double zeros = *(const double *)(const void *)at[4];
    if (zeros == 0) {
        divide_row(to, x, g, product, n);
        return;
    }
    float only_zero = (float)(g * (zeros == 1 ? product : 0)), other = (float)(g * 0);
    for (int64_t i = 0; i < n; i++)
        to[i] = x[i] == 0 ? only_zero : other;
}

/* The products, in scratch: f64, in g's shape. */
static tarn__view products_view(const tarn__call *call, void *memory)
{
    tarn__view view = *call->in[1];
    view.memory = memory;
    view.offset = 0;
    view.dtype = TARN_F64;
    tarn__view_set_row_major(&view);
    return view;
}

/* Scratch: products, zero counts, then the reduction's own. */
static tarn__plan_status prepare_prod_grad(const tarn__call *call, tarn__plan *plan)
{
    tarn__reduction *r = tarn__plan_reserve(plan, sizeof(*r));
    tarn__view products = products_view(call, NULL);
    if (!r)
        return TARN__PLAN_FAILED;
    plan->scratch_bytes = 2 * sizeof(double) * (size_t)tarn__view_count(&products) +
                          TARN__AT_LEVEL(tarn__describe_reduction)(r, &nonzero_reducer, call->in[0], &products, NULL);
    return TARN__PLAN_READY;
}

/* With one zero in a slice only that element has a gradient; with two, none. */
static void kernel_prod_grad(const tarn__call *call)
{
    tarn__view products = products_view(call, call->scratch), zeros = products;
    zeros.offset = tarn__view_count(&products);
    tarn__reduction_operands operands = {.x = call->in[0],
                                         .y = &products,
                                         .second = tarn__view_at(&zeros),
                                         .scratch = (double *)call->scratch + 2 * zeros.offset};
    TARN__AT_LEVEL(tarn__run_reduction)(tarn__plan_job(call->plan), &operands);
    grad_rows rows;
    if (call->in[0]->dtype == TARN_F32 &&
        grad_rows_make(&rows, 5, (const tarn__view *[]){call->out[0], call->in[0], call->in[1], &products, &zeros})) {
        grad_rows_run(&rows, dense_prod_grad);
        return;
    }
    tarn__elementwise none = {0};
    tarn__call tiles = {.inputs = 4,
                        .outputs = 1,
                        .in = {call->in[0], call->in[1], &products, &zeros},
                        .out = {call->out[0]},
                        .params = &none};
    TARN__AT_LEVEL(tarn__run_tiles)(&tiles, &(tarn__tile_job){.tile = tile_prod_grad, .compute = COMPUTE_F64});
}

void TARN__AT_LEVEL(tarn__cpu_register_prod_grad)(tarn__kernel_row *rows)
{
    rows[TARN__K_prod_grad] = tarn__row_planned(prepare_prod_grad, kernel_prod_grad, TARN__FLOATS);
}
