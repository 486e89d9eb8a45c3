#!/usr/bin/env python3
"""tarn, PyTorch and a plain copy alternating in one process on one thread, by processor time: for busy machines.

  python3 in_turn.py [--library build/release/libtarn.so] [--dtype f32] [--size 67108864] [--runs 10] [--calls 1] ROW...

Rows are the element-wise, broadcast and reduction rows of `tarn bench ops` (add, gelu_erf, add-broadcast-row,
sum-last), cast, expand-copy, and those in IMAGES and ROWS below. Prints the minimum time of each in milliseconds, tarn
/ PyTorch (below 1 tarn is faster) and the share of a copy of the same bytes.
"""
import argparse
import ctypes
import os
import sys
import time
from pathlib import Path

import torch

ROOT = Path(__file__).resolve().parents[2]
sys.path[:0] = [str(ROOT / "python"), str(ROOT / "tests/parity"), str(ROOT / "bench/compare")]


# Operations with their attributes, one after the other.
IMAGES = {
    "groupnorm": [("groupnorm", {"groups": 1, "epsilon": 1e-5})],
    "max_pool2d": [("max_pool2d", {"kernel": (2, 2)})],
    "stride-copy": [("stride", {"steps": [1, 1, 2, 2]}), ("contiguous", {})],
    "flip": [("flip", {"axes": [-1]}), ("contiguous", {})],
    "pad": [("pad", {"before": [0, 0, 1, 1], "after": [0, 0, 1, 1]})],
}
ROWS = {
    "softmax": [("softmax", {"axis": -1})],
    "log_softmax": [("log_softmax", {"axis": -1})],
    "layernorm": [("layernorm", {"epsilon": 1e-5})],
    "rmsnorm": [("rmsnorm", {"epsilon": 1e-5})],
}


def described(row, dtype, size):
    """([(operation, attributes)], the row as ops_compare knows it)."""
    columns = 1024 if size >= 1 << 20 else 32
    elements = size // torch.empty(0, dtype=dtype).element_size()
    rows = max(1, elements // columns)
    name, _, rest = row.partition("-")
    shape = [rows, columns]
    images = [max(1, elements // (64 * 32 * 32)), 64, 32, 32]
    if row == "shrink-copy":
        return [("shrink", {"begin": [0, 0, 1, 1], "end": [images[0], 64, 31, 31]}), ("contiguous", {})], images
    if row in IMAGES:
        return IMAGES[row], images
    if row == "expand-copy":
        return [("expand", {"shape": [16, rows // 16, columns]}), ("contiguous", {})], [1, rows // 16, columns]
    if row == "cast":
        return [("cast", {"dtype": 2 if dtype == torch.float32 else 0})], shape
    if row in ROWS:
        return ROWS[row], shape
    if rest.startswith("broadcast"):
        return [(name, {})], [shape, [columns] if rest.endswith("row") else [rows, 1]]
    if rest:
        return [(name, {"axes": {"last": [-1], "first": [0], "all": []}[rest]})], shape
    return [(name, {})], shape


class Tarn:
    """The C interface by handles, which belong to the open scope: in the time of small work there are no objects of the
    package, but the arguments of a call."""

    def __init__(self):
        from tarn import _c
        from tarn._library import Scope, check, lib
        self.c, self.scope, self.check, self.library = _c, Scope, check, lib

    def attribute(self, name, value):
        """An attribute from a list, an integer or a float."""
        if isinstance(value, (list, tuple)):
            return self.c.tarn_attribute(name.encode(), 0, 0, (ctypes.c_int64 * self.c.TARN_MAX_RANK)(*value),
                                         len(value))
        if isinstance(value, float):
            return self.c.tarn_attribute(name.encode(), value, 0)
        return self.c.tarn_attribute(name.encode(), 0, int(value))

    def apply(self, name, inputs, attributes):
        """The results of an operation, which has one."""
        given = (ctypes.c_void_p * len(inputs))(*inputs)
        listed = (self.c.tarn_attribute * len(attributes))(*(self.attribute(*item) for item in attributes.items()))
        made = (ctypes.c_void_p * 1)()
        self.library.tarn_apply(name.encode(), given, len(inputs), listed, len(attributes), made, 1)
        self.check()
        return list(made)

    def backward(self, handle, upstream):
        """Accumulates gradients and keeps the tape."""
        options = self.c.tarn_backward_options(retain=True)
        self.library.tarn_backward_from_sized(handle, upstream, ctypes.byref(options), ctypes.sizeof(options))
        self.check()


def chain(tarn, steps, handles):
    """The result of the last operation; each but the first takes what the one before it gave."""
    for operation, attributes in steps:
        handles = tarn.apply(operation, handles, attributes)
    return handles[0]


def least(works, runs, calls):
    """The least processor time of each, in milliseconds, a turn being so many calls; all take turns."""
    times = [float("inf")] * len(works)
    for turn in range(runs + 1):
        for k, work in enumerate(works):
            start = time.thread_time()
            for _ in range(calls):
                work()
            if turn:
                times[k] = min(times[k], 1e3 * (time.thread_time() - start) / calls)
    return times


def passes(tarn, support, fn, inputs, steps):
    """(name, tarn's work, PyTorch's work, bytes moved) for forward and backward."""
    tensors = [support.tensor(x) for x in inputs]
    handles = [x._handle for x in tensors]
    moved = sum(x.numel() * x.element_size() for x in inputs)

    def forward():
        with tarn.scope():
            chain(tarn, steps, handles)

    def forward_torch():
        with torch.no_grad():
            fn(*inputs)

    result = fn(*inputs)
    yield "forward", forward, forward_torch, moved + result.numel() * result.element_size()
    for x in tensors:
        x.requires_grad_()
    recorded = chain(tarn, steps, handles)
    gradient = torch.ones_like(result)
    upstream = support.tensor(gradient)

    def backward():
        for handle in handles:
            tarn.library.tarn_zero_grad(handle)
        tarn.backward(recorded, upstream._handle)

    def backward_torch():
        for x in inputs:
            x.grad = None
        result.backward(gradient, retain_graph=True)

    saved = 0 if steps[0][0] in ("add", "sub", "sum", "mean", "stride", "shrink", "pad", "flip", "expand",
                                 "cast") else moved
    yield "backward", backward, backward_torch, saved + moved + result.numel() * result.element_size()


def main():
    ap = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    ap.add_argument("--library", default=str(ROOT / "build/release/libtarn.so"))
    ap.add_argument("--dtype", default="f32")
    ap.add_argument("--size", type=int, default=64 << 20)
    ap.add_argument("--runs", type=int, default=10)
    ap.add_argument("--calls", type=int, default=1,
                    help="calls in a row; 16 for work of microseconds, which is then in the caches")
    ap.add_argument("rows", nargs="+", metavar="ROW")
    args = ap.parse_args()
    os.environ["TARN_LIBRARY"] = args.library
    import ops_compare
    import support
    tarn = Tarn()
    torch.set_num_threads(1)
    support.call("set_threads", 1)
    dtype = ops_compare.DTYPES[args.dtype]
    print(f"{'row':<20}{'pass':<10}{'tarn':>10}{'PyTorch':>10}{'copy':>10}{'ratio':>8}{'of copy':>9}")
    for row in args.rows:
        steps, shape = described(row, dtype, args.size)
        fn, make = ops_compare.work_of({"op": row, "dtype": args.dtype, "shape": shape, "result": [16, *shape[1:]]})
        with tarn.scope():
            for name, ours, theirs, moved in passes(tarn, support, fn, make(), steps):
                source, target = torch.zeros(2, moved // 2, dtype=torch.uint8)
                a, b, copy = least([ours, theirs, lambda: target.copy_(source)], args.runs, args.calls)
                print(f"{row:<20}{name:<10}{a:>10.3f}{b:>10.3f}{copy:>10.3f}{a / b:>8.2f}{copy / a:>9.2f}", flush=True)


if __name__ == "__main__":
    main()
