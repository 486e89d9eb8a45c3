/* scan.c: cumsum along an axis: the launchers of scan.cl. */
#include "backends/opencl/index/sort.h"
#include "backends/opencl/reduce/reduce.h"

#define CHUNK 1024 /* elements of a line, where lines are few and long */
#define FEW_LINES 1024

/* A call described for launch. */
typedef struct plan {
    tarn__view x, y; /* start at the end, with negative steps, where it is reversed */
    tarn__nest lines;
    int64_t length, chunk, chunks, x_step, y_step; /* of a line; per chunk; strides along the axis */
} plan;

/* Few long lines are cut into chunks, to occupy the device; else a work-item has a line. */
static void describe(plan *p, const tarn__call *call)
{
    const tarn__along *along = call->params;
    int axis = along->axis;
    *p = (plan){.x = *call->in[0],
                .y = *call->out[0],
                .length = tarn__axis_size(call->in[0], axis),
                .x_step = tarn__axis_stride(call->in[0], axis),
                .y_step = tarn__axis_stride(call->out[0], axis)};
    tarn__view y_rest = tarn__view_across(&p->y, axis, &p->x), x_rest = tarn__view_across(&p->x, axis, &p->x);
    tarn__nest_make(&p->lines, 2, (const tarn__view *[]){&x_rest, &y_rest});
    if (along->reverse && p->length > 0) {
        p->x.offset += (p->length - 1) * p->x_step;
        p->y.offset += (p->length - 1) * p->y_step;
        p->x_step = -p->x_step;
        p->y_step = -p->y_step;
    }
    p->chunk = p->lines.count < FEW_LINES && p->length > 2 * CHUNK ? CHUNK : p->length > 0 ? p->length : 1;
    p->chunks = (p->length + p->chunk - 1) / p->chunk;
}

/* One sum per chunk, sized for f64. */
static size_t scratch(const tarn__call *call)
{
    plan p;
    describe(&p, call);
    return p.chunks > 1 ? sizeof(double) * (size_t)(p.lines.count * p.chunks) : 0;
}

/* Sums of chunks, then the exclusive sums before each, in scratch (lines, chunks). */
static void sum_chunks(const tarn__call *call, const plan *p, const char *options)
{
    tarn__cl_launch launch = tarn__cl_begin(call, "scan", "chunk_sums", options);
    tarn__cl_arg_view(&launch, &p->x);
    tarn__cl_arg_scratch(&launch, call, 0);
    tarn__cl_arg_long(&launch, p->length);
    tarn__cl_arg_long(&launch, p->chunk);
    tarn__cl_arg_long(&launch, p->chunks);
    tarn__cl_arg_long(&launch, p->x_step);
    tarn__cl_arg_value(&launch, &p->lines, sizeof(p->lines));
    tarn__cl_enqueue_elements(&launch, p->lines.count * p->chunks);
    launch = tarn__cl_begin(call, "scan", "sums_before", options);
    tarn__cl_arg_scratch(&launch, call, 0);
    tarn__cl_arg_long(&launch, p->lines.count);
    tarn__cl_arg_long(&launch, p->chunks);
    tarn__cl_enqueue_elements(&launch, p->lines.count);
}

/* The last launch: every chunk from its starting sum. */
static void scan(const tarn__call *call, const plan *p, const char *options)
{
    tarn__cl_launch launch = tarn__cl_begin(call, "scan", "scan", options);
    tarn__cl_arg_view(&launch, &p->x);
    tarn__cl_arg_view(&launch, &p->y);
    if (p->chunks > 1)
        tarn__cl_arg_scratch(&launch, call, 0);
    else
        tarn__cl_arg_view(&launch, NULL);
    tarn__cl_arg_long(&launch, p->length);
    tarn__cl_arg_long(&launch, p->chunk);
    tarn__cl_arg_long(&launch, p->chunks);
    tarn__cl_arg_long(&launch, p->x_step);
    tarn__cl_arg_long(&launch, p->y_step);
    tarn__cl_arg_value(&launch, &p->lines, sizeof(p->lines));
    tarn__cl_enqueue_elements(&launch, p->lines.count * p->chunks);
}

/* Bytes: x read once, or twice where lines are cut; y written. */
static void kernel_cumsum(const tarn__call *call)
{
    plan p;
    describe(&p, call);
    if (p.length == 0 || p.lines.count == 0)
        return;
    tarn__cl_options options = {.length = 0};
    tarn__cl_option_compute(&options, tarn__cl_state_compute(call, p.x.dtype));
    tarn__cl_option(&options, " -DT_X=%s", tarn__cl_dtype_name(p.x.dtype));
    if (p.chunks > 1) {
        tarn__cl_options sums = options;
        tarn__cl_option(&sums, " -DSUMS");
        sum_chunks(call, &p, sums.text);
    }
    tarn__cl_option(&options, " -DT_Y=%s", tarn__cl_dtype_name(p.y.dtype));
    scan(call, &p, options.text);
}

void tarn__cl_register_scan(tarn__kernel_row *rows)
{
    rows[TARN__K_cumsum] = tarn__row(kernel_cumsum, TARN__ALL, scratch);
}
