/* reduce_grad.c: gradients of max, min, prod and var: a reduction whose states stay in scratch, then one pass over x.
 */
#include "backends/opencl/reduce/reduce.h"

/* Rows of max and min in work-groups. */
typedef struct row_job {
    tarn__nest rows; /* operands gx, x, g, y */
    int64_t length;
    size_t group;
} row_job;

/* States, then a pass over x. */
typedef struct state_job {
    tarn__cl_reduce_job reduction;
    tarn__nest nest; /* operands gx, x, g, states, y */
} state_job;

/* A gradient described for launch. */
typedef struct job {
    enum { EMPTY, SPECULATED, ROWS, STATES } path;
    bool is_small;
    int per;                       /* elements of a work-item */
    const tarn__cl_kernel *kernel; /* of rows, and of the pass over x */
    union {
        tarn__cl_max_grad_job speculated;
        row_job by_rows;
        state_job by_states;
    };
} job;

/* A gradient and its operands. */
typedef struct grad {
    const char *name; /* "max": the GRAD_ option of reduce_grad.cl */
    tarn__cl_reduction reduction;
    tarn__view states;       /* in g's shape, contiguous */
    const tarn__view *g, *y; /* y: of max_grad */
} grad;

/* `op` is the reduction whose states the gradient needs: counts of ties, products of nonzeros, or the mean. */
static void describe(grad *d, const tarn__call *call, const char *name, const char *op, const tarn__view *g,
                     const tarn__view *y)
{
    const tarn_dtype dtype = call->in[0]->dtype;
    *d = (grad){.name = name, .g = g, .y = y, .states = *g};
    tarn__view_set_row_major(&d->states);
    d->reduction =
        (tarn__cl_reduction){.op = op, .x = call->in[0], .z = y, .y = &d->states, .is_state = true, .scale = 1};
    /* counting needs no more precision */
    d->reduction.compute = name[0] == 'm' ? tarn__cl_compute_of(dtype) : tarn__cl_state_compute(call, dtype);
    int64_t outputs = tarn__view_count(g), count = tarn__view_count(call->in[0]);
    if (op[0] == 's' && count > 0) { /* the mean */
        d->reduction.scale = (double)outputs / (double)count;
        d->reduction.correction = (double)count / (double)outputs;
    }
}

static void write_options(const grad *d, const job *j, const tarn__call *call, tarn__cl_options *options)
{
    tarn__cl_option_compute(options, d->reduction.compute);
    tarn__cl_option_small(options, j->is_small);
    tarn__cl_option(options, " -DGRAD_%s -DT_GX=%s -DT_X=%s -DT_G=%s", d->name,
                    tarn__cl_dtype_name(call->out[0]->dtype), tarn__cl_dtype_name(call->in[0]->dtype),
                    tarn__cl_dtype_name(d->g->dtype));
    tarn__cl_option(options, " -DPER=%d", j->per);
    if (d->y)
        tarn__cl_option(options, " -DT_Y=%s", tarn__cl_dtype_name(d->y->dtype));
}

/* ---- rows of max and min that are not aligned vec4s ---------------------------------------------------------------
 */

#define MIN_ROWS 256 /* fewer would leave the device idle */
#define MIN_LENGTH 128
#define MAX_ELEMENTS 16 /* in registers between counting and writing; longer rows are read twice */

/* A work-group per contiguous row counts the elements equal to y and writes gx: x is read once. False for other
 * layouts, too few rows, and where the kernel does not compile. */
static bool prepare_rows(const grad *d, const tarn__call *call, const tarn__cl_options *shared, job *j)
{
    const tarn__view *x = call->in[0];
    row_job *r = &j->by_rows;
    tarn__nest row;
    if (!tarn__cl_device_at(call->device)->has_local_memory || d->g->rank != x->rank || d->y->rank != x->rank)
        return false;
    tarn__cl_max_grad_axes(call, true, &row);
    tarn__cl_max_grad_axes(call, false, &r->rows);
    if (row.rank != 1 || row.stride[0][0] != 1 || row.stride[1][0] != 1 || row.count < MIN_LENGTH ||
        r->rows.count < MIN_ROWS)
        return false;
    r->length = row.count;
    r->group = row.count >= 2048 ? 256 : row.count >= 512 ? 128 : 64;
    int elements = 1;
    while (elements <= MAX_ELEMENTS && (int64_t)r->group * elements < row.count)
        elements *= 2;
    tarn__cl_options options = *shared;
    tarn__cl_option(&options, " -DGROUP=%zu -DELEMENTS=%d", r->group, elements <= MAX_ELEMENTS ? elements : 0);
    j->kernel = tarn__cl_find(call, "reduce_grad", "max_rows", options.text);
    return tarn__cl_allows(j->kernel, r->group);
}

static void run_rows(const grad *d, const tarn__call *call, const job *j)
{
    const row_job *r = &j->by_rows;
    tarn__cl_launch launch = tarn__cl_begin_kernel(call, j->kernel);
    tarn__cl_arg_view(&launch, call->out[0]);
    tarn__cl_arg_view(&launch, call->in[0]);
    tarn__cl_arg_view(&launch, d->g);
    tarn__cl_arg_view(&launch, d->y);
    tarn__cl_arg_index(&launch, j->is_small, r->length);
    tarn__cl_arg_indexer(&launch, j->is_small, &r->rows);
    tarn__cl_enqueue(&launch, 1, (size_t[]){(size_t)r->rows.count * r->group}, &r->group);
}

/* ---- any of them ------------------------------------------------------------------------------------------------- */

static tarn__plan_status prepare_states(const grad *d, const tarn__call *call, const tarn__cl_options *options,
                                        const tarn__nest *nest, job *j)
{
    state_job *s = &j->by_states;
    s->nest = *nest;
    tarn__cl_reduce_describe(call, &d->reduction, &s->reduction);
    if (tarn__cl_reduce_find(call, &d->reduction, &s->reduction) != TARN__PLAN_READY)
        return TARN__PLAN_DECLINED;
    j->kernel = tarn__cl_find(call, "reduce_grad", "reduce_grad", options->text);
    return tarn__cl_ready(call, tarn__cl_allows(j->kernel, 1));
}

static size_t state_bytes(const grad *d, const tarn__call *call)
{
    tarn__cl_reduce_job reduction;
    tarn__cl_reduce_describe(call, &d->reduction, &reduction);
    return reduction.scratch_bytes;
}

/* Speculation, rows, states: the first whose kernels compile. Scratch serves any of them, since a meta device does not
 * know which it will be. */
static tarn__plan_status prepare(const grad *d, const tarn__call *call, tarn__plan *plan)
{
    job *j = tarn__cl_reserve_job(call, plan, sizeof(*j));
    tarn__cl_options options = {.length = 0};
    tarn__nest nest;
    size_t bytes = 0;
    if (!j)
        return TARN__PLAN_FAILED;
    tarn__nest_make(&nest, 5, (const tarn__view *[]){call->out[0], call->in[0], d->g, &d->states, d->y});
    j->is_small = tarn__cl_nest_is_small(&nest);
    j->per = tarn__cl_device_at(call->device)->in_lockstep ? 4 : 1;
    write_options(d, j, call, &options);
    j->path = nest.count == 0                                                                ? EMPTY
              : d->name[0] == 'm' && tarn__cl_max_grad_prepare(call, &j->speculated, &bytes) ? SPECULATED
              : d->name[0] == 'm' && prepare_rows(d, call, &options, j)                      ? ROWS
                                                                                             : STATES;
    plan->scratch_bytes = state_bytes(d, call);
    plan->scratch_bytes = bytes > plan->scratch_bytes ? bytes : plan->scratch_bytes;
    return j->path == STATES ? prepare_states(d, call, &options, &nest, j) : TARN__PLAN_READY;
}

static void run_states(const grad *d, const tarn__call *call, const job *j)
{
    const state_job *s = &j->by_states;
    tarn__cl_reduce(call, &d->reduction, &s->reduction);
    tarn__cl_launch launch = tarn__cl_begin_kernel(call, j->kernel);
    tarn__cl_arg_view(&launch, call->out[0]);
    tarn__cl_arg_view(&launch, call->in[0]);
    tarn__cl_arg_view(&launch, d->g);
    tarn__cl_arg_scratch(&launch, call, 0);
    tarn__cl_arg_view(&launch, d->y);
    tarn__cl_arg_index(&launch, j->is_small, s->nest.count);
    tarn__cl_arg_indexer(&launch, j->is_small, &s->nest);
    tarn__cl_enqueue_elements(&launch, (s->nest.count + j->per - 1) / j->per);
}

static void run(const grad *d, const tarn__call *call)
{
    const job *j = tarn__plan_job(call->plan);
    if (j->path == SPECULATED)
        tarn__cl_max_grad(call, &j->speculated);
    else if (j->path == ROWS)
        run_rows(d, call, j);
    else if (j->path == STATES)
        run_states(d, call, j);
}

#define KERNEL(name, op, g, y) \
    static tarn__plan_status prepare_##name(const tarn__call *call, tarn__plan *plan) \
    { \
        grad d; \
        describe(&d, call, #name, op, g, y); \
        return prepare(&d, call, plan); \
    } \
    static void kernel_##name(const tarn__call *call) \
    { \
        grad d; \
        describe(&d, call, #name, op, g, y); \
        run(&d, call); \
    }
KERNEL(max, "equal", call->in[2], call->in[1])
KERNEL(prod, "nonzero", call->in[1], NULL)
KERNEL(var, "sum", call->in[1], NULL)

void tarn__cl_register_reduce_grad(tarn__kernel_row *rows)
{
    rows[TARN__K_max_grad] = tarn__row_planned(prepare_max, kernel_max, TARN__FLOATS);
    rows[TARN__K_prod_grad] = tarn__row_planned(prepare_prod, kernel_prod, TARN__FLOATS);
    rows[TARN__K_var_grad] = tarn__row_planned(prepare_var, kernel_var, TARN__FLOATS);
}
