/* layernorm.c: layernorm and rmsnorm over the last axis, alone and fused with a residual addition (and dropout), and
 * their gradients.
 *
 * A row is read from memory once: statistics and result are computed while it is in cache. gweight and gbias are
 * sums over rows: rows are cut into chunks by their number alone, each chunk sums its rows in order, and chunks are
 * added in order: results do not depend on threads. About 10 operations and 8 bytes (f32) per element forward. */
#include "backends/cpu/norm/layernorm.h"
#include "backends/cpu/norm/channel_stats.h"
#include "backends/cpu/random/dropout.h"

#define MAX_CHUNKS 256
#define MIN_ROWS 16                         /* rows per chunk, at least */
#define PARTIAL_ELEMENTS (INT64_C(4) << 20) /* elements of all chunks' partial sums together */

/* ---- forward ----------------------------------------------------------------------------------------------------- */

/* rmsnorm uses the mean square around 0: its mean stays 0. */
static scaling scaling_from(const job *j, double mean, double squares)
{
    return scaling_of(j->is_centered ? mean : 0, 1 / sqrt(squares / (double)j->r.length + j->epsilon));
}

/* Mean and rstd of a row, block by block; blocks are merged in f64. */
static scaling measure(const job *j, const char *x, char *buffer)
{
    const row_set *r = &j->r;
    double mean = 0, squares = 0, sums[2];
    EACH_BLOCK(begin, n, r->length)
    {
        const void *block = fetch(r, 1, x, begin, n, buffer);
        j->row_ops->raw_sums(block, j->is_centered, n, sums);
        if (j->is_centered)
            j->row_ops->moments(block, n, sums);
        if (begin > 0)
            tarn__merge_moments(&mean, &squares, (double)begin, sums[0], sums[1], (double)n);
        else
            mean = sums[0], squares = sums[1];
    }
    return scaling_from(j, mean, squares);
}

/* A block of the second term of a residual sum, in the compute type. With dropout the dropped term is rounded to its
 * dtype first, as the composed form does. */
static const void *fetch_term(const job *j, int64_t row, const char *term, int64_t begin, int64_t n, void *buffer)
{
    const operand *o = &j->r.operand[5];
    if (!j->random)
        return fetch(&j->r, 5, term, begin, n, buffer);
    _Alignas(64) char dropped[BLOCK * 4];
    dropout_elements(j->random, row * j->r.length + begin, o->dtype, term + begin * o->size, dropped, n);
    tarn__load[o->dtype][j->r.compute](dropped, 1, buffer, n);
    return buffer;
}

/* x = first term + second term, rounded to x's dtype. `buffer` and `other` hold one block of each in the compute
 * type. */
static void sum_row(const job *j, int64_t row, char *sum, char *buffer, char *other)
{
    const row_set *r = &j->r;
    const char *first = row_at(r, 4, row), *second = row_at(r, 5, row);
    EACH_BLOCK(begin, n, r->length)
    {
        void *to = block_out(r, 1, sum, begin, buffer);
        j->row_ops->add(fetch(r, 4, first, begin, n, buffer), fetch_term(j, row, second, begin, n, other), to, n);
        store_back(r, 1, sum, begin, n, to);
    }
}

/* One row: the residual sum if there is one, statistics, result. Rows longer than BLOCK are read twice, from cache. */
static void norm_row(const job *j, int64_t row, vectors *v, char *buffer)
{
    const row_set *r = &j->r;
    char *x = row_at(r, 1, row);
    char *y = row_at(r, 0, row);
    if (r->operand[4].base)
        sum_row(j, row, x, buffer, buffer + BLOCK * 8);
    scaling c = measure(j, x, buffer);
    EACH_BLOCK(begin, n, r->length)
    {
        char *to = block_out(r, 0, y, begin, buffer);
        if (r->length > BLOCK)
            fetch_vectors(j, begin, n, v);
        j->row_ops->normalize(fetch(r, 1, x, begin, n, buffer), v->weight, v->bias, to, &c, n);
        store_back(r, 0, y, begin, n, to);
    }
    store_row_scalar(j, 2, row, c.mean);
    store_row_scalar(j, 3, row, c.rstd);
}

/* Software pipelining: a row is written while the sums of the next one are read, so that memory reads and writes
 * overlap. */
static void norm_rows_pipelined(const job *j, int64_t row, int64_t end, const vectors *v)
{
    const row_ops *m = j->row_ops;
    int64_t n = j->r.length;
    const char *x = row_at(&j->r, 1, row);
    double sums[2];
    m->raw_sums(x, j->is_centered, n, sums);
    for (const char *next; row < end; row++, x = next) {
        if (j->is_centered)
            m->moments(x, n, sums);
        scaling c = scaling_from(j, sums[0], sums[1]);
        next = row + 1 < end ? row_at(&j->r, 1, row + 1) : NULL;
        if (next)
            m->normalize_pipelined(x, v->weight, v->bias, row_at(&j->r, 0, row), &c, next, j->is_centered, n, sums);
        else
            m->normalize(x, v->weight, v->bias, row_at(&j->r, 0, row), &c, n);
        store_row_scalar(j, 2, row, c.mean);
        store_row_scalar(j, 3, row, c.rstd);
    }
}

/* A task: buffers are on the stack; weight and bias are converted once where they fit one block. */
static void norm_rows(int64_t begin, int64_t end, void *ctx)
{
    const job *j = ctx;
    vectors v;
    _Alignas(64) char buffer[2 * BLOCK * 8];
    if (j->r.length <= BLOCK)
        fetch_vectors(j, 0, j->r.length, &v);
    if (pipelines_rows(j) && !j->r.operand[4].base)
        norm_rows_pipelined(j, begin, end, &v);
    else
        for (; begin < end; begin++)
            norm_row(j, begin, &v, buffer);
}

/* Views in the order of job.r: y, x, mean, rstd [, first term, second term]. */
static void run_forward(job *j, int count, const tarn__view *const *views)
{
    rows_make(&j->r, views[0]->rank - 1, count, views);
    choose_ops(j);
    tarn__parallel_for(j->r.count, rows_grain(&j->r), norm_rows, j);
}

static void forward(const tarn__call *call, bool is_centered)
{
    const tarn__norm *params = call->params;
    job j = {.is_centered = is_centered,
             .epsilon = params->epsilon,
             .offset = is_centered ? 0 : params->offset,
             .weight = call->in[1],
             .bias = is_centered ? call->in[2] : NULL};
    run_forward(&j, 4,
                (const tarn__view *[]){call->out[0], call->in[0], is_centered ? call->out[1] : NULL,
                                       call->out[is_centered ? 2 : 1]});
}

/* x = first + dropout(second); y = norm(x). Outputs x, y, [mean,] rstd: x is the residual stream of the next layer. */
static void kernel_residual_norm(const tarn__call *call)
{
    const tarn__residual_norm *params = call->params;
    job j = {.is_centered = !params->rms,
             .epsilon = params->epsilon,
             .offset = params->rms ? params->offset : 0,
             .weight = call->in[2],
             .bias = call->in[3]};
    j.random = params->random.a > 0 ? &params->random : NULL;
    run_forward(
        &j, 6,
        (const tarn__view *[]){call->out[1], call->out[0], call->out[2], call->out[3], call->in[0], call->in[1]});
}

/* ---- backward ---------------------------------------------------------------------------------------------------- */

/* Per-task buffers of backward: 40 KiB of stack. */
typedef struct grad_buffers {
    vectors v;
    _Alignas(64) char x[BLOCK * 8];
    _Alignas(64) char g[BLOCK * 8];
    _Alignas(64) char x_grad[BLOCK * 8];
} grad_buffers;

/* Statistics of a row: saved ones, or recomputed for short rows, whose gradient would show their rounding. */
static grad_block grad_block_of(const job *j, int64_t row, char *buffer)
{
    grad_block s = {.x = row_at(&j->r, 1, row), .g = row_at(&j->r, 4, row)};
    s.c = j->r.length <= SHORT_ROW ? measure(j, s.x, buffer) /* the saved statistics were rounded to their dtype */
                                   : scaling_of(load_row_scalar(j, 2, row), load_row_scalar(j, 3, row));
    return s;
}

/* From sums over the row to the two means in gx's formula; rmsnorm has only the second. */
static void sums_to_means(const job *j, grad_block *s)
{
    s->sums[0] = j->is_centered ? s->sums[0] / (double)j->r.length : 0;
    s->sums[1] /= (double)j->r.length;
}

/* gx = rstd · (gw - mean(gw) - x̂ · mean(gw · x̂)) with gw = g · weight and x̂ = (x - mean) · rstd; rmsnorm has no
 * mean(gw) term. */
static void grad_row(const job *j, int64_t row, grad_buffers *b, char *gweight, char *gbias)
{
    const row_set *r = &j->r;
    const row_ops *m = j->row_ops;
    grad_block s = grad_block_of(j, row, b->x);
    const char *x = s.x, *g = s.g;
    EACH_BLOCK(begin, n, r->length)
    {
        if (r->length > BLOCK)
            fetch_vectors(j, begin, n, &b->v);
        s.x = fetch(r, 1, x, begin, n, b->x), s.g = fetch(r, 4, g, begin, n, b->g);
        m->sums(&s, b->v.weight, gweight ? gweight + begin * m->size : NULL, gbias ? gbias + begin * m->size : NULL,
                j->is_centered, n);
    }
    if (!j->wants_gx)
        return;
    char *gx = row_at(r, 0, row);
    const char *x_grad = row_at(r, 5, row);
    sums_to_means(j, &s);
    EACH_BLOCK(begin, n, r->length)
    {
        void *to = block_out(r, 0, gx, begin, b->x);
        if (r->length > BLOCK)
            fetch_vectors(j, begin, n, &b->v);
        s.x = fetch(r, 1, x, begin, n, b->x), s.g = fetch(r, 4, g, begin, n, b->g);
        m->grad(&s, b->v.weight, to, n);
        if (x_grad)
            m->add(to, fetch(r, 5, x_grad, begin, n, b->x_grad), to, n);
        store_back(r, 0, gx, begin, n, to);
        int64_t number = row * r->length + begin, size = r->operand[0].size;
        if (j->dropped)
            dropout_elements(j->random, number, r->operand[0].dtype, gx + begin * size, j->dropped + number * size, n);
    }
}

/* grad of row r and the sums of row r + 1 in one pass; a pair with a large mean takes separate passes, with bitwise
 * identical results. */
static void grad_rows_pipelined(const job *j, int64_t row, int64_t last, grad_buffers *b, char *gweight, char *gbias)
{
    const row_ops *m = j->row_ops;
    const void *weight = b->v.weight;
    int64_t n = j->r.length;
    grad_block s = grad_block_of(j, row, b->x), next = s;
    m->sums(&s, weight, gweight, gbias, j->is_centered, n);
    for (; row < last; row++, s = next) {
        char *gx = row_at(&j->r, 0, row);
        bool more = row + 1 < last;
        sums_to_means(j, &s);
        if (more)
            next = grad_block_of(j, row + 1, b->x);
        if (more && !s.c.has_large_mean && !next.c.has_large_mean) {
            m->grad_pipelined(&s, weight, gx, &next, gweight, gbias, j->is_centered, n);
            continue;
        }
        m->grad(&s, weight, gx, n);
        if (more)
            m->sums(&next, weight, gweight, gbias, j->is_centered, n);
    }
}

/* A task is one chunk of rows, with partial sums of its own in scratch; no two tasks write the same memory. */
static void grad_chunks(int64_t begin, int64_t end, void *ctx)
{
    const job *j = ctx;
    grad_buffers b;
    int64_t bytes = j->r.length * j->row_ops->size;
    bool pipelined =
        pipelines_rows(j) && is_in_place(&j->r, 4) && j->wants_gx && j->gweight && !j->r.operand[5].base && !j->dropped;
    if (j->r.length <= BLOCK)
        fetch_vectors(j, 0, j->r.length, &b.v);
    for (; begin < end; begin++) {
        char *partial = j->partial + 2 * begin * bytes, *gweight = j->gweight ? partial : NULL,
             *gbias = j->gbias ? partial + bytes : NULL;
        int64_t row = begin * j->chunk_rows, last = row + j->chunk_rows < j->r.count ? row + j->chunk_rows : j->r.count;
        if (j->gweight || j->gbias)
            memset(partial, 0, (size_t)(2 * bytes));
        if (pipelined)
            grad_rows_pipelined(j, row, last, &b, gweight, gbias);
        for (; !pipelined && row < last; row++)
            grad_row(j, row, &b, gweight, gbias);
    }
}

/* Sums the chunks' partial gweight and gbias for a range of columns, in f64 and in order. */
static void combine(int64_t begin, int64_t end, void *ctx)
{
    const job *j = ctx;
    const tarn__view *to[2] = {j->gweight, j->gbias};
    double sum[BLOCK];
    for (int which = 0; which < 2; which++)
        for (int64_t at = begin; to[which] && at < end; at += BLOCK) {
            int64_t n = end - at < BLOCK ? end - at : BLOCK, stride = to[which]->stride[to[which]->rank - 1];
            memset(sum, 0, sizeof(sum));
            for (int64_t chunk = 0; chunk < j->chunks; chunk++)
                j->row_ops->add_to_sum(j->partial + ((2 * chunk + which) * j->r.length + at) * j->row_ops->size, sum,
                                       n);
            char *to_at = (char *)tarn__view_at(to[which]) + at * stride * (int64_t)tarn__dtype_bytes(to[which]->dtype);
            tarn__store[to[which]->dtype][COMPUTE_F64](sum, to_at, stride, n);
        }
}

/* At most MAX_CHUNKS, and at most PARTIAL_ELEMENTS of scratch: by shape alone. */
static void choose_chunks(job *j, int64_t count, int64_t length)
{
    int64_t max_chunks = PARTIAL_ELEMENTS / (length > 0 ? length : 1);
    max_chunks = max_chunks < 8 ? 8 : max_chunks > MAX_CHUNKS ? MAX_CHUNKS : max_chunks;
    j->chunk_rows = (count + max_chunks - 1) / max_chunks;
    j->chunk_rows = j->chunk_rows < MIN_ROWS ? MIN_ROWS : j->chunk_rows;
    j->chunks = (count + j->chunk_rows - 1) / j->chunk_rows;
}

/* Views in the order of job.r: gx, x, mean, rstd, g, gradient of x itself. Where gx is not wanted, x takes its operand
 * slot: rows are addressed the same way. */
typedef const tarn__view *operands[6];

/* Inputs x, weight, [mean,] rstd, g; outputs gx, gweight, [gbias]. */
static void bind_backward(job *j, const tarn__call *call, operands views)
{
    bool is_centered = j->is_centered;
    const tarn__view *const found[] = {call->out[0] ? call->out[0] : call->in[0],
                                       call->in[0],
                                       is_centered ? call->in[2] : NULL,
                                       call->in[is_centered ? 3 : 2],
                                       call->in[is_centered ? 4 : 3],
                                       NULL};
    memcpy(views, found, sizeof(operands));
    j->gbias = is_centered ? call->out[2] : NULL;
}

/* Inputs x, weight, [mean,] rstd, g, gradient of x itself; outputs gx, gweight, [gbias], gradient of the dropped
 * term. */
static void bind_residual(job *j, const tarn__call *call, operands views)
{
    const tarn__view *const found[] = {
        call->out[0] ? call->out[0] : call->in[0], call->in[0], call->in[2], call->in[3], call->in[4], call->in[5]};
    memcpy(views, found, sizeof(operands));
    j->gbias = call->out[2];
    j->random = &((const tarn__residual_norm *)call->params)->random;
    j->dropped = call->out[3] ? tarn__view_at(call->out[3]) : NULL;
}

/* Scratch is (chunks, 2, length) in the compute type; none where neither gradient is wanted. */
static tarn__plan_status prepare_backward(const tarn__call *call, tarn__plan *plan, bool is_centered, double epsilon,
                                          double offset, void (*bind)(job *, const tarn__call *, operands))
{
    job *j = tarn__plan_reserve(plan, sizeof(*j)), bound;
    operands views;
    if (!j)
        return TARN__PLAN_FAILED;
    *j = bound = (job){.is_centered = is_centered,
                       .epsilon = epsilon,
                       .offset = is_centered ? 0 : offset,
                       .wants_gx = call->out[0] != NULL};
    bind(&bound, call, views);
    rows_describe(&j->r, call->in[0]->rank - 1, 6, views);
    choose_ops(j);
    choose_chunks(j, j->r.count, j->r.length);
    if (call->out[1] || bound.gbias)
        plan->scratch_bytes = (size_t)(2 * j->chunks * j->r.length * j->row_ops->size);
    return TARN__PLAN_READY;
}

/* Two parallel passes: chunks of rows, then columns of the partial sums. */
static void run_backward(const tarn__call *call, void (*bind)(job *, const tarn__call *, operands))
{
    job j = *(const job *)tarn__plan_job(call->plan);
    operands views;
    bind(&j, call, views);
    rows_bind(&j.r, 6, views);
    j.weight = call->in[1];
    j.gweight = call->out[1];
    j.partial = call->scratch;
    tarn__parallel_for(j.chunks, 1, grad_chunks, &j);
    if (j.gweight || j.gbias)
        tarn__parallel_for(j.r.length, BLOCK, combine, &j);
}

/* ---- kernels ----------------------------------------------------------------------------------------------------- */

/* Reads x, writes y: 2 · n elements of traffic, plus two statistics per row. */
static void kernel_layernorm(const tarn__call *call)
{
    forward(call, true);
}

static void kernel_rmsnorm(const tarn__call *call)
{
    forward(call, false);
}

static tarn__plan_status prepare_layernorm_grad(const tarn__call *call, tarn__plan *plan)
{
    const tarn__norm *params = call->params;
    return prepare_backward(call, plan, true, params->epsilon, 0, bind_backward);
}

static tarn__plan_status prepare_rmsnorm_grad(const tarn__call *call, tarn__plan *plan)
{
    const tarn__norm *params = call->params;
    return prepare_backward(call, plan, false, params->epsilon, params->offset, bind_backward);
}

/* layernorm_grad and rmsnorm_grad: reads x and g, writes gx; gweight and gbias cost 2 · chunks rows of scratch. */
static void kernel_norm_grad(const tarn__call *call)
{
    run_backward(call, bind_backward);
}

static tarn__plan_status prepare_residual_norm_grad(const tarn__call *call, tarn__plan *plan)
{
    const tarn__residual_norm *params = call->params;
    return prepare_backward(call, plan, !params->rms, params->epsilon, params->offset, bind_residual);
}

static void kernel_residual_norm_grad(const tarn__call *call)
{
    run_backward(call, bind_residual);
}

void TARN__AT_LEVEL(tarn__cpu_register_layernorm)(tarn__kernel_row *rows)
{
    rows[TARN__K_residual_norm] = tarn__row(kernel_residual_norm, TARN__FLOATS);
    rows[TARN__K_residual_norm_grad] =
        tarn__row_planned(prepare_residual_norm_grad, kernel_residual_norm_grad, TARN__FLOATS);
    rows[TARN__K_dropout_residual_norm] = tarn__row(kernel_residual_norm, TARN__FLOATS & ~TARN__BIT(TARN_F64));
    rows[TARN__K_dropout_residual_norm_grad] =
        tarn__row_planned(prepare_residual_norm_grad, kernel_residual_norm_grad, TARN__FLOATS & ~TARN__BIT(TARN_F64));
    rows[TARN__K_layernorm] = tarn__row(kernel_layernorm, TARN__FLOATS);
    rows[TARN__K_layernorm_grad] = tarn__row_planned(prepare_layernorm_grad, kernel_norm_grad, TARN__FLOATS);
    rows[TARN__K_rmsnorm] = tarn__row(kernel_rmsnorm, TARN__FLOATS);
    rows[TARN__K_rmsnorm_grad] = tarn__row_planned(prepare_rmsnorm_grad, kernel_norm_grad, TARN__FLOATS);
}
