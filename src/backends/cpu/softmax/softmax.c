/* softmax.c: softmax and log_softmax along one axis, and their gradients.
 *
 * Where the axis lies along memory, or nothing else does, a row is read, its largest element and its sum of
 * exponentials are found, and the result written, all while it is in the cache. Where another axis lies along memory, a
 * tile of neighbouring columns is taken down the axis together, with a maximum and a sum for each; a tile may be larger
 * than the cache, so both are found in one pass over it, the sum scaled down whenever the maximum rises. A row with an
 * infinity of the wrong sign, or with nothing but -infinity, becomes NaN by arithmetic.
 *
 * Gradients work from the result y, or from x, where y was rounded to 16 bits: then they make it again. */
#include "backends/cpu/common/rows.h"
#include "backends/cpu/softmax/exp_sum.h"

#define HELD 8192 /* exponentials of a 16-bit row that are kept rather than computed twice */
#define MAX_COLUMNS 256
#define COLUMN_LINES 16 /* lines of a tile of columns that stay in the first-level cache between maximum and sum */
#define ENOUGH_TILES 6

/* What is done to blocks of one type. All numbers between passes are f64. */
typedef struct maths {
    int64_t size;
    double (*most)(const void *x, int64_t n);
    double (*exps)(const void *x, void *y, int64_t n, double most); /* y = exp(x - most); gives the sum */
    void (*scale)(const void *x, void *y, int64_t n, double factor);
    void (*logs)(const void *x, void *y, int64_t n, double most, double log_sum); /* y = x - most - log_sum */
    double (*sum)(const void *x, int64_t n);
    double (*dot)(const void *x, const void *y, int64_t n);
    void (*grad)(const void *y, const void *g, void *gx, int64_t n, double dot);
    /* grad(), and dot() of the next row with the same bits, where is_exact(dot); NULL where rows do not go ahead. */
    double (*grad_ahead)(const void *y, const void *g, void *gx, double dot, const void *next_y, const void *next_g,
                         int64_t n);
    bool (*is_exact)(double dot);
    void (*log_grad)(const void *y, const void *g, void *gx, int64_t n, double sum);
    /* The same for columns: a maximum and a sum for each. */
    void (*column_most)(const void *x, void *most, int64_t n);
    /* most becomes risen; sum is for the new one */
    void (*column_shift)(double *sum, void *most, void *risen, void *shift, int64_t n);
    void (*column_exps)(const void *x, void *part, const void *shift, int64_t n); /* part += exp(x - shift) */
    void (*column_add)(double *sum, const void *part, int64_t n);
    void (*column_softmax)(const void *x, void *y, const void *most, const double *factor, int64_t n);
    void (*column_logs)(const void *x, void *y, const void *most, const double *log_sum, int64_t n);
    void (*column_dot)(const void *y, const void *g, double *sum, int64_t n);
    void (*column_sum)(const void *y, const void *g, double *sum, int64_t n);
    void (*column_grad)(const void *y, const void *g, void *gx, const double *dot, int64_t n);
    void (*column_log_grad)(const void *y, const void *g, void *gx, const double *sum, int64_t n);
} maths;

#define EACH TARN__INDEPENDENT for (int64_t i = 0; i < n; i++)

/* A sum of gradients so large, infinite or NaN that its product with an exponential below the range of f32 still
 * counts. */
static inline int is_extreme(double sum)
{
    return !(fabs(sum) < 0x1p64);
}

#if defined(__aarch64__)
#define DOT_LANES 16
#else
#define DOT_LANES 8
#endif

/* gx = g - e^y · sum; gx may be y. */
static void less_exps_f64(const double *y, const double *g, double *gx, int64_t n, double sum)
{
    EACH gx[i] = g[i] - tarn__exp_f64(y[i]) * sum;
}

#if TARN__VEC_LANES == 4

static void less_exps_f32(const float *y, const float *g, float *gx, int64_t n, float sum)
{
    int64_t i = 0;
    for (; i + TOGETHER * TARN__VEC_LANES <= n; i += TOGETHER * TARN__VEC_LANES) {
        vec x[TOGETHER], e[TOGETHER];
        for (int k = 0; k < TOGETHER; k++)
            x[k] = vec_load(y + i + k * TARN__VEC_LANES);
        exps_below_one(x, e);
        for (int k = 0; k < TOGETHER; k++)
            vec_store(gx + i + k * TARN__VEC_LANES, vec_load(g + i + k * TARN__VEC_LANES) - e[k] * vec_set(sum));
    }
    for (int64_t here; i < n; i += here) {
        here = n - i < TARN__VEC_LANES ? n - i : TARN__VEC_LANES;
        vec e = exp_below_one(vec_load_n(y + i, here));
        vec_store_n(gx + i, vec_load_n(g + i, here) - e * vec_set(sum), here);
    }
}

#else

static void less_exps_f32(const float *y, const float *g, float *gx, int64_t n, float sum)
{
    EACH gx[i] = g[i] - tarn__exp_f32(y[i]) * sum;
}

#endif

#define T float
#define EXP tarn__exp_f32
#define NAMED(x) x##_f32
#include "backends/cpu/softmax/softmax_row.inc"

#define T double
#define EXP tarn__exp_f64
#define NAMED(x) x##_f64
#include "backends/cpu/softmax/softmax_row.inc"

/* ---- rows: operand 0 is the output ------------------------------------------------------------------------------- */

typedef struct job {
    row_set r;
    const maths *maths;
    int64_t columns; /* of a tile */
    bool log, from_x;
} job;

#define EACH_BLOCK(begin, n, length) \
    for (int64_t begin = 0, n; begin < (length) && (n = (length)-begin < BLOCK ? (length)-begin : BLOCK, true); \
         begin += BLOCK)

/* The largest element of a row of operand 1, and the sum of exponentials relative to it. They are put to `exps` where
 * that is not NULL, at their places in a row of operand 0 where it can hold them. */
static double sum_row(const job *j, const char *in, char *out, char *exps, char *buffer, double *sum)
{
    const row_set *r = &j->r;
    const maths *m = j->maths;
    double most = -(double)INFINITY;
    EACH_BLOCK(begin, n, r->length)
    {
        double here = m->most(fetch(r, 1, in, begin, n, buffer), n);
        most = here > most ? here : most;
    }
    *sum = 0;
    EACH_BLOCK(begin, n, r->length)
    {
        void *to = !exps ? buffer : out ? place(r, 0, out, begin, exps + begin * m->size) : exps + begin * m->size;
        *sum += m->exps(fetch(r, 1, in, begin, n, buffer), to, n, most);
    }
    return most;
}

static void softmax_row(const job *j, int64_t row, char *buffer, char *held)
{
    const row_set *r = &j->r;
    const maths *m = j->maths;
    const char *in = row_at(r, 1, row);
    char *out = row_at(r, 0, row);
    bool keep = !j->log && (is_native(r, 0) || r->length <= HELD);
    double sum, most = sum_row(j, in, out, keep ? held : NULL, buffer, &sum), log_sum = j->log ? log(sum) : 0;
    EACH_BLOCK(begin, n, r->length)
    {
        char *to = place(r, 0, out, begin, keep ? held + begin * m->size : buffer);
        if (j->log) {
            m->logs(fetch(r, 1, in, begin, n, buffer), to, n, most, log_sum);
        } else {
            if (!keep)
                m->exps(fetch(r, 1, in, begin, n, buffer), to, n, most);
            m->scale(to, to, n, 1 / sum);
        }
        put_back(r, 0, out, begin, n, to);
    }
}

static void softmax_rows(int64_t begin, int64_t end, void *ctx)
{
    const job *j = ctx;
    _Alignas(64) char buffer[BLOCK * 8], held[HELD * 8];
    for (; begin < end; begin++)
        softmax_row(j, begin, buffer, held);
}

/* The row that a gradient works from: y itself, or x and what makes y of it. */
typedef struct kept_row {
    const char *row;
    double most, sum, log_sum;
    const char *y; /* all of it, made again; NULL: block by block */
} kept_row;

static kept_row keep_row(const job *j, int64_t row, char *buffer, char *held)
{
    kept_row k = {.row = row_at(&j->r, 1, row)};
    if (!j->from_x)
        return k;
    bool keep = !j->log && j->r.length <= HELD;
    k.most = sum_row(j, k.row, NULL, keep ? held : NULL, buffer, &k.sum);
    k.log_sum = j->log ? log(k.sum) : 0;
    if (keep) {
        j->maths->scale(held, held, j->r.length, 1 / k.sum);
        k.y = held;
    }
    return k;
}

static const void *result_at(const job *j, const kept_row *k, int64_t begin, int64_t n, char *buffer)
{
    const maths *m = j->maths;
    if (k->y)
        return k->y + begin * m->size;
    const void *there = fetch(&j->r, 1, k->row, begin, n, buffer);
    if (!j->from_x)
        return there;
    if (j->log) {
        m->logs(there, buffer, n, k->most, k->log_sum);
    } else {
        m->exps(there, buffer, n, k->most);
        m->scale(buffer, buffer, n, 1 / k->sum);
    }
    return buffer;
}

static void grad_row(const job *j, int64_t row, char *y_buffer, char *g_buffer, char *held)
{
    const row_set *r = &j->r;
    const maths *m = j->maths;
    const char *g = row_at(r, 2, row);
    char *gx = row_at(r, 0, row);
    kept_row y = keep_row(j, row, y_buffer, held);
    double sum = 0;
    EACH_BLOCK(begin, n, r->length)
    {
        const void *there = fetch(r, 2, g, begin, n, g_buffer);
        sum += j->log ? m->sum(there, n) : m->dot(result_at(j, &y, begin, n, y_buffer), there, n);
    }
    EACH_BLOCK(begin, n, r->length)
    {
        const void *from = result_at(j, &y, begin, n, y_buffer);
        void *to = place(r, 0, gx, begin, y_buffer);
        (j->log ? m->log_grad : m->grad)(from, fetch(r, 2, g, begin, n, g_buffer), to, n, sum);
        put_back(r, 0, gx, begin, n, to);
    }
}

/* A row is written while the dot product of the next one is found: memory is read and written at the same time. */
static void grad_rows_ahead(const job *j, int64_t row, int64_t end)
{
    const row_set *r = &j->r;
    const maths *m = j->maths;
    const char *y = row_at(r, 1, row), *g = row_at(r, 2, row);
    double dot = m->dot(y, g, r->length);
    for (const char *next_y = NULL, *next_g = NULL; row < end; row++, y = next_y, g = next_g) {
        char *gx = row_at(r, 0, row);
        bool more = row + 1 < end;
        if (more)
            next_y = row_at(r, 1, row + 1), next_g = row_at(r, 2, row + 1);
        if (more && m->is_exact(dot)) {
            dot = m->grad_ahead(y, g, gx, dot, next_y, next_g, r->length);
            continue;
        }
        m->grad(y, g, gx, r->length, dot);
        if (more)
            dot = m->dot(next_y, next_g, r->length);
    }
}

static void grad_rows(int64_t begin, int64_t end, void *ctx)
{
    const job *j = ctx;
    _Alignas(64) char y_buffer[BLOCK * 8], g_buffer[BLOCK * 8], held[HELD * 8];
    if (GOES_AHEAD && !j->log && !j->from_x && j->r.length <= BLOCK && is_native(&j->r, 0) && is_native(&j->r, 1) &&
        is_native(&j->r, 2)) {
        grad_rows_ahead(j, begin, end);
        return;
    }
    for (; begin < end; begin++)
        grad_row(j, begin, y_buffer, g_buffer, held);
}

#include "backends/cpu/softmax/softmax_columns.inc"

/* ---- kernels ----------------------------------------------------------------------------------------------------- */

static void run(const tarn__call *call, bool log, int operands, tarn__range_fn by_rows, tarn__range_fn by_columns)
{
    const tarn__along *params = call->params;
    const tarn__view *views[] = {call->out[0], call->in[0], operands > 2 ? call->in[1] : NULL};
    job j = {.log = log, .from_x = params->from_x};
    rows_make(&j.r, params->axis, operands, views);
    if (j.r.count == 0)
        return;
    j.maths = j.r.compute == COMPUTE_F64 ? &maths_f64 : &maths_f32;
    int last = j.r.nest.rank - 1;
    bool beside = last >= 0 && j.r.nest.shape[last] >= 8 && j.r.nest.stride[1][last] == 1 && j.r.operand[1].along != 1;
    if (!beside || j.r.length == 1) {
        tarn__parallel_for(j.r.count, rows_grain(&j.r), by_rows, &j);
        return;
    }
    int64_t inner = j.r.nest.shape[last], outer = j.r.count / inner;
    j.columns = MAX_COLUMNS;
    while (j.columns > 64 && outer * ((inner + j.columns - 1) / j.columns) < ENOUGH_TILES)
        j.columns /= 2;
    int64_t work = j.r.length * j.columns;
    tarn__parallel_for(outer * ((inner + j.columns - 1) / j.columns), (ROWS_GRAIN + work - 1) / work, by_columns, &j);
}

static void kernel_softmax(const tarn__call *call)
{
    run(call, false, 2, softmax_rows, softmax_columns);
}

static void kernel_log_softmax(const tarn__call *call)
{
    run(call, true, 2, softmax_rows, softmax_columns);
}

static void kernel_softmax_grad(const tarn__call *call)
{
    run(call, false, 3, grad_rows, grad_columns);
}

static void kernel_log_softmax_grad(const tarn__call *call)
{
    run(call, true, 3, grad_rows, grad_columns);
}

void TARN__AT_LEVEL(tarn__cpu_softmax)(tarn__kernel_row *rows)
{
    rows[TARN__K_softmax] = (tarn__kernel_row){kernel_softmax, TARN__FLOATS, NULL};
    rows[TARN__K_log_softmax] = (tarn__kernel_row){kernel_log_softmax, TARN__FLOATS, NULL};
    rows[TARN__K_softmax_grad] = (tarn__kernel_row){kernel_softmax_grad, TARN__FLOATS, NULL};
    rows[TARN__K_log_softmax_grad] = (tarn__kernel_row){kernel_log_softmax_grad, TARN__FLOATS, NULL};
}
