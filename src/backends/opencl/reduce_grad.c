/* reduce_grad.c: gradients of reductions: a reduction whose states stay in scratch, then one pass over x. And scale_grad, the gradients of x · w where w is
 * repeated: a sum of products and a product. */
#include "backends/opencl/reduce.h"

typedef struct grad {
    const char *name; /* "extremum": of reduce_grad.cl */
    tarn__cl_reduction reduction;
    tarn__view states;         /* in g's shape */
    const tarn__view *g, *y;   /* y: of extremum_grad */
    tarn__cl_options options;
    tarn__nest nest;
    bool is_small;
    int per; /* elements of a work-item */
} grad;

static void describe(grad *d, const tarn__call *call, const char *name, const char *op, const tarn__view *g, const tarn__view *y)
{
    *d = (grad){.name = name, .g = g, .y = y, .states = *g};
    tarn__view_pack(&d->states);
    d->reduction = (tarn__cl_reduction){.op = op, .x = call->in[0], .z = y, .y = &d->states, .is_state = true, .scale = 1};
    int64_t outputs = tarn__view_count(g), count = tarn__view_count(call->in[0]);
    if (op[0] == 's' && count > 0)
        d->reduction.scale = (double)outputs / (double)count; /* the mean */
}

static void write_options(grad *d, const tarn__call *call)
{
    const tarn__view *gx = call->out[0], *x = call->in[0];
    tarn__nest_make(&d->nest, 5, (const tarn__view *[]){gx, x, d->g, &d->states, d->y});
    tarn__cl_option_compute(&d->options, d->reduction.compute);
    d->is_small = tarn__cl_option_index(&d->options, &d->nest);
    tarn__cl_option(&d->options, " -DGRAD_%s -DT_GX=%s -DT_X=%s -DT_G=%s", d->name, tarn__cl_type(gx->dtype), tarn__cl_type(x->dtype), tarn__cl_type(d->g->dtype));
    d->per = tarn__cl_at(call->device)->in_lockstep ? 4 : 1;
    tarn__cl_option(&d->options, " -DPER=%d", d->per);
    if (d->y)
        tarn__cl_option(&d->options, " -DT_Y=%s", tarn__cl_type(d->y->dtype));
}

static void run(grad *d, const tarn__call *call)
{
    tarn_dtype dtype = call->in[0]->dtype;
    d->reduction.compute = d->name[0] == 'e' ? tarn__cl_compute_of(dtype) : tarn__cl_state_of(call, dtype); /* what is counted needs no more digits */
    write_options(d, call);
    if (d->nest.count == 0 || !tarn__cl_reduce_ready(call, &d->reduction) || !tarn__cl_ready(call, "reduce_grad", "reduce_grad", d->options.text))
        return;
    tarn__cl_reduce(call, &d->reduction);
    tarn__cl_launch launch = tarn__cl_begin(call, "reduce_grad", "reduce_grad", d->options.text);
    tarn__cl_view(&launch, call->out[0]);
    tarn__cl_view(&launch, call->in[0]);
    tarn__cl_view(&launch, d->g);
    tarn__cl_scratch(&launch, call, 0);
    tarn__cl_view(&launch, d->y);
    tarn__cl_index(&launch, d->is_small, d->nest.count);
    tarn__cl_places(&launch, d->is_small, &d->nest);
    tarn__cl_over(&launch, (d->nest.count + d->per - 1) / d->per);
}

#define KERNEL(name, op, g, y)                                                                                                            \
    static size_t scratch_##name(const tarn__call *call)                                                                                  \
    {                                                                                                                                    \
        grad d;                                                                                                                          \
        describe(&d, call, #name, op, g, y);                                                                                             \
        return tarn__cl_reduce_scratch(call, &d.reduction);                                                                                    \
    }                                                                                                                                    \
    static void kernel_##name(const tarn__call *call)                                                                                    \
    {                                                                                                                                    \
        grad d;                                                                                                                          \
        describe(&d, call, #name, op, g, y);                                                                                             \
        run(&d, call);                                                                                                                   \
    }
KERNEL(extremum, "equal", call->in[2], call->in[1])
KERNEL(prod, "nonzero", call->in[1], NULL)
KERNEL(var, "sum", call->in[1], NULL)

/* ---- scale_grad ------------------------------------------------------------------------------------------------------------ */

static tarn__cl_reduction sums_of(const tarn__call *call)
{
    return (tarn__cl_reduction){.op = "dot", .x = call->in[0], .z = call->in[2], .y = call->out[1], .scale = 1};
}

static size_t scratch_scale_grad(const tarn__call *call)
{
    tarn__cl_reduction sums = sums_of(call);
    return tarn__cl_reduce_scratch(call, &sums);
}

static void kernel_scale_grad(const tarn__call *call)
{
    tarn__cl_reduction sums = sums_of(call);
    sums.compute = tarn__cl_state_of(call, call->in[0]->dtype);
    if (!tarn__cl_reduce_ready(call, &sums))
        return;
    if (call->out[0]) {
        tarn__elementwise none = {0};
        tarn__call product = *call;
        product.inputs = 2;
        product.outputs = 1;
        product.in[0] = call->in[2];
        product.in[1] = call->in[1];
        product.params = &none;
        product.params_bytes = sizeof(none);
        tarn__cl_rows()[TARN__K_mul].run(&product);
    }
    tarn__cl_reduce(call, &sums);
}

void tarn__cl_reduction_gradients(tarn__kernel_row *rows)
{
    rows[TARN__K_extremum_grad] = (tarn__kernel_row){kernel_extremum, TARN__FLOATS, scratch_extremum};
    rows[TARN__K_prod_grad] = (tarn__kernel_row){kernel_prod, TARN__FLOATS, scratch_prod};
    rows[TARN__K_var_grad] = (tarn__kernel_row){kernel_var, TARN__FLOATS, scratch_var};
    rows[TARN__K_scale_grad] = (tarn__kernel_row){kernel_scale_grad, TARN__FLOATS, scratch_scale_grad};
}
