/* call.h: one kernel call. All kernels have one signature: a common head (inputs, outputs, which outputs are also read,
 * scratch, stream) and a typed tail of scalars, so that fallback, profiler and tests see every tensor of every call. */
#ifndef TARN__CALL_H
#define TARN__CALL_H

#include "base/kernel/view.h"

#define TARN__MAX_INPUTS 8
#define TARN__MAX_OUTPUTS 5

/* An index outside its axis, found by a kernel. The kernel goes on as if the element were not there; the launch raises
 * the error. A device that works asynchronously keeps its own record and gives it up when it is polled: `function` is
 * then the call's. */
typedef struct tarn__fault {
    int32_t raised;
    const char *function;
    int64_t value;
    int64_t limit;
} tarn__fault;

typedef struct tarn__call {
    int inputs, outputs;
    /* NULL where an operand is left out, or is a constant (see elementwise) */
    const tarn__view *in[TARN__MAX_INPUTS];
    const tarn__view *out[TARN__MAX_OUTPUTS]; /* NULL where a result is not wanted */
    uint32_t reads_output;                    /* bit i: output i is also read, its old values count */
    void *scratch;                            /* as many bytes as the kernel's row asked for */
    int64_t scratch_offset;                   /* in bytes; 0 where memory has plain addresses */
    size_t scratch_bytes;
    int device; /* its index in the backend */
    void *stream;
    const char *function; /* for errors; a text that lives as long as the program */
    tarn__fault *fault;
    const void *params; /* the typed tail */
    size_t params_bytes;
} tarn__call;

/* ---- the tails --------------------------------------------------------------------------------------------------- */

/* A number in the three forms that kernels compute in. */
typedef struct tarn__scalar {
    double real;
    int64_t integer;
} tarn__scalar;

/* Element-wise kernels. Input i with bit i of `constants` is no tensor but constant[i]; its view is NULL. */
typedef struct tarn__elementwise {
    double p0, p1; /* slope, or low and high */
    uint32_t constants;
    tarn__scalar constant[3];
} tarn__elementwise;

/* fill: every element; arange: value + i · step. */
typedef struct tarn__fill {
    tarn__scalar value, step;
} tarn__fill;

/* spread: element i of x's axis k lies at begin[k] + i · step[k] of y's. */
typedef struct tarn__pad {
    tarn__scalar value; /* everywhere else */
    int64_t begin[TARN_MAX_RANK], step[TARN_MAX_RANK];
} tarn__pad;

/* uniform: [a, b); normal: mean a, deviation b; dropout: a is the probability. Element i, counted row-major, takes its
 * number from counter offset + i / 4, word i % 4 of Philox under `seed`. */
typedef struct tarn__random {
    uint64_t seed, offset;
    double a, b;
    const uint64_t *live; /* in a captured step: the seed, and what to add to the offset, in device memory; else NULL */
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
    int from_x;  /* softmax_grad, log_softmax_grad: the first input is x, and y is made again */
} tarn__along;

/* matmul: out = alpha · a @ b + beta · out (+ bias on the last axis). Batches are leading axes with strides, 0 where
 * broadcast. */
typedef struct tarn__matmul {
    double alpha, beta;
    /* f32 products may be made of numbers cut to 10 bits after the point, where a device is faster so */
    int32_t tf32;
    int32_t limits_scratch; /* a device takes no form that needs much scratch */
} tarn__matmul;

/* conv2d: rows, then columns; every number is given, those that mean 1 are 1. */
typedef struct tarn__conv2d {
    int64_t stride[2], padding[2], dilation[2];
    int64_t groups;
    double beta;  /* conv2d_grad_weight: out = gradient + beta · out */
    int32_t tf32; /* as matmul has it */
} tarn__conv2d;

/* max_pool2d, avg_pool2d: rows, then columns. */
typedef struct tarn__pool2d {
    int64_t kernel[2], stride[2], padding[2], dilation[2];
    int32_t exclude_padding; /* avg_pool2d: an average is over the elements inside the image alone */
} tarn__pool2d;

typedef struct tarn__norm {
    double epsilon;
} tarn__norm;

/* residual_norm, residual_norm_dropped and their gradients. What is dropped out is dense and of at most 32 bits, and so
 * are x, sum and gradients beside it. */
typedef struct tarn__residual_norm {
    double epsilon;
    int32_t rms;         /* rmsnorm rather than layernorm: no mean, no bias */
    tarn__random random; /* of residual_norm_dropped: elements are numbered as for dropout */
} tarn__residual_norm;

/* attention and its gradient. Head h of q looks at head h · KV / H of k and v. The last row of q stands at the last of
 * the `valid` keys, lengths[b] or S, and row t at position p = valid - T + t. A row attends to keys below `valid`, and
 * if it is causal to those up to p; to none: its result is 0. With dropout, random.a > 0: with n the number of row t of
 * head h of batch b, ((b · H + h) · T + t), key s takes 16 bits of counter random.offset + n · ((S + 7) / 8) + s / 8 of
 * Philox under random.seed: of word s % 8 / 2 the lower half where s is even, else the upper. Its weight is 0 where
 * they are below l, else divided by 1 - l / 65536, l being random.a · 65536, rounded, from 1 to 65535: what is expected
 * of a weight is the weight. */
typedef struct tarn__attention {
    double scale; /* of q · k, never 0 for "default" here */
    int32_t causal;
    tarn__random random;
} tarn__attention;

/* rope: element pairs of the last axis, i of dims / 2, are turned by the angle position · frequency[i]. */
#define TARN__ROPE_PAIRS 256
typedef struct tarn__rope {
    int32_t axis;                       /* of x, along which positions go: 1 or 2 */
    int32_t interleaved;                /* pairs are (2 i, 2 i + 1) rather than (i, i + dims / 2) */
    int32_t inverse;                    /* turned the other way */
    int64_t dims;                       /* how many elements of the last axis are turned; the others stay */
    double frequency[TARN__ROPE_PAIRS]; /* made by the operation, so that every backend has the same numbers */
} tarn__rope;

/* attention_next: scale of q · k, and how q and k are turned: rope's `dims` 0 for not at all; `axis` and `back` have no
 * meaning. */
typedef struct tarn__attention_decode {
    double scale;
    tarn__rope rope;
} tarn__attention_decode;

/* batchnorm and its gradient. */
typedef struct tarn__batchnorm {
    double epsilon;
    double momentum;  /* of a batch's statistics in the running ones */
    int32_t training; /* the batch's own statistics are used, and count in the gradient */
} tarn__batchnorm;

typedef struct tarn__groupnorm {
    double epsilon;
    int64_t groups;
} tarn__groupnorm;

typedef struct tarn__cross_entropy {
    double smoothing;
    double scale; /* cross_entropy_grad: of all gradients */
    int64_t ignore;
    int32_t has_ignore;
} tarn__cross_entropy;

/* clip_factor. */
typedef struct tarn__clip {
    double max_norm;
    int32_t again; /* the gradients count with the factor that is there already, which is read */
} tarn__clip;

/* What changes from one step to the next; made by the optimizer, so that every backend has the same numbers. */
typedef struct tarn__step_scalars {
    double lr;
    double keep;  /* adamw: 1 - lr · decay; 1 where the decay is part of the gradient */
    double size;  /* adamw: lr / (1 - beta1^step) */
    double scale; /* adamw: 1 / sqrt(1 - beta2^step) */
    int64_t step; /* counts from 1 */
} tarn__step_scalars;

/* A step over one flat segment. */
typedef struct tarn__optimizer_step {
    double beta1, beta2, epsilon, dampening;
    double decay; /* this times the parameter is added to the gradient; 0 where `keep` does it */
    int32_t nesterov;
    tarn__step_scalars now;
    const tarn__step_scalars *live; /* in a captured step: this, in device memory, counts instead of `now`; else NULL */
} tarn__optimizer_step;

#endif
