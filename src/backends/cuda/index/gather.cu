/* gather.cu: gather, index_select, one_hot, write_rows. Scatter: scatter.cu.
 *
 * index_select is a gather whose index is broadcast along the other axes; if whole rows move, its elements are vectors
 * of up to 16 bytes. An index outside the axis raises a fault and reads as 0. */
#include "backends/cuda/common/lines.cuh"

/* ---- gather, index_select ---------------------------------------------------------------------------------------- */

#define LOADS 4 /* elements per thread, all loaded before the first is stored */

/* U: unsigned type of an element or vector; its bits are moved. */
template <typename U> struct gather_args {
    U *to;
    const U *from;
    const void *index;
    int is_long;
    int64_t count, limit, step;
    fault_slot faults;
    offset_calc<3> offsets; /* y, index, x with stride 0 along the axis */
};

/* Three phases, so that LOADS index loads, then as many element loads, are in flight. */
template <typename U>
static __global__ void __launch_bounds__(THREADS) gather_kernel(const __grid_constant__ gather_args<U> a)
{
    int64_t first = (int64_t)blockIdx.x * (THREADS * LOADS) + threadIdx.x;
    int64_t to[LOADS], from[LOADS], at[LOADS];
    U x[LOADS];
#pragma unroll
    for (int u = 0; u < LOADS; u++) {
        int64_t offset[3];
        if (first + u * THREADS >= a.count)
            break;
        locate(a.offsets, first + u * THREADS, offset);
        to[u] = offset[0];
        from[u] = offset[2];
        at[u] = index_at(a.index, a.is_long, offset[1]);
    }
#pragma unroll
    for (int u = 0; u < LOADS; u++) {
        if (first + u * THREADS >= a.count)
            break;
        if ((uint64_t)at[u] < (uint64_t)a.limit) {
            x[u] = a.from[from[u] + at[u] * a.step];
        } else {
            x[u] = U();
            report_fault(a.faults, at[u], a.limit);
        }
    }
#pragma unroll
    for (int u = 0; u < LOADS; u++) {
        if (first + u * THREADS >= a.count)
            break;
        a.to[to[u]] = x[u];
    }
}

/* Grid: LOADS elements per thread, 256 threads per block. Bytes: each element read and written once. */
template <typename U>
static void launch_gather(const tarn__call *call, const tarn__nest *nest, const tarn__view *index, int64_t limit,
                          int64_t step)
{
    gather_args<U> a = {};
    a.to = data_of<U>(call->out[0]);
    a.from = data_of<U>(call->in[0]);
    a.index = tarn__view_at(index);
    a.is_long = index->dtype == TARN_I64;
    a.count = nest->count;
    a.limit = limit;
    a.step = step;
    a.faults = faults_of(call);
    a.offsets = offset_calc_of<3>(nest);
    gather_kernel<U><<<blocks_for(a.count, THREADS * LOADS), THREADS, 0, stream_of(call)>>>(a);
}

/* Turns the nest into one of vectors of `n` elements, if the layout allows it and each vector has one index. */
static bool vectorize_rows(tarn__nest *nest, const void *to, const void *from, int64_t *step, size_t size, int n)
{
    int last = nest->rank - 1;
    if (!can_vectorize_axis(nest, 0, to, size, n) || !can_vectorize_axis(nest, 2, from, size, n) ||
        nest->stride[1][last] != 0 || *step % n != 0)
        return false;
    for (int i = 0; i < last; i++) {
        nest->stride[0][i] /= n;
        nest->stride[2][i] /= n;
    }
    nest->shape[last] /= n;
    nest->count /= n;
    *step /= n;
    return true;
}

/* x without its axis, broadcast to y's shape; the index adds at · step. */
static void gather(const tarn__call *call, const tarn__view *index)
{
    const tarn__view *x = call->in[0], *y = call->out[0];
    int axis = ((const tarn__along *)call->params)->axis;
    tarn__view lines = *x;
    for (int i = 0; i < x->rank; i++) {
        lines.shape[i] = y->shape[i];
        lines.stride[i] = i == axis ? 0 : x->stride[i];
    }
    if (tarn__view_count(y) == 0)
        return;
    const tarn__view *views[] = {y, index, &lines};
    tarn__nest nest;
    tarn__nest_make(&nest, 3, views);
    int64_t limit = tarn__axis_size(x, axis), step = tarn__axis_stride(x, axis);
    size_t size = tarn__dtype_bytes(x->dtype), bytes = size;
    /* the widest vector that fits */
    for (int n = 16 / (int)size; n > 1 && bytes == size; n /= 2)
        if (vectorize_rows(&nest, tarn__view_at(y), tarn__view_at(x), &step, size, n))
            bytes = size * (size_t)n;
    switch (bytes) {
    case 16: launch_gather<uint4>(call, &nest, index, limit, step); break;
    case 8: launch_gather<uint64_t>(call, &nest, index, limit, step); break;
    case 4: launch_gather<uint32_t>(call, &nest, index, limit, step); break;
    case 2: launch_gather<uint16_t>(call, &nest, index, limit, step); break;
    default: launch_gather<uint8_t>(call, &nest, index, limit, step); break;
    }
}

/* index has y's shape. */
static void run_gather(const tarn__call *call)
{
    gather(call, call->in[1]);
}

/* The index is broadcast to y's shape with stride 0. */
static void run_index_select(const tarn__call *call)
{
    tarn__view repeated = tarn__view_repeated(call->in[1], call->out[0], ((const tarn__along *)call->params)->axis);
    gather(call, &repeated);
}

/* ---- one_hot ----------------------------------------------------------------------------------------------------- */

/* U: unsigned type of the result's size. */
template <typename U> struct one_hot_args {
    U *y;
    U one; /* its bits */
    const void *index;
    int is_long;
    int64_t count, classes;
    fault_slot faults;
    offset_calc<3> offsets; /* y, index, and the class */
};

/* The thread of class 0 reports an invalid index: once per row. */
template <typename U>
static __global__ void __launch_bounds__(THREADS) one_hot_kernel(const __grid_constant__ one_hot_args<U> a)
{
    int64_t at = (int64_t)blockIdx.x * THREADS + threadIdx.x, offset[3];
    if (at >= a.count)
        return;
    locate(a.offsets, at, offset);
    int64_t hot = index_at(a.index, a.is_long, offset[1]);
    if (offset[2] == 0 && (uint64_t)hot >= (uint64_t)a.classes)
        report_fault(a.faults, hot, a.classes);
    a.y[offset[0]] = hot == offset[2] ? a.one : (U)0;
}

/* Grid: an element per thread. Bytes: each written once. */
template <typename U> static void launch_one_hot(const tarn__call *call, uint64_t one)
{
    const tarn__view *index = call->in[0], *y = call->out[0];
    tarn__view repeated = *y, classes = *y;
    repeated.memory = index->memory;
    repeated.offset = index->offset;
    repeated.dtype = index->dtype;
    for (int i = 0; i < y->rank; i++) {
        repeated.stride[i] = i < index->rank ? index->stride[i] : 0;
        classes.stride[i] = i < index->rank ? 0 : 1;
    }
    const tarn__view *views[] = {y, &repeated, &classes};
    tarn__nest nest;
    tarn__nest_make(&nest, 3, views);
    one_hot_args<U> a = {};
    a.y = data_of<U>(y);
    a.one = (U)one;
    a.index = tarn__view_at(index);
    a.is_long = index->dtype == TARN_I64;
    a.count = nest.count;
    a.classes = y->shape[y->rank - 1];
    a.faults = faults_of(call);
    a.offsets = offset_calc_of<3>(&nest);
    one_hot_kernel<U><<<blocks_for(a.count, THREADS), THREADS, 0, stream_of(call)>>>(a);
}

/* `one` is the bit pattern of 1 in the dtype. */
static void run_one_hot(const tarn__call *call)
{
    if (tarn__view_count(call->out[0]) == 0)
        return;
    switch (call->out[0]->dtype) {
    case TARN_F32: launch_one_hot<uint32_t>(call, 0x3f800000u); break;
    case TARN_F64: launch_one_hot<uint64_t>(call, UINT64_C(0x3ff0000000000000)); break;
    case TARN_BF16: launch_one_hot<uint16_t>(call, 0x3f80u); break;
    case TARN_F16: launch_one_hot<uint16_t>(call, 0x3c00u); break;
    case TARN_I32: launch_one_hot<uint32_t>(call, 1); break;
    case TARN_I64: launch_one_hot<uint64_t>(call, 1); break;
    default: launch_one_hot<uint8_t>(call, 1); break;
    }
}

/* ---- put_rows ---------------------------------------------------------------------------------------------------- */

/* `limit`: first rows for which all of x fits. */
template <typename U> struct put_rows_args {
    U *to;
    const U *from;
    const void *index;
    int is_long;
    int64_t count, limit, step;
    fault_slot faults;
    offset_calc<3> offsets; /* y with x's shape, index, x */
};

/* Writes x into y at a row offset read from memory: appending to a KV cache inside a graph. */
template <typename U>
static __global__ void __launch_bounds__(THREADS) put_rows_kernel(const __grid_constant__ put_rows_args<U> a)
{
    int64_t at = (int64_t)blockIdx.x * THREADS + threadIdx.x, offset[3];
    if (at >= a.count)
        return;
    locate(a.offsets, at, offset);
    int64_t first = index_at(a.index, a.is_long, offset[1]);
    if ((uint64_t)first < (uint64_t)a.limit)
        a.to[offset[0] + first * a.step] = a.from[offset[2]];
    else
        report_fault(a.faults, first, a.limit);
}

/* Grid: an element or vector per thread, 256 threads per block: a token has few rows, and one each keeps most of the
 * device busy. Bytes: each element of x read and written once. */
template <typename U>
static void launch_put_rows(const tarn__call *call, const tarn__nest *nest, int64_t limit, int64_t step)
{
    put_rows_args<U> a = {};
    a.to = data_of<U>(call->out[0]);
    a.from = data_of<U>(call->in[1]);
    a.index = tarn__view_at(call->in[0]);
    a.is_long = call->in[0]->dtype == TARN_I64;
    a.count = nest->count;
    a.limit = limit > 0 ? limit : 0; /* compared as unsigned */
    a.step = step;
    a.faults = faults_of(call);
    a.offsets = offset_calc_of<3>(nest);
    put_rows_kernel<U><<<blocks_for(a.count, THREADS), THREADS, 0, stream_of(call)>>>(a);
}

/* One index per batch: the first row to overwrite. */
static void run_put_rows(const tarn__call *call)
{
    const tarn__view *x = call->in[1], *y = call->out[0];
    int axis = ((const tarn__along *)call->params)->axis;
    if (tarn__view_count(x) == 0)
        return;
    tarn__view window = *y, repeated = tarn__view_repeated(call->in[0], x, 0);
    for (int i = 0; i < x->rank; i++)
        window.shape[i] = x->shape[i];
    const tarn__view *views[] = {&window, &repeated, x};
    tarn__nest nest;
    tarn__nest_make(&nest, 3, views);
    int64_t limit = y->shape[axis] - x->shape[axis] + 1, step = y->stride[axis];
    size_t size = tarn__dtype_bytes(x->dtype), bytes = size;
    for (int n = 16 / (int)size; n > 1 && bytes == size; n /= 2)
        if (vectorize_rows(&nest, tarn__view_at(y), tarn__view_at(x), &step, size, n))
            bytes = size * (size_t)n;
    switch (bytes) {
    case 16: launch_put_rows<uint4>(call, &nest, limit, step); break;
    case 8: launch_put_rows<uint64_t>(call, &nest, limit, step); break;
    case 4: launch_put_rows<uint32_t>(call, &nest, limit, step); break;
    case 2: launch_put_rows<uint16_t>(call, &nest, limit, step); break;
    default: launch_put_rows<uint8_t>(call, &nest, limit, step); break;
    }
}

void tarn__cuda_register_gather(tarn__kernel_row *rows)
{
    rows[TARN__K_gather] = tarn__row(run_gather, TARN__ALL);
    rows[TARN__K_index_select] = tarn__row(run_index_select, TARN__ALL);
    rows[TARN__K_one_hot] = tarn__row(run_one_hot, TARN__INDEXES);
    rows[TARN__K_write_rows] = tarn__row(run_put_rows, TARN__INDEXES);
}
