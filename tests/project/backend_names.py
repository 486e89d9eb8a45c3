#!/usr/bin/env python3
"""Above src/backends a backend is data: no code names one.

The names and vendors are those of core/device/backends.def, the one table of released backends. Comments may name a
backend as an example; code may not, but for the lines allowed here. The check tries itself on planted lines first.
"""
import os
import re
import sys
from pathlib import Path

ROOT = Path(os.environ.get("TARN_SOURCE_DIR", Path(__file__).resolve().parents[2]))
TABLE = "src/core/device/backends.def"
ENDINGS = {".c", ".h", ".inc", ".def"}

# A source that backends share asks for the compiler, not for a backend.
COMPILERS = re.compile(r"\b__(CUDACC|CUDA_ARCH|OPENCL_VERSION|OPENCL_C_VERSION)__\b")

# file: what its lines may be, and why
ALLOWED = {
    TABLE: r"BACKEND\(.*\)",  # the table itself
    "src/base/kernel/families.def": r"UNIT\(.*\)",  # columns by position; the head names them
    "src/base/suggest.c": r'\{"[a-z-]+", "[a-z-]+"\},',  # flags of other programs
    # examples in help texts
    "src/cli/option_table.c": r'.*"device: cpu, cuda:0, opencl:1 or auto["; ].*',
    "src/train/options.def": r'ROW\(device, .*"device: cpu, cuda:0, opencl:1 or auto"\),',
}


def names():
    """The words to look for: ["cuda", "nvidia", "opencl"]."""
    rows = re.findall(r'^BACKEND\((\w+), "(\w*)"\)', (ROOT / TABLE).read_text(), re.M)
    return [word.lower() for row in rows for word in row if word]


def without_comments(text):
    """The code; a comment leaves its line ends, so that lines keep their numbers."""
    return re.sub(r'/\*.*?\*/|("(?:\\.|[^"\\\n])*")', lambda m: m[1] or "\n" * m[0].count("\n"), text, flags=re.S)


def problems(path, text, words):
    for number, line in enumerate(without_comments(text).split("\n"), 1):
        line = COMPILERS.sub("", line)
        named = [word for word in words if word in line.lower()]
        if named and not re.fullmatch(ALLOWED.get(path, r"(?!)"), line.strip()):
            yield f"{path}:{number}: names {named[0]}; ask the backend's table (base/kernel/backend.h) instead"


def self_test(words):
    """Planted lines fail, comments and allowed lines pass."""
    bad = ['if (strcmp(name, "cuda") == 0)', 'bool on_opencl = true;', 'strstr(info.vendor, "NVIDIA")',
           'x = "/* no comment"; y = "cuda"; /* a comment */']
    for line in bad:
        if not list(problems("src/core/device/device.c", line, words)):
            yield f"the check misses: {line}"
    for path, line in [("src/core/device/device.c", "/* CUDA and\n * OpenCL */ int x;"), (TABLE, 'BACKEND(cuda, "")')]:
        if list(problems(path, line, words)):
            yield f"the check fails on: {line}"


def main():
    words = names()
    failures = list(self_test(words))
    files = [path for path in sorted(ROOT.joinpath("src").rglob("*")) if path.suffix in ENDINGS]
    for path in files:
        name = path.relative_to(ROOT).as_posix()
        if not name.startswith("src/backends/"):
            failures += problems(name, path.read_text(), words)
    for line in failures:
        print(line)
    print(f"backend names: {len(files)} files, {', '.join(words)}, {len(failures)} failures")
    return 1 if failures or not words else 0


sys.exit(main())
