/* launch.h: running a kernel on the device its operands lie on. */
#ifndef TARN__LAUNCH_H
#define TARN__LAUNCH_H

#include "core/tensor/tensor.h"

/* One kernel call in terms of tensors. NULL entries are operands left out. All tensors lie on one device (the caller
 * has checked). */
typedef struct tarn__launch {
    tarn__kernel kernel;
    const char *function; /* for errors */
    int inputs, outputs;
    tarn_tensor *in[TARN__MAX_INPUTS];
    tarn_tensor *out[TARN__MAX_OUTPUTS];
    uint32_t reads_output;
    const void *params;
    size_t params_bytes;
} tarn__launch;

/* Picks the device's kernel, or the CPU's where the device has none (counted, warned about once), and runs it. False
 * with an error. */
bool tarn__run(const tarn__launch *launch);

/* True where the device itself has a kernel for this dtype: for operations that can also be made of others. */
bool tarn__has_kernel(tarn_device device, tarn__kernel kernel, tarn_dtype dtype);

/* Copies elements: any dtype, any strides, any two devices; shapes are equal. */
bool tarn__copy_elements(const char *function, tarn_tensor *to, tarn_tensor *from);

/* x itself when it is dense (row-major), else a dense copy, counted as a layout copy. In the open scope. */
tarn_tensor *tarn__contiguous(const char *function, tarn_tensor *x);

/* A number as kernels take it. A double beyond i64 becomes the last integer: conversion out of range is undefined in C.
 */
tarn__scalar tarn__scalar_of(double value);

/* Sets every element to a number. */
bool tarn__fill_with(const char *function, tarn_tensor *x, double value);

#endif
