"""A small network trained in tarn and in torch from the same weights on the same data.

In f64 every weight must agree within 1e-9 after 20 steps. In f32 training is chaotic, torch differs from itself; there the curve of the
losses must be no further from the f64 curve than twice torch's f32 is."""
import ctypes
import dataclasses

import numpy as np
import torch

import compare
import tarn

STEPS = 20
ROWS, SIZES = 32, (6, 16, 16, 4)
ACTIVATIONS = {"relu": (0, torch.nn.ReLU), "leaky_relu": (1, torch.nn.LeakyReLU), "gelu": (2, lambda: torch.nn.GELU("tanh")),
               "gelu_erf": (3, torch.nn.GELU), "silu": (4, torch.nn.SiLU), "tanh": (5, torch.nn.Tanh), "sigmoid": (6, torch.nn.Sigmoid),
               "softplus": (7, torch.nn.Softplus)}


@dataclasses.dataclass(frozen=True)
class Recipe:
    optimizer: str
    options: tuple  # names and values, as in tarn's options
    activation: str = "tanh"
    loss: str = "mse_loss"
    dtype: str = "f64"
    bias: bool = True

    def __str__(self):
        options = " ".join(f"{name}={value}" for name, value in self.options)
        return f"{self.optimizer} {options} {self.activation} {self.loss} {self.dtype}{'' if self.bias else ' no bias'}"


def recipes():
    sgd = [(("lr", 0.1),), (("lr", 0.05), ("momentum", 0.9)), (("lr", 0.05), ("momentum", 0.9), ("nesterov", True)),
           (("lr", 0.05), ("momentum", 0.8), ("dampening", 0.3), ("weight_decay", 0.01)), (("lr", 0.1), ("weight_decay", 0.1))]
    adamw = [(("lr", 0.01),), (("lr", 0.01), ("weight_decay", 0.1)), (("lr", 0.01), ("weight_decay", 0.1), ("decay_all", True)),
             (("lr", 0.003), ("beta1", 0.8), ("beta2", 0.95), ("epsilon", 1e-5), ("weight_decay", 0.01))]
    for name, choices in (("sgd", sgd), ("adamw", adamw)):
        for options in choices:
            yield Recipe(name, options)
            yield Recipe(name, options, "relu", "cross_entropy")
        yield Recipe(name, choices[0], bias=False)
        yield Recipe(name, choices[1], dtype="f32")
        yield Recipe(name, choices[1], "gelu", "cross_entropy", dtype="f32")
    for activation in ACTIVATIONS:
        yield Recipe("adamw", adamw[0], activation)


RECIPES = list(recipes())


def single(value):
    """An option as tarn stores it: in f32."""
    return value if isinstance(value, bool) else float(np.float32(value))


def torch_network(recipe, dtype):
    layers = []
    for i, (inside, outside) in enumerate(zip(SIZES, SIZES[1:])):
        layers += [torch.nn.Linear(inside, outside, bias=recipe.bias, dtype=dtype)]
        layers += [ACTIVATIONS[recipe.activation][1]()] if i + 2 < len(SIZES) else []
    return torch.nn.Sequential(*layers)


def torch_optimizer(recipe, network):
    options = {name: single(value) for name, value in recipe.options}
    if recipe.optimizer == "sgd":
        return torch.optim.SGD(network.parameters(), **options)
    all_decay, decay = options.pop("decay_all", False), options.pop("weight_decay", 0.0)
    betas = options.pop("beta1", 0.9), options.pop("beta2", 0.999)
    groups = [{"params": [p for p in network.parameters() if p.ndim >= 2 or all_decay], "weight_decay": decay}]
    rest = [p for p in network.parameters() if p.ndim < 2 and not all_decay]
    groups += [{"params": rest, "weight_decay": 0.0}] if rest else []
    return torch.optim.AdamW(groups, lr=options["lr"], betas=betas, eps=options.get("epsilon", 1e-8))


def in_torch(recipe, weights, x, target, dtype):
    """Losses of all steps, and the weights after the last."""
    network = torch_network(recipe, dtype)
    with torch.no_grad():
        for parameter, value in zip(network.parameters(), weights):
            parameter.copy_(value)
    optimizer = torch_optimizer(recipe, network)
    loss_of, losses = getattr(torch.nn.functional, recipe.loss), []
    for _ in range(STEPS):
        optimizer.zero_grad()
        loss = loss_of(network(x.to(dtype)), target.to(dtype) if target.is_floating_point() else target)
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    return losses, [p.detach().to(torch.float64) for p in network.parameters()]


def tarn_network(recipe, weights):
    options = tarn.LinearOptions(not recipe.bias, tarn.DTYPES.index(recipe.dtype))
    modules = []
    for i, (inside, outside) in enumerate(zip(SIZES, SIZES[1:])):
        modules.append(tarn.call("linear_with_sized", inside, outside, tarn.device(), ctypes.byref(options), ctypes.sizeof(options)))
        if i + 2 < len(SIZES):
            modules.append(tarn.call("activation", ACTIVATIONS[recipe.activation][0]))
    network = tarn.call("sequential_from", (ctypes.c_void_p * len(modules))(*modules), len(modules))
    for i, value in enumerate(weights):
        tarn.write(tarn.call("module_parameter", network, i), value.to(tarn.TORCH[recipe.dtype]))
    return network


def tarn_optimizer(recipe, network):
    structure = tarn.SgdOptions if recipe.optimizer == "sgd" else tarn.AdamwOptions
    options = structure(**dict(recipe.options))
    return tarn.call(recipe.optimizer + "_sized", network, ctypes.byref(options), ctypes.sizeof(options))


def in_tarn(recipe, weights, x, target):
    dtype = tarn.TORCH[recipe.dtype]
    network = tarn_network(recipe, weights)
    optimizer, losses = tarn_optimizer(recipe, network), []
    for _ in range(STEPS):
        with tarn.scope():
            y = tarn.call("forward", network, tarn.tensor(x.to(dtype)))
            loss, = tarn.apply(recipe.loss, [y, tarn.tensor(target.to(dtype) if target.is_floating_point() else target)], {}, 1)
            losses.append(tarn.read(loss).item())
            tarn.backward(loss, None)
            tarn.call("optimizer_step", optimizer)
    count = tarn.call("module_parameter_count", network)
    trained = [tarn.read(tarn.call("module_parameter", network, i)).to(torch.float64) for i in range(count)]
    tarn.call("optimizer_free", optimizer)
    tarn.call("module_free", network)
    return losses, trained


def compare_training(recipe, seed):
    torch.manual_seed(seed)
    weights = [p.detach() for p in torch_network(recipe, torch.float32).parameters()]
    x = torch.randn(ROWS, SIZES[0])
    target = torch.randn(ROWS, SIZES[-1]) if recipe.loss == "mse_loss" else torch.randint(0, SIZES[-1], (ROWS,))
    losses, exact = in_torch(recipe, weights, x, target, torch.float64)
    ours, trained = in_tarn(recipe, weights, x, target)
    if recipe.dtype == "f64":
        worst = max((a - b).abs().max().item() for a, b in zip(trained, exact))
        return compare.Verdict(worst <= 1e-9, worst, 1e-9, "abs", f"a weight differs by {worst:.3g} after {STEPS} steps, 1e-9 allowed")
    theirs, _ = in_torch(recipe, weights, x, target, torch.float32)
    distance = lambda curve: max(abs(a - b) for a, b in zip(curve, losses))
    allowed = 2 * distance(theirs) + 1e-6 * max(losses)
    return compare.Verdict(distance(ours) <= allowed, distance(ours), allowed, "abs",
                           f"the losses are {distance(ours):.3g} from torch's f64, torch's f32 {distance(theirs):.3g}")
