#!/usr/bin/env python3
"""README, CONTRIBUTING and docs/ name what exists: flags of the command, functions, types, macros and fields of the
headers, environment variables, links and files; tables are those of bench/results; prose ends at 120 columns (tables:
layout.py)."""
import os
import re
import subprocess
import sys
from pathlib import Path

source = Path(os.environ["TARN_SOURCE_DIR"])
command = os.environ.get("TARN_COMMAND")
pages = [source / "README.md", source / "CONTRIBUTING.md", *sorted((source / "docs").rglob("*.md"))]
generated = {source / "docs/reference/api.md", source / "docs/reference/command.md"}
problems = []
WIDTH, PERFORMANCE_LINES = 120, 150


def text_of(*patterns):
    return "\n".join(path.read_text(encoding="utf-8", errors="replace") for pattern in patterns
                     for path in sorted(source.glob(pattern)) if path.is_file())


def words(text):
    return set(re.findall(r"\w+", text))


headers = words(text_of("include/tarn/*.h"))
code = words(
    text_of("src/**/*.[chi]*", "src/**/*.def", "src/**/*.cu*", "src/**/*.cl", "tests/**/*.[chsp]*", "cmake/*", "CMake*",
            "scripts/*", "Makefile", ".ci/*", "examples/*"))
scripts = text_of("bench/compare/*.py", "scripts/*", "tests/**/*.py", "Makefile", ".ci/*")


def help_of(*name):
    return subprocess.run([command, *name, "--help"], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL,
                          text=True).stdout


def flags_of_commands():
    """The flags of every sub-command by its name."""
    top = subprocess.run([command, "help"], check=True, stdout=subprocess.PIPE, text=True).stdout
    names = re.findall(r"^  tarn ([a-z]+(?: [a-z]+)?)(?: +\[.*?\])?  +\S", top, flags=re.M)
    return {
        name: set(re.findall(r"(?<![\w-])--[a-z][a-z0-9-]*", help_of(*name.split()))) | {"--help"} for name in names}


EXAMPLES = {"tarn_static", "tarn_backend_entry"}  # CMake's, a symbol
ADDED = re.compile(r"(relu6|tril)(_inplace|\.c|\.cu|\.cl)?$")  # by adding-an-operation.md, in a copy of the tree
FOREIGN = set(
    "--preset --test-dir --output-on-failure --args --metrics --logdir --cflags --libs --prefix --target --check "
    "--print "
    "--record --deterministic --compile --sdpa --attention --full --static "
    "--hostfile --nodes --ntasks-per-node --cpus-per-task --mpi --nproc-per-node --no-python --master-port".split())


def check_flags(page, text):
    for line in re.findall(r"^(?:\$ )?(?:.*\| *)?(tarn [a-z].*)$", text, flags=re.M) + re.findall(
            r"`(tarn [a-z][^`]*)`", text):
        line = line.split("#")[0]
        name = next((n for n in sorted(flags, key=len, reverse=True) if re.match(rf"tarn {n}\b", line)), None)
        if not name:
            continue
        for part in re.split(r"[;|] *", line)[:1]:
            for flag in re.findall(r"(?<![\w-])--[a-z][a-z0-9-]*", part):
                if flag not in flags[name]:
                    problems.append(f"{page}: tarn {name} has no {flag}")
    known = set().union(*flags.values()) | FOREIGN
    for flag in set(re.findall(r"(?<![\w-])--[a-z][a-z0-9-]*", text)):
        if flag not in known and not re.search(re.escape(flag) + r"(?![\w-])", scripts):
            problems.append(f"{page}: {flag} is a flag of no command")


def check_names(page, text):
    for name in set(re.findall(r"\btarn_[a-z0-9_]*[a-z0-9]\b|\bTARN_[A-Z0-9_]*[A-Z0-9]\b", text)):
        public = name.startswith("tarn_") and not name.startswith("tarn__")
        if name not in (headers if public else headers | code) | EXAMPLES and not ADDED.search(name):
            problems.append(f"{page}: {name} is not in {'include/tarn' if public else 'the sources'}")
    for name in set(re.findall(r"[{,( ]\.([a-z_][a-z0-9_]*) = ", text)):
        if name not in headers and "custom_op.c" not in text:
            problems.append(f"{page}: no field .{name} in include/tarn")


def anchors(path):
    heads = re.findall(r"^#+ (.*)$", re.sub(r"^```.*?^```$", "", path.read_text(encoding="utf-8"), flags=re.M | re.S),
                       flags=re.M)
    return {re.sub(r"[^\w\- ]", "", head.lower()).replace(" ", "-") for head in heads}


def check_links(page, path, text):
    for target in re.findall(r"\]\(([^)\s]+)\)", re.sub(r"^```.*?^```$", "", text, flags=re.M | re.S)):
        if target.startswith("http"):
            continue
        name, _, anchor = target.partition("#")
        file = (path.parent / name).resolve() if name else path
        if not file.exists():
            problems.append(f"{page}: link to {target}: not found")
        elif anchor and file.suffix == ".md" and anchor not in anchors(file):
            problems.append(f"{page}: link to {target}: no such heading")


def check_paths(page, text):
    """Files named in code spans, from the root, from src/ or below a backend: they exist."""
    bases = [
        source, source / "include", source / "src", *source.glob("src/*"), *source.glob("src/*/*"),
        *source.glob("src/*/*/*"), source / "bench/results", source / "bench"]
    bases = [base for base in bases if base.is_dir()]
    for name in set(re.findall(r"`([\w./-]+\.(?:c|h|cu|cuh|cl|inc|def|py|sh|tsv|md))`", text)):
        if ADDED.search(name):
            continue
        if not any((base / name).exists() for base in bases) and "/" in name:
            problems.append(f"{page}: {name}: no such file")
        elif "/" not in name and name.split(".")[-1] in ("cu", "cuh", "cl", "inc", "def",
                                                         "tsv") and not list(source.glob(f"**/{name}")):
            problems.append(f"{page}: {name}: no such file")


flags = flags_of_commands() if command else None
for path in pages:
    page, text = path.relative_to(source), path.read_text(encoding="utf-8")
    fenced = False
    for number, line in enumerate(text.split("\n"), 1):
        fenced ^= line.startswith("```")
        if path not in generated and len(line) > WIDTH and not line.startswith("|"):
            problems.append(f"{page}:{number}: {len(line)} columns; at most {WIDTH}")
    check_links(page, path, text)
    if path in generated:
        continue
    if flags:
        check_flags(page, text)
    check_names(page, text)
    check_paths(page, text)

count = (source / "docs/performance.md").read_text(encoding="utf-8").count("\n")
if count > PERFORMANCE_LINES:
    problems.append(f"docs/performance.md: {count} lines; at most {PERFORMANCE_LINES}")

# Every variable that the library reads is documented.
documented = words((source / "docs/reference/environment.md").read_text(encoding="utf-8"))
for name in set(re.findall(r'"(TARN_[A-Z0-9_]+)"', text_of("src/**/*.[ch]"))):
    if name not in documented and not name.startswith("TARN_TEST"):
        problems.append(f"docs/reference/environment.md: {name} is read in src and not described")

tables = subprocess.run([sys.executable, str(source / "scripts/bench-tables"), "--check"], stdout=subprocess.PIPE,
                        stderr=subprocess.STDOUT, text=True)
if tables.returncode:
    problems.append(tables.stdout.strip())
print("\n".join(sorted(problems)) or f"{len(pages)} pages")
sys.exit(1 if problems else 0)
