"""Convolutions in f32 whose sums are thousands of terms long, as those of a weight's gradient are. Libraries differ
there: by cuDNN, in PyTorch too, gradients of weights were up to 5.5e-5 off on an H200. Held to f64, tarn may be 1e-5
off, or twice as far as PyTorch's f32 on the same device is."""
import torch

import compare
import support
import tarn

SHAPES = [(8, 32, 32, 16, 16), (5, 17, 40, 12, 101), (5, 16, 16, 40, 64),
          (40, 33, 70, 7, 8)]  # images, channels in and out, rows, columns
PLAIN, TIMES = 1e-5, 2.0
NAMES = ("y", "gradient of x", "gradient of the weight")


def apart(ours, exact):
    """The largest distance, by the size of an element or of all."""
    size = exact.abs().clamp(min=exact.square().mean().sqrt().item())
    return ((ours.double().cpu() - exact).abs() / size).max().item()


def theirs(x, weight, g, dtype, device, last):
    layout = torch.channels_last if last else torch.contiguous_format
    x, weight, g = (v.to(device, dtype).clone(memory_format=layout) for v in (x, weight, g))
    x.requires_grad_(), weight.requires_grad_()
    y = torch.nn.functional.conv2d(x, weight, padding=1)
    y.backward(g)
    return [v.detach().cpu() for v in (y, x.grad, weight.grad)]


def ours(x, weight, g, last):
    given = support.tensor(x.permute(0, 2, 3, 1)).permute(0, 3, 1, 2) if last else support.tensor(x)
    leaves = [given.requires_grad_(), support.tensor(weight).requires_grad_()]
    y = tarn.functional.conv2d(*leaves, padding=1)
    y.backward(support.tensor(g))
    return [support.read(y)] + [support.gradient(leaf) for leaf in leaves]


def run(seed):
    torch.manual_seed(seed)
    device = "cuda" if support.device_name().startswith("cuda") else "cpu"
    torch.backends.cudnn.allow_tf32 = False
    for images, inside, outside, rows, columns in SHAPES:
        x, weight = torch.randn(images, inside, rows, columns), torch.randn(outside, inside, 3, 3) * 0.05
        g = torch.randn(images, outside, rows, columns)
        exact = theirs(x, weight, g, torch.float64, "cpu", False)
        for last in (False, True):
            others = theirs(x, weight, g, torch.float32, device, last)
            verdicts = []
            for name, a, b, truth in zip(NAMES, ours(x, weight, g, last), others, exact):
                error, bar = apart(a, truth), max(PLAIN, TIMES * apart(b, truth))
                verdicts.append(
                    compare.Verdict(error <= bar, error, bar, "rel", f"{name} is {error:.3g} off, more than {bar:.3g}"))
            layout = ", channels last" if last else ""
            yield f"{images} x {inside} x {rows} x {columns} to {outside}{layout}", "f32", verdicts
