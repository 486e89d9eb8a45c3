/* softmax.c: softmax and log_softmax along one axis, and their gradients.
 *
 * By rows, where the axis is contiguous or no other axis is: a row is read, its max and sum of exponentials found, and
 * the result written while it is in cache. By columns (softmax_columns.inc), where another axis is contiguous: a tile
 * of neighboring columns goes down the axis together, in one online pass with a running max and sum per column. A row
 * with an infinity of the wrong sign, or only -infinity, becomes NaN by arithmetic.
 *
 * Gradients use the result y; or x, where y was rounded to 16 bits: then y is recomputed. */
#include "backends/cpu/common/rows.h"
#include "backends/cpu/softmax/exp_sum.h"

#define MAX_EXPS 8192 /* exponentials of a 16-bit row kept in a buffer instead of computed twice */
#define MAX_COLUMNS 256
#define COLUMN_LINES 16 /* lines of a tile of columns that stay in L1 between max and sum */
#define ENOUGH_TILES 6

/* Operations on blocks of one type. Values between passes are f64. */
typedef struct block_ops {
    int64_t size;
    double (*max)(const void *x, int64_t n);
    double (*exps)(const void *x, void *y, int64_t n, double max); /* y = exp(x - max); returns the sum */
    void (*scale)(const void *x, void *y, int64_t n, double factor);
    void (*logs)(const void *x, void *y, int64_t n, double max, double log_sum); /* y = x - max - log_sum */
    double (*sum)(const void *x, int64_t n);
    double (*dot)(const void *x, const void *y, int64_t n);
    void (*grad)(const void *y, const void *g, void *gx, int64_t n, double dot);
    /* grad() of a row and dot() of the next, bitwise identical, where is_exact(dot); NULL where rows are not
     * pipelined. */
    double (*grad_pipelined)(const void *y, const void *g, void *gx, double dot, const void *next_y, const void *next_g,
                             int64_t n);
    bool (*is_exact)(double dot);
    void (*log_grad)(const void *y, const void *g, void *gx, int64_t n, double sum);
    /* The same for columns: a max and a sum per column. */
    void (*column_max)(const void *x, void *max, int64_t n);
    /* max becomes new_max; sum is rescaled to it */
    void (*column_shift)(double *sum, void *max, void *new_max, void *shift, int64_t n);
    void (*column_exps)(const void *x, void *part, const void *shift, int64_t n); /* part += exp(x - shift) */
    void (*column_add)(double *sum, const void *part, int64_t n);
    void (*column_softmax)(const void *x, void *y, const void *max, const double *factor, int64_t n);
    void (*column_logs)(const void *x, void *y, const void *max, const double *log_sum, int64_t n);
    void (*column_dot)(const void *y, const void *g, double *sum, int64_t n);
    void (*column_sum)(const void *y, const void *g, double *sum, int64_t n);
    void (*column_grad)(const void *y, const void *g, void *gx, const double *dot, int64_t n);
    void (*column_log_grad)(const void *y, const void *g, void *gx, const double *sum, int64_t n);
} block_ops;

#define EACH TARN__INDEPENDENT for (int64_t i = 0; i < n; i++)

/* A gradient sum so large, infinite or NaN that its product with an exponential below f32's range still matters. */
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
static void sub_exps_f64(const double *y, const double *g, double *gx, int64_t n, double sum)
{
    EACH gx[i] = g[i] - tarn__exp_f64(y[i]) * sum;
}

#if TARN__VEC_LANES == 4

/* AArch64: hand-written vectors, with the range check of exp_sum.h. */
static void sub_exps_f32(const float *y, const float *g, float *gx, int64_t n, float sum)
{
    int64_t i = 0;
    for (; i + EXPS_PER_STEP * TARN__VEC_LANES <= n; i += EXPS_PER_STEP * TARN__VEC_LANES) {
        vec x[EXPS_PER_STEP], e[EXPS_PER_STEP];
        for (int k = 0; k < EXPS_PER_STEP; k++)
            x[k] = vec_load(y + i + k * TARN__VEC_LANES);
        vec_exps_le_0(x, e);
        for (int k = 0; k < EXPS_PER_STEP; k++)
            vec_store(gx + i + k * TARN__VEC_LANES, vec_load(g + i + k * TARN__VEC_LANES) - e[k] * vec_set(sum));
    }
    for (int64_t here; i < n; i += here) {
        here = n - i < TARN__VEC_LANES ? n - i : TARN__VEC_LANES;
        vec e = vec_exp_le_0(vec_load_n(y + i, here));
        vec_store_n(gx + i, vec_load_n(g + i, here) - e * vec_set(sum), here);
    }
}

#else

/* Other levels: the compiler vectorizes tarn__exp_f32(). */
static void sub_exps_f32(const float *y, const float *g, float *gx, int64_t n, float sum)
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

/* One call. from_x: gradients recompute y from x, which operand 1 then is. */
typedef struct job {
    row_set r;
    const block_ops *block_ops;
    int64_t columns; /* columns per tile */
    bool log, from_x;
} job;

/* Walks a row in blocks: `n` elements from `begin`. */
#define EACH_BLOCK(begin, n, length) \
    for (int64_t begin = 0, n; begin < (length) && (n = (length)-begin < BLOCK ? (length)-begin : BLOCK, true); \
         begin += BLOCK)

/* Max of a row of operand 1, and its sum of exponentials. The exponentials go to `exps`, if not NULL: into the
 * output row itself where that has the compute type. */
static double sum_row(const job *j, const char *in, char *out, char *exps, char *buffer, double *sum)
{
    const row_set *r = &j->r;
    const block_ops *m = j->block_ops;
    double max = -(double)INFINITY;
    EACH_BLOCK(begin, n, r->length)
    {
        double here = m->max(fetch(r, 1, in, begin, n, buffer), n);
        max = here > max ? here : max;
    }
    *sum = 0;
    EACH_BLOCK(begin, n, r->length)
    {
        void *to = !exps ? buffer : out ? block_out(r, 0, out, begin, exps + begin * m->size) : exps + begin * m->size;
        *sum += m->exps(fetch(r, 1, in, begin, n, buffer), to, n, max);
    }
    return max;
}

/* Native outputs hold the exponentials themselves; 16-bit rows up to MAX_EXPS keep them in a buffer, longer ones
 * compute them twice. */
static void softmax_row(const job *j, int64_t row, char *buffer, char *exps_buffer)
{
    const row_set *r = &j->r;
    const block_ops *m = j->block_ops;
    const char *in = row_at(r, 1, row);
    char *out = row_at(r, 0, row);
    /* Exponentials are kept in the output itself where it has the compute type. */
    bool keeps_exps = !j->log && (is_in_place(r, 0) || r->length <= MAX_EXPS);
    double sum, max = sum_row(j, in, out, keeps_exps ? exps_buffer : NULL, buffer, &sum),
                log_sum = j->log ? log(sum) : 0;
    EACH_BLOCK(begin, n, r->length)
    {
        char *to = block_out(r, 0, out, begin, keeps_exps ? exps_buffer + begin * m->size : buffer);
        if (j->log) {
            m->logs(fetch(r, 1, in, begin, n, buffer), to, n, max, log_sum);
        } else {
            if (!keeps_exps)
                m->exps(fetch(r, 1, in, begin, n, buffer), to, n, max);
            m->scale(to, to, n, 1 / sum);
        }
        store_back(r, 0, out, begin, n, to);
    }
}

/* A task: 72 KiB of stack for a block and the kept exponentials. */
static void softmax_rows(int64_t begin, int64_t end, void *ctx)
{
    const job *j = ctx;
    _Alignas(64) char buffer[BLOCK * 8], exps_buffer[MAX_EXPS * 8];
    for (; begin < end; begin++)
        softmax_row(j, begin, buffer, exps_buffer);
}

/* Where a gradient gets y from: y itself, or x with the statistics to recompute it. */
typedef struct grad_source {
    const char *row;
    double max, sum, log_sum;
    const char *y; /* the whole row, recomputed; NULL: block by block */
} grad_source;

/* Prepares a row for its gradient: nothing where y is given. */
static grad_source recompute_row(const job *j, int64_t row, char *buffer, char *exps_buffer)
{
    grad_source k = {.row = row_at(&j->r, 1, row)};
    if (!j->from_x)
        return k;
    bool keeps_exps = !j->log && j->r.length <= MAX_EXPS;
    k.max = sum_row(j, k.row, NULL, keeps_exps ? exps_buffer : NULL, buffer, &k.sum);
    k.log_sum = j->log ? log(k.sum) : 0;
    if (keeps_exps) {
        j->block_ops->scale(exps_buffer, exps_buffer, j->r.length, 1 / k.sum);
        k.y = exps_buffer;
    }
    return k;
}

/* n elements of y from `begin`, in the compute type. */
static const void *result_at(const job *j, const grad_source *k, int64_t begin, int64_t n, char *buffer)
{
    const block_ops *m = j->block_ops;
    if (k->y)
        return k->y + begin * m->size;
    const void *x_block = fetch(&j->r, 1, k->row, begin, n, buffer);
    if (!j->from_x)
        return x_block;
    if (j->log) {
        m->logs(x_block, buffer, n, k->max, k->log_sum);
    } else {
        m->exps(x_block, buffer, n, k->max);
        m->scale(buffer, buffer, n, 1 / k->sum);
    }
    return buffer;
}

/* softmax: gx = y · (g - Σ y g). log_softmax: gx = g - e^y · Σ g. Two passes over the row, the second from cache. */
static void grad_row(const job *j, int64_t row, char *y_buffer, char *g_buffer, char *exps_buffer)
{
    const row_set *r = &j->r;
    const block_ops *m = j->block_ops;
    const char *g = row_at(r, 2, row);
    char *gx = row_at(r, 0, row);
    grad_source y = recompute_row(j, row, y_buffer, exps_buffer);
    double sum = 0;
    EACH_BLOCK(begin, n, r->length)
    {
        const void *g_block = fetch(r, 2, g, begin, n, g_buffer);
        sum += j->log ? m->sum(g_block, n) : m->dot(result_at(j, &y, begin, n, y_buffer), g_block, n);
    }
    EACH_BLOCK(begin, n, r->length)
    {
        const void *from = result_at(j, &y, begin, n, y_buffer);
        void *to = block_out(r, 0, gx, begin, y_buffer);
        (j->log ? m->log_grad : m->grad)(from, fetch(r, 2, g, begin, n, g_buffer), to, n, sum);
        store_back(r, 0, gx, begin, n, to);
    }
}

/* Software pipelining: a row is written while the dot product of the next one is read. */
static void grad_rows_pipelined(const job *j, int64_t row, int64_t end)
{
    const row_set *r = &j->r;
    const block_ops *m = j->block_ops;
    const char *y = row_at(r, 1, row), *g = row_at(r, 2, row);
    double dot = m->dot(y, g, r->length);
    for (const char *next_y = NULL, *next_g = NULL; row < end; row++, y = next_y, g = next_g) {
        char *gx = row_at(r, 0, row);
        bool more = row + 1 < end;
        if (more)
            next_y = row_at(r, 1, row + 1), next_g = row_at(r, 2, row + 1);
        if (more && m->is_exact(dot)) {
            dot = m->grad_pipelined(y, g, gx, dot, next_y, next_g, r->length);
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
    _Alignas(64) char y_buffer[BLOCK * 8], g_buffer[BLOCK * 8], exps_buffer[MAX_EXPS * 8];
    if (PIPELINES_ROWS && !j->log && !j->from_x && j->r.length <= BLOCK && is_in_place(&j->r, 0) &&
        is_in_place(&j->r, 1) && is_in_place(&j->r, 2)) {
        grad_rows_pipelined(j, begin, end);
        return;
    }
    for (; begin < end; begin++)
        grad_row(j, begin, y_buffer, g_buffer, exps_buffer);
}

#include "backends/cpu/softmax/softmax_columns.inc"

/* ---- kernels ----------------------------------------------------------------------------------------------------- */

/* Chooses rows or columns by the strides of operand 1, and tiles narrow enough for ENOUGH_TILES tasks: by shape
 * alone. */
static void run(const tarn__call *call, bool log, int operands, tarn__range_fn by_rows, tarn__range_fn by_columns)
{
    const tarn__along *params = call->params;
    const tarn__view *views[] = {call->out[0], call->in[0], operands > 2 ? call->in[1] : NULL};
    job j = {.log = log, .from_x = params->from_x};
    rows_make(&j.r, params->axis, operands, views);
    if (j.r.count == 0)
        return;
    j.block_ops = j.r.compute == COMPUTE_F64 ? &block_ops_f64 : &block_ops_f32;
    int last = j.r.nest.rank - 1;
    bool runs_by_columns =
        last >= 0 && j.r.nest.shape[last] >= 8 && j.r.nest.stride[1][last] == 1 && j.r.operand[1].stride != 1;
    if (!runs_by_columns || j.r.length == 1) {
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

/* One read and one write of memory per element, for rows that fit the caches; about 20 operations, most of them the
 * exponential. */
static void kernel_softmax(const tarn__call *call)
{
    run(call, false, 2, softmax_rows, softmax_columns);
}

static void kernel_log_softmax(const tarn__call *call)
{
    run(call, true, 2, softmax_rows, softmax_columns);
}

/* Reads y (or x) and g, writes gx. */
static void kernel_softmax_grad(const tarn__call *call)
{
    run(call, false, 3, grad_rows, grad_columns);
}

static void kernel_log_softmax_grad(const tarn__call *call)
{
    run(call, true, 3, grad_rows, grad_columns);
}

void TARN__AT_LEVEL(tarn__cpu_register_softmax)(tarn__kernel_row *rows)
{
    rows[TARN__K_softmax] = tarn__row(kernel_softmax, TARN__FLOATS);
    rows[TARN__K_log_softmax] = tarn__row(kernel_log_softmax, TARN__FLOATS);
    rows[TARN__K_softmax_grad] = tarn__row(kernel_softmax_grad, TARN__FLOATS);
    rows[TARN__K_log_softmax_grad] = tarn__row(kernel_log_softmax_grad, TARN__FLOATS);
}
