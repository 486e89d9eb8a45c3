/* cudnn_attention.c: attention by cuDNN: which calls it takes, in which pieces, and the scratch they need.
 *
 * Tensors are used where they lie: heads of one packed tensor are no more than strides, and nothing is copied. Dropout,
 * lengths, f32, gradients of leaves (which are f32) and rows that are not 16 bytes aligned are our own kernels'.
 *
 * A backward that is the same in every run needs (B, H, T, S) of workspace (cudnn_attention_graph.c). So it is done for
 * as many batches at a time, or heads of one batch, as have room in a small share of the device's memory: what a call
 * takes stays linear in T. */
#include <string.h>

#include "backends/cuda/attention/cudnn_attention.h"
#include "backends/cuda/runtime/autotune.h"

#define MAX_DEVICES 64
#define SHARE 128 /* of the device's memory that a workspace may have */
#define MOST_ELEMENTS (INT64_C(1) << 31)

/* What is known of cuDNN's releases: attention of those before 9.10.2 is not to be trusted; up to 9.15.0 a backward is
 * wrong where the last tile of keys is not full; and only on devices of compute capability 9 is the graph that is used
 * here known to have a fixed order of sums. */
#define LEAST_VERSION 91002
#define LAST_OF_FULL_TILES 91500
#define TILE 128
#define BACKWARD_MAJOR 9
#define LEAST_ROWS 64 /* of a backward: fewer leave most of a tile empty */

/* Multiplications of a forward that no backward follows, from which a plan is worth making: compiling the candidates
 * for one size takes seconds, and an evaluation has two sizes. */
#define WORTH_PLANNING ((double)(INT64_C(1) << 33))

/* ---- what it takes ----------------------------------------------------------------------------------------------- */

/* Rows of 16-byte packs, one behind the other in memory without an element in two places. */
static bool lies_well(const tarn__view *v, tarn_dtype dtype)
{
    int64_t last = 0;
    bool fits = v && v->dtype == dtype && v->stride[3] == 1 && (uintptr_t)tarn__view_at(v) % TARN__CUDNN_ALIGNMENT == 0;
    for (int i = 0; fits && i < 3; i++) {
        fits = v->shape[i] == 1 || (v->stride[i] > 0 && v->stride[i] % 8 == 0);
        last += (v->shape[i] - 1) * v->stride[i];
    }
    return fits && last + v->shape[3] < MOST_ELEMENTS;
}

static bool is_dense(const tarn__view *logarithms)
{
    int64_t stride = 1;
    bool fits = logarithms && logarithms->dtype == TARN_F32;
    for (int i = 2; fits && i >= 0; i--) {
        fits = logarithms->shape[i] == 1 || logarithms->stride[i] == stride;
        stride *= logarithms->shape[i];
    }
    return fits;
}

/* Head sizes that cuDNN is fast with; enough work that a plan is worth making. Causal rows must stand at the first
 * keys. */
static bool is_for_library(const tarn__call *call, bool is_backward)
{
    const tarn__attention *params = call->params;
    const tarn__view *q = call->in[0], *k = call->in[1];
    int64_t rows = q->shape[2], keys = k->shape[2], depth = q->shape[3];
    double products = (double)q->shape[0] * (double)q->shape[1] * (double)rows * (double)keys * (double)depth;
    double least = is_backward || call->out[1] ? TARN__CUDA_TUNE_MIN_MULTIPLIES : WORTH_PLANNING;
    return (q->dtype == TARN_BF16 || q->dtype == TARN_F16) && !call->in[3] && params->random.a == 0 &&
           products >= least && depth % 8 == 0 && depth >= 32 && depth <= 128 &&
           (!params->causal || rows == keys || rows == 1);
}

/* Asked for once on each device. */
static struct device_facts {
    _Atomic size_t room;
    _Atomic int major; /* of the compute capability; 0: not known yet */
} facts[MAX_DEVICES];

static struct device_facts *facts_of(int index)
{
    struct cudaDeviceProp properties;
    if (facts[index].major == 0 && cudaGetDeviceProperties(&properties, index) == cudaSuccess) {
        facts[index].room = properties.totalGlobalMem / SHARE;
        facts[index].major = properties.major;
    }
    return &facts[index];
}

size_t tarn__cudnn_attention_budget(int index)
{
    return facts_of(index)->room;
}

static bool is_sound(const tarn__call *call, bool is_backward)
{
    size_t version = tarn__cudnn_open()->version();
    int64_t rows = call->in[0]->shape[2], keys = call->in[1]->shape[2];
    if (version < LEAST_VERSION || !is_backward)
        return version >= LEAST_VERSION;
    return facts_of(call->device)->major == BACKWARD_MAJOR && rows >= LEAST_ROWS &&
           (version > LAST_OF_FULL_TILES || keys % TILE == 0);
}

/* The tensors of a call, in the order of their enumeration. False when one is not there or does not lie as it must. */
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
        fits = lies_well(t[i], t[0]->dtype);
    const tarn__view *logarithms = is_backward ? call->in[5] : call->out[1];
    return fits && ((!is_backward && !logarithms) || is_dense(logarithms));
}

/* ---- describing -------------------------------------------------------------------------------------------------- */

/* The strides of a tensor; an axis of one element gets one that a tensor of this order could have. */
static void note_strides(const tarn__view *v, int64_t *stride)
{
    int64_t end = v->shape[3];
    for (int i = 2; i >= 0; i--) {
        stride[i] = v->shape[i] == 1 ? end : v->stride[i];
        end = v->shape[i] * stride[i] > end ? v->shape[i] * stride[i] : end;
    }
}

/* The size of the fewest pieces of one size that have at most `most` and cover all; the last may overlap the one before
 * it. */
static int64_t even_piece(int64_t all, int64_t most)
{
    int64_t pieces = most < 1 ? all : (all + most - 1) / most;
    return (all + pieces - 1) / pieces;
}

/* Pieces of one size, so that one plan does all. */
static void choose_pieces(tarn__cudnn_attention *a, int64_t room)
{
    a->piece_batches = a->batches, a->piece_kv_heads = a->kv_heads;
    if (!a->is_backward)
        return;
    int64_t group = a->heads / a->kv_heads, bytes = ((a->rows + 63) / 64 * 64) * ((a->keys + 127) / 128 * 128) * 2;
    a->piece_batches = even_piece(a->batches, room / (bytes * a->heads));
    if (bytes * a->heads > room)
        a->piece_kv_heads = even_piece(a->kv_heads, room / (bytes * group));
}

static tarn__cudnn_attention describe(const tarn__call *call, bool is_backward, const tarn__view *const *t)
{
    const tarn__attention *params = call->params;
    const tarn__view *q = t[TARN__ATTENTION_Q], *k = t[TARN__ATTENTION_K];
    tarn__cudnn_attention a;
    memset(&a, 0, sizeof(a));
    a.is_backward = is_backward;
    a.batches = q->shape[0], a.heads = q->shape[1], a.kv_heads = k->shape[1], a.rows = q->shape[2],
    a.keys = k->shape[2], a.depth = q->shape[3];
    a.causal = params->causal && a.rows > 1;
    a.dtype = q->dtype;
    a.scale = params->scale;
    for (int i = 0; i <= (is_backward ? TARN__ATTENTION_GV : TARN__ATTENTION_Y); i++)
        note_strides(t[i], a.stride[i]);
    choose_pieces(&a, (int64_t)tarn__cudnn_attention_budget(call->device));
    return a;
}

/* ---- the way ----------------------------------------------------------------------------------------------------- */

static size_t rounded(size_t bytes)
{
    return (bytes + 255) / 256 * 256;
}

/* Scratch: the workspace, then the numbers of rows that only cuDNN wants. */
static bool run(const tarn__call *call, tarn__cudnn_attention_plan *plan, const tarn__view *const *t)
{
    const tarn__cudnn_attention *a = &plan->attention;
    const tarn__view *logarithms = a->is_backward ? call->in[5] : call->out[1];
    float *behind = (float *)((uintptr_t)call->scratch + rounded(plan->plan.workspace));
    tarn__cudnn_attention_operands operands = {.logarithms = logarithms ? tarn__view_at(logarithms) : behind,
                                               .sums = behind,
                                               .workspace = plan->plan.workspace ? call->scratch : NULL};
    for (int i = 0; i <= (a->is_backward ? TARN__ATTENTION_GV : TARN__ATTENTION_Y); i++)
        operands.tensor[i] = tarn__view_at(t[i]);
    return tarn__cudnn_attention_run(call->device, plan, &operands, call->stream);
}

bool tarn__cudnn_attention_call(const tarn__call *call, bool is_backward, bool runs, size_t *bytes)
{
    const tarn__view *t[TARN__ATTENTION_TENSORS];
    *bytes = 0;
    if (!is_for_library(call, is_backward) || !find_tensors(call, is_backward, t) ||
        (!tarn__cudnn_open() && !tarn__cudnn_is_unusable()))
        return false;
    if (tarn__cudnn_open() && !is_sound(call, is_backward))
        return false;
    tarn__cudnn_attention a = describe(call, is_backward, t);
    tarn__cudnn_attention_plan *plan =
        tarn__cudnn_is_unusable() ? NULL : tarn__cudnn_attention_plan_of(call->device, &a);
    if (plan && plan->is_none)
        return false;
    if (plan)
        *bytes = rounded(plan->plan.workspace) +
                 (is_backward || !call->out[1] ? (size_t)(a.batches * a.heads * a.rows) * sizeof(float) : 0);
    if (runs && (!plan || !run(call, plan, t)))
        tarn__cuda_set_failed(call->device);
    return true;
}
