/* resnet.c: ResNet-18, -34 and -50 as torchvision's, with its parameter names: a 7 × 7 convolution and pooling, four
 * groups of residual blocks, global average pooling, a linear layer.
 *
 * A basic block is two 3 × 3 convolutions; a bottleneck is 1 × 1, 3 × 3 and 1 × 1, with four times the channels at its
 * end, and its stride in the 3 × 3 convolution. Where a block changes the shape, a strided 1 × 1 convolution with a
 * batchnorm ("downsample") brings x to it. */
#include <math.h>
#include <string.h>
#include <tarn/model.h>

#include "base/error.h"
#include "nn/module.h"

enum { GROUPS = 4, WIDTH = 64, EXPANSION = 4, MAX_BLOCKS = 6 };
enum { CONV1, BN1, FIRST_GROUP, HEAD = FIRST_GROUP + GROUPS, CHILDREN }; /* children of the network */

/* Blocks of each group. */
typedef struct depth {
    int layers;
    bool is_bottleneck;
    int blocks[GROUPS];
} depth;
static const depth depths[] = {{18, false, {2, 2, 2, 2}}, {34, false, {3, 4, 6, 3}}, {50, true, {3, 4, 6, 3}}};

/* Padded so that only the stride changes the size; without bias, as a batchnorm follows. */
static tarn_module *convolution(int64_t in, int64_t out, int64_t kernel, int64_t stride, tarn_device device)
{
    return tarn_conv2d_layer_with(in, out, device,
                                  &(tarn_conv2d_layer_options){.kernel = {kernel, kernel},
                                                               .stride = {stride, stride},
                                                               .padding = {kernel / 2, kernel / 2},
                                                               .no_bias = true});
}

/* ---- forward ----------------------------------------------------------------------------------------------------- */

/* relu(bn_n(conv_n(… relu(bn1(conv1(x))))) + downsample(x)). Children are pairs of convolution and batchnorm, then
 * perhaps the downsample. */
static tarn_tensor *block_forward(tarn_module *block, tarn_tensor *x, void *ctx)
{
    (void)ctx;
    int pairs = block->children / 2;
    tarn_tensor *y = x, *past = block->children % 2 ? tarn_forward(block->child[2 * pairs], x) : x;
    for (int i = 0; past && y && i < pairs; i++)
        y = tarn__forward_relu(block->child[2 * i + 1], tarn_forward(block->child[2 * i], y),
                               i == pairs - 1 ? past : NULL);
    return past ? y : NULL;
}

/* [N, channels, H, W] → [N, classes]. */
static tarn_tensor *resnet_forward(tarn_module *model, tarn_tensor *x, void *ctx)
{
    (void)ctx;
    tarn_tensor *y = tarn__forward_relu(model->child[BN1], tarn_forward(model->child[CONV1], x), NULL);
    y = tarn_max_pool2d(y, &(tarn_pool2d_options){.kernel = {3, 3}, .stride = {2, 2}, .padding = {1, 1}});
    for (int group = 0; y && group < GROUPS; group++)
        y = tarn_forward(model->child[FIRST_GROUP + group], y);
    return y ? tarn_forward(model->child[HEAD], tarn_mean(y, TARN_AXES(2, 3), false)) : NULL;
}

/* ---- construction ------------------------------------------------------------------------------------------------ */

/* The children's names are torchvision's: a basic block has no conv3. */
static tarn_module *make_block(bool is_bottleneck, int64_t in, int64_t width, int64_t stride, tarn_device device)
{
    static const char *const names[] = {"conv1", "bn1", "conv2", "bn2", "conv3", "bn3", "downsample"};
    int64_t out = is_bottleneck ? EXPANSION * width : width;
    const char *own[7];
    tarn_module *children[7];
    int count = 0;
    if (is_bottleneck) {
        children[count++] = convolution(in, width, 1, 1, device);
        children[count++] = tarn_batchnorm2d(width, device);
    }
    children[count++] = convolution(is_bottleneck ? width : in, width, 3, stride, device);
    children[count++] = tarn_batchnorm2d(width, device);
    children[count++] = convolution(width, out, is_bottleneck ? 1 : 3, 1, device);
    children[count++] = tarn_batchnorm2d(out, device);
    memcpy(own, names, sizeof(own[0]) * (size_t)count);
    if (stride != 1 || in != out) {
        own[count] = names[6];
        children[count++] =
            tarn_sequential(convolution(in, out, 1, stride, device), tarn_batchnorm2d(out, device), NULL);
    }
    return tarn__with_children(tarn__module_new("model_resnet", "residual block", block_forward, NULL, NULL), own,
                               children, count);
}

/* The first block of a group changes the channels, and from the second group on halves the image. */
static tarn_module *make_group(const depth *d, int group, tarn_device device)
{
    tarn_module *blocks[MAX_BLOCKS];
    int expansion = d->is_bottleneck ? EXPANSION : 1;
    int64_t width = (int64_t)WIDTH << group, in = group ? expansion * width / 2 : WIDTH;
    for (int i = 0; i < d->blocks[group]; i++)
        blocks[i] = make_block(d->is_bottleneck, i ? expansion * width : in, width, i == 0 && group ? 2 : 1, device);
    return tarn_sequential_from(blocks, d->blocks[group]);
}

static tarn_module *make(const depth *d, int64_t classes, int64_t channels, tarn_device device)
{
    static const char *const names[] = {"conv1", "bn1", "layer1", "layer2", "layer3", "layer4", "fc"};
    /* Channels of the last group, which pooling leaves. */
    int64_t features = (d->is_bottleneck ? EXPANSION : 1) * ((int64_t)WIDTH << (GROUPS - 1));
    tarn_module *children[CHILDREN] = {
        [CONV1] = convolution(channels, WIDTH, 7, 2, device), [BN1] = tarn_batchnorm2d(WIDTH, device)};
    for (int group = 0; group < GROUPS; group++)
        children[FIRST_GROUP + group] = make_group(d, group, device);
    children[HEAD] = tarn_linear(features, classes, device);
    return tarn__with_children(tarn__module_new("model_resnet", "resnet", resnet_forward, NULL, NULL), names, children,
                               CHILDREN);
}

/* Convolutions are drawn as torchvision's: normal, with a variance that keeps gradients in scale through relu (Kaiming,
 * fan out). */
static bool draw_convolutions(tarn_module *model)
{
    bool good = true;
    tarn_scope *scope = tarn_scope_open();
    tarn_no_grad_open();
    for (int i = 0; good && i < tarn_module_parameter_count(model); i++) {
        tarn_tensor *weight = tarn_module_parameter(model, i);
        if (tarn_rank(weight) != 4)
            continue;
        double fan_out = (double)(tarn_size(weight, 0) * tarn_size(weight, 2) * tarn_size(weight, 3));
        tarn_tensor *drawn = tarn_normal_like(weight, 0, sqrt(2 / fan_out));
        good = drawn && tarn_copy(weight, drawn);
        tarn_free(drawn);
    }
    tarn_no_grad_close();
    tarn_scope_close(scope);
    return good;
}

tarn_module *tarn_model_resnet_sized(int layers, int64_t classes, tarn_device device,
                                     const tarn_resnet_options *options, size_t options_size)
{
    tarn_resnet_options chosen = {0};
    const depth *d = NULL;
    if (options)
        memcpy(&chosen, options, options_size < sizeof(chosen) ? options_size : sizeof(chosen));
    if (tarn_failed())
        return NULL;
    for (size_t i = 0; i < sizeof(depths) / sizeof(depths[0]); i++)
        d = depths[i].layers == layers ? &depths[i] : d;
    if (!d || classes < 1 || chosen.channels < 0) {
        tarn__raise(TARN_ERROR_SHAPE,
                    "model_resnet: %d layers, %lld classes and %lld channels; layers must be 18, 34 or 50, the others "
                    "at least 1",
                    layers, (long long)classes, (long long)chosen.channels);
        return NULL;
    }
    tarn_module *model = make(d, classes, chosen.channels ? chosen.channels : 3, device);
    if (model && !draw_convolutions(model)) {
        tarn_module_free(model);
        model = NULL;
    }
    if (!model)
        tarn__raise_within("model_resnet");
    return model;
}
