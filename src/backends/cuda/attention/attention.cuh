/* attention.cuh: shared by the attention kernels: operands, masks, dropout, and the work of each thread block.
 *
 * All kernels are tiled: a block owns some rows of queries (or keys) and walks tiles of keys (or queries), so memory is
 * linear in the number of rows. Tiles without a visible weight are skipped. Sums run in an order fixed by the shape. */
#ifndef TARN__CUDA_ATTENTION_CUH
#define TARN__CUDA_ATTENTION_CUH

#include "backends/cuda/common/element.cuh"
#include "backends/cuda/common/philox.cuh"

#define LOG2_E 1.4426950408889634
#define LN_2 0.69314718055994531

/* A tensor (B, heads, rows, D), or without D; any strides. */
struct bhtd_tensor {
    void *base; /* NULL: none */
    tarn_dtype dtype;
    int64_t stride[4];
};

/* One head of it: (rows, D). */
struct head_matrix {
    void *base;
    tarn_dtype dtype;
    int64_t row, column; /* strides, in elements */
};

/* Arguments of all attention kernels, passed by value. Operands that a pass does not use have a NULL base. */
struct attention_args {
    int64_t batches, heads, kv_heads, group, rows, keys, head_dim; /* B, H, KV, H / KV, T, S, D */
    double scale;
    bool is_causal, is_dropping;
    source random;
    uint32_t limit;   /* 16-bit threshold: a weight whose random number is below it is dropped */
    float keep_scale; /* scale of the weights that are kept */
    const void *lengths;
    bool are_lengths_i64;
    int64_t length_stride;
    const void *document_starts; /* NULL: rows attend from the first key on */
    bool are_starts_i64;
    int64_t start_stride[2]; /* of batches and rows */
    fault_slot fault;
    bhtd_tensor q, k, v, y, lse, g, gq, gk, gv;
    void *row_stats; /* backward: (B, H, T, 2) of f32 or f64: a row's logsumexp to base 2, and delta = Σ g · y */
    /* f32 backward: (B, H, T): normalizes weights recomputed from the LSE, so that they add up to 1 */
    float *row_factors;
    int64_t blocks, d_windows; /* blocks of rows (or keys) per head; windows of D */
    int64_t window;            /* sliding window, for tarn__cuda_attention_window_starts(); 0: none */
    double cap;                /* soft cap · log2(e); 0: none */
    void *keep_masks;          /* backward with wgmma: dropout masks as bits */
};

/* ---- host -------------------------------------------------------------------------------------------------------- */

/* A view as kernel argument; an all-zero tensor for no view. */
static inline bhtd_tensor bhtd_of(const tarn__view *view)
{
    bhtd_tensor c = {};
    if (!view)
        return c;
    c.base = tarn__view_at(view);
    c.dtype = view->dtype;
    for (int i = 0; i < view->rank; i++)
        c.stride[i] = view->stride[i];
    return c;
}

/* Document starts: the last input of the kernels that take them. */
static inline void set_document_starts(attention_args &a, const tarn__view *document_starts)
{
    a.document_starts = data_of<void>(document_starts);
    a.are_starts_i64 = document_starts->dtype == TARN_I64;
    a.start_stride[0] = document_starts->stride[0], a.start_stride[1] = document_starts->stride[1];
}

/* Scratch of the starts that stand for a sliding window: (B, T), i64. */
static inline size_t window_starts_bytes(const tarn__call *call)
{
    const int64_t *q = call->in[0]->shape;
    return ((const tarn__attention *)call->params)->window > 0 ? (size_t)(q[0] * q[2]) * sizeof(int64_t) : 0;
}

static inline bool has_softcap(const tarn__call *call)
{
    return ((const tarn__attention *)call->params)->softcap > 0;
}

/* Inputs q, k, v, lengths; the gradient's also y, LSE, g; then document starts. Missing operands are NULL. */
static inline attention_args attention_of(const tarn__call *call, bool is_backward)
{
    const tarn__attention *params = (const tarn__attention *)call->params;
    const tarn__view *q = call->in[0], *k = call->in[1], *lengths = call->in[3];
    attention_args a = {};
    a.batches = q->shape[0], a.heads = q->shape[1], a.kv_heads = k->shape[1], a.rows = q->shape[2],
    a.keys = k->shape[2], a.head_dim = q->shape[3];
    a.group = a.heads / a.kv_heads;
    a.scale = params->scale;
    a.window = params->window, a.cap = params->softcap * LOG2_E;
    a.is_causal = params->causal != 0;
    a.is_dropping = params->random.a > 0;
    a.random = source{params->random.seed, params->random.offset, params->random.live};
    a.limit = tarn__limit_16(params->random.a);
    a.keep_scale = (float)(0x1p16 / (0x1p16 - a.limit));
    a.lengths = data_of<void>(lengths);
    a.are_lengths_i64 = lengths && lengths->dtype == TARN_I64;
    a.length_stride = lengths && lengths->rank > 0 && lengths->shape[0] > 1 ? lengths->stride[0] : 0;
    if (call->inputs == (is_backward ? 8 : 5))
        set_document_starts(a, call->in[call->inputs - 1]);
    a.q = bhtd_of(q), a.k = bhtd_of(k), a.v = bhtd_of(call->in[2]);
    a.y = bhtd_of(is_backward ? call->in[4] : call->out[0]);
    a.lse = bhtd_of(is_backward ? call->in[5] : call->out[1]);
    if (is_backward) {
        a.g = bhtd_of(call->in[6]);
        a.gq = bhtd_of(call->out[0]), a.gk = bhtd_of(call->out[1]), a.gv = bhtd_of(call->out[2]);
        a.row_stats = call->scratch;
    } else {
        a.fault = faults_of(call);
    }
    return a;
}

/* attention_mma.cu, attention_mma_grad.cu: on tensor cores, calls whose operands fit. False: the device has too little
 * shared memory. */
bool tarn__cuda_attention_mma_fits(const tarn__call *call);
bool tarn__cuda_attention_mma(const tarn__call *call, attention_args *a);
bool tarn__cuda_attention_mma_grad_fits(const tarn__call *call);
bool tarn__cuda_attention_mma_grad(const tarn__call *call, attention_args *a);

/* attention_wgmma_grad.cu: some of the gradients of attention_mma_grad.cu on compute capability 9.0. It includes delta,
 * but for calls that need no gq. */
bool tarn__cuda_attention_wgmma_grad_fits(const tarn__call *call);
bool tarn__cuda_attention_wgmma_grad(const tarn__call *call, const attention_args *a);
size_t tarn__cuda_attention_wgmma_grad_mask_bytes(const tarn__call *call); /* of keep_masks; 0 without dropout */

/* attention_tf32.cu: the same for f32 tensors in TF32. The gradient includes delta. */
bool tarn__cuda_attention_tf32_fits(const tarn__call *call);
bool tarn__cuda_attention_tf32(const tarn__call *call, attention_args *a);
bool tarn__cuda_attention_tf32_grad_fits(const tarn__call *call);
bool tarn__cuda_attention_tf32_grad(const tarn__call *call, attention_args *a);

/* attention.cu: a sliding window as document starts, so that one mask and one way to skip tiles serve both: writes the
 * later of a row's window and document start to scratch, from byte `offset` on, a multiple of 8. Nothing without a
 * window. */
void tarn__cuda_attention_window_starts(const tarn__call *call, attention_args *a, size_t offset);

/* attention_f32.cu, attention_f32_grad.cu: f32 without tensor cores, calls whose operands fit. False: the device has
 * too little shared memory. And the bytes of scratch of a backward pass. */
#define F32_MAX_DEPTH 256
bool tarn__cuda_attention_f32_fits(const tarn__call *call);
bool tarn__cuda_attention_f32(const tarn__call *call, attention_args *a);
bool tarn__cuda_attention_f32_grad_fits(const tarn__call *call);
bool tarn__cuda_attention_f32_grad(const tarn__call *call, const attention_args *a);
size_t tarn__cuda_attention_f32_grad_scratch(const tarn__call *call);

/* attention_grad.cu: a backward pass on tensor cores, in 16 bits or TF32, in f32 tiles, or by SIMT kernels. */
void tarn__cuda_attention_grad_wgmma(const tarn__call *call);
void tarn__cuda_attention_grad_mma(const tarn__call *call);
void tarn__cuda_attention_grad_tf32(const tarn__call *call);
void tarn__cuda_attention_grad_f32(const tarn__call *call);
void tarn__cuda_attention_grad_simt(const tarn__call *call);

/* attention_mma_grad128_q.cu: faster, for some of the operands of attention_mma_grad.cu. False: D or device not
 * supported. */
bool tarn__cuda_attention_mma_grad128(const tarn__call *call, attention_args *a);

/* ---- device ------------------------------------------------------------------------------------------------------ */

/* One head of one batch. */
__device__ __forceinline__ head_matrix head_of(const bhtd_tensor &c, int64_t batch, int64_t head)
{
    int64_t bytes = c.dtype == TARN_F64 ? 8 : c.dtype == TARN_F32 ? 4 : 2;
    return head_matrix{(char *)c.base + (batch * c.stride[0] + head * c.stride[1]) * bytes, c.dtype, c.stride[2],
                       c.stride[3]};
}

#define MASK_FN __device__ __forceinline__
#define MASK_ARGS const attention_args &a
#define MASK_CAUSAL a.is_causal
#define MASK_ROWS a.rows
#define MASK_KEYS a.keys
#define MASK_WINDOW a.window
#include "base/kernel/attention_mask.inc"

/* Number of valid keys. A length out of range is clamped; the forward pass reports it. */
__device__ __forceinline__ int64_t valid_keys(const attention_args &a, int64_t batch)
{
    if (!a.lengths)
        return a.keys;
    int64_t length = index_at(a.lengths, a.are_lengths_i64, batch * a.length_stride);
    return clamp_to_keys(a, length);
}

/* Reports a length outside 0 … keys; called by one thread per batch. */
__device__ __forceinline__ void check_length(const attention_args &a, int64_t batch)
{
    int64_t length = a.lengths ? index_at(a.lengths, a.are_lengths_i64, batch * a.length_stride) : 0;
    if (!is_within_keys(a, length))
        report_fault(a.fault, length, a.keys);
}

/* Bit i is set if the i-th 16 random bits of a counter reach the limit, compared in the upper half of a word. */
__device__ __forceinline__ uint32_t keep_bits(const source &random, uint64_t counter, uint32_t limit)
{
    uint32_t word[4], mask = 0;
    philox(random, counter, word);
#pragma unroll
    for (int i = 0; i < 8; i++)
        mask |= (i % 2 ? word[i / 2] : word[i / 2] << 16) < limit << 16 ? 0u : 1u << i;
    return mask;
}

/* Dropout of 8 keys from `key`, a multiple of 8: bit i is set if key i is kept. row_index: index of the row over all
 * heads and batches. The mask depends on it and the key alone, so backward draws the same. */
__device__ __forceinline__ uint32_t keep_mask8(const attention_args &a, const source &random, int64_t row_index,
                                               int64_t key)
{
    return keep_bits(random, (uint64_t)row_index * (uint64_t)((a.keys + 7) / 8) + (uint64_t)key / 8, a.limit);
}

/* The same from any key, to the end of its 8. */
__device__ __forceinline__ uint32_t keep_mask_from(const attention_args &a, int64_t head, int64_t row, int64_t key)
{
    return keep_mask8(a, a.random, head * a.rows + row, key / 8 * 8) >> key % 8;
}

/* Factor of bit i of a keep mask: 0, or the scale that keeps the expectation. */
__device__ __forceinline__ float drop_factor(const attention_args &a, uint32_t mask, int i)
{
    return mask >> i & 1 ? a.keep_scale : 0.0f;
}

__device__ __forceinline__ float exp2_of(float x)
{
    return exp2f(x);
}
__device__ __forceinline__ double exp2_of(double x)
{
    return exp2(x);
}
__device__ __forceinline__ float tanh_of(float x)
{
    return tanhf(x);
}
__device__ __forceinline__ double tanh_of(double x)
{
    return tanh(x);
}
__device__ __forceinline__ float log2_of(float x)
{
    return log2f(x);
}
__device__ __forceinline__ double log2_of(double x)
{
    return log2(x);
}
__device__ __forceinline__ float max_of(float x, float y)
{
    return fmaxf(x, y);
}
__device__ __forceinline__ double max_of(double x, double y)
{
    return fmax(x, y);
}

/* The work of a block: one window of D of one block of rows of one head. For causal masks the last rows have the most
 * keys and are scheduled first. */
struct block_pos {
    int64_t batch, head, block, d_window;
};

/* The d_window varies fastest, then the heads of all batches, then the blocks of rows. */
__device__ __forceinline__ block_pos block_pos_of(const attention_args &a, int64_t heads, bool last_first)
{
    int64_t at = blockIdx.x, head;
    block_pos p;
    p.d_window = at % a.d_windows, at /= a.d_windows;
    head = at % (a.batches * heads), at /= a.batches * heads;
    p.batch = head / heads;
    p.head = head % heads;
    p.block = last_first ? a.blocks - 1 - at : at;
    return p;
}

#endif
