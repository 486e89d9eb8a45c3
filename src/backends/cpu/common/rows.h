/* rows.h: kernels along one axis: addresses of rows, and sums over a row. Shared by softmax, norms and losses.
 *
 * A row is processed in blocks of BLOCK elements of the compute type: in place, or converted into a buffer. Sums run
 * in vector lanes within a block and in f64 from block to block: the order of additions depends on the length alone,
 * never on threads. */
#ifndef TARN__CPU_ROWS_H
#define TARN__CPU_ROWS_H

#include "backends/cpu/common/convert.h"
#include "backends/cpu/common/scalar_math.h"
#include "backends/cpu/runtime/level.h"

#define BLOCK 1024
#define ROWS_GRAIN 16384 /* elements per task, in whole rows */

/* Independent vector accumulators of a sum, of a max, and of several sums at once. */
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

/* Loops without sums process four vectors per iteration; clang decides that itself. */
#if defined(__aarch64__) && !defined(__clang__)
#define UNROLLED _Pragma("GCC unroll 4") TARN__INDEPENDENT
#else
#define UNROLLED TARN__INDEPENDENT
#endif

/* The first pass over a row prefetches the next row into L2 while this one is processed: one 64-byte line, and as
 * much as ROW_ACCUMULATORS vectors read. */
#if defined(__aarch64__)
#define PREFETCH_LINE(at) __builtin_prefetch((const char *)(at) + 4096, 0, 2)
#define PREFETCH_ROW(at) (PREFETCH_LINE(at), PREFETCH_LINE((const char *)(at) + 64))
#else
#define PREFETCH_LINE(at) ((void)(at))
#define PREFETCH_ROW(at) ((void)(at))
#endif

/* Whether the next row is read while one is written (software pipelining): memory is then busy all the time; norms
 * take 1.5 times as long without it on AArch64. */
#if defined(__aarch64__)
#define PIPELINES_ROWS 1
#else
#define PIPELINES_ROWS 0
#endif

/* ---- rows of operands -------------------------------------------------------------------------------------------- */

/* One operand of a row kernel. */
typedef struct operand {
    char *base;
    tarn_dtype dtype;
    int64_t size;   /* bytes per element */
    int64_t stride; /* along the axis, in elements */
} operand;

/* Several operands with equal shapes except on the axis. Row r is element r of the nest over all other axes. */
typedef struct row_set {
    tarn__nest nest;
    int64_t count, length;
    int compute;
    operand operand[TARN__MAX_OPERANDS];
} row_set;

/* Describes `count` operands (NULL: absent), the first of which fixes length and compute type. Reads no memory and
 * keeps no address: rows_bind() adds those. */
TARN__UNUSED static void rows_describe(row_set *r, int axis, int count, const tarn__view *const *views)
{
    tarn__view copy[TARN__MAX_OPERANDS];
    const tarn__view *without[TARN__MAX_OPERANDS] = {NULL};
    *r = (row_set){.length = views[0]->rank > 0 ? views[0]->shape[axis] : 1,
                   .compute = tarn__compute_of(views[0]->dtype)};
    for (int k = 0; k < count; k++) {
        if (!views[k])
            continue;
        copy[k] = *views[k];
        r->operand[k] = (operand){NULL, views[k]->dtype, (int64_t)tarn__dtype_bytes(views[k]->dtype), 1};
        if (copy[k].rank > 0) {
            r->operand[k].stride = copy[k].stride[axis];
            copy[k].shape[axis] = 1;
        }
        without[k] = &copy[k];
    }
    /* The nest runs over all axes but the one of the rows. */
    tarn__nest_make(&r->nest, count, without);
    r->count = r->length > 0 ? r->nest.count : 0;
}

/* Addresses of the operands of rows_describe(). */
TARN__UNUSED static void rows_bind(row_set *r, int count, const tarn__view *const *views)
{
    for (int k = 0; k < count; k++)
        r->operand[k].base = views[k] ? tarn__view_at(views[k]) : NULL;
}

/* Both, for kernels without a plan. */
TARN__UNUSED static void rows_make(row_set *r, int axis, int count, const tarn__view *const *views)
{
    rows_describe(r, axis, count, views);
    rows_bind(r, count, views);
}

/* Address of row `row` of operand k; NULL where the operand is absent. */
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

/* True where rows of operand k are contiguous in the compute type. */
TARN__UNUSED static bool is_in_place(const row_set *r, int k)
{
    return r->operand[k].stride == 1 && r->operand[k].dtype == (r->compute == COMPUTE_F64 ? TARN_F64 : TARN_F32);
}

/* n elements of a row from element `begin`, in the compute type: in place, or in `buffer`. */
TARN__UNUSED static const void *fetch(const row_set *r, int k, const char *row, int64_t begin, int64_t n, void *buffer)
{
    const operand *o = &r->operand[k];
    const char *from = row + begin * o->stride * o->size;
    if (is_in_place(r, k))
        return from;
    tarn__load[o->dtype][r->compute](from, o->stride, buffer, n);
    return buffer;
}

/* Where n results are computed: in the row itself, or in `buffer`, from where store_back() writes them. */
TARN__UNUSED static void *block_out(const row_set *r, int k, char *row, int64_t begin, void *buffer)
{
    return is_in_place(r, k) ? row + begin * r->operand[k].size : buffer;
}

/* Converts and stores n results, unless they were computed in place. */
TARN__UNUSED static void store_back(const row_set *r, int k, char *row, int64_t begin, int64_t n, const void *buffer)
{
    const operand *o = &r->operand[k];
    if (!is_in_place(r, k))
        tarn__store[o->dtype][r->compute](buffer, row + begin * o->stride * o->size, o->stride, n);
}

/* Rows per task: about ROWS_GRAIN elements. */
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
