/* cudnn_conv.h: convolutions as cuDNN sees them, their plans, and the selected algorithm. */
#ifndef TARN__CUDNN_CONV_H
#define TARN__CUDNN_CONV_H

#include "backends/cuda/conv/conv_accuracy.h"
#include "backends/cuda/conv/conv_wgrad.h"
#include "backends/cuda/cudnn/cudnn.h"

enum { TARN__CONV_FORWARD, TARN__CONV_DGRAD, TARN__CONV_WGRAD };

/* Everything the choice of an engine depends on. All tensors are contiguous, in NCHW or NHWC, the weight likewise.
 * Compared, and written to tuning files, as bytes: no padding. */
typedef struct tarn__cudnn_conv {
    int64_t what; /* TARN__CONV_… */
    int64_t images, in, out, groups;
    int64_t size[2], result[2], kernel[2]; /* rows and columns of x, of y, and of the kernel */
    int64_t stride[2], padding[2], dilation[2];
    int64_t in_dtype, out_dtype;
    int64_t channels_last;
    int64_t adds_bias;         /* forward: before the result is rounded */
    int64_t identity_epilogue; /* wgrad: f32 sums pass an identity operation */
    int64_t tf32;
} tarn__cudnn_conv;

/* Addresses of one call; `what` decides which of x, w and y is written. */
typedef struct tarn__cudnn_conv_operands {
    void *x, *w, *y, *bias;
    void *workspace;
} tarn__cudnn_conv_operands;

/* Owned by the plan cache; lives as long as the process. */
typedef struct tarn__cudnn_conv_plan {
    tarn__cudnn_conv conv;
    bool use_native; /* cuDNN has no engine for it */
    tarn__cudnn_graph graph;
    tarn__cudnn_plan plan;
    struct tarn__cudnn_conv_plan *next;
} tarn__cudnn_conv_plan;

/* The algorithm selected for a requested convolution. */
typedef struct tarn__conv_algo {
    tarn__cudnn_conv requested;
    uint64_t code;               /* differences from the request, as bits: conv.c */
    tarn__cudnn_conv_plan *plan; /* NULL: im2col or our own kernel */
    bool is_flipped;             /* dgrad as a convolution with the flipped weight */
    bool is_direct;              /* wgrad by our own kernel, with the plan `weight` */
    tarn__wgrad_plan weight;
    struct tarn__conv_algo *next;
} tarn__conv_algo;

/* Shapes and strides of x, w and y. */
tarn__cudnn_tensor tarn__cudnn_conv_x(const tarn__cudnn_conv *conv);
tarn__cudnn_tensor tarn__cudnn_conv_w(const tarn__cudnn_conv *conv);
tarn__cudnn_tensor tarn__cudnn_conv_y(const tarn__cudnn_conv *conv);

/* A convolution as a call whose views have no addresses yet. The call points into the struct: do not copy it. */
typedef struct tarn__conv_call {
    tarn__conv2d params;
    tarn__view x, w, y, bias;
    tarn__call call;
} tarn__conv_call;
void tarn__conv_describe_call(tarn__conv_call *as, const tarn__cudnn_conv *conv, int index, cudaStream_t stream);

/* cudnn_conv_plan.c: the plan of a convolution on a device, created on first use, borrowed from the cache. NULL: see
 * tarn__cuda_failure(). */
tarn__cudnn_conv_plan *tarn__cudnn_conv_plan_of(int index, const tarn__cudnn_conv *conv);
bool tarn__cudnn_conv_run(int index, tarn__cudnn_conv_plan *plan, const tarn__cudnn_conv_operands *operands,
                          cudaStream_t stream);

/* cudnn_conv_tune.c: selects an engine and builds its plan: the stored one, the fastest, or the first that works. False
 * if none does. */
bool tarn__cudnn_conv_tune(int index, void *handle, tarn__cudnn_conv_plan *plan, tarn__cudnn_engine *engines,
                           int count);

/* cudnn_conv_accuracy.c: the f32 reference of a convolution by im2col, computed into `result`, which is overwritten;
 * `count` elements. False if it cannot be computed. Waits for the device. Freed with
 * tarn__cudnn_conv_reference_free(). */
bool tarn__cudnn_conv_reference_compute(tarn__conv_reference *reference, const tarn__cudnn_conv *conv, int index,
                                        const tarn__cudnn_conv_operands *operands, const void *result, int64_t count,
                                        cudaStream_t stream);
bool tarn__cudnn_conv_reference_check(const tarn__conv_reference *reference, const void *result, cudaStream_t stream);
void tarn__cudnn_conv_reference_free(tarn__conv_reference *reference);

/* True if the convolution is large enough to tune, and tuning is on. */
bool tarn__cudnn_conv_must_tune(const tarn__cudnn_conv *conv);

/* conv.c: the algorithm for a convolution on a device, selected on first use, borrowed from the cache. NULL: see
 * tarn__cuda_failure(). */
tarn__conv_algo *tarn__conv_algo_of(int index, const tarn__cudnn_conv *requested);

/* Runs a plan. The caller holds the cuDNN lock. */
bool tarn__cudnn_conv_try(void *handle, const tarn__cudnn_conv *conv, tarn__cudnn_plan *plan,
                          const tarn__cudnn_conv_operands *operands);

/* conv.c: the algorithm if it has been selected, else NULL. */
tarn__conv_algo *tarn__conv_find_algo(int index, const tarn__cudnn_conv *requested);

/* cudnn_conv.c: prepares a call with this algorithm, which plan->shared then is; and runs it. A failed run marks the
 * device as failed. */
tarn__plan_status tarn__conv_algo_prepare(const tarn__call *call, const tarn__conv_algo *algo, tarn__plan *plan);
void tarn__conv_algo_run(const tarn__call *call);

/* True if there is a choice: cuDNN is installed and supports the call, or our own kernel does. And what is requested of
 * it. */
bool tarn__conv_has_choice(const tarn__call *call, int what);
tarn__cudnn_conv tarn__conv_requested_by(const tarn__call *call, int what);

/* conv_wgrad_plan.c: whether our wgrad kernel supports the convolution: bf16, or f32 in TF32, channels in multiples of
 * 8, one group (TARN_CUDA_WGRAD counts); and its tiling for NHWC images. False if no tile fits. */
bool tarn__wgrad_supports(const tarn__cudnn_conv *conv);
bool tarn__wgrad_plan_of(int index, const tarn__cudnn_conv *conv, tarn__wgrad_plan *plan);
bool tarn__wgrad_is_forced(void);
bool tarn__wgrad_is_off(void);

/* conv_im2col.c: a call by im2col. */
tarn__plan_status tarn__cuda_conv_im2col_prepare(const tarn__call *call, int what, tarn__plan *plan);
void tarn__cuda_conv_im2col_run(const tarn__call *call, int what);

#endif
