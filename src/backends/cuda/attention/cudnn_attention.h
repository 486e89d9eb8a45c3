/* cudnn_attention.h: attention as cuDNN sees it, and the plans made for it. */
#ifndef TARN__CUDNN_ATTENTION_H
#define TARN__CUDNN_ATTENTION_H

#ifdef __cplusplus
extern "C" {
#endif
#include "backends/cuda/cudnn/cudnn.h"

/* The tensors of 16 bits: (B, H, T, D), those of keys and values (B, KV, S, D). Backward has all, forward the first
 * four. */
enum {
    TARN__ATTENTION_Q,
    TARN__ATTENTION_K,
    TARN__ATTENTION_V,
    TARN__ATTENTION_Y,
    TARN__ATTENTION_G,
    TARN__ATTENTION_GQ,
    TARN__ATTENTION_GK,
    TARN__ATTENTION_GV,
    TARN__ATTENTION_TENSORS
};

/* Everything a choice of engine depends on. A call is done in pieces of some batches, or of some heads of one batch.
 * Compared and written as bytes: no padding. */
typedef struct tarn__cudnn_attention {
    int64_t is_backward, causal, dtype;
    int64_t batches, heads, kv_heads, rows, keys, depth; /* B, H, KV, T, S, D */
    int64_t piece_batches, piece_kv_heads;
    double scale;
    int64_t stride[TARN__ATTENTION_TENSORS][3]; /* of batches, heads and rows; elements of a row lie side by side */
} tarn__cudnn_attention;

/* The addresses of one call. */
typedef struct tarn__cudnn_attention_operands {
    void *tensor[TARN__ATTENTION_TENSORS];
    float *logarithms; /* (B, H, T), dense */
    float *sums;       /* backward: room for Σ g · y of a piece's rows */
    void *workspace;
} tarn__cudnn_attention_operands;

typedef struct tarn__cudnn_attention_plan {
    tarn__cudnn_attention attention;
    bool is_none; /* cuDNN has nothing for it, or nothing as fast as our own kernels */
    float scale, nothing, one;
    tarn__cudnn_graph graph;
    tarn__cudnn_plan plan;
    struct tarn__cudnn_attention_plan *next;
} tarn__cudnn_attention_plan;

/* What a graph takes beside these: numbers of rows, and single ones that are the host's. */
enum {
    TARN__ATTENTION_LSE = TARN__ATTENTION_TENSORS,
    TARN__ATTENTION_DELTA,
    TARN__ATTENTION_SCALE,
    TARN__ATTENTION_MASKED,
    TARN__ATTENTION_ONE,
    TARN__ATTENTION_OPERANDS
};
#define TARN__ATTENTION_ID(which) ((int64_t)(which) + 1)

/* cudnn_attention_graph.c: the graph of one piece. */
bool tarn__cudnn_attention_describe(tarn__cudnn_graph *graph, void *handle, const tarn__cudnn_attention *a);

/* cudnn_attention_plan.c: the plan of a call on a device, made at first need, kept for good; NULL: see
 * tarn__cuda_failure(). */
tarn__cudnn_attention_plan *tarn__cudnn_attention_plan_of(int index, const tarn__cudnn_attention *a);
bool tarn__cudnn_attention_run(int index, tarn__cudnn_attention_plan *plan,
                               const tarn__cudnn_attention_operands *operands, cudaStream_t stream);

/* Runs all pieces by a plan of this attention. The handle is the caller's alone. */
bool tarn__cudnn_attention_try(void *handle, tarn__cudnn_attention_plan *of, tarn__cudnn_plan *plan,
                               const tarn__cudnn_attention_operands *operands);

/* cudnn_attention_tune.c: chooses one of the engines and makes its plan; false when none can, or none is as fast as our
 * own kernels. */
bool tarn__cudnn_attention_tune(int index, void *handle, tarn__cudnn_attention_plan *plan, tarn__cudnn_engine *engines,
                                int count);

/* cudnn_attention.c: a call by cuDNN. False when it is not there or does not do this one; else the scratch it takes is
 * told, and where `runs` is true it is done, or the device has failed. */
bool tarn__cudnn_attention_call(const tarn__call *call, bool is_backward, bool runs, size_t *bytes);

/* Bytes of slopes that a piece of a backward may have on this device. */
size_t tarn__cudnn_attention_budget(int index);

/* attention.cu, attention_grad.cu: a call by our own kernels. */
void tarn__cuda_attention_native(const tarn__call *call);
void tarn__cuda_attention_grad_native(const tarn__call *call);
size_t tarn__cuda_attention_grad_native_scratch(const tarn__call *call);

#ifdef __cplusplus
}
#endif
#endif
