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

/* The number first, then the elements over it. */
static void kernel_spread(const tarn__call *call)
{
    const tarn__spread *spread = call->params;
    tarn__fill fill = {.value = spread->value};
    tarn__view window = *call->out[0];
    for (int i = 0; i < window.rank; i++) {
        window.offset += spread->begin[i] * window.stride[i];
        window.shape[i] = call->in[0]->shape[i];
        window.stride[i] *= spread->step[i];
    }
    tarn__call part = *call;
    part.inputs = 0;
    part.params = &fill;
    part.params_bytes = sizeof(fill);
    tarn__cl_rows()[TARN__K_fill].run(&part);
    part.inputs = 1;
    part.out[0] = &window;
    if (tarn__view_count(&window) > 0)
        tarn__cl_rows()[TARN__K_copy].run(&part);
}

void tarn__cl_moves(tarn__kernel_row *rows)
{
    rows[TARN__K_arange] = (tarn__kernel_row){kernel_arange, TARN__NUMBERS, NULL};
    rows[TARN__K_spread] = (tarn__kernel_row){kernel_spread, TARN__ALL, NULL};
}
