"""ResNet-18, -34 and -50 with torchvision's architecture and parameter names, written here in torch.nn: a file that
torch's weights were saved to is loaded by name, strictly. Logits and the gradients of all parameters out of training
mode, and logits and running statistics in training mode, are compared with torch's in f64.

Bars are torch's own distance in f32 and a small one besides: a relu near 0 may be on in one and off in the other, which
moves gradients by thousandths. A wrong architecture is off by as much as the values are."""
import os
import tempfile

import torch
from safetensors.torch import save_file
from torch import nn

import compare
import support
import tarn

DEPTHS = {18: (False, (2, 2, 2, 2)), 34: (False, (3, 4, 6, 3)), 50: (True, (3, 4, 6, 3))}
CLASSES, IMAGES, SIDE = 7, 2, 48


def conv(inside, outside, kernel, stride=1):
    return nn.Conv2d(inside, outside, kernel, stride, kernel // 2, bias=False)


class Block(nn.Module):
    """A basic block, or a bottleneck with the stride in its middle convolution."""

    def __init__(self, bottleneck, inside, width, stride):
        super().__init__()
        outside = 4 * width if bottleneck else width
        sizes = ([(inside, width, 1, 1), (width, width, 3, stride), (width, outside, 1, 1)]
                 if bottleneck else [(inside, width, 3, stride), (width, width, 3, 1)])
        self.depth = len(sizes)
        for k, size in enumerate(sizes, 1):
            setattr(self, f"conv{k}", conv(*size))
            setattr(self, f"bn{k}", nn.BatchNorm2d(size[1]))
        if stride != 1 or inside != outside:
            self.downsample = nn.Sequential(conv(inside, outside, 1, stride), nn.BatchNorm2d(outside))

    def forward(self, x):
        y = x
        for k in range(1, self.depth + 1):
            y = getattr(self, f"bn{k}")(getattr(self, f"conv{k}")(y))
            if k < self.depth:
                y = y.relu()
        return (y + (self.downsample(x) if hasattr(self, "downsample") else x)).relu()


class Resnet(nn.Module):

    def __init__(self, layers):
        super().__init__()
        bottleneck, blocks = DEPTHS[layers]
        self.conv1, self.bn1, inside = conv(3, 64, 7, 2), nn.BatchNorm2d(64), 64
        for group, count in enumerate(blocks):
            parts = []
            for k in range(count):
                width = 64 << group
                parts.append(Block(bottleneck, inside, width, 2 if k == 0 and group else 1))
                inside = 4 * width if bottleneck else width
            setattr(self, f"layer{group + 1}", nn.Sequential(*parts))
        self.fc = nn.Linear(inside, CLASSES)

    def forward(self, x):
        x = nn.functional.max_pool2d(self.bn1(self.conv1(x)).relu(), 3, 2, 1)
        for group in range(4):
            x = getattr(self, f"layer{group + 1}")(x)
        return self.fc(x.mean((2, 3)))


def torch_results(model, x, upstream):
    """(logits out of training, logits in training, gradients and running statistics by name), in x's dtype."""
    model = model.to(x.dtype).eval()
    model.zero_grad()
    tested = model(x)
    tested.backward(upstream.to(x.dtype))
    values = {name: p.grad.double() for name, p in model.named_parameters()}
    with torch.no_grad():
        trained = model.train()(x)
    state = {name: b.double() for name, b in model.named_buffers() if name.endswith(("mean", "var"))}
    return tested.detach().double(), trained.double(), values, state


def tarn_results(layers, path, x, upstream):
    model = tarn.nn.ResNet(layers, CLASSES, device=support.device()).load_weights(path).eval()
    y = model(support.tensor(x))
    y.backward(support.tensor(upstream))
    tested, values = support.read(y).double(), {name: support.gradient(p) for name, p in model.named_parameters()}
    model.train()
    with tarn.no_grad():
        trained = support.read(model(support.tensor(x))).double()
    state = {name: support.read(b).double() for name, b in model.named_buffers() if name.endswith(("mean", "var"))}
    return tested, trained, {name: g if g is None else g.double() for name, g in values.items()}, state


def distance(a, b):
    """Root mean square of a - b, by that of b."""
    return ((a - b).square().mean() / b.square().mean().clamp_min(1e-30)).sqrt().item()


def judge(label, ours, theirs, exact, least=1e-5):
    """At most four times torch's own distance in f32, plus `least` of the size."""
    far, bar = distance(ours, exact), 4 * distance(theirs, exact) + least
    return compare.Verdict(far <= bar, far, bar, "rms", f"{label}: {far:.2g} from torch's in f64, {bar:.2g} at most")


def joined(values, names):
    return torch.cat([values[name].reshape(-1) for name in names])


def check(layers, seed):
    generator = torch.Generator().manual_seed(1000 * layers + seed)
    torch.manual_seed(1000 * layers + seed)
    model = Resnet(layers)
    for name, buffer in model.named_buffers():  # as after training
        if name.endswith("mean"):
            buffer.normal_(0, 0.1, generator=generator)
        elif name.endswith("var"):
            buffer.uniform_(0.5, 1.5, generator=generator)
    x, upstream = torch.randn(IMAGES, 3, SIDE, SIDE, generator=generator), torch.randn(IMAGES, CLASSES,
                                                                                       generator=generator)
    with tempfile.TemporaryDirectory() as folder:
        path = os.path.join(folder, "model.safetensors")
        save_file(model.state_dict(), path)
        ours = tarn_results(layers, path, x, upstream)
    state = {name: value.clone() for name, value in model.state_dict().items()}
    theirs = torch_results(model, x, upstream)
    model.double().load_state_dict(state)
    exact = torch_results(model, x.double(), upstream)
    verdicts = [judge("logits", *(r[0] for r in (ours, theirs, exact))),
                judge("logits in training", *(r[1] for r in (ours, theirs, exact)), least=0.01)]
    for what, at in (("gradients", 2), ("running statistics", 3)):
        verdicts.append(compare.Verdict(set(ours[at]) == set(exact[at]), text=f"{what} have other names"))
        names = sorted(exact[at])
        missing = [name for name in names if ours[at].get(name) is None]
        verdicts.append(compare.Verdict(not missing, text=f"no {what} of {missing}"))
        if not missing:
            verdicts.append(judge(what, *(joined(r[at], names) for r in (ours, theirs, exact)), least=0.01))
    return verdicts


def run(seed):
    """Checks of (name, dtype, verdicts)."""
    for layers in DEPTHS:
        yield f"resnet{layers}", "f32", check(layers, seed)
