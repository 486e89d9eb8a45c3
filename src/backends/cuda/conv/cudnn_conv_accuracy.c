/* cudnn_conv_accuracy.c: checks that an engine selected for f32 delivers f32.
 *
 * Numerical notes are incomplete: engines without a tensor-core or transform note gave weight gradients with an error
 * of 5e-5, where f32 sums of two thousand terms have 5e-6. So a candidate's result on random values is compared to
 * im2col's (conv_im2col.c). */
#include <stdlib.h>

#include "backends/cuda/conv/cudnn_conv.h"

#define MAX_COMPARED (INT64_C(1) << 20) /* elements */

/* Terms of each sum. */
static int64_t terms_of(const tarn__cudnn_conv *v)
{
    int64_t taps = v->kernel[0] * v->kernel[1];
    return v->what == TARN__CONV_FORWARD ? v->in / v->groups * taps
           : v->what == TARN__CONV_DGRAD ? v->out / v->groups * taps
                                         : v->images * v->result[0] * v->result[1];
}

/* By im2col, with scratch of its own. False if there is no memory or it fails; the device's failure flag is
 * restored. */
static bool run_im2col(tarn__call *call, int what)
{
    tarn__cuda_device *device = tarn__cuda_at(call->device);
    bool had_failed = device->has_failed;
    tarn__plan_buffer memory;
    tarn__plan *plan = tarn__plan_begin(&memory);
    if (tarn__cuda_conv_im2col_prepare(call, what, plan) != TARN__PLAN_READY)
        return false;
    call->plan = plan;
    call->scratch_bytes = plan->scratch_bytes;
    if (cudaMalloc(&call->scratch, call->scratch_bytes + 256) != cudaSuccess) {
        cudaGetLastError();
        return false;
    }
    device->has_failed = false;
    tarn__cuda_conv_im2col_run(call, what);
    bool is_ok = cudaStreamSynchronize(call->stream) == cudaSuccess && !device->has_failed;
    device->has_failed = had_failed;
    cudaFree(call->scratch);
    return is_ok;
}

/* The convolution by im2col on the tuning run's operands. */
static bool run_reference(const tarn__cudnn_conv *v, int index, const tarn__cudnn_conv_operands *at,
                          cudaStream_t stream)
{
    tarn__conv_call conv;
    tarn__conv_describe_call(&conv, v, index, stream);
    conv.x.memory = at->x, conv.w.memory = at->w, conv.y.memory = at->y, conv.bias.memory = at->bias;
    return run_im2col(&conv.call, (int)v->what);
}

static bool read_back(float *to, const void *from, int64_t count, cudaStream_t stream)
{
    return cudaMemcpyAsync(to, from, (size_t)count * sizeof(float), cudaMemcpyDeviceToHost, stream) == cudaSuccess &&
           cudaStreamSynchronize(stream) == cudaSuccess;
}

/* Compares the first MAX_COMPARED elements at most. */
bool tarn__cudnn_conv_reference_compute(tarn__conv_reference *reference, const tarn__cudnn_conv *v, int index,
                                        const tarn__cudnn_conv_operands *at, const void *result, int64_t count,
                                        cudaStream_t stream)
{
    *reference = (tarn__conv_reference){.count = count < MAX_COMPARED ? count : MAX_COMPARED};
    reference->values = malloc(sizeof(float) * 2 * (size_t)reference->count);
    if (!reference->values || !run_reference(v, index, at, stream) ||
        !read_back(reference->values, result, reference->count, stream)) {
        tarn__cudnn_conv_reference_free(reference);
        return false;
    }
    tarn__conv_reference_measure(reference, terms_of(v));
    return true;
}

bool tarn__cudnn_conv_reference_check(const tarn__conv_reference *reference, const void *result, cudaStream_t stream)
{
    float *got = reference->values + reference->count;
    return read_back(got, result, reference->count, stream) && tarn__conv_is_accurate(reference, got);
}

void tarn__cudnn_conv_reference_free(tarn__conv_reference *reference)
{
    free(reference->values);
    reference->values = NULL;
}
