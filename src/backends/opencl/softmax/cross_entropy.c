/* cross_entropy.c: cross entropy of rows of logits, its gradient, and both in one: the launchers of cross_entropy.cl.
 */
#include <stdio.h>

#include "backends/opencl/common/rows.h"

enum { LOGITS, TARGET, LOSS, LSE, GRADIENT, GRAD, OPERANDS }; /* each kernel has some of them */

/* A row per work-group; an operand that a kernel lacks has a NULL memory. */
static void run(const tarn__call *call, const char *what, tarn__view *operand)
{
    const tarn__cross_entropy *params = call->params;
    const tarn__view *views[OPERANDS];
    const char *type[OPERANDS];
    tarn__cl_row_set rows;
    char own[160];
    for (int k = 0; k < OPERANDS; k++) {
        views[k] = operand[k].memory ? &operand[k] : NULL;
        type[k] = tarn__cl_dtype_name(views[k] ? operand[k].dtype : TARN_F32);
    }
    tarn__cl_row_set_describe(&rows, 1, OPERANDS, views);
    rows.count = rows.nest.count; /* rows without classes have no valid target, which is reported */
    if (rows.count == 0)
        return;
    const tarn__view *lines[] = {views[LOGITS], views[GRAD]};
    /* the form depends on the operands with rows of classes alone */
    tarn__cl_row_set two;
    tarn__cl_row_set_describe(&two, 1, 2, lines);
    tarn__cl_row_form form = tarn__cl_row_form_of(tarn__cl_device_at(call->device), &two, 1, 2, lines);
    /* Per-row operands (targets, losses) are read as scalars, so their alignment does not matter. */
    tarn__cl_row_vec4(&two, &form, 1, 2, lines);
    snprintf(own, sizeof(own), "%s -DT_X=%s -DT_TARGET=%s -DT_LOSS=%s -DT_G=%s -DT_GRAD=%s", what, type[LOGITS],
             type[TARGET], type[LOSS], type[GRADIENT], type[GRAD]);
    tarn__cl_launch launch = tarn__cl_begin_rows(call, "cross_entropy", "cross_entropy", &form, own);
    tarn__cl_arg_value(&launch, &rows, sizeof(rows));
    for (int k = 0; k < OPERANDS; k++)
        tarn__cl_arg_view(&launch, views[k]);
    tarn__cl_arg_real(&launch, params->smoothing);
    tarn__cl_arg_real(&launch, params->scale);
    tarn__cl_arg_long(&launch, params->ignore);
    tarn__cl_arg_int(&launch, params->has_ignore);
    tarn__cl_arg_fault(&launch, call);
    tarn__cl_enqueue_rows(&launch, &form, rows.count);
}

/* Losses (rows) and LSE (rows). */
static void run_cross_entropy(const tarn__call *call)
{
    run(call, " -DMAKE_LOSS",
        (tarn__view[OPERANDS]){[LOGITS] = *call->in[0],
                               [TARGET] = tarn__cl_as_column(call->in[1]),
                               [LOSS] = tarn__cl_as_column(call->out[0]),
                               [LSE] = tarn__cl_as_column(call->out[1])});
}

/* The gradient of the logits from the saved LSE. */
static void run_cross_entropy_grad(const tarn__call *call)
{
    run(call, " -DMAKE_GRAD",
        (tarn__view[OPERANDS]){[LOGITS] = *call->in[0],
                               [TARGET] = tarn__cl_as_column(call->in[1]),
                               [LSE] = tarn__cl_as_column(call->in[2]),
                               [GRADIENT] = tarn__cl_as_column(call->in[3]),
                               [GRAD] = *call->out[0]});
}

/* Loss and gradient in one pass over logits that may be overwritten. */
static void run_cross_entropy_with_grad(const tarn__call *call)
{
    run(call, " -DMAKE_LOSS -DMAKE_GRAD",
        (tarn__view[OPERANDS]){[LOGITS] = *call->in[0],
                               [TARGET] = tarn__cl_as_column(call->in[1]),
                               [LOSS] = tarn__cl_as_column(call->out[0]),
                               [GRADIENT] = tarn__cl_as_column(call->in[2]),
                               [GRAD] = *call->out[1]});
}

void tarn__cl_register_cross_entropy(tarn__kernel_row *rows)
{
    rows[TARN__K_cross_entropy] = tarn__row(run_cross_entropy, TARN__FLOATS);
    rows[TARN__K_cross_entropy_grad] = tarn__row(run_cross_entropy_grad, TARN__FLOATS);
    rows[TARN__K_cross_entropy_with_grad] = tarn__row(run_cross_entropy_with_grad, TARN__FLOATS);
}
