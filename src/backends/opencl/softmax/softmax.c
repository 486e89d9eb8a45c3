/* softmax.c: softmax and log_softmax along one axis, and their gradients: the launchers of softmax.cl. */
#include <stdio.h>

#include "backends/opencl/common/rows.h"

enum { OUT, IN, GY, OPERANDS }; /* as in softmax.cl */

/* A row per work-group. `views` are output, input and gradient; NULL: absent. */
static void run(const tarn__call *call, const char *kernel, const char *what, const tarn__view *const *views)
{
    const tarn__along *params = call->params;
    const tarn__view *x = views[IN], *gy = views[GY];
    const int count = gy ? OPERANDS : GY; /* the gradient comes last */
    tarn__cl_row_set rows;
    char own[128];
    tarn__cl_row_set_describe(&rows, params->axis, count, views);
    if (rows.count == 0)
        return;
    tarn__cl_row_form form = tarn__cl_row_form_of(tarn__cl_device_at(call->device), &rows, params->axis, count, views);
    tarn__cl_row_vec4(&rows, &form, params->axis, count, views);
    const char *result = tarn__cl_dtype_name(views[OUT]->dtype);
    /* Each dtype combination is a program of its own, compiled at first use. */
    if (gy)
        snprintf(own, sizeof(own), " -DBACKWARD%s%s -DT_X=%s -DT_GX=%s -DT_G=%s", what,
                 params->from_x ? " -DFROM_X" : "", tarn__cl_dtype_name(x->dtype), result,
                 tarn__cl_dtype_name(gy->dtype));
    else
        snprintf(own, sizeof(own), " -DFORWARD%s -DT_X=%s -DT_Y=%s", what, tarn__cl_dtype_name(x->dtype), result);
    tarn__cl_launch launch = tarn__cl_begin_rows(call, "softmax", kernel, &form, own);
    tarn__cl_arg_value(&launch, &rows, sizeof(rows));
    for (int k = 0; k < count; k++)
        tarn__cl_arg_view(&launch, views[k]);
    tarn__cl_enqueue_rows(&launch, &form, rows.count);
}

/* y = e^(x - max) / Σ. */
static void run_softmax(const tarn__call *call)
{
    run(call, "softmax", "", (const tarn__view *[OPERANDS]){call->out[0], call->in[0], NULL});
}

/* y = x - LSE. */
static void run_log_softmax(const tarn__call *call)
{
    run(call, "softmax", " -DLOG", (const tarn__view *[OPERANDS]){call->out[0], call->in[0], NULL});
}

/* gx = y · (gy - Σ y · gy). The input is y, or x where y was rounded to 16 bits (params->from_x). */
static void run_softmax_grad(const tarn__call *call)
{
    run(call, "softmax_grad", "", (const tarn__view *[OPERANDS]){call->out[0], call->in[0], call->in[1]});
}

/* gx = gy - e^y · Σ gy. */
static void run_log_softmax_grad(const tarn__call *call)
{
    run(call, "softmax_grad", " -DLOG", (const tarn__view *[OPERANDS]){call->out[0], call->in[0], call->in[1]});
}

void tarn__cl_register_softmax(tarn__kernel_row *rows)
{
    rows[TARN__K_softmax] = tarn__row(run_softmax, TARN__FLOATS);
    rows[TARN__K_log_softmax] = tarn__row(run_log_softmax, TARN__FLOATS);
    rows[TARN__K_softmax_grad] = tarn__row(run_softmax_grad, TARN__FLOATS);
    rows[TARN__K_log_softmax_grad] = tarn__row(run_log_softmax_grad, TARN__FLOATS);
}
