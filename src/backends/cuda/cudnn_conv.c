/* cudnn_conv.c: convolutions by cuDNN: operands brought into one of the orders it is fast with, and what is left to do afterwards.
 *
 * Images are used where they lie, as rows or with channels last; anything else (slices, flips, another order than x has) is copied into scratch
 * first. With channels last the weight goes into that order too, and its gradient back: both are small. A result that must be added to, or that
 * lies otherwise, is made in scratch.
 *
 * cuDNN has no engine that takes 16-bit operands to sums of f32, which the gradients of leaves are. Their numbers are exact in TF32, so operands
 * are widened in scratch and the products made in TF32: sums of f32 of the same products. The same serves whatever else of 16 bits it lacks. */
#include <string.h>

#include "backends/cuda/cudnn_conv.h"

#define MOST_ELEMENTS (INT64_C(1) << 31)

typedef struct job {
    const tarn__call *call;
    bool runs;   /* else only the scratch is measured */
    size_t held; /* bytes of scratch */
} job;

/* ---- describing ------------------------------------------------------------------------------------------------------------ */

/* Channels lie next to each other and columns do not. */
static bool is_channels_last(const tarn__view *v)
{
    return v->shape[1] > 1 && v->stride[1] == 1 && (v->shape[3] == 1 || v->stride[3] != 1);
}

static tarn__cudnn_conv describe(const tarn__call *call, int what, const tarn__view *x, const tarn__view *w, const tarn__view *y)
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
    v.channels_last = is_channels_last(x) || (x->shape[1] == 1 && is_channels_last(y));
    v.tf32 = params->tf32 && v.in_dtype == TARN_F32;
    return v;
}

/* What cuDNN may be asked for: f32 and 16 bits, not empty, sizes that its kernels count in 32 bits. */
static bool is_for_library(const tarn__call *call)
{
    const tarn__conv2d *params = call->params;
    tarn_dtype in = call->in[0]->dtype, out = call->out[0]->dtype;
    if ((in != TARN_F32 && in != TARN_BF16 && in != TARN_F16) || call->in[1]->dtype != in || (out != in && out != TARN_F32))
        return false;
    const tarn__view *views[] = {call->in[0], call->in[1], call->out[0]};
    for (int i = 0; i < 3; i++)
        if (tarn__view_count(views[i]) == 0 || tarn__view_count(views[i]) >= MOST_ELEMENTS)
            return false;
    return params->beta == 0 || params->beta == 1;
}

/* ---- steps ------------------------------------------------------------------------------------------------------------------- */

/* A place in scratch, 256 bytes aligned. */
static void *hold(job *j, size_t bytes)
{
    void *at = (void *)((uintptr_t)j->call->scratch + j->held);
    j->held += (bytes + 255) / 256 * 256;
    return at;
}

/* True when the view lies as the tensor wants it: axes of size 1 may have any stride. */
static bool lies_as(const tarn__view *v, const tarn__cudnn_tensor *t)
{
    for (int i = 0; i < v->rank; i++)
        if (v->shape[i] > 1 && v->stride[i] != t->stride[i])
            return false;
    return v->dtype == t->dtype && (uintptr_t)tarn__view_at(v) % TARN__CUDNN_ALIGNMENT == 0;
}

/* The view itself, or a place in scratch that stands for it. */
static tarn__view place_of(job *j, const tarn__view *v, const tarn__cudnn_tensor *t)
{
    if (lies_as(v, t))
        return *v;
    return tarn__cudnn_view(t, hold(j, (size_t)tarn__view_count(v) * tarn__dtype_bytes(t->dtype)));
}

/* a + b, or a copy of a where there is no b. */
static void put(const job *j, const tarn__view *a, const tarn__view *b, const tarn__view *to)
{
    tarn__fill fill = {0};
    tarn__elementwise none = {0};
    tarn__call part = {.inputs = b ? 2 : 1, .outputs = 1, .in = {a, b}, .out = {to}, .device = j->call->device, .stream = j->call->stream,
                       .function = j->call->function, .fault = j->call->fault, .params = b ? (const void *)&none : (const void *)&fill,
                       .params_bytes = b ? sizeof(none) : sizeof(fill)};
    if (j->runs)
        tarn__cuda_rows()[b ? TARN__K_add : TARN__K_copy].run(&part);
}

static tarn__view operand_of(job *j, const tarn__view *v, const tarn__cudnn_tensor *t)
{
    tarn__view place = place_of(j, v, t);
    if (place.memory != v->memory)
        put(j, v, NULL, &place);
    return place;
}

static bool run(const job *j, tarn__cudnn_conv_plan *plan, const tarn__view *x, const tarn__view *w, const tarn__view *y, const tarn__view *bias)
{
    tarn__cudnn_conv_operands operands = {.x = tarn__view_at(x), .w = tarn__view_at(w), .y = tarn__view_at(y),
                                          .bias = bias ? tarn__view_at(bias) : NULL, .workspace = plan->plan.workspace ? j->call->scratch : NULL};
    bool is_good = !j->runs || tarn__cudnn_conv_run(j->call->device, plan, &operands, j->call->stream);
    if (!is_good)
        tarn__cuda_set_failed(j->call->device);
    return is_good;
}

/* ---- the three kernels --------------------------------------------------------------------------------------------------------- */

/* The bias as the graph takes it. */
static tarn__view bias_of(job *j, const tarn__view *bias, int64_t dtype)
{
    tarn__cudnn_tensor dense = {.dtype = (tarn_dtype)dtype, .rank = 1, .shape = {bias->shape[0]}, .stride = {1}};
    return operand_of(j, bias, &dense);
}

/* The bias seen in the shape of y. */
static tarn__view spread(const tarn__view *bias, const tarn__view *y)
{
    tarn__view v = *y;
    v.memory = bias->memory, v.offset = bias->offset, v.dtype = bias->dtype;
    for (int i = 0; i < 4; i++)
        v.stride[i] = i == 1 ? bias->stride[0] : 0;
    return v;
}

static void forward(job *j, tarn__cudnn_conv_plan *plan)
{
    const tarn__call *call = j->call;
    const tarn__view *bias = call->inputs > 2 ? call->in[2] : NULL, *to = call->out[0];
    tarn__cudnn_tensor t[] = {tarn__cudnn_conv_x(&plan->conv), tarn__cudnn_conv_w(&plan->conv), tarn__cudnn_conv_y(&plan->conv)};
    tarn__view x = operand_of(j, call->in[0], &t[0]), w = operand_of(j, call->in[1], &t[1]), y = place_of(j, to, &t[2]), inside = {0};
    if (plan->conv.adds_bias)
        inside = bias_of(j, bias, plan->conv.in_dtype);
    if (!run(j, plan, &x, &w, &y, plan->conv.adds_bias ? &inside : NULL))
        return;
    if (bias && !plan->conv.adds_bias) {
        tarn__view repeated = spread(bias, to);
        put(j, &y, &repeated, to);
    } else if (y.memory != to->memory) {
        put(j, &y, NULL, to);
    }
}

static void grad_x(job *j, tarn__cudnn_conv_plan *plan)
{
    const tarn__call *call = j->call;
    tarn__cudnn_tensor t[] = {tarn__cudnn_conv_x(&plan->conv), tarn__cudnn_conv_w(&plan->conv), tarn__cudnn_conv_y(&plan->conv)};
    tarn__view g = operand_of(j, call->in[0], &t[2]), w = operand_of(j, call->in[1], &t[1]), gx = place_of(j, call->out[0], &t[0]);
    if (run(j, plan, &gx, &w, &g, NULL) && gx.memory != call->out[0]->memory)
        put(j, &gx, NULL, call->out[0]);
}

static void grad_weight(job *j, tarn__cudnn_conv_plan *plan)
{
    const tarn__call *call = j->call;
    const tarn__view *to = call->out[0];
    bool adds = ((const tarn__conv2d *)call->params)->beta != 0;
    tarn__cudnn_tensor t[] = {tarn__cudnn_conv_x(&plan->conv), tarn__cudnn_conv_w(&plan->conv), tarn__cudnn_conv_y(&plan->conv)};
    tarn__view x = operand_of(j, call->in[0], &t[0]), g = operand_of(j, call->in[1], &t[2]), gw;
    if (adds)
        gw = tarn__cudnn_view(&t[1], hold(j, (size_t)tarn__view_count(to) * tarn__dtype_bytes(t[1].dtype)));
    else
        gw = place_of(j, to, &t[1]);
    if (run(j, plan, &x, &gw, &g, NULL) && gw.memory != to->memory)
        put(j, &gw, adds ? to : NULL, to);
}

/* ---- the way ------------------------------------------------------------------------------------------------------------------- */

/* True when cuDNN has no engine for it, and another form may be tried. */
static bool is_lacking(const tarn__cudnn_conv_plan *plan)
{
    return plan && plan->is_none && !plan->is_slower;
}

/* The plan of a convolution; where cuDNN has none and operands are of 16 bits, that of the widened one. */
static tarn__cudnn_conv_plan *plan_or_widen(const tarn__call *call, tarn__cudnn_conv *v)
{
    tarn__cudnn_conv_plan *plan = tarn__cudnn_conv_plan_of(call->device, v);
    if (!is_lacking(plan) || v->in_dtype == TARN_F32)
        return plan;
    v->in_dtype = v->out_dtype = TARN_F32;
    v->tf32 = 1;
    return tarn__cudnn_conv_plan_of(call->device, v);
}

/* A bias is added inside; where no engine does that, to sums of f32 afterwards. */
static tarn__cudnn_conv_plan *plan_forward(const tarn__call *call)
{
    tarn__cudnn_conv v = describe(call, TARN__CONV_FORWARD, call->in[0], call->in[1], call->out[0]);
    v.adds_bias = call->inputs > 2 && call->in[2];
    tarn__cudnn_conv_plan *plan = plan_or_widen(call, &v);
    if (!is_lacking(plan) || !v.adds_bias)
        return plan;
    v.adds_bias = 0;
    return tarn__cudnn_conv_plan_of(call->device, &v);
}

static tarn__cudnn_conv_plan *plan_grad_x(const tarn__call *call)
{
    tarn__cudnn_conv v = describe(call, TARN__CONV_GRAD_X, call->out[0], call->in[1], call->in[0]);
    return plan_or_widen(call, &v);
}

/* What is there already is added to sums of f32, so that the whole is rounded once. */
static tarn__cudnn_conv_plan *plan_grad_weight(const tarn__call *call)
{
    tarn__cudnn_conv v = describe(call, TARN__CONV_GRAD_WEIGHT, call->in[0], call->out[0], call->in[1]);
    if (((const tarn__conv2d *)call->params)->beta != 0)
        v.out_dtype = TARN_F32;
    return plan_or_widen(call, &v);
}

typedef struct way {
    tarn__cudnn_conv_plan *(*plan)(const tarn__call *call);
    void (*walk)(job *j, tarn__cudnn_conv_plan *plan);
} way;

bool tarn__cudnn_conv_call(const tarn__call *call, int what, bool runs, size_t *bytes)
{
    static const way ways[] = {{plan_forward, forward}, {plan_grad_x, grad_x}, {plan_grad_weight, grad_weight}};
    job j = {.call = call, .runs = runs};
    *bytes = 0;
    if (!is_for_library(call) || (!tarn__cudnn_open() && !tarn__cudnn_is_refused()))
        return false;
    tarn__cudnn_conv_plan *plan = tarn__cudnn_is_refused() ? NULL : ways[what].plan(call);
    if (plan && plan->is_none)
        return false;
    if (plan) {
        hold(&j, plan->plan.workspace); /* first, where run() finds it */
        ways[what].walk(&j, plan);
    } else if (runs) {
        tarn__cuda_set_failed(call->device);
    }
    *bytes = j.held;
    return true;
}
