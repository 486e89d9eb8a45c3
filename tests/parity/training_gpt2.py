"""A GPT-2 trained in tarn and in transformers from the same weights on the same batches: AdamW with decay on matrices
alone, warm-up and cosine down to a floor, clipping, and a batch in micro-batches whose gradients are added up.

In f64 every weight must agree within 1e-9 after 20 steps. In f32 the curve of the losses must be no further from the
f64 curve than twice torch's f32 is, plus 1e-5."""
import random
import tempfile

import torch
import transformers

import compare
import gpt2
import support
import tarn
import training

STEPS, BATCH, CONFIGS = 20, 4, 2
OPTIONS = (("lr", 0.003), ("beta2", 0.99), ("weight_decay", 0.1))
SCHEDULE = (("kind", 2), ("warmup_steps", 4), ("total_steps", STEPS), ("final_factor", 0.1))
RECIPE = training.Recipe("adamw", OPTIONS, schedule=SCHEDULE, clip_norm=1.0)


def draw_config(rng):
    heads = rng.randint(1, 3)
    return transformers.GPT2Config(vocab_size=rng.randint(8, 40), n_positions=rng.randint(6, 20),
                                   n_embd=heads * rng.choice([8, 16]), n_layer=rng.randint(1, 3), n_head=heads,
                                   resid_pdrop=0.0, attn_pdrop=0.0, embd_pdrop=0.0, bos_token_id=None,
                                   eos_token_id=None)


def in_torch(network, batches):
    """Losses of all steps, and the weights after the last."""
    optimizer, losses = training.torch_optimizer(RECIPE, network), []
    schedule = training.torch_schedule(RECIPE, optimizer)
    for step, (tokens, targets) in enumerate(batches):
        optimizer.zero_grad()
        loss = torch.nn.functional.cross_entropy(network(tokens).logits.flatten(0, 1), targets.flatten())
        loss.backward()
        training.torch_step(RECIPE, step, network, optimizer, schedule)
        losses.append(loss.item())
    return losses, {name: p.detach().to(torch.float64) for name, p in network.named_parameters()}


def tarn_loss(model, tokens, targets, micro):
    """The mean over micro-batches, each with its share of the gradient."""
    share, total = micro / BATCH, 0.0
    for begin in range(0, BATCH, micro):
        loss = model.loss(*(support.tensor(t[begin:begin + micro]) for t in (tokens, targets)))
        value = support.read(loss)
        total += share * value.item()
        loss.backward(support.tensor(torch.full_like(value, share)))
    return total


def in_tarn(model, batches, micro):
    optimizer, losses = training.tarn_optimizer(RECIPE, model), []
    for tokens, targets in batches:
        losses.append(tarn_loss(model, tokens, targets, micro))
        training.tarn_step(RECIPE, optimizer)
    return losses, {name: support.read(p).to(torch.float64) for name, p in model.named_parameters()}


def judge(ours, truth, theirs, dtype):
    if dtype == "f64":
        worst = max((ours[1][name] - value).abs().max().item() for name, value in truth[1].items())
        return compare.Verdict(worst <= 1e-9, worst, 1e-9, "abs",
                               f"a weight differs by {worst:.3g} after {STEPS} steps, 1e-9 allowed")
    distance = lambda curve: max(abs(a - b) for a, b in zip(curve[0], truth[0]))
    allowed = 2 * distance(theirs) + 1e-5
    return compare.Verdict(distance(ours) <= allowed, distance(ours), allowed, "abs",
                           f"the losses are {distance(ours):.3g} from torch's f64, torch's f32 {distance(theirs):.3g}")


def check(config, dtype, micro, rng, folder):
    network = transformers.GPT2LMHeadModel(config)
    network.save_pretrained(folder)
    rows = lambda: torch.randint(0, config.vocab_size, (BATCH, config.n_positions))
    batches = [(rows(), rows()) for _ in range(STEPS)]
    theirs = in_torch(network.train(), batches)
    truth = in_torch(transformers.GPT2LMHeadModel.from_pretrained(folder).to(torch.float64).train(), batches)
    model = gpt2.open_in_tarn(folder, dtype).train()
    return [judge(in_tarn(model, batches, micro), truth, theirs, dtype)]


def run(seed):
    """Yields (name, dtype, verdicts)."""
    for number in range(CONFIGS):
        for micro in (BATCH, 2, 1):
            for dtype in ("f64", "f32"):
                rng = random.Random(f"{seed}/training_gpt2/{number}/{micro}/{dtype}")
                torch.manual_seed(rng.randrange(1 << 31))
                with tempfile.TemporaryDirectory() as folder:
                    try:
                        verdicts = check(draw_config(rng), dtype, micro, rng, folder)
                    except tarn.Error as error:
                        verdicts = [compare.Verdict(False, text=f"tarn: {error}")]
                yield f"{number} {dtype} in micro-batches of {micro}", dtype, verdicts
