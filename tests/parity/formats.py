"""safetensors files in both directions against the safetensors package: every dtype bit for bit, the same bytes on
disk, and the same verdict on files that were changed."""
import os
import random
import tempfile

import safetensors
import safetensors.torch
import torch

import support
import tarn

SHAPES = [(), (0,), (5,), (3, 0, 2), (2, 3), (4, 1, 3, 2), (1, 2, 1, 3, 1, 2, 1, 2)]
CHANGED = 300  # files with random changes, each judged by both
FOREIGN = {
    "I8": torch.int8, "I16": torch.int16, "F8_E4M3": torch.float8_e4m3fn, "F8_E5M2": torch.float8_e5m2,
    "C64": torch.complex64}


def bits(shape, dtype, rng):
    """A torch tensor with random bytes (bools: 0 or 1)."""
    count = torch.Size(shape).numel() * dtype.itemsize
    raw = [rng.randrange(2 if dtype == torch.bool else 256) for _ in range(count)]
    return torch.tensor(raw, dtype=torch.uint8).view(dtype).reshape(shape) if count else torch.empty(shape, dtype=dtype)


def raw(tensor):
    return bytes(tensor.contiguous().reshape(-1).view(torch.uint8).tolist()) if tensor.numel() else b""


def names(rng, count):
    """Names of many lengths, some with letters that JSON escapes or that UTF-8 takes several bytes for."""
    alphabet = ["a", "b", "0", ".", "_", "weight", "é", "漢", '"', "\\", "\n", "\u0001", "/", "\x7f", "😀"]
    made = set()
    while len(made) < count:
        made.add("".join(rng.choice(alphabet) for _ in range(1 + rng.randrange(6))))
    return sorted(made, key=lambda _: rng.random())


def sample(rng):
    """Tensors of every dtype and shape, and metadata."""
    kinds = [(dtype, shape) for dtype in support.TORCH.values() for shape in SHAPES]
    tensors = {name: bits(shape, dtype, rng) for name, (dtype, shape) in zip(names(rng, len(kinds)), kinds)}
    return tensors, {key: f"value of {key}"
                     for key in names(rng, rng.randrange(2))}  # one key: the package's order of several is random


def write_tarn(path, tensors, metadata):
    tarn.save_file({name: support.tensor(values) for name, values in tensors.items()}, path, metadata)


def read_tarn(path):
    """Everything in a file: {name: torch tensor}. An exception when tarn refuses the file."""
    with tarn.Safetensors(path, support.device()) as file:
        return {name: support.read(file[name]) for name in file}


def read_metadata(path, keys):
    """By key, and all that a file has: the same."""
    with tarn.Safetensors(path) as file:
        values = {key: support.call("safetensors_metadata", file, key.encode()).decode() for key in keys}
        assert values == file.metadata
        return values


def differences(a, b):
    """Names whose shape, dtype or bits differ."""
    wrong = sorted(set(a) ^ set(b))
    return wrong + [
        n for n in set(a) & set(b) if a[n].shape != b[n].shape or a[n].dtype != b[n].dtype or raw(a[n]) != raw(b[n])]


def check_theirs(folder, rng):
    """What the package writes, tarn reads."""
    path, (tensors, metadata) = os.path.join(folder, "theirs.safetensors"), sample(rng)
    safetensors.torch.save_file(tensors, path, metadata or None)
    wrong = differences(read_tarn(path), tensors)
    return f"read differently: {wrong}" if wrong else "" if read_metadata(
        path, metadata) == metadata else "the metadata differ"


def check_ours(folder, rng):
    """What tarn writes, the package reads; and the bytes are those that the package writes."""
    ours, theirs, (tensors,
                   metadata) = os.path.join(folder, "ours.safetensors"), os.path.join(folder,
                                                                                      "theirs.safetensors"), sample(rng)
    write_tarn(ours, tensors, metadata)
    wrong = differences(safetensors.torch.load_file(ours), tensors)
    if wrong:
        return f"written differently: {wrong}"
    safetensors.torch.save_file(tensors, theirs, metadata or None)
    with open(ours, "rb") as a, open(theirs, "rb") as b:
        return "" if a.read() == b.read() else "the files' bytes differ"


def check_foreign(folder, rng):
    """Element types that tarn lacks are listed, and refused with their name."""
    path = os.path.join(folder, "foreign.safetensors")
    safetensors.torch.save_file({name: bits((4,), dtype, rng) for name, dtype in FOREIGN.items()}, path)
    file = tarn.Safetensors(path, support.device())
    wrong = [] if len(file) == len(FOREIGN) else ["count"]
    for name in FOREIGN:
        try:
            wrong.append(f"{name}: {file[name]}")
        except tarn.Error as error:
            wrong += [name] if error.code != "unsupported" or name not in str(error) else []
    return f"not refused: {wrong}" if wrong else ""


def change(data, rng):
    """A few changes that keep a file near to what it was: digits, punctuation, the length, the end."""
    data = bytearray(data)
    header = 8 + int.from_bytes(data[:8], "little")
    for _ in range(1 + rng.randrange(3)):
        at, kind = 8 + rng.randrange(max(1, min(header, len(data)) - 8)), rng.randrange(6)
        if kind == 0:
            data[at : at + 1] = bytes([rng.choice(b'0123456789-.,:[]{}" ')])
        elif kind == 1:
            data[0] = (data[0] + rng.randrange(1, 4)) % 256
        elif kind == 2:
            del data[-1:]
        elif kind == 3:
            data += b"\0"
        elif kind == 4:
            data[at : at + 1] = bytes([rng.randrange(256)])
        else:
            digits = [i for i in range(8, min(header, len(data))) if chr(data[i]).isdigit()]
            if digits:
                data[rng.choice(digits)] = rng.choice(b"0123456789")
    return bytes(data)


def check_changed(folder, rng):
    """tarn opens what the package opens, and what tarn opens is bitwise identical there. tarn may refuse more: a bool
    that is neither 0 nor 1, a NUL in a name, more than 8 axes."""
    source, path = os.path.join(folder, "source.safetensors"), os.path.join(folder, "changed.safetensors")
    tensors = {
        "a": bits((2, 3), torch.float32, rng), "b.weight": bits((4, ), torch.uint8, rng), "c": bits((), torch.int64,
                                                                                                    rng)}
    safetensors.torch.save_file(tensors, source, {"format": "pt"})
    with open(source, "rb") as file:
        good = file.read()
    opened = 0
    for _ in range(CHANGED * (100 if os.environ.get("TARN_TEST_LONG") else 1)):
        data = change(good, rng)
        with open(path, "wb") as file:
            file.write(data)
        try:
            theirs = safetensors.torch.load(data)
        except Exception as error:  # the package raises several kinds
            theirs = error
        try:
            ours = read_tarn(path)
        except tarn.Error as error:
            ours = error
        if isinstance(ours, dict) != isinstance(theirs, dict) and not may_differ(ours, theirs):
            return f"tarn: {ours!r}; package: {theirs!r}; file {data!r}"
        opened += isinstance(ours, dict)
        if isinstance(ours, dict) and isinstance(theirs, dict) and differences(ours, theirs):
            return f"read differently: file {data!r}"
    return "" if opened else "no changed file was opened by both: the changes are too rough"


def may_differ(ours, theirs):
    """Where tarn may refuse what the package takes."""
    text = str(ours)
    return isinstance(theirs, dict) and any(
        reason in text for reason in ("is not a bool", "\\u0000", "axes; tarn's", "which tarn cannot load"))


CHECKS = {
    "what the package writes": check_theirs, "what tarn writes": check_ours, "foreign dtypes": check_foreign,
    "changed files": check_changed}


def run(seed):
    """Yields (check, what is wrong or "")."""
    for name, check in CHECKS.items():
        with tempfile.TemporaryDirectory() as folder:
            yield name, check(folder, random.Random(f"{seed}/{name}"))
