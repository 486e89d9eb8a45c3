/* scatter.c: scatter_add and index_add. Indices are sorted, stably, and one work-item computes each sum in the order of
 * the source: bitwise identical with the CPU. In lockstep long sums are cut into pieces at positions fixed by the
 * indices, so results stay deterministic. */
#include "backends/opencl/index/sort.h"

#define PIECE 32 /* pairs per work-item */
#define PART 8   /* bytes of a partial sum, at most */

/* A call described for launch: sorted indices, and lines across the axis. */
typedef struct job {
    tarn__cl_sorting sorting;
    tarn__nest lines;                        /* y and source across the axis */
    int64_t line_pairs, y_step, source_step; /* pairs per line, 0: shared; strides along the axis */
    int64_t partial;                         /* bytes into scratch, after the pairs: sums of pieces */
    bool is_small, in_pieces;                /* 32-bit offsets; lines are cut into pieces */
    const tarn__cl_kernel *add, *join;       /* join: of pieces */
} job;

/* Pieces of a line of `length` pairs. */
static int64_t pieces_of(int64_t length)
{
    return (length + PIECE - 1) / PIECE;
}

/* True where 32-bit offsets suffice for both tensors and the work-items. */
static bool is_small(const job *j, const tarn__view *y, const tarn__view *source)
{
    tarn__nest nest;
    bool is_small = j->sorting.length * j->lines.count < INT32_MAX - 65536;
    for (int i = 0; i < 2; i++) {
        tarn__nest_make(&nest, 1, i == 0 ? &y : &source);
        is_small = tarn__cl_nest_is_small(&nest) && is_small;
    }
    return is_small;
}

/* `is_slices`: index_add, whose one index serves all lines; else scatter_add, with an index per element. */
static void describe(job *j, const tarn__call *call, bool is_slices)
{
    const tarn__view *index = call->in[0], *source = call->in[1], *y = call->out[0], *like = is_slices ? source : index;
    int axis = ((const tarn__along *)call->params)->axis, own = is_slices ? 0 : axis;
    tarn__view y_rest = tarn__view_across(y, axis, like), source_rest = tarn__view_across(source, axis, like),
               index_rest = tarn__view_across(index, own, index);
    *j = (job){.y_step = tarn__axis_stride(y, axis), .source_step = tarn__axis_stride(source, axis)};
    j->sorting = (tarn__cl_sorting){.length = tarn__axis_size(index, own),
                                    .step = tarn__axis_stride(index, own),
                                    .key = {(uint64_t)tarn__axis_size(y, axis)}};
    j->line_pairs = is_slices ? 0 : j->sorting.length;
    tarn__cl_nest_in_order(&j->sorting.lines, 1, (const tarn__view *[]){&index_rest});
    tarn__cl_nest_in_order(&j->lines, 2, (const tarn__view *[]){&y_rest, &source_rest});
    j->partial = (int64_t)tarn__cl_sort_scratch(tarn__view_count(index));
    j->is_small = is_small(j, y, source);
    j->in_pieces = tarn__cl_device_at(call->device)->in_lockstep;
}

/* index_add without old values starts from a cleared y. */
static bool is_fresh(const tarn__call *call, bool is_slices)
{
    return is_slices && !(call->reads_output & 1);
}

static bool find_kernels(const tarn__call *call, job *j, bool is_slices)
{
    const tarn__view *index = call->in[0], *source = call->in[1], *y = call->out[0];
    tarn__cl_options options = {.length = 0};
    tarn__cl_option_compute(&options, tarn__cl_compute_of(y->dtype));
    tarn__cl_option_small(&options, j->is_small);
    tarn__cl_option(&options, " -DT_Y=%s -DT_S=%s", tarn__cl_dtype_name(y->dtype), tarn__cl_dtype_name(source->dtype));
    if (is_fresh(call, is_slices))
        tarn__cl_option(&options, " -DIS_FRESH");
    if (j->in_pieces)
        tarn__cl_option(&options, " -DPIECE=%d", PIECE);
    j->add = tarn__cl_find(call, "scatter", j->in_pieces ? "add_pieces" : "add_sorted", options.text);
    if (j->in_pieces)
        j->join = tarn__cl_find(call, "scatter", "join_pieces", options.text);
    return tarn__cl_sort_find(call, &j->sorting, index->dtype == TARN_I32 ? "-DI=i32" : "-DI=i64") &&
           tarn__cl_allows(j->add, 1) && (!j->in_pieces || tarn__cl_allows(j->join, 1));
}

/* Scratch: sorted pairs, then two partial sums per line of each piece. */
static tarn__plan_status prepare(const tarn__call *call, tarn__plan *plan, bool is_slices)
{
    job *j = tarn__cl_reserve_job(call, plan, sizeof(*j));
    if (!j)
        return TARN__PLAN_FAILED;
    describe(j, call, is_slices);
    const int64_t pieces = pieces_of(j->sorting.length);
    plan->scratch_bytes = (size_t)(j->partial + (j->in_pieces && pieces > 1 ? 2 * PART * pieces * j->lines.count : 0));
    return tarn__cl_ready(call, find_kernels(call, j, is_slices));
}

/* Clears y. */
static void clear(const tarn__call *call)
{
    tarn__fill zero = {{0, 0}, {0, 0}};
    tarn__call part = *call;
    part.inputs = 0;
    part.outputs = 1;
    part.params = &zero;
    part.params_bytes = sizeof(zero);
    tarn__cl_kernel_table()[TARN__K_fill].run(&part);
}

/* Factor and shift for the division by the number of lines. */
static void arg_divisor(tarn__cl_launch *launch, bool is_small, int64_t count)
{
    uint32_t factor = 0;
    int32_t shift = 0;
    if (is_small && count > 1)
        tarn__cl_fast_divisor(count, &factor, &shift);
    tarn__cl_arg_value(launch, &factor, sizeof(factor));
    tarn__cl_arg_int(launch, shift);
}

/* `sorted`: offset of the sorted pairs in scratch; `items`: work-items per line. */
static void launch(const tarn__call *call, const job *j, const tarn__cl_kernel *kernel, int64_t sorted, int64_t items)
{
    tarn__cl_launch launch = tarn__cl_begin_kernel(call, kernel);
    tarn__cl_arg_view(&launch, call->out[0]);
    tarn__cl_arg_view(&launch, call->in[1]);
    tarn__cl_arg_scratch(&launch, call, sorted);
    tarn__cl_arg_long(&launch, call->scratch_offset + j->partial);
    tarn__cl_arg_index(&launch, j->is_small, j->sorting.length);
    tarn__cl_arg_index(&launch, j->is_small, j->line_pairs);
    tarn__cl_arg_value(&launch, &j->sorting.key[0], sizeof(j->sorting.key[0]));
    tarn__cl_arg_index(&launch, j->is_small, j->y_step);
    tarn__cl_arg_index(&launch, j->is_small, j->source_step);
    tarn__cl_arg_index(&launch, j->is_small, j->lines.count);
    arg_divisor(&launch, j->is_small, j->lines.count);
    tarn__cl_arg_indexer(&launch, j->is_small, &j->lines);
    tarn__cl_enqueue_elements(&launch, items * j->lines.count);
}

/* Bytes: the source once, and the elements of y that are added to. */
static void run(const tarn__call *call, bool is_slices)
{
    const job *j = tarn__plan_job(call->plan);
    if (is_fresh(call, is_slices))
        clear(call);
    if (j->sorting.length == 0 || j->sorting.lines.count == 0 || j->lines.count == 0)
        return;
    int64_t sorted = tarn__cl_sort_lines(call, &j->sorting, call->in[0]), pieces = pieces_of(j->sorting.length);
    launch(call, j, j->add, sorted, j->in_pieces ? pieces : j->sorting.length);
    if (j->in_pieces && pieces > 1)
        launch(call, j, j->join, sorted, pieces);
}

static tarn__plan_status prepare_scatter_add(const tarn__call *call, tarn__plan *plan)
{
    return prepare(call, plan, false);
}

/* y[…, index[…, i, …], …] += source[…, i, …]. */
static void kernel_scatter_add(const tarn__call *call)
{
    run(call, false);
}

static tarn__plan_status prepare_index_add(const tarn__call *call, tarn__plan *plan)
{
    return prepare(call, plan, true);
}

/* y[…, index[i], …] += source[…, i, …], or with a fresh y =. */
static void kernel_index_add(const tarn__call *call)
{
    run(call, true);
}

void tarn__cl_register_scatter(tarn__kernel_row *rows)
{
    rows[TARN__K_scatter_add] = tarn__row_planned(prepare_scatter_add, kernel_scatter_add, TARN__INDEXES);
    rows[TARN__K_index_add] = tarn__row_planned(prepare_index_add, kernel_index_add, TARN__INDEXES);
}
