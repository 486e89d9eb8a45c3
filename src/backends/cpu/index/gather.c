/* gather.c: reading, adding and writing at indices: gather, index_select, scatter_add, index_add, one_hot, put_rows.
 *
 * Where whole rows move (an index of slices, the rows dense) there are fast forms for index_select and index_add;
 * everything else goes element by element through gather and scatter_add, an index of slices as one that is repeated
 * along the other axes.
 *
 * Sums have the same bits with any number of threads: what is added at one place is added by one thread in the order of
 * the source. scatter_add cuts the work across the lines along the axis, which never meet; index_add sorts the slices
 * by where they go.
 *
 * An index outside the axis is skipped and noted; the first one, row-major, is looked up afterwards. */
#include <stdatomic.h>
#include <string.h>

#include "backends/cpu/common/convert.h"
#include "backends/cpu/elementwise/elementwise_loops.h"
#include "base/kernel/backend.h"

#define TILE 512
#define GRAIN 16384       /* elements a thread takes at a time */
#define ROW_MIN 16        /* rows at least this long are moved as rows */
#define ROW_BLOCK 256     /* elements of a row that one job of index_add covers: 1 KiB of f32 */
#define MOST_BUCKETS 1024 /* ranges of slices that index_add sorts its source by */

/* ---- shared ------------------------------------------------------------------------------------------------------ */

/* Rank 0 counts as one axis of size 1. */
static void make_nest(tarn__nest *nest, int operands, const tarn__view *const *views)
{
    tarn__nest_make(nest, operands, views);
    if (nest->rank > 0)
        return;
    nest->rank = 1;
    nest->shape[0] = 1;
    for (int k = 0; k < operands; k++)
        nest->stride[k][0] = 0;
}

/* Where every operand's element `at` lies, and how many of its row follow, itself included. */
static int64_t locate(const tarn__nest *nest, int64_t at, int64_t *offset)
{
    int last = nest->rank - 1;
    int64_t left = nest->shape[last] - at % nest->shape[last];
    for (int k = 0; k < nest->operands; k++)
        offset[k] = 0;
    for (int i = last; i >= 0; i--) {
        int64_t index = at % nest->shape[i];
        at /= nest->shape[i];
        for (int k = 0; k < nest->operands; k++)
            offset[k] += index * nest->stride[k][i];
    }
    return left;
}

static int64_t least(int64_t a, int64_t b)
{
    return a < b ? a : b;
}

static int64_t read_index(const tarn__view *index, int64_t offset)
{
    const void *base = tarn__view_at(index);
    return index->dtype == TARN_I32 ? ((const int32_t *)base)[offset] : ((const int64_t *)base)[offset];
}

/* The first index, row-major, that is outside 0 to limit - 1. There is one. */
static void find_fault(const tarn__call *call, const tarn__view *index, int64_t limit)
{
    int64_t count = tarn__view_count(index);
    for (int64_t i = 0; i < count; i++) {
        int64_t offset = 0, rest = i;
        for (int k = index->rank - 1; k >= 0; k--) {
            offset += rest % index->shape[k] * index->stride[k];
            rest /= index->shape[k];
        }
        int64_t value = read_index(index, offset);
        if (value < 0 || value >= limit) {
            *call->fault = (tarn__fault){1, call->function, value, limit};
            return;
        }
    }
}

/* ---- gather ------------------------------------------------------------------------------------------------------ */

typedef struct gather_job {
    tarn__nest nest; /* y, index, x with stride 0 along the axis */
    char *to;
    const char *index, *from;
    int64_t size, index_size, limit, step;
    tarn__load_fn load_index;
    _Atomic int bad;
} gather_job;

static bool move_at(const gather_job *job, char *to, int64_t to_stride, const char *from, int64_t from_stride,
                    const int64_t *at, int64_t n)
{
    bool bad = false;
    uint64_t limit = (uint64_t)job->limit;
#define MOVE(type) \
    for (int64_t k = 0; k < n; k++) \
        if ((uint64_t)at[k] < limit) \
            ((type *)to)[k * to_stride] = ((const type *)from)[k * from_stride + at[k] * job->step]; \
        else \
            bad = true;
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
    return bad;
}

static void gather_range(int64_t begin, int64_t end, void *ctx)
{
    gather_job *job = ctx;
    int last = job->nest.rank - 1;
    int64_t at[TILE], offset[TARN__MAX_OPERANDS];
    for (int64_t n; begin < end; begin += n) {
        n = least(least(locate(&job->nest, begin, offset), end - begin), TILE);
        job->load_index(job->index + offset[1] * job->index_size, job->nest.stride[1][last], at, n);
        if (move_at(job, job->to + offset[0] * job->size, job->nest.stride[0][last], job->from + offset[2] * job->size,
                    job->nest.stride[2][last], at, n))
            atomic_store_explicit(&job->bad, 1, memory_order_relaxed);
    }
}

/* False when an index was bad. */
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
    tarn__parallel_for(job.nest.count, GRAIN, gather_range, &job);
    return !atomic_load(&job.bad);
}

static void kernel_gather(const tarn__call *call)
{
    const tarn__along *along = call->params;
    if (!gather(call->in[0], call->in[1], call->out[0], along->axis))
        find_fault(call, call->in[1], tarn__axis_size(call->in[0], along->axis));
}

/* ---- index_select ------------------------------------------------------------------------------------------------ */

typedef struct select_job {
    tarn__nest nest; /* y and x across the axis */
    const tarn__view *index;
    char *to;
    const char *from;
    int64_t size, count, limit, to_step, from_step, row;
    _Atomic int bad;
} select_job;

/* Job k is row k / count of the nest in slice k % count, so that y is written in order. Rows may be short: nothing is
 * divided for each. */
static void select_range(int64_t begin, int64_t end, void *ctx)
{
    select_job *job = ctx;
    int64_t offset[TARN__MAX_OPERANDS], row = begin / job->count, slice = begin % job->count;
    locate(&job->nest, row * job->row, offset);
    for (int64_t k = begin; k < end; k++) {
        int64_t at = read_index(job->index, slice * job->index->stride[0]);
        if (at < 0 || at >= job->limit)
            atomic_store_explicit(&job->bad, 1, memory_order_relaxed);
        else
            memcpy(job->to + (offset[0] + slice * job->to_step) * job->size,
                   job->from + (offset[1] + at * job->from_step) * job->size, (size_t)(job->row * job->size));
        if (++slice == job->count) {
            slice = 0;
            locate(&job->nest, ++row * job->row, offset);
        }
    }
}

static void kernel_index_select(const tarn__call *call)
{
    const tarn__view *x = call->in[0], *index = call->in[1], *y = call->out[0];
    int axis = ((const tarn__along *)call->params)->axis;
    tarn__view y_rest = tarn__view_across(y, axis, y), x_rest = tarn__view_across(x, axis, y);
    select_job job = {.index = index,
                      .to = tarn__view_at(y),
                      .from = tarn__view_at(x),
                      .size = (int64_t)tarn__dtype_bytes(x->dtype),
                      .count = y->shape[axis],
                      .limit = x->shape[axis],
                      .to_step = y->stride[axis],
                      .from_step = x->stride[axis]};
    make_nest(&job.nest, 2, (const tarn__view *[]){&y_rest, &x_rest});
    int last = job.nest.rank - 1;
    job.row = job.nest.shape[last];
    bool good;
    if (job.nest.stride[0][last] == 1 && job.nest.stride[1][last] == 1 && job.row >= ROW_MIN) {
        int64_t grain = GRAIN / job.row;
        tarn__parallel_for(job.nest.count / job.row * job.count, grain > 0 ? grain : 1, select_range, &job);
        good = !atomic_load(&job.bad);
    } else {
        tarn__view wide = tarn__view_repeated(index, y, axis);
        good = gather(x, &wide, y, axis);
    }
    if (!good)
        find_fault(call, index, x->shape[axis]);
}

/* ---- adding: y[i] += source[i] ----------------------------------------------------------------------------------- */

/* 16-bit floats are summed in f32, in scratch, and rounded once. */
static bool is_short(tarn_dtype dtype)
{
    return tarn__acc_dtype(dtype) != dtype;
}

static size_t wide_bytes(const tarn__view *y)
{
    return is_short(y->dtype) ? ((size_t)tarn__view_count(y) * sizeof(float) + 63) / 64 * 64 : 0;
}

static void pass_on(int64_t n, const void *const *in, void *const *out, const tarn__elementwise *params)
{
    (void)params;
    if (in[0] != out[0])
        memcpy(out[0], in[0], (size_t)n * sizeof(float));
}

static void convert(const tarn__view *from, const tarn__view *to)
{
    tarn__call call = {.inputs = 1, .outputs = 1, .in = {from}, .out = {to}};
    TARN__AT_LEVEL(tarn__run_tiles)(&call, &(tarn__tile_job){.tile = pass_on, .compute = COMPUTE_F32});
}

/* Where to add: y itself, or its copy in scratch. */
static tarn__view open_sum(const tarn__call *call)
{
    tarn__view sum = *call->out[0];
    if (is_short(sum.dtype)) {
        sum.dtype = TARN_F32;
        sum.memory = call->scratch;
        sum.offset = 0;
        tarn__view_set_row_major(&sum);
        convert(call->out[0], &sum);
    }
    return sum;
}

static void close_sum(const tarn__call *call, const tarn__view *sum)
{
    if (is_short(call->out[0]->dtype))
        convert(sum, call->out[0]);
}

/* A tile of the source in the type that y's dtype is computed in: the tile itself where it lies so, else in the buffer.
 */
static const void *load_source(const tarn__view *y, const tarn__view *source, const void *from, int64_t stride,
                               int64_t n, void *buffer)
{
    if (source->dtype == y->dtype && stride == 1 &&
        (y->dtype == TARN_F32 || y->dtype == TARN_F64 || y->dtype == TARN_I64))
        return from;
    tarn__load[source->dtype][tarn__compute_of(y->dtype)](from, stride, buffer, n);
    return buffer;
}

/* ---- scatter_add ------------------------------------------------------------------------------------------------- */

typedef struct scatter_job {
    tarn__nest nest; /* y, index, source across the axis */
    const tarn__view *y, *index, *source;
    int64_t length;                          /* of the index along the axis */
    int64_t y_step, index_step, source_step; /* strides along the axis */
    int64_t limit, y_size, index_size, source_size;
    bool along; /* lines are walked one after the other, as y's elements are neighbours along the axis */
    _Atomic int bad;
} scatter_job;

/* Adds n elements of the source in order; element k goes to to[k · to_stride + index[k] · y_step]. */
static void add_at(scatter_job *job, char *to, int64_t to_stride, const char *index, int64_t index_stride,
                   const char *source, int64_t source_stride, int64_t n)
{
    int64_t at[TILE], buffer[TILE], step = job->y_step;
    const void *values = load_source(job->y, job->source, source, source_stride, n, buffer);
    uint64_t limit = (uint64_t)job->limit;
    bool bad = false;
    tarn__load[job->index->dtype][COMPUTE_I64](index, index_stride, at, n);
#define ADD(type, compute) \
    for (int64_t k = 0; k < n; k++) { \
        if ((uint64_t)at[k] >= limit) { \
            bad = true; \
            continue; \
        } \
        type *place = (type *)to + k * to_stride + at[k] * step; \
        *place = (type)(*place + (type)((const compute *)values)[k]); \
    }
    if (job->y->dtype == TARN_F32) {
        ADD(float, float)
    } else if (job->y->dtype == TARN_F64) {
        ADD(double, double)
    } else if (job->y->dtype == TARN_I64) {
        ADD(int64_t, int64_t)
    } else if (job->y->dtype == TARN_I32) {
        ADD(int32_t, int64_t)
    } else {
        ADD(uint8_t, int64_t)
    }
#undef ADD
    if (bad)
        atomic_store_explicit(&job->bad, 1, memory_order_relaxed);
}

static void scatter_range(int64_t begin, int64_t end, void *ctx)
{
    scatter_job *job = ctx;
    int last = job->nest.rank - 1;
    int64_t offset[TARN__MAX_OPERANDS], y_stride = job->nest.stride[0][last], index_stride = job->nest.stride[1][last],
                                        source_stride = job->nest.stride[2][last];
    for (int64_t n; begin < end; begin += n) {
        n = least(least(locate(&job->nest, begin, offset), end - begin), TILE);
        char *y = (char *)tarn__view_at(job->y) + offset[0] * job->y_size;
        const char *index = (const char *)tarn__view_at(job->index) + offset[1] * job->index_size;
        const char *source = (const char *)tarn__view_at(job->source) + offset[2] * job->source_size;
        if (job->along) {
            for (int64_t line = 0; line < n; line++)
                for (int64_t k = 0; k < job->length; k += TILE)
                    add_at(job, y + line * y_stride * job->y_size, 0,
                           index + (line * index_stride + k * job->index_step) * job->index_size, job->index_step,
                           source + (line * source_stride + k * job->source_step) * job->source_size, job->source_step,
                           least(TILE, job->length - k));
        } else {
            for (int64_t k = 0; k < job->length; k++)
                add_at(job, y, y_stride, index + k * job->index_step * job->index_size, index_stride,
                       source + k * job->source_step * job->source_size, source_stride, n);
        }
    }
}

/* False when an index was bad. */
static bool scatter_add(const tarn__view *index, const tarn__view *source, const tarn__view *y, int axis)
{
    tarn__view y_rest = tarn__view_across(y, axis, index), index_rest = tarn__view_across(index, axis, index);
    tarn__view source_rest = tarn__view_across(source, axis, index);
    scatter_job job = {.y = y,
                       .index = index,
                       .source = source,
                       .length = tarn__axis_size(index, axis),
                       .limit = tarn__axis_size(y, axis),
                       .y_step = tarn__axis_stride(y, axis),
                       .index_step = tarn__axis_stride(index, axis),
                       .source_step = tarn__axis_stride(source, axis),
                       .y_size = (int64_t)tarn__dtype_bytes(y->dtype),
                       .index_size = (int64_t)tarn__dtype_bytes(index->dtype),
                       .source_size = (int64_t)tarn__dtype_bytes(source->dtype)};
    make_nest(&job.nest, 3, (const tarn__view *[]){&y_rest, &index_rest, &source_rest});
    if (job.length == 0)
        return true;
    int64_t row = job.nest.shape[job.nest.rank - 1], stride = job.nest.stride[0][job.nest.rank - 1],
            grain = GRAIN / job.length;
    job.along = row == 1 || (job.y_step < 0 ? -job.y_step : job.y_step) < (stride < 0 ? -stride : stride);
    int64_t fewest = job.along ? 1 : 64; /* neighbours that share cache lines stay together */
    tarn__parallel_for(job.nest.count, grain > fewest ? grain : fewest, scatter_range, &job);
    return !atomic_load(&job.bad);
}

static size_t scratch_scatter_add(const tarn__call *call)
{
    return wide_bytes(call->out[0]);
}

static void kernel_scatter_add(const tarn__call *call)
{
    int axis = ((const tarn__along *)call->params)->axis;
    tarn__view sum = open_sum(call);
    if (!scatter_add(call->in[0], call->in[1], &sum, axis))
        find_fault(call, call->in[0], tarn__axis_size(&sum, axis));
    close_sum(call, &sum);
}

/* ---- index_add --------------------------------------------------------------------------------------------------- */

/* Slice `from` of the source goes to slice `to` of y. */
typedef struct entry {
    int64_t from, to;
} entry;

typedef struct rows_job {
    tarn__nest nest; /* y and source across the axis */
    const tarn__view *y, *source;
    const int64_t *begin;   /* of each bucket's entries, and of what would follow the last */
    const entry *entries;   /* in each bucket in the order of the source */
    int64_t blocks, pieces; /* blocks of a row; of all rows */
    int64_t y_step, source_step, y_size, source_size;
} rows_job;

static void add_row(const tarn__view *y, char *to, const void *values, int64_t n)
{
#define ADD(type, compute) \
    for (int64_t i = 0; i < n; i++) \
        ((type *)to)[i] = (type)(((type *)to)[i] + (type)((const compute *)values)[i]);
    if (y->dtype == TARN_F32) {
        TARN__INDEPENDENT
        ADD(float, float)
    } else if (y->dtype == TARN_F64) {
        TARN__INDEPENDENT
        ADD(double, double)
    } else if (y->dtype == TARN_I64) {
        ADD(int64_t, int64_t)
    } else if (y->dtype == TARN_I32) {
        ADD(int32_t, int64_t)
    } else {
        ADD(uint8_t, int64_t)
    }
#undef ADD
}

/* Job k is piece k % pieces of all slices in bucket k / pieces. */
static void rows_range(int64_t begin, int64_t end, void *ctx)
{
    const rows_job *job = ctx;
    int last = job->nest.rank - 1;
    int64_t row = job->nest.shape[last], stride = job->nest.stride[1][last], buffer[ROW_BLOCK],
            offset[TARN__MAX_OPERANDS];
    for (int64_t k = begin; k < end; k++) {
        int64_t bucket = k / job->pieces, piece = k % job->pieces;
        if (job->begin[bucket] == job->begin[bucket + 1])
            continue;
        int64_t left = locate(&job->nest, piece / job->blocks * row + piece % job->blocks * ROW_BLOCK, offset);
        int64_t n = least(left, ROW_BLOCK);
        char *y = (char *)tarn__view_at(job->y) + offset[0] * job->y_size;
        const char *source = (const char *)tarn__view_at(job->source) + offset[1] * job->source_size;
        for (int64_t i = job->begin[bucket]; i < job->begin[bucket + 1]; i++) {
            const char *from = source + job->entries[i].from * job->source_step * job->source_size;
            add_row(job->y, y + job->entries[i].to * job->y_step * job->y_size,
                    load_source(job->y, job->source, from, stride, n, buffer), n);
        }
    }
}

static int64_t bucket_count(int64_t limit)
{
    return least(limit, MOST_BUCKETS);
}

/* Sorts the slices by the range of y they go to, keeping their order. `begin` has room for two more than there are
 * buckets. False when an index was bad. */
static bool sort_into_buckets(const tarn__view *index, int64_t limit, int64_t *begin, entry *entries)
{
    int64_t count = index->shape[0], width = (limit + MOST_BUCKETS - 1) / MOST_BUCKETS, buckets = bucket_count(limit);
    bool good = true;
    memset(begin, 0, sizeof(*begin) * (size_t)(buckets + 2));
    for (int64_t i = 0; i < count; i++) {
        int64_t at = read_index(index, i * index->stride[0]);
        if (at >= 0 && at < limit)
            begin[at / width + 2]++;
        else
            good = false;
    }
    for (int64_t i = 2; i < buckets + 2; i++)
        begin[i] += begin[i - 1];
    for (int64_t i = 0; i < count; i++) {
        int64_t at = read_index(index, i * index->stride[0]);
        if (at >= 0 && at < limit)
            entries[begin[at / width + 1]++] = (entry){i, at};
    }
    return good;
}

static size_t scratch_index_add(const tarn__call *call)
{
    return wide_bytes(call->out[0]) + sizeof(int64_t) * (MOST_BUCKETS + 2) +
           sizeof(entry) * (size_t)call->in[0]->shape[0];
}

/* False when an index was bad. */
static bool index_add(const tarn__call *call, const tarn__view *y, int axis)
{
    const tarn__view *index = call->in[0], *source = call->in[1];
    tarn__view y_rest = tarn__view_across(y, axis, y), source_rest = tarn__view_across(source, axis, y);
    int64_t *begin = (int64_t *)((char *)call->scratch + wide_bytes(call->out[0])), limit = y->shape[axis];
    entry *entries = (entry *)(begin + MOST_BUCKETS + 2);
    rows_job job = {.y = y,
                    .source = source,
                    .begin = begin,
                    .entries = entries,
                    .y_step = y->stride[axis],
                    .source_step = source->stride[axis],
                    .y_size = (int64_t)tarn__dtype_bytes(y->dtype),
                    .source_size = (int64_t)tarn__dtype_bytes(source->dtype)};
    make_nest(&job.nest, 2, (const tarn__view *[]){&y_rest, &source_rest});
    int64_t row = job.nest.shape[job.nest.rank - 1];
    if (job.nest.stride[0][job.nest.rank - 1] != 1 || row < ROW_MIN || limit == 0) {
        tarn__view wide = tarn__view_repeated(index, source, axis);
        return scatter_add(&wide, source, y, axis);
    }
    bool good = sort_into_buckets(index, limit, begin, entries);
    job.blocks = (row + ROW_BLOCK - 1) / ROW_BLOCK;
    job.pieces = job.nest.count / row * job.blocks;
    int64_t jobs = bucket_count(limit) * job.pieces,
            each = index->shape[0] * job.nest.count / (jobs > 0 ? jobs : 1) + 1;
    tarn__parallel_for(jobs, GRAIN / each + 1, rows_range, &job);
    return good;
}

/* y without its old values. */
static void clear(const tarn__call *call)
{
    tarn__fill zero = {0};
    tarn__call part = {.outputs = 1, .out = {call->out[0]}, .params = &zero, .params_bytes = sizeof(zero)};
    tarn__cpu_backend()->kernels[TARN__K_fill].run(&part);
}

static void kernel_index_add(const tarn__call *call)
{
    int axis = ((const tarn__along *)call->params)->axis;
    if (!(call->reads_output & 1))
        clear(call);
    tarn__view sum = open_sum(call);
    if (!index_add(call, &sum, axis))
        find_fault(call, call->in[0], sum.shape[axis]);
    close_sum(call, &sum);
}

/* ---- one_hot ----------------------------------------------------------------------------------------------------- */

typedef struct hot_job {
    tarn__nest nest; /* y without its last axis, index */
    const tarn__view *y, *index;
    _Atomic int bad;
} hot_job;

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
            atomic_store_explicit(&job->bad, 1, memory_order_relaxed);
    }
}

static void kernel_one_hot(const tarn__call *call)
{
    const tarn__view *index = call->in[0], *y = call->out[0];
    tarn__view rows = tarn__view_across(y, y->rank - 1, y);
    hot_job job = {.y = y, .index = index};
    make_nest(&job.nest, 2, (const tarn__view *[]){&rows, index});
    int64_t grain = GRAIN / (y->shape[y->rank - 1] + 1);
    tarn__parallel_for(job.nest.count, grain > 0 ? grain : 1, hot_range, &job);
    if (atomic_load(&job.bad))
        find_fault(call, index, y->shape[y->rank - 1]);
}

/* ---- put_rows ---------------------------------------------------------------------------------------------------- */

typedef struct put_job {
    tarn__nest nest; /* y as large as x, x, index */
    const tarn__view *index;
    char *to;
    const char *from;
    int64_t size, step, room; /* bytes of an element; stride along the axis; places that x may begin at */
    _Atomic int bad;
} put_job;

static void put_run(const put_job *job, const int64_t *offset, int64_t at, int64_t n)
{
    int last = job->nest.rank - 1;
    int64_t to_stride = job->nest.stride[0][last], from_stride = job->nest.stride[1][last], size = job->size;
    char *to = job->to + (offset[0] + at * job->step) * size;
    const char *from = job->from + offset[1] * size;
    if (to_stride == 1 && from_stride == 1)
        memcpy(to, from, (size_t)(n * size));
    else
        for (int64_t i = 0; i < n; i++)
            memcpy(to + i * to_stride * size, from + i * from_stride * size, (size_t)size);
}

static void put_range(int64_t begin, int64_t end, void *ctx)
{
    put_job *job = ctx;
    int64_t offset[TARN__MAX_OPERANDS], step = job->nest.stride[2][job->nest.rank - 1];
    for (int64_t i = begin, n; i < end; i += n) {
        n = least(locate(&job->nest, i, offset), step == 0 ? end - i : 1);
        n = least(n, end - i);
        int64_t at = read_index(job->index, offset[2]);
        if (at >= 0 && at < job->room)
            put_run(job, offset, at, n);
        else
            atomic_store_explicit(&job->bad, 1, memory_order_relaxed);
    }
}

static void kernel_put_rows(const tarn__call *call)
{
    const tarn__view *index = call->in[0], *x = call->in[1], *y = call->out[0];
    int axis = ((const tarn__along *)call->params)->axis;
    tarn__view place = *y, wide = tarn__view_repeated(index, x, 0);
    memcpy(place.shape, x->shape, sizeof(place.shape));
    put_job job = {.index = index,
                   .to = tarn__view_at(y),
                   .from = tarn__view_at(x),
                   .size = (int64_t)tarn__dtype_bytes(y->dtype),
                   .step = y->stride[axis],
                   .room = y->shape[axis] - x->shape[axis] + 1};
    make_nest(&job.nest, 3, (const tarn__view *[]){&place, x, &wide});
    tarn__parallel_for(tarn__view_count(x), GRAIN, put_range, &job);
    if (atomic_load(&job.bad))
        find_fault(call, index, job.room);
}

void TARN__AT_F64_LEVEL(tarn__cpu_gather)(tarn__kernel_row *rows)
{
    rows[TARN__K_gather] = (tarn__kernel_row){kernel_gather, TARN__ALL, NULL};
    rows[TARN__K_scatter_add] = (tarn__kernel_row){kernel_scatter_add, TARN__INDEXES, scratch_scatter_add};
    rows[TARN__K_index_select] = (tarn__kernel_row){kernel_index_select, TARN__ALL, NULL};
    rows[TARN__K_index_add] = (tarn__kernel_row){kernel_index_add, TARN__INDEXES, scratch_index_add};
    rows[TARN__K_one_hot] = (tarn__kernel_row){kernel_one_hot, TARN__INDEXES, NULL};
    rows[TARN__K_write_rows] = (tarn__kernel_row){kernel_put_rows, TARN__INDEXES, NULL};
}
