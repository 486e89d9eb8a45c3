#!/usr/bin/env python3
"""Reads every include in src/ and fails on one that points up the layers, or sideways where it should not.

A folder may include itself and the folders named beside it here. The public headers count with the layer that defines
them, so that base/ cannot lean on <tarn/nn.h>. Standard and third-party headers are not looked at.
"""
import os
import re
import sys
from pathlib import Path

ROOT = Path(os.environ.get("TARN_SOURCE_DIR", Path(__file__).resolve().parents[2]))
SOURCE = ROOT / "src"

BELOW_NN = {"base", "core", "autograd", "ops"}
BELOW_MODELS = BELOW_NN | {"nn", "text", "formats"}
BELOW_TRAIN = BELOW_MODELS | {"optim", "data", "parallel"}

# folder: the folders it may include beside itself
MAY_INCLUDE = {
    "base": set(),
    "backends/cpu": {"base"},
    "backends/cuda": {"base"},
    "backends/opencl": {"base"},
    "core": {"base"},
    "autograd": {"base", "core"},
    "ops": {"base", "core", "autograd"},
    "nn": BELOW_NN | {"formats", "parallel"},
    "text": {"base", "core", "formats"},
    "formats": {"base", "core"},
    "optim": BELOW_MODELS | {"parallel"},
    "data": BELOW_MODELS,
    "parallel": BELOW_NN,
    "models": BELOW_TRAIN,
    "train": BELOW_TRAIN | {"models", "generate"},
    "generate": BELOW_TRAIN | {"models"},
    "cases": {"base"},
    "serve": set(),
    "hub": set(),
    "cli": {"cases", "serve", "hub"},
}

# public header: the lowest folder that may include it; a folder may include what the folders below it may
DEFINED_BY = {
    "base.h": "base",
    "device.h": "base",
    "dlpack.h": "core",
    "graph.h": "core",
    "tensor.h": "base",
    "profile.h": "core",
    "autograd.h": "autograd",
    "ops.h": "ops",
    "safetensors.h": "formats",
    "gguf.h": "formats",
    "nn.h": "nn",
    "optim.h": "optim",
    "data.h": "data",
    "parallel.h": "parallel",
    "text.h": "text",
    "grammar.h": "text",
    "model.h": "models",
    "convert.h": "models",
    "lora.h": "models",
    "engine.h": "generate",
    "generate.h": "generate",
    "table.h": "train",
    "predict.h": "train",
    "runs.h": "train",
    "train.h": "train",
}
ANY_PUBLIC = {"cli", "cases", "serve", "hub"}
GENERATED = {"tarn_features.h"}
ENDINGS = {".c", ".h", ".inc", ".def", ".cu", ".cuh", ".cl"}
INCLUDE = re.compile(r'^[ \t]*#[ \t]*include[ \t]*(?:"([^"]+)"|<(tarn/[^>]+)>)', re.M)


def folder_of(path):
    """The layer that a file under src/ belongs to: "core", "backends/cpu"."""
    parts = path.relative_to(SOURCE).parts[:-1]
    return "/".join(parts[:2] if parts[:1] == ("backends",) else parts[:1])


def public_problem(folder, header):
    name = header[len("tarn/") :]
    if folder in ANY_PUBLIC:
        return None
    if name not in DEFINED_BY:
        return f"<{header}> is for users, cli/, serve/ and cases/; include the header of the one idea that is needed"
    owner = DEFINED_BY[name]
    if owner == folder or owner in MAY_INCLUDE[folder]:
        return None
    return f"<{header}> belongs to {owner}/, which {folder}/ does not stand on"


def private_problem(path, folder, include):
    if include in GENERATED:
        return None
    for start in (path.parent, SOURCE):
        target = Path(os.path.normpath(start / include))
        if target.is_file():
            break
    else:
        return f'"{include}" is not found beside the file or under src/'
    if SOURCE not in target.parents:
        return f'"{include}" lies outside src/'
    other = folder_of(target)
    if other == folder or other in MAY_INCLUDE[folder]:
        return None
    return f'"{include}" belongs to {other}/, which {folder}/ does not stand on'


def problems_of(path):
    folder = folder_of(path)
    if folder not in MAY_INCLUDE:
        return [f"{path.relative_to(ROOT)}: the folder src/{folder} has no place in the layers"]
    text = path.read_text(encoding="utf-8")
    problems = []
    for match in INCLUDE.finditer(text):
        private, public = match.groups()
        problem = public_problem(folder, public) if public else private_problem(path, folder, private)
        if problem:
            line = text.count("\n", 0, match.start()) + 1
            problems.append(f"{path.relative_to(ROOT)}:{line}: {problem}")
    return problems


def main():
    files = sorted(path for path in SOURCE.rglob("*") if path.suffix in ENDINGS)
    problems = [problem for path in files for problem in problems_of(path)]
    print("\n".join(problems), end="\n" if problems else "")
    print(f"{len(files)} files read, {len(problems)} includes against the layers")
    return 1 if problems or not files else 0


if __name__ == "__main__":
    sys.exit(main())
