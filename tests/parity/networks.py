"""Networks described once and made in both libraries: a list of layers, each its kind and its numbers. Parameters have
the same names in both."""
import torch

import layers
import tarn

nn = torch.nn
ACTIVATIONS = {"relu": nn.ReLU, "silu": nn.SiLU}

TORCH = {
    "linear": lambda dtype, inside, outside: nn.Linear(inside, outside, dtype=dtype), "conv": lambda dtype, inside,
    outside, kernel, stride, padding, bias: nn.Conv2d(inside, outside, kernel, stride, padding, bias=bias, dtype=dtype),
    "batchnorm": lambda dtype, channels: nn.BatchNorm2d(channels, dtype=dtype),
    "activation": lambda dtype, name: ACTIVATIONS[name](), "max_pool": lambda dtype, kernel: nn.MaxPool2d(kernel),
    "avg_pool": lambda dtype, kernel: nn.AvgPool2d(kernel), "global_avg_pool": lambda dtype: nn.AdaptiveAvgPool2d(1),
    "flatten": lambda dtype: nn.Flatten(),
    "residual": lambda dtype, body, shortcut: layers.Residual(in_torch(body, dtype),
                                                              in_torch(shortcut, dtype) if shortcut else None), }

TARN = {
    "linear": lambda dtype, inside, outside: layers.linear(inside, outside, dtype),
    "conv": lambda dtype, inside, outside, kernel, stride, padding, bias: layers.conv2d(
        inside, outside, kernel, dtype, stride=stride, padding=padding, bias=bias),
    "batchnorm": lambda dtype, channels: layers.batchnorm(channels, dtype),
    "activation": lambda dtype, name: tarn.nn.Activation(name),
    "max_pool": lambda dtype, kernel: tarn.nn.MaxPool2d(kernel),
    "avg_pool": lambda dtype, kernel: tarn.nn.AvgPool2d(kernel),
    "global_avg_pool": lambda dtype: tarn.nn.GlobalAvgPool2d(),
    "flatten": lambda dtype: tarn.nn.Flatten(),
    "residual": lambda dtype, body, shortcut: layers.residual(in_tarn(body, dtype),
                                                              in_tarn(shortcut, dtype) if shortcut else None), }


def in_torch(network, dtype=torch.float32):
    return nn.Sequential(*(TORCH[kind](dtype, *numbers) for kind, *numbers in network))


def in_tarn(network, dtype="f32"):
    """On the device in use."""
    return layers.sequential(*(TARN[kind](dtype, *numbers) for kind, *numbers in network))


# ---- parts -----------------------------------------------------------------------------------------------------------
# -------------------


def conv(inside, outside, kernel=3, stride=1, padding=0, bias=True):
    return "conv", inside, outside, kernel, stride, padding, bias


def conv_norm(inside, outside, kernel=3, stride=1, padding=0):
    """A convolution without bias, which the norm behind it would take away."""
    return [conv(inside, outside, kernel, stride, padding, bias=False), ("batchnorm", outside)]


def block(inside, outside, stride, activation="relu"):
    """A ResNet's block; its shortcut is a 1 × 1 convolution where the shape changes."""
    body = [
        *conv_norm(inside, outside, 3, stride, 1), ("activation", activation), *conv_norm(outside, outside, 3, 1, 1)]
    shortcut = conv_norm(inside, outside, 1, stride) if stride > 1 or inside != outside else None
    return [("residual", body, shortcut), ("activation", activation)]


# ---- networks --------------------------------------------------------------------------------------------------------
# -------------------


def mlp(activation):
    """Images of 2 × 8 × 8, 5 classes; as the next two."""
    return [("flatten", ), ("linear", 128, 24), ("activation", activation), ("linear", 24, 16),
            ("activation", activation), ("linear", 16, 5)]


def cnn(activation):
    pool = ("max_pool" if activation == "relu" else "avg_pool", 2)
    return [
        *conv_norm(2, 6, padding=1), ("activation", activation), pool, *conv_norm(6, 8), ("activation", activation),
        ("flatten", ), ("linear", 32, 5)]


def resnet_block(activation):
    return [
        *conv_norm(2, 6, padding=1), ("activation", activation), *block(6, 10, 2, activation), ("global_avg_pool", ),
        ("flatten", ), ("linear", 10, 5)]


def mnist_cnn():
    """Two convolutions for images of 28 × 28, 10 classes."""
    return [
        conv(1, 32), ("activation", "relu"),
        conv(32, 64), ("activation", "relu"), ("max_pool", 2), ("flatten", ), ("linear", 9216, 128),
        ("activation", "relu"), ("linear", 128, 10)]


def lenet():
    """The same task after LeNet: two convolutions of 5 × 5, each before a pool."""
    return [
        conv(1, 20, 5), ("activation", "relu"), ("max_pool", 2),
        conv(20, 50, 5), ("activation", "relu"), ("max_pool", 2), ("flatten", ), ("linear", 800, 128),
        ("activation", "relu"), ("linear", 128, 10)]


def resnet20():
    """Nine blocks of two convolutions, for images of 3 × 32 × 32, 10 classes."""
    network, inside = [*conv_norm(3, 16, padding=1), ("activation", "relu")], 16
    for outside in (16, 32, 64):
        for k in range(3):
            network += block(inside, outside, 2 if k == 0 and outside > 16 else 1)
            inside = outside
    return [*network, ("global_avg_pool",), ("flatten",), ("linear", 64, 10)]
