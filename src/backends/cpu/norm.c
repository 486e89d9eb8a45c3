/* norm.c: layernorm and rmsnorm over the last axis, alone and of a sum of two tensors, and their gradients.
 *
 * A row is read once from memory: mean, spread and result are found while it is in the cache. The gradients of weight and bias are sums over
 * rows: rows are cut into chunks by their number alone, each chunk adds up its own rows in order, and the chunks are added in order. */
#include "backends/cpu/drop.h"
#include "backends/cpu/rows.h"

#define MOST_CHUNKS 256
#define LEAST_ROWS 16                /* in a chunk */
#define SHORT_ROW 32                 /* rows this short are computed in f64: their gradient is what little normalising leaves */
#define PARTIAL_ELEMENTS (INT64_C(4) << 20) /* of all chunks' sums together */

/* Blocks of one type. `mean` is 0 for rmsnorm. Weight and bias are never NULL: ones and zeros stand in. */
typedef struct maths {
    int64_t size;
    double (*sum)(const void *x, int64_t n);
    double (*spread)(const void *x, double mean, int64_t n);
    void (*normalise)(const void *x, const void *weight, const void *bias, void *y, double mean, double rstd, int64_t n);
    /* The sums of g · weight and of g · weight · (x - mean) · rstd; adds g · (x - mean) · rstd and g to what is there, where wanted. */
    void (*sums)(const void *x, const void *g, const void *weight, void *gweight, void *gbias, double mean, double rstd, int64_t n, double *sums);
    void (*grad)(const void *x, const void *g, const void *weight, void *gx, double mean, double rstd, const double *means, int64_t n);
    void (*plus)(const void *x, const void *y, void *sum, int64_t n);
    void (*add)(const void *x, double *sum, int64_t n);
} maths;

#define EACH UNROLLED for (int64_t i = 0; i < n; i++)
#define EACH_BLOCK(begin, n, length)                                                                                                      \
    for (int64_t begin = 0, n; begin < (length) && (n = (length)-begin < BLOCK ? (length)-begin : BLOCK, true); begin += BLOCK)

#define T float
#define NAMED(x) x##_f32
#include "backends/cpu/norm_blocks.h"

#define T double
#define NAMED(x) x##_f64
#include "backends/cpu/norm_blocks.h"

/* ---- weight and bias ------------------------------------------------------------------------------------------------------- */

typedef struct job {
    row_set r; /* forward: y, x, mean, rstd; backward: gx (or x), x, mean, rstd, g. Of a sum, x is that; then its terms, or the gradient that it has itself */
    const maths *maths;
    bool centred; /* layernorm */
    double epsilon;
    const tarn__random *random; /* a sum's second term is dropped out by it; NULL: it is not */
    char *dropped;              /* where its gradient goes, dense; NULL: nowhere */
    const tarn__view *weight, *bias;
    bool wants_gx;
    int64_t chunk_rows, chunks;
    char *partial;                /* (chunks, 2, length) */
    const tarn__view *gweight, *gbias;
} job;

static void choose_maths(job *j)
{
    if (j->r.length <= SHORT_ROW)
        j->r.compute = COMPUTE_F64;
    j->maths = j->r.compute == COMPUTE_F64 ? &maths_f64 : &maths_f32;
}

/* n elements of a vector in the type computed in; `stand_in` where there is none. */
static const void *fetch_vector(const job *j, const tarn__view *vector, int64_t begin, int64_t n, void *buffer, double stand_in)
{
    if (!vector) {
        tarn__load[TARN_F64][j->r.compute](&stand_in, 0, buffer, n);
        return buffer;
    }
    int64_t stride = vector->stride[vector->rank - 1];
    const char *from = (char *)tarn__view_at(vector) + begin * stride * (int64_t)tarn__dtype_bytes(vector->dtype);
    if (stride == 1 && (int64_t)tarn__dtype_bytes(vector->dtype) == j->maths->size)
        return from;
    tarn__load[vector->dtype][j->r.compute](from, stride, buffer, n);
    return buffer;
}

/* A vector of at most one block need not be fetched for every row. */
typedef struct vectors {
    _Alignas(64) char weight_buffer[BLOCK * 8];
    _Alignas(64) char bias_buffer[BLOCK * 8];
    const void *weight, *bias;
} vectors;

static void fetch_vectors(const job *j, int64_t begin, int64_t n, vectors *v)
{
    v->weight = fetch_vector(j, j->weight, begin, n, v->weight_buffer, 1);
    v->bias = fetch_vector(j, j->bias, begin, n, v->bias_buffer, 0);
}

static void write_number(const job *j, int k, int64_t row, double value)
{
    char *to = row_at(&j->r, k, row);
    if (to)
        tarn__store[j->r.operand[k].dtype][COMPUTE_F64](&value, to, 1, 1);
}

static double read_number(const job *j, int k, int64_t row)
{
    double value = 0;
    const char *from = row_at(&j->r, k, row);
    if (from)
        tarn__load[j->r.operand[k].dtype][COMPUTE_F64](from, 1, &value, 1);
    return value;
}

/* ---- forward --------------------------------------------------------------------------------------------------------------- */

/* The mean of row x (0 for rmsnorm) and 1 / deviation. */
static void measure(const job *j, const char *x, char *buffer, double *mean, double *rstd)
{
    const row_set *r = &j->r;
    double sum = 0, spread = 0;
    EACH_BLOCK(begin, n, j->centred ? r->length : 0)
        sum += j->maths->sum(fetch(r, 1, x, begin, n, buffer), n);
    *mean = sum / (double)r->length;
    EACH_BLOCK(begin, n, r->length)
        spread += j->maths->spread(fetch(r, 1, x, begin, n, buffer), *mean, n);
    *rstd = 1 / sqrt(spread / (double)r->length + j->epsilon);
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
    EACH_BLOCK(begin, n, r->length) {
        void *to = place(r, 1, sum, begin, buffer);
        j->maths->plus(fetch(r, 4, first, begin, n, buffer), fetch_term(j, row, second, begin, n, other), to, n);
        put_back(r, 1, sum, begin, n, to);
    }
}

static void norm_row(const job *j, int64_t row, vectors *v, char *buffer)
{
    const row_set *r = &j->r;
    const maths *m = j->maths;
    char *x = row_at(r, 1, row);
    char *y = row_at(r, 0, row);
    double mean, rstd;
    if (r->operand[4].base)
        sum_row(j, row, x, buffer, buffer + BLOCK * 8);
    measure(j, x, buffer, &mean, &rstd);
    EACH_BLOCK(begin, n, r->length) {
        char *to = place(r, 0, y, begin, buffer);
        if (r->length > BLOCK)
            fetch_vectors(j, begin, n, v);
        m->normalise(fetch(r, 1, x, begin, n, buffer), v->weight, v->bias, to, mean, rstd, n);
        put_back(r, 0, y, begin, n, to);
    }
    write_number(j, 2, row, mean);
    write_number(j, 3, row, rstd);
}

static void norm_rows(int64_t begin, int64_t end, void *ctx)
{
    const job *j = ctx;
    vectors v;
    _Alignas(64) char buffer[2 * BLOCK * 8];
    if (j->r.length <= BLOCK)
        fetch_vectors(j, 0, j->r.length, &v);
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
    job j = {.centred = centred, .epsilon = params->epsilon, .weight = call->in[1], .bias = centred ? call->in[2] : NULL};
    run_forward(&j, 4, (const tarn__view *[]){call->out[0], call->in[0], centred ? call->out[1] : NULL, call->out[centred ? 2 : 1]});
}

static void kernel_residual_norm(const tarn__call *call)
{
    const tarn__residual_norm *params = call->params;
    job j = {.centred = !params->rms, .epsilon = params->epsilon, .weight = call->in[2], .bias = call->in[3]};
    j.random = params->random.a > 0 ? &params->random : NULL;
    run_forward(&j, 6, (const tarn__view *[]){call->out[1], call->out[0], call->out[2], call->out[3], call->in[0], call->in[1]});
}

/* ---- backward -------------------------------------------------------------------------------------------------------------- */

typedef struct grad_buffers {
    vectors v;
    _Alignas(64) char x[BLOCK * 8];
    _Alignas(64) char g[BLOCK * 8];
    _Alignas(64) char own[BLOCK * 8];
} grad_buffers;

/* gx = rstd · (gw - mean(gw) - x̂ · mean(gw · x̂)) with gw = g · weight and x̂ = (x - mean) · rstd; rmsnorm lacks the first mean. */
static void grad_row(const job *j, int64_t row, grad_buffers *b, char *gweight, char *gbias)
{
    const row_set *r = &j->r;
    const maths *m = j->maths;
    const char *x = row_at(r, 1, row), *g = row_at(r, 4, row);
    double mean = read_number(j, 2, row), rstd = read_number(j, 3, row), sums[2] = {0, 0};
    if (r->length <= SHORT_ROW) /* the saved ones were rounded */
        measure(j, x, b->x, &mean, &rstd);
    EACH_BLOCK(begin, n, r->length) {
        if (r->length > BLOCK)
            fetch_vectors(j, begin, n, &b->v);
        m->sums(fetch(r, 1, x, begin, n, b->x), fetch(r, 4, g, begin, n, b->g), b->v.weight, gweight ? gweight + begin * m->size : NULL,
                gbias ? gbias + begin * m->size : NULL, mean, rstd, n, sums);
    }
    if (!j->wants_gx)
        return;
    char *gx = row_at(r, 0, row);
    const char *own = row_at(r, 5, row);
    double means[2] = {j->centred ? sums[0] / (double)r->length : 0, sums[1] / (double)r->length};
    EACH_BLOCK(begin, n, r->length) {
        void *to = place(r, 0, gx, begin, b->x);
        if (r->length > BLOCK)
            fetch_vectors(j, begin, n, &b->v);
        m->grad(fetch(r, 1, x, begin, n, b->x), fetch(r, 4, g, begin, n, b->g), b->v.weight, to, mean, rstd, means, n);
        if (own)
            m->plus(to, fetch(r, 5, own, begin, n, b->own), to, n);
        put_back(r, 0, gx, begin, n, to);
        int64_t number = row * r->length + begin, size = r->operand[0].size;
        if (j->dropped)
            drop_elements(j->random, number, r->operand[0].dtype, gx + begin * size, j->dropped + number * size, n);
    }
}

static void grad_chunks(int64_t begin, int64_t end, void *ctx)
{
    const job *j = ctx;
    grad_buffers b;
    int64_t bytes = j->r.length * j->maths->size;
    if (j->r.length <= BLOCK)
        fetch_vectors(j, 0, j->r.length, &b.v);
    for (; begin < end; begin++) {
        char *partial = j->partial + 2 * begin * bytes;
        int64_t row = begin * j->chunk_rows, last = row + j->chunk_rows < j->r.count ? row + j->chunk_rows : j->r.count;
        if (j->gweight || j->gbias)
            memset(partial, 0, (size_t)(2 * bytes));
        for (; row < last; row++)
            grad_row(j, row, &b, j->gweight ? partial : NULL, j->gbias ? partial + bytes : NULL);
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
            char *place_of = (char *)tarn__view_at(to[which]) + at * stride * (int64_t)tarn__dtype_bytes(to[which]->dtype);
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
    *j = (job){.centred = centred, .epsilon = params->epsilon, .weight = call->in[1], .gweight = call->out[1], .gbias = centred ? call->out[2] : NULL};
    plan_backward(j, (const tarn__view *[]){call->out[0], call->in[0], centred ? call->in[2] : NULL, call->in[centred ? 3 : 2], call->in[centred ? 4 : 3], NULL},
                  call->scratch);
}

static void describe_residual(const tarn__call *call, job *j)
{
    const tarn__residual_norm *params = call->params;
    *j = (job){.centred = !params->rms, .epsilon = params->epsilon, .weight = call->in[1], .gweight = call->out[1], .gbias = call->out[2]};
    j->random = &params->random;
    j->dropped = call->out[3] ? tarn__view_at(call->out[3]) : NULL;
    plan_backward(j, (const tarn__view *[]){call->out[0], call->in[0], call->in[2], call->in[3], call->in[4], call->in[5]}, call->scratch);
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

/* ---- kernels --------------------------------------------------------------------------------------------------------------- */

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

void TARN__AT_LEVEL(tarn__cpu_norm)(tarn__kernel_row *rows)
{
    rows[TARN__K_residual_norm] = (tarn__kernel_row){kernel_residual_norm, TARN__FLOATS, NULL};
    rows[TARN__K_residual_norm_grad] = (tarn__kernel_row){kernel_residual_norm_grad, TARN__FLOATS, residual_norm_grad_scratch};
    rows[TARN__K_residual_norm_dropped] = (tarn__kernel_row){kernel_residual_norm, TARN__FLOATS & ~TARN__BIT(TARN_F64), NULL};
    rows[TARN__K_residual_norm_dropped_grad] = (tarn__kernel_row){kernel_residual_norm_grad, TARN__FLOATS & ~TARN__BIT(TARN_F64), residual_norm_grad_scratch};
    rows[TARN__K_layernorm] = (tarn__kernel_row){kernel_layernorm, TARN__FLOATS, NULL};
    rows[TARN__K_layernorm_grad] = (tarn__kernel_row){kernel_layernorm_grad, TARN__FLOATS, layernorm_grad_scratch};
    rows[TARN__K_rmsnorm] = (tarn__kernel_row){kernel_rmsnorm, TARN__FLOATS, NULL};
    rows[TARN__K_rmsnorm_grad] = (tarn__kernel_row){kernel_rmsnorm_grad, TARN__FLOATS, rmsnorm_grad_scratch};
}
