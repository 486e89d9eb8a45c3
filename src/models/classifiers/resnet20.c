/* resnet20.c: ResNet-20 for 32 × 32 images: one convolution, nine residual blocks, global average pooling, a linear
 * layer.
 *
 * A block is relu(bn2(conv2(relu(bn1(conv1(x))))) + shortcut(x)). Where it halves the image and doubles the
 * channels, the shortcut takes every second row and column and pads the channels with zeros: it has no parameters. */
#include <stdio.h>
#include <string.h>
#include <tarn/model.h>

#include "base/error.h"
#include "nn/module.h"

/* Groups of blocks, blocks per group, channels of the first group. */
enum { GROUPS = 3, BLOCKS = 3, WIDTH = 16 };
enum { CONV1, BN1, CONV2, BN2 };                    /* children of a block */
enum { STEM_CONV, STEM_BN, FIRST_GROUP, HEAD = 5 }; /* children of the network */

/* 3 × 3 without bias, padded: only the stride changes the size. */
static tarn_module *convolution(int64_t in, int64_t out, int64_t stride, tarn_device device)
{
    return tarn_conv2d_layer_with(
        in, out, device,
        &(tarn_conv2d_layer_options){.kernel = {3, 3}, .stride = {stride, stride}, .padding = {1, 1}, .no_bias = true});
}

/* x [N, in, H, W] → [N, out, (H + 1) / 2, (W + 1) / 2]; x itself if the channels are equal. */
static tarn_tensor *shortcut(tarn_tensor *x, int64_t out)
{
    int64_t in = tarn_size(x, 1), before = (out - in) / 2;
    if (in == out)
        return x;
    return tarn_pad(tarn_stride(x, TARN_SHAPE(1, 1, 2, 2)), TARN_SHAPE(0, before, 0, 0),
                    TARN_SHAPE(0, out - in - before, 0, 0), 0);
}

/* Batchnorm, residual addition and relu are one fused operation. */
static tarn_tensor *block_forward(tarn_module *block, tarn_tensor *x, void *ctx)
{
    (void)ctx;
    tarn_tensor *y = tarn__forward_relu(block->child[BN1], tarn_forward(block->child[CONV1], x), NULL);
    y = tarn_forward(block->child[CONV2], y);
    tarn_tensor *past = y ? shortcut(x, tarn_size(y, 1)) : NULL;
    return past ? tarn__forward_relu(block->child[BN2], y, past) : NULL;
}

/* [N, channels, H, W] → [N, classes]. */
static tarn_tensor *resnet_forward(tarn_module *model, tarn_tensor *x, void *ctx)
{
    (void)ctx;
    tarn_tensor *y = tarn__forward_relu(model->child[STEM_BN], tarn_forward(model->child[STEM_CONV], x), NULL);
    for (int group = 0; y && group < GROUPS; group++)
        y = tarn_forward(model->child[FIRST_GROUP + group], y);
    return y ? tarn_forward(model->child[HEAD], tarn_mean(y, TARN_AXES(2, 3), false)) : NULL;
}

/* The first block of a group changes the channels, and halves the image with its stride. */
static tarn_module *make_block(int64_t in, int64_t out, tarn_device device)
{
    static const char *const names[] = {[CONV1] = "conv1", [BN1] = "bn1", [CONV2] = "conv2", [BN2] = "bn2"};
    tarn_module *const children[] = {
        [CONV1] = convolution(in, out, in == out ? 1 : 2, device),
        [BN1] = tarn_batchnorm2d(out, device),
        [CONV2] = convolution(out, out, 1, device),
        [BN2] = tarn_batchnorm2d(out, device),
    };
    return tarn__with_children(tarn__module_new("model_resnet20", "residual block", block_forward, NULL, NULL), names,
                               children, 4);
}

/* A group of blocks; the first one has `in` input channels. */
static tarn_module *make_group(int64_t in, int64_t out, tarn_device device)
{
    tarn_module *blocks[BLOCKS];
    for (int i = 0; i < BLOCKS; i++)
        blocks[i] = make_block(i ? out : in, out, device);
    return tarn_sequential_from(blocks, BLOCKS);
}

/* Names are those of common PyTorch implementations. */
static tarn_module *make(int64_t classes, int64_t channels, tarn_device device)
{
    static const char *const names[] = {"conv1", "bn1", "layer1", "layer2", "layer3", "linear"};
    tarn_module *const children[] = {
        convolution(channels, WIDTH, 1, device),  tarn_batchnorm2d(WIDTH, device),
        make_group(WIDTH, WIDTH, device),         make_group(WIDTH, 2 * WIDTH, device),
        make_group(2 * WIDTH, 4 * WIDTH, device), tarn_linear(4 * WIDTH, classes, device),
    };
    return tarn__with_children(tarn__module_new("model_resnet20", "resnet20", resnet_forward, NULL, NULL), names,
                               children, 6);
}

tarn_module *tarn_model_resnet20_with_sized(int64_t classes, tarn_device device, const tarn_resnet20_options *options,
                                            size_t options_size)
{
    tarn_resnet20_options chosen = {0};
    if (options)
        memcpy(&chosen, options, options_size < sizeof(chosen) ? options_size : sizeof(chosen));
    if (tarn_failed())
        return NULL;
    if (classes < 1 || chosen.channels < 0) {
        tarn__raise(TARN_ERROR_SHAPE, "model_resnet20: %lld classes and %lld channels; both must be at least 1",
                    (long long)classes, (long long)chosen.channels);
        return NULL;
    }
    tarn_module *model = make(classes, chosen.channels ? chosen.channels : 3, device);
    if (!model)
        tarn__raise_within("model_resnet20");
    return model;
}

tarn_module *tarn_model_resnet20(int64_t classes, tarn_device device)
{
    return tarn_model_resnet20_with(classes, device, NULL);
}
