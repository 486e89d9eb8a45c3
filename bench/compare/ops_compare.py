#!/usr/bin/env python3
"""tarn and PyTorch on the CPU, operation by operation, with the same threads and shapes.

  python3 ops_compare.py [--tarn build/release/tarn] [--threads N] [--sizes 4KiB,1MiB,64MiB] [--dtypes f32,bf16]
                         [--only add,sum-last] [--saved rows.jsonl] [--json]

Runs `tarn bench ops --json`, then the same rows in PyTorch, and prints a table: times, tarn / PyTorch (below 1 tarn is
faster), and the share of a plain copy. Marked are rows where tarn is slower ("slower") and rows from 64 MiB up that
miss the target of their family ("below"). Exit status 1 if a row is marked.

A row is timed three ways: forward without recording, backward alone, and both with recording. A backward ends with
gradients of the operands in their own dtypes that are dropped (torch.autograd.grad). Both programs rotate through as
many sets of inputs, with a copy of the row's bytes between two runs, since cached data decides the time of a reduction.
--saved reads tarn's rows from a file. The programs run one after the other: on a busy machine the ratios mean little.
"""
import argparse
import json
import math
import os
import subprocess
import sys
import time
from pathlib import Path

import torch
import torch.nn.functional as F

ROOT = Path(__file__).resolve().parents[2]
DTYPES = {"f32": torch.float32, "f64": torch.float64, "bf16": torch.bfloat16, "f16": torch.float16}
BAR_SIZE = 64 << 20

# The bars, as a share of a plain copy of the same bytes.
ARITHMETIC = {
    "neg", "abs", "sign", "square", "sqrt", "rsqrt", "recip", "relu", "leaky_relu", "clamp", "add", "sub", "mul", "div",
    "maximum", "minimum", "where", "add-broadcast-row", "mul-broadcast-col"}
BARS = {"arithmetic": 0.8, "reduction": 0.6, "layernorm": 0.5, "transcendental": 0.12}


def kind_of(op):
    if op in ARITHMETIC or op.startswith("cmp"):
        return "arithmetic"
    if op.split("-")[0] in ("sum", "mean", "prod", "max", "min", "var"):
        return "reduction"
    if op in ("layernorm", "rmsnorm"):
        return "layernorm"
    if op in UNARY or op in ("softmax", "log_softmax", "pow", "mod"):
        return "transcendental"
    return None


UNARY = {
    "neg": torch.neg, "abs": torch.abs, "sign": torch.sign, "square": torch.square, "sqrt": torch.sqrt,
    "rsqrt": torch.rsqrt, "recip": torch.reciprocal, "exp": torch.exp, "exp2": torch.exp2, "log": torch.log,
    "log2": torch.log2, "sin": torch.sin, "cos": torch.cos, "tanh": torch.tanh, "erf": torch.erf,
    "sigmoid": torch.sigmoid, "relu": torch.relu, "leaky_relu": F.leaky_relu,
    "gelu": lambda x: F.gelu(x, approximate="tanh"), "gelu_erf": F.gelu, "silu": F.silu,
    "softplus": lambda x: F.softplus(x, threshold=1e9), "clamp": lambda x: torch.clamp(x, -1e30, 1e30), }
BINARY = {
    "add": torch.add, "sub": torch.sub, "mul": torch.mul, "div": torch.div, "maximum": torch.maximum,
    "minimum": torch.minimum, "mod": torch.remainder, "pow": torch.pow, "cmpeq": torch.eq, "cmpne": torch.ne,
    "cmplt": torch.lt, "cmple": torch.le, "cmpgt": torch.gt, "cmpge": torch.ge, "add-broadcast-row": torch.add,
    "mul-broadcast-col": torch.mul, }
REDUCE = {
    "sum": torch.sum, "mean": torch.mean, "max": torch.amax, "min": torch.amin, "var": torch.var,
    "argmax": torch.argmax, "cumsum": torch.cumsum, }


def reduction(op):
    """x.sum(-1), x.sum(0), x.sum() for sum-last, sum-first, sum-all."""
    name, axis = op.split("-")
    if name == "prod":
        return (lambda x: x.prod()) if axis == "all" else (lambda x: x.prod(-1 if axis == "last" else 0))
    dim = {"last": -1, "first": 0}.get(axis)
    return (lambda x: REDUCE[name](x)) if dim is None else (lambda x: REDUCE[name](x, dim=dim))


def work_of(row):
    """(function, its inputs as a factory) for a row of tarn's; None when PyTorch has no such row here."""
    op, dtype, shape = row["op"], DTYPES[row["dtype"]], row["shape"]

    def normal(*size):
        return torch.randn(*size, dtype=torch.float32).to(dtype).requires_grad_()

    def positive(*size):
        return (torch.rand(*size, dtype=torch.float32) + 0.5).to(dtype).requires_grad_()

    if op in UNARY:
        return UNARY[op], lambda: (positive(*shape),)
    if op in BINARY:
        shapes = shape if isinstance(shape[0], list) else [shape, shape]
        return BINARY[op], lambda: tuple(positive(*size) for size in shapes)
    if op == "where":
        return torch.where, lambda: (torch.rand(*shape) > 0.5, normal(*shape), normal(*shape))
    if op == "cast":
        other = torch.bfloat16 if dtype == torch.float32 else torch.float32
        return (lambda x: x.to(other)), lambda: (normal(*shape),)
    if "-" in op and op.split("-")[0] in (*REDUCE, "prod"):
        return reduction(op), lambda: ((positive if op.startswith("prod") else normal)(*shape),)
    columns = shape[-1]
    table = {
        "softmax": (lambda x: F.softmax(x, -1), lambda:
                    (normal(*shape), )), "log_softmax": (lambda x: F.log_softmax(x, -1), lambda: (normal(*shape), )),
        "layernorm": (lambda x, w, b: F.layer_norm(x, (columns, ), w, b), lambda:
                      (normal(*shape), normal(columns), normal(columns))),
        "rmsnorm": (lambda x, w: F.rms_norm(x, (columns, ), w, 1e-5), lambda: (normal(*shape), normal(columns))),
        "batchnorm": (lambda x, w, b: F.batch_norm(x, None, None, w, b, True), lambda:
                      (normal(*shape), normal(shape[1]), normal(shape[1]))),
        "batchnorm-running": (lambda x, w, b: F.batch_norm(x, torch.zeros_like(w), torch.ones_like(w), w, b), lambda:
                              (normal(*shape), normal(shape[1]), normal(shape[1]))),
        "batchnorm_relu": (lambda x, w, b: F.relu(F.batch_norm(x, None, None, w, b, True)), lambda:
                           (normal(*shape), normal(shape[1]), normal(shape[1]))),
        "batchnorm_relu-residual": (lambda x, w, b, r: F.relu(F.batch_norm(x, None, None, w, b, True) + r), lambda:
                                    (normal(*shape), normal(shape[1]), normal(shape[1]), normal(*shape))),
        "groupnorm": (lambda x, w, b: F.group_norm(x, 1, w, b), lambda:
                      (normal(*shape), normal(shape[1]), normal(shape[1]))), "clone": (lambda x: x.clone(), lambda:
                                                                                       (normal(*shape), )),
        "permute-copy": (lambda x: x.permute(0, 2, 1).contiguous(), lambda: (normal(*shape), )),
        "expand-copy": (lambda x: x.expand(*row["result"]).contiguous(), lambda:
                        (normal(*shape), )), "pad": (lambda x: F.pad(x, (1, 1, 1, 1)), lambda: (normal(*shape), )),
        "shrink-copy": (lambda x: x[:, :, 1:-1, 1:-1].contiguous(), lambda:
                        (normal(*shape), )), "stride-copy": (lambda x: x[:, :, ::2, ::2].contiguous(), lambda:
                                                             (normal(*shape), )), "flip": (lambda x: x.flip(-1), lambda:
                                                                                           (normal(*shape), )),
        "max_pool2d": (lambda x: F.max_pool2d(x, 2), lambda:
                       (normal(*shape), )), "avg_pool2d": (lambda x: F.avg_pool2d(x, 2), lambda:
                                                           (normal(*shape), )), "concat": (lambda x, y: torch.cat(
                                                               (x, y), 1), lambda: (normal(*shape), normal(*shape))), }
    if op in ("conv2d", "conv2d-nhwc"):
        images, channels, rows, outputs, kernel, stride = shape
        layout = torch.channels_last if op == "conv2d-nhwc" else torch.contiguous_format

        def image():
            x = torch.randn(images, channels, rows, row["result"][3] * stride, dtype=torch.float32).to(dtype)
            return x.contiguous(memory_format=layout).requires_grad_()
        return (lambda x, w, b: F.conv2d(x, w, b, stride=stride, padding=kernel // 2),
                lambda: (image(), normal(outputs, channels, kernel, kernel), normal(outputs)))
    if op == "cross_entropy":
        target = torch.randint(0, columns, (shape[0],))
        return (lambda x: F.cross_entropy(x, target)), lambda: (normal(*shape),)
    if op in ("matmul", "matmul-batched", "matmul-3d-2d", "linear"):
        left, inner, columns = shape[:-1], shape[-2], shape[-1]
        if op == "linear":
            return F.linear, lambda: (normal(*left), normal(columns, inner), normal(columns))
        right = (shape[0], inner, columns) if op == "matmul-batched" else (inner, columns)
        return torch.matmul, lambda: (normal(*left), normal(*right))
    if op == "embedding":  # small indices are frequent, as frequent words are
        index = (torch.rand(shape[2]) * math.log(shape[0])).exp().long().clamp(0, shape[0] - 1)
        return (lambda w: F.embedding(index, w)), lambda: (normal(shape[0], shape[1]),)
    return table.get(op)


MOST_SETS, SET_BYTES = 4, 256 << 20  # as `tarn bench ops` has them: inputs take turns until they fill about this much


def sets_of(make):
    """Several sets of inputs, as many as tarn takes."""
    sets, filled = [], 0
    while len(sets) < MOST_SETS and not (len(sets) > 1 and filled > SET_BYTES):
        sets.append(make())
        filled += sum(x.numel() * x.element_size() for x in sets[-1])
    return sets


def copies(bytes_moved, count):
    """A function that copies half of the bytes to as many others."""
    pairs = [torch.zeros(2, max(1, bytes_moved // 2), dtype=torch.uint8) for _ in range(count)]
    return lambda i: pairs[i % count][1].copy_(pairs[i % count][0])


def median_us(fn, sets, runs, between=lambda i: None):
    """Microseconds a call: the median of several runs, each long enough to be timed. `between` runs before each,
    untimed."""
    for i in range(2 * sets):
        fn(i % sets)
    start = time.perf_counter()
    fn(0)
    turns = max(1, min(20000, int(4e-3 / max(time.perf_counter() - start, 1e-7))))
    figures = []
    for _ in range(runs):
        between(0)
        start = time.perf_counter()
        for i in range(turns):
            fn(i % sets)
        figures.append((time.perf_counter() - start) / turns * 1e6)
    return sorted(figures)[len(figures) // 2]


def measure(row, runs):
    """PyTorch's forward and backward time for a row; None where it has none."""
    found = work_of(row)
    if not found:
        return None, None, None
    fn, make = found
    inputs = sets_of(make)
    sets = len(inputs)
    with torch.no_grad():
        forward = median_us(lambda i: fn(*inputs[i]), sets, runs, copies(row["fwd_bytes"], sets))
    if not row.get("bwd_us"):
        return forward, None, None
    results = [fn(*x) for x in inputs]
    upstream = [torch.ones_like(y) for y in results]
    leaves = [[t for t in x if torch.is_tensor(t) and t.requires_grad] for x in inputs]

    def backward(i):
        torch.autograd.grad(results[i], leaves[i], upstream[i], retain_graph=True)

    def both(i):
        torch.autograd.grad(fn(*inputs[i]), leaves[i], upstream[i])

    between = copies(row.get("bwd_bytes", row["fwd_bytes"]), sets)  # a gradient that is only passed on moves none
    return forward, median_us(backward, sets, runs, between), median_us(both, sets, runs, between)


def tarn_rows(args):
    if args.saved:
        lines = Path(args.saved).read_text().splitlines()
    else:
        command = [
            args.tarn, "bench", "ops", "--json", "--threads",
            str(args.threads), "--sizes", args.sizes, "--dtypes", args.dtypes, "--runs",
            str(args.runs)] + (["--only", args.only] if args.only else [])
        lines = subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True).stdout.splitlines()
    return [json.loads(line) for line in lines if line.strip()]


def judge(row, which, ours, theirs):
    marks = []
    if theirs and ours > theirs:
        marks.append("slower")
    bar, share = BARS.get(kind_of(row["op"])), row.get(f"{which}_of_copy")
    if bar and share is not None and row["size"] >= BAR_SIZE and share < bar:
        marks.append(f"below {bar}")
    return marks


def main():
    ap = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    ap.add_argument("--tarn", default=os.environ.get("TARN_COMMAND", str(ROOT / "build/release/tarn")))
    ap.add_argument("--threads", type=int, default=os.cpu_count())
    ap.add_argument("--sizes", default="4KiB,1MiB,64MiB")
    ap.add_argument("--dtypes", default="f32,bf16")
    ap.add_argument("--only", default="")
    ap.add_argument("--runs", type=int, default=7)
    ap.add_argument("--saved", help="rows that `tarn bench ops --json` wrote before")
    ap.add_argument("--json", action="store_true", help="one JSON object a line instead of a table")
    args = ap.parse_args()
    torch.set_num_threads(args.threads)
    if not args.json:
        print(
            f"tarn and PyTorch {torch.__version__} on the CPU, {args.threads} threads; microseconds, and tarn / "
            f"PyTorch\n"
        )
        print(
            f"{'row':<20}{'dtype':<6}{'size':>10}  {'pass':<9}{'tarn':>12}{'PyTorch':>12}{'ratio':>8}{'of copy':>9}  ")
    marked = rows = 0
    for row in tarn_rows(args):
        if "size" not in row:  # the cost of a call on one element
            a, b = torch.ones(1, requires_grad=True), torch.ones(1, requires_grad=True)
            row["size"], theirs = 4, (median_us(lambda i: torch.mul(a, b), 1, args.runs), None, None)
        else:
            theirs = measure(row, args.runs)
        for which, name, other in zip(("fwd", "bwd", "both"), ("forward", "backward", "both"), theirs):
            ours = row.get(f"{which}_us")
            if not ours:
                continue
            marks = judge(row, which, ours, other)
            rows += 1
            marked += bool(marks)
            share = row.get(f"{which}_of_copy")
            if args.json:
                print(
                    json.dumps({
                        "op": row["op"], "dtype": row["dtype"], "size": row["size"], "pass": name, "tarn_us": ours,
                        "torch_us": other and round(other, 3), "ratio": other and round(ours / other, 3),
                        "of_copy": share, "marks": marks}), flush=True)
                continue
            right = f"{other:>12.2f}{ours / other:>8.2f}" if other else f"{'-':>12}{'-':>8}"
            shown = f"{share:>9.2f}" if share is not None else f"{'-':>9}"
            print(
                f"{row['op']:<20}{row['dtype']:<6}{row['size']:>10}  {name:<9}{ours:>12.2f}{right}{shown}  "
                f"{', '.join(marks)}",
                flush=True)
    if not args.json:
        print(f"\n{rows} figures, {marked} marked")
    return 1 if marked else 0


if __name__ == "__main__":
    sys.exit(main())
