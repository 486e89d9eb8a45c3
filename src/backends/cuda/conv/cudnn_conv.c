/* cudnn_conv.c: convolutions by cuDNN or our wgrad kernel: brings operands into the algorithm's layout and finishes the
 * result.
 *
 * Images in the algorithm's layout are used in place; others (slices, flips) are copied to scratch first. For NHWC the
 * weight is converted too, and its gradient back: both are small. A result that is accumulated onto, or laid out
 * differently, is computed in scratch.
 *
 * cuDNN has no engine from 16-bit operands to f32 sums, which gradients of leaves are. 16-bit values are exact in TF32,
 * so operands are widened in scratch and multiplied in TF32: f32 sums of the same products. The same serves any other
 * 16-bit case that cuDNN lacks. */
#include <string.h>

#include "backends/cuda/conv/cudnn_conv.h"
#include "backends/cuda/conv/im2col.h"

#define MAX_ELEMENTS (INT64_C(1) << 31)

/* An operand: in place, or copied to scratch. */
typedef struct operand {
    bool is_copy;
    size_t at; /* offset in scratch */
} operand;

/* A described call; plan->shared is its tarn__conv_algo. */
typedef struct job {
    operand x, w, y, bias;
    size_t partials; /* our own kernel: offset of its partial sums */
} job;

/* ---- describing -------------------------------------------------------------------------------------------------- */

/* The request's key; memset first: it is compared as bytes. One-channel images count as the other tensor's layout. */
static tarn__cudnn_conv describe(const tarn__call *call, int what, const tarn__view *x, const tarn__view *w,
                                 const tarn__view *y)
{
    const tarn__conv2d *params = call->params;
    tarn__cudnn_conv v;
    memset(&v, 0, sizeof(v));
    v.what = what;
    v.images = x->shape[0], v.in = x->shape[1], v.out = y->shape[1], v.groups = params->groups;
    for (int i = 0; i < 2; i++) {
        v.size[i] = x->shape[2 + i], v.result[i] = y->shape[2 + i], v.kernel[i] = w->shape[2 + i];
        v.stride[i] = params->stride[i], v.padding[i] = params->padding[i], v.dilation[i] = params->dilation[i];
    }
    v.in_dtype = call->in[0]->dtype, v.out_dtype = call->out[0]->dtype;
    v.channels_last = tarn__conv_is_nhwc(x) || (x->shape[1] == 1 && tarn__conv_is_nhwc(y));
    v.tf32 = params->tf32 && v.in_dtype == TARN_F32;
    return v;
}

/* Limits of cuDNN and our kernel: f32 and 16-bit floats, not empty, indices of 32 bits. */
static bool is_supported(const tarn__call *call)
{
    const tarn__conv2d *params = call->params;
    tarn_dtype in = call->in[0]->dtype, out = call->out[0]->dtype;
    if ((in != TARN_F32 && in != TARN_BF16 && in != TARN_F16) || call->in[1]->dtype != in ||
        (out != in && out != TARN_F32))
        return false;
    const tarn__view *views[] = {call->in[0], call->in[1], call->out[0]};
    for (int i = 0; i < 3; i++)
        if (tarn__view_count(views[i]) == 0 || tarn__view_count(views[i]) >= MAX_ELEMENTS)
            return false;
    return params->beta == 0 || params->beta == 1;
}

/* ---- operands ---------------------------------------------------------------------------------------------------- */

/* The tensors of an algorithm, as cuDNN sees them. */
typedef struct tensors {
    tarn__cudnn_tensor x, w, y, bias;
} tensors;

static tensors tensors_of(const tarn__conv_algo *algo)
{
    tarn__cudnn_conv v = algo->requested;
    if (algo->plan)
        v = algo->plan->conv;
    else
        v.channels_last = 1; /* our own kernel */
    return (tensors){.x = tarn__cudnn_conv_x(&v),
                     .w = tarn__cudnn_conv_w(&v),
                     .y = tarn__cudnn_conv_y(&v),
                     .bias = {.dtype = (tarn_dtype)v.in_dtype, .rank = 1, .shape = {v.out}, .stride = {1}}};
}

/* Scratch, 256-byte aligned. */
static size_t alloc(tarn__plan *plan, size_t bytes)
{
    size_t at = plan->scratch_bytes;
    plan->scratch_bytes += tarn__cuda_align(bytes);
    return at;
}

/* True if the view has the tensor's strides (any for axes of size 1), dtype and alignment. */
static bool has_layout(const tarn__view *v, const tarn__cudnn_tensor *t)
{
    for (int i = 0; i < v->rank; i++)
        if (v->shape[i] > 1 && v->stride[i] != t->stride[i])
            return false;
    return v->dtype == t->dtype && (uintptr_t)tarn__view_at(v) % TARN__CUDNN_ALIGNMENT == 0;
}

static operand copy_of(tarn__plan *plan, const tarn__view *v, const tarn__cudnn_tensor *t)
{
    return (operand){true, alloc(plan, (size_t)tarn__view_count(v) * tarn__dtype_bytes(t->dtype))};
}

/* In place, or scratch instead. */
static operand operand_of(tarn__plan *plan, const tarn__view *v, const tarn__cudnn_tensor *t)
{
    return has_layout(v, t) ? (operand){0} : copy_of(plan, v, t);
}

static tarn__view view_of(const tarn__call *call, const operand *o, const tarn__view *v, const tarn__cudnn_tensor *t)
{
    return o->is_copy ? tarn__cudnn_view(t, (char *)call->scratch + o->at) : *v;
}

/* a + b, or a copy of a without b. */
static void add_or_copy(const tarn__call *call, const tarn__view *a, const tarn__view *b, const tarn__view *to)
{
    tarn__fill fill = {0};
    tarn__elementwise none = {0};
    tarn__call part = {.inputs = b ? 2 : 1,
                       .outputs = 1,
                       .in = {a, b},
                       .out = {to},
                       .device = call->device,
                       .stream = call->stream,
                       .function = call->function,
                       .fault = call->fault,
                       .params = b ? (const void *)&none : (const void *)&fill,
                       .params_bytes = b ? sizeof(none) : sizeof(fill)};
    tarn__cuda_rows()[b ? TARN__K_add : TARN__K_copy].run(&part);
}

/* view_of(), with the values. */
static tarn__view filled(const tarn__call *call, const operand *o, const tarn__view *v, const tarn__cudnn_tensor *t)
{
    tarn__view view = view_of(call, o, v, t);
    if (o->is_copy)
        add_or_copy(call, v, NULL, &view);
    return view;
}

/* cuDNN's workspace is the start of the scratch. */
static bool run_library(const tarn__call *call, const tarn__conv_algo *algo, const tarn__view *x, const tarn__view *w,
                        const tarn__view *y, const tarn__view *bias)
{
    tarn__cudnn_conv_plan *plan = algo->plan;
    tarn__cudnn_conv_operands operands = {.x = tarn__view_at(x),
                                          .w = tarn__view_at(w),
                                          .y = tarn__view_at(y),
                                          .bias = bias ? tarn__view_at(bias) : NULL,
                                          .workspace = plan->plan.workspace ? call->scratch : NULL};
    bool is_ok = tarn__cudnn_conv_run(call->device, plan, &operands, call->stream);
    if (!is_ok)
        tarn__cuda_set_failed(call->device);
    return is_ok;
}

/* ---- forward, dgrad, wgrad --------------------------------------------------------------------------------------- */

static void describe_forward(job *j, const tarn__call *call, const tarn__conv_algo *algo, tarn__plan *plan)
{
    tensors t = tensors_of(algo);
    j->x = operand_of(plan, call->in[0], &t.x);
    j->w = operand_of(plan, call->in[1], &t.w);
    j->y = operand_of(plan, call->out[0], &t.y);
    if (algo->plan->conv.adds_bias)
        j->bias = operand_of(plan, call->in[2], &t.bias);
}

/* The bias broadcast to the shape of y. */
static tarn__view broadcast_bias(const tarn__view *bias, const tarn__view *y)
{
    tarn__view v = *y;
    v.memory = bias->memory, v.offset = bias->offset, v.dtype = bias->dtype;
    for (int i = 0; i < 4; i++)
        v.stride[i] = i == 1 ? bias->stride[0] : 0;
    return v;
}

/* A bias outside the graph is added in the final copy. */
static void forward(const job *j, const tarn__call *call, const tarn__conv_algo *algo)
{
    const tarn__view *bias = call->inputs > 2 ? call->in[2] : NULL, *to = call->out[0];
    bool is_fused = algo->plan->conv.adds_bias;
    tensors t = tensors_of(algo);
    tarn__view x = filled(call, &j->x, call->in[0], &t.x), w = filled(call, &j->w, call->in[1], &t.w),
               y = view_of(call, &j->y, to, &t.y), fused_bias = {0};
    if (is_fused)
        fused_bias = filled(call, &j->bias, bias, &t.bias);
    if (!run_library(call, algo, &x, &w, &y, is_fused ? &fused_bias : NULL))
        return;
    if (bias && !is_fused) {
        tarn__view repeated = broadcast_bias(bias, to);
        add_or_copy(call, &y, &repeated, to);
    } else if (j->y.is_copy) {
        add_or_copy(call, &y, NULL, to);
    }
}

/* The weight that dgrad convolves with: input and output channels exchanged, taps reversed. */
static tarn__view flipped(const tarn__view *w)
{
    tarn__view v = *w;
    for (int i = 0; i < 2; i++) {
        v.shape[i] = w->shape[1 - i], v.stride[i] = w->stride[1 - i];
        v.offset += (w->shape[2 + i] - 1) * w->stride[2 + i];
        v.stride[2 + i] = -w->stride[2 + i];
    }
    return v;
}

/* With a flipped weight g takes the place of x, and gx of y. */
static void describe_dgrad(job *j, const tarn__call *call, const tarn__conv_algo *algo, tarn__plan *plan)
{
    tensors t = tensors_of(algo);
    tarn__view weight = algo->is_flipped ? flipped(call->in[1]) : *call->in[1];
    operand g = operand_of(plan, call->in[0], algo->is_flipped ? &t.x : &t.y);
    j->w = operand_of(plan, &weight, &t.w);
    operand gx = operand_of(plan, call->out[0], algo->is_flipped ? &t.y : &t.x);
    j->x = algo->is_flipped ? g : gx;
    j->y = algo->is_flipped ? gx : g;
}

static void dgrad(const job *j, const tarn__call *call, const tarn__conv_algo *algo)
{
    tensors t = tensors_of(algo);
    bool is_flipped = algo->is_flipped;
    const operand *in = is_flipped ? &j->x : &j->y, *out = is_flipped ? &j->y : &j->x;
    tarn__view weight = is_flipped ? flipped(call->in[1]) : *call->in[1];
    tarn__view g = filled(call, in, call->in[0], is_flipped ? &t.x : &t.y), w = filled(call, &j->w, &weight, &t.w),
               gx = view_of(call, out, call->out[0], is_flipped ? &t.y : &t.x);
    if (run_library(call, algo, is_flipped ? &g : &gx, &w, is_flipped ? &gx : &g, NULL) && out->is_copy)
        add_or_copy(call, &gx, NULL, call->out[0]);
}

/* Accumulation computes into scratch, then adds. */
static void describe_wgrad(job *j, const tarn__call *call, const tarn__conv_algo *algo, tarn__plan *plan)
{
    bool adds = ((const tarn__conv2d *)call->params)->beta != 0;
    tensors t = tensors_of(algo);
    j->x = operand_of(plan, call->in[0], &t.x);
    j->y = operand_of(plan, call->in[1], &t.y);
    j->w = adds ? copy_of(plan, call->out[0], &t.w) : operand_of(plan, call->out[0], &t.w);
}

static void wgrad(const job *j, const tarn__call *call, const tarn__conv_algo *algo)
{
    const tarn__view *to = call->out[0];
    bool adds = ((const tarn__conv2d *)call->params)->beta != 0;
    tensors t = tensors_of(algo);
    tarn__view x = filled(call, &j->x, call->in[0], &t.x), g = filled(call, &j->y, call->in[1], &t.y),
               gw = view_of(call, &j->w, to, &t.w);
    if (run_library(call, algo, &x, &gw, &g, NULL) && j->w.is_copy)
        add_or_copy(call, &gw, adds ? to : NULL, to);
}

/* No im2col. The final kernel of conv_wgrad.cu accumulates onto the old gradient. */
static void describe_direct(job *j, const tarn__call *call, const tarn__conv_algo *algo, tarn__plan *plan)
{
    tensors t = tensors_of(algo);
    j->x = operand_of(plan, call->in[0], &t.x);
    j->y = operand_of(plan, call->in[1], &t.y);
    j->partials = alloc(plan, tarn__wgrad_scratch(&algo->weight));
}

static void wgrad_direct(const job *j, const tarn__call *call, const tarn__conv_algo *algo)
{
    tensors t = tensors_of(algo);
    tarn__view x = filled(call, &j->x, call->in[0], &t.x), g = filled(call, &j->y, call->in[1], &t.y);
    if (!tarn__cuda_conv_wgrad(call, &algo->weight, tarn__view_at(&x), tarn__view_at(&g),
                               (char *)call->scratch + j->partials))
        tarn__cuda_set_failed(call->device);
}

/* ---- calls ------------------------------------------------------------------------------------------------------- */

tarn__plan_status tarn__conv_algo_prepare(const tarn__call *call, const tarn__conv_algo *algo, tarn__plan *plan)
{
    static void (*const describes[])(job *, const tarn__call *, const tarn__conv_algo *,
                                     tarn__plan *) = {describe_forward, describe_dgrad, describe_wgrad};
    plan->shared = algo;
    if (!algo->plan && !algo->is_direct)
        return tarn__cuda_conv_im2col_prepare(call, (int)algo->requested.what, plan);
    job *j = tarn__plan_reserve(plan, sizeof(*j));
    if (!j)
        return TARN__PLAN_FAILED;
    *j = (job){0};
    if (algo->is_direct) {
        describe_direct(j, call, algo, plan);
    } else {
        alloc(plan, algo->plan->plan.workspace); /* first: run_library() expects it there */
        describes[algo->requested.what](j, call, algo, plan);
    }
    return TARN__PLAN_READY;
}

void tarn__conv_algo_run(const tarn__call *call)
{
    static void (*const runs[])(const job *, const tarn__call *, const tarn__conv_algo *) = {forward, dgrad, wgrad};
    const tarn__conv_algo *algo = call->plan->shared;
    const job *j = tarn__plan_job(call->plan);
    if (algo->is_direct)
        wgrad_direct(j, call, algo);
    else if (!algo->plan)
        tarn__cuda_conv_im2col_run(call, (int)algo->requested.what);
    else
        runs[algo->requested.what](j, call, algo);
}

/* Accumulation is onto f32 sums, so that the result is rounded once. */
tarn__cudnn_conv tarn__conv_requested_by(const tarn__call *call, int what)
{
    if (what == TARN__CONV_DGRAD)
        return describe(call, what, call->out[0], call->in[1], call->in[0]);
    if (what == TARN__CONV_FORWARD) {
        tarn__cudnn_conv v = describe(call, what, call->in[0], call->in[1], call->out[0]);
        v.adds_bias = call->inputs > 2 && call->in[2];
        return v;
    }
    tarn__cudnn_conv v = describe(call, what, call->in[0], call->out[0], call->in[1]);
    if (((const tarn__conv2d *)call->params)->beta != 0)
        v.out_dtype = TARN_F32;
    return v;
}

/* Without cuDNN only wgrad has a choice, between im2col and our kernel. */
static bool has_candidates(const tarn__cudnn_conv *requested)
{
    return tarn__cudnn_open() || tarn__cudnn_is_unusable() ||
           (tarn__wgrad_supports(requested) && (tarn__wgrad_is_forced() || tarn__cudnn_conv_must_tune(requested)));
}

bool tarn__conv_has_choice(const tarn__call *call, int what)
{
    if (!is_supported(call))
        return false;
    tarn__cudnn_conv requested = tarn__conv_requested_by(call, what);
    return has_candidates(&requested);
}
