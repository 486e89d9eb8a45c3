/* cudnn_conv.c: convolutions by cuDNN: operands brought into the order of the chosen form (cudnn_conv_form.c), and what
 * is left to do afterwards.
 *
 * Images are used where they lie, as rows or with channels last, if the form has that order; anything else (slices,
 * flips) is copied into scratch first. With channels last the weight goes into that order too, and its gradient back:
 * both are small. A result that must be added to, or that lies otherwise, is made in scratch.
 *
 * cuDNN has no engine that takes 16-bit operands to sums of f32, which the gradients of leaves are. Their numbers are
 * exact in TF32, so operands are widened in scratch and the products made in TF32: sums of f32 of the same products.
 * The same serves whatever else of 16 bits it lacks. */
#include <string.h>

#include "backends/cuda/conv/cudnn_conv.h"

#define MOST_ELEMENTS (INT64_C(1) << 31)

typedef struct job {
    const tarn__call *call;
    bool runs;   /* else only the scratch is measured */
    size_t held; /* bytes of scratch */
} job;

/* ---- describing -------------------------------------------------------------------------------------------------- */

/* Channels lie next to each other and columns do not. */
static bool is_channels_last(const tarn__view *v)
{
    return v->shape[1] > 1 && v->stride[1] == 1 && (v->shape[3] == 1 || v->stride[3] != 1);
}

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
    v.channels_last = is_channels_last(x) || (x->shape[1] == 1 && is_channels_last(y));
    v.tf32 = params->tf32 && v.in_dtype == TARN_F32;
    return v;
}

/* What cuDNN, or our own kernel, may be asked for: f32 and 16 bits, not empty, sizes that its kernels count in 32 bits.
 */
static bool is_for_library(const tarn__call *call)
{
    const tarn__conv2d *params = call->params;
    tarn_dtype in = call->in[0]->dtype, out = call->out[0]->dtype;
    if ((in != TARN_F32 && in != TARN_BF16 && in != TARN_F16) || call->in[1]->dtype != in ||
        (out != in && out != TARN_F32))
        return false;
    const tarn__view *views[] = {call->in[0], call->in[1], call->out[0]};
    for (int i = 0; i < 3; i++)
        if (tarn__view_count(views[i]) == 0 || tarn__view_count(views[i]) >= MOST_ELEMENTS)
            return false;
    return params->beta == 0 || params->beta == 1;
}

/* ---- steps ------------------------------------------------------------------------------------------------------- */

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
    tarn__call part = {.inputs = b ? 2 : 1,
                       .outputs = 1,
                       .in = {a, b},
                       .out = {to},
                       .device = j->call->device,
                       .stream = j->call->stream,
                       .function = j->call->function,
                       .fault = j->call->fault,
                       .params = b ? (const void *)&none : (const void *)&fill,
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

static bool run(const job *j, tarn__cudnn_conv_plan *plan, const tarn__view *x, const tarn__view *w,
                const tarn__view *y, const tarn__view *bias)
{
    tarn__cudnn_conv_operands operands = {.x = tarn__view_at(x),
                                          .w = tarn__view_at(w),
                                          .y = tarn__view_at(y),
                                          .bias = bias ? tarn__view_at(bias) : NULL,
                                          .workspace = plan->plan.workspace ? j->call->scratch : NULL};
    bool is_good = !j->runs || tarn__cudnn_conv_run(j->call->device, plan, &operands, j->call->stream);
    if (!is_good)
        tarn__cuda_set_failed(j->call->device);
    return is_good;
}

/* ---- the three kernels ------------------------------------------------------------------------------------------- */

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

static void forward(job *j, const tarn__conv_algo *form)
{
    tarn__cudnn_conv_plan *plan = form->plan;
    const tarn__call *call = j->call;
    const tarn__view *bias = call->inputs > 2 ? call->in[2] : NULL, *to = call->out[0];
    tarn__cudnn_tensor t[] = {tarn__cudnn_conv_x(&plan->conv), tarn__cudnn_conv_w(&plan->conv),
                              tarn__cudnn_conv_y(&plan->conv)};
    tarn__view x = operand_of(j, call->in[0], &t[0]), w = operand_of(j, call->in[1], &t[1]), y = place_of(j, to, &t[2]),
               inside = {0};
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

/* The weight as the gradient of x sees it: channels of x and y exchanged, the last tap first. */
static tarn__view turned(const tarn__view *w)
{
    tarn__view v = *w;
    for (int i = 0; i < 2; i++) {
        v.shape[i] = w->shape[1 - i], v.stride[i] = w->stride[1 - i];
        v.offset += (w->shape[2 + i] - 1) * w->stride[2 + i];
        v.stride[2 + i] = -w->stride[2 + i];
    }
    return v;
}

static void grad_x(job *j, const tarn__conv_algo *form)
{
    const tarn__call *call = j->call;
    tarn__cudnn_conv_plan *plan = form->plan;
    tarn__cudnn_tensor t[] = {tarn__cudnn_conv_x(&plan->conv), tarn__cudnn_conv_w(&plan->conv),
                              tarn__cudnn_conv_y(&plan->conv)};
    tarn__view weight = form->is_turned ? turned(call->in[1]) : *call->in[1];
    tarn__view g = operand_of(j, call->in[0], &t[form->is_turned ? 0 : 2]), w = operand_of(j, &weight, &t[1]);
    tarn__view gx = place_of(j, call->out[0], &t[form->is_turned ? 2 : 0]);
    bool is_good = form->is_turned ? run(j, plan, &g, &w, &gx, NULL) : run(j, plan, &gx, &w, &g, NULL);
    if (is_good && gx.memory != call->out[0]->memory)
        put(j, &gx, NULL, call->out[0]);
}

static void grad_weight(job *j, const tarn__conv_algo *form)
{
    tarn__cudnn_conv_plan *plan = form->plan;
    const tarn__call *call = j->call;
    const tarn__view *to = call->out[0];
    bool adds = ((const tarn__conv2d *)call->params)->beta != 0;
    tarn__cudnn_tensor t[] = {tarn__cudnn_conv_x(&plan->conv), tarn__cudnn_conv_w(&plan->conv),
                              tarn__cudnn_conv_y(&plan->conv)};
    tarn__view x = operand_of(j, call->in[0], &t[0]), g = operand_of(j, call->in[1], &t[2]), gw;
    if (adds)
        gw = tarn__cudnn_view(&t[1], hold(j, (size_t)tarn__view_count(to) * tarn__dtype_bytes(t[1].dtype)));
    else
        gw = place_of(j, to, &t[1]);
    if (run(j, plan, &x, &gw, &g, NULL) && gw.memory != to->memory)
        put(j, &gw, adds ? to : NULL, to);
}

/* Without columns. What is there already is added by the kernel that rounds. */
static void grad_weight_directly(job *j, const tarn__conv_algo *form)
{
    const tarn__call *call = j->call;
    tarn__cudnn_conv v = form->asked;
    v.channels_last = 1;
    tarn__cudnn_tensor t[] = {tarn__cudnn_conv_x(&v), tarn__cudnn_conv_y(&v)};
    tarn__view x = operand_of(j, call->in[0], &t[0]), g = operand_of(j, call->in[1], &t[1]);
    void *parts = hold(j, tarn__wgrad_scratch(&form->weight));
    if (j->runs && !tarn__cuda_conv_wgrad(call, &form->weight, tarn__view_at(&x), tarn__view_at(&g), parts))
        tarn__cuda_set_failed(call->device);
}

/* ---- calls ------------------------------------------------------------------------------------------------------- */

size_t tarn__conv_algo_call(const tarn__call *call, const tarn__conv_algo *form, bool runs)
{
    static void (*const walks[])(job * j, const tarn__conv_algo *form) = {forward, grad_x, grad_weight};
    job j = {.call = call, .runs = runs};
    if (form->is_direct) {
        grad_weight_directly(&j, form);
        return j.held;
    }
    if (!form->plan)
        return tarn__cuda_conv_im2col(call, (int)form->asked.what, runs);
    hold(&j, form->plan->plan.workspace); /* first, where run() finds it */
    walks[form->asked.what](&j, form);
    return j.held;
}

/* What is there already is added to sums of f32, so that the whole is rounded once. */
static tarn__cudnn_conv asked_by(const tarn__call *call, int what)
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

/* Without cuDNN there is a choice only for gradients of weights, between columns and our own kernel. */
static bool has_choice(const tarn__cudnn_conv *asked)
{
    return tarn__cudnn_open() || tarn__cudnn_is_unusable() ||
           (tarn__wgrad_supports(asked) && (tarn__wgrad_is_forced() || tarn__cudnn_conv_must_tune(asked)));
}

bool tarn__cudnn_conv_call(const tarn__call *call, int what, bool runs, size_t *bytes)
{
    *bytes = 0;
    if (!is_for_library(call))
        return false;
    tarn__cudnn_conv asked = asked_by(call, what);
    if (!has_choice(&asked))
        return false;
    tarn__conv_algo *form = tarn__cudnn_is_unusable() ? NULL : tarn__conv_algo_of(call->device, &asked);
    if (form)
        *bytes = tarn__conv_algo_call(call, form, runs);
    else if (runs)
        tarn__cuda_set_failed(call->device);
    return true;
}
