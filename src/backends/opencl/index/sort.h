/* sort.h: lines of pairs sorted by key in scratch, for sort, topk and scatter. */
#ifndef TARN__OPENCL_SORT_H
#define TARN__OPENCL_SORT_H

#include "backends/opencl/common/element.h"

/* A sort of lines along one axis; plain data of a plan. */
typedef struct tarn__cl_sorting {
    int64_t length, step; /* elements of a line, and their stride */
    tarn__nest lines;     /* operand 0: the tensor that is sorted */
    uint64_t key[3];      /* sign, infinity and flip; or the limit of indices */
    const tarn__cl_kernel *make_runs, *merge;
} tarn__cl_sorting;

/* Bytes of scratch for that many pairs: two buffers, which alternate. */
size_t tarn__cl_sort_scratch(int64_t pairs);

/* Finds the kernels of a described sort; `options` say what keys are: -DBITS or -DI. False: one does not compile. */
bool tarn__cl_sort_find(const tarn__call *call, tarn__cl_sorting *sorting, const char *options);

/* Sorts x; returns the position of the sorted pairs in the call's scratch, in bytes. */
int64_t tarn__cl_sort_lines(const tarn__call *call, const tarn__cl_sorting *sorting, const tarn__view *x);

#endif
