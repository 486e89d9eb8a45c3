/* sort.c: sort and topk along an axis. Elements become keys whose order is the one asked for; values are gathered by
 * index, so that their bits are unchanged. */
#include "backends/opencl/index/sort.h"

#include <stdio.h>

#define PAIR 16 /* bytes */
#define RUN 16  /* pairs per initial run, */
#define RUN_IN_LOCKSTEP 128

/* ---- lines ------------------------------------------------------------------------------------------------------- */

size_t tarn__cl_sort_scratch(int64_t pairs)
{
    return (size_t)(2 * PAIR * pairs);
}

/* Length of the initial runs on this device. */
static int64_t run_of(const tarn__call *call)
{
    return tarn__cl_device_at(call->device)->in_lockstep ? RUN_IN_LOCKSTEP : RUN;
}

/* make_runs computes keys from bits or from indices. Both kernels are found in any case: lines of all lengths share
 * them. */
bool tarn__cl_sort_find(const tarn__call *call, tarn__cl_sorting *s, const char *options)
{
    char all[64];
    snprintf(all, sizeof(all), "%s -DMAKES_RUNS -DRUN=%d", options, (int)run_of(call));
    s->make_runs = tarn__cl_find(call, "sort", "make_runs", all);
    s->merge = tarn__cl_find(call, "sort", "merge_runs", "");
    return tarn__cl_allows(s->make_runs, 1) && tarn__cl_allows(s->merge, 1);
}

/* Computes keys and sorts runs, at the start of scratch. */
static void make_runs(const tarn__call *call, const tarn__cl_sorting *s, const tarn__view *x)
{
    tarn__cl_launch launch = tarn__cl_begin_kernel(call, s->make_runs);
    tarn__cl_arg_scratch(&launch, call, 0);
    tarn__cl_arg_view(&launch, x);
    tarn__cl_arg_long(&launch, s->length);
    tarn__cl_arg_long(&launch, s->step);
    for (int i = 0; i < 3; i++)
        tarn__cl_arg_value(&launch, &s->key[i], sizeof(s->key[i]));
    tarn__cl_arg_value(&launch, &s->lines, sizeof(s->lines));
    tarn__cl_arg_fault(&launch, call);
    tarn__cl_enqueue_elements(
        &launch,
        s->lines.count * (tarn__cl_device_at(call->device)->in_lockstep ? s->length : (s->length + RUN - 1) / RUN));
}

int64_t tarn__cl_sort_lines(const tarn__call *call, const tarn__cl_sorting *s, const tarn__view *x)
{
    int64_t pairs = s->lines.count * s->length, from = 0, to = PAIR * pairs;
    make_runs(call, s, x);
    for (int64_t width = run_of(call); width < s->length; width *= 2) {
        tarn__cl_launch launch = tarn__cl_begin_kernel(call, s->merge);
        tarn__cl_arg_scratch(&launch, call, from);
        tarn__cl_arg_scratch(&launch, call, to);
        tarn__cl_arg_long(&launch, s->length);
        tarn__cl_arg_long(&launch, width);
        tarn__cl_arg_long(&launch, pairs);
        tarn__cl_enqueue_elements(&launch, pairs);
        int64_t other = from;
        from = to;
        to = other;
    }
    return from;
}

/* ---- sort and topk ----------------------------------------------------------------------------------------------- */

static const char *bits_of(tarn_dtype dtype)
{
    size_t bytes = tarn__dtype_bytes(dtype);
    return bytes == 8 ? "-DBITS=ulong" : bytes == 4 ? "-DBITS=uint" : bytes == 2 ? "-DBITS=ushort" : "-DBITS=uchar";
}

/* Sign bit, exponent mask and flip of a dtype, for key_at() of sort.cl. */
static void key_of(tarn_dtype dtype, bool descending, uint64_t *key)
{
    uint64_t all = UINT64_MAX >> (64 - 8 * tarn__dtype_bytes(dtype));
    key[0] = dtype == TARN_U8 || dtype == TARN_BOOL ? 0 : all / 2 + 1;
    key[1] = dtype == TARN_F32    ? 0x7f800000u
             : dtype == TARN_F64  ? UINT64_C(0x7ff0000000000000)
             : dtype == TARN_BF16 ? 0x7f80u
             : dtype == TARN_F16  ? 0x7c00u
                                  : 0;
    key[2] = descending ? all : 0;
}

typedef struct results {
    const tarn__view *values, *indices; /* either may be NULL */
    int64_t taken;
} results;

/* Both outputs are optional; `taken` is the size of topk, or the line's. */
static results results_of(const tarn__call *call)
{
    results r = {call->out[0], call->outputs > 1 ? call->out[1] : NULL, 0};
    r.taken = tarn__axis_size(r.values ? r.values : r.indices, ((const tarn__along *)call->params)->axis);
    return r;
}

/* A call described for launch. */
typedef struct job {
    bool is_empty;
    tarn__cl_sorting sorting; /* operands of its lines: x, values, indices */
    const tarn__cl_kernel *write;
} job;

/* topk sorts everything, then takes a prefix. */
static void describe(job *j, const tarn__call *call)
{
    const tarn__along *along = call->params;
    const tarn__view *x = call->in[0];
    const results r = results_of(call);
    const int axis = along->axis;
    tarn__cl_sorting *s = &j->sorting;
    *s = (tarn__cl_sorting){.length = tarn__axis_size(x, axis), .step = tarn__axis_stride(x, axis)};
    key_of(x->dtype, along->reverse != 0, s->key);
    tarn__view none = *x,
               rests[] = {tarn__view_across(x, axis, x), r.values ? tarn__view_across(r.values, axis, x) : none,
                          r.indices ? tarn__view_across(r.indices, axis, x) : none};
    tarn__nest_make(&s->lines, 3,
                    (const tarn__view *[]){&rests[0], r.values ? &rests[1] : NULL, r.indices ? &rests[2] : NULL});
    j->is_empty = s->length == 0 || r.taken == 0 || s->lines.count == 0;
}

static bool find_kernels(const tarn__call *call, job *j)
{
    const char *bits = bits_of(call->in[0]->dtype);
    const results r = results_of(call);
    char options[64];
    snprintf(options, sizeof(options), "%s%s%s", bits, r.values ? " -DHAS_VALUES" : "",
             r.indices ? " -DHAS_INDICES" : "");
    j->write = tarn__cl_find(call, "sort", "write_sorted", options);
    return tarn__cl_sort_find(call, &j->sorting, bits) && tarn__cl_allows(j->write, 1);
}

static tarn__plan_status prepare(const tarn__call *call, tarn__plan *plan)
{
    job *j = tarn__cl_reserve_job(call, plan, sizeof(*j));
    if (!j)
        return TARN__PLAN_FAILED;
    describe(j, call);
    plan->scratch_bytes = tarn__cl_sort_scratch(tarn__view_count(call->in[0]));
    return j->is_empty ? TARN__PLAN_READY : tarn__cl_ready(call, find_kernels(call, j));
}

/* Gathers values by index and writes the first `taken` of each line. */
static void write_sorted(const tarn__call *call, const job *j, int64_t sorted)
{
    const tarn__cl_sorting *s = &j->sorting;
    const results r = results_of(call);
    const int axis = ((const tarn__along *)call->params)->axis;
    tarn__cl_launch launch = tarn__cl_begin_kernel(call, j->write);
    tarn__cl_arg_scratch(&launch, call, sorted);
    tarn__cl_arg_view(&launch, call->in[0]);
    tarn__cl_arg_view(&launch, r.values);
    tarn__cl_arg_view(&launch, r.indices);
    tarn__cl_arg_long(&launch, s->length);
    tarn__cl_arg_long(&launch, r.taken);
    tarn__cl_arg_long(&launch, s->step);
    tarn__cl_arg_long(&launch, tarn__axis_stride(r.values, axis));
    tarn__cl_arg_long(&launch, tarn__axis_stride(r.indices, axis));
    tarn__cl_arg_value(&launch, &s->lines, sizeof(s->lines));
    tarn__cl_enqueue_elements(&launch, s->lines.count * r.taken);
}

static void run(const tarn__call *call)
{
    const job *j = tarn__plan_job(call->plan);
    if (!j->is_empty)
        write_sorted(call, j, tarn__cl_sort_lines(call, &j->sorting, call->in[0]));
}

void tarn__cl_register_sort(tarn__kernel_row *rows)
{
    rows[TARN__K_sort] = tarn__row_planned(prepare, run, TARN__ALL);
    rows[TARN__K_topk] = tarn__row_planned(prepare, run, TARN__ALL);
}
