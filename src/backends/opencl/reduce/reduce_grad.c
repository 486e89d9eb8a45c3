/* reduce_grad.c: gradients of max, min, prod and var: a reduction whose states stay in scratch, then one pass over x.
 */
#include "backends/opencl/reduce/reduce.h"

/* A gradient described for launch. */
typedef struct grad {
    const char *name; /* "max": the GRAD_ option of reduce_grad.cl */
    tarn__cl_reduction reduction;
    tarn__view states;       /* in g's shape */
    const tarn__view *g, *y; /* y: of max_grad */
    tarn__cl_options options;
    tarn__nest nest;
    bool is_small;
    int per; /* elements of a work-item */
} grad;

/* `op` is the reduction whose states the gradient needs: counts of ties, products of nonzeros, or the mean. */
static void describe(grad *d, const tarn__call *call, const char *name, const char *op, const tarn__view *g,
                     const tarn__view *y)
{
    *d = (grad){.name = name, .g = g, .y = y, .states = *g};
    tarn__view_set_row_major(&d->states);
    d->reduction =
        (tarn__cl_reduction){.op = op, .x = call->in[0], .z = y, .y = &d->states, .is_state = true, .scale = 1};
    int64_t outputs = tarn__view_count(g), count = tarn__view_count(call->in[0]);
    if (op[0] == 's' && count > 0) { /* the mean */
        d->reduction.scale = (double)outputs / (double)count;
        d->reduction.correction = (double)count / (double)outputs;
    }
}

/* The nest of all operands: states have g's shape, contiguous. */
static void write_options(grad *d, const tarn__call *call)
{
    const tarn__view *gx = call->out[0], *x = call->in[0];
    tarn__nest_make(&d->nest, 5, (const tarn__view *[]){gx, x, d->g, &d->states, d->y});
    tarn__cl_option_compute(&d->options, d->reduction.compute);
    d->is_small = tarn__cl_option_index(&d->options, &d->nest);
    tarn__cl_option(&d->options, " -DGRAD_%s -DT_GX=%s -DT_X=%s -DT_G=%s", d->name, tarn__cl_dtype_name(gx->dtype),
                    tarn__cl_dtype_name(x->dtype), tarn__cl_dtype_name(d->g->dtype));
    d->per = tarn__cl_device_at(call->device)->in_lockstep ? 4 : 1;
    tarn__cl_option(&d->options, " -DPER=%d", d->per);
    if (d->y)
        tarn__cl_option(&d->options, " -DT_Y=%s", tarn__cl_dtype_name(d->y->dtype));
}

/* ---- rows of max and min that are not aligned vec4s ---------------------------------------------------------------
 */

#define MIN_ROWS 256 /* fewer would leave the device idle */
#define MIN_LENGTH 128
#define MAX_ELEMENTS 16 /* in registers between counting and writing; longer rows are read twice */

/* A work-group per contiguous row counts the elements equal to y and writes gx: x is read once. False, and nothing is
 * done, for other layouts or too few rows. */
static bool run_rows(const grad *d, const tarn__call *call)
{
    const tarn__view *x = call->in[0];
    tarn__nest rows, row;
    if (!tarn__cl_device_at(call->device)->has_local_memory || d->g->rank != x->rank || d->y->rank != x->rank)
        return false;
    tarn__cl_max_grad_axes(call, true, &row);
    tarn__cl_max_grad_axes(call, false, &rows);
    if (row.rank != 1 || row.stride[0][0] != 1 || row.stride[1][0] != 1 || row.count < MIN_LENGTH ||
        rows.count < MIN_ROWS)
        return false;
    const size_t group = row.count >= 2048 ? 256 : row.count >= 512 ? 128 : 64;
    int elements = 1;
    while (elements <= MAX_ELEMENTS && (int64_t)group * elements < row.count)
        elements *= 2;
    tarn__cl_options options = d->options;
    tarn__cl_option(&options, " -DGROUP=%zu -DELEMENTS=%d", group, elements <= MAX_ELEMENTS ? elements : 0);
    tarn__cl_launch launch = tarn__cl_try(call, "reduce_grad", "max_rows", options.text, group);
    if (!launch.good)
        return false;
    tarn__cl_arg_view(&launch, call->out[0]);
    tarn__cl_arg_view(&launch, x);
    tarn__cl_arg_view(&launch, d->g);
    tarn__cl_arg_view(&launch, d->y);
    tarn__cl_arg_index(&launch, d->is_small, row.count);
    tarn__cl_arg_indexer(&launch, d->is_small, &rows);
    tarn__cl_enqueue(&launch, 1, (size_t[]){(size_t)rows.count * group}, &group);
    return true;
}

/* ---- any of them ------------------------------------------------------------------------------------------------- */

/* Both programs are compiled before the first launch, so that a declined call has done nothing. */
static void run(grad *d, const tarn__call *call)
{
    tarn_dtype dtype = call->in[0]->dtype;
    /* counting needs no more precision */
    d->reduction.compute = d->name[0] == 'm' ? tarn__cl_compute_of(dtype) : tarn__cl_state_compute(call, dtype);
    write_options(d, call);
    if (d->nest.count > 0 && d->name[0] == 'm' && (tarn__cl_max_grad(call) || run_rows(d, call)))
        return;
    if (d->nest.count == 0 || !tarn__cl_reduce_compiles(call, &d->reduction) ||
        !tarn__cl_compiles(call, "reduce_grad", "reduce_grad", d->options.text))
        return;
    tarn__cl_reduce(call, &d->reduction);
    tarn__cl_launch launch = tarn__cl_begin(call, "reduce_grad", "reduce_grad", d->options.text);
    tarn__cl_arg_view(&launch, call->out[0]);
    tarn__cl_arg_view(&launch, call->in[0]);
    tarn__cl_arg_view(&launch, d->g);
    tarn__cl_arg_scratch(&launch, call, 0);
    tarn__cl_arg_view(&launch, d->y);
    tarn__cl_arg_index(&launch, d->is_small, d->nest.count);
    tarn__cl_arg_indexer(&launch, d->is_small, &d->nest);
    tarn__cl_enqueue_elements(&launch, (d->nest.count + d->per - 1) / d->per);
}

#define KERNEL(name, op, g, y, min_bytes) \
    static size_t scratch_##name(const tarn__call *call) \
    { \
        grad d; \
        describe(&d, call, #name, op, g, y); \
        const size_t bytes = tarn__cl_reduce_scratch(call, &d.reduction), other = min_bytes; \
        return bytes > other ? bytes : other; \
    } \
    static void kernel_##name(const tarn__call *call) \
    { \
        grad d; \
        describe(&d, call, #name, op, g, y); \
        run(&d, call); \
    }
KERNEL(max, "equal", call->in[2], call->in[1], tarn__cl_max_grad_scratch(call))
KERNEL(prod, "nonzero", call->in[1], NULL, 0)
KERNEL(var, "sum", call->in[1], NULL, 0)

void tarn__cl_register_reduce_grad(tarn__kernel_row *rows)
{
    rows[TARN__K_max_grad] = tarn__row(kernel_max, TARN__FLOATS, scratch_max);
    rows[TARN__K_prod_grad] = tarn__row(kernel_prod, TARN__FLOATS, scratch_prod);
    rows[TARN__K_var_grad] = tarn__row(kernel_var, TARN__FLOATS, scratch_var);
}
