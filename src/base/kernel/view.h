/* view.h: a strided view of memory, what kernels see of a tensor; and the loop nest that several views of one shape
 * share. */
#ifndef TARN__VIEW_H
#define TARN__VIEW_H

#include "base/dtype.h"

/* The memory may be a device's handle without a plain address (OpenCL), so the offset stays apart. */
typedef struct tarn__view {
    void *memory; /* a storage's memory on its device */
    /* of the first element, in elements; of blocks, a multiple of their size, as all strides but the last axis' */
    int64_t offset;
    tarn_dtype dtype;
    int rank;
    int64_t shape[TARN_MAX_RANK];
    int64_t stride[TARN_MAX_RANK]; /* in elements; 0 on expanded axes, negative on flipped ones */
    /* bytes before element 0: of blocks in memory without plain addresses, whose places need not be whole blocks; else
     * 0 */
    int64_t base;
} tarn__view;

/* The address of the first element, where memory has plain addresses. */
static inline void *tarn__view_at(const tarn__view *view)
{
    return (char *)view->memory + tarn__bytes_of(view->dtype, view->offset);
}

int64_t tarn__view_count(const tarn__view *view);

/* True when the elements lie row-major without gaps; size-1 axes may have any stride. */
bool tarn__view_is_contiguous(const tarn__view *view);

/* The order of the axes, largest stride first, in which the elements lie without gaps; false when they leave gaps or
 * share places. */
bool tarn__view_order(const tarn__view *view, int *order);

/* Fills in row-major strides for the view's shape. */
void tarn__view_set_row_major(tarn__view *view);

/* An axis' size and stride: 1 and 0 where the view has rank 0, a stride of 0 where there is none. */
int64_t tarn__axis_size(const tarn__view *view, int axis);
int64_t tarn__axis_stride(const tarn__view *view, int axis);

/* The view without an axis, cut to the sizes of `like`, which may be smaller. */
tarn__view tarn__view_across(const tarn__view *view, int axis, const tarn__view *like);

/* A 1-D index along an axis as an index of every element of `like`. */
tarn__view tarn__view_repeated(const tarn__view *index, const tarn__view *like, int axis);

/* The axis along which elements are neighbours, 0 where there is none. */
int tarn__view_innermost(const tarn__view *view);

/* The loop nest over several operands of one shape: size-1 axes dropped, axes sorted so that the first operand's
 * strides fall, and neighbours merged where every operand allows it. rank 0 means one element. */
#define TARN__MAX_OPERANDS 6
typedef struct tarn__nest {
    int rank;
    int operands;
    int64_t count;
    int64_t shape[TARN_MAX_RANK];
    int64_t stride[TARN__MAX_OPERANDS][TARN_MAX_RANK];
} tarn__nest;

/* Every view broadcasts to the first one's shape: axes align at the end, sizes are equal or 1, and a NULL view has
 * stride 0 everywhere. */
void tarn__nest_make(tarn__nest *nest, int operands, const tarn__view *const *views);

/* True when an operand's elements lie in one piece, in the nest's order. */
bool tarn__nest_is_contiguous(const tarn__nest *nest, int operand);

#endif
