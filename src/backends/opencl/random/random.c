/* random.c: uniform, normal and dropout: the launchers of random.cl. */
#include "backends/opencl/common/element.h"

#include <math.h>

/* Parameters of random.cl, by kind of draw. */
typedef struct draw {
    const char *option; /* -DDRAWS_ */
    float a, b, c;
    uint32_t limit; /* of dropout */
} draw;

/* One work-item per four elements. Dropout multiplies in f64 where there is one, so that a 16-bit result is rounded
 * once. */
static void run(const tarn__call *call, const draw *d)
{
    const tarn__random *random = call->params;
    const tarn__view *y = call->out[0], *x = call->inputs ? call->in[0] : NULL;
    tarn__nest nest;
    tarn__cl_nest_in_order(&nest, 2, (const tarn__view *[]){y, x});
    if (nest.count == 0)
        return;
    bool is_f64 = y->dtype == TARN_F64 || (x && tarn__cl_device_at(call->device)->has_f64);
    tarn__cl_options options = {.length = 0};
    tarn__cl_option_compute(&options, is_f64 ? TARN__CL_F64 : TARN__CL_F32);
    bool is_small = tarn__cl_option_index(&options, &nest);
    tarn__cl_option(&options, " -D%s -DT=%s", d->option, tarn__cl_dtype_name(y->dtype));
    tarn__cl_launch launch = tarn__cl_begin(call, "random", "draw", options.text);
    tarn__cl_arg_view(&launch, y);
    tarn__cl_arg_view(&launch, x);
    tarn__cl_arg_value(&launch, &random->seed, sizeof(random->seed));
    tarn__cl_arg_value(&launch, &random->offset, sizeof(random->offset));
    tarn__cl_arg_value(&launch, &d->a, sizeof(d->a));
    tarn__cl_arg_value(&launch, &d->b, sizeof(d->b));
    tarn__cl_arg_value(&launch, &d->c, sizeof(d->c));
    tarn__cl_arg_value(&launch, &d->limit, sizeof(d->limit));
    tarn__cl_arg_index(&launch, is_small, nest.count);
    tarn__cl_arg_indexer(&launch, is_small, &nest);
    tarn__cl_enqueue_elements(&launch, (nest.count + 3) / 4);
}

static void kernel_uniform(const tarn__call *call)
{
    const tarn__random *r = call->params;
    run(call, &(draw){"DRAWS_uniform", (float)r->a, (float)(r->b - r->a), (float)r->b, 0});
}

static void kernel_normal(const tarn__call *call)
{
    const tarn__random *r = call->params;
    run(call, &(draw){"DRAWS_normal", (float)r->a, (float)r->b, 0, 0});
}

/* n / 2^24 < p exactly when n < p · 2^24, rounded up. */
static void kernel_dropout(const tarn__call *call)
{
    double p = ((const tarn__random *)call->params)->a;
    run(call, &(draw){"DRAWS_dropout", p < 1 ? (float)(1 / (1 - p)) : 0, 0, 0, (uint32_t)ceil(p * 0x1p24)});
}

void tarn__cl_register_random(tarn__kernel_row *rows)
{
    rows[TARN__K_uniform] = tarn__row(kernel_uniform, TARN__FLOATS);
    rows[TARN__K_normal] = tarn__row(kernel_normal, TARN__FLOATS);
    rows[TARN__K_dropout] = tarn__row(kernel_dropout, TARN__FLOATS);
}
