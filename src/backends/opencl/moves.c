/* moves.c: numbers in steps, and x laid into a window of y with one number around it. */
#include "backends/opencl/element.h"

static void kernel_arange(const tarn__call *call)
{
    const tarn__fill *fill = call->params;
    const tarn__view *y = call->out[0];
    bool is_whole = !tarn__is_float(y->dtype) && fill->step.real == (double)fill->step.integer;
    tarn__cl_compute compute = is_whole ? TARN__CL_I64 : tarn__cl_at(call->device)->has_f64 ? TARN__CL_F64 : TARN__CL_F32;
    tarn__cl_options options = {.length = 0};
    tarn__cl_option_compute(&options, compute);
    tarn__cl_option(&options, " -DT=%s", tarn__cl_type(y->dtype));
    tarn__cl_launch launch = tarn__cl_begin(call, "moves", "arange", options.text);
    tarn__cl_view(&launch, y);
    tarn__cl_long(&launch, y->shape[0]);
    tarn__cl_long(&launch, y->stride[0]);
    tarn__cl_number(&launch, compute, fill->value);
    tarn__cl_number(&launch, compute, fill->step);
    tarn__cl_over(&launch, y->shape[0]);
}

#define MANY (1 << 18) /* elements, of which none is written twice on a GPU: more launches are worth it */

static void fill(const tarn__call *call, const tarn__view *y)
{
    tarn__call part = *call;
    tarn__fill fill = {.value = ((const tarn__spread *)call->params)->value};
    part.inputs = 0;
    part.params = &fill;
    part.params_bytes = sizeof(fill);
    part.out[0] = y;
    tarn__cl_rows()[TARN__K_fill].run(&part);
}

/* On each axis what lies before the window and behind it, of what is left of y. */
static void fill_around(const tarn__call *call)
{
    const tarn__spread *spread = call->params;
    tarn__view rest = *call->out[0];
    for (int i = 0; i < rest.rank; i++) {
        const int64_t begin = spread->begin[i], size = call->in[0]->shape[i], whole = rest.shape[i], first = rest.offset;
        rest.shape[i] = begin;
        fill(call, &rest);
        rest.offset = first + (begin + size) * rest.stride[i];
        rest.shape[i] = whole - begin - size;
        fill(call, &rest);
        rest.offset = first + begin * rest.stride[i];
        rest.shape[i] = size;
    }
}

static bool is_piecewise(const tarn__call *call)
{
    const tarn__spread *spread = call->params;
    bool is_good = tarn__cl_at(call->device)->in_lockstep && tarn__view_count(call->out[0]) >= MANY;
    for (int i = 0; i < call->out[0]->rank; i++)
        is_good = is_good && (spread->step[i] == 1 || call->in[0]->shape[i] == 1);
    return is_good;
}

/* The number first, everywhere or around the window, then the elements. */
static void kernel_spread(const tarn__call *call)
{
    const tarn__spread *spread = call->params;
    tarn__view window = *call->out[0];
    for (int i = 0; i < window.rank; i++) {
        window.offset += spread->begin[i] * window.stride[i];
        window.shape[i] = call->in[0]->shape[i];
        window.stride[i] *= spread->step[i];
    }
    if (is_piecewise(call))
        fill_around(call);
    else
        fill(call, call->out[0]);
    tarn__call part = *call;
    part.out[0] = &window;
    if (tarn__view_count(&window) > 0)
        tarn__cl_rows()[TARN__K_copy].run(&part);
}

void tarn__cl_moves(tarn__kernel_row *rows)
{
    rows[TARN__K_arange] = (tarn__kernel_row){kernel_arange, TARN__NUMBERS, NULL};
    rows[TARN__K_spread] = (tarn__kernel_row){kernel_spread, TARN__ALL, NULL};
}
