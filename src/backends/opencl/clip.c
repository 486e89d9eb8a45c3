/* clip.c: sums of squares over the segments of a flat gradient, and the factor that clips its norm: the launchers of clip.cl. */
#include <stdio.h>

#include "backends/opencl/rows.h"

/* Work-items of a chunk, a segment, or all of them. */
static size_t group_of(const tarn__call *call, size_t most)
{
    const tarn__cl_device *device = tarn__cl_at(call->device);
    return device->local_is_real ? tarn__cl_group_of(device, most) : 1;
}

static void run_chunks(const tarn__call *call)
{
    const size_t group = group_of(call, 256);
    const int64_t count = call->in[1]->shape[0];
    char options[96];
    snprintf(options, sizeof(options), "-DCHUNKS -DDENSE -DGROUP=%zu -DLANES=%d -DT_X=%s", group, group > 1 ? 1 : 16, tarn__cl_type(call->in[0]->dtype));
    tarn__cl_launch launch = tarn__cl_begin(call, "clip", "square_chunks", options);
    tarn__cl_view(&launch, call->in[0]);
    tarn__cl_view(&launch, call->in[1]);
    tarn__cl_scratch(&launch, call, 0);
    tarn__cl_long(&launch, count);
    tarn__cl_go(&launch, 1, (size_t[]){(size_t)count * group}, (size_t[]){group});
}

static void run_square_sums(const tarn__call *call)
{
    const size_t group = group_of(call, 64);
    const int64_t segments = call->out[0]->shape[0];
    char options[96];
    run_chunks(call);
    snprintf(options, sizeof(options), "-DSEGMENTS -DGROUP=%zu -DLANES=1 -DT_X=f32", group);
    tarn__cl_launch launch = tarn__cl_begin(call, "clip", "square_segments", options);
    tarn__cl_view(&launch, call->in[2]);
    tarn__cl_scratch(&launch, call, 0);
    tarn__cl_view(&launch, call->out[0]);
    tarn__cl_long(&launch, segments);
    tarn__cl_go(&launch, 1, (size_t[]){(size_t)segments * group}, (size_t[]){group});
}

static size_t square_sums_scratch(const tarn__call *call)
{
    return sizeof(double) * (size_t)call->in[1]->shape[0]; /* room for f64, whatever `real` is */
}

static void run_clip_factor(const tarn__call *call)
{
    const tarn__clip *clip = call->params;
    const size_t group = group_of(call, 64);
    char options[96];
    snprintf(options, sizeof(options), "-DFACTOR -DGROUP=%zu -DLANES=1 -DT_X=f32 -DT_NORM=%s", group, tarn__cl_type(call->out[0]->dtype));
    tarn__cl_launch launch = tarn__cl_begin(call, "clip", "clip_factor", options);
    tarn__cl_view(&launch, call->in[0]);
    tarn__cl_long(&launch, call->in[0]->shape[0]);
    tarn__cl_view(&launch, call->out[0]);
    tarn__cl_view(&launch, call->out[1]);
    tarn__cl_real(&launch, clip->max_norm);
    tarn__cl_real(&launch, 1e-6);
    tarn__cl_int(&launch, clip->again);
    tarn__cl_go(&launch, 1, &group, &group);
}

void tarn__cl_clip(tarn__kernel_row *rows)
{
    rows[TARN__K_square_sums] = (tarn__kernel_row){run_square_sums, TARN__BIT(TARN_F32) | TARN__BIT(TARN_F64), square_sums_scratch};
    rows[TARN__K_clip_factor] = (tarn__kernel_row){run_clip_factor, TARN__BIT(TARN_F64), NULL};
}
