/* clip.c: sums of squares over the segments of a flat gradient, and the clipping factor: the launchers of clip.cl. */
#include <stdio.h>

#include "backends/opencl/common/rows.h"

/* Scratch: a sum per chunk, sized for f64, whatever `real` is. */
static tarn__plan_status prepare_square_sums(const tarn__call *call, tarn__plan *plan)
{
    plan->scratch_bytes = sizeof(double) * (size_t)call->in[1]->shape[0];
    return TARN__PLAN_READY;
}

/* Sums of squares of chunks (chunks) into scratch. */
static void run_chunks(const tarn__call *call)
{
    const int64_t count = call->in[1]->shape[0];
    tarn__cl_row_form form = tarn__cl_group_form(tarn__cl_device_at(call->device), 256, true);
    char own[48];
    snprintf(own, sizeof(own), " -DCHUNKS -DT_X=%s", tarn__cl_dtype_name(call->in[0]->dtype));
    tarn__cl_launch launch = tarn__cl_begin_rows(call, "clip", "square_chunks", &form, own);
    tarn__cl_arg_view(&launch, call->in[0]);
    tarn__cl_arg_view(&launch, call->in[1]);
    tarn__cl_arg_scratch(&launch, call, 0);
    tarn__cl_arg_long(&launch, count);
    tarn__cl_enqueue_rows(&launch, &form, count);
}

/* Sums of squares of segments (segments) from those of their chunks. */
static void run_square_sums(const tarn__call *call)
{
    const int64_t segments = call->out[0]->shape[0];
    /* A segment has fewer chunks than a chunk has elements: a small work-group suffices. */
    tarn__cl_row_form form = tarn__cl_group_form(tarn__cl_device_at(call->device), 64, false);
    run_chunks(call);
    tarn__cl_launch launch = tarn__cl_begin_rows(call, "clip", "square_segments", &form, " -DSEGMENTS -DT_X=f32");
    tarn__cl_arg_view(&launch, call->in[2]);
    tarn__cl_arg_scratch(&launch, call, 0);
    tarn__cl_arg_view(&launch, call->out[0]);
    tarn__cl_arg_long(&launch, segments);
    tarn__cl_enqueue_rows(&launch, &form, segments);
}

/* Norm and factor from the sums, in one work-group. 1e-6 is torch's guard against division by 0. */
static void run_clip_factor(const tarn__call *call)
{
    const tarn__clip *clip = call->params;
    tarn__cl_row_form form = tarn__cl_group_form(tarn__cl_device_at(call->device), 64, false);
    char own[48];
    snprintf(own, sizeof(own), " -DFACTOR -DT_X=f32 -DT_NORM=%s", tarn__cl_dtype_name(call->out[0]->dtype));
    tarn__cl_launch launch = tarn__cl_begin_rows(call, "clip", "clip_factor", &form, own);
    tarn__cl_arg_view(&launch, call->in[0]);
    tarn__cl_arg_long(&launch, call->in[0]->shape[0]);
    tarn__cl_arg_view(&launch, call->out[0]);
    tarn__cl_arg_view(&launch, call->out[1]);
    tarn__cl_arg_real(&launch, clip->max_norm);
    tarn__cl_arg_real(&launch, 1e-6);
    tarn__cl_arg_int(&launch, clip->again);
    tarn__cl_enqueue_rows(&launch, &form, 1);
}

/* The dtypes are those of the first input: gradients for the sums, f64 sums for the factor. */
void tarn__cl_register_clip(tarn__kernel_row *rows)
{
    rows[TARN__K_square_sums] =
        tarn__row_planned(prepare_square_sums, run_square_sums, TARN__BIT(TARN_F32) | TARN__BIT(TARN_F64));
    rows[TARN__K_clip_factor] = tarn__row(run_clip_factor, TARN__BIT(TARN_F64));
}
