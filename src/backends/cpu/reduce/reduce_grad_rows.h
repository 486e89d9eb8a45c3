/* reduce_grad_rows.h: gradients of reductions over the last axes: contiguous rows of results next to a contiguous x,
 * with operands that have one element per row. Rows are cut into segments by size alone.
 *
 * Results are elementwise, so they do not depend on the cut into segments. */
#ifndef TARN__CPU_REDUCE_GRAD_ROWS_H
#define TARN__CPU_REDUCE_GRAD_ROWS_H

#include "backends/cpu/common/nt_store.h"
#include "backends/cpu/runtime/level.h"

#define GRAD_ROW_MIN 64    /* shorter rows are left to tiles */
#define GRAD_SEGMENT 16384 /* elements */

/* Operands: the result, x, then the per-row ones. */
typedef struct grad_rows {
    tarn__nest nest; /* the last axis is the row */
    int operands;
    const tarn__view *view[TARN__MAX_OPERANDS];
    int64_t segments; /* per row */
    /* n elements of a row: at[0] output, at[1] x, the others point to the row's values. */
    void (*work)(char *const *at, int64_t n);
} grad_rows;

/* False for any other layout, where the first three dtypes differ, or where results are large enough for
 * non-temporal stores: tiles handle these. */
TARN__UNUSED static bool grad_rows_make(grad_rows *d, int operands, const tarn__view *const *views)
{
    tarn__nest_make(&d->nest, operands, views);
    int last = d->nest.rank - 1;
    if (views[0]->dtype != views[1]->dtype || views[0]->dtype != views[2]->dtype)
        return false;
    if (last < 0 || d->nest.count == 0 || d->nest.shape[last] < GRAD_ROW_MIN ||
        d->nest.count * (int64_t)tarn__dtype_bytes(views[0]->dtype) >= TARN__NT_STORE_MIN)
        return false;
    for (int k = 0; k < operands; k++)
        if (d->nest.stride[k][last] != (k < 2 ? 1 : 0))
            return false;
    for (int k = 0; k < operands; k++)
        d->view[k] = views[k];
    d->operands = operands;
    /* Segments do not depend on threads. */
    d->segments = (d->nest.shape[last] + GRAD_SEGMENT - 1) / GRAD_SEGMENT;
    return true;
}

/* Offset of an operand's row: its position in the axes before the last. */
TARN__UNUSED static int64_t grad_row_offset(const tarn__nest *nest, int operand, int64_t row)
{
    int64_t offset = 0;
    for (int i = nest->rank - 2; i >= 0; row /= nest->shape[i--])
        offset += row % nest->shape[i] * nest->stride[operand][i];
    return offset;
}

/* A task is a range of segments; per-row operands have stride 0 along the row and keep their address. */
TARN__UNUSED static void grad_rows_range(int64_t begin, int64_t end, void *ctx)
{
    const grad_rows *d = ctx;
    int last = d->nest.rank - 1;
    for (; begin < end; begin++) {
        char *at[TARN__MAX_OPERANDS];
        int64_t first = begin % d->segments * GRAD_SEGMENT, left = d->nest.shape[last] - first;
        for (int k = 0; k < d->operands; k++) {
            int64_t offset = grad_row_offset(&d->nest, k, begin / d->segments) + (k < 2 ? first : 0);
            at[k] = (char *)tarn__view_at(d->view[k]) + offset * (int64_t)tarn__dtype_bytes(d->view[k]->dtype);
        }
        d->work(at, left < GRAD_SEGMENT ? left : GRAD_SEGMENT);
    }
}

TARN__UNUSED static void grad_rows_run(grad_rows *d, void (*work)(char *const *at, int64_t n))
{
    int64_t length = d->nest.shape[d->nest.rank - 1];
    d->work = work;
    tarn__parallel_for(d->nest.count / length * d->segments,
                       length < GRAD_SEGMENT ? (GRAD_SEGMENT + length - 1) / length : 1, grad_rows_range, d);
}

#endif
