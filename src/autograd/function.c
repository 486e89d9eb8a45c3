/* function.c: a user's own differentiable operation. */
#include "autograd/tape.h"
#include "base/memory.h"

typedef struct function_params {
    tarn_backward_fn backward;
    void *ctx;
    void (*release)(void *ctx);
} function_params;

static void release_function(void *params)
{
    const function_params *p = params;
    if (p->release)
        p->release(p->ctx);
}

/* Calls the user's rule and hands on what it gives, after checking that each gradient has the shape of its input. */
static bool function_backward(const tarn__backward *b)
{
    const function_params *p = b->params;
    int count = b->node->inputs;
    tarn_tensor **grads = tarn__alloc(sizeof(*grads) * (size_t)count);
    if (!grads)
        return false;
    bool good = p->backward(b->grads, grads, p->ctx);
    if (!good && !tarn_failed())
        tarn__raise(TARN_ERROR_ARGUMENT, "function: a user's backward failed without setting an error");
    for (int i = 0; good && i < count; i++) {
        const tarn__meta *meta = tarn__input_meta(b, i);
        if (!grads[i] || !tarn__wants(b, i))
            continue;
        tarn__view shape = {.rank = meta->shape.rank};
        for (int k = 0; k < shape.rank; k++)
            shape.shape[k] = meta->shape.size[k];
        if (!tarn__same_shape(&grads[i]->view, &shape) || !tarn__is_float(grads[i]->view.dtype) ||
            !tarn__same_device(tarn__device(grads[i]), meta->device))
            good = tarn__raise(TARN_ERROR_SHAPE, "function: the gradient of input %d is %s %s, the input %s %s, or they lie on different devices", i,
                               tarn_dtype_name(grads[i]->view.dtype), TARN__SHAPE_TEXT(grads[i]), tarn_dtype_name(meta->dtype),
                               tarn__shape_text(meta->shape.size, meta->shape.rank, &(tarn__text){{0}}));
        good = good && tarn__put(b, i, grads[i]);
    }
    tarn__release(grads, sizeof(*grads) * (size_t)count);
    return good;
}

static bool check_function(tarn_tensor *const *inputs, int input_count, tarn_tensor *const *outputs, int output_count, tarn_backward_fn backward)
{
    if (tarn_failed())
        return false;
    if (!inputs || input_count < 1 || !outputs || output_count < 1 || !backward)
        return tarn__raise(TARN_ERROR_ARGUMENT, "function: inputs, outputs and a backward are required");
    for (int i = 0; i < input_count; i++)
        if (!tarn__check_any("function", inputs[i], "an input"))
            return false;
    for (int i = 0; i < output_count; i++) {
        if (!tarn__check("function", outputs[i], "an output") || !tarn__check_dtype("function", outputs[i], TARN__FLOATS, "an output"))
            return false;
        if (outputs[i]->history || outputs[i]->requires_grad || outputs[i]->is_constant)
            return tarn__raise(TARN_ERROR_ARGUMENT, "function: output %d takes part in a gradient already; compute it between "
                               "tarn_no_grad_open() and tarn_no_grad_close()", i);
        for (int k = 0; k < i; k++)
            if (outputs[k] == outputs[i])
                return tarn__raise(TARN_ERROR_ARGUMENT, "function: outputs %d and %d are the same tensor", k, i);
    }
    return true;
}

bool tarn_function(tarn_tensor *const *inputs, int input_count, tarn_tensor *const *outputs, int output_count, tarn_backward_fn backward,
                   void *ctx, void (*release)(void *ctx))
{
    function_params p = {backward, ctx, release};
    bool good = check_function(inputs, input_count, outputs, output_count, backward);
    bool needed = good && tarn__recording_needed(inputs, input_count);
    good = good && tarn__record(&(tarn__recording){.function = "function", .rule = function_backward, .inputs = inputs,
                                                   .input_count = input_count, .outputs = outputs, .output_count = output_count,
                                                   .params = &p, .params_bytes = sizeof(p), .params_release = release_function});
    if ((!good || !needed) && release)
        release(ctx);
    return good;
}
