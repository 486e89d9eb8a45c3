/* rows.h: kernels that work along one axis: where their rows lie, and how work-items share them. Norms, softmax and
 * losses use it.
 *
 * One source serves three forms, told apart by the macros GROUP and LANES (rows.cl):
 *   GROUP 1, LANES 16   devices without real local memory: a work-item has a row, and sums run in 16 lanes that a
 * compiler makes vectors of GROUP 1, LANES 1    a work-item has a row of few elements, or of elements that lie apart
 * while rows lie side by side GROUP 64 or 256     a work-group has a row, neighbours have neighbouring elements, and
 * sums end in a tree in local memory; fewer, where a driver allows a kernel no more, down to the first form The order
 * of sums depends on shapes and on the device alone. */
#ifndef TARN__CL_ROWS_H
#define TARN__CL_ROWS_H

#include "backends/opencl/runtime/opencl.h"

#define TARN__CL_SHORT_ROW \
    32 /* rows this short are computed in `real`: their gradient is what little normalising leaves */

/* Several operands whose shapes are the same but on the axis. Row number r is element r of the nest over all other
 * axes. A kernel is given it by value: rows.cl has the same struct. */
typedef struct tarn__cl_row_set {
    tarn__nest nest;
    int64_t count, length;
    int64_t along[TARN__MAX_OPERANDS]; /* strides on the axis */
} tarn__cl_row_set;

typedef struct tarn__cl_row_form {
    size_t group, lanes; /* work-items of a row; elements of a work-item that lie side by side */
    size_t local;        /* work-items of a work-group: `group`, or those of several rows */
    bool is_small, is_contiguous, has_vec4;
} tarn__cl_row_form;

/* Describes `count` operands of one shape, but for the axis, where a number of each row has size 1; NULL where there is
 * none. Borrows the views. */
void tarn__cl_row_set_describe(tarn__cl_row_set *rows, int axis, int count, const tarn__view *const *views);

/* How a device takes rows: `views` are those the set was made of. */
tarn__cl_row_form tarn__cl_row_form_of(const tarn__cl_device *device, const tarn__cl_row_set *rows, int axis, int count,
                                       const tarn__view *const *views);

/* The form where a group of up to `most` has what belongs together, or one work-item where memory of a group is not
 * real. */
tarn__cl_row_form tarn__cl_group_form(const tarn__cl_device *device, size_t most, bool is_contiguous);

/* How many fours of elements each work-item of a group may keep of a row that the group has, where each operand's row
 * lies in fours of neighbours, of f32 or 16 bits, and all work-items have as many; then the form's group is changed.
 * Else 0. `views` are those the set was made of. */
int tarn__cl_row_registers(const tarn__cl_device *device, const tarn__cl_row_set *rows, tarn__cl_row_form *form,
                           int axis, int count, const tarn__view *const *views);
/* Where a group has a row, and each operand's row lies in such fours, its work-items take them: LANES is 4, and QUADS
 * defined. */
void tarn__cl_row_vec4(const tarn__cl_row_set *rows, tarn__cl_row_form *form, int axis, int count,
                       const tarn__view *const *views);
/* True for no vector, and for one that lies in fours. */
bool tarn__cl_is_vec4(const tarn__view *vector);

/* Begins a kernel with the form's options and its own, " -DT_X=f32". The form's group becomes what the kernel may have.
 */
tarn__cl_launch tarn__cl_begin_rows(const tarn__call *call, const char *source, const char *kernel,
                                    tarn__cl_row_form *form, const char *own);
/* Writes what rows.cl is compiled with, and the kernel's own. */
void tarn__cl_row_options(const tarn__cl_row_form *form, const char *own, char *options, size_t size);

/* Starts a kernel with a row for each group of the form. */
void tarn__cl_enqueue_rows(tarn__cl_launch *launch, const tarn__cl_row_form *form, int64_t count);

/* Two arguments and its stride: a vector, or nothing. */
void tarn__cl_arg_vector(tarn__cl_launch *launch, const tarn__view *vector);

/* A view of one number a row, shape (rows), as (rows, 1); of NULL, all zeros. */
tarn__view tarn__cl_as_column(const tarn__view *view);

/* The largest power of two that is at most `most` and that a work-group of the device may have. */
size_t tarn__cl_group_size(const tarn__cl_device *device, size_t most);

#endif
