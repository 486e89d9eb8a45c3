"""MNIST for real: a LeNet trained by tarn and by torch, each from weights and an order of images of its own draw, with
the same network, optimizer, schedule and epochs. The mean accuracy over the seeds on the 10,000 test images is 99 % or
better, and no further below torch's than two standard deviations of the difference of two such counts.

    mnist.py [--seed N] [--seeds 3] [--epochs 5] [--threads N] [--device cpu]        (TARN_TEST_DATA names a folder that
        holds mnist/)"""
import argparse
import ctypes as c
import gzip
import math
import os
import random
import time

import numpy as np
import torch

import compare
import networks
import support
import tarn
from tarn._library import Owner, Scope, keep, lib

BATCH, TEST_BATCH, WANTED = 64, 1000, 0.99
MEAN, DEVIATION = 0.1307, 0.3081
LR, MOMENTUM, WARMUP = 0.02, 0.9, 200


def folder():
    """Where the files are, or None."""
    path = os.path.join(os.environ.get("TARN_TEST_DATA", ""), "mnist")
    return path if os.environ.get("TARN_TEST_DATA") and os.path.isdir(path) else None


# ---- torch -----------------------------------------------------------------------------------------------------------
# ---------------------


def torch_data(kind):
    """(images [N, 1, 28, 28], normalised, labels [N]); read without tarn."""
    def numbers(name, skipped):
        with gzip.open(os.path.join(folder(), f"{kind}-{name}-ubyte.gz")) as file:
            return np.frombuffer(file.read(), np.uint8)[skipped:]
    images = torch.from_numpy(numbers("images-idx3", 16).astype(np.float32)).reshape(-1, 1, 28, 28)
    return (images / 255 - MEAN) / DEVIATION, torch.from_numpy(numbers("labels-idx1", 8).astype(np.int64))


def factor(step, total):
    """The schedule of both: a warm-up, then half a cosine down to 0."""
    return (step + 1) / WARMUP if step < WARMUP else (1 + math.cos(math.pi * (step - WARMUP) / (total - WARMUP))) / 2


def torch_accuracy(seed, epochs):
    torch.manual_seed(seed)
    network, (images, labels) = networks.in_torch(networks.lenet()), torch_data("train")
    optimizer = torch.optim.SGD(network.parameters(), lr=LR, momentum=MOMENTUM)
    total = epochs * math.ceil(len(labels) / BATCH)
    schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: factor(step, total))
    for _ in range(epochs):
        for chosen in torch.randperm(len(labels)).split(BATCH):
            optimizer.zero_grad()
            torch.nn.functional.cross_entropy(network(images[chosen]), labels[chosen]).backward()
            optimizer.step()
            schedule.step()
    images, labels = torch_data("t10k")
    with torch.no_grad():
        right = sum((network(x).argmax(1) == y).sum().item()
                    for x, y in zip(images.split(TEST_BATCH), labels.split(TEST_BATCH)))
    return right / len(labels)


# ---- tarn ------------------------------------------------------------------------------------------------------------
# ---------------------


def tarn_loader(training, batch, seed):
    dataset = support.call("dataset_mnist", folder(), training)
    loader = support.call("loader_new_sized", dataset, *support.options(
        "loader", batch_size=batch, shuffle=training, seed=seed, device=support.device()._value, normalize=True,
        channels=1, mean=c.pointer(c.c_float(MEAN)), std=c.pointer(c.c_float(DEVIATION))))
    support.call("dataset_free", dataset)
    return Owner(loader, lib.tarn_loader_free)


def batches(loader):
    """(images, labels) to the end of an epoch."""
    fields = (c.c_void_p * 2)()
    while True:
        with Scope():
            if not support.call("loader_next", loader.handle, fields):
                return
            batch = [tarn.Tensor._wrap(keep(field)) for field in fields]
        yield batch


def tarn_epoch(network, optimizer, loader):
    for images, labels in batches(loader):
        tarn.functional.cross_entropy(network(images), labels).backward()
        optimizer.step()


def tarn_test(network):
    right = count = 0
    network.eval()
    with tarn.no_grad():
        for images, labels in batches(tarn_loader(False, TEST_BATCH, 0)):
            right += (network(images).argmax(1) == labels).sum().item()
            count += len(labels)
    return right / count


def tarn_accuracy(seed, epochs):
    tarn.seed(seed)
    network, loader = networks.in_tarn(networks.lenet()), tarn_loader(True, BATCH, seed)
    optimizer = tarn.optim.SGD(network, lr=LR, momentum=MOMENTUM)
    total = epochs * support.call("loader_batches", loader.handle)
    optimizer.set_schedule("cosine", warmup_steps=WARMUP, total_steps=total)
    for _ in range(epochs):
        tarn_epoch(network, optimizer, loader)
    return tarn_test(network)


# ---- both ------------------------------------------------------------------------------------------------------------
# -----------------------


def noise(accuracy):
    """Two standard deviations of the difference of two shares of 10,000."""
    return 2 * math.sqrt(2 * accuracy * (1 - accuracy) / 10_000)


def run(seed, seeds, epochs):
    """A verdict; prints a line a seed."""
    ours, theirs = [], []
    for k in range(seeds):
        begin = time.monotonic()
        ours.append(tarn_accuracy(seed + k, epochs))
        middle = time.monotonic()
        theirs.append(torch_accuracy(seed + k, epochs))
        print(
            f"mnist: seed {seed + k}, {epochs} epochs: tarn {100 * ours[-1]:.2f} % in {middle - begin:.0f} s, torch "
            f"{100 * theirs[-1]:.2f} % in "
            f"{time.monotonic() - middle:.0f} s", flush=True)
    a, b = sum(ours) / seeds, sum(theirs) / seeds
    good = a >= WANTED and a >= b - noise(b)
    return compare.Verdict(
        good, text=
        f"tarn is right on {100 * a:.2f} %, torch on {100 * b:.2f} %; 99 % and {100 * (b - noise(b)):.2f} % are wanted")


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seed", type=int, default=random.SystemRandom().randrange(1 << 31))
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--epochs", type=int, default=5)
    parser.add_argument("--threads", type=int, default=os.cpu_count())
    parser.add_argument("--device", default="cpu")
    options = parser.parse_args()
    if not folder():
        raise SystemExit("set TARN_TEST_DATA to a folder that holds mnist/")
    torch.set_num_threads(options.threads)
    tarn.set_threads(options.threads)
    support.use_device(options.device)
    verdict = run(options.seed, options.seeds, options.epochs)
    print(verdict.text)
    raise SystemExit(0 if verdict.good else 1)


if __name__ == "__main__":
    main()
