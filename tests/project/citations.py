#!/usr/bin/env python3
"""Every source file that docs and comments cite exists, and so does every page that a page links to.

A citation is a path (`core/memory/pool.c`, from the project's folder, src/, include/ or tests/, or from the file that
cites it) or the name of a C, CUDA or OpenCL file alone, which must be some file's name. CHANGELOG.md, which names what
was there once, is not read.
"""
import os
import re
import sys
from pathlib import Path

from support.tracked import tracked_files

ROOT = Path(os.environ.get("TARN_SOURCE_DIR", Path(__file__).resolve().parents[2]))
STARTS = ("", "src/", "include/", "tests/", "src/backends/", "include/tarn/")
SOURCES = (".c", ".h", ".cu", ".cuh", ".cl", ".inc", ".def", ".cpp")
ENDINGS = "cuh|cu|cl|c|h|def|inc"
COMMENT = re.compile(r"""("(?:\\.|[^"\\\n])*"|'(?:\\.|[^'\\\n])*')|//[^\n]*|/\*.*?\*/""", re.S)
CITED = re.compile(rf"(?<![\w./*<-])(?:[\w.-]+/)*[A-Za-z_]\w*\.(?:{ENDINGS})(?![\w/(])(?!\.\w)")
SCRIPT = re.compile(r"(?<![\w./-])(?:scripts|tests/project|bench|docs|configs|examples|cmake)/[\w./-]*\w")
LINK = re.compile(r"\]\(([^)#\s]+)[^)]*\)")
# Files of others, of a build, or of a reader's own project that prose names.
OTHERS = {"a.c", "b.c", "a.cl", "b.cl", "main.c", "hello.c", "sine.c", "llm.c",
          "tarn_features.h", "demo_text.c", "opencl_sources.c", "immintrin.h", "arm_neon.h",
          "cmocka.h", "jansson.h", "pcre2.h", "zlib.h", "cblas.h", "math.h", "stdio.h", "stdlib.h"}
# Files that a page has the reader add; scripts/test-guides adds them to a copy of the tree.
ADDED = {"docs/internals/adding-an-operation.md": {"tril.c", "tril.cu", "tril.cl"}}


def is_there(cited, path, names):
    if Path(cited).name in ADDED.get(path, ()):
        return True
    if "/" not in cited:
        return cited in names or cited in OTHERS or (ROOT / cited).exists()
    beside = (ROOT / path).parent / cited
    built = ROOT / (cited + ".c")  # examples/mlp: a program of the build
    return beside.exists() or built.exists() or any((ROOT / (start + cited)).exists() for start in STARTS)


def cited_in(path, text):
    """(place in the text, what is cited) of a file."""
    if path.endswith(SOURCES):
        pieces = [(match.start(), match[0]) for match in COMMENT.finditer(text) if not match[1]]
    else:
        pieces = [(0, text)]
    for start, piece in pieces:
        for pattern in (CITED, SCRIPT):
            for match in pattern.finditer(piece):
                yield start + match.start(), match[0]
        if path.endswith(".md"):
            for match in LINK.finditer(piece):
                if not re.match(r"[a-z]+:", match[1]):
                    yield start + match.start(), match[1]


def problems_of(path, names):
    text = (ROOT / path).read_text(encoding="utf-8")
    for place, cited in cited_in(path, text):
        if not is_there(cited.rstrip("."), path, names):
            yield f"{path}:{text.count(chr(10), 0, place) + 1}: {cited} does not exist"


def main():
    files = tracked_files(ROOT)
    if files is None:
        print("not a git checkout: there is no list of files")
        return 77
    names = {Path(path).name for path in files}
    read = [path for path in files if path.endswith(SOURCES + (".md",)) and path != "CHANGELOG.md"]
    problems = sorted({problem for path in read for problem in problems_of(path, names)})
    print("\n".join(problems), end="\n" if problems else "")
    print(f"{len(read)} files read, {len(problems)} citations of files that do not exist")
    return 1 if problems or not read else 0


if __name__ == "__main__":
    sys.exit(main())
