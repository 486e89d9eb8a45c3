/* reduce.c: sums, products, maxima, minima, variances and counts over any axes.
 *
 * Few outputs of many elements are cut into chunks, by shape and kind of device alone; the chunks' states go to scratch
 * and are merged in order by a second launch, so results are deterministic. Three forms: `across` for adjacent outputs
 * on CPUs, `groups` for contiguous elements of an output on devices with local memory, `rows` for everything else. */
#include "backends/opencl/reduce/reduce.h"

#define GROUP 128
#define MIN_GROUP 8        /* ROOT of reduce.cl */
#define LANES 8            /* as in reduce.cl */
#define TARGET_CHUNKS 2048 /* of all outputs together, where there are enough elements */
#define MIN_CHUNK 2048
#define MANY_CHUNKS 32      /* more than these are merged by a work-group, where there are any */
#define TARGET_ITEMS 131072 /* of columns, where each has a work-item of its own on a GPU */
#define MIN_COLUMN 64

typedef tarn__cl_reduce_axes axes;
typedef tarn__cl_reduce_job job;

/* ---- the job ----------------------------------------------------------------------------------------------------- */

/* Stride of a view along an axis of x, 0 where it broadcasts; ranks are aligned at the end. */
static int64_t stride_at(const tarn__view *view, int axis, int rank)
{
    int own = view ? axis - (rank - view->rank) : -1;
    return own < 0 || view->shape[own] == 1 ? 0 : view->stride[own];
}

/* The axes of x that are reduced, or the others, adjacent ones merged. */
static void describe_axes(axes *a, const tarn__cl_reduction *r, bool reduced)
{
    const tarn__view *x = r->x, *others[] = {reduced ? x : r->y, reduced ? r->z : x, reduced ? NULL : r->z};
    tarn__view part[3], *views[3];
    for (int k = 0; k < 3; k++) {
        part[k] = (tarn__view){.rank = 0};
        views[k] = &part[k];
    }
    for (int i = 0; i < x->rank; i++) {
        bool is_reduced = r->y->rank == 0 || r->y->shape[i] == 1;
        for (int k = 0; k < 3 && is_reduced == reduced; k++) {
            part[k].shape[part[k].rank] = x->shape[i];
            part[k].stride[part[k].rank++] = stride_at(others[k], i, x->rank);
        }
    }
    tarn__nest nest;
    tarn__nest_make(&nest, 3, (const tarn__view *const *)views);
    *a = (axes){.rank = nest.rank, .count = nest.count};
    for (int i = 0; i < nest.rank; i++) {
        a->shape[i] = nest.shape[i];
        for (int k = 0; k < 3; k++)
            a->stride[k][i] = nest.stride[k][i];
    }
}

/* Chunks of at least MIN_CHUNK elements, TARGET_CHUNKS of all outputs; columns with a work-item each are cut finer. */
static void cut(job *p, bool has_lone_columns)
{
    const int64_t least = has_lone_columns ? MIN_COLUMN : MIN_CHUNK,
                  all = has_lone_columns ? TARGET_ITEMS : TARGET_CHUNKS;
    int64_t count = p->inner.count, most = (count + least - 1) / least,
            wanted = p->outputs > 0 ? (all + p->outputs - 1) / p->outputs : 1;
    p->chunks = most < wanted ? most : wanted;
    /* a multiple of four, so that chunks of vec4s are vec4s */
    p->chunk = p->chunks > 1 ? ((count + p->chunks - 1) / p->chunks + 3) / 4 * 4 : count > 0 ? count : 1;
    p->chunks = count > 0 ? (count + p->chunk - 1) / p->chunk : 1;
}

/* An output's elements are contiguous, aligned vec4s of f32 or 16 bits. */
static bool has_vec4(const job *p, const tarn__cl_reduction *r)
{
    const tarn__view *x = r->x;
    bool is_good = !r->z && (x->dtype == TARN_F32 || x->dtype == TARN_BF16 || x->dtype == TARN_F16) &&
                   x->offset % 4 == 0 && p->inner.rank == 1 && p->inner.stride[0][0] == 1 && p->inner.count % 4 == 0;
    for (int i = 0; i < p->kept.rank; i++)
        is_good = is_good && p->kept.stride[1][i] % 4 == 0;
    return is_good;
}

/* Chooses form and chunks. */
void tarn__cl_reduce_describe(const tarn__call *call, const tarn__cl_reduction *r, job *p)
{
    const tarn__cl_device *device = tarn__cl_device_at(call->device);
    *p = (job){.form = "rows", .group = GROUP};
    describe_axes(&p->kept, r, false);
    describe_axes(&p->inner, r, true);
    p->outputs = p->kept.count;
    int last = p->kept.rank - 1;
    p->is_columns = last >= 0 && p->inner.rank == 1 && p->kept.stride[1][last] == 1 && p->kept.shape[last] >= LANES;
    bool has_lone_columns = device->has_local_memory && p->is_columns && p->outputs >= GROUP;
    cut(p, has_lone_columns);
    p->parts = r->is_state ? TARN__CL_STATE_BYTES * p->outputs : 0;
    p->scratch_bytes = (size_t)(p->parts + (p->chunks > 1 ? TARN__CL_STATE_BYTES * p->outputs * p->chunks : 0));
    if (device->has_local_memory && device->max_group >= GROUP && !has_lone_columns)
        p->form = "groups", p->has_vec4 = has_vec4(p, r);
    else if (!device->has_local_memory && p->is_columns && r->op[0] != 'v')
        p->form = "across";
}

/* ---- kernels of the engine --------------------------------------------------------------------------------------- */

/* Operation, dtypes and form are compile-time constants; sizes and strides are arguments. */
static void write_options(const job *p, const tarn__cl_reduction *r, bool is_small, tarn__cl_options *options)
{
    options->length = 0;
    tarn__cl_option_compute(options, r->compute);
    tarn__cl_option_small(options, is_small);
    tarn__cl_option(options, " -DOP_%s -DT_X=%s -DT_Y=%s%s", r->op, tarn__cl_dtype_name(r->x->dtype),
                    tarn__cl_dtype_name(r->y->dtype), r->is_state ? " -DIS_STATE" : "");
    if (r->z)
        tarn__cl_option(options, " -DT_Z=%s", tarn__cl_dtype_name(r->z->dtype));
    if (p->inner.rank <= 1)
        tarn__cl_option(options, " -DIS_FLAT");
    if (p->form[0] == 'g')
        tarn__cl_option(options, " -DGROUP=%zu%s%s", p->group, p->has_vec4 && r->op[0] != 'v' ? " -DVEC4" : "",
                        p->chunks > MANY_CHUNKS ? " -DMANY_CHUNKS" : "");
    else
        tarn__cl_option(options, " -DBY_%s", p->form);
    if (p->chunks > 1)
        tarn__cl_option(options, " -DIS_PARTIAL");
}

/* Finds the kernel of the job's form. Where the driver limits the work-group it shrinks, and below MIN_GROUP each
 * work-item works alone. */
static void find_reduce(const tarn__call *call, const tarn__cl_reduction *r, job *p, tarn__cl_options *options)
{
    tarn__nest all;
    tarn__nest_make(&all, 3, (const tarn__view *[]){r->x, r->y, r->z});
    const bool is_small = tarn__cl_nest_is_small(&all);
    write_options(p, r, is_small, options);
    while (p->form[0] == 'g') {
        p->reduce = tarn__cl_find(call, "reduce", p->form, options->text);
        if (tarn__cl_allows(p->reduce, p->group))
            return;
        p->group = tarn__cl_group_of(p->reduce);
        p->form = p->group < MIN_GROUP ? "rows" : p->form;
        write_options(p, r, is_small, options);
    }
    p->reduce = tarn__cl_find(call, "reduce", p->form, options->text);
}

/* The kernel that merges the chunks' states. */
static void find_combine(const tarn__call *call, job *p, const char *options)
{
    if (p->chunks > MANY_CHUNKS && p->form[0] == 'g') {
        p->combine = tarn__cl_find(call, "reduce", "combine_groups", options);
        p->combines_in_groups = tarn__cl_allows(p->combine, p->group);
    }
    if (!p->combines_in_groups)
        p->combine = tarn__cl_find(call, "reduce", "combine", options);
}

tarn__plan_status tarn__cl_reduce_find(const tarn__call *call, const tarn__cl_reduction *reduction, job *p)
{
    tarn__cl_options options;
    if (p->outputs == 0 || call->is_meta)
        return TARN__PLAN_READY;
    find_reduce(call, reduction, p, &options);
    if (p->chunks > 1)
        find_combine(call, p, options.text);
    return tarn__cl_ready(call, tarn__cl_allows(p->reduce, 1) && (p->chunks == 1 || tarn__cl_allows(p->combine, 1)));
}

/* ---- running it -------------------------------------------------------------------------------------------------- */

/* The arguments of every kernel of reduce.cl. */
static void arg_all(tarn__cl_launch *launch, const tarn__call *call, const tarn__cl_reduction *r, const job *p)
{
    if (r->is_state)
        tarn__cl_arg_scratch(launch, call, 0);
    else
        tarn__cl_arg_view(launch, r->y);
    tarn__cl_arg_view(launch, r->x);
    tarn__cl_arg_view(launch, r->z);
    if (p->chunks > 1)
        tarn__cl_arg_scratch(launch, call, p->parts);
    else
        tarn__cl_arg_view(launch, NULL);
    tarn__cl_arg_scalar(launch, r->compute, (tarn__scalar){r->scale, 1});
    tarn__cl_arg_scalar(launch, r->compute, (tarn__scalar){r->correction, 0});
    tarn__cl_arg_long(launch, p->outputs);
    tarn__cl_arg_long(launch, p->chunk);
    tarn__cl_arg_long(launch, p->chunks);
    tarn__cl_arg_value(launch, &p->kept, sizeof(p->kept));
    tarn__cl_arg_value(launch, &p->inner, sizeof(p->inner));
}

/* Merges the chunks' states. */
static void combine(const tarn__call *call, const tarn__cl_reduction *r, const job *p)
{
    tarn__cl_launch launch = tarn__cl_begin_kernel(call, p->combine);
    arg_all(&launch, call, r, p);
    if (p->combines_in_groups)
        tarn__cl_enqueue(&launch, 1, (size_t[]){(size_t)p->outputs * p->group}, &p->group);
    else
        tarn__cl_enqueue_elements(&launch, p->outputs);
}

/* Bytes: every element read once (for a variance twice, the second time from a cache). */
void tarn__cl_reduce(const tarn__call *call, const tarn__cl_reduction *reduction, const job *p)
{
    if (p->outputs == 0)
        return;
    tarn__cl_launch launch = tarn__cl_begin_kernel(call, p->reduce);
    arg_all(&launch, call, reduction, p);
    if (p->form[0] == 'g') {
        tarn__cl_enqueue(&launch, 1, (size_t[]){(size_t)(p->outputs * p->chunks) * p->group}, &p->group);
    } else if (p->form[0] == 'a') {
        int64_t length = p->kept.shape[p->kept.rank - 1];
        tarn__cl_enqueue_elements(&launch, p->outputs / length * ((length + LANES - 1) / LANES) * p->chunks);
    } else {
        tarn__cl_enqueue_elements(&launch, p->outputs * p->chunks);
    }
    if (p->chunks > 1)
        combine(call, reduction, p);
}

tarn__cl_compute tarn__cl_state_compute(const tarn__call *call, tarn_dtype dtype)
{
    tarn__cl_compute own = tarn__cl_compute_of(dtype);
    const tarn__cl_device *device = tarn__cl_device_at(call->device);
    return own == TARN__CL_F32 && device && device->has_f64 ? TARN__CL_F64 : own;
}

/* ---- kernels ----------------------------------------------------------------------------------------------------- */

/* The reduction of a call; `is_f64`: its states are f64 where possible. */
static tarn__cl_reduction describe(const tarn__call *call, const char *op, bool is_f64)
{
    const tarn__reduce *params = call->params;
    tarn_dtype dtype = call->in[0]->dtype;
    return (tarn__cl_reduction){.op = op,
                                .compute = is_f64 ? tarn__cl_state_compute(call, dtype) : tarn__cl_compute_of(dtype),
                                .x = call->in[0],
                                .y = call->out[0],
                                .scale = params->scale,
                                .correction = params->correction};
}

/* Has other params. */
static tarn__cl_reduction describe_nonfinite(const tarn__call *call)
{
    return (tarn__cl_reduction){.op = "nonfinite",
                                .compute = tarn__cl_compute_of(call->in[0]->dtype),
                                .x = call->in[0],
                                .y = call->out[0],
                                .scale = 1};
}

static tarn__plan_status prepare(const tarn__call *call, const tarn__cl_reduction *r, tarn__plan *plan)
{
    job *j = tarn__cl_reserve_job(call, plan, sizeof(*j));
    if (!j)
        return TARN__PLAN_FAILED;
    tarn__cl_reduce_describe(call, r, j);
    plan->scratch_bytes = j->scratch_bytes;
    return tarn__cl_reduce_find(call, r, j);
}

#define KERNEL(name, description) \
    static tarn__plan_status prepare_##name(const tarn__call *call, tarn__plan *plan) \
    { \
        tarn__cl_reduction r = description; \
        return prepare(call, &r, plan); \
    } \
    static void kernel_##name(const tarn__call *call) \
    { \
        tarn__cl_reduction r = description; \
        tarn__cl_reduce(call, &r, tarn__plan_job(call->plan)); \
    }
KERNEL(sum, describe(call, "sum", true))
KERNEL(prod, describe(call, "prod", true))
KERNEL(max, describe(call, "max", false))
KERNEL(min, describe(call, "min", false))
KERNEL(argmax, describe(call, "argmax", false))
KERNEL(argmin, describe(call, "argmin", false))
KERNEL(var, describe(call, "var", true))
KERNEL(count_nonfinite, describe_nonfinite(call))

void tarn__cl_register_reduce(tarn__kernel_row *rows)
{
#define ROW(name, mask) rows[TARN__K_##name] = tarn__row_planned(prepare_##name, kernel_##name, mask)
    ROW(sum, TARN__ALL);
    ROW(prod, TARN__ALL);
    ROW(max, TARN__ALL);
    ROW(min, TARN__ALL);
    ROW(argmax, TARN__ALL);
    ROW(argmin, TARN__ALL);
    ROW(var, TARN__FLOATS);
    ROW(count_nonfinite, TARN__FLOATS);
}
