/* reduce.h: the engine of all reductions, for kernels that combine one with something else. */
#ifndef TARN__OPENCL_REDUCE_H
#define TARN__OPENCL_REDUCE_H

#include "backends/opencl/common/element.h"

#define TARN__CL_STATE_BYTES 24 /* of a state of reduce.cl, at most */

/* A reduction for the engine. Borrows the views. */
typedef struct tarn__cl_reduction {
    const char *op; /* "sum": of reduce.cl */
    tarn__cl_compute compute;
    const tarn__view *x;
    const tarn__view *z;      /* a second operand that broadcasts to x; NULL: none */
    const tarn__view *y;      /* x's shape with size 1 on reduced axes, or rank 0 */
    bool is_state;            /* results are states, at the start of scratch, with y's strides */
    double scale, correction; /* correction: of a variance; of a mean kept as a state, the number of elements */
} tarn__cl_reduction;

/* Bytes of scratch; whether its programs compile (else the call is declined); the reduction. */
size_t tarn__cl_reduce_scratch(const tarn__call *call, const tarn__cl_reduction *reduction);
bool tarn__cl_reduce_compiles(const tarn__call *call, const tarn__cl_reduction *reduction);
void tarn__cl_reduce(const tarn__call *call, const tarn__cl_reduction *reduction);

/* Compute type of sums, products and variances of a dtype: f64 where the device has it. */
tarn__cl_compute tarn__cl_state_compute(const tarn__call *call, tarn_dtype dtype);

/* max_grad.c: the speculative gradient of max and min on a GPU, for rows or columns of aligned vec4s. False, and
 * nothing is done, for others; and its bytes of scratch. */
bool tarn__cl_max_grad(const tarn__call *call);
size_t tarn__cl_max_grad_scratch(const tarn__call *call);
/* The axes of x that are reduced, or the others, of operands gx, x, g and y. */
void tarn__cl_max_grad_axes(const tarn__call *call, bool reduced, tarn__nest *nest);

#endif
