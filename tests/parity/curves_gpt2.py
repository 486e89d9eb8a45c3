"""The loss of a GPT-2 over 200 steps, in tarn and in torch, from the same weights on the same batches of a text that is
easy to train on; and every gradient of the first step. Needs torch alone, so it runs wherever a device is (--device
cuda).

f32: no further from torch's f64 curve than twice torch's f32 is, plus 1e-5. bf16, with f32 master weights: within 1e-2
of torch's f32 curve."""
import random

import torch

import compare
import support
import tarn
import torch_gpt2
import training

STEPS, BATCH, CONTEXT, VOCAB, LAYERS, HEADS, WIDTH = 200, 8, 32, 48, 2, 4, 64
OPTIONS = (("lr", 0.001), ("beta2", 0.99), ("weight_decay", 0.1))
SCHEDULE = (("kind", 2), ("warmup_steps", 20), ("total_steps", STEPS), ("final_factor", 0.1))
RECIPE = training.Recipe("adamw", OPTIONS, schedule=SCHEDULE, clip_norm=1.0)


def draw_text(length):
    """Tokens each of which is mostly one of two that follow the one before: a loss that falls from ln VOCAB to about
    1."""
    after = torch.randint(0, VOCAB, (VOCAB, 2)).tolist()
    choice, strange = torch.randint(0, 2, (length,)).tolist(), torch.randint(0, 20 * VOCAB, (length,)).tolist()
    text = [0]
    for i in range(1, length):
        text.append(strange[i] if strange[i] < VOCAB else after[text[-1]][choice[i]])
    return torch.tensor(text)


def draw_batches():
    text = draw_text(20_000)
    for _ in range(STEPS):
        places = torch.randint(0, len(text) - CONTEXT, (BATCH, 1)) + torch.arange(CONTEXT)
        yield text[places], text[places + 1]


def draw_weights():
    """GPT-2's beginning: deviation 0.02, less where layers add up."""
    network = torch_gpt2.Gpt2(VOCAB, CONTEXT, LAYERS, HEADS, WIDTH)
    with torch.no_grad():
        for name, values in network.named_parameters():
            if values.ndim > 1:
                values.normal_(0, 0.02 / ((2 * LAYERS) ** 0.5 if name.endswith("c_proj.weight") else 1))
            elif name.endswith("bias"):
                values.zero_()
    return {name: values.detach().clone() for name, values in network.named_parameters()}


def in_torch(weights, batches, dtype):
    """Losses of all steps, and the gradients of the first."""
    network = torch_gpt2.Gpt2(VOCAB, CONTEXT, LAYERS, HEADS, WIDTH).to(dtype)
    network.load_state_dict(weights)
    optimizer, losses, gradients = training.torch_optimizer(RECIPE, network), [], None
    schedule = training.torch_schedule(RECIPE, optimizer)
    for step, (tokens, targets) in enumerate(batches):
        optimizer.zero_grad()
        loss = network(tokens, targets)
        loss.backward()
        gradients = gradients or {name: p.grad.clone() for name, p in network.named_parameters()}
        training.torch_step(RECIPE, step, network, optimizer, schedule)
        losses.append(loss.item())
    return losses, gradients


def tarn_model(weights, dtype):
    model = tarn.Model.create("gpt2", vocab_size=VOCAB, context=CONTEXT, layers=LAYERS, heads=HEADS, hidden_size=WIDTH,
                              dtype=dtype, device=support.device(), seed=1)
    model.load_state_dict({name: values.to(support.TORCH[dtype]) for name, values in weights.items()})
    return model.train()


def in_tarn(weights, batches, dtype):
    model = tarn_model(weights, dtype)
    optimizer, losses, gradients = training.tarn_optimizer(RECIPE, model), [], None
    for tokens, targets in batches:
        loss = model.loss(support.tensor(tokens), support.tensor(targets))
        losses.append(loss.item())
        loss.backward()
        gradients = gradients or {name: support.gradient(p) for name, p in model.named_parameters()}
        training.tarn_step(RECIPE, optimizer)
    return losses, gradients


def distance(curve, other):
    return max(abs(a - b) for a, b in zip(curve, other))


def judge_f32(ours, truth, theirs):
    own, far = distance(theirs[0], truth[0]), distance(ours[0], truth[0])
    curve = compare.Verdict(far <= 2 * own + 1e-5, far, 2 * own + 1e-5, "abs",
                            f"the losses are {far:.3g} from torch's f64, torch's f32 {own:.3g}")
    return [curve] + compare.gradients(ours[1], truth[1], "f32", theirs[1])


def judge_bf16(ours, theirs):
    far = distance(ours[0], theirs[0])
    return [compare.Verdict(far <= 1e-2, far, 1e-2, "abs", f"the losses are {far:.3g} from torch's f32, 0.01 allowed")]


def run(seed):
    """Yields (name, dtype, verdicts)."""
    torch.manual_seed(random.Random(f"{seed}/curves_gpt2").randrange(1 << 31))
    weights, batches = draw_weights(), list(draw_batches())
    truth = in_torch({name: values.double() for name, values in weights.items()}, batches, torch.float64)
    converged = truth[0][-1] < truth[0][0] / 2
    yield "the text", "f64", [
        compare.Verdict(converged, text=f"torch's f64 loss went from {truth[0][0]:.3g} to {truth[0][-1]:.3g} only")]
    theirs = in_torch(weights, batches, torch.float32)
    for dtype, judge in (("f32", lambda ours: judge_f32(ours, truth, theirs)), ("bf16",
                                                                                lambda ours: judge_bf16(ours, theirs))):
        try:
            verdicts = judge(in_tarn(weights, batches, dtype))
        except tarn.Error as error:
            verdicts = [compare.Verdict(False, text=f"tarn: {error}")]
        yield f"{STEPS} steps in {dtype}", dtype, verdicts
