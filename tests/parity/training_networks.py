"""Three networks (linear layers; convolutions with batchnorm; a ResNet's block) trained for 20 steps in tarn and in
torch, from the same weights on the same batches. What is compared:

  f64  every weight and running statistic after the last step, within 1e-9 of torch's; the loss and every gradient of
      every step, within
       1e-9 of its scale: max(|b|, rms(b), 1e-6 of the rms of the model's largest gradient).
  f32  every weight and running statistic after the last step: its distance from torch's f64 run is at most twice that
      of torch's f32 run, by the
       rms over the tensor, by its largest element, and by the rms over the whole model. How far a run in f32 gets is a
           matter of luck, in a
       tensor of six elements above all: torch held against itself, its batches in another order, is over that in one
           tensor of a hundred. So
       both run with their batches in the same three orders, and in twelve where three do not settle it; the distance of
           a library is the root
       mean square of its runs'. Torch's counts as one rounding a step at the least.
  transfers  on a device with memory of its own a step uploads its batch and nothing else, and downloads nothing."""
import dataclasses
import math

import torch

import compare
import networks
import support
import tarn
import training

STEPS, ROWS, CLASSES = training.STEPS, 16, 5
NETWORKS = {"mlp": networks.mlp, "cnn": networks.cnn, "resnet block": networks.resnet_block}
CLOSE = 1e-9
ORDERS = 3, 12  # of the batches in f32, and how many where these are too few
LEAST = 1e-6  # of the largest gradient's rms: smaller gradients are sums that cancel


@dataclasses.dataclass(frozen=True)
class Recipe(training.Recipe):
    network: str = "mlp"
    loss: str = "cross_entropy"

    def __str__(self):
        return f"{self.network} {super().__str__()}"


OPTIMIZERS = {
    "plain": ("sgd", (("lr", 0.1),)),
    "momentum": ("sgd", (("lr", 0.05), ("momentum", 0.9))),
    "nesterov": ("sgd", (("lr", 0.05), ("momentum", 0.9), ("nesterov", True))),
    "decay": ("sgd", (("lr", 0.05), ("momentum", 0.8), ("dampening", 0.2), ("weight_decay", 0.05))),
    "adam": ("adam", (("lr", 0.01), ("weight_decay", 0.1))),
    "adamw": ("adamw", (("lr", 0.01), ("weight_decay", 0.1))),
}
COSINE = (("kind", 2), ("warmup_steps", 4), ("total_steps", STEPS), ("final_factor", 0.1))
SCHEDULES = [(), (("kind", 1), ("total_steps", 15), ("final_factor", 0.1)), (("kind", 2), ("total_steps", STEPS)),
             (("kind", 3), ("step_size", 6), ("gamma", 0.5)), (("kind", 0), ("warmup_steps", 5))]
GROUPS = (("*.bias", (("lr_scale", 2.0), ("no_decay", True))), ("0.*", (("lr_scale", 0.5), ("weight_decay", 0.3))))


def recipes(dtype):
    # In f32 a rounding must not decide: a unit of relu that is 1e-8 above zero in one run and below in another changes
    # a gradient by as much as it is worth, and Adam with a small epsilon makes a whole step of a gradient that is
    # rounding alone.
    same = {"dtype": dtype, "activation": "relu" if dtype == "f64" else "silu"}
    smooth = (("epsilon", 1e-3),)
    optimizers = {
        name: (kind, options + (smooth if dtype == "f32" and kind != "sgd" else ()))
        for name, (kind, options) in OPTIMIZERS.items()}
    for network in NETWORKS:
        for chosen in optimizers.values():
            yield Recipe(*chosen, network=network, schedule=COSINE, **same)
    for schedule in SCHEDULES:
        yield Recipe(*optimizers["momentum"], network="resnet block", schedule=schedule, **same)
    yield Recipe(*optimizers["nesterov"], network="resnet block", clip_norm=0.3, **same)
    yield Recipe(*optimizers["adam"], network="cnn", clip_value=0.02, **same)
    for name in ("decay", "adamw"):
        yield Recipe(*optimizers[name], network="cnn", groups=GROUPS, **same)
        yield Recipe(*optimizers[name], network="resnet block", groups=GROUPS, schedule=COSINE, clip_norm=0.5,
                     clip_value=0.1, **same)


RECIPES = [*recipes("f64"), *recipes("f32")]


@dataclasses.dataclass
class Run:
    losses: list      # of each step
    gradients: list   # of each step, {name: gradient}
    state: dict       # after the last step, {name: weight or buffer}
    moved: list       # of each step, what went between host and device, beyond the batch; {} for nothing
    fallbacks: int = 0  # kernels that the device lacks


def in_torch(recipe, state, batches, dtype):
    network = networks.in_torch(NETWORKS[recipe.network](recipe.activation), dtype)
    network.load_state_dict(state)
    optimizer = training.torch_optimizer(recipe, network)
    schedule = training.torch_schedule(recipe, optimizer)
    run = Run([], [], {}, [])
    for step, (x, target) in enumerate(batches):
        optimizer.zero_grad()
        loss = torch.nn.functional.cross_entropy(network(x.to(dtype)), target)
        loss.backward()
        run.losses.append(loss.item())
        run.gradients.append({name: p.grad.clone() for name, p in network.named_parameters()})
        training.torch_step(recipe, step, network, optimizer, schedule)
    run.state = network.state_dict()
    return run


def moved_between(before, after):
    return {
        name: getattr(after, name) - getattr(before, name)
        for name in ("fallbacks", "uploads", "upload_bytes", "downloads", "peer_copies")}


def tarn_training(recipe, network, optimizer, batches):
    """Gradients are read between two readings of the counters, so that these show the steps alone."""
    run, parameters = Run([], [], {}, []), dict(network.named_parameters())
    for x, target in batches:
        x = x.to(support.TORCH[recipe.dtype])
        counters = [support.call("stats")]
        loss = tarn.functional.cross_entropy(network(support.tensor(x)), support.tensor(target))
        loss.backward()
        counters.append(support.call("stats"))
        run.losses.append(loss.item())
        run.gradients.append({name: support.gradient(p) for name, p in parameters.items()})
        counters.append(support.call("stats"))
        training.tarn_step(recipe, optimizer)
        counters.append(support.call("stats"))
        first, second = moved_between(*counters[:2]), moved_between(*counters[2:])
        moved = {name: first[name] + second[name] for name in first}
        run.fallbacks += moved.pop("fallbacks")
        moved["uploads"] -= 2
        moved["upload_bytes"] -= sum(part.numel() * part.element_size() for part in (x, target))
        run.moved.append({name: count for name, count in moved.items() if count})
    run.state = {name: support.read(values) for name, values in network.state_dict().items()}
    return run


def in_tarn(recipe, state, batches):
    network = networks.in_tarn(NETWORKS[recipe.network](recipe.activation), recipe.dtype)
    network.load_state_dict({name: values.to(support.TORCH[recipe.dtype]) if values.is_floating_point() else values
                             for name, values in state.items()})
    return tarn_training(recipe, network, training.tarn_optimizer(recipe, network), batches)


# ---- comparing -------------------------------------------------------------------------------------------------------
# ---------------------


def rms(values):
    return values.to(torch.float64).square().mean().sqrt().item()


def gradient_errors(ours, theirs):
    """(error, where) of every gradient of every step; the gradients of all a model's parameters have one least
    scale."""
    for step, (a, b) in enumerate(zip(ours.gradients, theirs.gradients)):
        least = LEAST * max(rms(g) for g in b.values())
        for name, expected in b.items():
            scale = expected.abs().clamp(min=max(rms(expected), least))
            error = ((a[name] - expected).abs() / scale).max().item() if a[name] is not None else math.inf
            yield (math.inf if math.isnan(error) else error), f"the gradient of {name} in step {step}"


def gradients_agree(ours, theirs):
    worst, where = max(gradient_errors(ours, theirs))
    return compare.Verdict(worst <= CLOSE, worst, CLOSE, "rel",
                           f"{where} differs by {worst:.3g} of its scale, {CLOSE} allowed")


def exact_agree(ours, theirs):
    """In f64: verdicts for state, losses and gradients."""
    for name, expected in theirs.state.items():
        if not expected.is_floating_point():
            yield compare.exact(ours.state[name], expected, name)
            continue
        worst = (ours.state[name] - expected).abs().max().item()
        yield compare.Verdict(worst <= CLOSE, worst, CLOSE, "abs",
                              f"{name} differs by {worst:.3g} after {STEPS} steps, {CLOSE} allowed")
    worst = (torch.tensor(ours.losses, dtype=torch.float64) -
             torch.tensor(theirs.losses, dtype=torch.float64)).abs().max().item()
    yield compare.Verdict(worst <= CLOSE, worst, CLOSE, "abs", f"a loss differs by {worst:.3g}, {CLOSE} allowed")
    yield gradients_agree(ours, theirs)


def size_of(values):
    """(rms over the tensor, largest element)."""
    return rms(values), values.abs().max().item()


def apart(run, exact, name):
    return run.state[name].to(torch.float64) - exact.state[name]


def rounded(exact, name):
    """What one rounding a step makes at most; a mean is made of terms as large as the deviation."""
    values = exact.state[name]
    if name.endswith("running_mean"):
        values = exact.state[name.replace("running_mean", "running_var")].sqrt()
    return STEPS * 2.0 ** -24 * values


def at_most_twice(what, got, known):
    ratio = got / max(known, 1e-300)
    text = f"{what} is {got:.3g} from torch's f64 run, torch's f32 {known:.3g}: {ratio:.3g} times, 2 allowed"
    return compare.Verdict(ratio <= 2, ratio, 2, "× torch's f32", text)


def typical(distances):
    return math.sqrt(sum(distance ** 2 for distance in distances) / len(distances))


def single_agree(ours, theirs, exact):
    """In f32: verdicts for each tensor and for the whole model; `ours` and `theirs` are runs."""
    floats = [name for name, values in exact.state.items() if values.is_floating_point()]
    for name in set(exact.state) - set(floats):
        yield compare.exact(ours[0].state[name], exact.state[name], name)
    for name in floats:
        got, known = ([typical(sizes) for sizes in zip(*(size_of(apart(run, exact, name)) for run in runs))]
                      for runs in (ours, theirs))
        for k, (what, least) in enumerate(zip(("rms", "largest element"), size_of(rounded(exact, name)))):
            yield at_most_twice(f"{name} ({what})", got[k], max(known[k], least))
    got, known = (typical([rms(torch.cat([apart(run, exact, name).flatten() for name in floats])) for run in runs])
                  for runs in (ours, theirs))
    yield at_most_twice("the model", got, known)


def nothing_moved(recipe, run):
    """Only the batch goes to the device. The first step with a norm also lays out the table of what is to be
    measured."""
    wrong = {step: moved for step, moved in enumerate(run.moved) if moved and not (step == 0 and recipe.clip_norm)}
    return compare.Verdict(not wrong, text=f"beyond the batch, by step: {wrong}")


def batches_from(seed):
    generator = torch.Generator().manual_seed(seed)
    return [(torch.randn(ROWS, 2, 8, 8, generator=generator), torch.randint(0, CLASSES, (ROWS, ), generator=generator))
            for _ in range(STEPS)]


def in_other_order(batches, seed):
    """The same training but for rounding."""
    order = torch.randperm(ROWS, generator=torch.Generator().manual_seed(seed))
    return [(x[order], target[order]) for x, target in batches]


def single_verdicts(recipe, state, batches, seed, exact):
    """Verdicts in f32, and a run of tarn's."""
    ours, theirs = [], []
    for count in ORDERS:
        for order in [in_other_order(batches, seed + k) if k else batches for k in range(len(ours), count)]:
            ours.append(in_tarn(recipe, state, order))
            theirs.append(in_torch(recipe, state, order, torch.float32))
        verdicts = list(single_agree(ours, theirs, exact))
        if all(verdict.good for verdict in verdicts):
            break
    return verdicts, ours[0]


def compare_training(recipe, seed):
    """A list of verdicts, and whether the transfers could be judged."""
    torch.manual_seed(seed)
    state, batches = networks.in_torch(NETWORKS[recipe.network](recipe.activation)).state_dict(), batches_from(seed)
    exact = in_torch(recipe, state, batches, torch.float64)
    if recipe.dtype == "f64":
        ours = in_tarn(recipe, state, batches)
        verdicts = list(exact_agree(ours, exact))
    else:
        verdicts, ours = single_verdicts(recipe, state, batches, seed, exact)
    has_memory = support.device().type != "cpu"
    judged = not has_memory or not ours.fallbacks  # a kernel that the CPU ran instead had its operands brought there
    if has_memory and judged:
        verdicts.append(nothing_moved(recipe, ours))
    return verdicts, judged
