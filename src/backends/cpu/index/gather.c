/* gather.c: reading at indices: gather, index_select, one_hot.
 *
 * index_select moves whole rows where these are contiguous (memcpy per row); everything else goes element by element
 * through gather, with an index of slices broadcast along the other axes. Outputs of invalid indices keep their old
 * contents (one_hot: zeros), and the first invalid index is reported.
 *
 * Traffic: each output element is read once and written once, plus the indices. Indices are i32 or i64 with any
 * strides. */
#include <stdatomic.h>
#include <string.h>

#include "backends/cpu/index/index_common.h"

/* ---- gather ------------------------------------------------------------------------------------------------------ */

/* gather: y[..., i, ...] = x[..., index[..., i, ...], ...] along one axis. */
typedef struct gather_job {
    tarn__nest nest; /* y, index, x with stride 0 along the axis */
    char *to;
    const char *index, *from;
    int64_t size, index_size, limit, step;
    tarn__load_fn load_index;
    _Atomic int has_fault;
} gather_job;

/* Moves n elements by the unsigned type of their size; true where an index was out of range. One unsigned comparison
 * checks both ends. */
static bool move_at(const gather_job *job, char *to, int64_t to_stride, const char *from, int64_t from_stride,
                    const int64_t *at, int64_t n)
{
    bool has_fault = false;
    uint64_t limit = (uint64_t)job->limit;
#define MOVE(type) \
    for (int64_t k = 0; k < n; k++) \
        if ((uint64_t)at[k] < limit) \
            ((type *)to)[k * to_stride] = ((const type *)from)[k * from_stride + at[k] * job->step]; \
        else \
            has_fault = true;
    if (job->size == 4) {
        MOVE(uint32_t)
    } else if (job->size == 2) {
        MOVE(uint16_t)
    } else if (job->size == 8) {
        MOVE(uint64_t)
    } else {
        MOVE(uint8_t)
    }
#undef MOVE
    return has_fault;
}

/* Element range [begin, end) of y, in runs of at most INDEX_TILE along its innermost axis. */
static void gather_range(int64_t begin, int64_t end, void *ctx)
{
    gather_job *job = ctx;
    int last = job->nest.rank - 1;
    int64_t at[INDEX_TILE], offset[TARN__MAX_OPERANDS];
    for (int64_t n; begin < end; begin += n) {
        n = min_i64(min_i64(locate(&job->nest, begin, offset), end - begin), INDEX_TILE);
        job->load_index(job->index + offset[1] * job->index_size, job->nest.stride[1][last], at, n);
        if (move_at(job, job->to + offset[0] * job->size, job->nest.stride[0][last], job->from + offset[2] * job->size,
                    job->nest.stride[2][last], at, n))
            atomic_store_explicit(&job->has_fault, 1, memory_order_relaxed);
    }
}

/* False where an index was out of range. */
static bool gather(const tarn__view *x, const tarn__view *index, const tarn__view *y, int axis)
{
    tarn__view lines = *x;
    for (int i = 0; i < x->rank; i++) {
        lines.shape[i] = y->shape[i];
        lines.stride[i] = i == axis ? 0 : x->stride[i];
    }
    gather_job job = {.to = tarn__view_at(y),
                      .index = tarn__view_at(index),
                      .from = tarn__view_at(x),
                      .size = (int64_t)tarn__dtype_bytes(x->dtype),
                      .index_size = (int64_t)tarn__dtype_bytes(index->dtype),
                      .limit = tarn__axis_size(x, axis),
                      .step = tarn__axis_stride(x, axis),
                      .load_index = tarn__load[index->dtype][COMPUTE_I64]};
    make_nest(&job.nest, 3, (const tarn__view *[]){y, index, &lines});
    tarn__parallel_for(job.nest.count, INDEX_GRAIN, gather_range, &job);
    return !atomic_load(&job.has_fault);
}

static void kernel_gather(const tarn__call *call)
{
    const tarn__along *along = call->params;
    if (!gather(call->in[0], call->in[1], call->out[0], along->axis))
        find_fault(call, call->in[1], tarn__axis_size(call->in[0], along->axis));
}

/* ---- index_select ------------------------------------------------------------------------------------------------ */

/* index_select with contiguous rows. */
typedef struct select_job {
    tarn__nest nest; /* y and x across the axis */
    const tarn__view *index;
    char *to;
    const char *from;
    int64_t size, count, limit, to_step, from_step, row;
    _Atomic int has_fault;
} select_job;

/* Job k is row k / count of the nest in slice k % count, so that y is written in order. Rows may be short: no
 * division per row. */
static void select_range(int64_t begin, int64_t end, void *ctx)
{
    select_job *job = ctx;
    int64_t offset[TARN__MAX_OPERANDS], row = begin / job->count, slice = begin % job->count;
    locate(&job->nest, row * job->row, offset);
    for (int64_t k = begin; k < end; k++) {
        int64_t at = read_index(job->index, slice * job->index->stride[0]);
        if (at < 0 || at >= job->limit)
            atomic_store_explicit(&job->has_fault, 1, memory_order_relaxed);
        else
            memcpy(job->to + (offset[0] + slice * job->to_step) * job->size,
                   job->from + (offset[1] + at * job->from_step) * job->size, (size_t)(job->row * job->size));
        if (++slice == job->count) {
            slice = 0;
            locate(&job->nest, ++row * job->row, offset);
        }
    }
}

/* memcpy of rows where they are contiguous and at least INDEX_ROW_MIN long. */
static void kernel_index_select(const tarn__call *call)
{
    const tarn__view *x = call->in[0], *index = call->in[1], *y = call->out[0];
    int axis = ((const tarn__along *)call->params)->axis;
    tarn__view y_across = tarn__view_across(y, axis, y), x_across = tarn__view_across(x, axis, y);
    select_job job = {.index = index,
                      .to = tarn__view_at(y),
                      .from = tarn__view_at(x),
                      .size = (int64_t)tarn__dtype_bytes(x->dtype),
                      .count = y->shape[axis],
                      .limit = x->shape[axis],
                      .to_step = y->stride[axis],
                      .from_step = x->stride[axis]};
    make_nest(&job.nest, 2, (const tarn__view *[]){&y_across, &x_across});
    int last = job.nest.rank - 1;
    job.row = job.nest.shape[last];
    bool is_valid;
    if (job.nest.stride[0][last] == 1 && job.nest.stride[1][last] == 1 && job.row >= INDEX_ROW_MIN) {
        int64_t grain = INDEX_GRAIN / job.row;
        tarn__parallel_for(job.nest.count / job.row * job.count, grain > 0 ? grain : 1, select_range, &job);
        is_valid = !atomic_load(&job.has_fault);
    } else {
        tarn__view broadcast = tarn__view_repeated(index, y, axis);
        is_valid = gather(x, &broadcast, y, axis);
    }
    if (!is_valid)
        find_fault(call, index, x->shape[axis]);
}

/* ---- one_hot ----------------------------------------------------------------------------------------------------- */

/* one_hot. */
typedef struct hot_job {
    tarn__nest nest; /* y without its last axis, index */
    const tarn__view *y, *index;
    _Atomic int has_fault;
} hot_job;

/* Each row is zeroed and gets its 1: the row is written once while in cache. */
static void hot_range(int64_t begin, int64_t end, void *ctx)
{
    hot_job *job = ctx;
    const tarn__view *y = job->y;
    int64_t offset[TARN__MAX_OPERANDS], size = (int64_t)tarn__dtype_bytes(y->dtype), one = 1;
    int64_t classes = y->shape[y->rank - 1], stride = y->stride[y->rank - 1];
    for (int64_t i = begin; i < end; i++) {
        locate(&job->nest, i, offset);
        char *row = (char *)tarn__view_at(y) + offset[0] * size;
        int64_t at = read_index(job->index, offset[1]);
        if (stride == 1)
            memset(row, 0, (size_t)(classes * size));
        else
            for (int64_t k = 0; k < classes; k++)
                memset(row + k * stride * size, 0, (size_t)size);
        if (at >= 0 && at < classes)
            tarn__store[y->dtype][COMPUTE_I64](&one, row + at * stride * size, 1, 1);
        else
            atomic_store_explicit(&job->has_fault, 1, memory_order_relaxed);
    }
}

static void kernel_one_hot(const tarn__call *call)
{
    const tarn__view *index = call->in[0], *y = call->out[0];
    tarn__view rows = tarn__view_across(y, y->rank - 1, y);
    hot_job job = {.y = y, .index = index};
    make_nest(&job.nest, 2, (const tarn__view *[]){&rows, index});
    int64_t grain = INDEX_GRAIN / (y->shape[y->rank - 1] + 1);
    tarn__parallel_for(job.nest.count, grain > 0 ? grain : 1, hot_range, &job);
    if (atomic_load(&job.has_fault))
        find_fault(call, index, y->shape[y->rank - 1]);
}

void TARN__AT_F64_LEVEL(tarn__cpu_register_gather)(tarn__kernel_row *rows)
{
    rows[TARN__K_gather] = tarn__row(kernel_gather, TARN__ALL);
    rows[TARN__K_index_select] = tarn__row(kernel_index_select, TARN__ALL);
    rows[TARN__K_one_hot] = tarn__row(kernel_one_hot, TARN__INDEXES);
}
