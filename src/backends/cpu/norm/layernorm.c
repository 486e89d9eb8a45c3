/* layernorm.c: layernorm and rmsnorm over the last axis, alone and of a sum of two tensors, and their gradients.
 *
 * A row is read once from memory: mean, spread and result are found while it is in the cache. The gradients of weight
 * and bias are sums over rows: rows are cut into chunks by their number alone, each chunk adds up its own rows in
 * order, and the chunks are added in order. */
#include "backends/cpu/norm/layernorm.h"
#include "backends/cpu/norm/channel_stats.h"
#include "backends/cpu/random/dropout.h"

#define MOST_CHUNKS 256
#define LEAST_ROWS 16                       /* in a chunk */
#define PARTIAL_ELEMENTS (INT64_C(4) << 20) /* of all chunks' sums together */

/* ---- forward ----------------------------------------------------------------------------------------------------- */

static scaling scaling_from(const job *j, double mean, double squares)
{
    return scaling_of(j->centred ? mean : 0, 1 / sqrt(squares / (double)j->r.length + j->epsilon));
}

static scaling measure(const job *j, const char *x, char *buffer)
{
    const row_set *r = &j->r;
    double mean = 0, squares = 0, sums[2];
    EACH_BLOCK(begin, n, r->length)
    {
        const void *block = fetch(r, 1, x, begin, n, buffer);
        j->maths->powers(block, j->centred, n, sums);
        if (j->centred)
            j->maths->moments(block, n, sums);
        if (begin > 0)
            tarn__merge_moments(&mean, &squares, (double)begin, sums[0], sums[1], (double)n);
        else
            mean = sums[0], squares = sums[1];
    }
    return scaling_from(j, mean, squares);
}

/* A block of a sum's second term in the type computed in. What is dropped out is rounded first. */
static const void *fetch_term(const job *j, int64_t row, const char *term, int64_t begin, int64_t n, void *buffer)
{
    const operand *o = &j->r.operand[5];
    if (!j->random)
        return fetch(&j->r, 5, term, begin, n, buffer);
    _Alignas(64) char dropped[BLOCK * 4];
    drop_elements(j->random, row * j->r.length + begin, o->dtype, term + begin * o->size, dropped, n);
    tarn__load[o->dtype][j->r.compute](dropped, 1, buffer, n);
    return buffer;
}

/* x = the sum of its terms, rounded. */
static void sum_row(const job *j, int64_t row, char *sum, char *buffer, char *other)
{
    const row_set *r = &j->r;
    const char *first = row_at(r, 4, row), *second = row_at(r, 5, row);
    EACH_BLOCK(begin, n, r->length)
    {
        void *to = place(r, 1, sum, begin, buffer);
        j->maths->plus(fetch(r, 4, first, begin, n, buffer), fetch_term(j, row, second, begin, n, other), to, n);
        put_back(r, 1, sum, begin, n, to);
    }
}

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
        char *to = place(r, 0, y, begin, buffer);
        if (r->length > BLOCK)
            fetch_vectors(j, begin, n, v);
        j->maths->normalise(fetch(r, 1, x, begin, n, buffer), v->weight, v->bias, to, &c, n);
        put_back(r, 0, y, begin, n, to);
    }
    write_number(j, 2, row, c.mean);
    write_number(j, 3, row, c.rstd);
}

/* A row is written while the sums of the next one are found: memory is read and written at the same time. */
static void norm_rows_ahead(const job *j, int64_t row, int64_t end, const vectors *v)
{
    const maths *m = j->maths;
    int64_t n = j->r.length;
    const char *x = row_at(&j->r, 1, row);
    double sums[2];
    m->powers(x, j->centred, n, sums);
    for (const char *next; row < end; row++, x = next) {
        if (j->centred)
            m->moments(x, n, sums);
        scaling c = scaling_from(j, sums[0], sums[1]);
        next = row + 1 < end ? row_at(&j->r, 1, row + 1) : NULL;
        if (next)
            m->normalise_ahead(x, v->weight, v->bias, row_at(&j->r, 0, row), &c, next, j->centred, n, sums);
        else
            m->normalise(x, v->weight, v->bias, row_at(&j->r, 0, row), &c, n);
        write_number(j, 2, row, c.mean);
        write_number(j, 3, row, c.rstd);
    }
}

static void norm_rows(int64_t begin, int64_t end, void *ctx)
{
    const job *j = ctx;
    vectors v;
    _Alignas(64) char buffer[2 * BLOCK * 8];
    if (j->r.length <= BLOCK)
        fetch_vectors(j, 0, j->r.length, &v);
    if (goes_ahead(j) && !j->r.operand[4].base)
        norm_rows_ahead(j, begin, end, &v);
    else
        for (; begin < end; begin++)
            norm_row(j, begin, &v, buffer);
}

static void run_forward(job *j, int count, const tarn__view *const *views)
{
    rows_make(&j->r, views[0]->rank - 1, count, views);
    choose_maths(j);
    tarn__parallel_for(j->r.count, rows_grain(&j->r), norm_rows, j);
}

static void forward(const tarn__call *call, bool centred)
{
    const tarn__norm *params = call->params;
    job j = {
        .centred = centred, .epsilon = params->epsilon, .weight = call->in[1], .bias = centred ? call->in[2] : NULL};
    run_forward(
        &j, 4,
        (const tarn__view *[]){call->out[0], call->in[0], centred ? call->out[1] : NULL, call->out[centred ? 2 : 1]});
}

static void kernel_residual_norm(const tarn__call *call)
{
    const tarn__residual_norm *params = call->params;
    job j = {.centred = !params->rms, .epsilon = params->epsilon, .weight = call->in[2], .bias = call->in[3]};
    j.random = params->random.a > 0 ? &params->random : NULL;
    run_forward(
        &j, 6,
        (const tarn__view *[]){call->out[1], call->out[0], call->out[2], call->out[3], call->in[0], call->in[1]});
}

/* ---- backward ---------------------------------------------------------------------------------------------------- */

typedef struct grad_buffers {
    vectors v;
    _Alignas(64) char x[BLOCK * 8];
    _Alignas(64) char g[BLOCK * 8];
    _Alignas(64) char own[BLOCK * 8];
} grad_buffers;

static slope slope_of(const job *j, int64_t row, char *buffer)
{
    slope s = {.x = row_at(&j->r, 1, row), .g = row_at(&j->r, 4, row)};
    s.c = j->r.length <= SHORT_ROW ? measure(j, s.x, buffer) /* the saved ones were rounded */
                                   : scaling_of(read_number(j, 2, row), read_number(j, 3, row));
    return s;
}

static void turn_to_means(const job *j, slope *s)
{
    s->sums[0] = j->centred ? s->sums[0] / (double)j->r.length : 0;
    s->sums[1] /= (double)j->r.length;
}

/* gx = rstd · (gw - mean(gw) - x̂ · mean(gw · x̂)) with gw = g · weight and x̂ = (x - mean) · rstd; rmsnorm lacks the
 * first mean. */
static void grad_row(const job *j, int64_t row, grad_buffers *b, char *gweight, char *gbias)
{
    const row_set *r = &j->r;
    const maths *m = j->maths;
    slope s = slope_of(j, row, b->x);
    const char *x = s.x, *g = s.g;
    EACH_BLOCK(begin, n, r->length)
    {
        if (r->length > BLOCK)
            fetch_vectors(j, begin, n, &b->v);
        s.x = fetch(r, 1, x, begin, n, b->x), s.g = fetch(r, 4, g, begin, n, b->g);
        m->sums(&s, b->v.weight, gweight ? gweight + begin * m->size : NULL, gbias ? gbias + begin * m->size : NULL,
                j->centred, n);
    }
    if (!j->wants_gx)
        return;
    char *gx = row_at(r, 0, row);
    const char *own = row_at(r, 5, row);
    turn_to_means(j, &s);
    EACH_BLOCK(begin, n, r->length)
    {
        void *to = place(r, 0, gx, begin, b->x);
        if (r->length > BLOCK)
            fetch_vectors(j, begin, n, &b->v);
        s.x = fetch(r, 1, x, begin, n, b->x), s.g = fetch(r, 4, g, begin, n, b->g);
        m->grad(&s, b->v.weight, to, n);
        if (own)
            m->plus(to, fetch(r, 5, own, begin, n, b->own), to, n);
        put_back(r, 0, gx, begin, n, to);
        int64_t number = row * r->length + begin, size = r->operand[0].size;
        if (j->dropped)
            drop_elements(j->random, number, r->operand[0].dtype, gx + begin * size, j->dropped + number * size, n);
    }
}

static void grad_rows_ahead(const job *j, int64_t row, int64_t last, grad_buffers *b, char *gweight, char *gbias)
{
    const maths *m = j->maths;
    const void *weight = b->v.weight;
    int64_t n = j->r.length;
    slope s = slope_of(j, row, b->x), next = s;
    m->sums(&s, weight, gweight, gbias, j->centred, n);
    for (; row < last; row++, s = next) {
        char *gx = row_at(&j->r, 0, row);
        bool more = row + 1 < last;
        turn_to_means(j, &s);
        if (more)
            next = slope_of(j, row + 1, b->x);
        if (more && !s.c.is_far && !next.c.is_far) {
            m->grad_ahead(&s, weight, gx, &next, gweight, gbias, j->centred, n);
            continue;
        }
        m->grad(&s, weight, gx, n);
        if (more)
            m->sums(&next, weight, gweight, gbias, j->centred, n);
    }
}

static void grad_chunks(int64_t begin, int64_t end, void *ctx)
{
    const job *j = ctx;
    grad_buffers b;
    int64_t bytes = j->r.length * j->maths->size;
    bool ahead =
        goes_ahead(j) && is_native(&j->r, 4) && j->wants_gx && j->gweight && !j->r.operand[5].base && !j->dropped;
    if (j->r.length <= BLOCK)
        fetch_vectors(j, 0, j->r.length, &b.v);
    for (; begin < end; begin++) {
        char *partial = j->partial + 2 * begin * bytes, *gweight = j->gweight ? partial : NULL,
             *gbias = j->gbias ? partial + bytes : NULL;
        int64_t row = begin * j->chunk_rows, last = row + j->chunk_rows < j->r.count ? row + j->chunk_rows : j->r.count;
        if (j->gweight || j->gbias)
            memset(partial, 0, (size_t)(2 * bytes));
        if (ahead)
            grad_rows_ahead(j, row, last, &b, gweight, gbias);
        for (; !ahead && row < last; row++)
            grad_row(j, row, &b, gweight, gbias);
    }
}

/* Adds up the chunks, for some of the columns. */
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
                j->maths->add(j->partial + ((2 * chunk + which) * j->r.length + at) * j->maths->size, sum, n);
            char *place_of =
                (char *)tarn__view_at(to[which]) + at * stride * (int64_t)tarn__dtype_bytes(to[which]->dtype);
            tarn__store[to[which]->dtype][COMPUTE_F64](sum, place_of, stride, n);
        }
}

static void choose_chunks(job *j, int64_t count, int64_t length)
{
    int64_t most = PARTIAL_ELEMENTS / (length > 0 ? length : 1);
    most = most < 8 ? 8 : most > MOST_CHUNKS ? MOST_CHUNKS : most;
    j->chunk_rows = (count + most - 1) / most;
    j->chunk_rows = j->chunk_rows < LEAST_ROWS ? LEAST_ROWS : j->chunk_rows;
    j->chunks = (count + j->chunk_rows - 1) / j->chunk_rows;
}

static void plan_backward(job *j, const tarn__view *const *views, char *scratch)
{
    j->wants_gx = views[0] != NULL;
    j->partial = scratch;
    const tarn__view *rows[] = {views[0] ? views[0] : views[1], views[1], views[2], views[3], views[4], views[5]};
    rows_make(&j->r, views[1]->rank - 1, 6, rows);
    choose_maths(j);
    choose_chunks(j, j->r.count, j->r.length);
}

/* Inputs x, weight, [mean,] rstd, g; outputs gx, gweight, [gbias]. */
static void describe_backward(const tarn__call *call, bool centred, job *j)
{
    const tarn__norm *params = call->params;
    *j = (job){.centred = centred,
               .epsilon = params->epsilon,
               .weight = call->in[1],
               .gweight = call->out[1],
               .gbias = centred ? call->out[2] : NULL};
    plan_backward(j,
                  (const tarn__view *[]){call->out[0], call->in[0], centred ? call->in[2] : NULL,
                                         call->in[centred ? 3 : 2], call->in[centred ? 4 : 3], NULL},
                  call->scratch);
}

static void describe_residual(const tarn__call *call, job *j)
{
    const tarn__residual_norm *params = call->params;
    *j = (job){.centred = !params->rms,
               .epsilon = params->epsilon,
               .weight = call->in[1],
               .gweight = call->out[1],
               .gbias = call->out[2]};
    j->random = &params->random;
    j->dropped = call->out[3] ? tarn__view_at(call->out[3]) : NULL;
    plan_backward(j,
                  (const tarn__view *[]){call->out[0], call->in[0], call->in[2], call->in[3], call->in[4], call->in[5]},
                  call->scratch);
}

static size_t partial_bytes(const job *j)
{
    return j->gweight || j->gbias ? (size_t)(2 * j->chunks * j->r.length * j->maths->size) : 0;
}

static size_t backward_scratch(const tarn__call *call, bool centred)
{
    job j;
    describe_backward(call, centred, &j);
    return partial_bytes(&j);
}

static void run_backward(job *j)
{
    tarn__parallel_for(j->chunks, 1, grad_chunks, j);
    if (j->gweight || j->gbias)
        tarn__parallel_for(j->r.length, BLOCK, combine, j);
}

static void backward(const tarn__call *call, bool centred)
{
    job j;
    describe_backward(call, centred, &j);
    run_backward(&j);
}

/* ---- kernels ----------------------------------------------------------------------------------------------------- */

static void kernel_layernorm(const tarn__call *call)
{
    forward(call, true);
}

static void kernel_rmsnorm(const tarn__call *call)
{
    forward(call, false);
}

static void kernel_layernorm_grad(const tarn__call *call)
{
    backward(call, true);
}

static void kernel_rmsnorm_grad(const tarn__call *call)
{
    backward(call, false);
}

static size_t layernorm_grad_scratch(const tarn__call *call)
{
    return backward_scratch(call, true);
}

static size_t rmsnorm_grad_scratch(const tarn__call *call)
{
    return backward_scratch(call, false);
}

static size_t residual_norm_grad_scratch(const tarn__call *call)
{
    job j;
    describe_residual(call, &j);
    return partial_bytes(&j);
}

static void kernel_residual_norm_grad(const tarn__call *call)
{
    job j;
    describe_residual(call, &j);
    run_backward(&j);
}

void TARN__AT_LEVEL(tarn__cpu_layernorm)(tarn__kernel_row *rows)
{
    rows[TARN__K_residual_norm] = (tarn__kernel_row){kernel_residual_norm, TARN__FLOATS, NULL};
    rows[TARN__K_residual_norm_grad] =
        (tarn__kernel_row){kernel_residual_norm_grad, TARN__FLOATS, residual_norm_grad_scratch};
    rows[TARN__K_dropout_residual_norm] =
        (tarn__kernel_row){kernel_residual_norm, TARN__FLOATS & ~TARN__BIT(TARN_F64), NULL};
    rows[TARN__K_dropout_residual_norm_grad] =
        (tarn__kernel_row){kernel_residual_norm_grad, TARN__FLOATS & ~TARN__BIT(TARN_F64), residual_norm_grad_scratch};
    rows[TARN__K_layernorm] = (tarn__kernel_row){kernel_layernorm, TARN__FLOATS, NULL};
    rows[TARN__K_layernorm_grad] = (tarn__kernel_row){kernel_layernorm_grad, TARN__FLOATS, layernorm_grad_scratch};
    rows[TARN__K_rmsnorm] = (tarn__kernel_row){kernel_rmsnorm, TARN__FLOATS, NULL};
    rows[TARN__K_rmsnorm_grad] = (tarn__kernel_row){kernel_rmsnorm_grad, TARN__FLOATS, rmsnorm_grad_scratch};
}
