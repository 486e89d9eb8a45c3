/* lenet.c: a LeNet-like network: two convolutions with pooling, and a linear layer. */
#include <tarn/model.h>

#include "base/error.h"

/* Channels after each convolution. */
enum { FIRST = 16, SECOND = 32 };

/* 5 × 5, same padding: [N, in, H, W] → [N, out, H, W]. */
static tarn_module *convolution(int64_t in, int64_t out, tarn_device device)
{
    return tarn_conv2d_layer_with(in, out, device, &(tarn_conv2d_layer_options){.kernel = {5, 5}, .padding = {2, 2}});
}

/* 2 × 2 max pooling. */
static tarn_module *halve(void)
{
    return tarn_max_pool2d_layer(&(tarn_pool2d_options){.kernel = {2, 2}});
}

/* Each pooling halves the sides, so the linear layer has 32 · (height / 4) · (width / 4) inputs. */
tarn_module *tarn_model_lenet(int64_t channels, int64_t height, int64_t width, int64_t classes, tarn_device device)
{
    if (tarn_failed())
        return NULL;
    if (channels < 1 || classes < 1 || height < 4 || width < 4 || height > 65536 || width > 65536) {
        tarn__raise(TARN_ERROR_SHAPE,
                    "model_lenet: images of %lld channels, %lld rows and %lld columns, and %lld classes; sides must be "
                    "from 4 to 65536, the others at least 1",
                    (long long)channels, (long long)height, (long long)width, (long long)classes);
        return NULL;
    }
    int64_t left = SECOND * (height / 4) * (width / 4); /* pooling drops an odd last row or column */
    tarn_module *model = tarn_sequential(convolution(channels, FIRST, device), tarn_activation(TARN_RELU), halve(),
                                         convolution(FIRST, SECOND, device), tarn_activation(TARN_RELU), halve(),
                                         tarn_flatten(1), tarn_linear(left, classes, device), NULL);
    if (!model)
        tarn__raise_within("model_lenet");
    return model;
}
