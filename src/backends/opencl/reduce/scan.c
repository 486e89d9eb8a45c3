/* scan.c: cumsum along an axis: the launchers of scan.cl. */
#include "backends/opencl/index/sort.h"
#include "backends/opencl/reduce/reduce.h"

#define CHUNK 1024 /* elements of a line, where lines are few and long */
#define FEW_LINES 1024

/* A call described for launch. */
typedef struct job {
    tarn__nest lines;                              /* operands x, y */
    int64_t length, chunk, chunks, x_step, y_step; /* of a line; per chunk; strides along the axis */
    int64_t x_first, y_first;                      /* where a line begins: at its end where it is reversed */
    const tarn__cl_kernel *scan, *sums, *before;   /* sums, before: of chunks */
} job;

/* Few long lines are cut into chunks, to occupy the device; else a work-item has a line. */
static void describe(job *j, const tarn__call *call)
{
    const tarn__along *along = call->params;
    const tarn__view *x = call->in[0], *y = call->out[0];
    int axis = along->axis;
    *j = (job){
        .length = tarn__axis_size(x, axis), .x_step = tarn__axis_stride(x, axis), .y_step = tarn__axis_stride(y, axis)};
    tarn__view y_rest = tarn__view_across(y, axis, x), x_rest = tarn__view_across(x, axis, x);
    tarn__nest_make(&j->lines, 2, (const tarn__view *[]){&x_rest, &y_rest});
    if (along->reverse && j->length > 0) {
        j->x_first = (j->length - 1) * j->x_step;
        j->y_first = (j->length - 1) * j->y_step;
        j->x_step = -j->x_step;
        j->y_step = -j->y_step;
    }
    j->chunk = j->lines.count < FEW_LINES && j->length > 2 * CHUNK ? CHUNK : j->length > 0 ? j->length : 1;
    j->chunks = (j->length + j->chunk - 1) / j->chunk;
}

static bool is_empty(const job *j)
{
    return j->length == 0 || j->lines.count == 0;
}

static bool find_kernels(const tarn__call *call, job *j)
{
    const tarn_dtype dtype = call->in[0]->dtype;
    tarn__cl_options options = {.length = 0};
    tarn__cl_option_compute(&options, tarn__cl_state_compute(call, dtype));
    tarn__cl_option(&options, " -DT_X=%s", tarn__cl_dtype_name(dtype));
    if (j->chunks > 1) {
        tarn__cl_options sums = options;
        tarn__cl_option(&sums, " -DSUMS");
        j->sums = tarn__cl_find(call, "scan", "chunk_sums", sums.text);
        j->before = tarn__cl_find(call, "scan", "sums_before", sums.text);
    }
    tarn__cl_option(&options, " -DT_Y=%s", tarn__cl_dtype_name(call->out[0]->dtype));
    j->scan = tarn__cl_find(call, "scan", "scan", options.text);
    return tarn__cl_allows(j->scan, 1) &&
           (j->chunks == 1 || (tarn__cl_allows(j->sums, 1) && tarn__cl_allows(j->before, 1)));
}

/* Scratch: one sum per chunk, sized for f64. */
static tarn__plan_status prepare_cumsum(const tarn__call *call, tarn__plan *plan)
{
    job *j = tarn__cl_reserve_job(call, plan, sizeof(*j));
    if (!j)
        return TARN__PLAN_FAILED;
    describe(j, call);
    plan->scratch_bytes = j->chunks > 1 ? sizeof(double) * (size_t)(j->lines.count * j->chunks) : 0;
    return is_empty(j) ? TARN__PLAN_READY : tarn__cl_ready(call, find_kernels(call, j));
}

/* A line's first element comes first. */
static tarn__view starting_at(const tarn__view *view, int64_t first)
{
    tarn__view moved = *view;
    moved.offset += first;
    return moved;
}

/* Sums of chunks, then the exclusive sums before each, in scratch (lines, chunks). */
static void sum_chunks(const tarn__call *call, const job *j, const tarn__view *x)
{
    tarn__cl_launch launch = tarn__cl_begin_kernel(call, j->sums);
    tarn__cl_arg_view(&launch, x);
    tarn__cl_arg_scratch(&launch, call, 0);
    tarn__cl_arg_long(&launch, j->length);
    tarn__cl_arg_long(&launch, j->chunk);
    tarn__cl_arg_long(&launch, j->chunks);
    tarn__cl_arg_long(&launch, j->x_step);
    tarn__cl_arg_value(&launch, &j->lines, sizeof(j->lines));
    tarn__cl_enqueue_elements(&launch, j->lines.count * j->chunks);
    launch = tarn__cl_begin_kernel(call, j->before);
    tarn__cl_arg_scratch(&launch, call, 0);
    tarn__cl_arg_long(&launch, j->lines.count);
    tarn__cl_arg_long(&launch, j->chunks);
    tarn__cl_enqueue_elements(&launch, j->lines.count);
}

/* The last launch: every chunk from its starting sum. */
static void scan(const tarn__call *call, const job *j, const tarn__view *x, const tarn__view *y)
{
    tarn__cl_launch launch = tarn__cl_begin_kernel(call, j->scan);
    tarn__cl_arg_view(&launch, x);
    tarn__cl_arg_view(&launch, y);
    if (j->chunks > 1)
        tarn__cl_arg_scratch(&launch, call, 0);
    else
        tarn__cl_arg_view(&launch, NULL);
    tarn__cl_arg_long(&launch, j->length);
    tarn__cl_arg_long(&launch, j->chunk);
    tarn__cl_arg_long(&launch, j->chunks);
    tarn__cl_arg_long(&launch, j->x_step);
    tarn__cl_arg_long(&launch, j->y_step);
    tarn__cl_arg_value(&launch, &j->lines, sizeof(j->lines));
    tarn__cl_enqueue_elements(&launch, j->lines.count * j->chunks);
}

/* Bytes: x read once, or twice where lines are cut; y written. */
static void kernel_cumsum(const tarn__call *call)
{
    const job *j = tarn__plan_job(call->plan);
    const tarn__view x = starting_at(call->in[0], j->x_first), y = starting_at(call->out[0], j->y_first);
    if (is_empty(j))
        return;
    if (j->chunks > 1)
        sum_chunks(call, j, &x);
    scan(call, j, &x, &y);
}

void tarn__cl_register_scan(tarn__kernel_row *rows)
{
    rows[TARN__K_cumsum] = tarn__row_planned(prepare_cumsum, kernel_cumsum, TARN__ALL);
}
