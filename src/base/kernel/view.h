/* view.h: a strided view of memory, which is all that kernels see of a tensor, and the loop nest shared by several
 * views of one shape. */
#ifndef TARN__VIEW_H
#define TARN__VIEW_H

#include "base/dtype.h"

/* The memory may be a handle without an address (OpenCL), so the offset is separate. */
typedef struct tarn__view {
    void *memory; /* memory of the storage on its device; borrowed */
    /* of the first element, in elements; of quantized types a multiple of the block size, as are all strides but the
     * last */
    int64_t offset;
    tarn_dtype dtype;
    int rank;
    int64_t shape[TARN_MAX_RANK];
    int64_t stride[TARN_MAX_RANK]; /* in elements; 0 on expanded axes, negative on flipped ones */
    /* bytes before element 0 of a quantized view on a handle, which need not be whole blocks; else 0 */
    int64_t base;
} tarn__view;

/* The address of the first element, where memory is an address. */
static inline void *tarn__view_at(const tarn__view *view)
{
    return (char *)view->memory + tarn__bytes_of(view->dtype, view->offset);
}

int64_t tarn__view_count(const tarn__view *view);

/* True when the elements are row-major without gaps. Axes of size 1 may have any stride; an empty view is
 * contiguous. */
bool tarn__view_is_contiguous(const tarn__view *view);

/* Writes the axes by falling stride; true when the elements are without gaps in that order and share no memory. */
bool tarn__view_order(const tarn__view *view, int *order);

/* Sets row-major strides for the view's shape. */
void tarn__view_set_row_major(tarn__view *view);

/* Size and stride of an axis: 1 and 0 for rank 0; stride 0 for a NULL view. */
int64_t tarn__axis_size(const tarn__view *view, int axis);
int64_t tarn__axis_stride(const tarn__view *view, int axis);

/* The view without an axis, with the sizes of `like`, which may be smaller. */
tarn__view tarn__view_across(const tarn__view *view, int axis, const tarn__view *like);

/* A 1-D index along an axis, expanded to the shape of `like`. */
tarn__view tarn__view_repeated(const tarn__view *index, const tarn__view *like, int axis);

/* True when one stride covers axes `first` to `last`, which is then *stride; axes of size 1 may have any. */
bool tarn__view_has_one_stride(const tarn__view *view, int first, int last, int64_t *stride);

/* The axis with stride 1 (of size above 1), 0 where there is none. */
int tarn__view_innermost(const tarn__view *view);

/* The loop nest over several operands of one shape: axes of size 1 dropped, axes sorted so that the strides of the
 * first operand fall, and adjacent axes merged where every operand allows it. Rank 0 is a single element. */
#define TARN__MAX_OPERANDS 6
typedef struct tarn__nest {
    int rank;
    int operands;
    int64_t count;
    int64_t shape[TARN_MAX_RANK];
    int64_t stride[TARN__MAX_OPERANDS][TARN_MAX_RANK];
} tarn__nest;

/* Every view broadcasts to the shape of the first: axes align at the end, sizes are equal or 1; a NULL view has
 * stride 0 everywhere. */
void tarn__nest_make(tarn__nest *nest, int operands, const tarn__view *const *views);

/* True when an operand is contiguous in the nest's order. */
bool tarn__nest_is_contiguous(const tarn__nest *nest, int operand);

#endif
