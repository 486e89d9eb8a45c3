/* cudnn_conv_plan.c: cuDNN graphs of convolutions, built once and cached in a table per device.
 *
 * Engines are filtered by their numerical notes: none that is not deterministic, that down-converts operands or sums,
 * or that multiplies transforms (FFT, Winograd): these lose precision, and spread an infinity over its neighbours. Full
 * f32 excludes tensor cores. The cuDNN lock guards the tables. */
#include <stdlib.h>
#include <string.h>

#include "backends/cuda/conv/cudnn_conv.h"

#define BUCKETS 256
#define MAX_ENGINES 64

enum { ID_X = 1, ID_W, ID_Y, ID_BIAS, ID_SUMS };

static tarn__cudnn_conv_plan *tables[TARN__CUDA_MAX_DEVICES][BUCKETS];

/* ---- tensors ----------------------------------------------------------------------------------------------------- */

/* Contiguous, in NCHW or NHWC; the shape is always given as n, c, h, w. */
static tarn__cudnn_tensor tensor_of(int64_t id, int64_t dtype, bool channels_last, int64_t n, int64_t c, int64_t h,
                                    int64_t w)
{
    tarn__cudnn_tensor t = {.id = id, .dtype = (tarn_dtype)dtype, .rank = 4, .shape = {n, c, h, w}};
    t.stride[0] = c * h * w;
    t.stride[1] = channels_last ? 1 : h * w;
    t.stride[2] = channels_last ? w * c : w;
    t.stride[3] = channels_last ? c : 1;
    return t;
}

static int64_t dtype_if(const tarn__cudnn_conv *v, int what)
{
    return v->what == what ? v->out_dtype : v->in_dtype;
}

tarn__cudnn_tensor tarn__cudnn_conv_x(const tarn__cudnn_conv *v)
{
    return tensor_of(ID_X, dtype_if(v, TARN__CONV_DGRAD), v->channels_last, v->images, v->in, v->size[0], v->size[1]);
}

tarn__cudnn_tensor tarn__cudnn_conv_w(const tarn__cudnn_conv *v)
{
    return tensor_of(ID_W, dtype_if(v, TARN__CONV_WGRAD), v->channels_last, v->out, v->in / v->groups, v->kernel[0],
                     v->kernel[1]);
}

tarn__cudnn_tensor tarn__cudnn_conv_y(const tarn__cudnn_conv *v)
{
    return tensor_of(ID_Y, dtype_if(v, TARN__CONV_FORWARD), v->channels_last, v->images, v->out, v->result[0],
                     v->result[1]);
}

/* For timing and for the reference: the same kernels as for a real call. */
void tarn__conv_describe_call(tarn__conv_call *dst, const tarn__cudnn_conv *v, int index, cudaStream_t stream)
{
    tarn__cudnn_tensor x = tarn__cudnn_conv_x(v), w = tarn__cudnn_conv_w(v), y = tarn__cudnn_conv_y(v);
    dst->params = (tarn__conv2d){.stride = {v->stride[0], v->stride[1]},
                                 .padding = {v->padding[0], v->padding[1]},
                                 .dilation = {v->dilation[0], v->dilation[1]},
                                 .groups = v->groups,
                                 .tf32 = (int32_t)v->tf32};
    dst->x = tarn__cudnn_view(&x, NULL), dst->w = tarn__cudnn_view(&w, NULL), dst->y = tarn__cudnn_view(&y, NULL);
    dst->bias = (tarn__view){.dtype = (tarn_dtype)v->in_dtype, .rank = 1, .shape = {v->out}, .stride = {1}};
    dst->call = (tarn__call){.inputs = v->adds_bias ? 3 : 2,
                             .outputs = 1,
                             .device = index,
                             .stream = stream,
                             .function = "conv2d",
                             .params = &dst->params,
                             .params_bytes = sizeof(dst->params)};
    dst->call.in[0] = v->what == TARN__CONV_DGRAD ? &dst->y : &dst->x;
    dst->call.in[1] = v->what == TARN__CONV_WGRAD ? &dst->y : &dst->w;
    dst->call.in[2] = v->adds_bias ? &dst->bias : NULL;
    dst->call.out[0] = v->what == TARN__CONV_FORWARD ? &dst->y : v->what == TARN__CONV_DGRAD ? &dst->x : &dst->w;
}

/* ---- graph ------------------------------------------------------------------------------------------------------- */

/* Padding, stride and dilation; the kernel's size follows from the weight's shape. */
static void *describe_windows(tarn__cudnn_graph *graph, const tarn__cudnn_conv *v)
{
    void *windows = tarn__cudnn_create(graph, TARN__CUDNN_CONVOLUTION);
    int dtype = TARN__CUDNN_F32, mode = TARN__CUDNN_CROSS_CORRELATION;
    int64_t rank = 2;
    tarn__cudnn_set(graph, windows, TARN__CUDNN_CONVOLUTION_DTYPE, TARN__CUDNN_IS_DTYPE, 1, &dtype);
    tarn__cudnn_set(graph, windows, TARN__CUDNN_CONVOLUTION_MODE, TARN__CUDNN_IS_CONVOLUTION_MODE, 1, &mode);
    tarn__cudnn_set(graph, windows, TARN__CUDNN_CONVOLUTION_RANK, TARN__CUDNN_IS_INT64, 1, &rank);
    tarn__cudnn_set(graph, windows, TARN__CUDNN_CONVOLUTION_DILATION, TARN__CUDNN_IS_INT64, 2, v->dilation);
    tarn__cudnn_set(graph, windows, TARN__CUDNN_CONVOLUTION_STRIDE, TARN__CUDNN_IS_INT64, 2, v->stride);
    tarn__cudnn_set(graph, windows, TARN__CUDNN_CONVOLUTION_PADDING_BEFORE, TARN__CUDNN_IS_INT64, 2, v->padding);
    tarn__cudnn_set(graph, windows, TARN__CUDNN_CONVOLUTION_PADDING_AFTER, TARN__CUDNN_IS_INT64, 2, v->padding);
    return tarn__cudnn_finalize(graph, windows);
}

/* The three operations share their attribute order: alpha, beta, convolution, w, x, y. */
static void *describe_convolution(tarn__cudnn_graph *graph, const tarn__cudnn_conv *v, void *x, void *w, void *y)
{
    static const int kinds[] = {TARN__CUDNN_OPERATION_CONV, TARN__CUDNN_OPERATION_DGRAD, TARN__CUDNN_OPERATION_WGRAD};
    static const int firsts[] = {TARN__CUDNN_OPERATION_CONV_FIRST, TARN__CUDNN_OPERATION_DGRAD_FIRST,
                                 TARN__CUDNN_OPERATION_WGRAD_FIRST};
    void *windows = describe_windows(graph, v), *operation = tarn__cudnn_create(graph, kinds[v->what]);
    const float scale[] = {1, 0};
    void *const parts[] = {windows, w, x, y};
    for (int i = 0; i < 2; i++)
        tarn__cudnn_set(graph, operation, firsts[v->what] + i, TARN__CUDNN_IS_FLOAT, 1, &scale[i]);
    for (int i = 0; i < 4; i++)
        tarn__cudnn_set(graph, operation, firsts[v->what] + 2 + i, TARN__CUDNN_IS_DESCRIPTOR, 1, &parts[i]);
    return tarn__cudnn_finalize(graph, operation);
}

/* A virtual f32 tensor in place of `like`. */
static void *add_sums(tarn__cudnn_graph *graph, const tarn__cudnn_tensor *like)
{
    tarn__cudnn_tensor sums = *like;
    sums.id = ID_SUMS;
    sums.dtype = TARN_F32;
    sums.is_virtual = true;
    return tarn__cudnn_add_tensor(graph, &sums);
}

/* One operation; two if a bias is added to the sums, or if they pass an identity: the fast engines from 16 bits to f32
 * are those with an epilogue, even an empty one. */
static bool describe_graph(tarn__cudnn_graph *graph, void *handle, const tarn__cudnn_conv *v)
{
    tarn__cudnn_tensor x = tarn__cudnn_conv_x(v), w = tarn__cudnn_conv_w(v), y = tarn__cudnn_conv_y(v);
    void *at_x = tarn__cudnn_add_tensor(graph, &x), *at_w = tarn__cudnn_add_tensor(graph, &w),
         *at_y = tarn__cudnn_add_tensor(graph, &y);
    void *at_sums = v->adds_bias || v->identity_epilogue ? add_sums(graph, v->identity_epilogue ? &w : &y) : NULL,
         *operations[2];
    if (v->adds_bias) {
        tarn__cudnn_tensor bias = tensor_of(ID_BIAS, v->in_dtype, v->channels_last, 1, v->out, 1, 1);
        void *at_bias = tarn__cudnn_add_tensor(graph, &bias);
        operations[0] = describe_convolution(graph, v, at_x, at_w, at_sums);
        operations[1] = tarn__cudnn_add_pointwise(
            graph, &(tarn__cudnn_pointwise){.mode = TARN__CUDNN_POINTWISE_ADD, .a = at_sums, .b = at_bias, .y = at_y});
    } else {
        operations[0] = describe_convolution(graph, v, at_x, v->identity_epilogue ? at_sums : at_w, at_y);
        operations[1] = NULL;
        if (v->identity_epilogue)
            operations[1] = tarn__cudnn_add_pointwise(
                graph, &(tarn__cudnn_pointwise){.mode = TARN__CUDNN_POINTWISE_IDENTITY, .a = at_sums, .y = at_w});
    }
    return tarn__cudnn_finalize_graph(graph, handle, operations, operations[1] ? 2 : 1);
}

/* ---- plans ------------------------------------------------------------------------------------------------------- */

static uint32_t excluded_notes(const tarn__cudnn_conv *v)
{
    uint32_t notes = TARN__CUDNN_NOT_DETERMINISTIC | TARN__CUDNN_DOWN_CONVERT_INPUTS |
                     TARN__CUDNN_REDUCED_PRECISION_REDUCTION | TARN__CUDNN_FFT | TARN__CUDNN_WINOGRAD;
    return v->in_dtype == TARN_F32 && !v->tf32 ? notes | TARN__CUDNN_TENSOR_CORE : notes;
}

/* A plan, or a record that there is none; NULL if cuDNN itself fails. Not inside a capture: selecting an engine runs
 * and loads it. */
static tarn__cudnn_conv_plan *make_plan(int index, const tarn__cudnn_conv *conv)
{
    tarn__cudnn_engine engines[MAX_ENGINES];
    tarn__cuda_device *device = tarn__cuda_at(index);
    if (!device)
        return NULL;
    if (device->is_capturing) {
        tarn__cuda_fail(
            "convolution is not tuned: it was first called inside a capture; run the step once before capturing it");
        return NULL;
    }
    void *handle = tarn__cudnn_handle(index, device->stream);
    tarn__cudnn_conv_plan *plan = handle ? calloc(1, sizeof(*plan)) : NULL;
    if (!plan)
        return NULL;
    plan->conv = *conv;
    int count = describe_graph(&plan->graph, handle, conv)
                    ? tarn__cudnn_find_engines(&plan->graph, excluded_notes(conv), engines, MAX_ENGINES)
                    : 0;
    plan->use_native = !tarn__cudnn_conv_tune(index, handle, plan, engines, count);
    tarn__cudnn_free_engines(engines, count);
    if (plan->use_native)
        tarn__cudnn_free_graph(&plan->graph);
    return plan;
}

tarn__cudnn_conv_plan *tarn__cudnn_conv_plan_of(int index, const tarn__cudnn_conv *conv)
{
    tarn__cudnn_conv_plan **bucket = &tables[index][tarn__cuda_hash(conv, sizeof(*conv)) % BUCKETS];
    tarn__cudnn_lock();
    tarn__cudnn_conv_plan *plan = *bucket;
    while (plan && memcmp(&plan->conv, conv, sizeof(*conv)) != 0)
        plan = plan->next;
    if (!plan && (plan = make_plan(index, conv)) != NULL) {
        plan->next = *bucket;
        *bucket = plan;
    }
    tarn__cudnn_unlock();
    return plan;
}

bool tarn__cudnn_conv_try(void *handle, const tarn__cudnn_conv *conv, tarn__cudnn_plan *plan,
                          const tarn__cudnn_conv_operands *operands)
{
    static const int64_t ids[] = {ID_X, ID_W, ID_Y, ID_BIAS};
    void *const addresses[] = {operands->x, operands->w, operands->y, operands->bias};
    return tarn__cudnn_run_plan(handle, plan, conv->adds_bias ? 4 : 3, ids, addresses, operands->workspace);
}

bool tarn__cudnn_conv_run(int index, tarn__cudnn_conv_plan *plan, const tarn__cudnn_conv_operands *operands,
                          cudaStream_t stream)
{
    tarn__cudnn_lock(); /* guards the handle, and the plan's variant pack */
    void *handle = tarn__cudnn_handle(index, stream);
    bool is_ok = handle && tarn__cudnn_conv_try(handle, &plan->conv, &plan->plan, operands);
    tarn__cudnn_unlock();
    return is_ok;
}
