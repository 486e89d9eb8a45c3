#!/usr/bin/env python3
"""Fine-tuning steps of a Llama of 1B's shape in PyTorch, compiled: the peer of `tarn bench train --model llama-1b
--lora 16`.

  tarn bench train --model llama-1b --lora 16 --precision bf16 --context 2048 --batch 4 --device cuda --json
  python3 llama_lora_torch.py                              adapters of rank 16 in all linear layers but the head
  tarn bench train --model llama-1b --precision bf16 --context 2048 --batch 4 --device cuda --json     (all weights)
  python3 llama_lora_torch.py --full                       all weights

  [--rank 16] [--full] [--micro-batch 4] [--context 2048] [--batch-size 4] [--attention flash|cudnn|best] [--steps 20]
  [--warmup 5] [--device cuda] [--layers 16] [--hidden-size 2048] [--ffn-size 8192] [--heads 32] [--kv-heads 8]
  [--vocab-size 128256] [--no-compile]

A step is forward, cross entropy, backward, clipping to a norm of 1 and AdamW, on random tokens drawn on the device
before it. Precision is tarn's: frozen weights are bf16; trained ones have f32 master weights, gradients and moments,
and enter matmuls as bf16. torch.compile has the model and the loss (cross entropy is fused with the head's cast), AdamW
is fused, attention is flash, cuDNN or the faster of both. Prints one JSON object with the keys of `tarn bench train
--json`: medians of step times by CUDA events, tokens per second, and peak memory by PyTorch's counter.
"""
import argparse
import json
import math
import statistics
import sys
import time

import torch
import torch.nn.functional as F
from torch.nn.attention import SDPBackend, sdpa_kernel

ROPE_BASE, EPSILON, ALPHA_PER_RANK = 500000.0, 1e-5, 2.0


def drawn(out, in_, dtype):
    return torch.nn.Parameter(torch.empty(out, in_, dtype=dtype).normal_(0, 0.02))


class Linear(torch.nn.Module):
    """y = x Wᵀ, and with a rank scale · B(A(x)) beside a frozen W."""

    def __init__(self, in_, out, rank):
        super().__init__()
        self.weight = drawn(out, in_, torch.bfloat16 if rank else torch.float32)
        self.rank = rank
        if rank:
            self.weight.requires_grad_(False)
            self.a = torch.nn.Parameter(torch.empty(rank, in_).uniform_(-1 / math.sqrt(in_), 1 / math.sqrt(in_)))
            self.b = torch.nn.Parameter(torch.zeros(out, rank))

    def forward(self, x):
        y = F.linear(x, self.weight.to(x.dtype))
        return y + ALPHA_PER_RANK * F.linear(F.linear(x, self.a.to(x.dtype)), self.b.to(x.dtype)) if self.rank else y


class Norm(torch.nn.Module):
    def __init__(self, width, is_frozen):
        super().__init__()
        self.weight = torch.nn.Parameter(torch.ones(width, dtype=torch.bfloat16 if is_frozen else torch.float32),
                                         requires_grad=not is_frozen)

    def forward(self, x):
        wide = x.float()
        return (wide * torch.rsqrt(wide.square().mean(-1, keepdim=True) + EPSILON)).to(x.dtype) * self.weight.to(
            x.dtype)


def turn(x, cos, sin):
    first, second = x.chunk(2, -1)
    return x * cos + torch.cat((-second, first), -1) * sin


class Block(torch.nn.Module):
    def __init__(self, o):
        super().__init__()
        self.heads, self.kv_heads, self.head = o.heads, o.kv_heads, o.hidden_size // o.heads
        rank = 0 if o.full else o.rank
        self.norm_1, self.norm_2 = Norm(o.hidden_size, bool(rank)), Norm(o.hidden_size, bool(rank))
        size, kv_size = o.hidden_size, self.kv_heads * self.head
        self.q, self.k = Linear(size, size, rank), Linear(size, kv_size, rank)
        self.v, self.o = Linear(size, kv_size, rank), Linear(size, size, rank)
        self.gate, self.up = Linear(o.hidden_size, o.ffn_size, rank), Linear(o.hidden_size, o.ffn_size, rank)
        self.down = Linear(o.ffn_size, o.hidden_size, rank)

    def forward(self, x, cos, sin):
        rows, context, width = x.shape
        y = self.norm_1(x)
        q = turn(self.q(y).view(rows, context, self.heads, self.head).transpose(1, 2), cos, sin)
        k = turn(self.k(y).view(rows, context, self.kv_heads, self.head).transpose(1, 2), cos, sin)
        v = self.v(y).view(rows, context, self.kv_heads, self.head).transpose(1, 2)
        mixed = F.scaled_dot_product_attention(q, k, v, is_causal=True, enable_gqa=self.heads != self.kv_heads)
        x = x + self.o(mixed.transpose(1, 2).reshape(rows, context, width))
        y = self.norm_2(x)
        return x + self.down(F.silu(self.gate(y)) * self.up(y))


class Llama(torch.nn.Module):
    def __init__(self, o):
        super().__init__()
        is_frozen = not o.full
        self.table = drawn(o.vocab_size, o.hidden_size, torch.bfloat16 if is_frozen else torch.float32).requires_grad_(
            not is_frozen)  # the head's, too
        self.blocks = torch.nn.ModuleList(Block(o) for _ in range(o.layers))
        self.norm = Norm(o.hidden_size, is_frozen)
        head = o.hidden_size // o.heads
        angles = torch.outer(torch.arange(o.context).float(),
                             ROPE_BASE**(-torch.arange(0, head, 2).float() / head)).repeat(1, 2)
        self.register_buffer("cos", angles.cos().to(torch.bfloat16))
        self.register_buffer("sin", angles.sin().to(torch.bfloat16))

    def forward(self, tokens, targets):
        x = F.embedding(tokens, self.table).to(torch.bfloat16)
        for block in self.blocks:
            x = block(x, self.cos, self.sin)
        logits = F.linear(self.norm(x), self.table.to(torch.bfloat16))
        return F.cross_entropy(logits.float().view(-1, logits.shape[-1]), targets.reshape(-1))


def backends(name):
    every = {"flash": [SDPBackend.FLASH_ATTENTION], "cudnn": [SDPBackend.CUDNN_ATTENTION]}
    return every if name == "best" else {name: every[name]}


class Clock:
    """Milliseconds of the device between two points of its stream; of a CPU the clock's."""

    def __init__(self, device):
        self.is_cuda = device.type == "cuda"

    def mark(self):
        if not self.is_cuda:
            return time.perf_counter()
        event = torch.cuda.Event(enable_timing=True)
        event.record()
        return event

    def between(self, first, second):
        return first.elapsed_time(second) if self.is_cuda else 1e3 * (second - first)


def measure(o, kernels):
    torch.manual_seed(0)
    device = torch.device(o.device)
    model = Llama(o).to(device)
    trained = [p for p in model.parameters() if p.requires_grad]
    optimizer = torch.optim.AdamW(trained, lr=2e-4, fused=device.type == "cuda")
    step_loss = model if o.no_compile else torch.compile(model)
    parts, clock, marks = o.batch_size // o.micro_batch, Clock(device), []
    with sdpa_kernel(kernels) if device.type == "cuda" else torch.enable_grad():
        for number in range(o.warmup + o.steps + 1):
            if number == o.warmup and device.type == "cuda":
                torch.cuda.synchronize()
                torch.cuda.reset_peak_memory_stats()
            if number >= o.warmup:
                marks.append(clock.mark())
            if number == o.warmup + o.steps:
                break
            for _ in range(parts):
                tokens = torch.randint(o.vocab_size, (o.micro_batch, o.context + 1), device=device)
                (step_loss(tokens[:, :-1], tokens[:, 1:]) / parts).backward()
            torch.nn.utils.clip_grad_norm_(trained, 1.0)
            optimizer.step()
            optimizer.zero_grad(set_to_none=True)
    if device.type == "cuda":
        torch.cuda.synchronize()
    times = [clock.between(a, b) for a, b in zip(marks, marks[1:])]
    peak = torch.cuda.max_memory_allocated() if device.type == "cuda" else None
    counts = sum(p.numel() for p in trained), sum(p.numel() for p in model.parameters() if not p.requires_grad)
    return statistics.median(times), min(times), peak, counts


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    whole = {
        "rank": 16, "micro-batch": 4, "context": 2048, "batch-size": 4, "steps": 20, "warmup": 5, "layers": 16,
        "hidden-size": 2048, "ffn-size": 8192, "heads": 32, "kv-heads": 8, "vocab-size": 128256}
    for name, value in whole.items():
        parser.add_argument("--" + name, type=int, default=value)
    parser.add_argument("--attention", choices=["flash", "cudnn", "best"], default="best")
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--full", action="store_true")
    parser.add_argument("--no-compile", action="store_true")
    o = parser.parse_args()
    if o.batch_size % o.micro_batch:
        parser.error("--micro-batch must divide --batch-size")
    torch.backends.cuda.matmul.allow_tf32 = True
    best = None
    for name, kernels in backends(o.attention).items():
        try:
            found = measure(o, kernels) + (name,)
        except RuntimeError as error:
            print(f"{name}: {str(error).splitlines()[0]}", file=sys.stderr)
            continue
        best = found if best is None or found[0] < best[0] else best
    if best is None:
        sys.exit("no attention could be run")
    step, least, peak, (trained, frozen), attention = best
    print(
        json.dumps({
            "model": "llama-1b", "library": "torch " + torch.__version__, "device": o.device, "precision": "bf16",
            "batch": o.batch_size, "micro_batch": o.micro_batch, "context": o.context, "lora": 0 if o.full else o.rank,
            "parameters": trained, "frozen": frozen, "attention": attention, "compiled": not o.no_compile,
            "step_ms": round(step, 4), "min_step_ms": round(least, 4),
            "tokens_per_second": round(o.batch_size * o.context * 1e3 / step, 1), "peak_bytes": peak}))


if __name__ == "__main__":
    main()
