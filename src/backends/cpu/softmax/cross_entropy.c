/* cross_entropy.c: cross entropy of rows of logits, and its gradient with respect to them: forward, gradient from a
 * saved logsumexp (LSE), and both in one kernel while the row is in cache.
 *
 * loss = LSE - logit[target], mixed with the mean over all classes by label smoothing; ignored rows have loss and
 * gradient 0. Logits are (rows, classes); target, loss, LSE and the gradient of the loss have one element per row. */
#include "backends/cpu/common/rows.h"
#include "backends/cpu/softmax/exp_sum.h"

#define EACH TARN__INDEPENDENT for (int64_t i = 0; i < n; i++)
#define EACH_BLOCK(begin, n, length) \
    for (int64_t begin = 0, n; begin < (length) && (n = (length)-begin < BLOCK ? (length)-begin : BLOCK, true); \
         begin += BLOCK)

/* Operations on blocks of one type. */
typedef struct block_ops {
    double (*max)(const void *x, int64_t n);
    double (*sum)(const void *x, int64_t n);
    double (*exps)(const void *x, void *y, int64_t n, double max);           /* y = exp(x - max); returns the sum */
    void (*grads)(void *y, int64_t n, double factor, double less, double g); /* y = (y · factor - less) · g */
} block_ops;

/* For one type T. */
#define BLOCKS(T, type) \
    static double max_##type(const void *x, int64_t n) \
    { \
        return (double)block_max_##type(x, n); \
    } \
    static double sum_##type(const void *x, int64_t n) \
    { \
        return block_sum_##type(x, n); \
    } \
    static void grads_##type(void *in_place, int64_t n, double factor, double less, double scale) \
    { \
        T *y = in_place, f = (T)factor, l = (T)less, g = (T)scale; \
        EACH y[i] = (y[i] * f - l) * g; \
    } \
    static const block_ops block_ops_##type = {max_##type, sum_##type, exp_sum_##type, grads_##type};

BLOCKS(float, f32)
BLOCKS(double, f64)

/* operands of the three kernels; each uses some of them */
enum { LOGITS, TARGET, LOSS, LSE, GRADIENT, LOGITS_GRAD, OPERANDS };

/* One call. Borrows views and params. */
typedef struct job {
    row_set r;
    const block_ops *block_ops;
    const tarn__cross_entropy *params;
} job;

/* Class index of a row, from any integer dtype. */
static int64_t target_of(const job *j, int64_t row)
{
    int64_t target;
    tarn__load[j->r.operand[TARGET].dtype][COMPUTE_I64](row_at(&j->r, TARGET, row), 1, &target, 1);
    return target;
}

/* A target outside the classes was reported; its row counts as ignored. */
static bool is_counted(const job *j, int64_t target)
{
    return !(j->params->has_ignore && target == j->params->ignore) && target >= 0 && target < j->r.length;
}

/* One element as f64. */
static double load_scalar(const job *j, int k, const char *from)
{
    double value;
    tarn__load[j->r.operand[k].dtype][COMPUTE_F64](from, 1, &value, 1);
    return value;
}

/* One element from f64; nothing where the output is absent. */
static void store_row_scalar(const job *j, int k, char *to, double value)
{
    if (to)
        tarn__store[j->r.operand[k].dtype][COMPUTE_F64](&value, to, 1, 1);
}

/* Address of element `at` of a row. */
static char *element_of(const job *j, int k, char *row, int64_t at)
{
    return row + at * j->r.operand[k].stride * j->r.operand[k].size;
}

/* ---- loss -------------------------------------------------------------------------------------------------------- */

/* LSE of a row with a valid target; also its loss. */
static double measure_row(const job *j, char *in, int64_t target, char *buffer, double *loss)
{
    const row_set *r = &j->r;
    double max = -(double)INFINITY, sum = 0, all = 0, smoothing = j->params->smoothing;
    EACH_BLOCK(begin, n, r->length)
    {
        const void *x = fetch(r, LOGITS, in, begin, n, buffer);
        double here = j->block_ops->max(x, n);
        max = here > max ? here : max;
        all += smoothing > 0 ? j->block_ops->sum(x, n) : 0;
    }
    EACH_BLOCK(begin, n, r->length)
    sum += j->block_ops->exps(fetch(r, LOGITS, in, begin, n, buffer), buffer, n, max);
    /* Relative to max here; the LSE that is saved adds max back. */
    double lse = log(sum);
    *loss = lse - (load_scalar(j, LOGITS, element_of(j, LOGITS, in, target)) - max);
    if (smoothing > 0)
        *loss = (1 - smoothing) * *loss + smoothing * (lse - (all / (double)r->length - max));
    return max + lse;
}

/* Ignored rows: loss 0, LSE 0. */
static void loss_row(const job *j, int64_t row, char *buffer)
{
    const row_set *r = &j->r;
    int64_t target = target_of(j, row);
    double loss = 0, lse = is_counted(j, target) ? measure_row(j, row_at(r, LOGITS, row), target, buffer, &loss) : 0;
    store_row_scalar(j, LOSS, row_at(r, LOSS, row), loss);
    store_row_scalar(j, LSE, row_at(r, LSE, row), lse);
}

static void loss_rows(int64_t begin, int64_t end, void *ctx)
{
    _Alignas(64) char buffer[BLOCK * 8];
    for (; begin < end; begin++)
        loss_row(ctx, begin, buffer);
}

/* Checked before any thread starts, so that the first invalid target is the one reported. */
static void check_targets(const job *j, tarn__fault *fault)
{
    /* Serial, but only until the first fault; one integer per row. */
    for (int64_t row = 0; row < j->r.count && !fault->raised; row++) {
        int64_t target = target_of(j, row);
        if (is_counted(j, target) || (j->params->has_ignore && target == j->params->ignore))
            continue;
        *fault = (tarn__fault){1, fault->function, target, j->r.length};
    }
}

/* ---- gradient ---------------------------------------------------------------------------------------------------- */

/* Gradient of an ignored row. */
static void clear_row(const job *j, char *to, char *buffer)
{
    EACH_BLOCK(begin, n, j->r.length)
    {
        void *zeros = block_out(&j->r, LOGITS_GRAD, to, begin, buffer);
        memset(zeros, 0, (size_t)n * (j->r.compute == COMPUTE_F64 ? 8 : 4));
        store_back(&j->r, LOGITS_GRAD, to, begin, n, zeros);
    }
}

/* g · (softmax - smoothing / C), minus g · (1 - smoothing) at the target. LSE is subtracted as an f32 shift and a
 * correcting factor, since f32 holds only part of it. */
static void write_grad_row(const job *j, int64_t row, int64_t target, double lse, char *buffer)
{
    const row_set *r = &j->r;
    char *in = row_at(r, LOGITS, row), *to = row_at(r, LOGITS_GRAD, row);
    double g = load_scalar(j, GRADIENT, row_at(r, GRADIENT, row)) * j->params->scale;
    /* read before an in-place gradient overwrites the logits */
    double probability = exp(load_scalar(j, LOGITS, element_of(j, LOGITS, in, target)) - lse);
    double shift = r->compute == COMPUTE_F64 ? lse : (double)(float)lse,
           uniform = j->params->smoothing / (double)r->length;
    EACH_BLOCK(begin, n, r->length)
    {
        void *y = block_out(r, LOGITS_GRAD, to, begin, buffer);
        j->block_ops->exps(fetch(r, LOGITS, in, begin, n, buffer), y, n, shift);
        j->block_ops->grads(y, n, exp(shift - lse), uniform, g);
        store_back(r, LOGITS_GRAD, to, begin, n, y);
    }
    store_row_scalar(j, LOGITS_GRAD, element_of(j, LOGITS_GRAD, to, target),
                     (probability - uniform - (1 - j->params->smoothing)) * g);
}

/* From the saved LSE: the logits are read once. */
static void grad_row(const job *j, int64_t row, char *buffer)
{
    int64_t target = target_of(j, row);
    if (is_counted(j, target))
        write_grad_row(j, row, target, load_scalar(j, LSE, row_at(&j->r, LSE, row)), buffer);
    else
        clear_row(j, row_at(&j->r, LOGITS_GRAD, row), buffer);
}

static void grad_rows(int64_t begin, int64_t end, void *ctx)
{
    _Alignas(64) char buffer[BLOCK * 8];
    for (; begin < end; begin++)
        grad_row(ctx, begin, buffer);
}

/* ---- loss and gradient in one pass ------------------------------------------------------------------------------- */

/* The row is still in cache when its gradient is written. */
static void both_row(const job *j, int64_t row, char *buffer)
{
    int64_t target = target_of(j, row);
    double loss = 0;
    if (is_counted(j, target))
        write_grad_row(j, row, target, measure_row(j, row_at(&j->r, LOGITS, row), target, buffer, &loss), buffer);
    else
        clear_row(j, row_at(&j->r, LOGITS_GRAD, row), buffer);
    store_row_scalar(j, LOSS, row_at(&j->r, LOSS, row), loss);
}

static void both_rows(int64_t begin, int64_t end, void *ctx)
{
    _Alignas(64) char buffer[BLOCK * 8];
    for (; begin < end; begin++)
        both_row(ctx, begin, buffer);
}

/* ---- kernels ----------------------------------------------------------------------------------------------------- */

/* A per-row view as (rows, 1). */
static tarn__view as_column(const tarn__view *view)
{
    tarn__view column = *view;
    column.rank = 2;
    column.shape[1] = 1;
    column.stride[1] = 0;
    return column;
}

/* Shared by the three kernels: rows are described along axis 1, absent operands are NULL. The gradient alone does
 * not re-check targets: forward did. */
static void run(const tarn__call *call, const tarn__view *const *views, tarn__range_fn rows)
{
    job j = {.params = call->params};
    rows_make(&j.r, 1, OPERANDS, views);
    j.r.count = j.r.nest.count; /* rows without classes have no valid target */
    j.block_ops = j.r.compute == COMPUTE_F64 ? &block_ops_f64 : &block_ops_f32;
    if (rows != grad_rows)
        check_targets(&j, call->fault);
    tarn__parallel_for(j.r.count, rows_grain(&j.r), rows, &j);
}

/* Reads the logits twice (max, then sum), the second time from cache for rows up to a few thousand classes. */
static void kernel_cross_entropy(const tarn__call *call)
{
    tarn__view target = as_column(call->in[1]), loss = as_column(call->out[0]), lse;
    if (call->out[1])
        lse = as_column(call->out[1]);
    run(call,
        (const tarn__view *[OPERANDS]){
            [LOGITS] = call->in[0], [TARGET] = &target, [LOSS] = &loss, [LSE] = call->out[1] ? &lse : NULL},
        loss_rows);
}

/* Reads the logits once and writes their gradient, which may be in place. */
static void kernel_cross_entropy_grad(const tarn__call *call)
{
    tarn__view target = as_column(call->in[1]), lse = as_column(call->in[2]), g = as_column(call->in[3]);
    run(call,
        (const tarn__view *[OPERANDS]){
            [LOGITS] = call->in[0], [TARGET] = &target, [LSE] = &lse, [GRADIENT] = &g, [LOGITS_GRAD] = call->out[0]},
        grad_rows);
}

/* Loss and gradient of a row while it is in cache: one read and one write of the logits' memory. */
static void kernel_cross_entropy_with_grad(const tarn__call *call)
{
    tarn__view target = as_column(call->in[1]), g = as_column(call->in[2]), loss = as_column(call->out[0]);
    run(call,
        (const tarn__view *[OPERANDS]){
            [LOGITS] = call->in[0], [TARGET] = &target, [LOSS] = &loss, [GRADIENT] = &g, [LOGITS_GRAD] = call->out[1]},
        both_rows);
}

void TARN__AT_LEVEL(tarn__cpu_register_cross_entropy)(tarn__kernel_row *rows)
{
    rows[TARN__K_cross_entropy] = tarn__row(kernel_cross_entropy, TARN__FLOATS);
    rows[TARN__K_cross_entropy_grad] = tarn__row(kernel_cross_entropy_grad, TARN__FLOATS);
    rows[TARN__K_cross_entropy_with_grad] = tarn__row(kernel_cross_entropy_with_grad, TARN__FLOATS);
}
