/* call.h: one kernel call. All kernels have one signature: a common head (inputs, outputs, which outputs are also read, scratch, stream)
 * and a typed tail of scalars, so that fallback, profiler and tests see every tensor of every call. */
#ifndef TARN__CALL_H
#define TARN__CALL_H

#include "base/view.h"

#define TARN__MAX_INPUTS 6
#define TARN__MAX_OUTPUTS 3

/* An index outside its axis, found by a kernel. The kernel goes on as if the element were not there; the launch raises the error. */
typedef struct tarn__fault {
    int32_t raised;
    int64_t value;
    int64_t limit;
} tarn__fault;

typedef struct tarn__call {
    int inputs, outputs;
    const tarn__view *in[TARN__MAX_INPUTS];   /* NULL where an operand is left out, or is a constant (see elementwise) */
    const tarn__view *out[TARN__MAX_OUTPUTS]; /* NULL where a result is not wanted */
    uint32_t reads_output;                    /* bit i: output i is also read, its old values count */
    void *scratch;                            /* as many bytes as the kernel's row asked for */
    size_t scratch_bytes;
    void *stream;
    tarn__fault *fault;
    const void *params; /* the typed tail */
    size_t params_bytes;
} tarn__call;

/* ---- the tails ------------------------------------------------------------------------------------------------------------- */

/* A number in the three forms that kernels compute in. */
typedef struct tarn__number {
    double real;
    int64_t integer;
} tarn__number;

/* Element-wise kernels. Input i with bit i of `constants` is no tensor but constant[i]; its view is NULL. */
typedef struct tarn__elementwise {
    double p0, p1; /* slope, or low and high */
    uint32_t constants;
    tarn__number constant[3];
} tarn__elementwise;

/* fill: every element; arange: value + i · step. */
typedef struct tarn__fill {
    tarn__number value, step;
} tarn__fill;

/* uniform: [a, b); normal: mean a, deviation b; dropout: a is the probability. Element i, counted row-major, takes its number from counter
 * offset + i / 4, word i % 4 of Philox under `seed`. */
typedef struct tarn__random {
    uint64_t seed, offset;
    double a, b;
} tarn__random;

/* sum, prod, max, min, argmax, argmin, var: output shape is the input's with size 1 on reduced axes. */
typedef struct tarn__reduce {
    double scale;      /* sum: the result is multiplied by this (mean: 1 / count) */
    double correction; /* var */
} tarn__reduce;

/* Kernels along one axis: cumsum, softmax, gather, scatter_add, index_select, index_add, sort, topk. */
typedef struct tarn__along {
    int axis;
    int reverse; /* cumsum: from the end; sort, topk: descending */
} tarn__along;

/* matmul: out = alpha · a @ b + beta · out (+ bias on the last axis). Batches are leading axes with strides, 0 where broadcast. */
typedef struct tarn__matmul {
    double alpha, beta;
} tarn__matmul;

typedef struct tarn__norm {
    double epsilon;
} tarn__norm;

typedef struct tarn__cross_entropy {
    double smoothing;
    int64_t ignore;
    int32_t has_ignore;
} tarn__cross_entropy;

/* A step over one flat segment; `step` counts from 1. */
typedef struct tarn__optimizer_step {
    double lr, beta1, beta2, epsilon, decay, dampening;
    int64_t step;
    int32_t nesterov;
} tarn__optimizer_step;

#endif
