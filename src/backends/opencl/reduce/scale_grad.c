/* scale_grad.c: gradients of x · w where w broadcasts: gx = g · w, and gw, the sums of g · x. On a GPU in one pass
 * where w has one element per row of vec4s; else a product and a sum of products. Operands: x, w and g; gx, which may
 * be NULL, and gw. */
#include "backends/opencl/common/rows.h"
#include "backends/opencl/reduce/reduce.h"

#define MIN_ROWS 256 /* fewer would leave the device idle */
#define MIN_VECS 64

/* A call described for launch: rows in one pass, or a reduction. */
typedef struct job {
    bool by_rows;
    int64_t vecs; /* of a row */
    size_t group;
    const tarn__cl_kernel *kernel; /* of rows */
    tarn__nest rows;               /* operands gx, x, w, g, gw */
    tarn__cl_reduce_job sums;
} job;

/* gw as a reduction of products over the axes along which w broadcasts. */
static tarn__cl_reduction sums_of(const tarn__call *call)
{
    return (tarn__cl_reduction){.op = "dot",
                                .compute = tarn__cl_state_compute(call, call->in[0]->dtype),
                                .x = call->in[0],
                                .z = call->in[2],
                                .y = call->out[1],
                                .scale = 1};
}

/* The rows, operands in the order of scale_grad.cl: gx, x, w, g, gw. False where rows are not aligned vec4s, or too
 * few. */
static bool describe_rows(const tarn__call *call, tarn__nest *rows)
{
    const tarn__view *x = call->in[0], *all[] = {call->out[0], x, call->in[1], call->in[2], call->out[1]}, *views[5];
    const int last = x->rank - 1;
    tarn__view part[5];
    for (int k = 0; k < 5; k++) {
        const bool has_elements = k != 2 && k != 4;
        if (!all[k] || all[k]->rank != x->rank || all[k]->dtype == TARN_F64 || last < 0 ||
            all[k]->shape[last] != (has_elements ? x->shape[last] : 1))
            return false;
        if (has_elements && (all[k]->stride[last] != 1 || all[k]->offset % 4 != 0))
            return false;
        for (int i = 0; i < last; i++)
            if (all[k]->shape[i] != x->shape[i] || (has_elements && all[k]->stride[i] % 4 != 0))
                return false;
        part[k] = *all[k];
        part[k].shape[last] = 1;
        views[k] = &part[k];
    }
    tarn__nest_make(rows, 5, views);
    return x->shape[last] % 4 == 0 && x->shape[last] / 4 >= MIN_VECS && rows->count >= MIN_ROWS;
}

/* False where rows do not fit, and where their kernel does not compile. */
static bool prepare_rows(const tarn__call *call, job *j)
{
    const tarn__cl_device *device = tarn__cl_device_at(call->device);
    tarn__cl_options options = {.length = 0};
    if (!device->has_local_memory || !describe_rows(call, &j->rows))
        return false;
    j->vecs = call->in[0]->shape[call->in[0]->rank - 1] / 4;
    j->group = tarn__cl_group_size(device, j->vecs >= 1024 ? 256 : j->vecs >= 512 ? 128 : 64);
    const tarn__view *all[] = {call->out[0], call->in[0], call->in[1], call->in[2], call->out[1]};
    static const char *const names[] = {"GX", "X", "W", "G", "GW"};
    if (!tarn__cl_option_index(&options, &j->rows) || j->vecs >= INT32_MAX / 8)
        return false;
    tarn__cl_option(&options, " -DGROUP=%zu -DLANES=4", j->group);
    for (int k = 0; k < 5; k++)
        tarn__cl_option(&options, " -DT_%s=%s", names[k], tarn__cl_dtype_name(all[k]->dtype));
    j->kernel = tarn__cl_find(call, "scale_grad", "scale_rows", options.text);
    return tarn__cl_allows(j->kernel, j->group);
}

/* Scratch is that of the reduction in both cases, since a meta device does not know whether rows compile. */
static tarn__plan_status prepare_scale_grad(const tarn__call *call, tarn__plan *plan)
{
    job *j = tarn__cl_reserve_job(call, plan, sizeof(*j));
    tarn__cl_reduction sums = sums_of(call);
    if (!j)
        return TARN__PLAN_FAILED;
    tarn__cl_reduce_describe(call, &sums, &j->sums);
    plan->scratch_bytes = j->sums.scratch_bytes;
    j->by_rows = prepare_rows(call, j);
    return j->by_rows ? TARN__PLAN_READY : tarn__cl_reduce_find(call, &sums, &j->sums);
}

/* x and g are read once. */
static void run_rows(const tarn__call *call, const job *j)
{
    const tarn__view *all[] = {call->out[0], call->in[0], call->in[1], call->in[2], call->out[1]};
    tarn__cl_launch launch = tarn__cl_begin_kernel(call, j->kernel);
    for (int k = 0; k < 5; k++)
        tarn__cl_arg_view(&launch, all[k]);
    tarn__cl_arg_int(&launch, (int32_t)j->vecs);
    tarn__cl_arg_indexer(&launch, true, &j->rows);
    tarn__cl_enqueue(&launch, 1, (size_t[]){(size_t)j->rows.count * j->group}, &j->group);
}

/* gx = g · w by the elementwise kernel, which broadcasts. */
static void multiply(const tarn__call *call)
{
    tarn__elementwise none = {0};
    tarn__call product = *call;
    product.inputs = 2;
    product.outputs = 1;
    product.in[0] = call->in[2];
    product.in[1] = call->in[1];
    product.params = &none;
    product.params_bytes = sizeof(none);
    tarn__cl_kernel_table()[TARN__K_mul].run(&product);
}

static void kernel_scale_grad(const tarn__call *call)
{
    const job *j = tarn__plan_job(call->plan);
    tarn__cl_reduction sums = sums_of(call);
    if (j->by_rows) {
        run_rows(call, j);
        return;
    }
    if (call->out[0])
        multiply(call);
    tarn__cl_reduce(call, &sums, &j->sums);
}

void tarn__cl_register_scale_grad(tarn__kernel_row *rows)
{
    rows[TARN__K_scale_grad] = tarn__row_planned(prepare_scale_grad, kernel_scale_grad, TARN__FLOATS);
}
