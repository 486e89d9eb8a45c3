#!/usr/bin/env python3
"""Training steps of CNNs in tarn and PyTorch: same weights, images and threads, alternating in one process.

  python3 cnn_compare.py [--library build/release/libtarn.so] [--networks mnist,resnet20] [--device cpu] [--threads 2]
                         [--batch 64] [--steps 3] [--rounds 8] [--captured] [--channels-last] [--tf32]
                         [--dtype bf16] [--json]

mnist is conv(1→32) - conv(32→64) - pool - linear(9216→128) - linear(128→10) on 28 × 28 images, resnet20 ResNet-20 on
32 × 32. A step is forward, cross entropy, backward and SGD with momentum, on a batch that is already on the device. The
libraries alternate every --steps steps; the minimum of --rounds rounds counts. Prints images per second by the wall
clock, tarn's over PyTorch's (above 1 tarn is faster), and processor time per image, which other load disturbs less but
which counts spinning threads: OMP_WAIT_POLICY=passive prevents that in PyTorch. With --captured (GPUs) tarn replays a
captured step and PyTorch compiles with mode "reduce-overhead". With --dtype bf16 parameters and images are bf16 in
both; tarn keeps f32 master weights.
"""
import argparse
import json
import os
import sys
import time
from pathlib import Path

import torch

ROOT = Path(__file__).resolve().parents[2]
sys.path[:0] = [str(ROOT / "python"), str(ROOT / "tests/parity")]
NETWORKS = {"mnist": ("mnist_cnn", (1, 28, 28)), "resnet20": ("resnet20", (3, 32, 32))}
LR, MOMENTUM = 0.01, 0.9
DTYPES = {"f32": torch.float32, "bf16": torch.bfloat16}


class Theirs:
    """PyTorch's half."""

    def __init__(self, network, x, target, args):
        layout = torch.channels_last if args.channels_last else torch.contiguous_format
        dtype = DTYPES[args.dtype]
        self.network = network.to(args.device, dtype, memory_format=layout)
        self.x, self.target = x.to(args.device, dtype, memory_format=layout), target.to(args.device)
        self.optimizer = torch.optim.SGD(self.network.parameters(), lr=LR, momentum=MOMENTUM)
        if args.captured:
            self.network = torch.compile(self.network, mode="reduce-overhead")

    def turn(self, steps):
        """Trains; reads the loss of the last step, which waits for the device."""
        for _ in range(steps):
            self.optimizer.zero_grad()
            loss = torch.nn.functional.cross_entropy(self.network(self.x), self.target)
            loss.backward()
            self.optimizer.step()
        return loss.item()


class Ours:
    """tarn's half, from the same state."""

    def __init__(self, tarn, support, network, state, x, target, args):
        self.support, self.network, self.cross_entropy = support, network, tarn.functional.cross_entropy
        for name, values in network.state_dict().items():
            support.write(values, state[name].to(support.TORCH[str(values.dtype)]))
        x = x.to(DTYPES[args.dtype])
        self.x, self.target = support.tensor(x), support.tensor(target)
        if args.channels_last:
            self.x = support.tensor(x.permute(0, 2, 3, 1)).permute(0, 3, 1, 2)
        self.optimizer = tarn.optim.SGD(network, lr=LR, momentum=MOMENTUM)
        self.loss, self.graph = support.tensor(torch.zeros(())), None
        if args.captured:
            self.turn(2)  # buffers exist now, and algorithms are chosen
            self.callback = tarn._c.tarn_step_fn(self.step)
            self.graph = support.call("graph_capture", support.device(), self.callback, None)

    def step(self, _=None):
        loss = self.cross_entropy(self.network(self.x), self.target)
        loss.backward()
        self.optimizer.step()
        self.loss.copy_(loss)
        return True

    def turn(self, steps):
        for _ in range(steps):
            if self.graph:
                self.support.call("graph_run", self.graph)
            else:
                self.step()
        return self.loss.item()

    def free(self):
        """The graph, and the callback that refers to this object."""
        self.support.call("graph_free", self.graph)
        self.graph = self.callback = None


def least(halves, steps, rounds):
    """For each half the least (seconds, processor seconds) of a step, and the loss of the last. The first turn only
    warms up."""
    times, losses = [(float("inf"), float("inf"))] * len(halves), [0.0] * len(halves)
    for turn in range(rounds + 1):
        for k, half in enumerate(halves):
            clock, processor = time.perf_counter(), time.process_time()
            losses[k] = half.turn(steps)
            taken = (time.perf_counter() - clock) / steps, (time.process_time() - processor) / steps
            if turn:
                times[k] = tuple(map(min, times[k], taken))
    return times, losses


def row_of(name, args, tarn, support, networks):
    make, shape = NETWORKS[name]
    torch.manual_seed(args.seed)
    description = getattr(networks, make)()
    x, target = torch.randn(args.batch, *shape), torch.randint(0, 10, (args.batch,))
    network = networks.in_torch(description)
    ours = Ours(tarn, support, networks.in_tarn(description, args.dtype), network.state_dict(), x, target, args)
    theirs = Theirs(network, x, target, args)
    if args.captured:
        theirs.turn(2)  # as many steps as ours has made to warm up
    try:
        (a, b), losses = least([ours, theirs], args.steps, args.rounds)
    finally:
        ours.free()
    return {
        "network": name, "device": args.device, "captured": args.captured, "channels_last": args.channels_last,
        "tf32": args.tf32, "dtype": args.dtype, "threads": args.threads, "batch": args.batch,
        "tarn_images_per_s": args.batch / a[0], "torch_images_per_s": args.batch / b[0], "ratio": b[0] / a[0],
        "tarn_processor_ms": 1e3 * a[1] / args.batch, "torch_processor_ms": 1e3 * b[1] / args.batch,
        "processor_ratio": b[1] / a[1], "tarn_loss": losses[0], "torch_loss": losses[1]}


def parse():
    ap = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    ap.add_argument("--library", default=str(ROOT / "build/release/libtarn.so"))
    ap.add_argument("--networks", default=",".join(NETWORKS), help="which, separated by commas")
    ap.add_argument("--device", default="cpu", choices=["cpu", "cuda"])
    ap.add_argument("--threads", type=int, default=2)
    ap.add_argument("--batch", type=int, default=64)
    ap.add_argument("--steps", type=int, default=3, help="steps of a turn")
    ap.add_argument("--rounds", type=int, default=8, help="turns of each")
    ap.add_argument("--seed", type=int, default=1)
    ap.add_argument("--captured", action="store_true",
                    help="on cuda: a captured step next to torch.compile(mode=\"reduce-overhead\")")
    ap.add_argument("--channels-last", action="store_true", help="NHWC images (channels last), in both")
    ap.add_argument("--tf32", action="store_true", help="matmuls and convolutions in TF32, in both")
    ap.add_argument("--dtype", default="f32", choices=list(DTYPES), help="of parameters and images, in both")
    ap.add_argument("--json", action="store_true", help="one object a line")
    args = ap.parse_args()
    unknown = set(args.networks.split(",")) - set(NETWORKS)
    if unknown or min(args.threads, args.batch, args.steps, args.rounds) < 1:
        ap.error(f"no such network: {', '.join(sorted(unknown))}"
                 if unknown else "threads, batch, steps and rounds are at least 1")
    return args


def main():
    args = parse()
    os.environ["TARN_LIBRARY"] = args.library
    import networks
    import support
    import tarn
    torch.set_num_threads(args.threads)
    torch.backends.cudnn.allow_tf32 = torch.backends.cuda.matmul.allow_tf32 = args.tf32
    support.call("set_tf32", args.tf32)
    tarn.set_threads(args.threads)
    support.use_device(args.device)
    if not args.json:
        print(f"batch {args.batch}, {args.threads} threads, {args.device}; images/s, and processor time of an image")
        print(
            f"{'network':<12}{'tarn':>10}{'PyTorch':>10}{'ratio':>8}{'tarn ms':>10}{'PyTorch ms':>12}{'ratio':>8}"
            f"{'losses':>20}"
        )
    for name in args.networks.split(","):
        row = row_of(name, args, tarn, support, networks)
        if args.json:
            print(json.dumps(row), flush=True)
        else:
            print(
                f"{name:<12}{row['tarn_images_per_s']:>10.1f}{row['torch_images_per_s']:>10.1f}{row['ratio']:>8.2f}"
                f"{row['tarn_processor_ms']:>10.3f}"
                f"{row['torch_processor_ms']:>12.3f}{row['processor_ratio']:>8.2f}{row['tarn_loss']:>10.4f}"
                f"{row['torch_loss']:>10.4f}",
                flush=True)
        if abs(row["tarn_loss"] -
               row["torch_loss"]) > (0.02 if args.dtype == "f32" else 0.1) * (1 + abs(row["torch_loss"])):
            sys.exit(f"{name}: the losses differ, so the two did not do the same work")


if __name__ == "__main__":
    main()
