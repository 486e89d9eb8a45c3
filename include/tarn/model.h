/* model.h: whole networks, as modules: what they are made of is in their names, so weights of other programs load by name. */
#ifndef TARN_MODEL_H
#define TARN_MODEL_H

#include <tarn/nn.h>

#ifdef __cplusplus
extern "C" {
#endif

/* A perceptron: x [N, ...] of `inputs` numbers a sample is flattened, then come linear layers of the `hidden` sizes, each with a ReLU, and
 * one of `classes` numbers. `hidden` is read during the call and may be NULL when `hidden_count` is 0. The caller owns the module. */
TARN_API tarn_module *tarn_model_mlp(int64_t inputs, const int64_t *hidden, int hidden_count, int64_t classes, tarn_device device);

/* A small convolutional network in the manner of LeNet, for images [N, channels, height, width] with sides from 4 to 65536: twice a
 * convolution of 5 × 5 taps (16 and 32 channels, the size kept), ReLU and a maximum over 2 × 2, then a linear layer. The caller owns the
 * module. */
TARN_API tarn_module *tarn_model_lenet(int64_t channels, int64_t height, int64_t width, int64_t classes, tarn_device device);

/* ResNet-20 for small images [N, 3, H, W] (He and others 2015, section 4.2; shortcuts without parameters). Names are those of PyTorch
 * programs: "conv1.weight", "layer2.0.bn1.running_mean", "linear.bias". Files of such programs may lack the "num_batches_tracked" of each
 * norm, which nothing reads: load them with .allow_missing. The caller owns the module. */
TARN_API tarn_module *tarn_model_resnet20(int64_t classes, tarn_device device);

/* Options of tarn_model_resnet20_with(); zero is every field's default. */
typedef struct tarn_resnet20_options {
    int64_t channels; /* of the images; default 3 */
} tarn_resnet20_options;

/* The same with options. `...` is a const tarn_resnet20_options *, or NULL. */
TARN_API tarn_module *tarn_model_resnet20_with_sized(int64_t classes, tarn_device device, const tarn_resnet20_options *options,
                                                     size_t options_size);
#define tarn_model_resnet20_with(classes, device, ...) \
    tarn_model_resnet20_with_sized(classes, device, __VA_ARGS__, sizeof(tarn_resnet20_options))

#ifdef __cplusplus
}
#endif
#endif
