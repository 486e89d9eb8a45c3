#!/usr/bin/env python3
"""tarn and PyTorch on a GPU, row by row, from the output of both on the same machine.

  tarn bench ops --device cuda --json > tarn.jsonl
  python3 ops_torch.py > torch.jsonl                      the same rows, with the same keys, in PyTorch
  python3 gpu_compare.py tarn.jsonl torch.jsonl [--markdown] [--all]

Rows are joined by operation, dtype and shape; causal attention with the faster of PyTorch's flash and cuDNN rows.
Prints microseconds forward and backward, PyTorch's time over tarn's (above 1 tarn is faster), the share of a plain copy
of the same bytes, and the host time of a call. Rows that only tarn has are compared with the copy; rows that only
PyTorch has are counted, and listed with --all.

A note marks a missed target:
  below B       of copy: 0.9; 0.8 for strided copies; 0.75 for the backward of norms and softmax
  slower        than PyTorch; a matmul from 1024 up must reach 0.98 of it, smaller ones are only printed
  host          above 3.5 us for an element-wise call, 5 us for a matmul
Cross entropy is compared forward and backward together. A backward that only returns a view (below 20 us for more than
10 MB) is not compared. GPT-2's linear layers must reach 1.05 times PyTorch's speed in the geometric mean. Exit status 1
for a missed target, 2 for an unusable file.
"""
import argparse
import json
import math
import sys

STRIDED = {"pad", "permute-copy", "shrink-copy", "flip", "stride-copy", "expand-copy"}
ROWWISE = {
    "layernorm", "rmsnorm", "softmax", "log_softmax", "batchnorm", "batchnorm2d", "batchnorm-running", "batchnorm_relu",
    "batchnorm_relu-residual", "groupnorm", "residual_norm"}
FUSED = {"attention", "attention-causal", "attention_packed", "linear_cross_entropy"}  # bound by their products
PRODUCTS = {"matmul", "matmul-batched", "matmul-3d-2d", "linear", "conv2d", "conv2d-nhwc"}
NOT_ELEMENTWISE = STRIDED | ROWWISE | PRODUCTS | FUSED | {
    "concat", "cross_entropy", "embedding", "adamw", "copy", "tiny"}
REDUCTIONS = ("sum-", "mean-", "prod-", "max-", "min-", "var-", "argmax-", "cumsum-")

OF_COPY, OF_COPY_STRIDED, OF_COPY_ROWWISE_BACKWARD = 0.9, 0.8, 0.75
PRODUCT_SPEED, PRODUCT_FROM, LINEAR_MEAN = 0.98, 1024, 1.05
HOST_ELEMENTWISE, HOST_PRODUCT = 3.5, 5.0
VIEW_US, VIEW_BYTES = 20, 10e6


ONE_OF = {"attention-flash": "attention-causal",
          "attention-cudnn": "attention-causal"}  # PyTorch's ways to what is one row here


class Unusable(Exception):
    pass


def whole_time(row):
    return row["fwd_us"] + (row.get("bwd_us") or 0)


def read(path):
    """The rows of a file by (op, dtype, shape). Lines that are not JSON objects, such as warnings, are ignored."""
    rows = {}
    try:
        with open(path) as file:
            lines = file.read().splitlines()
    except OSError as error:
        raise Unusable(f"{path}: {error.strerror}")
    for line in lines:
        if not line.startswith("{"):
            continue
        try:
            row = json.loads(line)
        except ValueError:
            raise Unusable(f"{path}: not a JSON object: {line[:60]}")
        if row.get("fwd_us"):
            key = ONE_OF.get(row["op"], row["op"]), row["dtype"], json.dumps(row["shape"])
            if row["op"] not in ONE_OF or key not in rows or whole_time(row) < whole_time(rows[key]):
                rows[key] = row
    if not rows:
        raise Unusable(f"{path}: no rows with a forward time")
    return rows


def is_view(row, which):
    """A backward that hands the gradient on in another shape moves nothing, whatever its bytes say."""
    time = row.get(f"{which}_us")
    return which == "bwd" and time is not None and time < VIEW_US and row.get("bwd_bytes", 0) > VIEW_BYTES


def is_large_product(row):
    """Square products below 1024 take longer to enqueue than to run."""
    return row["op"] != "matmul" or min(row["shape"]) >= PRODUCT_FROM


def copy_bar(op, which):
    if op in PRODUCTS or op in FUSED or op in ("tiny", "copy"):
        return None
    if op in ROWWISE and which == "bwd":
        return OF_COPY_ROWWISE_BACKWARD
    return OF_COPY_STRIDED if op in STRIDED else OF_COPY


def host_bar(op):
    if op in PRODUCTS:
        return HOST_PRODUCT
    return None if op in NOT_ELEMENTWISE or op.startswith(REDUCTIONS) else HOST_ELEMENTWISE


def speed_bar(row):
    """What PyTorch's time over tarn's must be at least; None where it is only shown."""
    if row["op"] in PRODUCTS:
        return PRODUCT_SPEED if is_large_product(row) else None
    return None if row["op"] in ("tiny", "copy") else 1.0


class Pass:
    """One direction of one row: the figures, and the bars that they miss."""

    def __init__(self, name, ours, theirs, of_copy):
        self.name, self.ours, self.theirs, self.of_copy = name, ours, theirs, of_copy
        self.ratio = theirs / ours if ours and theirs else None
        self.marks = []

    def judge(self, copy, speed):
        if copy and self.of_copy is not None and self.of_copy < copy:
            self.marks.append(f"{self.name} below {copy}")
        if speed and self.ratio is not None and self.ratio < speed:
            self.marks.append(f"{self.name} slower")
        return self


def together(row, other):
    """Cross entropy: an engine may do the backward's work in the forward, or the other way round."""
    time = row.get("both_us") or (row["fwd_us"] + row["bwd_us"] if row.get("bwd_us") else None)
    theirs = other["fwd_us"] + other["bwd_us"] if other and other.get("bwd_us") else None
    copies = [row.get("fwd_copy_us"), row.get("bwd_copy_us")]
    share = sum(copies) / time if time and None not in copies else None
    return Pass("both", time, theirs, share).judge(OF_COPY, 1.0)


def judge(row, other):
    """Forward and backward of a row, each with its marks, and the marks of the row as a whole."""
    passes = []
    for which in ("fwd", "bwd"):
        theirs = other.get(f"{which}_us") if other else None
        one = Pass(which, row.get(f"{which}_us"), theirs, row.get(f"{which}_of_copy"))
        view = is_view(row, which), bool(other) and is_view(other, which)
        if view[0]:
            one.of_copy = None
        if row["op"] != "cross_entropy":
            one.judge(copy_bar(row["op"], which), None if any(view) else speed_bar(row))
        passes.append(one)
    marks = [mark for one in passes for mark in one.marks]
    if row["op"] == "cross_entropy":
        passes.append(together(row, other))
        marks += passes[-1].marks
    host, bar = row.get("host_us"), host_bar(row["op"])
    if host is not None and bar is not None and host > bar:
        marks.append(f"host above {bar}")
    return passes, marks


def shape_text(shape):
    return " ".join(shape_text(part) for part in shape) if isinstance(shape[0], list) else "x".join(map(str, shape))


def number(value, digits):
    return "-" if value is None else f"{value:.{digits}f}"


HEAD = ("row", "dtype", "shape", "forward us", "PyTorch", "x faster", "of copy", "backward us", "PyTorch", "x faster",
        "of copy", "host us", "notes")
WIDTHS = (18, 5, 24, 11, 10, 8, 7, 11, 10, 8, 7, 7, 0)


def cells(row, passes, marks):
    shown = []
    for one in passes[:2]:
        shown += [number(one.ours, 1), number(one.theirs, 1), number(one.ratio, 2), number(one.of_copy, 2)]
    note = ", ".join(marks)
    if len(passes) > 2:
        both = passes[2]
        times = f"both {number(both.ours, 1)} us, {number(both.ratio, 2)} x faster, {number(both.of_copy, 2)} of copy"
        note = times + (note and f"; {note}")
    return [row["op"], row["dtype"], shape_text(row["shape"]), *shown, number(row.get("host_us"), 2), note]


def line(parts, markdown):
    if markdown:
        return "| " + " | ".join(parts) + " |"
    text = " ".join(
        part.ljust(width) if i < 3 else part.rjust(width) for i, (part, width) in enumerate(zip(parts[:-1], WIDTHS)))
    return f"{text}  {parts[-1]}".rstrip()


def linear_means(ours, theirs):
    """For each dtype and direction the geometric mean of PyTorch's time over tarn's, over the linear layers of
    GPT-2."""
    means = []
    for dtype in dict.fromkeys(key[1] for key in ours if key[0] == "linear"):
        for which, name in (("fwd", "forward"), ("bwd", "backward")):
            ratios = [
                theirs[key][f"{which}_us"] / row[f"{which}_us"] for key, row in ours.items()
                if key[:2] == ("linear",
                               dtype) and key in theirs and row.get(f"{which}_us") and theirs[key].get(f"{which}_us")]
            if ratios:
                means.append((dtype, name, math.exp(sum(map(math.log, ratios)) / len(ratios)), len(ratios)))
    return means


def main():
    ap = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    ap.add_argument("tarn", help="rows that `tarn bench ops --json` wrote")
    ap.add_argument("torch", help="rows that ops_torch.py wrote")
    ap.add_argument("--markdown", action="store_true", help="print a Markdown table")
    ap.add_argument("--all", action="store_true", help="list the rows that only one of both has")
    args = ap.parse_args()
    try:
        ours, theirs = read(args.tarn), read(args.torch)
    except Unusable as error:
        print(f"gpu_compare.py: {error}", file=sys.stderr)
        return 2
    print(line(HEAD, args.markdown))
    if args.markdown:
        print("|" + "---|" * len(HEAD))
    missed = 0
    for key, row in ours.items():
        passes, marks = judge(row, theirs.get(key))
        missed += bool(marks)
        print(line(cells(row, passes, marks), args.markdown))
    print()
    for dtype, name, mean, count in linear_means(ours, theirs):
        below = mean < LINEAR_MEAN
        missed += below
        print(f"linear layers, {dtype}, {name}: {mean:.3f} times PyTorch's speed in the geometric mean of {count}"
              + (f", below {LINEAR_MEAN}" if below else ""))
    only_ours, only_theirs = [k for k in ours if k not in theirs], [k for k in theirs if k not in ours]
    print(
        f"{len(ours)} rows, {len(ours) - len(only_ours)} beside PyTorch's, {missed} miss a bar; PyTorch has "
        f"{len(only_theirs)} more"
    )
    if args.all:
        for who, keys in (("only tarn has", only_ours), ("only PyTorch has", only_theirs)):
            for op, dtype, shape in keys:
                print(f"{who}: {op} {dtype} {shape}")
    return 1 if missed else 0


if __name__ == "__main__":
    sys.exit(main())
