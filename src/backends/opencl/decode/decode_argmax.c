/* decode_argmax.c: greedy sampling: the launcher of decode_argmax.cl. */
#include <stdio.h>

#include "backends/opencl/runtime/opencl.h"

#define MAX_GROUP 1024

typedef struct job {
    const tarn__cl_kernel *kernel;
    size_t group;
} job;

static bool is_vec4(const tarn__view *x)
{
    return x->stride[1] == 1 && x->shape[1] % 4 == 0 && (x->offset | (x->shape[0] > 1 ? x->stride[0] : 0)) % 4 == 0;
}

/* The largest work-group that the device allows. */
static bool find(const tarn__call *call, job *j)
{
    char options[64];
    for (j->group = MAX_GROUP; j->group >= 64; j->group /= 2) {
        snprintf(options, sizeof(options), "-DT=%s -DGROUP=%zu%s", tarn__cl_dtype_name(call->in[0]->dtype), j->group,
                 is_vec4(call->in[0]) ? " -DVEC4" : "");
        j->kernel = tarn__cl_find(call, "decode_argmax", "argmax", options);
        if (tarn__cl_allows(j->kernel, j->group))
            return true;
    }
    return false;
}

static tarn__plan_status prepare_argmax_finite(const tarn__call *call, tarn__plan *plan)
{
    job *j = tarn__cl_reserve_job(call, plan, sizeof(*j));
    if (!j)
        return TARN__PLAN_FAILED;
    return call->is_meta ? TARN__PLAN_READY : tarn__cl_ready(call, find(call, j));
}

/* A work-group per row. */
static void kernel_argmax_finite(const tarn__call *call)
{
    const job *j = tarn__plan_job(call->plan);
    const tarn__view *x = call->in[0], *y = call->out[0];
    tarn__cl_launch l = tarn__cl_begin_kernel(call, j->kernel);
    tarn__cl_arg_view(&l, x);
    tarn__cl_arg_view(&l, y);
    tarn__cl_arg_long(&l, x->shape[1]);
    tarn__cl_arg_long(&l, x->stride[0]);
    tarn__cl_arg_long(&l, x->stride[1]);
    tarn__cl_arg_long(&l, y->stride[0]);
    tarn__cl_enqueue(&l, 1, (size_t[]){(size_t)x->shape[0] * j->group}, (size_t[]){j->group});
}

static bool fits(const tarn__call *call)
{
    const tarn__cl_device *device = tarn__cl_device_at(call->device);
    job j;
    return device && device->has_local_memory && call->in[0]->rank == 2 && call->in[0]->shape[1] > 0 && find(call, &j);
}

void tarn__cl_register_decode_argmax(tarn__kernel_row *rows)
{
    rows[TARN__K_argmax_finite] =
        tarn__row_fits(tarn__row_planned(prepare_argmax_finite, kernel_argmax_finite,
                                         TARN__BIT(TARN_F32) | TARN__BIT(TARN_BF16) | TARN__BIT(TARN_F16)),
                       fits);
}
