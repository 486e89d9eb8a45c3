/* rows.h: kernels along one axis (norms, softmax, losses): description of rows and their distribution over work-items.
 *
 * One source serves three forms, selected by the macros GROUP and LANES (rows.cl):
 *   GROUP 1, LANES 16   without local memory: a work-item has a row, and sums run in 16 lanes that vectorize
 *   GROUP 1, LANES 1    a work-item has a short row, or a strided row where rows are adjacent
 *   GROUP 64 or 256     a work-group has a row, adjacent work-items have adjacent elements, and sums end in a tree in
 *                       local memory; smaller where a driver limits the kernel, down to the first form
 * The order of sums depends on shapes and the device alone. */
#ifndef TARN__OPENCL_ROWS_H
#define TARN__OPENCL_ROWS_H

#include "backends/opencl/runtime/opencl.h"

#define TARN__CL_SHORT_ROW \
    32 /* rows up to this length are computed in `real`: normalizing cancels most of their gradient */

/* Operands whose shapes agree except on the axis. Row r is element r of the nest over all other axes. Passed to kernels
 * by value: rows.cl has the same struct. */
typedef struct tarn__cl_row_set {
    tarn__nest nest;
    int64_t count, length;
    int64_t along[TARN__MAX_OPERANDS]; /* strides on the axis */
} tarn__cl_row_set;

/* A form: how work-items share rows, and what is known of the layout. */
typedef struct tarn__cl_row_form {
    size_t group, lanes; /* work-items per row; adjacent elements per work-item */
    size_t local;        /* work-group size: `group`, or several rows of one work-item */
    bool is_small, is_contiguous, has_vec4;
} tarn__cl_row_form;

/* Describes `count` operands that agree except on the axis, where per-row values have size 1; NULL: absent. Borrows the
 * views. */
void tarn__cl_row_set_describe(tarn__cl_row_set *rows, int axis, int count, const tarn__view *const *views);

/* The form for these rows on a device; `views` are those of the set. */
tarn__cl_row_form tarn__cl_row_form_of(const tarn__cl_device *device, const tarn__cl_row_set *rows, int axis, int count,
                                       const tarn__view *const *views);

/* The form in which up to `most` work-items share a job, or one without local memory. */
tarn__cl_row_form tarn__cl_group_form(const tarn__cl_device *device, size_t most, bool is_contiguous);

/* vec4s of a row that each work-item keeps in registers, where each operand's rows are aligned vec4s of f32 or 16 bits
 * and divide evenly; the form's group is then set to match. Else 0. */
int tarn__cl_row_registers(const tarn__cl_device *device, const tarn__cl_row_set *rows, tarn__cl_row_form *form,
                           int axis, int count, const tarn__view *const *views);
/* Where a work-group has a row and each operand's rows are aligned vec4s, work-items take vec4s: LANES is 4, and VEC4
 * is defined. */
void tarn__cl_row_vec4(const tarn__cl_row_set *rows, tarn__cl_row_form *form, int axis, int count,
                       const tarn__view *const *views);
/* True for NULL, and for a vector of aligned vec4s. */
bool tarn__cl_is_vec4(const tarn__view *vector);

/* Finds a kernel with the form's options and its own (" -DT_X=f32"), and begins it. Where the driver limits the kernel,
 * the form's group shrinks to what it may have. */
const tarn__cl_kernel *tarn__cl_find_rows(const tarn__call *call, const char *source, const char *kernel,
                                          tarn__cl_row_form *form, const char *own);
tarn__cl_launch tarn__cl_begin_rows(const tarn__call *call, const char *source, const char *kernel,
                                    tarn__cl_row_form *form, const char *own);
/* Writes the options of rows.cl and the kernel's own. */
void tarn__cl_row_options(const tarn__cl_row_form *form, const char *own, char *options, size_t size);

/* Enqueues a row for each work-group of the form. */
void tarn__cl_enqueue_rows(tarn__cl_launch *launch, const tarn__cl_row_form *form, int64_t count);

/* Three arguments: pointer, offset and stride of a vector, or of nothing. */
void tarn__cl_arg_vector(tarn__cl_launch *launch, const tarn__view *vector);

/* A per-row vector (rows) as (rows, 1); NULL: all zeros. */
tarn__view tarn__cl_as_column(const tarn__view *view);

/* The largest power of two of at most `most` and of the device's work-group limit. */
size_t tarn__cl_group_size(const tarn__cl_device *device, size_t most);

#endif
