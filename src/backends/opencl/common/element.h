/* element.h: kernels over elements: compute type, options, and arguments of launches over a nest.
 *
 * The host side of element.cl. `IS_SMALL` programs index with 32 bits; every launcher asks tarn__cl_option_index() with
 * all of its operands. */
#ifndef TARN__OPENCL_ELEMENT_H
#define TARN__OPENCL_ELEMENT_H

#include "backends/opencl/runtime/opencl.h"
#include "base/kernel/pad.h"

typedef enum tarn__cl_compute { TARN__CL_F32, TARN__CL_F64, TARN__CL_I64 } tarn__cl_compute;

/* Compiler options under construction; what exceeds the buffer is cut, and the program does not compile. */
typedef struct tarn__cl_options {
    char text[512];
    size_t length;
} tarn__cl_options;

void tarn__cl_option(tarn__cl_options *options, const char *format, ...) TARN_PRINTF(2, 3);

/* The compute type of a dtype: f32 for 16-bit floats, i64 for integers and bool. */
tarn__cl_compute tarn__cl_compute_of(tarn_dtype dtype);

/* Adds -DC and -DCOMPUTES_. */
void tarn__cl_option_compute(tarn__cl_options *options, tarn__cl_compute compute);

/* True where every offset of every operand fits 32 bits; and its option, -DINDEX=int -DIS_SMALL or -DINDEX=long. */
bool tarn__cl_nest_is_small(const tarn__nest *nest);
void tarn__cl_option_small(tarn__cl_options *options, bool is_small);

/* Both. True for int. */
bool tarn__cl_option_index(tarn__cl_options *options, const tarn__nest *nest);

/* The nest of views of one shape with axes in their own order, for kernels that number elements row-major. A NULL view
 * has stride 0. */
void tarn__cl_nest_in_order(tarn__nest *nest, int operands, const tarn__view *const *views);

/* A scalar of the compute type. */
void tarn__cl_arg_scalar(tarn__cl_launch *launch, tarn__cl_compute compute, tarn__scalar value);

/* Division by a constant from 2 to 2^31 - 1 as a multiplication: n / size = mul_hi(n, factor) >> shift for 0 <= n <
 * 2^31. */
void tarn__cl_fast_divisor(int64_t size, uint32_t *factor, int32_t *shift);

/* A nest as the `indexer` of prelude.cl, which is a nest too unless it is small. */
void tarn__cl_arg_indexer(tarn__cl_launch *launch, bool is_small, const tarn__nest *nest);

/* Vector width for moves along the last axis, a power of two of at most 16 bytes: all operands in `moved` (a bit set)
 * are contiguous and aligned to it, as are the other strides and `step`; operands not moved are constant along the
 * axis. */
int64_t tarn__cl_vec_width(const tarn__nest *nest, unsigned moved, const tarn__view *const *views, int64_t step,
                           size_t bytes);
/* Converts the nest, and the offset of a view, from elements to vectors. */
void tarn__cl_nest_in_vecs(tarn__nest *nest, unsigned moved, int64_t width);
tarn__view tarn__cl_view_in_vecs(const tarn__view *view, int64_t width);
/* The unsigned OpenCL type of `bytes` bytes, a power of two up to 16. */
const char *tarn__cl_bits(size_t bytes);

/* Writes the bits of one element; 16-bit floats by way of f32, as on the CPU. */
void tarn__cl_write_element(tarn_dtype dtype, const tarn__scalar *value, void *bits);

/* window.c: copies input 0 into output 0 of the same dtype, with `value` around and between its elements. False, and
 * nothing is done, where sizes exceed 32 bits, the source is empty, or the device is not a GPU. */
bool tarn__cl_window(const tarn__call *call, const tarn__pad_axis *axis, int rank, const tarn__scalar *value);

/* A scalar of type INDEX. */
void tarn__cl_arg_index(tarn__cl_launch *launch, bool is_small, int64_t value);

/* Enqueues one work-item for each of `count` elements, with the default group. */
void tarn__cl_enqueue_elements(tarn__cl_launch *launch, int64_t count);

#endif
