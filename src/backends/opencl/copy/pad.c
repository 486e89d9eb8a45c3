/* pad.c: pad (with interior padding, as XLA's pad) and arange. */
#include "backends/opencl/common/element.h"

/* In i64 where start and step are integers, else in the widest float: y is rounded once per element. */
static void kernel_arange(const tarn__call *call)
{
    const tarn__fill *fill = call->params;
    const tarn__view *y = call->out[0];
    bool is_integer = !tarn__is_float(y->dtype) && fill->step.real == (double)fill->step.integer;
    tarn__cl_compute compute = is_integer                                  ? TARN__CL_I64
                               : tarn__cl_device_at(call->device)->has_f64 ? TARN__CL_F64
                                                                           : TARN__CL_F32;
    tarn__cl_options options = {.length = 0};
    tarn__cl_option_compute(&options, compute);
    tarn__cl_option(&options, " -DT=%s", tarn__cl_dtype_name(y->dtype));
    tarn__cl_launch launch = tarn__cl_begin(call, "arange", "arange", options.text);
    tarn__cl_arg_view(&launch, y);
    tarn__cl_arg_long(&launch, y->shape[0]);
    tarn__cl_arg_long(&launch, y->stride[0]);
    tarn__cl_arg_scalar(&launch, compute, fill->value);
    tarn__cl_arg_scalar(&launch, compute, fill->step);
    tarn__cl_enqueue_elements(&launch, y->shape[0]);
}

/* Fills all of y with the padding value. */
static void fill(const tarn__call *call)
{
    tarn__call part = *call;
    tarn__fill fill = {.value = ((const tarn__pad *)call->params)->value};
    part.inputs = 0;
    part.params = &fill;
    part.params_bytes = sizeof(fill);
    tarn__cl_kernel_table()[TARN__K_fill].run(&part);
}

/* Writes each element of y once. False, and nothing is done, where window.c does not apply. */
static bool pad_once(const tarn__call *call)
{
    const tarn__pad *pad = call->params;
    tarn__pad_axis axis[TARN_MAX_RANK];
    return call->in[0]->dtype == call->out[0]->dtype &&
           tarn__cl_window(call, axis, tarn__pad_axes(call, axis), &pad->value);
}

/* In one pass, or fill first and then copy x. */
static void kernel_pad(const tarn__call *call)
{
    const tarn__pad *pad = call->params;
    tarn__view part_of_y = *call->out[0];
    if (tarn__view_count(&part_of_y) == 0 || pad_once(call))
        return;
    for (int i = 0; i < part_of_y.rank; i++) {
        part_of_y.offset += pad->begin[i] * part_of_y.stride[i];
        part_of_y.shape[i] = call->in[0]->shape[i];
        part_of_y.stride[i] *= pad->step[i];
    }
    fill(call);
    tarn__call part = *call;
    part.out[0] = &part_of_y;
    if (tarn__view_count(&part_of_y) > 0)
        tarn__cl_kernel_table()[TARN__K_copy].run(&part);
}

/* arange writes any number dtype; pad moves bits of all. */
void tarn__cl_register_pad(tarn__kernel_row *rows)
{
    rows[TARN__K_arange] = tarn__row(kernel_arange, TARN__NUMBERS);
    rows[TARN__K_pad] = tarn__row(kernel_pad, TARN__ALL);
}
