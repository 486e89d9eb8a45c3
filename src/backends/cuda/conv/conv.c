/* conv.c: conv2d, dgrad and wgrad: selects the algorithm of each convolution.
 *
 * The candidates: cuDNN as requested, in the other channel order, with a flipped weight, in TF32; im2col plus GEMM
 * (conv_im2col.c); and for wgrad our tensor-core kernel (conv_wgrad.h). The choice is autotuned per shape and stored
 * (autotune.h). */
#include "backends/cuda/conv/cudnn_conv.h"

/* A walk describes the call's steps. runs = false only measures the scratch; both walks take the same path. */
static size_t walk(const tarn__call *call, int what, bool runs)
{
    size_t bytes;
    return tarn__cudnn_conv_call(call, what, runs, &bytes) ? bytes : tarn__cuda_conv_im2col(call, what, runs);
}

#define KERNEL(name, what) \
    static size_t scratch_##name(const tarn__call *call) \
    { \
        return walk(call, what, false); \
    } \
    static void kernel_##name(const tarn__call *call) \
    { \
        walk(call, what, true); \
    }
KERNEL(conv2d, TARN__CONV_FORWARD)
KERNEL(conv2d_grad_x, TARN__CONV_DGRAD)
KERNEL(conv2d_grad_weight, TARN__CONV_WGRAD)

void tarn__cuda_conv(tarn__kernel_row *rows)
{
    rows[TARN__K_conv2d] = (tarn__kernel_row){kernel_conv2d, TARN__FLOATS, scratch_conv2d};
    rows[TARN__K_conv2d_grad_x] = (tarn__kernel_row){kernel_conv2d_grad_x, TARN__FLOATS, scratch_conv2d_grad_x};
    rows[TARN__K_conv2d_grad_weight] =
        (tarn__kernel_row){kernel_conv2d_grad_weight, TARN__FLOATS, scratch_conv2d_grad_weight};
}
