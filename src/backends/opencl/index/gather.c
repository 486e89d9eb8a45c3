/* gather.c: gather, index_select, write_rows and one_hot: bits moved from or to indexed positions; one element per
 * work-item, or on a GPU vectors and several of them. */
#include "backends/opencl/common/element.h"

/* A launch of gather or write_rows. */
typedef struct job {
    const char *kernel;
    int per;                   /* elements per work-item on a GPU */
    const tarn__view *view[3]; /* the nest's operands, one of which holds indices */
    int y, index, x;           /* which operand is which */
    int64_t limit, step;       /* valid indices are below limit, step elements apart */
} job;

/* A launch of gather or write_rows, whose arguments are alike. Offsets from indices are 64-bit: they reach beyond the
 * nest. */
static void run(const tarn__call *call, const job *j)
{
    const unsigned moved = 1u << j->y | 1u << j->x;
    const size_t bytes = tarn__dtype_bytes(j->view[j->y]->dtype);
    tarn__nest nest;
    tarn__nest_make(&nest, 3, j->view);
    if (nest.count == 0)
        return;
    const bool in_lockstep = tarn__cl_device_at(call->device)->in_lockstep;
    const int per = in_lockstep ? j->per : 1;
    int64_t width = in_lockstep ? tarn__cl_vec_width(&nest, moved, j->view, j->step, bytes) : 1;
    tarn__cl_nest_in_vecs(&nest, moved, width);
    tarn__view y = tarn__cl_view_in_vecs(j->view[j->y], width), x = tarn__cl_view_in_vecs(j->view[j->x], width);
    tarn__cl_options options = {.length = 0};
    tarn__cl_option_compute(&options, TARN__CL_I64);
    bool is_small = tarn__cl_option_index(&options, &nest);
    tarn__cl_option(&options, " -DBITS=%s -DI=%s -DPER=%d", tarn__cl_bits(bytes * (size_t)width),
                    tarn__cl_dtype_name(j->view[j->index]->dtype), per);
    tarn__cl_launch launch = tarn__cl_begin(call, "gather", j->kernel, options.text);
    tarn__cl_arg_view(&launch, &y);
    tarn__cl_arg_view(&launch, j->view[j->index]);
    tarn__cl_arg_view(&launch, &x);
    tarn__cl_arg_index(&launch, is_small, nest.count);
    tarn__cl_arg_long(&launch, j->limit);
    tarn__cl_arg_long(&launch, j->step / width);
    tarn__cl_arg_indexer(&launch, is_small, &nest);
    tarn__cl_arg_fault(&launch, call);
    tarn__cl_enqueue_elements(&launch, (nest.count + per - 1) / per);
}

/* `index` has y's shape. */
static void gather(const tarn__call *call, const tarn__view *index, int axis)
{
    const tarn__view *x = call->in[0], *y = call->out[0];
    tarn__view lines = *x;
    for (int i = 0; i < x->rank; i++) {
        lines.shape[i] = y->shape[i];
        lines.stride[i] = i == axis ? 0 : x->stride[i];
    }
    run(call, &(job){"gather", 4, {y, index, &lines}, 0, 1, 2, tarn__axis_size(x, axis), tarn__axis_stride(x, axis)});
}

/* y[…, i, …] = x[…, index[…, i, …], …]. */
static void kernel_gather(const tarn__call *call)
{
    gather(call, call->in[1], ((const tarn__along *)call->params)->axis);
}

/* A gather whose index is repeated along the other axes. */
static void kernel_index_select(const tarn__call *call)
{
    int axis = ((const tarn__along *)call->params)->axis;
    tarn__view repeated = tarn__view_repeated(call->in[1], call->out[0], axis);
    gather(call, &repeated, axis);
}

/* Writes x (B, t, ...) into y from index[b] on: the KV cache. The index is a start, so valid ones end a row's length
 * early. */
static void kernel_write_rows(const tarn__call *call)
{
    const tarn__view *index = call->in[0], *x = call->in[1], *y = call->out[0];
    int axis = ((const tarn__along *)call->params)->axis;
    tarn__view target = *y, repeated = tarn__view_repeated(index, x, 0);
    for (int i = 0; i < x->rank; i++)
        target.shape[i] = x->shape[i];
    run(call,
        &(job){
            "write_rows", 1, {&target, x, &repeated}, 0, 2, 1, y->shape[axis] - x->shape[axis] + 1, y->stride[axis]});
}

/* The index has y's shape without the last axis. */
static void kernel_one_hot(const tarn__call *call)
{
    const tarn__view *index = call->in[0], *y = call->out[0];
    tarn__view repeated = *index;
    repeated.rank = y->rank;
    repeated.shape[y->rank - 1] = y->shape[y->rank - 1];
    repeated.stride[y->rank - 1] = 0;
    tarn__nest nest;
    tarn__cl_nest_in_order(&nest, 2, (const tarn__view *[]){y, &repeated});
    if (nest.count == 0)
        return;
    tarn__cl_options options = {.length = 0};
    tarn__cl_option_compute(&options, TARN__CL_I64);
    bool is_small = tarn__cl_option_index(&options, &nest);
    tarn__cl_option(&options, " -DT=%s -DI=%s", tarn__cl_dtype_name(y->dtype), tarn__cl_dtype_name(index->dtype));
    tarn__cl_launch launch = tarn__cl_begin(call, "gather", "one_hot", options.text);
    tarn__cl_arg_view(&launch, y);
    tarn__cl_arg_view(&launch, index);
    tarn__cl_arg_index(&launch, is_small, nest.count);
    tarn__cl_arg_long(&launch, y->shape[y->rank - 1]);
    tarn__cl_arg_indexer(&launch, is_small, &nest);
    tarn__cl_arg_fault(&launch, call);
    tarn__cl_enqueue_elements(&launch, nest.count);
}

void tarn__cl_register_gather(tarn__kernel_row *rows)
{
    rows[TARN__K_gather] = tarn__row(kernel_gather, TARN__ALL);
    rows[TARN__K_index_select] = tarn__row(kernel_index_select, TARN__ALL);
    rows[TARN__K_write_rows] = tarn__row(kernel_write_rows, TARN__INDEXES);
    rows[TARN__K_one_hot] = tarn__row(kernel_one_hot, TARN__INDEXES);
}
