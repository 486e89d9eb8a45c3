/* call.h: one kernel call. All kernels have one signature: a common head (inputs, outputs, which outputs are also
 * read, scratch, stream) and a typed struct of params, so that the CPU fallback, the profiler and the tests see
 * every tensor of every call.
 *
 * The call and all it points to are borrowed for its duration. Kernels check nothing: operands fit, as kernels.def
 * states. */
#ifndef TARN__CALL_H
#define TARN__CALL_H

#include "base/kernel/view.h"

#define TARN__MAX_INPUTS 11
#define TARN__MAX_OUTPUTS 5

/* An index out of range, found by a kernel. The kernel skips the element; the launch raises the error. An
 * asynchronous device keeps its own record until it is polled; `function` is then that of the faulty call. */
typedef struct tarn__fault {
    int32_t raised;
    const char *function;
    int64_t value;
    int64_t limit;
} tarn__fault;

typedef struct tarn__call {
    int inputs, outputs;
    /* NULL where an operand is absent or a constant (see tarn__elementwise) */
    const tarn__view *in[TARN__MAX_INPUTS];
    const tarn__view *out[TARN__MAX_OUTPUTS]; /* NULL where a result is not needed */
    uint32_t reads_output;                    /* bit i: the old values of output i are an operand */
    void *scratch;                            /* scratch_bytes bytes; uninitialized */
    int64_t scratch_offset;                   /* in bytes; 0 where memory is an address */
    size_t scratch_bytes;
    const struct tarn__plan *plan; /* of prepare(); plan.h */
    int32_t is_meta;               /* prepare() alone is called: the device only counts memory */
    int device;                    /* device index within the backend */
    void *stream;
    const char *function; /* for errors; a string literal */
    tarn__fault *fault;
    const void *params; /* the kernel's params, below */
    size_t params_bytes;
} tarn__call;

/* ---- params ---------------------------------------------------------------------------------------------------- */

/* A scalar in the two types that kernels compute in: floats and integers. */
typedef struct tarn__scalar {
    double real;
    int64_t integer;
} tarn__scalar;

/* Activation of a fused kernel. */
typedef enum tarn__act {
    TARN__ACT_NONE,
    TARN__ACT_SILU,
    TARN__ACT_GELU, /* tanh form */
    TARN__ACT_GELU_ERF,
    TARN__ACT_RELU,
    TARN__ACT_COUNT
} tarn__act;

/* Elementwise kernels. Where bit i of `constants` is set, input i is constant[i] and its view is NULL. */
typedef struct tarn__elementwise {
    double p0, p1; /* leaky_relu: slope; clamp: low and high */
    int32_t act;   /* gated: tarn__act */
    uint32_t constants;
    tarn__scalar constant[3];
} tarn__elementwise;

/* fill: value of every element; arange: value + i · step. */
typedef struct tarn__fill {
    tarn__scalar value, step;
} tarn__fill;

/* pad: element i of x's axis k goes to begin[k] + i · step[k] of y's. */
typedef struct tarn__pad {
    tarn__scalar value; /* all other elements */
    int64_t begin[TARN_MAX_RANK], step[TARN_MAX_RANK];
} tarn__pad;

/* uniform: [a, b); normal: mean a, std b; dropout: probability a. Element i, counted row-major, uses word i % 4 of
 * Philox counter offset + i / 4 under `seed`, so results do not depend on layout, threads or backend. */
typedef struct tarn__random {
    uint64_t seed, offset;
    double a, b;
    const uint64_t *live; /* in a captured step: seed and increment of the offset, in device memory; else NULL */
} tarn__random;

/* sum, prod, max, min, argmax, argmin, var: the output has the input's shape with size 1 on reduced axes. */
typedef struct tarn__reduce {
    double scale;      /* sum: factor of the result (mean: 1 / count) */
    double correction; /* var */
} tarn__reduce;

/* Kernels along one axis: cumsum, softmax, gather, scatter_add, index_select, index_add, sort, topk. */
typedef struct tarn__along {
    int axis;
    int reverse; /* cumsum: from the end; sort, topk: descending */
    int from_x;  /* softmax_grad, log_softmax_grad: the first input is x, and y is recomputed */
} tarn__along;

/* matmul: out = alpha · a @ b + beta · out (+ bias on the last axis). Batches are leading axes with strides, 0 where
 * broadcast. */
typedef struct tarn__matmul {
    double alpha, beta;
    /* f32 operands may be rounded to TF32 (10 mantissa bits) where that is faster */
    int32_t tf32;
    int32_t limits_scratch;  /* prefer algorithms with little scratch */
    int32_t batch_invariant; /* a tarn__invariance */
} tarn__matmul;

/* What the bits of a row of a matmul depend on, beside that row of a. */
typedef enum tarn__invariance {
    TARN__INVARIANT_NONE,  /* the number of rows: the algorithm that is fastest for it */
    TARN__INVARIANT_BATCH, /* nothing: one algorithm for all numbers of rows */
    /* nothing, up to TARN__ALONE_ROWS rows: a row has the bits that it has alone, without invariance */
    TARN__INVARIANT_ALONE
} tarn__invariance;

#define TARN__ALONE_ROWS 8

/* conv2d: height, then width. Defaults are resolved: no value is 0 in place of 1. */
typedef struct tarn__conv2d {
    int64_t stride[2], padding[2], dilation[2];
    int64_t groups;
    double beta;  /* conv2d_grad_weight: out = gradient + beta · out */
    int32_t tf32; /* as in tarn__matmul */
} tarn__conv2d;

/* max_pool2d, avg_pool2d: height, then width. */
typedef struct tarn__pool2d {
    int64_t kernel[2], stride[2], padding[2], dilation[2];
    int32_t exclude_padding; /* avg_pool2d: divide by the number of elements inside the image */
} tarn__pool2d;

typedef struct tarn__norm {
    double epsilon;
    double offset; /* rmsnorm: added to the weight in the type computed in; without a weight unused */
} tarn__norm;

/* norm_linear, norm_gate_up, linear_residual, norm_residual. */
typedef struct tarn__decode_linear {
    double epsilon, offset; /* of the norm, as in tarn__norm */
    int32_t centred;        /* layernorm instead of rmsnorm */
    int32_t act;            /* tarn__act; norm_linear: of the result, norm_gate_up: of the gate */
    double scale;           /* of the result, before soft cap and sum */
    double softcap;         /* norm_linear: y = softcap · tanh(y / softcap); 0: none */
    /* norm_linear, norm_gate_up with a post-norm, an rmsnorm, of the branch: its epsilon and offset, and the factor of
     * its result */
    double post_epsilon, post_offset, post_scale;
} tarn__decode_linear;

/* residual_norm, dropout_residual_norm and their gradients. With dropout, delta, x, sum and gradients are contiguous
 * and of at most 32 bits. */
typedef struct tarn__residual_norm {
    double epsilon;
    double offset;       /* with rms: as in tarn__norm */
    int32_t rms;         /* rmsnorm instead of layernorm: no mean, no bias */
    tarn__random random; /* dropout_residual_norm: as tarn__random for dropout */
} tarn__residual_norm;

/* attention and its gradient. Head h of q uses head h · KV / H of k and v. With valid = lengths[b] or S, the last
 * row of q is aligned with key valid - 1: row t has position p = valid - T + t. A row attends to keys below `valid`,
 * if causal to those up to p, with a window only to those after p - window; with no key its result is 0.
 *
 * Dropout (random.a > 0): let n = (b · H + h) · T + t. Key s uses 16 bits of Philox counter random.offset + n · ((S
 * + 7) / 8) + s / 8 under random.seed: of word s % 8 / 2 the lower half where s is even, else the upper. With l =
 * random.a · 65536, rounded, from 1 to 65535, its weight is 0 where these bits are below l, else divided by 1 - l /
 * 65536, which keeps the expected weight. */
typedef struct tarn__attention {
    double scale; /* of q · k; the default is resolved, never 0 */
    int32_t causal;
    int32_t tf32; /* as in tarn__matmul */
    tarn__random random;
    int64_t window; /* 0: none; else causal */
    double softcap; /* scores s, scaled, become softcap · tanh(s / softcap); 0: none */
} tarn__attention;

/* Tokens of a page of the paged KV cache. attention_paged uses scale, window and softcap of tarn__attention; it is
 * always causal and has no dropout. */
#define TARN__KV_PAGE 64

/* rope: pair i of dims / 2 of the last axis is rotated by position · frequency[i] and multiplied by `magnitude`. */
#define TARN__ROPE_PAIRS 256
typedef struct tarn__rope {
    int32_t axis;                       /* axis of x that holds the positions: 1 or 2 */
    int32_t interleaved;                /* pairs are (2 i, 2 i + 1) rather than (i, i + dims / 2) */
    int32_t inverse;                    /* rotate backward (the gradient) */
    int64_t dims;                       /* elements of the last axis that are rotated; the others are copied */
    double magnitude;                   /* factor of cos and sin; 1 but for yarn and longrope */
    double frequency[TARN__ROPE_PAIRS]; /* computed by the operation, so that all backends use the same values */
} tarn__rope;

/* attention_decode: scale of q · k, and the rotation of q and k: dims 0 for none; `axis` and `inverse` are unused;
 * window and softcap as in tarn__attention. */
typedef struct tarn__attention_decode {
    double scale;
    tarn__rope rope;
    int64_t window;
    double softcap;
} tarn__attention_decode;

/* batchnorm and its gradient. */
typedef struct tarn__batchnorm {
    double epsilon;
    double momentum;  /* weight of a batch's statistics in the running ones */
    int32_t training; /* use the batch's own statistics, which take part in the gradient */
} tarn__batchnorm;

typedef struct tarn__groupnorm {
    double epsilon;
    int64_t groups;
} tarn__groupnorm;

typedef struct tarn__cross_entropy {
    double smoothing;
    double scale; /* cross_entropy_grad: factor of all gradients */
    int64_t ignore;
    int32_t has_ignore;
} tarn__cross_entropy;

/* clip_factor. */
typedef struct tarn__clip {
    double max_norm;
    int32_t again; /* multiply into the factor from an earlier clip, which is read */
} tarn__clip;

/* Scalars that change from step to step; computed by the optimizer, so that all backends use the same values. */
typedef struct tarn__step_scalars {
    double lr;
    double keep;  /* adamw: 1 - lr · decay; 1 where decay is part of the gradient */
    double size;  /* adamw: lr / (1 - beta1^step) */
    double scale; /* adamw: 1 / sqrt(1 - beta2^step) */
    int64_t step; /* counts from 1 */
} tarn__step_scalars;

/* One optimizer step over a flat segment. */
typedef struct tarn__optimizer_step {
    double beta1, beta2, epsilon, dampening;
    double decay; /* L2: decay · parameter is added to the gradient; 0 where `keep` applies it */
    int32_t nesterov;
    tarn__step_scalars now;
    const tarn__step_scalars *live; /* in a captured step: replaces `now`, in device memory; else NULL */
} tarn__optimizer_step;

#endif
