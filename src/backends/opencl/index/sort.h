/* sort.h: lines of pairs sorted by key in scratch, for sort, topk and scatter. */
#ifndef TARN__OPENCL_SORT_H
#define TARN__OPENCL_SORT_H

#include "backends/opencl/common/element.h"

/* A sort of lines along one axis. */
typedef struct tarn__cl_sorting {
    const tarn__view *x;
    int64_t length, step; /* elements of a line, and their stride */
    tarn__nest lines;     /* operand 0: x */
    const char *options;  /* -DBITS or -DI: what keys are */
    uint64_t key[3];      /* sign, infinity and flip; or the limit of indices */
    int64_t scratch;      /* bytes into scratch */
} tarn__cl_sorting;

/* Bytes of scratch for that many pairs: two buffers, which alternate. */
size_t tarn__cl_sort_scratch(int64_t pairs);
bool tarn__cl_sort_compiles(const tarn__call *call, const tarn__cl_sorting *sorting);

/* Sorts; returns the position of the sorted pairs in the call's scratch, in bytes. */
int64_t tarn__cl_sort_lines(const tarn__call *call, const tarn__cl_sorting *sorting);

#endif
