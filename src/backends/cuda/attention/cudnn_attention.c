/* cudnn_attention.c: attention by cuDNN: which calls it supports, in which chunks, and their scratch.
 *
 * Tensors are used in place: heads of a packed tensor are only strides. Dropout, key lengths, f32, f32 gradients of
 * leaves, and rows that are not 16-byte aligned go to our own kernels.
 *
 * A deterministic backward pass needs a (B, H, T, S) workspace (cudnn_attention_graph.c). It runs for as many batches,
 * or heads of one batch, as fit a small fraction of the device's memory: the memory of a call stays linear in T. */
#include <string.h>

#include "backends/cuda/attention/cudnn_attention.h"
#include "backends/cuda/runtime/autotune.h"

#define BUDGET_DIVISOR 128 /* fraction of the device's memory for a workspace: 1/128 */
#define MAX_ELEMENTS (INT64_C(1) << 31)

/* Known defects: attention before 9.10.2 is unreliable; up to 9.15.0 the backward pass is wrong if the last tile of
 * keys is not full; and only on compute capability 9 is this graph known to be deterministic. */
#define MIN_VERSION 91002
#define LAST_FULL_TILE_VERSION 91500
#define TILE 128
#define BACKWARD_MAJOR 9
#define MIN_ROWS 64 /* backward: fewer leave most of a tile empty */

/* Smallest inference forward worth a plan: compiling the candidates takes seconds per shape, and an evaluation has two
 * shapes. */
#define MIN_FORWARD_MULTIPLIES ((double)(INT64_C(1) << 33))

/* ---- supported calls --------------------------------------------------------------------------------------------- */

/* Rows of 16-byte vectors, no element stored twice, offsets below 2^31. */
static bool has_supported_layout(const tarn__view *v, tarn_dtype dtype)
{
    int64_t last = 0;
    bool fits = v && v->dtype == dtype && v->stride[3] == 1 && (uintptr_t)tarn__view_at(v) % TARN__CUDNN_ALIGNMENT == 0;
    for (int i = 0; fits && i < 3; i++) {
        fits = v->shape[i] == 1 || (v->stride[i] > 0 && v->stride[i] % 8 == 0);
        last += (v->shape[i] - 1) * v->stride[i];
    }
    return fits && last + v->shape[3] < MAX_ELEMENTS;
}

/* The LSE must be contiguous f32: a chunk is an offset into it. */
static bool is_dense(const tarn__view *lse)
{
    int64_t stride = 1;
    bool fits = lse && lse->dtype == TARN_F32;
    for (int i = 2; fits && i >= 0; i--) {
        fits = lse->shape[i] == 1 || lse->stride[i] == stride;
        stride *= lse->shape[i];
    }
    return fits;
}

/* Head sizes that cuDNN is fast with, and enough work for a plan. Causal masks must be aligned to the first key. */
static bool is_supported(const tarn__call *call, bool is_backward)
{
    const tarn__attention *params = call->params;
    const tarn__view *q = call->in[0], *k = call->in[1];
    int64_t rows = q->shape[2], keys = k->shape[2], head_dim = q->shape[3];
    double multiplies = (double)q->shape[0] * (double)q->shape[1] * (double)rows * (double)keys * (double)head_dim;
    double min_multiplies = is_backward || call->out[1] ? TARN__CUDA_TUNE_MIN_MULTIPLIES : MIN_FORWARD_MULTIPLIES;
    return (q->dtype == TARN_BF16 || q->dtype == TARN_F16) && !call->in[3] && params->random.a == 0 &&
           params->window == 0 && params->softcap == 0 && multiplies >= min_multiplies && head_dim % 8 == 0 &&
           head_dim >= 32 && head_dim <= 128 && (!params->causal || rows == keys || rows == 1);
}

/* Queried once per device. */
static struct device_limits {
    _Atomic size_t budget;
    _Atomic int major; /* compute capability; 0: not queried yet */
} limits[TARN__CUDA_MAX_DEVICES];

/* Budget and compute capability of a device; racing first calls store the same values. */
static struct device_limits *limits_of(int index)
{
    struct cudaDeviceProp properties;
    if (limits[index].major == 0 && cudaGetDeviceProperties(&properties, index) == cudaSuccess) {
        limits[index].budget = properties.totalGlobalMem / BUDGET_DIVISOR;
        limits[index].major = properties.major;
    }
    return &limits[index];
}

size_t tarn__cudnn_attention_budget(int index)
{
    return limits_of(index)->budget;
}

/* Excludes the versions and shapes with known defects, listed above. */
static bool is_reliable(const tarn__call *call, bool is_backward)
{
    size_t version = tarn__cudnn_open()->version();
    int64_t rows = call->in[0]->shape[2], keys = call->in[1]->shape[2];
    if (version < MIN_VERSION || !is_backward)
        return version >= MIN_VERSION;
    return limits_of(call->device)->major == BACKWARD_MAJOR && rows >= MIN_ROWS &&
           (version > LAST_FULL_TILE_VERSION || keys % TILE == 0);
}

/* The tensors of a call, in enumeration order. False if one is missing or has an unsupported layout. */
static bool find_tensors(const tarn__call *call, bool is_backward, const tarn__view **t)
{
    bool fits = true;
    for (int i = 0; i < 3; i++)
        t[TARN__ATTENTION_Q + i] = call->in[i];
    t[TARN__ATTENTION_Y] = is_backward ? call->in[4] : call->out[0];
    if (is_backward) {
        t[TARN__ATTENTION_G] = call->in[6];
        for (int i = 0; i < 3; i++)
            t[TARN__ATTENTION_GQ + i] = call->out[i];
    }
    for (int i = 0; fits && i <= (is_backward ? TARN__ATTENTION_GV : TARN__ATTENTION_Y); i++)
        fits = has_supported_layout(t[i], t[0]->dtype);
    const tarn__view *lse = is_backward ? call->in[5] : call->out[1];
    return fits && ((!is_backward && !lse) || is_dense(lse));
}

/* ---- describing -------------------------------------------------------------------------------------------------- */

/* Strides of a tensor; an axis of size 1 gets a stride that this order could have, so that equal layouts have equal
 * keys. */
static void fill_strides(const tarn__view *v, int64_t *stride)
{
    int64_t end = v->shape[3];
    for (int i = 2; i >= 0; i--) {
        stride[i] = v->shape[i] == 1 ? end : v->stride[i];
        end = v->shape[i] * stride[i] > end ? v->shape[i] * stride[i] : end;
    }
}

/* Size of the fewest equal chunks of at most `limit` that cover all; the last may overlap the one before it. */
static int64_t even_chunk(int64_t all, int64_t limit)
{
    int64_t chunks = limit < 1 ? all : (all + limit - 1) / limit;
    return (all + chunks - 1) / chunks;
}

/* Elements of dS per head: rows and keys in whole tiles. */
static int64_t padded_pairs(const tarn__cudnn_attention *a)
{
    return ((a->rows + 63) / 64 * 64) * ((a->keys + 127) / 128 * 128);
}

/* Chunks of one size, so that one plan does all of them. */
static void choose_chunks(tarn__cudnn_attention *a, int64_t budget)
{
    a->chunk_batches = a->batches, a->chunk_kv_heads = a->kv_heads;
    if (!a->is_backward)
        return;
    int64_t group = a->heads / a->kv_heads, bytes = padded_pairs(a) * 2;
    a->chunk_batches = even_chunk(a->batches, budget / (bytes * a->heads));
    if (bytes * a->heads > budget)
        a->chunk_kv_heads = even_chunk(a->kv_heads, budget / (bytes * group));
}

/* The plan's key. memset first: it is compared as bytes. */
static tarn__cudnn_attention describe(const tarn__call *call, bool is_backward, const tarn__view *const *t)
{
    const tarn__attention *params = call->params;
    const tarn__view *q = t[TARN__ATTENTION_Q], *k = t[TARN__ATTENTION_K];
    tarn__cudnn_attention a;
    memset(&a, 0, sizeof(a));
    a.is_backward = is_backward;
    a.batches = q->shape[0], a.heads = q->shape[1], a.kv_heads = k->shape[1], a.rows = q->shape[2],
    a.keys = k->shape[2], a.head_dim = q->shape[3];
    a.causal = params->causal && a.rows > 1;
    a.dtype = q->dtype;
    a.scale = params->scale;
    for (int i = 0; i <= (is_backward ? TARN__ATTENTION_GV : TARN__ATTENTION_Y); i++)
        fill_strides(t[i], a.stride[i]);
    choose_chunks(&a, (int64_t)tarn__cudnn_attention_budget(call->device));
    return a;
}

/* ---- rows -------------------------------------------------------------------------------------------------------- */

/* cuDNN is installed, or was asked for: then it must run. */
static bool fits(const tarn__call *call, bool is_backward)
{
    const tarn__view *t[TARN__ATTENTION_TENSORS];
    return is_supported(call, is_backward) && find_tensors(call, is_backward, t) &&
           (tarn__cudnn_open() ? is_reliable(call, is_backward) : tarn__cudnn_is_unusable());
}

/* Per-row values that only cuDNN needs: the LSE where the caller wants none, delta. */
static size_t row_bytes(const tarn__call *call, const tarn__cudnn_attention *a)
{
    return a->is_backward || !call->out[1] ? (size_t)(a->batches * a->heads * a->rows) * sizeof(float) : 0;
}

/* dS of a chunk, which is nearly all of a backward pass's workspace. */
static size_t estimate_workspace(const tarn__cudnn_attention *a)
{
    int64_t heads = a->chunk_kv_heads * (a->heads / a->kv_heads);
    return a->is_backward ? (size_t)(a->chunk_batches * heads * padded_pairs(a) * 2) : 0;
}

/* plan->shared is the tarn__cudnn_attention_plan. Scratch: its workspace, then values per row. On a meta device a plan
 * that is not cached yet is estimated, and the larger need of cuDNN and our own kernels is counted. */
static tarn__plan_status prepare(const tarn__call *call, tarn__plan *plan, bool is_backward)
{
    const tarn__view *t[TARN__ATTENTION_TENSORS];
    if (tarn__cudnn_is_unusable())
        return TARN__PLAN_FAILED;
    find_tensors(call, is_backward, t);
    tarn__cudnn_attention a = describe(call, is_backward, t);
    const tarn__cudnn_attention_plan *found = call->is_meta ? tarn__cudnn_attention_find_plan(call->device, &a)
                                                            : tarn__cudnn_attention_plan_of(call->device, &a);
    if (!found && !call->is_meta)
        return TARN__PLAN_FAILED;
    if (found && found->use_native)
        return TARN__PLAN_DECLINED;
    plan->shared = found;
    plan->scratch_bytes =
        tarn__cuda_align(found ? found->plan.workspace : estimate_workspace(&a)) + row_bytes(call, &a);
    size_t native = is_backward ? tarn__cuda_attention_grad_native_scratch(call) : 0;
    if (!found && native > plan->scratch_bytes)
        plan->scratch_bytes = native;
    return TARN__PLAN_READY;
}

static void run(const tarn__call *call, bool is_backward)
{
    const tarn__view *t[TARN__ATTENTION_TENSORS], *lse = is_backward ? call->in[5] : call->out[1];
    /* its variant pack changes */
    tarn__cudnn_attention_plan *plan = (tarn__cudnn_attention_plan *)(uintptr_t)call->plan->shared;
    float *after = (float *)((uintptr_t)call->scratch + tarn__cuda_align(plan->plan.workspace));
    tarn__cudnn_attention_operands operands = {.lse = lse ? tarn__view_at(lse) : after,
                                               .delta = after,
                                               .workspace = plan->plan.workspace ? call->scratch : NULL};
    find_tensors(call, is_backward, t);
    for (int i = 0; i <= (is_backward ? TARN__ATTENTION_GV : TARN__ATTENTION_Y); i++)
        operands.tensor[i] = tarn__view_at(t[i]);
    if (!tarn__cudnn_attention_run(call->device, plan, &operands, call->stream))
        tarn__cuda_set_failed(call->device);
}

#define ROW(name, is_backward) \
    static bool fits_##name(const tarn__call *call) \
    { \
        return fits(call, is_backward); \
    } \
    static tarn__plan_status prepare_##name(const tarn__call *call, tarn__plan *plan) \
    { \
        return prepare(call, plan, is_backward); \
    } \
    static void kernel_##name(const tarn__call *call) \
    { \
        run(call, is_backward); \
    }
ROW(attention, false)
ROW(attention_grad, true)

/* Not for document starts: cuDNN's graph has no such mask. */
void tarn__cudnn_attention_push_rows(tarn__kernel_row *rows)
{
    static tarn__kernel_row next, next_grad;
    uint32_t dtypes = TARN__BIT(TARN_BF16) | TARN__BIT(TARN_F16);
    tarn__kernel_row row =
                         tarn__row_fits(tarn__row_planned(prepare_attention, kernel_attention, dtypes), fits_attention),
                     grad = tarn__row_fits(tarn__row_planned(prepare_attention_grad, kernel_attention_grad, dtypes),
                                           fits_attention_grad);
    tarn__push_row(rows, TARN__K_attention, tarn__row_named(row, "cudnn"), &next);
    tarn__push_row(rows, TARN__K_attention_grad, tarn__row_named(grad, "cudnn"), &next_grad);
}
