/* reduce_plan.cuh: how a reduction is cut into units, steps and chunks; see reduce_loops.cuh. */
#ifndef TARN__CUDA_FOLD_PLAN_CUH
#define TARN__CUDA_FOLD_PLAN_CUH

#include "backends/cuda/common/kernel.cuh"

#define BATCH 8
#define STATE_BYTES 16    /* of the largest state */
#define MANY_UNITS 131072 /* columns' units that fill a device with a thread each */

struct fold_args {
    const void *x, *aux; /* aux: one number for each output; NULL: none */
    void *y;
    double *second; /* where a second part of the state goes, at y's offsets; NULL: nowhere */
    void *partial;  /* states, (chunks, outputs) */
    tarn_dtype x_dtype, aux_dtype, y_dtype;
    bool by_columns;
    int lanes;      /* outputs of a unit: more than 1 by columns in packs */
    int pack;       /* elements moved at once: 16 bytes of them, or 1 */
    int width_bits; /* by rows: threads of a group; by columns: units of a block; as a power of 2 */
    int tail;       /* elements after the last pack, where there is one output only */
    int64_t outputs, units;
    int64_t count;         /* elements behind an output */
    int64_t length;        /* steps of a walk: packs of them by rows */
    int64_t chunk, chunks; /* steps */
    int64_t column_y, column_aux;
    double scale, correction, flip; /* see the reductions */
    places<3> kept;                 /* of units: x, y, aux */
    places<1> reduced;              /* of steps */
};

/* ---- planning ---------------------------------------------------------------------------------------------------- */

static inline int64_t divide_up(int64_t a, int64_t b)
{
    return (a + b - 1) / b;
}

/* The smallest power of 2 that is not below n. */
static inline int bits_for(int64_t n)
{
    int bits = 0;
    while (((int64_t)1 << bits) < n)
        bits++;
    return bits;
}

/* Chunks, where `blocks` blocks with `threads` threads along a walk are too few: `most` steps a thread, and fewer where
 * there is little. */
static inline void cut_walk(fold_args *a, int64_t blocks, int64_t threads, int64_t most)
{
    a->chunk = a->length > 0 ? a->length : 1;
    a->chunks = 1;
    if (a->length <= 32 * threads || blocks >= 2048)
        return;
    while (most > BATCH && blocks * divide_up(a->length, threads * most) < 1024)
        most /= 2;
    while (blocks * divide_up(a->length, threads * most) > 8192)
        most *= 2;
    a->chunk = threads * most;
    a->chunks = divide_up(a->length, a->chunk);
}

/* By rows: a thread for each batch, a warp for rows up to 32 steps a thread, else a whole block. */
static inline void shape_rows(fold_args *a)
{
    bool is_long = a->length > 32 * WARP || (a->length >= THREADS && a->units < 1024);
    int bits = bits_for(divide_up(a->length, BATCH));
    a->width_bits = is_long ? 8 : bits < 5 ? bits : 5;
    cut_walk(a, divide_up(a->units << a->width_bits, THREADS), (int64_t)1 << a->width_bits, 16);
}

/* By columns: a warp side by side, more where the walk is too short for the others, or where there are enough units
 * without them. */
static inline void shape_columns(fold_args *a)
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
    cut_walk(a, divide_up(a->units, (int64_t)1 << a->width_bits), THREADS >> a->width_bits, 32);
}

/* Whether the innermost axis can be moved in packs of n: it lies dense, and every other step keeps the alignment. Not
 * where the kernels' quick way of finding a step's place does not serve. */
static inline bool can_pack(const tarn__nest *nest, const void *x, int n, bool may_have_tail)
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

static inline int pack_of(tarn_dtype dtype)
{
    return dtype == TARN_F32 ? 4 : dtype == TARN_BF16 || dtype == TARN_F16 ? 8 : 1;
}

/* Tells kept and reduced axes apart: operand 1 of the nest has stride 0 on the reduced ones. */
static inline void sort_axes(fold_args *a, const tarn__nest *nest)
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
        a->kept.size[a->kept.rank] = divider_of(nest->shape[i]);
        a->kept.stride[0][a->kept.rank] = nest->stride[0][i];
        a->kept.stride[1][a->kept.rank] = nest->stride[2][i];
        a->kept.stride[2][a->kept.rank++] = nest->stride[3][i];
        a->units *= nest->shape[i];
    }
    a->kept.is_small = a->units < ((int64_t)1 << 31);
    a->reduced.is_small = a->length < ((int64_t)1 << 31);
}

/* x to y, which has x's shape with size 1 on reduced axes, or rank 0. False when there is no output. */
static inline bool plan_fold(fold_args *a, const tarn__view *x, const tarn__view *y, const tarn__view *aux)
{
    memset(a, 0, sizeof(*a));
    a->x = tarn__view_at(x), a->x_dtype = x->dtype;
    a->y = tarn__view_at(y), a->y_dtype = y->dtype;
    if (aux)
        a->aux = tarn__view_at(aux), a->aux_dtype = aux->dtype;
    tarn__view kept = *y; /* y itself may have strides of 0 where it is the expanded gradient of a result */
    tarn__view_set_row_major(&kept);
    const tarn__view *views[] = {x, &kept, y, aux};
    tarn__nest nest;
    tarn__nest_make(&nest, 4, views);
    int last = nest.rank - 1, n = pack_of(x->dtype);
    a->by_columns = last >= 0 && nest.stride[1][last] != 0;
    a->pack = can_pack(&nest, a->x, n, !a->by_columns && last == 0) ? n : 1;
    if (a->by_columns)
        a->column_y = nest.stride[2][last], a->column_aux = nest.stride[3][last];
    int64_t size = last >= 0 ? nest.shape[last] : 1;
    if (a->pack > 1) {
        a->tail = (int)(size % a->pack);
        nest.shape[last] /= a->pack;
        for (int k = 0; k < 4; k++)
            nest.stride[k][last] *= a->pack;
    }
    sort_axes(a, &nest);
    a->lanes = a->by_columns ? a->pack : 1;
    a->outputs = a->units * a->lanes;
    a->count = a->by_columns ? a->length : a->length * a->pack + a->tail;
    if (a->outputs == 0)
        return false;
    a->by_columns ? shape_columns(a) : shape_rows(a);
    return true;
}

/* Bytes for the states of chunks. Calls with few elements never have any: there is no need to plan them twice. */
static inline size_t fold_scratch(const tarn__view *x, const tarn__view *y, const tarn__view *aux)
{
    fold_args a;
    if (tarn__view_count(x) <= 4096 || !plan_fold(&a, x, y, aux) || a.chunks == 1)
        return 0;
    return (size_t)STATE_BYTES * (size_t)(a.outputs * a.chunks);
}

#endif
