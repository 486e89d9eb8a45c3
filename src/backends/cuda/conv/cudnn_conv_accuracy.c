/* cudnn_conv_accuracy.c: whether an engine that is asked for f32 gives it.
 *
 * An engine's notes do not tell all: without one of a tensor core or a transform, gradients of weights came out 5e-5
 * off where sums of two thousand terms in f32 are 5e-6 off. So what a candidate makes of random numbers is held against
 * what columns make of them (conv_im2col.c). */
#include <stdlib.h>

#include "backends/cuda/conv/cudnn_conv.h"

#define MOST_COMPARED (INT64_C(1) << 20) /* elements */

static int64_t terms_of(const tarn__cudnn_conv *v)
{
    int64_t taps = v->kernel[0] * v->kernel[1];
    return v->what == TARN__CONV_FORWARD ? v->in / v->groups * taps
           : v->what == TARN__CONV_DGRAD ? v->out / v->groups * taps
                                         : v->images * v->result[0] * v->result[1];
}

/* By columns, with scratch of its own. False where there is none, or it fails: that is no fault of the device. */
static bool run_columns(tarn__call *call, int what)
{
    tarn__cuda_device *device = tarn__cuda_at(call->device);
    bool had_failed = device->has_failed;
    call->scratch_bytes = tarn__cuda_conv_im2col(call, what, false);
    if (cudaMalloc(&call->scratch, call->scratch_bytes + 256) != cudaSuccess) {
        cudaGetLastError();
        return false;
    }
    device->has_failed = false;
    tarn__cuda_conv_im2col(call, what, true);
    bool is_good = cudaStreamSynchronize(call->stream) == cudaSuccess && !device->has_failed;
    device->has_failed = had_failed;
    cudaFree(call->scratch);
    return is_good;
}

static bool run_plainly(const tarn__cudnn_conv *v, int index, const tarn__cudnn_conv_operands *at, cudaStream_t stream)
{
    tarn__conv_call as;
    tarn__conv_describe_call(&as, v, index, stream);
    as.x.memory = at->x, as.w.memory = at->w, as.y.memory = at->y, as.bias.memory = at->bias;
    return run_columns(&as.call, (int)v->what);
}

static bool read_back(float *to, const void *from, int64_t count, cudaStream_t stream)
{
    return cudaMemcpyAsync(to, from, (size_t)count * sizeof(float), cudaMemcpyDeviceToHost, stream) == cudaSuccess &&
           cudaStreamSynchronize(stream) == cudaSuccess;
}

bool tarn__cudnn_conv_reference_compute(tarn__conv_reference *truth, const tarn__cudnn_conv *v, int index,
                                        const tarn__cudnn_conv_operands *at, const void *result, int64_t count,
                                        cudaStream_t stream)
{
    *truth = (tarn__conv_reference){.count = count < MOST_COMPARED ? count : MOST_COMPARED};
    truth->values = malloc(sizeof(float) * 2 * (size_t)truth->count);
    if (!truth->values || !run_plainly(v, index, at, stream) ||
        !read_back(truth->values, result, truth->count, stream)) {
        tarn__cudnn_conv_reference_free(truth);
        return false;
    }
    tarn__conv_reference_measure(truth, terms_of(v));
    return true;
}

bool tarn__cudnn_conv_reference_check(const tarn__conv_reference *truth, const void *result, cudaStream_t stream)
{
    float *got = truth->values + truth->count;
    return read_back(got, result, truth->count, stream) && tarn__conv_is_accurate(truth, got);
}

void tarn__cudnn_conv_reference_free(tarn__conv_reference *truth)
{
    free(truth->values);
    truth->values = NULL;
}
