/* conv.c: the kernels of convolutions: by cuDNN, or our own kernel of gradients of weights, where these do one best
 * (cudnn_conv.c), else as matrix products (conv_im2col.c). */
#include "backends/cuda/conv/cudnn_conv.h"

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
