#!/usr/bin/env python3
"""The tree stays readable: sizes of files and folders, names, lines.

- A folder of src/ has at most 24 files, a source file at most 600 lines (a generated table may have more).
- Few sources are short: of the .c files in src/ at most one in twenty has fewer than 60 lines, without stubs (_none.c).
- Base names are unique within a backend: traces and debuggers show them without their folder.
- Headers (.h, .cuh) have a guard named after the file: TARN__NAME_H, or TARN__FOLDER_NAME_H with the layer or the
  backend; a file that is included several times is .inc or .def.
- Every source file begins with a comment that says what it is for.
- Lines end at 120 columns: C, CUDA, OpenCL, Python, shell, the man page, completions and docs. Exempt are links, URLs
  and fenced blocks of docs, chat templates copied verbatim, and generated files: the table of Unicode, api.md, whose
  tables are as wide as a struct's comments, and the declarations of the Python package.
"""
import os
import re
import sys
from collections import Counter
from pathlib import Path

from support.tracked import tracked_files

ROOT = Path(os.environ.get("TARN_SOURCE_DIR", Path(__file__).resolve().parents[2]))
PROSE = (".md", ".py", ".sh", ".1")
SOURCES = (".c", ".h", ".cu", ".cuh", ".cl", ".inc", ".def", ".cpp")
GENERATED = {"src/text/tokenizer/nfc_table.inc", "src/text/tokenizer/nfkd_table.inc", "docs/reference/api.md",
             "python/tarn/_c.py"}
MAX_FILES, MAX_LINES, COLUMNS = 24, 600, 120
SHORT_LINES, MAX_SHORT = 60, 0.05


def folder_problems(files):
    count = Counter(str(Path(path).parent) for path in files if path.startswith("src/"))
    yield from (f"{folder}: {n} files; at most {MAX_FILES}" for folder, n in count.items() if n > MAX_FILES)
    names = Counter((path.split("/")[2], Path(path).name) for path in files if path.startswith("src/backends/"))
    for (backend, name), n in names.items():
        if n > 1 and name != "CMakeLists.txt":
            yield f"src/backends/{backend}: {n} files are named {name}"


def short_problems(files):
    sources = [path for path in files if path.startswith("src/") and path.endswith(".c")]
    short = [path for path in sources if not path.endswith("_none.c") and
             (ROOT / path).read_text(encoding="utf-8").count("\n") < SHORT_LINES]
    if len(short) > MAX_SHORT * len(sources):
        yield f"{len(short)} of {len(sources)} sources have fewer than {SHORT_LINES} lines: {', '.join(short)}"


def guards_of(path):
    folders = [folder.upper() for folder in path.split("/")[1:-1]]
    name = re.sub(r"\W", "_", Path(path).name).upper()
    if path.startswith("include/"):
        return ["TARN_H" if name == "TARN_H" else "TARN_" + name]
    if folders[0] == "BACKENDS":
        return [f"TARN__{folders[1]}_{name}", f"TARN__{name}"]
    return [f"TARN__{name}", f"TARN__{folders[0]}_{name}"]


def source_problems(path, text):
    lines = text.count("\n")
    if path.startswith(("src/", "include/")) and path not in GENERATED and lines > MAX_LINES:
        yield f"{path}: {lines} lines; at most {MAX_LINES}"
    if path.startswith("src/") and not text.startswith("/*"):
        yield f"{path}: begins without a comment that says what it is for"
    if path.startswith(("src/", "include/")) and path.endswith((".h", ".cuh")):
        guard = re.search(r"^#ifndef (\w+)\n#define \1$", text, re.M)
        if not guard and "#pragma once" not in text:
            yield f"{path}: a header without a guard; what is included several times is .inc"
        if guard and guard[1] not in guards_of(path):
            yield f"{path}: the guard {guard[1]} does not follow from the name; {guards_of(path)[0]} does"


def is_exempt(path, line):
    """Lines that cannot be broken: links and URLs of docs, verbatim templates, and two generated pages."""
    if path.endswith(".md"):
        return "](" in line and not line.startswith("|") or "http" in line
    return path.endswith(".py") and ("{%" in line or "{{-" in line)


def long_lines(path, text):
    is_fenced = False
    for number, line in enumerate(text.split("\n"), 1):
        if path.endswith(".md"):
            is_fenced ^= line.lstrip().startswith("```")
        if len(line) > COLUMNS and not is_fenced and not is_exempt(path, line):
            yield f"{path}:{number}: {len(line)} columns; at most {COLUMNS}"


def is_script(path):
    """Shell and Python programs without a suffix, as in scripts/."""
    if "." in Path(path).name or not path.startswith(("scripts/", ".ci/", "completions/")):
        return path.startswith("completions/")
    with open(ROOT / path, encoding="utf-8") as file:
        return file.readline().startswith("#")


def main():
    files = tracked_files(ROOT)
    if files is None:
        print("not a git checkout: there is no list of files")
        return 77
    problems = list(folder_problems(files)) + list(short_problems(files))
    skipped = GENERATED
    read = [path for path in files if (path.endswith(SOURCES + PROSE) or is_script(path)) and path not in skipped]
    for path in read:
        text = (ROOT / path).read_text(encoding="utf-8")
        if path.endswith(SOURCES):
            problems += source_problems(path, text)
        problems += long_lines(path, text)
    print("\n".join(problems), end="\n" if problems else "")
    print(f"{len(read)} files read, {len(problems)} against the layout")
    return 1 if problems or not read else 0


if __name__ == "__main__":
    sys.exit(main())
