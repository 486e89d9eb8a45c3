/* reduce_plan.cuh: splits a reduction into units, steps and chunks; see reduce_loops.cuh. */
#ifndef TARN__CUDA_REDUCE_PLAN_CUH
#define TARN__CUDA_REDUCE_PLAN_CUH

#include "backends/cuda/common/kernel.cuh"

/* Loads in flight per thread. */
#define BATCH 8
#define STATE_BYTES 16    /* of the largest state */
#define MANY_UNITS 131072 /* units of a column reduction that fill a device with one thread each */

/* Kernel arguments and plan of a reduction. */
struct reduce_args {
    const void *x, *aux; /* aux: one value per output; NULL: none */
    void *y;
    double *second; /* destination of the state's second part, at y's offsets; NULL: none */
    void *partial;  /* states, (chunks, outputs) */
    tarn_dtype x_dtype, aux_dtype, y_dtype;
    bool by_columns;
    int outputs_per_unit; /* outputs per unit: more than 1 for vectors of columns */
    int vec_width;        /* elements per access: 16 bytes of them, or 1 */
    int width_bits;       /* rows: threads per group; columns: units per block; log2 */
    int tail;             /* elements after the last vector, if there is only one output */
    int64_t outputs, units;
    int64_t count;         /* elements per output */
    int64_t length;        /* steps of a walk: vectors for rows */
    int64_t chunk, chunks; /* steps */
    int64_t column_y, column_aux;
    double scale, correction, flip; /* parameters of the reductions */
    offset_calc<3> outer;           /* of units: x, y, aux */
    offset_calc<1> reduced;         /* of steps */
};

/* ---- planning ---------------------------------------------------------------------------------------------------- */

/* Division rounded up. */
static inline int64_t divide_up(int64_t a, int64_t b)
{
    return (a + b - 1) / b;
}

/* log2 of the smallest power of 2 that is at least n. */
static inline int bits_for(int64_t n)
{
    int bits = 0;
    while (((int64_t)1 << bits) < n)
        bits++;
    return bits;
}

/* Splits the walk into chunks if `blocks` blocks with `threads` threads along it are too few: fewer steps per thread
 * for small inputs. Depends on the shape only. */
static inline void split_walk(reduce_args *a, int64_t blocks, int64_t threads, int64_t steps_per_thread)
{
    a->chunk = a->length > 0 ? a->length : 1;
    a->chunks = 1;
    /* short walks, or enough blocks: one chunk */
    if (a->length <= 32 * threads || blocks >= 2048)
        return;
    while (steps_per_thread > BATCH && blocks * divide_up(a->length, threads * steps_per_thread) < 1024)
        steps_per_thread /= 2;
    /* bound the number of states to merge */
    while (blocks * divide_up(a->length, threads * steps_per_thread) > 8192)
        steps_per_thread *= 2;
    a->chunk = threads * steps_per_thread;
    a->chunks = divide_up(a->length, a->chunk);
}

/* Rows: a thread per batch, a warp for up to 32 steps per thread, else a whole block. */
static inline void shape_rows(reduce_args *a)
{
    bool is_long = a->length > 32 * WARP || (a->length >= THREADS && a->units < 1024);
    int bits = bits_for(divide_up(a->length, BATCH));
    a->width_bits = is_long ? 8 : bits < 5 ? bits : 5;
    split_walk(a, divide_up(a->units << a->width_bits, THREADS), (int64_t)1 << a->width_bits, 16);
}

/* Columns: a warp side by side; more if the walk is too short for several rows of threads, or if there are enough units
 * without them. */
static inline void shape_columns(reduce_args *a)
{
    int bits = bits_for(a->units);
    a->width_bits = bits < 5 ? bits : 5;
    while (a->width_bits < 8 && ((int64_t)1 << a->width_bits) < a->units &&
           (THREADS >> a->width_bits) * BATCH > a->length)
        a->width_bits++;
    if (a->units >= MANY_UNITS) {
        a->width_bits = 8;
        a->chunk = a->length > 0 ? a->length : 1;
        a->chunks = 1;
        return;
    }
    split_walk(a, divide_up(a->units, (int64_t)1 << a->width_bits), THREADS >> a->width_bits, 32);
}

/* True if the innermost axis moves in vectors of n: contiguous, and every other stride keeps the alignment. Not for
 * three or more reduced axes, which the fast indexing does not cover. */
static inline bool can_vectorize(const tarn__nest *nest, const void *x, int n, bool may_have_tail)
{
    int last = nest->rank - 1, reduced = 0;
    for (int i = 0; i <= last; i++)
        reduced += nest->stride[1][i] == 0;
    if (reduced > 2 || (reduced == 2 && nest->count >= ((int64_t)1 << 31)))
        return false;
    if (n == 1 || last < 0 || nest->stride[0][last] != 1 || !is_aligned(x, 16))
        return false;
    if (nest->shape[last] % n != 0 && !may_have_tail)
        return false;
    for (int i = 0; i < last; i++)
        if (nest->stride[0][i] % n != 0)
            return false;
    return true;
}

static inline int vec_width_of(tarn_dtype dtype)
{
    return dtype == TARN_F32 ? 4 : dtype == TARN_BF16 || dtype == TARN_F16 ? 8 : 1;
}

/* Separates kept and reduced axes: operand 1 of the nest has stride 0 on the reduced ones. */
static inline void split_axes(reduce_args *a, const tarn__nest *nest)
{
    a->units = 1;
    a->length = 1;
    for (int i = 0; i < nest->rank; i++) {
        if (nest->stride[1][i] == 0) {
            a->reduced.size[a->reduced.rank] = divider_of(nest->shape[i]);
            a->reduced.stride[0][a->reduced.rank++] = nest->stride[0][i];
            a->length *= nest->shape[i];
            continue;
        }
        a->outer.size[a->outer.rank] = divider_of(nest->shape[i]);
        a->outer.stride[0][a->outer.rank] = nest->stride[0][i];
        a->outer.stride[1][a->outer.rank] = nest->stride[2][i];
        a->outer.stride[2][a->outer.rank++] = nest->stride[3][i];
        a->units *= nest->shape[i];
    }
    a->outer.is_small = a->units < ((int64_t)1 << 31);
    a->reduced.is_small = a->length < ((int64_t)1 << 31);
}

/* Plans x to y, which has x's shape with size 1 on reduced axes, or rank 0. False if there is no output. Addresses are
 * left to set_addresses(): only their alignment counts here. */
static inline bool plan_reduce(reduce_args *a, const tarn__view *x, const tarn__view *y, const tarn__view *aux)
{
    memset(a, 0, sizeof(*a));
    a->x_dtype = x->dtype;
    a->y_dtype = y->dtype;
    if (aux)
        a->aux_dtype = aux->dtype;
    tarn__view like = *y; /* y itself may have strides of 0, as the expanded gradient of a result */
    /* contiguous strides tell kept axes from reduced ones */
    tarn__view_set_row_major(&like);
    const tarn__view *views[] = {x, &like, y, aux};
    tarn__nest nest;
    tarn__nest_make(&nest, 4, views);
    int last = nest.rank - 1, n = vec_width_of(x->dtype);
    a->by_columns = last >= 0 && nest.stride[1][last] != 0;
    a->vec_width = can_vectorize(&nest, tarn__view_at(x), n, !a->by_columns && last == 0) ? n : 1;
    if (a->by_columns)
        a->column_y = nest.stride[2][last], a->column_aux = nest.stride[3][last];
    int64_t size = last >= 0 ? nest.shape[last] : 1;
    if (a->vec_width > 1) {
        a->tail = (int)(size % a->vec_width);
        nest.shape[last] /= a->vec_width;
        for (int k = 0; k < 4; k++)
            nest.stride[k][last] *= a->vec_width;
    }
    split_axes(a, &nest);
    a->outputs_per_unit = a->by_columns ? a->vec_width : 1;
    a->outputs = a->units * a->outputs_per_unit;
    a->count = a->by_columns ? a->length : a->length * a->vec_width + a->tail;
    if (a->outputs == 0)
        return false;
    a->by_columns ? shape_columns(a) : shape_rows(a);
    return true;
}

/* The operands that were planned, in memory. */
static inline void set_addresses(reduce_args *a, const tarn__view *x, const tarn__view *y, const tarn__view *aux)
{
    a->x = tarn__view_at(x);
    a->y = tarn__view_at(y);
    a->aux = data_of<void>(aux);
}

/* Bytes for the chunks' states. */
static inline size_t states_bytes(const reduce_args &a)
{
    return a.chunks > 1 ? (size_t)STATE_BYTES * (size_t)(a.outputs * a.chunks) : 0;
}

#endif
