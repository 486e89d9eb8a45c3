/* cudnn_conv.h: a convolution as cuDNN sees it, and the plans made for convolutions. */
#ifndef TARN__CUDNN_CONV_H
#define TARN__CUDNN_CONV_H

#include "backends/cuda/conv/conv_accuracy.h"
#include "backends/cuda/conv/conv_wgrad.h"
#include "backends/cuda/cudnn/cudnn.h"

enum { TARN__CONV_FORWARD, TARN__CONV_DGRAD, TARN__CONV_WGRAD };

/* Everything a choice of engine depends on. All tensors lie dense, in one of two orders: (N, C, H, W), or (N, H, W, C),
 * the weight likewise. Compared and written as bytes: no padding. */
typedef struct tarn__cudnn_conv {
    int64_t what; /* TARN__CONV_… */
    int64_t images, in, out, groups;
    int64_t size[2], result[2], kernel[2]; /* rows and columns of x, of y, and of the weight */
    int64_t stride[2], padding[2], dilation[2];
    int64_t in_dtype, out_dtype;
    int64_t channels_last;
    int64_t adds_bias; /* forward: before the result is rounded */
    int64_t passes_on; /* the gradient of a weight: the sums go through an operation that does nothing */
    int64_t tf32;
} tarn__cudnn_conv;

/* The addresses of one call: which of x, w and y is written depends on what is done. */
typedef struct tarn__cudnn_conv_operands {
    void *x, *w, *y, *bias;
    void *workspace;
} tarn__cudnn_conv_operands;

typedef struct tarn__cudnn_conv_plan {
    tarn__cudnn_conv conv;
    bool is_none; /* cuDNN has nothing for it */
    tarn__cudnn_graph graph;
    tarn__cudnn_plan plan;
    struct tarn__cudnn_conv_plan *next;
} tarn__cudnn_conv_plan;

/* How a convolution that was asked for is done. */
typedef struct tarn__conv_algo {
    tarn__cudnn_conv asked;
    uint64_t code;               /* what is different from that: cudnn_conv_form.c */
    tarn__cudnn_conv_plan *plan; /* NULL: without cuDNN, by columns or our own kernel */
    bool is_turned;              /* the gradient of x is made as a convolution with the turned weight */
    bool is_direct;              /* the gradient of the weight is made without columns, as `weight` says */
    tarn__wgrad_plan weight;
    struct tarn__conv_algo *next;
} tarn__conv_algo;

/* x, w and y of a convolution: shapes, and strides of the order they lie in. */
tarn__cudnn_tensor tarn__cudnn_conv_x(const tarn__cudnn_conv *conv);
tarn__cudnn_tensor tarn__cudnn_conv_w(const tarn__cudnn_conv *conv);
tarn__cudnn_tensor tarn__cudnn_conv_y(const tarn__cudnn_conv *conv);

/* A convolution as a call, whose views have no addresses yet. The call points into it. */
typedef struct tarn__conv_call {
    tarn__conv2d params;
    tarn__view x, w, y, bias;
    tarn__call call;
} tarn__conv_call;
void tarn__conv_describe_call(tarn__conv_call *as, const tarn__cudnn_conv *conv, int index, cudaStream_t stream);

/* cudnn_conv_plan.c: the plan of a convolution on a device, made at first need, kept for good; NULL: see
 * tarn__cuda_failure(). */
tarn__cudnn_conv_plan *tarn__cudnn_conv_plan_of(int index, const tarn__cudnn_conv *conv);
bool tarn__cudnn_conv_run(int index, tarn__cudnn_conv_plan *plan, const tarn__cudnn_conv_operands *operands,
                          cudaStream_t stream);

uint64_t tarn__cudnn_conv_hash(const tarn__cudnn_conv *conv);

/* cudnn_conv_tune.c: chooses one of the engines and makes its plan: the one that was chosen before, the fastest, or the
 * first that can. False when none can. */
bool tarn__cudnn_conv_tune(int index, void *handle, tarn__cudnn_conv_plan *plan, tarn__cudnn_engine *engines,
                           int count);

/* cudnn_conv_accuracy.c: what a convolution in f32 is, by columns: computed into the operands' result, of `count`
 * elements, which is overwritten. False where that cannot be done. Waits for the device. */
bool tarn__cudnn_conv_reference_compute(tarn__conv_reference *truth, const tarn__cudnn_conv *conv, int index,
                                        const tarn__cudnn_conv_operands *operands, const void *result, int64_t count,
                                        cudaStream_t stream);
bool tarn__cudnn_conv_reference_check(const tarn__conv_reference *truth, const void *result, cudaStream_t stream);
void tarn__cudnn_conv_reference_free(tarn__conv_reference *truth);

/* True where a choice is worth measuring. */
bool tarn__cudnn_conv_must_tune(const tarn__cudnn_conv *conv);

/* cudnn_conv_form.c: how a convolution is done on a device, chosen at first need, kept for good; NULL: see
 * tarn__cuda_failure(). */
tarn__conv_algo *tarn__conv_algo_of(int index, const tarn__cudnn_conv *asked);

/* Runs a plan of this convolution. The handle is the caller's alone. */
bool tarn__cudnn_conv_try(void *handle, const tarn__cudnn_conv *conv, tarn__cudnn_plan *plan,
                          const tarn__cudnn_conv_operands *operands);

/* cudnn_conv.c: a call in this form; gives the bytes of scratch it takes. Where it is run and fails, the device has
 * failed. */
size_t tarn__conv_algo_call(const tarn__call *call, const tarn__conv_algo *form, bool runs);

/* A call by cuDNN. False when it is not there or does not do this one; else the scratch it takes is told, and where
 * `runs` is true it is done, or the device has failed. */
bool tarn__cudnn_conv_call(const tarn__call *call, int what, bool runs, size_t *bytes);

/* conv_wgrad_plan.c: whether the gradient of a weight may be made without columns: bf16, or f32 in TF32, channels in
 * multiples of 8, one group; and how, where images lie with channels last. False where no tile fits. What
 * TARN_CUDA_CONV_WEIGHT says counts in the first. */
bool tarn__wgrad_supports(const tarn__cudnn_conv *conv);
bool tarn__wgrad_plan_of(int index, const tarn__cudnn_conv *conv, tarn__wgrad_plan *plan);
bool tarn__wgrad_is_forced(void);
bool tarn__wgrad_is_off(void);

/* conv_im2col.c: a call by columns; gives the bytes of scratch it takes. */
size_t tarn__cuda_conv_im2col(const tarn__call *call, int what, bool runs);

#endif
