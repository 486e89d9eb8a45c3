/* rows.h: kernels that work along one axis: where the rows lie, and sums over one. Softmax, norms and losses share it.
 *
 * A row is worked on in blocks of BLOCK elements of the type computed in: used where they lie, or brought into a
 * buffer. Sums run in vector lanes over a block and in f64 from block to block: the order depends on the length alone.
 */
#ifndef TARN__CPU_ROWS_H
#define TARN__CPU_ROWS_H

#include "backends/cpu/common/convert.h"
#include "backends/cpu/common/vmath.h"
#include "backends/cpu/runtime/level.h"

#define BLOCK 1024
#define ROWS_GRAIN 16384 /* elements a thread takes at a time, in whole rows */

/* Vectors that a sum runs in side by side, a search for the largest, and several sums at once. */
#if defined(__aarch64__)
#include <arm_neon.h>
#define ROW_ACCUMULATORS 8
#define MAX_ACCUMULATORS 8
#define SUM_ACCUMULATORS 4
#else
#define ROW_ACCUMULATORS 4
#define MAX_ACCUMULATORS 2
#define SUM_ACCUMULATORS 1
#endif

/* Every turn of a loop without sums works on four vectors; clang decides that itself. */
#if defined(__aarch64__) && !defined(__clang__)
#define UNROLLED _Pragma("GCC unroll 4") TARN__INDEPENDENT
#else
#define UNROLLED TARN__INDEPENDENT
#endif

/* The first pass over a row asks for the next row, into the second cache: it comes while this one is worked on. A line
 * of 64 bytes, and what ROW_STRANDS vectors take. */
#if defined(__aarch64__)
#define PREFETCH_LINE(at) __builtin_prefetch((const char *)(at) + 4096, 0, 2)
#define PREFETCH_ROW(at) (PREFETCH_LINE(at), PREFETCH_LINE((const char *)(at) + 64))
#else
#define PREFETCH_LINE(at) ((void)(at))
#define PREFETCH_ROW(at) ((void)(at))
#endif

/* Whether the next row is read while one is written. Memory then works all the time; without it norms take half as long
 * again on AArch64. */
#if defined(__aarch64__)
#define PIPELINES_ROWS 1
#else
#define PIPELINES_ROWS 0
#endif

/* ---- where rows lie ---------------------------------------------------------------------------------------------- */

typedef struct operand {
    char *base;
    tarn_dtype dtype;
    int64_t size;   /* bytes of an element */
    int64_t stride; /* stride along the axis */
} operand;

/* Several operands whose shapes are the same but on the axis. Row number r is element r of the nest over all other
 * axes. */
typedef struct row_set {
    tarn__nest nest;
    int64_t count, length;
    int compute;
    operand operand[TARN__MAX_OPERANDS];
} row_set;

TARN__UNUSED static void rows_make(row_set *r, int axis, int count, const tarn__view *const *views)
{
    tarn__view copy[TARN__MAX_OPERANDS];
    const tarn__view *without[TARN__MAX_OPERANDS];
    *r = (row_set){.length = views[0]->rank > 0 ? views[0]->shape[axis] : 1,
                   .compute = tarn__compute_of(views[0]->dtype)};
    for (int k = 0; k < count; k++) {
        without[k] = NULL;
        if (!views[k])
            continue;
        copy[k] = *views[k];
        r->operand[k] =
            (operand){tarn__view_at(views[k]), views[k]->dtype, (int64_t)tarn__dtype_bytes(views[k]->dtype), 1};
        if (copy[k].rank > 0) {
            r->operand[k].stride = copy[k].stride[axis];
            copy[k].shape[axis] = 1;
        }
        without[k] = &copy[k];
    }
    tarn__nest_make(&r->nest, count, without);
    r->count = r->length > 0 ? r->nest.count : 0;
}

/* The first element of row number `row` of operand k; NULL where there is no such operand. */
TARN__UNUSED static char *row_at(const row_set *r, int k, int64_t row)
{
    int64_t offset = 0;
    if (!r->operand[k].base)
        return NULL;
    for (int i = r->nest.rank - 1; i >= 0; i--) {
        offset += row % r->nest.shape[i] * r->nest.stride[k][i];
        row /= r->nest.shape[i];
    }
    return r->operand[k].base + offset * r->operand[k].size;
}

TARN__UNUSED static bool is_in_place(const row_set *r, int k)
{
    return r->operand[k].stride == 1 && r->operand[k].dtype == (r->compute == COMPUTE_F64 ? TARN_F64 : TARN_F32);
}

/* n elements of a row from element `begin`, in the type computed in: where they lie, or in `buffer`. */
TARN__UNUSED static const void *fetch(const row_set *r, int k, const char *row, int64_t begin, int64_t n, void *buffer)
{
    const operand *o = &r->operand[k];
    const char *from = row + begin * o->stride * o->size;
    if (is_in_place(r, k))
        return from;
    tarn__load[o->dtype][r->compute](from, o->stride, buffer, n);
    return buffer;
}

/* Where n results go: the row itself, or `buffer`, from where put_back() brings them to it. */
TARN__UNUSED static void *block_out(const row_set *r, int k, char *row, int64_t begin, void *buffer)
{
    return is_in_place(r, k) ? row + begin * r->operand[k].size : buffer;
}

TARN__UNUSED static void store_back(const row_set *r, int k, char *row, int64_t begin, int64_t n, const void *buffer)
{
    const operand *o = &r->operand[k];
    if (!is_in_place(r, k))
        tarn__store[o->dtype][r->compute](buffer, row + begin * o->stride * o->size, o->stride, n);
}

TARN__UNUSED static int64_t rows_grain(const row_set *r)
{
    return (ROWS_GRAIN + r->length - 1) / (r->length > 0 ? r->length : 1);
}

#define T float
#define BITS int32_t
#define LARGER vmaxnmq_f32
#define NAMED(x) x##_f32
#include "backends/cpu/common/row_sums.inc"

#define T double
#define BITS int64_t
#define LARGER vmaxnmq_f64
#define NAMED(x) x##_f64
#include "backends/cpu/common/row_sums.inc"

#endif
