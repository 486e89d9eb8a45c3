/* scatter.c: writing at indices: scatter_add, index_add, write_rows.
 *
 * Sums are bitwise identical with any number of threads: whatever is added at one position is added by one thread,
 * in source order. scatter_add splits the work across lines along the axis, which never meet; index_add, where whole
 * rows are added, sorts the slices by destination (a stable bucket sort) and gives each bucket to one task. */
#include <stdatomic.h>
#include <string.h>

#include "backends/cpu/elementwise/elementwise_loops.h"
#include "backends/cpu/index/index_common.h"

#define ROW_BLOCK 256    /* elements of a row per job of index_add: 1 KiB of f32 */
#define MAX_BUCKETS 1024 /* buckets of destination slices in index_add */

/* ---- accumulation: y[i] += source[i] ----------------------------------------------------------------------------- */

/* 16-bit floats are summed in f32, in scratch, and rounded once at the end. */
static bool is_short(tarn_dtype dtype)
{
    return tarn__acc_dtype(dtype) != dtype;
}

/* Scratch of the f32 copy of a 16-bit y, rounded up to 64 bytes. */
static size_t f32_copy_bytes(const tarn__view *y)
{
    return is_short(y->dtype) ? ((size_t)tarn__view_count(y) * sizeof(float) + 63) / 64 * 64 : 0;
}

static void copy_tile(int64_t n, const void *const *in, void *const *out, const tarn__elementwise *params)
{
    (void)params;
    if (in[0] != out[0])
        memcpy(out[0], in[0], (size_t)n * sizeof(float));
}

/* Between y and its f32 copy, by the elementwise engine. */
static void convert(const tarn__view *from, const tarn__view *to)
{
    tarn__call call = {.inputs = 1, .outputs = 1, .in = {from}, .out = {to}};
    TARN__AT_LEVEL(tarn__run_tiles)(&call, &(tarn__tile_job){.tile = copy_tile, .compute = COMPUTE_F32});
}

/* The tensor to add into: y itself, or its f32 copy in scratch. */
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

/* Rounds the f32 copy back to y. */
static void close_sum(const tarn__call *call, const tarn__view *sum)
{
    if (is_short(call->out[0]->dtype))
        convert(sum, call->out[0]);
}

/* A tile of the source in the compute type of y: in place, or in the buffer. */
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

/* scatter_add: lines across the axis, each added by one task. */
typedef struct scatter_job {
    tarn__nest nest; /* y, index, source across the axis */
    const tarn__view *y, *index, *source;
    int64_t length;                          /* of the index along the axis */
    int64_t y_step, index_step, source_step; /* strides along the axis */
    int64_t limit, y_size, index_size, source_size;
    bool along; /* lines are walked one by one, since y is contiguous along the axis */
    _Atomic int has_fault;
} scatter_job;

/* Adds n elements of the source in order; element k goes to to[k · to_stride + index[k] · y_step]. */
static void add_at(scatter_job *job, char *to, int64_t to_stride, const char *index, int64_t index_stride,
                   const char *source, int64_t source_stride, int64_t n)
{
    int64_t at[INDEX_TILE], buffer[INDEX_TILE], step = job->y_step;
    const void *values = load_source(job->y, job->source, source, source_stride, n, buffer);
    uint64_t limit = (uint64_t)job->limit;
    bool has_fault = false;
    tarn__load[job->index->dtype][COMPUTE_I64](index, index_stride, at, n);
#define ADD(type, compute) \
    for (int64_t k = 0; k < n; k++) { \
        if ((uint64_t)at[k] >= limit) { \
            has_fault = true; \
            continue; \
        } \
        type *target = (type *)to + k * to_stride + at[k] * step; \
        *target = (type)(*target + (type)((const compute *)values)[k]); \
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
    if (has_fault)
        atomic_store_explicit(&job->has_fault, 1, memory_order_relaxed);
}

/* Lines across the axis: along the axis one by one, or a tile of neighboring lines at a time. */
static void scatter_range(int64_t begin, int64_t end, void *ctx)
{
    scatter_job *job = ctx;
    int last = job->nest.rank - 1;
    int64_t offset[TARN__MAX_OPERANDS], y_stride = job->nest.stride[0][last], index_stride = job->nest.stride[1][last],
                                        source_stride = job->nest.stride[2][last];
    for (int64_t n; begin < end; begin += n) {
        n = min_i64(min_i64(locate(&job->nest, begin, offset), end - begin), INDEX_TILE);
        char *y = (char *)tarn__view_at(job->y) + offset[0] * job->y_size;
        const char *index = (const char *)tarn__view_at(job->index) + offset[1] * job->index_size;
        const char *source = (const char *)tarn__view_at(job->source) + offset[2] * job->source_size;
        if (job->along) {
            for (int64_t line = 0; line < n; line++)
                for (int64_t k = 0; k < job->length; k += INDEX_TILE)
                    add_at(job, y + line * y_stride * job->y_size, 0,
                           index + (line * index_stride + k * job->index_step) * job->index_size, job->index_step,
                           source + (line * source_stride + k * job->source_step) * job->source_size, job->source_step,
                           min_i64(INDEX_TILE, job->length - k));
        } else {
            for (int64_t k = 0; k < job->length; k++)
                add_at(job, y, y_stride, index + k * job->index_step * job->index_size, index_stride,
                       source + k * job->source_step * job->source_size, source_stride, n);
        }
    }
}

/* False where an index was out of range. */
static bool scatter_add(const tarn__view *index, const tarn__view *source, const tarn__view *y, int axis)
{
    tarn__view y_across = tarn__view_across(y, axis, index), index_across = tarn__view_across(index, axis, index);
    tarn__view source_across = tarn__view_across(source, axis, index);
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
    make_nest(&job.nest, 3, (const tarn__view *[]){&y_across, &index_across, &source_across});
    if (job.length == 0)
        return true;
    int64_t row = job.nest.shape[job.nest.rank - 1], stride = job.nest.stride[0][job.nest.rank - 1],
            grain = INDEX_GRAIN / job.length;
    /* Along the axis where y is denser there. */
    job.along = row == 1 || (job.y_step < 0 ? -job.y_step : job.y_step) < (stride < 0 ? -stride : stride);
    int64_t fewest = job.along ? 1 : 64; /* neighbors that share cache lines stay in one task */
    tarn__parallel_for(job.nest.count, grain > fewest ? grain : fewest, scatter_range, &job);
    return !atomic_load(&job.has_fault);
}

static tarn__plan_status prepare_scatter_add(const tarn__call *call, tarn__plan *plan)
{
    plan->scratch_bytes = f32_copy_bytes(call->out[0]);
    return TARN__PLAN_READY;
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

/* Slice `from` of the source is added to slice `to` of y. */
typedef struct entry {
    int64_t from, to;
} entry;

/* index_add with contiguous rows: buckets of destinations by segments of rows. */
typedef struct rows_job {
    tarn__nest nest; /* y and source across the axis */
    const tarn__view *y, *source;
    const int64_t *begin;     /* first entry of each bucket, and one past the last */
    const entry *entries;     /* in source order within each bucket */
    int64_t blocks, segments; /* blocks per row; segments of all rows */
    int64_t y_step, source_step, y_size, source_size;
} rows_job;

/* to += values in y's own dtype; integers wrap (-fwrapv). */
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

/* Job k is segment k % segments of all slices in bucket k / segments. */
static void rows_range(int64_t begin, int64_t end, void *ctx)
{
    const rows_job *job = ctx;
    int last = job->nest.rank - 1;
    int64_t row = job->nest.shape[last], stride = job->nest.stride[1][last], buffer[ROW_BLOCK],
            offset[TARN__MAX_OPERANDS];
    for (int64_t k = begin; k < end; k++) {
        int64_t bucket = k / job->segments, segment = k % job->segments;
        if (job->begin[bucket] == job->begin[bucket + 1])
            continue;
        int64_t left = locate(&job->nest, segment / job->blocks * row + segment % job->blocks * ROW_BLOCK, offset);
        int64_t n = min_i64(left, ROW_BLOCK);
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
    return min_i64(limit, MAX_BUCKETS);
}

/* Stable bucket sort of the slices by destination. `begin` has two entries more than there are buckets. False where
 * an index was out of range. */
static bool sort_into_buckets(const tarn__view *index, int64_t limit, int64_t *begin, entry *entries)
{
    int64_t count = index->shape[0], width = (limit + MAX_BUCKETS - 1) / MAX_BUCKETS, buckets = bucket_count(limit);
    bool is_valid = true;
    memset(begin, 0, sizeof(*begin) * (size_t)(buckets + 2));
    for (int64_t i = 0; i < count; i++) {
        int64_t at = read_index(index, i * index->stride[0]);
        if (at >= 0 && at < limit)
            begin[at / width + 2]++;
        else
            is_valid = false;
    }
    for (int64_t i = 2; i < buckets + 2; i++)
        begin[i] += begin[i - 1];
    for (int64_t i = 0; i < count; i++) {
        int64_t at = read_index(index, i * index->stride[0]);
        if (at >= 0 && at < limit)
            entries[begin[at / width + 1]++] = (entry){i, at};
    }
    return is_valid;
}

/* Offsets in scratch, after the f32 copy: bucket starts, then one entry per slice. */
typedef struct index_add_job {
    size_t begin, entries;
} index_add_job;

static tarn__plan_status prepare_index_add(const tarn__call *call, tarn__plan *plan)
{
    index_add_job *j = tarn__plan_reserve(plan, sizeof(*j));
    if (!j)
        return TARN__PLAN_FAILED;
    j->begin = f32_copy_bytes(call->out[0]);
    j->entries = j->begin + sizeof(int64_t) * (MAX_BUCKETS + 2);
    plan->scratch_bytes = j->entries + sizeof(entry) * (size_t)call->in[0]->shape[0];
    return TARN__PLAN_READY;
}

/* False where an index was out of range. Whole rows by buckets where rows of y are contiguous and long enough, else
 * scatter_add with a broadcast index. */
static bool index_add(const tarn__call *call, const tarn__view *y, int axis)
{
    const tarn__view *index = call->in[0], *source = call->in[1];
    tarn__view y_across = tarn__view_across(y, axis, y), source_across = tarn__view_across(source, axis, y);
    const index_add_job *offsets = tarn__plan_job(call->plan);
    int64_t *begin = (void *)((char *)call->scratch + offsets->begin), limit = y->shape[axis];
    entry *entries = (void *)((char *)call->scratch + offsets->entries);
    rows_job job = {.y = y,
                    .source = source,
                    .begin = begin,
                    .entries = entries,
                    .y_step = y->stride[axis],
                    .source_step = source->stride[axis],
                    .y_size = (int64_t)tarn__dtype_bytes(y->dtype),
                    .source_size = (int64_t)tarn__dtype_bytes(source->dtype)};
    make_nest(&job.nest, 2, (const tarn__view *[]){&y_across, &source_across});
    int64_t row = job.nest.shape[job.nest.rank - 1];
    if (job.nest.stride[0][job.nest.rank - 1] != 1 || row < INDEX_ROW_MIN || limit == 0) {
        tarn__view broadcast = tarn__view_repeated(index, source, axis);
        return scatter_add(&broadcast, source, y, axis);
    }
    bool is_valid = sort_into_buckets(index, limit, begin, entries);
    job.blocks = (row + ROW_BLOCK - 1) / ROW_BLOCK;
    job.segments = job.nest.count / row * job.blocks;
    int64_t jobs = bucket_count(limit) * job.segments,
            each = index->shape[0] * job.nest.count / (jobs > 0 ? jobs : 1) + 1;
    tarn__parallel_for(jobs, INDEX_GRAIN / each + 1, rows_range, &job);
    return is_valid;
}

/* Zeroes y, whose old values are not wanted. */
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

/* ---- write_rows ----------------------------------------------------------------------------------------------------
 */

/* write_rows: x copied into y, shifted along the axis by an index per batch. */
typedef struct write_job {
    tarn__nest nest; /* y with the size of x, x, index */
    const tarn__view *index;
    char *to;
    const char *from;
    int64_t size, step, positions; /* bytes per element; stride along the axis; valid start positions */
    _Atomic int has_fault;
} write_job;

static void write_run(const write_job *job, const int64_t *offset, int64_t at, int64_t n)
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

/* Runs of elements that share an index; an index that does not fit writes nothing. */
static void write_range(int64_t begin, int64_t end, void *ctx)
{
    write_job *job = ctx;
    int64_t offset[TARN__MAX_OPERANDS], step = job->nest.stride[2][job->nest.rank - 1];
    for (int64_t i = begin, n; i < end; i += n) {
        n = min_i64(locate(&job->nest, i, offset), step == 0 ? end - i : 1);
        n = min_i64(n, end - i);
        int64_t at = read_index(job->index, offset[2]);
        if (at >= 0 && at < job->positions)
            write_run(job, offset, at, n);
        else
            atomic_store_explicit(&job->has_fault, 1, memory_order_relaxed);
    }
}

/* Copies x into y at a start position per batch, read from index: the KV cache's append. */
static void kernel_write_rows(const tarn__call *call)
{
    const tarn__view *index = call->in[0], *x = call->in[1], *y = call->out[0];
    int axis = ((const tarn__along *)call->params)->axis;
    tarn__view target = *y, broadcast = tarn__view_repeated(index, x, 0);
    memcpy(target.shape, x->shape, sizeof(target.shape));
    write_job job = {.index = index,
                     .to = tarn__view_at(y),
                     .from = tarn__view_at(x),
                     .size = (int64_t)tarn__dtype_bytes(y->dtype),
                     .step = y->stride[axis],
                     .positions = y->shape[axis] - x->shape[axis] + 1};
    make_nest(&job.nest, 3, (const tarn__view *[]){&target, x, &broadcast});
    tarn__parallel_for(tarn__view_count(x), INDEX_GRAIN, write_range, &job);
    if (atomic_load(&job.has_fault))
        find_fault(call, index, job.positions);
}

void TARN__AT_F64_LEVEL(tarn__cpu_register_scatter)(tarn__kernel_row *rows)
{
    rows[TARN__K_scatter_add] = tarn__row_planned(prepare_scatter_add, kernel_scatter_add, TARN__INDEXES);
    rows[TARN__K_index_add] = tarn__row_planned(prepare_index_add, kernel_index_add, TARN__INDEXES);
    rows[TARN__K_write_rows] = tarn__row(kernel_write_rows, TARN__INDEXES);
}
