"""A small network trained in tarn and in torch from the same weights on the same data.

In f64 every weight must agree within 1e-9 after 20 steps. In f32 training is chaotic, torch differs from itself; there
the curve of the losses must be no further from the f64 curve than twice torch's f32 is."""
import contextlib
import dataclasses
import fnmatch
import math

import numpy as np
import torch

import compare
import support
import tarn

STEPS = 20
ROWS, SIZES = 32, (6, 16, 16, 4)
ACTIVATIONS = {
    "relu": torch.nn.ReLU, "leaky_relu": torch.nn.LeakyReLU, "gelu": lambda: torch.nn.GELU("tanh"),
    "gelu_erf": torch.nn.GELU, "silu": torch.nn.SiLU, "tanh": torch.nn.Tanh, "sigmoid": torch.nn.Sigmoid,
    "softplus": torch.nn.Softplus}
OPTIMIZERS = {"sgd": tarn.optim.SGD, "adam": tarn.optim.Adam, "adamw": tarn.optim.AdamW}
SCHEDULES = list(tarn.optim.SCHEDULES)  # in the order of tarn_schedule_kind


@dataclasses.dataclass(frozen=True)
class Recipe:
    optimizer: str
    options: tuple  # names and values, as in tarn's options
    activation: str = "tanh"
    loss: str = "mse_loss"
    dtype: str = "f64"
    bias: bool = True
    groups: tuple = ()      # (pattern, names and values), as in tarn's options
    schedule: tuple = ()    # names and values, as in tarn's
    clip_norm: float = 0.0  # 0: none
    clip_value: float = 0.0
    ema: float = 0.0        # decay of averages, which are compared instead of the weights; 0: none

    def __str__(self):
        options = " ".join(f"{name}={value}" for name, value in self.options)
        more = "".join(f" {name}={value}" for name in ("groups", "schedule", "clip_norm", "clip_value", "ema")
                       if (value := getattr(self, name)))
        bias = "" if self.bias else " no bias"
        return f"{self.optimizer} {options} {self.activation} {self.loss} {self.dtype}{bias}{more}"


def recipes():
    sgd = [(("lr", 0.1), ), (("lr", 0.05), ("momentum", 0.9)), (("lr", 0.05), ("momentum", 0.9), ("nesterov", True)),
           (("lr", 0.05), ("momentum", 0.8), ("dampening", 0.3), ("weight_decay", 0.01)),
           (("lr", 0.1), ("weight_decay", 0.1))]
    adamw = [(("lr", 0.01), ), (("lr", 0.01), ("weight_decay", 0.1)),
             (("lr", 0.01), ("weight_decay", 0.1), ("decay_all", True)),
             (("lr", 0.003), ("beta1", 0.8), ("beta2", 0.95), ("epsilon", 1e-5), ("weight_decay", 0.01))]
    adam = [(("lr", 0.01),), (("lr", 0.01), ("weight_decay", 0.1)),
            (("lr", 0.003), ("beta1", 0.8), ("beta2", 0.95), ("epsilon", 1e-5), ("weight_decay", 0.01))]
    for name, choices in (("sgd", sgd), ("adam", adam), ("adamw", adamw)):
        for options in choices:
            yield Recipe(name, options)
            yield Recipe(name, options, "relu", "cross_entropy")
        yield Recipe(name, choices[0], bias=False)
        yield Recipe(name, choices[1], dtype="f32")
        yield Recipe(name, choices[1], "gelu", "cross_entropy", dtype="f32")
        yield from with_more(name, choices[1])
    for activation in ACTIVATIONS:
        yield Recipe("adamw", adamw[0], activation)


def with_more(name, options):
    """Groups, schedules and clipping, one by one and together."""
    groups = (("*.bias", (("lr_scale", 2.0), ("no_decay", True))), ("2.*", (("lr_scale", 0.5), ("weight_decay", 0.3))))
    schedules = [(("kind", 1), ("total_steps", 15), ("final_factor", 0.1)), (("kind", 2), ("total_steps", 20)),
                 (("kind", 2), ("total_steps", 12)), (("kind", 3), ("step_size", 6), ("gamma", 0.5)),
                 (("kind", 0), ("warmup_steps", 5)), (("kind", 1), ("warmup_steps", 4), ("total_steps", 14)),
                 (("kind", 2), ("warmup_steps", 6), ("total_steps", 20), ("final_factor", 0.2)),
                 (("kind", 4), ("total_steps", STEPS + 1), ("final_factor", 1e-5)),
                 (("kind", 4), ("warmup_steps", 7), ("total_steps", STEPS + 3), ("start_factor", 0.2),
                  ("final_factor", 0.01))]
    for schedule in schedules:
        yield Recipe(name, options, schedule=schedule)
    for clip in (0.05, 0.5, 1000.0):
        yield Recipe(name, options, clip_norm=clip)
        yield Recipe(name, options, clip_norm=clip, dtype="f32")
    yield Recipe(name, options, clip_value=0.01)
    yield Recipe(name, options, ema=0.9)
    yield Recipe(name, options, groups=groups, ema=0.35)
    yield Recipe(name, options, groups=groups)
    yield Recipe(name, options, groups=groups, schedule=schedules[-1], clip_norm=0.1, clip_value=0.02)


RECIPES = list(recipes())


def single(value):
    """An option as tarn stores it: in f32."""
    return value if isinstance(value, bool) else float(np.float32(value))


def torch_network(recipe, dtype):
    layers = []
    for i, (inside, outside) in enumerate(zip(SIZES, SIZES[1:])):
        layers += [torch.nn.Linear(inside, outside, bias=recipe.bias, dtype=dtype)]
        layers += [ACTIVATIONS[recipe.activation]()] if i + 2 < len(SIZES) else []
    return torch.nn.Sequential(*layers)


def torch_groups(recipe, network, lr, decay, all_decay):
    """One of torch's groups for each parameter, by tarn's rules."""
    for name, parameter in network.named_parameters():
        own = next((dict(values) for pattern, values in recipe.groups if fnmatch.fnmatchcase(name, pattern)), {})
        usual = decay if all_decay or parameter.ndim >= 2 else 0.0
        chosen = 0.0 if own.get("no_decay") else single(own["weight_decay"]) if "weight_decay" in own else usual
        yield {"params": [parameter], "lr": lr * single(own.get("lr_scale", 1.0)), "weight_decay": chosen}


def torch_optimizer(recipe, network):
    options = {name: single(value) for name, value in recipe.options}
    lr, decay = options.pop("lr"), options.pop("weight_decay", 0.0)
    groups = list(torch_groups(recipe, network, lr, decay, options.pop("decay_all", recipe.optimizer != "adamw")))
    if recipe.optimizer == "sgd":
        return torch.optim.SGD(groups, lr=lr, **options)
    kind = torch.optim.Adam if recipe.optimizer == "adam" else torch.optim.AdamW
    return kind(groups, lr=lr, betas=(options.pop("beta1", 0.9), options.pop("beta2", 0.999)),
                eps=options.get("epsilon", 1e-8))


def torch_schedule(recipe, optimizer):
    """torch's own schedules; one after the other where there is a warm-up."""
    s = {"kind": 0, "warmup_steps": 0, "total_steps": 0, "final_factor": 0.0, **dict(recipe.schedule)}
    warmup, length, schedules = s["warmup_steps"], s["total_steps"] - s["warmup_steps"], torch.optim.lr_scheduler
    if s["kind"] == 4:
        start, total = s.get("start_factor", 1 / 25), s["total_steps"]
        return schedules.OneCycleLR(optimizer, [group["lr"] for group in optimizer.param_groups], total,
                                    pct_start=warmup / total if warmup else 0.3, div_factor=1 / start,
                                    final_div_factor=start / s["final_factor"], cycle_momentum=False)
    if s["kind"] == 2 and s["final_factor"] == 0:
        after = lambda: schedules.CosineAnnealingLR(optimizer, length)
    elif s["kind"] == 2:  # eta_min is one number, but groups have rates of their own
        after = lambda: schedules.LambdaLR(
            optimizer, lambda step: s["final_factor"] + (1 - s["final_factor"]) *
            (1 + math.cos(math.pi * min(step, length) / length)) / 2)
    else:
        after = {
            0: lambda: schedules.LambdaLR(optimizer, lambda step: 1.0),
            1: lambda: schedules.LinearLR(optimizer, 1.0, s["final_factor"], length),
            3: lambda: schedules.StepLR(optimizer, s["step_size"], s["gamma"])}[s["kind"]]
    if not warmup:
        return after()
    rising = schedules.LinearLR(optimizer, 1 / warmup, 1.0, warmup - 1)
    return schedules.SequentialLR(optimizer, [rising, after()], milestones=[warmup])


def torch_step(recipe, step, network, optimizer, schedule):
    """What follows the backward of step number `step`."""
    if recipe.clip_norm:
        torch.nn.utils.clip_grad_norm_(network.parameters(), recipe.clip_norm)
    if recipe.clip_value:
        torch.nn.utils.clip_grad_value_(network.parameters(), recipe.clip_value)
    optimizer.step()
    if step + 1 <= dict(recipe.schedule).get("total_steps", STEPS) or dict(
            recipe.schedule).get("kind") != 2:  # torch's cosine would rise again
        schedule.step()


def torch_average(recipe, network):
    """The first update of torch's average copies; tarn's starts with a copy."""
    average = torch.optim.swa_utils
    averaged = average.AveragedModel(network, multi_avg_fn=average.get_ema_multi_avg_fn(recipe.ema))
    averaged.update_parameters(network)
    return averaged


def in_torch(recipe, weights, x, target, dtype):
    """Losses of all steps, and the weights, or their averages, after the last."""
    network = torch_network(recipe, dtype)
    with torch.no_grad():
        for parameter, value in zip(network.parameters(), weights):
            parameter.copy_(value)
    optimizer = torch_optimizer(recipe, network)
    schedule = torch_schedule(recipe, optimizer)
    averaged = torch_average(recipe, network) if recipe.ema else None
    loss_of, losses = getattr(torch.nn.functional, recipe.loss), []
    for step in range(STEPS):
        optimizer.zero_grad()
        loss = loss_of(network(x.to(dtype)), target.to(dtype) if target.is_floating_point() else target)
        loss.backward()
        torch_step(recipe, step, network, optimizer, schedule)
        if averaged:
            averaged.update_parameters(network)
        losses.append(loss.item())
    return losses, [p.detach().to(torch.float64) for p in (averaged or network).parameters()]


def tarn_network(recipe, weights):
    modules = []
    for i, (inside, outside) in enumerate(zip(SIZES, SIZES[1:])):
        modules.append(tarn.nn.Linear(inside, outside, recipe.bias, dtype=recipe.dtype, device=support.device()))
        if i + 2 < len(SIZES):
            modules.append(tarn.nn.Activation(recipe.activation))
    network = tarn.nn.Sequential(*modules)
    for parameter, value in zip(network.parameters(), weights, strict=True):
        support.write(parameter, value.to(support.TORCH[recipe.dtype]))
    return network


def tarn_optimizer(recipe, network):
    groups = [{"names": pattern, **dict(values)} for pattern, values in recipe.groups]
    optimizer = OPTIMIZERS[recipe.optimizer](network, **dict(recipe.options), groups=groups)
    if recipe.schedule:
        schedule = dict(recipe.schedule)
        optimizer.set_schedule(SCHEDULES[schedule.pop("kind")], **schedule)
    return optimizer


def tarn_step(recipe, optimizer):
    if recipe.clip_norm:
        optimizer.clip_grad_norm(recipe.clip_norm)
    if recipe.clip_value:
        optimizer.clip_grad_value(recipe.clip_value)
    optimizer.step()


def in_tarn(recipe, weights, x, target):
    dtype = support.TORCH[recipe.dtype]
    network = tarn_network(recipe, weights)
    optimizer, losses = tarn_optimizer(recipe, network), []
    ema = tarn.optim.EMA(optimizer, recipe.ema) if recipe.ema else None
    loss_of = getattr(tarn.functional, recipe.loss)
    for _ in range(STEPS):
        y = network(support.tensor(x.to(dtype)))
        loss = loss_of(y, support.tensor(target.to(dtype) if target.is_floating_point() else target))
        losses.append(loss.item())
        loss.backward()
        tarn_step(recipe, optimizer)
        if ema:
            ema.update()
    with ema or contextlib.nullcontext():
        return losses, [support.read(p).to(torch.float64) for p in network.parameters()]


def compare_training(recipe, seed):
    torch.manual_seed(seed)
    weights = [p.detach() for p in torch_network(recipe, torch.float32).parameters()]
    x = torch.randn(ROWS, SIZES[0])
    target = torch.randn(ROWS, SIZES[-1]) if recipe.loss == "mse_loss" else torch.randint(0, SIZES[-1], (ROWS,))
    losses, exact = in_torch(recipe, weights, x, target, torch.float64)
    ours, trained = in_tarn(recipe, weights, x, target)
    if recipe.dtype == "f64":
        worst = max((a - b).abs().max().item() for a, b in zip(trained, exact))
        return compare.Verdict(worst <= 1e-9, worst, 1e-9, "abs",
                               f"a weight differs by {worst:.3g} after {STEPS} steps, 1e-9 allowed")
    theirs, _ = in_torch(recipe, weights, x, target, torch.float32)
    distance = lambda curve: max(abs(a - b) for a, b in zip(curve, losses))
    allowed = 2 * distance(theirs) + 1e-6 * max(losses)
    return compare.Verdict(distance(ours) <= allowed, distance(ours), allowed, "abs",
                           f"the losses are {distance(ours):.3g} from torch's f64, torch's f32 {distance(theirs):.3g}")
