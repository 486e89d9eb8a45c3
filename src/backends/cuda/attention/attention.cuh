/* attention.cuh: what the kernels of attention share: their operands, what a row attends to, dropout, and which block
 * does what.
 *
 * All of them work on tiles: a block has some rows of queries (or keys) and goes through tiles of keys (or queries), so
 * that memory is linear in the number of rows. Tiles that no row attends to are left out. Everything is summed in an
 * order given by shape alone. */
#ifndef TARN__ATTENTION_CUH
#define TARN__ATTENTION_CUH

#include "backends/cuda/common/element.cuh"
#include "backends/cuda/common/philox.cuh"

#define LOG2_E 1.4426950408889634
#define LN_2 0.69314718055994531

/* A tensor (B, heads, rows, D), or without D. */
struct cube {
    void *base; /* NULL: not there */
    tarn_dtype dtype;
    int64_t stride[4];
};

/* One head of it. */
struct slab {
    void *base;
    tarn_dtype dtype;
    int64_t row, along; /* strides */
};

struct attention_args {
    int64_t batches, heads, kv_heads, group, rows, keys, depth; /* B, H, KV, H / KV, T, S, D */
    double scale;
    bool is_causal, is_dropping;
    source random;
    uint32_t limit; /* of 16 bits: a weight whose number is below is dropped */
    float kept;     /* what the others are multiplied by */
    const void *lengths;
    bool are_long;
    int64_t length_stride;
    const void *starts; /* NULL: rows attend from the first key on */
    bool are_starts_long;
    int64_t start_stride[2]; /* of batches and rows */
    fault_place fault;
    cube q, k, v, y, log_sum, g, gq, gk, gv;
    void *rows_sums; /* backward: (B, H, T, 2) of f32 or f64: the logarithm to base 2 of a row's sum, and Σ g · y */
    /* backward of f32: (B, H, T): what weights made with that logarithm are multiplied by, so that they add up to 1 */
    float *factors;
    int64_t blocks, windows; /* blocks of rows (or keys) of a head; parts of D */
};

/* ---- on the host ------------------------------------------------------------------------------------------------- */

static inline cube cube_of(const tarn__view *view)
{
    cube c = {};
    if (!view)
        return c;
    c.base = tarn__view_at(view);
    c.dtype = view->dtype;
    for (int i = 0; i < view->rank; i++)
        c.stride[i] = view->stride[i];
    return c;
}

/* Where the rows begin: the last input, where a kernel takes it. */
static inline void take_starts(attention_args &a, const tarn__view *starts)
{
    a.starts = data_of<void>(starts);
    a.are_starts_long = starts->dtype == TARN_I64;
    a.start_stride[0] = starts->stride[0], a.start_stride[1] = starts->stride[1];
}

/* Inputs q, k, v, lengths and for the gradient y, logarithms, g; behind them starts. */
static inline attention_args attention_of(const tarn__call *call, bool is_backward)
{
    const tarn__attention *params = (const tarn__attention *)call->params;
    const tarn__view *q = call->in[0], *k = call->in[1], *lengths = call->in[3];
    attention_args a = {};
    a.batches = q->shape[0], a.heads = q->shape[1], a.kv_heads = k->shape[1], a.rows = q->shape[2],
    a.keys = k->shape[2], a.depth = q->shape[3];
    a.group = a.heads / a.kv_heads;
    a.scale = params->scale;
    a.is_causal = params->causal != 0;
    a.is_dropping = params->random.a > 0;
    a.random = source{params->random.seed, params->random.offset, params->random.live};
    a.limit = tarn__limit_16(params->random.a);
    a.kept = (float)(0x1p16 / (0x1p16 - a.limit));
    a.lengths = data_of<void>(lengths);
    a.are_long = lengths && lengths->dtype == TARN_I64;
    a.length_stride = lengths && lengths->rank > 0 && lengths->shape[0] > 1 ? lengths->stride[0] : 0;
    if (call->inputs == (is_backward ? 8 : 5))
        take_starts(a, call->in[call->inputs - 1]);
    a.q = cube_of(q), a.k = cube_of(k), a.v = cube_of(call->in[2]);
    a.y = cube_of(is_backward ? call->in[4] : call->out[0]);
    a.log_sum = cube_of(is_backward ? call->in[5] : call->out[1]);
    if (is_backward) {
        a.g = cube_of(call->in[6]);
        a.gq = cube_of(call->out[0]), a.gk = cube_of(call->out[1]), a.gv = cube_of(call->out[2]);
        a.rows_sums = call->scratch;
    } else {
        a.fault = faults_of(call);
    }
    return a;
}

/* attention_mma.cu, attention_mma_grad.cu: on tensor cores. False: not for these operands. */
bool tarn__cuda_attention_mma(const tarn__call *call, attention_args *a);
bool tarn__cuda_attention_mma_grad(const tarn__call *call, attention_args *a);

/* attention_mma_grad128_q.cu: the same for operands that attention_mma_grad.cu takes. False: not for this D, or not on
 * this device. */
bool tarn__cuda_attention_mma_grad128(const tarn__call *call, attention_args *a);

/* ---- on the device ----------------------------------------------------------------------------------------------- */

__device__ __forceinline__ slab slab_of(const cube &c, int64_t batch, int64_t head)
{
    int64_t bytes = c.dtype == TARN_F64 ? 8 : c.dtype == TARN_F32 ? 4 : 2;
    return slab{(char *)c.base + (batch * c.stride[0] + head * c.stride[1]) * bytes, c.dtype, c.stride[2], c.stride[3]};
}

/* Keys that are there; what is not a length counts as the nearest one, and forward reports it. */
__device__ __forceinline__ int64_t valid_keys(const attention_args &a, int64_t batch)
{
    if (!a.lengths)
        return a.keys;
    int64_t length = index_at(a.lengths, a.are_long, batch * a.length_stride);
    return length < 0 ? 0 : length > a.keys ? a.keys : length;
}

__device__ __forceinline__ void check_length(const attention_args &a, int64_t batch)
{
    int64_t length = a.lengths ? index_at(a.lengths, a.are_long, batch * a.length_stride) : 0;
    if (length < 0 || length > a.keys)
        report_fault(a.fault, length, a.keys);
}

/* How many keys a row attends to. */
__device__ __forceinline__ int64_t keys_of(const attention_args &a, int64_t valid, int64_t row)
{
    int64_t keys = a.is_causal ? valid - a.rows + row + 1 : valid;
    return keys < 0 ? 0 : keys > valid ? valid : keys;
}

/* The first row that attends to a key, at or behind which all do. */
__device__ __forceinline__ int64_t first_row_of(const attention_args &a, int64_t valid, int64_t key)
{
    int64_t row = a.is_causal ? key - (valid - a.rows) : 0;
    return key >= valid ? a.rows : row < 0 ? 0 : row;
}

/* Which of the 8 keys from `key`, a multiple of 8, are kept in a row: bit i for key i. `number` is the row's among
 * those of all heads and batches. */
__device__ __forceinline__ uint32_t kept_keys(const attention_args &a, const source &random, int64_t number,
                                              int64_t key)
{
    uint32_t word[4], kept = 0;
    philox(random, (uint64_t)number * (uint64_t)((a.keys + 7) / 8) + (uint64_t)key / 8, word);
#pragma unroll
    for (int i = 0; i < 8; i++)
        kept |= tarn__half_word(word[i / 2], i % 2) < a.limit ? 0u : 1u << i;
    return kept;
}

/* The same from any key, to the end of its 8. */
__device__ __forceinline__ uint32_t kept_from(const attention_args &a, int64_t head, int64_t row, int64_t key)
{
    return kept_keys(a, a.random, head * a.rows + row, key / 8 * 8) >> key % 8;
}

__device__ __forceinline__ float drop_factor(const attention_args &a, uint32_t kept, int i)
{
    return kept >> i & 1 ? a.kept : 0.0f;
}

__device__ __forceinline__ float exponential2(float x)
{
    return exp2f(x);
}
__device__ __forceinline__ double exponential2(double x)
{
    return exp2(x);
}
__device__ __forceinline__ float logarithm2(float x)
{
    return log2f(x);
}
__device__ __forceinline__ double logarithm2(double x)
{
    return log2(x);
}
__device__ __forceinline__ float larger(float x, float y)
{
    return fmaxf(x, y);
}
__device__ __forceinline__ double larger(double x, double y)
{
    return fmax(x, y);
}

/* What a block does: a window of D of one block of rows of one head. Of causal rows the last are the longest, and come
 * first. */
struct block_place {
    int64_t batch, head, block, window;
};

__device__ __forceinline__ block_place place_of(const attention_args &a, int64_t heads, bool last_first)
{
    int64_t at = blockIdx.x, head;
    block_place p;
    p.window = at % a.windows, at /= a.windows;
    head = at % (a.batches * heads), at /= a.batches * heads;
    p.batch = head / heads;
    p.head = head % heads;
    p.block = last_first ? a.blocks - 1 - at : at;
    return p;
}

#endif
