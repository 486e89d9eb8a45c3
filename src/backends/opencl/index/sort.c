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

/* Options of make_runs: keys from bits or from indices. */
static void runs_options(const tarn__call *call, char *text, size_t size, const tarn__cl_sorting *s)
{
    snprintf(text, size, "%s -DMAKES_RUNS -DRUN=%d", s->options, (int)run_of(call));
}

bool tarn__cl_sort_compiles(const tarn__call *call, const tarn__cl_sorting *s)
{
    char options[64];
    runs_options(call, options, sizeof(options), s);
    return tarn__cl_compiles(call, "sort", "make_runs", options) && tarn__cl_compiles(call, "sort", "merge_runs", "");
}

/* Computes keys and sorts runs. */
static void make_runs(const tarn__call *call, const tarn__cl_sorting *s)
{
    char options[64];
    runs_options(call, options, sizeof(options), s);
    tarn__cl_launch launch = tarn__cl_begin(call, "sort", "make_runs", options);
    tarn__cl_arg_scratch(&launch, call, s->scratch);
    tarn__cl_arg_view(&launch, s->x);
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

int64_t tarn__cl_sort_lines(const tarn__call *call, const tarn__cl_sorting *s)
{
    int64_t pairs = s->lines.count * s->length, from = s->scratch, to = s->scratch + PAIR * pairs;
    make_runs(call, s);
    for (int64_t width = run_of(call); width < s->length; width *= 2) {
        tarn__cl_launch launch = tarn__cl_begin(call, "sort", "merge_runs", "");
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

/* Gathers values by index and writes the first `taken` of each line. */
static void write_sorted(const tarn__call *call, const tarn__cl_sorting *s, const results *r, int axis, int64_t sorted)
{
    char options[64];
    snprintf(options, sizeof(options), "%s%s%s", s->options, r->values ? " -DHAS_VALUES" : "",
             r->indices ? " -DHAS_INDICES" : "");
    tarn__cl_launch launch = tarn__cl_begin(call, "sort", "write_sorted", options);
    tarn__cl_arg_scratch(&launch, call, sorted);
    tarn__cl_arg_view(&launch, s->x);
    tarn__cl_arg_view(&launch, r->values);
    tarn__cl_arg_view(&launch, r->indices);
    tarn__cl_arg_long(&launch, s->length);
    tarn__cl_arg_long(&launch, r->taken);
    tarn__cl_arg_long(&launch, s->step);
    tarn__cl_arg_long(&launch, tarn__axis_stride(r->values, axis));
    tarn__cl_arg_long(&launch, tarn__axis_stride(r->indices, axis));
    tarn__cl_arg_value(&launch, &s->lines, sizeof(s->lines));
    tarn__cl_enqueue_elements(&launch, s->lines.count * r->taken);
}

/* sort and topk: topk sorts everything, then takes a prefix. */
static void run(const tarn__call *call)
{
    const tarn__along *along = call->params;
    const tarn__view *x = call->in[0];
    results r = results_of(call);
    int axis = along->axis;
    tarn__cl_sorting s = {
        .x = x, .length = tarn__axis_size(x, axis), .step = tarn__axis_stride(x, axis), .options = bits_of(x->dtype)};
    key_of(x->dtype, along->reverse != 0, s.key);
    tarn__view none = *x,
               rests[] = {tarn__view_across(x, axis, x), r.values ? tarn__view_across(r.values, axis, x) : none,
                          r.indices ? tarn__view_across(r.indices, axis, x) : none};
    tarn__nest_make(&s.lines, 3,
                    (const tarn__view *[]){&rests[0], r.values ? &rests[1] : NULL, r.indices ? &rests[2] : NULL});
    if (s.length == 0 || r.taken == 0 || s.lines.count == 0)
        return;
    write_sorted(call, &s, &r, axis, tarn__cl_sort_lines(call, &s));
}

static size_t scratch(const tarn__call *call)
{
    return tarn__cl_sort_scratch(tarn__view_count(call->in[0]));
}

void tarn__cl_register_sort(tarn__kernel_row *rows)
{
    rows[TARN__K_sort] = tarn__row(run, TARN__ALL, scratch);
    rows[TARN__K_topk] = tarn__row(run, TARN__ALL, scratch);
}
