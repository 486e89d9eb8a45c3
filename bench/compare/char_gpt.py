#!/usr/bin/env python3
"""Training steps of a small GPT in tarn and PyTorch: same sizes, weights, tokens and threads, alternating in one
process.

  python3 char_gpt.py [--library build/release/libtarn.so] [--preset cpu|gpu] [--device cpu] [--threads 2] [--compile]
                      [--steps 20] [--rounds 8] [--json]

The presets are configs/shakespeare-char-cpu.json and shakespeare-char-gpu.json. A step is forward, cross entropy,
backward, clipping and AdamW with decay on matrices, on random tokens drawn on the host and uploaded in every step.
PyTorch runs in the preset's precision under autocast, with fused attention and fused AdamW; --compile compiles the
model. The libraries alternate every --steps steps; the minimum of --rounds rounds counts.
"""
import argparse
import contextlib
import json
import math
import os
import sys
import time
from pathlib import Path

import torch
import torch.nn.functional as F

ROOT = Path(__file__).resolve().parents[2]
sys.path[:0] = [str(ROOT / "python"), str(ROOT / "tests/parity")]
VOCAB, LR, BETA2, DECAY, CLIP = 65, 1e-3, 0.99, 0.1, 1.0


def preset(name):
    """Sizes from the configuration that `tarn train` reads."""
    with open(ROOT / f"configs/shakespeare-char-{name}.json") as file:
        values = json.load(file)
    return argparse.Namespace(
        dropout=values.get("dropout", 0.0), precision=values.get("precision", "f32"),
        **{key: values[key] for key in ("layers", "heads", "hidden_size", "context", "batch_size")})


class Block(torch.nn.Module):
    def __init__(self, size):
        super().__init__()
        width = size.hidden_size
        self.heads, self.dropout = size.heads, size.dropout
        self.ln_1, self.ln_2 = torch.nn.LayerNorm(width), torch.nn.LayerNorm(width)
        self.c_attn, self.c_proj = torch.nn.Linear(width, 3 * width), torch.nn.Linear(width, width)
        self.c_fc, self.down = torch.nn.Linear(width, 4 * width), torch.nn.Linear(4 * width, width)

    def forward(self, x):
        rows, context, width = x.shape
        q, k, v = self.c_attn(self.ln_1(x)).view(rows, context, 3, self.heads,
                                                 width // self.heads).permute(2, 0, 3, 1, 4)
        mixed = F.scaled_dot_product_attention(q, k, v, is_causal=True, dropout_p=self.dropout)
        x = x + F.dropout(self.c_proj(mixed.transpose(1, 2).reshape(rows, context, width)), self.dropout)
        return x + F.dropout(self.down(F.gelu(self.c_fc(self.ln_2(x)), approximate="tanh")), self.dropout)


class Gpt(torch.nn.Module):
    def __init__(self, size):
        super().__init__()
        self.dropout = size.dropout
        self.wte = torch.nn.Embedding(VOCAB, size.hidden_size)
        self.wpe = torch.nn.Embedding(size.context, size.hidden_size)
        self.h = torch.nn.ModuleList(Block(size) for _ in range(size.layers))
        self.ln_f = torch.nn.LayerNorm(size.hidden_size)

    def forward(self, tokens, targets):
        x = F.dropout(self.wte(tokens) + self.wpe.weight[:tokens.shape[1]], self.dropout)
        for block in self.h:
            x = block(x)
        return F.cross_entropy(F.linear(self.ln_f(x), self.wte.weight).flatten(0, 1), targets.flatten())


def take(network, values):
    """PyTorch's model gets the weights of tarn's: {name: tensor}, linear ones [in, out] there."""
    names = {"attn.c_attn": "c_attn", "attn.c_proj": "c_proj", "mlp.c_fc": "c_fc", "mlp.c_proj": "down"}
    state = {}
    for name, value in values.items():
        name = name.removeprefix("transformer.")
        for theirs, ours in names.items():
            if theirs in name:
                name, value = name.replace(theirs, ours), value.t().contiguous() if name.endswith("weight") else value
        state[name] = value.to(torch.float32)
    network.load_state_dict(state)


class Theirs:
    """PyTorch's half."""

    def __init__(self, network, size, device, compiled):
        self.device, self.network = device, network.to(device)
        matrices = [p for p in network.parameters() if p.ndim > 1]
        others = [p for p in network.parameters() if p.ndim < 2]
        groups = [{"params": matrices, "weight_decay": DECAY}, {"params": others, "weight_decay": 0.0}]
        self.optimizer = torch.optim.AdamW(groups, lr=LR, betas=(0.9, BETA2), fused=True)
        self.run = torch.compile(network) if compiled else network
        is_half = size.precision == "bf16"
        self.half = lambda: torch.autocast(device, dtype=torch.bfloat16) if is_half else contextlib.nullcontext()

    def turn(self, batches):
        """Trains; the first and the last loss, the reading of which waits for the device."""
        losses = []
        for tokens, targets in batches:
            with self.half():
                loss = self.run(tokens.to(self.device), targets.to(self.device))
            self.optimizer.zero_grad()
            loss.backward()
            torch.nn.utils.clip_grad_norm_(self.network.parameters(), CLIP)
            self.optimizer.step()
            losses.append(loss)
        return losses[0].item(), losses[-1].item()


class Ours:
    """tarn's half."""

    def __init__(self, tarn, support, size):
        self.upload = support.upload
        self.model = tarn.Model.create("gpt2", seed=1, dtype=size.precision, device=support.device(), vocab_size=VOCAB,
                                       context=size.context, layers=size.layers, heads=size.heads,
                                       hidden_size=size.hidden_size, dropout=size.dropout).train()
        self.optimizer = tarn.optim.AdamW(self.model, lr=LR, beta2=BETA2, weight_decay=DECAY)

    def turn(self, batches):
        losses = []
        for step, (tokens, targets) in enumerate(batches):
            loss = self.model.loss(self.upload(tokens), self.upload(targets))
            loss.backward()
            self.optimizer.clip_grad_norm(CLIP)
            self.optimizer.step()
            if step in (0, len(batches) - 1):
                losses.append(loss.item())
        return losses[0], losses[-1]


def draw(size, steps):
    rows = lambda: torch.randint(0, VOCAB, (size.batch_size, size.context))
    return [(rows(), rows()) for _ in range(steps)]


def measure(halves, size, steps, rounds):
    """For each half the least seconds of a step, and its first loss. The first turn only warms up."""
    least, first = [math.inf] * len(halves), [None] * len(halves)
    for turn in range(rounds + 1):
        batches = draw(size, steps)
        for k, half in enumerate(halves):
            clock = time.perf_counter()
            loss, _ = half.turn(batches)
            if turn > 0:
                least[k] = min(least[k], (time.perf_counter() - clock) / steps)
            else:
                first[k] = loss
    return least, first


def parse():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--library", default=str(ROOT / "build/release/libtarn.so"))
    parser.add_argument("--preset", default="cpu", choices=["cpu", "gpu"])
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--compile", action="store_true")
    parser.add_argument("--steps", type=int, default=20)
    parser.add_argument("--rounds", type=int, default=8)
    parser.add_argument("--json", action="store_true")
    return parser.parse_args()


def main():
    options = parse()
    os.environ["TARN_LIBRARY"] = options.library
    import support
    import tarn
    torch.manual_seed(1)
    torch.set_num_threads(options.threads)
    tarn.set_threads(options.threads)
    support.use_device(options.device)
    size = preset(options.preset)
    ours, network = Ours(tarn, support, size), Gpt(size)
    take(network, {name: support.read(values) for name, values in ours.model.named_parameters()})
    theirs = Theirs(network, size, "cpu" if options.device == "cpu" else "cuda", options.compile)
    (a, b), (ours_loss, their_loss) = measure([ours, theirs], size, options.steps, options.rounds)
    row = {
        "preset": options.preset, "device": options.device, "threads": options.threads,
        "tarn_steps_per_s": round(1 / a, 2), "torch_steps_per_s": round(1 / b, 2), "ratio": round(b / a, 3),
        "torch": torch.__version__, "compiled": options.compile,
        "first_losses": [round(ours_loss, 5), round(their_loss, 5)]}
    if options.json:
        print(json.dumps(row))
    else:
        print(
            f"{options.preset} on {options.device}: tarn {1 / a:.1f} steps/s, PyTorch {torch.__version__} {1 / b:.1f} "
            f"steps/s: {b / a:.2f} ×"
        )
        print(f"losses of the first step: {ours_loss:.5f} and {their_loss:.5f}")


if __name__ == "__main__":
    main()
