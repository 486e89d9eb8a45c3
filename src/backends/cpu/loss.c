/* loss.c: the cross entropy of rows of logits, and its gradient with respect to them, while each row is in the cache. */
#include "backends/cpu/rows.h"

#define EACH TARN__INDEPENDENT for (int64_t i = 0; i < n; i++)
#define EACH_BLOCK(begin, n, length)                                                                                                      \
    for (int64_t begin = 0, n; begin < (length) && (n = (length)-begin < BLOCK ? (length)-begin : BLOCK, true); begin += BLOCK)

typedef struct maths {
    double (*most)(const void *x, int64_t n);
    double (*sum)(const void *x, int64_t n);
    double (*exps)(const void *x, void *y, int64_t n, double most); /* y = exp(x - most); gives the sum */
    void (*scale)(void *y, int64_t n, double factor, double less);  /* y = y · factor - less */
} maths;

#define BLOCKS(T, type)                                                                                                                   \
    static double most_##type(const void *x, int64_t n) { return (double)block_max_##type(x, n); }                                        \
    static double sum_##type(const void *x, int64_t n) { return block_sum_##type(x, n); }                                                 \
    static double exps_##type(const void *from, void *to, int64_t n, double most)                                                         \
    {                                                                                                                                     \
        const T *x = from;                                                                                                                \
        T *y = to, shift = (T)most;                                                                                                       \
        EACH y[i] = tarn__exp_##type(x[i] - shift);                                                                                       \
        return block_sum_##type(y, n);                                                                                                    \
    }                                                                                                                                     \
    static void scale_##type(void *in_place, int64_t n, double factor, double less)                                                       \
    {                                                                                                                                     \
        T *y = in_place, f = (T)factor, l = (T)less;                                                                                      \
        EACH y[i] = y[i] * f - l;                                                                                                         \
    }                                                                                                                                     \
    static const maths maths_##type = {most_##type, sum_##type, exps_##type, scale_##type};

BLOCKS(float, f32)
BLOCKS(double, f64)

typedef struct job {
    row_set r; /* logits, glogits, target, loss */
    const maths *maths;
    const tarn__cross_entropy *params;
} job;

static int64_t target_of(const job *j, int64_t row)
{
    int64_t target;
    tarn__load[j->r.operand[2].dtype][COMPUTE_I64](row_at(&j->r, 2, row), 1, &target, 1);
    return target;
}

static bool counts(const job *j, int64_t target)
{
    return !(j->params->has_ignore && target == j->params->ignore) && target >= 0 && target < j->r.length;
}

static void write_number(const job *j, int k, char *to, double value)
{
    tarn__store[j->r.operand[k].dtype][COMPUTE_F64](&value, to, 1, 1);
}

static void clear_row(const job *j, char *to, char *buffer)
{
    memset(buffer, 0, BLOCK * 8);
    EACH_BLOCK(begin, n, j->r.length) {
        void *place_of = place(&j->r, 1, to, begin, buffer);
        memset(place_of, 0, (size_t)n * (j->r.compute == COMPUTE_F64 ? 8 : 4));
        put_back(&j->r, 1, to, begin, n, place_of);
    }
}

/* softmax - smoothing / C, and at the target 1 - smoothing less. The exponentials are there already where the row could hold them. */
static void grad_row(const job *j, const char *in, char *to, char *buffer, double most, double sum, int64_t target)
{
    const row_set *r = &j->r;
    double smoothing = j->params->smoothing, value;
    EACH_BLOCK(begin, n, r->length) {
        void *y = place(r, 1, to, begin, buffer);
        if (!is_native(r, 1))
            j->maths->exps(fetch(r, 0, in, begin, n, buffer), y, n, most);
        j->maths->scale(y, n, 1 / sum, smoothing / (double)r->length);
        put_back(r, 1, to, begin, n, y);
    }
    tarn__load[r->operand[0].dtype][COMPUTE_F64](in + target * r->operand[0].along * r->operand[0].size, 1, &value, 1);
    value = exp(value - most) / sum - smoothing / (double)r->length - (1 - smoothing);
    write_number(j, 1, to + target * r->operand[1].along * r->operand[1].size, value);
}

static void loss_row(const job *j, int64_t row, char *buffer)
{
    const row_set *r = &j->r;
    const char *in = row_at(r, 0, row);
    char *to = row_at(r, 1, row);
    int64_t target = target_of(j, row);
    if (!counts(j, target)) {
        write_number(j, 3, row_at(r, 3, row), 0);
        if (to)
            clear_row(j, to, buffer);
        return;
    }
    double most = -(double)INFINITY, sum = 0, all = 0, value, smoothing = j->params->smoothing;
    EACH_BLOCK(begin, n, r->length) {
        const void *x = fetch(r, 0, in, begin, n, buffer);
        double here = j->maths->most(x, n);
        most = here > most ? here : most;
        all += smoothing > 0 ? j->maths->sum(x, n) : 0;
    }
    bool keep = to && is_native(r, 1);
    EACH_BLOCK(begin, n, r->length)
        sum += j->maths->exps(fetch(r, 0, in, begin, n, buffer), keep ? place(r, 1, to, begin, buffer) : buffer, n, most);
    tarn__load[r->operand[0].dtype][COMPUTE_F64](in + target * r->operand[0].along * r->operand[0].size, 1, &value, 1);
    double log_sum = log(sum), loss = log_sum - (value - most);
    if (smoothing > 0)
        loss = (1 - smoothing) * loss + smoothing * (log_sum - (all / (double)r->length - most));
    write_number(j, 3, row_at(r, 3, row), loss);
    if (to)
        grad_row(j, in, to, buffer, most, sum, target);
}

static void loss_rows(int64_t begin, int64_t end, void *ctx)
{
    _Alignas(64) char buffer[BLOCK * 8];
    for (; begin < end; begin++)
        loss_row(ctx, begin, buffer);
}

/* Targets are checked before any thread starts, so that the first wrong one is the one reported. */
static void check_targets(const job *j, tarn__fault *fault)
{
    for (int64_t row = 0; row < j->r.count && !fault->raised; row++) {
        int64_t target = target_of(j, row);
        if (counts(j, target) || (j->params->has_ignore && target == j->params->ignore))
            continue;
        *fault = (tarn__fault){1, fault->function, target, j->r.length};
    }
}

/* A view of one number a row as (rows, 1). */
static tarn__view as_column(const tarn__view *view)
{
    tarn__view column = *view;
    column.rank = 2;
    column.shape[1] = 1;
    column.stride[1] = 0;
    return column;
}

static void kernel_cross_entropy(const tarn__call *call)
{
    tarn__view target = as_column(call->in[1]), loss = as_column(call->out[0]);
    const tarn__view *views[] = {call->in[0], call->out[1], &target, &loss};
    job j = {.params = call->params};
    rows_make(&j.r, 1, 4, views);
    j.r.count = j.r.nest.count; /* rows without classes have no right target */
    j.maths = j.r.compute == COMPUTE_F64 ? &maths_f64 : &maths_f32;
    check_targets(&j, call->fault);
    tarn__parallel_for(j.r.count, rows_grain(&j.r), loss_rows, &j);
}

void TARN__AT_LEVEL(tarn__cpu_loss)(tarn__kernel_row *rows)
{
    rows[TARN__K_cross_entropy] = (tarn__kernel_row){kernel_cross_entropy, TARN__FLOATS, NULL};
}
