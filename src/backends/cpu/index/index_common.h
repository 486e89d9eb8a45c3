/* index_common.h: shared by gather.c and scatter.c: loop nests, reading indices, and reporting one that is out of
 * range. Kernels skip an invalid index and set a flag; find_fault() looks up the first one, row-major, afterwards: what
 * is reported does not depend on threads. */
#ifndef TARN__CPU_INDEX_COMMON_H
#define TARN__CPU_INDEX_COMMON_H

#include "backends/cpu/common/convert.h"
#include "backends/cpu/common/int_math.h"
#include "base/kernel/backend.h"

#define INDEX_TILE 512
#define INDEX_GRAIN 16384 /* elements per task */
#define INDEX_ROW_MIN 16  /* rows at least this long move as rows */

/* Rank 0 counts as one axis of size 1. */
TARN__UNUSED static void make_nest(tarn__nest *nest, int operands, const tarn__view *const *views)
{
    tarn__nest_make(nest, operands, views);
    if (nest->rank > 0)
        return;
    nest->rank = 1;
    nest->shape[0] = 1;
    for (int k = 0; k < operands; k++)
        nest->stride[k][0] = 0;
}

/* Offsets of element `at` in every operand; returns how many elements of its row follow, itself included. */
TARN__UNUSED static int64_t locate(const tarn__nest *nest, int64_t at, int64_t *offset)
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

/* An i32 or i64 index at an offset in elements. */
TARN__UNUSED static int64_t read_index(const tarn__view *index, int64_t offset)
{
    const void *base = tarn__view_at(index);
    return index->dtype == TARN_I32 ? ((const int32_t *)base)[offset] : ((const int64_t *)base)[offset];
}

/* Reports the first index, row-major, outside [0, limit). There must be one. */
TARN__UNUSED static void find_fault(const tarn__call *call, const tarn__view *index, int64_t limit)
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

#endif
