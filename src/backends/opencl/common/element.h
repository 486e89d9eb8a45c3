/* element.h: the host's side of element.cl: what to compute in, the options that say so, and launches over the elements
 * of a nest. */
#ifndef TARN__OPENCL_ELEMENT_H
#define TARN__OPENCL_ELEMENT_H

#include "backends/opencl/runtime/opencl.h"

typedef enum tarn__cl_compute { TARN__CL_F32, TARN__CL_F64, TARN__CL_I64 } tarn__cl_compute;

/* Options of a program in the making. */
typedef struct tarn__cl_options {
    char text[512];
    size_t length;
} tarn__cl_options;

void tarn__cl_option(tarn__cl_options *options, const char *format, ...) TARN_PRINTF(2, 3);

/* What elements of a dtype are computed in: f32 for the 16-bit floats, i64 for integers and bool. */
tarn__cl_compute tarn__cl_compute_of(tarn_dtype dtype);

/* -DC and what goes with it. */
void tarn__cl_option_compute(tarn__cl_options *options, tarn__cl_compute compute);

/* -DINDEX: int, and -DIS_SMALL, where every place of every operand of the nest fits, else long. True for int. */
bool tarn__cl_option_index(tarn__cl_options *options, const tarn__nest *nest);

/* The nest of views of one shape with axes in their own order, for kernels that count elements row-major. A NULL view
 * has stride 0. */
void tarn__cl_nest_in_order(tarn__nest *nest, int operands, const tarn__view *const *views);

/* A scalar of the type computed in. */
void tarn__cl_arg_scalar(tarn__cl_launch *launch, tarn__cl_compute compute, tarn__scalar value);

/* Division by a size above 1 and below 2^31 as a product: n / size = mul_hi(n, factor) >> shift for 0 <= n < 2^31. */
void tarn__cl_fast_divisor(int64_t size, uint32_t *factor, int32_t *shift);

/* A nest as `places` of prelude.cl, which is another struct where it is small. */
void tarn__cl_arg_indexer(tarn__cl_launch *launch, bool is_small, const tarn__nest *nest);

/* How many neighbours on the last axis, a power of two, may be moved as one element of at most 16 bytes: all operands
 * of `moved`, a set of bits, have them side by side at places that are multiples of it, as are the nest's other strides
 * and `step`; what is not moved does not change along the axis. */
int64_t tarn__cl_vec_width(const tarn__nest *nest, unsigned moved, const tarn__view *const *views, int64_t step,
                           size_t bytes);
/* The nest, and the first place of a view, counted in units. */
void tarn__cl_nest_in_vecs(tarn__nest *nest, unsigned moved, int64_t unit);
tarn__view tarn__cl_view_in_vecs(const tarn__view *view, int64_t unit);
/* The type of `bytes` bits, a power of two up to 16, as OpenCL names it. */
const char *tarn__cl_bits(size_t bytes);

/* The bits of one element; 16-bit floats by way of f32, as on the CPU. */
void tarn__cl_write_element(tarn_dtype dtype, const tarn__scalar *value, void *bits);

/* An axis of a target and of what lies in a window of it: element i of the source at begin + i · step. A plain copy's
 * window is the whole. */
typedef struct tarn__cl_pad_axis {
    int64_t size;               /* of the target */
    int64_t begin, count, step; /* of the window */
    int64_t to, from;           /* strides */
} tarn__cl_pad_axis;

/* window.c: input 0 laid into output 0, of the same dtype, and `value` around it. False, and nothing is done, where
 * sizes are large, the window is empty or the device is no GPU. */
bool tarn__cl_window(const tarn__call *call, const tarn__cl_pad_axis *axis, int rank, const tarn__scalar *value);

/* A scalar of the type INDEX. */
void tarn__cl_arg_index(tarn__cl_launch *launch, bool is_small, int64_t value);

/* Starts it for `count` elements in one dimension. */
void tarn__cl_enqueue_elements(tarn__cl_launch *launch, int64_t count);

#endif
