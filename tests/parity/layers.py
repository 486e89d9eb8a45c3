"""Every layer against torch.nn's: the names and shapes of its state, the distribution it begins with, and, from the
same weights (carried in a safetensors file by their state_dict names), its result, its gradients and its buffers
afterwards; in training mode and out of it."""
import dataclasses
import os
import tempfile
from typing import Callable

import safetensors.torch
import torch

import compare
import support
import tarn

nn = torch.nn


@dataclasses.dataclass
class Layer:
    """One layer: how torch makes it in a dtype, how tarn does (on the device in use), and inputs for
    it."""
    theirs: Callable
    ours: Callable
    input: Callable
    training: tuple = (True, False)
    terms: int = 0  # of its longest sum


class Residual(nn.Module):
    def __init__(self, body, shortcut=None):
        super().__init__()
        self.body, self.shortcut = body, shortcut

    def forward(self, x):
        return self.body(x) + (self.shortcut(x) if self.shortcut else x)


def linear(inside, outside, dtype, bias=True):
    return tarn.nn.Linear(inside, outside, bias, dtype=dtype, device=support.device())


def layernorm(size, dtype, **fields):
    return tarn.nn.LayerNorm(size, dtype=dtype, device=support.device(), **fields)


def rmsnorm(size, dtype, **fields):
    return tarn.nn.RMSNorm(size, dtype=dtype, device=support.device(), **fields)


def embedding(count, size, dtype):
    return tarn.nn.Embedding(count, size, dtype=dtype, device=support.device())


def conv2d(inside, outside, kernel, dtype, **fields):
    return tarn.nn.Conv2d(inside, outside, kernel, dtype=dtype, device=support.device(), **fields)


def conv_transpose2d(inside, outside, kernel, dtype, **fields):
    return tarn.nn.ConvTranspose2d(inside, outside, kernel, dtype=dtype, device=support.device(), **fields)


def conv1d(inside, outside, kernel, dtype, **fields):
    return tarn.nn.Conv1d(inside, outside, kernel, dtype=dtype, device=support.device(), **fields)


def instancenorm(channels, dtype, **fields):
    return tarn.nn.InstanceNorm(channels, dtype=dtype, device=support.device(), **fields)


class LSTM(nn.LSTM):
    """As in tarn, a forward gives the hidden states of all steps alone."""
    def forward(self, x, state=None):
        y, self.last = super().forward(x, state)
        return y


class GRU(nn.GRU):
    def forward(self, x, state=None):
        y, self.last = super().forward(x, state)
        return y


def recurrent(kind, inside, hidden, dtype, **fields):
    return getattr(tarn.nn, kind)(inside, hidden, dtype=dtype, device=support.device(), **fields)


def groupnorm(groups, channels, dtype):
    return tarn.nn.GroupNorm(groups, channels, dtype=dtype, device=support.device())


def batchnorm(channels, dtype, **fields):
    return tarn.nn.BatchNorm2d(channels, dtype=dtype, device=support.device(), **fields)


def sequential(*modules):
    return tarn.nn.Sequential(*modules)


def residual(body, shortcut=None):
    return tarn.nn.Residual(body, shortcut)


def rows(*shape):
    return lambda dtype: torch.randn(*shape, dtype=dtype)


def tokens(count, *shape):
    return lambda dtype: torch.randint(0, count, shape)


ACTIVATIONS = {
    "relu": nn.ReLU, "leaky_relu": nn.LeakyReLU, "gelu": lambda: nn.GELU("tanh"), "gelu_erf": nn.GELU, "silu": nn.SiLU,
    "tanh": nn.Tanh, "sigmoid": nn.Sigmoid, "softplus": nn.Softplus}


def block(dtype):
    return Residual(
        nn.Sequential(nn.LayerNorm(12, dtype=dtype), nn.Linear(12, 24, dtype=dtype), nn.GELU("tanh"),
                      nn.Linear(24, 12, dtype=dtype)))


def tarn_block(dtype):
    return residual(
        sequential(layernorm(12, dtype), linear(12, 24, dtype), tarn.nn.Activation("gelu"), linear(24, 12, dtype)))


LAYERS = {
    "linear": Layer(lambda d: nn.Linear(7, 5, dtype=d), lambda d: linear(7, 5, d), rows(3, 4, 7)),
    "linear without bias": Layer(lambda d: nn.Linear(7, 5, bias=False, dtype=d), lambda d: linear(7, 5, d, False),
                                 rows(6, 7)),
    "layernorm": Layer(lambda d: nn.LayerNorm(33, dtype=d), lambda d: layernorm(33, d), rows(4, 5, 33)),
    "layernorm without bias": Layer(lambda d: nn.LayerNorm(8, eps=0.01, bias=False, dtype=d),
                                    lambda d: layernorm(8, d, epsilon=0.01, bias=False), rows(9, 8)),
    "layernorm without parameters": Layer(lambda d: nn.LayerNorm(8, elementwise_affine=False, dtype=d),
                                          lambda d: layernorm(8, d, affine=False), rows(9, 8)),
    "rmsnorm": Layer(lambda d: nn.RMSNorm(33, eps=1e-6, dtype=d), lambda d: rmsnorm(33, d), rows(4, 5, 33)),
    "embedding": Layer(lambda d: nn.Embedding(11, 6, dtype=d), lambda d: embedding(11, 6, d), tokens(11, 5, 7)),
    "conv2d": Layer(lambda d: nn.Conv2d(3, 8, 3, padding=1, dtype=d), lambda d: conv2d(3, 8, 3, d, padding=1),
                    rows(2, 3, 9, 8)),
    "conv2d in groups": Layer(
        lambda d: nn.Conv2d(4, 6, (3, 2), (2, 1), (1, 0), (1, 2), 2, bias=False, dtype=d),
        lambda d: conv2d(4, 6, (3, 2), d, stride=(2, 1), padding=(1, 0), dilation=(1, 2), groups=2, bias=False),
        rows(3, 4, 11, 9)),
    "max_pool2d": Layer(lambda d: nn.MaxPool2d((3, 2), (2, 2), (1, 1)),
                        lambda d: tarn.nn.MaxPool2d((3, 2), (2, 2), (1, 1)), rows(2, 3, 9, 8)),
    "avg_pool2d": Layer(lambda d: nn.AvgPool2d(3, 2, 1, ceil_mode=True, count_include_pad=False),
                        lambda d: tarn.nn.AvgPool2d(3, 2, 1, ceil_mode=True, count_include_pad=False),
                        rows(2, 3, 10, 8)),
    "global_avg_pool2d": Layer(lambda d: nn.AdaptiveAvgPool2d(1), lambda d: tarn.nn.GlobalAvgPool2d(),
                               rows(2, 3, 5, 4)),
    "groupnorm": Layer(lambda d: nn.GroupNorm(3, 12, dtype=d), lambda d: groupnorm(3, 12, d), rows(2, 12, 5, 4)),
    "batchnorm2d": Layer(lambda d: nn.BatchNorm2d(6, dtype=d), lambda d: batchnorm(6, d), rows(3, 6, 5, 4)),
    "batchnorm2d without parameters": Layer(lambda d: nn.BatchNorm2d(6, 0.01, 0.3, affine=False, dtype=d),
                                            lambda d: batchnorm(6, d, epsilon=0.01, momentum=0.3, affine=False),
                                            rows(3, 6, 5, 4)),
    "batchnorm2d without statistics": Layer(lambda d: nn.BatchNorm2d(6, track_running_stats=False, dtype=d),
                                            lambda d: batchnorm(6, d, track_running_stats=False), rows(3, 6, 5, 4)),
    "image network": Layer(
        lambda d: nn.Sequential(
            nn.Conv2d(2, 6, 3, padding=1, bias=False, dtype=d), nn.BatchNorm2d(6, dtype=d), nn.SiLU(), nn.AvgPool2d(2),
            Residual(nn.Sequential(nn.Conv2d(6, 6, 3, padding=1, dtype=d), nn.GroupNorm(2, 6, dtype=d))),
            nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(6, 3, dtype=d)),
        lambda d: sequential(
            conv2d(2, 6, 3, d, padding=1, bias=False), batchnorm(6, d), tarn.nn.SiLU(), tarn.nn.AvgPool2d(2),
            residual(sequential(conv2d(6, 6, 3, d, padding=1), groupnorm(2, 6, d))),
            tarn.nn.GlobalAvgPool2d(), tarn.nn.Flatten(), linear(6, 3, d)), rows(4, 2, 8, 6)),
    "dropout": Layer(lambda d: nn.Dropout(0.4), lambda d: tarn.nn.Dropout(0.4), rows(5, 6), training=(False, )),
    "flatten": Layer(lambda d: nn.Flatten(), lambda d: tarn.nn.Flatten(), rows(2, 3, 4, 5)),
    "residual": Layer(block, tarn_block, rows(5, 12)),
    "residual with a shortcut": Layer(
        lambda d: Residual(nn.Linear(6, 9, dtype=d), nn.Linear(6, 9, bias=False, dtype=d)),
        lambda d: residual(linear(6, 9, d), linear(6, 9, d, False)), rows(4, 6)),
    "network": Layer(
        lambda d: nn.Sequential(nn.Embedding(13, 12, dtype=d), block(d), nn.Dropout(0.0),
                                nn.RMSNorm(12, eps=1e-6, dtype=d), nn.Flatten(), nn.Linear(60, 3, dtype=d)),
        lambda d: sequential(embedding(13, 12, d), tarn_block(d), tarn.nn.Dropout(0.0), rmsnorm(12, d),
                             tarn.nn.Flatten(), linear(60, 3, d)), tokens(13, 4, 5)),
    "conv_transpose2d": Layer(lambda d: nn.ConvTranspose2d(3, 8, 4, 2, 1, dtype=d),
                              lambda d: conv_transpose2d(3, 8, 4, d, stride=2, padding=1), rows(2, 3, 5, 4)),
    "conv_transpose2d in groups": Layer(
        lambda d: nn.ConvTranspose2d(4, 6, (3, 2), (2, 1), (1, 0), (1, 0), 2, False, (1, 2), dtype=d),
        lambda d: conv_transpose2d(4, 6, (3, 2), d, stride=(2, 1), padding=(1, 0), output_padding=(1, 0),
                                   dilation=(1, 2), groups=2, bias=False), rows(2, 4, 5, 6)),
    "conv1d": Layer(lambda d: nn.Conv1d(4, 6, 3, 2, 1, 2, 2, dtype=d),
                    lambda d: conv1d(4, 6, 3, d, stride=2, padding=1, dilation=2, groups=2), rows(3, 4, 17)),
    "instancenorm": Layer(lambda d: nn.InstanceNorm2d(5, dtype=d), lambda d: instancenorm(5, d), rows(3, 5, 4, 6)),
    "instancenorm with parameters": Layer(lambda d: nn.InstanceNorm1d(5, eps=0.01, affine=True, dtype=d),
                                          lambda d: instancenorm(5, d, affine=True, epsilon=0.01), rows(3, 5, 14)),
    "upsample": Layer(lambda d: nn.Upsample(scale_factor=2), lambda d: tarn.nn.Upsample(scale=2), rows(2, 3, 5, 4)),
    "upsample bilinear": Layer(lambda d: nn.Upsample((9, 3), mode="bilinear", align_corners=True),
                               lambda d: tarn.nn.Upsample((9, 3), mode="bilinear", align_corners=True),
                               rows(2, 3, 5, 4)),
    "lstm": Layer(lambda d: LSTM(5, 7, dtype=d), lambda d: recurrent("LSTM", 5, 7, d), rows(6, 3, 5)),
    "lstm of two layers and directions": Layer(
        lambda d: LSTM(4, 6, 2, batch_first=True, bidirectional=True, dtype=d),
        lambda d: recurrent("LSTM", 4, 6, d, layers=2, batch_first=True, bidirectional=True), rows(3, 5, 4)),
    "lstm without bias": Layer(lambda d: LSTM(4, 6, 3, bias=False, dropout=0.5, dtype=d),
                               lambda d: recurrent("LSTM", 4, 6, d, layers=3, bias=False, dropout=0.5),
                               rows(4, 2, 4), (False, )),
    "gru": Layer(lambda d: GRU(5, 7, dtype=d), lambda d: recurrent("GRU", 5, 7, d), rows(6, 3, 5)),
    "gru of two layers and directions": Layer(
        lambda d: GRU(4, 6, 2, bidirectional=True, dtype=d),
        lambda d: recurrent("GRU", 4, 6, d, layers=2, bidirectional=True), rows(5, 3, 4)),
    "gru without bias": Layer(lambda d: GRU(4, 6, bias=False, batch_first=True, dtype=d),
                              lambda d: recurrent("GRU", 4, 6, d, bias=False, batch_first=True), rows(1, 8, 4)),
}
LAYERS.update({f"activation {name}": Layer(lambda d, make=make: make(),
                                           lambda d, name=name: tarn.nn.Activation(name), rows(6, 7))
               for name, make in ACTIVATIONS.items()})

# Large layers, whose initial weights must be spread as torch's are.
INITIAL = {
    "linear": Layer(lambda d: nn.Linear(400, 300), lambda d: linear(400, 300, d), None),
    "conv2d": Layer(lambda d: nn.Conv2d(32, 64, (3, 5), groups=2), lambda d: conv2d(32, 64, (3, 5), d, groups=2), None),
    "conv_transpose2d": Layer(lambda d: nn.ConvTranspose2d(32, 64, (3, 5), groups=2),
                              lambda d: conv_transpose2d(32, 64, (3, 5), d, groups=2), None),
    "conv1d": Layer(lambda d: nn.Conv1d(64, 96, 5), lambda d: conv1d(64, 96, 5, d), None),
    "lstm": Layer(lambda d: nn.LSTM(40, 60, 2, bidirectional=True),
                  lambda d: recurrent("LSTM", 40, 60, d, layers=2, bidirectional=True), None),
    "gru": Layer(lambda d: nn.GRU(40, 60, 2), lambda d: recurrent("GRU", 40, 60, d, layers=2), None),
    "groupnorm": Layer(lambda d: nn.GroupNorm(4, 100), lambda d: groupnorm(4, 100, d), None),
    "batchnorm2d": Layer(lambda d: nn.BatchNorm2d(100), lambda d: batchnorm(100, d), None),
    "layernorm": Layer(lambda d: nn.LayerNorm(100), lambda d: layernorm(100, d), None),
    "rmsnorm": Layer(lambda d: nn.RMSNorm(100), lambda d: rmsnorm(100, d), None),
    "embedding": Layer(lambda d: nn.Embedding(500, 200), lambda d: embedding(500, 200, d), None),
}


def randomized(network):
    """Other values than ones and zeros, in every parameter and float buffer."""
    with torch.no_grad():
        for name, values in network.state_dict().items():
            if values.is_floating_point():
                values.copy_(
                    torch.rand_like(values) + 0.5 if name.endswith("running_var") else torch.randn_like(values))
    return network


def exchange(network, module, folder):
    """Carries torch's state to tarn by a file, and tarn's back by another. A text when the way back changed it."""
    there, back = os.path.join(folder, "there.safetensors"), os.path.join(folder, "back.safetensors")
    safetensors.torch.save_file(network.state_dict(), there)
    module.load_weights(there)
    module.save_weights(back)
    state, returned = network.state_dict(), safetensors.torch.load_file(back)
    if set(state) != set(returned):
        return f"names differ: {sorted(set(state) ^ set(returned))}"
    changed = [
        name for name in state
        if state[name].dtype != returned[name].dtype or not torch.equal(state[name], returned[name])]
    return f"changed on the way: {changed}" if changed else ""


def in_torch(network, x, upstream):
    """In f64: result, {name: gradient}, {name: buffer afterwards}."""
    x = x.clone().to(torch.float64).requires_grad_() if x.is_floating_point() else x
    y = network(x)
    y.backward(upstream.to(torch.float64))
    grads = {name: p.grad for name, p in network.named_parameters()}
    return y.detach(), {**grads, **({"x": x.grad} if x.is_floating_point() else {})}, dict(network.named_buffers())


def in_tarn(module, x, upstream):
    given = support.tensor(x)
    if x.is_floating_point():
        given.requires_grad_()
    y = module(given)
    y.backward(support.tensor(upstream))
    grads = {name: support.gradient(p) for name, p in module.named_parameters()}
    if x.is_floating_point():
        grads["x"] = support.gradient(given)
    return support.read(y), grads, {name: support.read(b) for name, b in module.named_buffers()}


def rounded_inputs(run, leaves, truth):
    """How far the f64 tensors that `run` returns move where each element of `leaves` moves by up to half an ulp of f32:
    the largest error of 16 draws, against `truth`, what it returns otherwise."""
    generator, worst = torch.Generator().manual_seed(0), 0.0
    exact = [leaf.detach().clone() for leaf in leaves]
    for _ in range(16):
        for leaf, values in zip(leaves, exact):
            unit = 2 * torch.rand(values.shape, generator=generator, dtype=values.dtype) - 1
            leaf.data = values * (1 + 2.0**-24 * unit)
        worst = max(worst, *(compare.summed(a, b, "f32").error for a, b in zip(run(), truth, strict=True)))
    for leaf, values in zip(leaves, exact):
        leaf.data = values
    return worst


def judge_recurrence(verdicts, dtype, *inputs):
    """With normal weights a recurrence may be ill-conditioned. Of 1200 of them (6 layers, 200 seeds) 2 of tarn's on the
    CPU, 3 on PoCL and 2 of torch's in f32 were further from f64 than 1e-5: at most 5.3e-5, 5.1e-5 and 1.3e-5, while the
    medians of the layers are 0.7e-6 to 2.4e-6 for all three. In the worst one rounding the weights and x to f32 moves
    the gradients of f64 by 7.8e-5. So beyond the bar an error may be four times what that does."""
    if dtype != "f32" or all(v.good for v in verdicts):
        return verdicts
    own = rounded_inputs(*inputs)
    return [compare.relax(v, 2 * own) for v in verdicts]


def check_values(layer, dtype, training, folder):
    """Verdicts of one layer in one dtype and mode."""
    kind = support.TORCH[dtype]
    module = layer.ours(dtype).train(training)
    network = randomized(layer.theirs(kind)).train(training)
    wrong = exchange(network, module, folder)
    if wrong:
        return [compare.Verdict(False, text=wrong)]
    x = layer.input(kind)
    with torch.no_grad():
        shape = layer.theirs(kind).eval()(x).shape
    upstream = torch.randn(shape, dtype=kind)
    ours = in_tarn(module, x, upstream)
    theirs = in_torch(network.to(torch.float64), x, upstream)
    verdicts = [compare.summed(ours[0], theirs[0], dtype, label="result", terms=layer.terms)]
    for what, a, b in (("gradient of ", ours[1], theirs[1]), ("buffer ", ours[2], theirs[2])):
        verdicts.append(compare.Verdict(set(a) == set(b), text=f"{what}{sorted(set(a) ^ set(b))} is in one alone"))
        for name in set(a) & set(b):
            judge = compare.summed if b[name].is_floating_point(
            ) else lambda got, expected, _, label, **more: compare.exact(got, expected, label)
            verdicts.append(judge(a[name], b[name], dtype, label=what + name, terms=layer.terms))
    if not isinstance(network, nn.RNNBase):
        return verdicts
    x = x.to(torch.float64)

    def again():
        network.zero_grad()
        y, grads, _ = in_torch(network, x, upstream)
        return [y, *grads.values()]
    return judge_recurrence(verdicts, dtype, again, [x, *network.parameters()], [theirs[0], *theirs[1].values()])


def states_in_torch(network, values, upstreams):
    leaves = [v.to(torch.float64, copy=True).requires_grad_() for v in values]
    x, *state = leaves
    y = network.to(torch.float64)(x, tuple(state) if len(state) == 2 else state[0])
    results = [y, *(network.last if len(state) == 2 else [network.last])]
    sum((r * u.to(torch.float64)).sum() for r, u in zip(results, upstreams)).backward()
    return [r.detach() for r in results], [leaf.grad for leaf in leaves]


def states_in_tarn(module, values, upstreams):
    leaves = [support.tensor(v).requires_grad_() for v in values]
    x, *state = leaves
    y, last = module.with_state(x, tuple(state) if len(state) == 2 else state[0])
    results = [y, *(last if len(state) == 2 else [last])]
    sum((result * support.tensor(upstream)).sum() for result, upstream in zip(results, upstreams)).backward()
    return [support.read(result) for result in results], [support.gradient(leaf) for leaf in leaves]


def check_states(network, module, dtype, folder):
    """From a state and to one: values, and gradients through both."""
    float_type, states = support.TORCH[dtype], 2 if isinstance(network, nn.LSTM) else 1
    wrong = exchange(randomized(network), module, folder)
    if wrong:
        return [compare.Verdict(False, text=wrong)]
    values = [torch.randn(s, dtype=float_type) for s in [(5, 3, 4)] + states * [(4, 3, 6)]]
    upstreams = [torch.randn(s, dtype=float_type) for s in [(5, 3, 12)] + states * [(4, 3, 6)]]
    ours, theirs = states_in_tarn(module, values, upstreams), states_in_torch(network, values, upstreams)
    verdicts = [compare.summed(a, b, dtype, label=f"{what} {i}")
                for what, ones, others in zip(("result", "gradient"), ours, theirs)
                for i, (a, b) in enumerate(zip(ones, others, strict=True))]
    values = [v.to(torch.float64) for v in values]
    return judge_recurrence(verdicts, dtype, lambda: sum(states_in_torch(network, values, upstreams), []),
                            [*values, *network.parameters()], sum(theirs, []))


def check_initial(layer):
    """The first weights: names, shapes, range, mean and deviation."""
    module, verdicts = layer.ours("f32"), []
    theirs = layer.theirs(torch.float32).state_dict()
    ours = {name: support.read(values) for name, values in module.state_dict().items()}
    for name in sorted(set(ours) | set(theirs)):
        if name not in ours or name not in theirs or ours[name].shape != theirs[name].shape or ours[
                name].dtype != theirs[name].dtype:
            verdicts.append(compare.Verdict(False, text=f"'{name}' is not the same in both"))
            continue
        a, b = ours[name].to(torch.float64), theirs[name].to(torch.float64)
        deviation, size = b.std(correction=0).item(), b.numel()
        close = 6 * deviation / size**0.5  # six deviations of a mean
        wrong = abs(a.mean() -
                    b.mean()) > 2 * close or abs(a.std(correction=0) -
                                                 deviation) > 2 * close or a.abs().max() > 1.5 * b.abs().max()
        verdicts.append(
            compare.Verdict(
                not wrong,
                text=f"'{name}' begins with mean {a.mean():.4g}, deviation {a.std():.4g}, largest {a.abs().max():.4g}; "
                f"torch's with {b.mean():.4g}, {deviation:.4g}, {b.abs().max():.4g}"))
    return verdicts


def run(seed):
    """Yields (check, dtype, verdicts)."""
    torch.manual_seed(seed)
    tarn.seed(seed)
    with tempfile.TemporaryDirectory() as folder:
        for name, layer in LAYERS.items():
            for dtype in ("f64", "f32"):
                for training in layer.training:
                    yield f"{name} {dtype} {'training' if training else 'evaluating'}", dtype, check_values(
                        layer, dtype, training, folder)
        for theirs in (LSTM, GRU):
            for dtype in ("f64", "f32"):
                network = theirs(4, 6, 2, bidirectional=True, dtype=support.TORCH[dtype])
                module = recurrent(theirs.__name__, 4, 6, dtype, layers=2, bidirectional=True)
                yield f"{theirs.__name__} states {dtype}", dtype, check_states(network, module, dtype, folder)
    for name, layer in INITIAL.items():
        yield f"{name} at first", "f32", check_initial(layer)
