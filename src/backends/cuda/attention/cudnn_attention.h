/* cudnn_attention.h: attention as cuDNN sees it, and its plans. */
#ifndef TARN__CUDNN_ATTENTION_H
#define TARN__CUDNN_ATTENTION_H

#ifdef __cplusplus
extern "C" {
#endif
#include "backends/cuda/cudnn/cudnn.h"

/* 16-bit tensors: (B, H, T, D), those of keys and values (B, KV, S, D). Backward has all, forward the first four. */
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

/* Everything the choice of an engine depends on. A call runs in chunks of some batches, or of some heads of one batch.
 * Compared, and written to tuning files, as bytes: no padding. */
typedef struct tarn__cudnn_attention {
    int64_t is_backward, causal, dtype;
    int64_t batches, heads, kv_heads, rows, keys, head_dim; /* B, H, KV, T, S, D */
    int64_t chunk_batches, chunk_kv_heads;
    double scale;
    int64_t stride[TARN__ATTENTION_TENSORS][3]; /* of batches, heads and rows; elements of a row are adjacent */
} tarn__cudnn_attention;

/* Addresses of one call. */
typedef struct tarn__cudnn_attention_operands {
    void *tensor[TARN__ATTENTION_TENSORS];
    float *lse;   /* logsumexp (B, H, T), contiguous */
    float *delta; /* backward: space for Σ g · y of a chunk's rows */
    void *workspace;
} tarn__cudnn_attention_operands;

/* Owned by the plan cache. The scalars are host operands of the graph: their addresses must stay valid. */
typedef struct tarn__cudnn_attention_plan {
    tarn__cudnn_attention attention;
    bool use_native; /* cuDNN has no engine for it, or none as fast as our own kernels */
    float scale, masked, one;
    tarn__cudnn_graph graph;
    tarn__cudnn_plan plan;
    struct tarn__cudnn_attention_plan *next;
} tarn__cudnn_attention_plan;

/* Further operands of a graph: values per row, and host scalars. */
enum {
    TARN__ATTENTION_LSE = TARN__ATTENTION_TENSORS,
    TARN__ATTENTION_DELTA,
    TARN__ATTENTION_SCALE,
    TARN__ATTENTION_MASKED,
    TARN__ATTENTION_ONE,
    TARN__ATTENTION_OPERANDS
};
/* True for the tensors with KV heads and key rows. */
static inline bool tarn__attention_is_kv(int which)
{
    return which == TARN__ATTENTION_K || which == TARN__ATTENTION_V || which == TARN__ATTENTION_GK ||
           which == TARN__ATTENTION_GV;
}

#define TARN__ATTENTION_ID(which) ((int64_t)(which) + 1)

/* cudnn_attention_graph.c: builds the graph of one chunk. */
bool tarn__cudnn_attention_describe(tarn__cudnn_graph *graph, void *handle, const tarn__cudnn_attention *a);

/* cudnn_attention_plan.c: the plan of a call on a device, created on first use, borrowed from the cache. NULL: see
 * tarn__cuda_failure(). And the plan if it is cached already, else NULL. */
tarn__cudnn_attention_plan *tarn__cudnn_attention_plan_of(int index, const tarn__cudnn_attention *a);
tarn__cudnn_attention_plan *tarn__cudnn_attention_find_plan(int index, const tarn__cudnn_attention *a);
bool tarn__cudnn_attention_run(int index, tarn__cudnn_attention_plan *plan,
                               const tarn__cudnn_attention_operands *operands, cudaStream_t stream);

/* Runs all chunks with a plan of this attention. The caller holds the cuDNN lock. */
bool tarn__cudnn_attention_try(void *handle, tarn__cudnn_attention_plan *of, tarn__cudnn_plan *plan,
                               const tarn__cudnn_attention_operands *operands);

/* cudnn_attention_tune.c: selects an engine and builds its plan. False if none works, or none is as fast as our own
 * kernels. */
bool tarn__cudnn_attention_tune(int index, void *handle, tarn__cudnn_attention_plan *plan, tarn__cudnn_engine *engines,
                                int count);

/* cudnn_attention.c: the rows of cuDNN. They decline what it does not support reliably, and what our own kernels were
 * measured to do as fast. */
void tarn__cudnn_attention_push_rows(tarn__kernel_row *rows);

/* Bytes of dS that a chunk of a backward pass may use on this device. */
size_t tarn__cudnn_attention_budget(int index);

/* attention.cu, attention_grad.cu: a call by our own kernels, on tensor cores where they support it; needs no plan. And
 * the bytes of scratch of a backward pass. */
void tarn__cuda_attention_native(const tarn__call *call);
void tarn__cuda_attention_grad_native(const tarn__call *call);
size_t tarn__cuda_attention_grad_native_scratch(const tarn__call *call);

#ifdef __cplusplus
}
#endif
#endif
