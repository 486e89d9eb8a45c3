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

typedef struct job {
    const tarn__call *call;
    bool runs;   /* false: measure the scratch only */
    size_t used; /* bytes of scratch */
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

/* ---- steps ------------------------------------------------------------------------------------------------------- */

/* Scratch, 256-byte aligned. */
static void *alloc(job *j, size_t bytes)
{
    void *at = (void *)((uintptr_t)j->call->scratch + j->used);
    j->used += tarn__cuda_align(bytes);
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

/* The view itself, or scratch in its place. */
static tarn__view operand_place(job *j, const tarn__view *v, const tarn__cudnn_tensor *t)
{
    if (has_layout(v, t))
        return *v;
    return tarn__cudnn_view(t, alloc(j, (size_t)tarn__view_count(v) * tarn__dtype_bytes(t->dtype)));
}

/* a + b, or a copy of a without b. */
static void add_or_copy(const job *j, const tarn__view *a, const tarn__view *b, const tarn__view *to)
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
    tarn__view place = operand_place(j, v, t);
    if (place.memory != v->memory)
        add_or_copy(j, v, NULL, &place);
    return place;
}

/* cuDNN's workspace is the start of the scratch. */
static bool run(const job *j, tarn__cudnn_conv_plan *plan, const tarn__view *x, const tarn__view *w,
                const tarn__view *y, const tarn__view *bias)
{
    tarn__cudnn_conv_operands operands = {.x = tarn__view_at(x),
                                          .w = tarn__view_at(w),
                                          .y = tarn__view_at(y),
                                          .bias = bias ? tarn__view_at(bias) : NULL,
                                          .workspace = plan->plan.workspace ? j->call->scratch : NULL};
    bool is_ok = !j->runs || tarn__cudnn_conv_run(j->call->device, plan, &operands, j->call->stream);
    if (!is_ok)
        tarn__cuda_set_failed(j->call->device);
    return is_ok;
}

/* ---- forward, dgrad, wgrad --------------------------------------------------------------------------------------- */

/* The bias as the graph needs it: contiguous. */
static tarn__view bias_of(job *j, const tarn__view *bias, int64_t dtype)
{
    tarn__cudnn_tensor dense = {.dtype = (tarn_dtype)dtype, .rank = 1, .shape = {bias->shape[0]}, .stride = {1}};
    return operand_of(j, bias, &dense);
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
static void forward(job *j, const tarn__conv_algo *algo)
{
    tarn__cudnn_conv_plan *plan = algo->plan;
    const tarn__call *call = j->call;
    const tarn__view *bias = call->inputs > 2 ? call->in[2] : NULL, *to = call->out[0];
    tarn__cudnn_tensor t[] = {tarn__cudnn_conv_x(&plan->conv), tarn__cudnn_conv_w(&plan->conv),
                              tarn__cudnn_conv_y(&plan->conv)};
    tarn__view x = operand_of(j, call->in[0], &t[0]), w = operand_of(j, call->in[1], &t[1]),
               y = operand_place(j, to, &t[2]), fused_bias = {0};
    if (plan->conv.adds_bias)
        fused_bias = bias_of(j, bias, plan->conv.in_dtype);
    if (!run(j, plan, &x, &w, &y, plan->conv.adds_bias ? &fused_bias : NULL))
        return;
    if (bias && !plan->conv.adds_bias) {
        tarn__view repeated = broadcast_bias(bias, to);
        add_or_copy(j, &y, &repeated, to);
    } else if (y.memory != to->memory) {
        add_or_copy(j, &y, NULL, to);
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
static void dgrad(job *j, const tarn__conv_algo *algo)
{
    const tarn__call *call = j->call;
    tarn__cudnn_conv_plan *plan = algo->plan;
    tarn__cudnn_tensor t[] = {tarn__cudnn_conv_x(&plan->conv), tarn__cudnn_conv_w(&plan->conv),
                              tarn__cudnn_conv_y(&plan->conv)};
    tarn__view weight = algo->is_flipped ? flipped(call->in[1]) : *call->in[1];
    tarn__view g = operand_of(j, call->in[0], &t[algo->is_flipped ? 0 : 2]), w = operand_of(j, &weight, &t[1]);
    tarn__view gx = operand_place(j, call->out[0], &t[algo->is_flipped ? 2 : 0]);
    bool is_ok = algo->is_flipped ? run(j, plan, &g, &w, &gx, NULL) : run(j, plan, &gx, &w, &g, NULL);
    if (is_ok && gx.memory != call->out[0]->memory)
        add_or_copy(j, &gx, NULL, call->out[0]);
}

/* Accumulation computes into scratch, then adds. */
static void wgrad(job *j, const tarn__conv_algo *algo)
{
    tarn__cudnn_conv_plan *plan = algo->plan;
    const tarn__call *call = j->call;
    const tarn__view *to = call->out[0];
    bool adds = ((const tarn__conv2d *)call->params)->beta != 0;
    tarn__cudnn_tensor t[] = {tarn__cudnn_conv_x(&plan->conv), tarn__cudnn_conv_w(&plan->conv),
                              tarn__cudnn_conv_y(&plan->conv)};
    tarn__view x = operand_of(j, call->in[0], &t[0]), g = operand_of(j, call->in[1], &t[2]), gw;
    if (adds)
        gw = tarn__cudnn_view(&t[1], alloc(j, (size_t)tarn__view_count(to) * tarn__dtype_bytes(t[1].dtype)));
    else
        gw = operand_place(j, to, &t[1]);
    if (run(j, plan, &x, &gw, &g, NULL) && gw.memory != to->memory)
        add_or_copy(j, &gw, adds ? to : NULL, to);
}

/* No im2col. The final kernel of conv_wgrad.cu accumulates onto the old gradient. */
static void wgrad_direct(job *j, const tarn__conv_algo *algo)
{
    const tarn__call *call = j->call;
    tarn__cudnn_conv v = algo->requested;
    v.channels_last = 1;
    tarn__cudnn_tensor t[] = {tarn__cudnn_conv_x(&v), tarn__cudnn_conv_y(&v)};
    tarn__view x = operand_of(j, call->in[0], &t[0]), g = operand_of(j, call->in[1], &t[1]);
    void *parts = alloc(j, tarn__wgrad_scratch(&algo->weight));
    if (j->runs && !tarn__cuda_conv_wgrad(call, &algo->weight, tarn__view_at(&x), tarn__view_at(&g), parts))
        tarn__cuda_set_failed(call->device);
}

/* ---- calls ------------------------------------------------------------------------------------------------------- */

/* Dispatches to our kernel, im2col or cuDNN. */
size_t tarn__conv_algo_call(const tarn__call *call, const tarn__conv_algo *algo, bool runs)
{
    static void (*const walks[])(job * j, const tarn__conv_algo *algo) = {forward, dgrad, wgrad};
    job j = {.call = call, .runs = runs};
    if (algo->is_direct) {
        wgrad_direct(&j, algo);
        return j.used;
    }
    if (!algo->plan)
        return tarn__cuda_conv_im2col(call, (int)algo->requested.what, runs);
    alloc(&j, algo->plan->plan.workspace); /* first: run() expects the workspace there */
    walks[algo->requested.what](&j, algo);
    return j.used;
}

/* Accumulation is onto f32 sums, so that the result is rounded once. */
static tarn__cudnn_conv requested_by(const tarn__call *call, int what)
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

/* Called twice per operation, to size the scratch and to run; both find the same algorithm. */
bool tarn__cudnn_conv_call(const tarn__call *call, int what, bool runs, size_t *bytes)
{
    *bytes = 0;
    if (!is_supported(call))
        return false;
    tarn__cudnn_conv requested = requested_by(call, what);
    if (!has_candidates(&requested))
        return false;
    tarn__conv_algo *algo = tarn__cudnn_is_unusable() ? NULL : tarn__conv_algo_of(call->device, &requested);
    if (algo)
        *bytes = tarn__conv_algo_call(call, algo, runs);
    else if (runs)
        tarn__cuda_set_failed(call->device);
    return true;
}
