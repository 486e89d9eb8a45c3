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

/* The struct `axes` of reduce.cl. */
typedef struct tarn__cl_reduce_axes {
    int32_t rank, spare;
    int64_t count;
    int64_t shape[TARN_MAX_RANK];
    int64_t stride[3][TARN_MAX_RANK];
} tarn__cl_reduce_axes;

/* A prepared reduction; plain data of a plan. */
typedef struct tarn__cl_reduce_job {
    tarn__cl_reduce_axes kept, inner;
    int64_t outputs, chunk, chunks;          /* elements per chunk; chunks per output */
    int64_t parts;                           /* bytes into scratch: the chunks' states */
    size_t scratch_bytes;                    /* states and parts */
    bool is_columns, has_vec4;               /* outputs are adjacent; an output's elements are aligned vec4s */
    bool combines_in_groups;                 /* a work-group merges the chunks of an output */
    const char *form;                        /* "rows", "across" or "groups": the kernel's name */
    size_t group;                            /* work-items, in the form of groups */
    const tarn__cl_kernel *reduce, *combine; /* combine NULL: one chunk per output */
} tarn__cl_reduce_job;

/* Describes a reduction, finds its kernels, and runs it. `reduction` is the same for all three. */
void tarn__cl_reduce_describe(const tarn__call *call, const tarn__cl_reduction *reduction, tarn__cl_reduce_job *job);
tarn__plan_status tarn__cl_reduce_find(const tarn__call *call, const tarn__cl_reduction *reduction,
                                       tarn__cl_reduce_job *job);
void tarn__cl_reduce(const tarn__call *call, const tarn__cl_reduction *reduction, const tarn__cl_reduce_job *job);

/* Compute type of sums, products and variances of a dtype: f64 where the device has it. */
tarn__cl_compute tarn__cl_state_compute(const tarn__call *call, tarn_dtype dtype);

/* max_grad.c: the speculative gradient of max and min on a GPU, for rows or columns of aligned vec4s. */
typedef struct tarn__cl_max_grad_job {
    /* operands gx, x, g, y; of rows the reduced axis, of columns the last one kept, in vec4s */
    tarn__nest kept, reduced;
    bool is_columns;
    int64_t chunk, chunks;                          /* of columns */
    int64_t found;                                  /* bytes into scratch, after the totals */
    size_t group;                                   /* of rows */
    const tarn__cl_kernel *clear, *speculate, *fix; /* clear and fix: of columns */
} tarn__cl_max_grad_job;

/* False for other layouts, and where its kernels do not compile. `bytes` is its scratch in the latter case, too. */
bool tarn__cl_max_grad_prepare(const tarn__call *call, tarn__cl_max_grad_job *job, size_t *bytes);
void tarn__cl_max_grad(const tarn__call *call, const tarn__cl_max_grad_job *job);
/* The axes of x that are reduced, or the others, of operands gx, x, g and y. */
void tarn__cl_max_grad_axes(const tarn__call *call, bool reduced, tarn__nest *nest);

#endif
