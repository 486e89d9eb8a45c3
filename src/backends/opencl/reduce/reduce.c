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

/* The struct `axes` of reduce.cl. */
typedef struct axes {
    int32_t rank, spare;
    int64_t count;
    int64_t shape[TARN_MAX_RANK];
    int64_t stride[3][TARN_MAX_RANK];
} axes;

/* A reduction described for launch. */
typedef struct plan {
    axes kept, inner;
    int64_t outputs, chunk, chunks; /* elements per chunk; chunks per output */
    int64_t parts;                  /* bytes into scratch: the chunks' states */
    bool is_small, is_columns;      /* 32-bit offsets; outputs are adjacent */
    bool has_vec4;                  /* an output's elements are aligned vec4s */
    const char *form;               /* "rows", "across" or "groups": the kernel's name */
    size_t group;                   /* work-items, in the form of groups */
    tarn__cl_options options;
} plan;

/* ---- the plan ---------------------------------------------------------------------------------------------------- */

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
static void cut(plan *p, bool has_lone_columns)
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
static bool has_vec4(const plan *p, const tarn__cl_reduction *r)
{
    const tarn__view *x = r->x;
    bool is_good = !r->z && (x->dtype == TARN_F32 || x->dtype == TARN_BF16 || x->dtype == TARN_F16) &&
                   x->offset % 4 == 0 && p->inner.rank == 1 && p->inner.stride[0][0] == 1 && p->inner.count % 4 == 0;
    for (int i = 0; i < p->kept.rank; i++)
        is_good = is_good && p->kept.stride[1][i] % 4 == 0;
    return is_good;
}

/* Chooses form and chunks; the same for scratch, for the test of programs, and for the run. */
static void describe_plan(plan *p, const tarn__call *call, const tarn__cl_reduction *r)
{
    const tarn__cl_device *device = tarn__cl_device_at(call->device);
    *p = (plan){.form = "rows", .group = GROUP};
    describe_axes(&p->kept, r, false);
    describe_axes(&p->inner, r, true);
    p->outputs = p->kept.count;
    int last = p->kept.rank - 1;
    p->is_columns = last >= 0 && p->inner.rank == 1 && p->kept.stride[1][last] == 1 && p->kept.shape[last] >= LANES;
    bool has_lone_columns = device->has_local_memory && p->is_columns && p->outputs >= GROUP;
    cut(p, has_lone_columns);
    p->parts = r->is_state ? TARN__CL_STATE_BYTES * p->outputs : 0;
    if (device->has_local_memory && device->max_group >= GROUP && !has_lone_columns)
        p->form = "groups", p->has_vec4 = has_vec4(p, r);
    else if (!device->has_local_memory && p->is_columns && r->op && r->op[0] != 'v')
        p->form = "across";
}

/* Operation, dtypes and form are compile-time constants; sizes and strides are arguments. */
static void write_options(plan *p, const tarn__cl_reduction *r)
{
    tarn__nest all;
    p->options = (tarn__cl_options){.length = 0};
    tarn__nest_make(&all, 3, (const tarn__view *[]){r->x, r->y, r->z});
    tarn__cl_option_compute(&p->options, r->compute);
    p->is_small = tarn__cl_option_index(&p->options, &all);
    tarn__cl_option(&p->options, " -DOP_%s -DT_X=%s -DT_Y=%s%s", r->op, tarn__cl_dtype_name(r->x->dtype),
                    tarn__cl_dtype_name(r->y->dtype), r->is_state ? " -DIS_STATE" : "");
    if (r->z)
        tarn__cl_option(&p->options, " -DT_Z=%s", tarn__cl_dtype_name(r->z->dtype));
    if (p->inner.rank <= 1)
        tarn__cl_option(&p->options, " -DIS_FLAT");
    if (p->form[0] == 'g')
        tarn__cl_option(&p->options, " -DGROUP=%zu%s%s", p->group, p->has_vec4 && r->op[0] != 'v' ? " -DVEC4" : "",
                        p->chunks > MANY_CHUNKS ? " -DMANY_CHUNKS" : "");
    else
        tarn__cl_option(&p->options, " -DBY_%s", p->form);
    if (p->chunks > 1)
        tarn__cl_option(&p->options, " -DIS_PARTIAL");
}

/* ---- running it -------------------------------------------------------------------------------------------------- */

/* Begins the kernel of the plan's form. Where the driver limits the work-group it shrinks, and below MIN_GROUP each
 * work-item works alone. */
static tarn__cl_launch begin(const tarn__call *call, const tarn__cl_reduction *r, plan *p)
{
    write_options(p, r);
    while (p->form[0] == 'g') {
        tarn__cl_launch launch = tarn__cl_try(call, "reduce", p->form, p->options.text, p->group);
        if (launch.good)
            return launch;
        p->group = tarn__cl_max_group(&launch);
        p->form = p->group < MIN_GROUP ? "rows" : p->form;
        write_options(p, r);
    }
    return tarn__cl_begin(call, "reduce", p->form, p->options.text);
}

/* The arguments of every kernel of reduce.cl. */
static void arg_all(tarn__cl_launch *launch, const tarn__call *call, const tarn__cl_reduction *r, const plan *p)
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

size_t tarn__cl_reduce_scratch(const tarn__call *call, const tarn__cl_reduction *reduction)
{
    plan p;
    describe_plan(&p, call, reduction);
    return (size_t)(p.parts + (p.chunks > 1 ? TARN__CL_STATE_BYTES * p.outputs * p.chunks : 0));
}

/* Begins the launch and cancels it: nothing has been written where the call is declined. */
bool tarn__cl_reduce_compiles(const tarn__call *call, const tarn__cl_reduction *reduction)
{
    plan p;
    describe_plan(&p, call, reduction);
    tarn__cl_launch launch = begin(call, reduction, &p);
    return tarn__cl_cancel(&launch);
}

/* Merges the chunks' states. */
static void combine(const tarn__call *call, const tarn__cl_reduction *r, const plan *p)
{
    tarn__cl_launch launch = {.good = false};
    if (p->chunks > MANY_CHUNKS && p->form[0] == 'g')
        launch = tarn__cl_try(call, "reduce", "combine_groups", p->options.text, p->group);
    const bool has_groups = launch.good;
    if (!has_groups)
        launch = tarn__cl_begin(call, "reduce", "combine", p->options.text);
    arg_all(&launch, call, r, p);
    if (has_groups)
        tarn__cl_enqueue(&launch, 1, (size_t[]){(size_t)p->outputs * p->group}, &p->group);
    else
        tarn__cl_enqueue_elements(&launch, p->outputs);
}

/* Bytes: every element read once (for a variance twice, the second time from a cache). */
void tarn__cl_reduce(const tarn__call *call, const tarn__cl_reduction *reduction)
{
    plan p;
    describe_plan(&p, call, reduction);
    if (p.outputs == 0)
        return;
    tarn__cl_launch launch = begin(call, reduction, &p);
    arg_all(&launch, call, reduction, &p);
    if (p.form[0] == 'g') {
        tarn__cl_enqueue(&launch, 1, (size_t[]){(size_t)(p.outputs * p.chunks) * p.group}, &p.group);
    } else if (p.form[0] == 'a') {
        int64_t length = p.kept.shape[p.kept.rank - 1];
        tarn__cl_enqueue_elements(&launch, p.outputs / length * ((length + LANES - 1) / LANES) * p.chunks);
    } else {
        tarn__cl_enqueue_elements(&launch, p.outputs * p.chunks);
    }
    if (p.chunks > 1)
        combine(call, reduction, &p);
}

tarn__cl_compute tarn__cl_state_compute(const tarn__call *call, tarn_dtype dtype)
{
    tarn__cl_compute own = tarn__cl_compute_of(dtype);
    return own == TARN__CL_F32 && tarn__cl_device_at(call->device)->has_f64 ? TARN__CL_F64 : own;
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

#define KERNEL(name, is_f64) \
    static void kernel_##name(const tarn__call *call) \
    { \
        tarn__cl_reduction r = describe(call, #name, is_f64); \
        tarn__cl_reduce(call, &r); \
    }
KERNEL(sum, true)
KERNEL(prod, true)
KERNEL(max, false)
KERNEL(min, false)
KERNEL(argmax, false)
KERNEL(argmin, false)
KERNEL(var, true)

/* Has other params. */
static void kernel_count_nonfinite(const tarn__call *call)
{
    tarn__cl_reduction r = {.op = "nonfinite",
                            .compute = tarn__cl_compute_of(call->in[0]->dtype),
                            .x = call->in[0],
                            .y = call->out[0],
                            .scale = 1};
    tarn__cl_reduce(call, &r);
}

/* Depends on shapes alone, so the operation does not matter. */
static size_t scratch(const tarn__call *call)
{
    tarn__cl_reduction r = {.x = call->in[0], .y = call->out[0]};
    return tarn__cl_reduce_scratch(call, &r);
}

void tarn__cl_register_reduce(tarn__kernel_row *rows)
{
#define ROW(name, mask) rows[TARN__K_##name] = tarn__row(kernel_##name, mask, scratch)
    ROW(sum, TARN__ALL);
    ROW(prod, TARN__ALL);
    ROW(max, TARN__ALL);
    ROW(min, TARN__ALL);
    ROW(argmax, TARN__ALL);
    ROW(argmin, TARN__ALL);
    ROW(var, TARN__FLOATS);
    ROW(count_nonfinite, TARN__FLOATS);
}
