#!/usr/bin/env python3
"""The guides are true: their commands run, their program compiles and runs, and docs/guide/your-own-operation.md has
the code of examples/custom_op.c, .h and .cu: all of it, in order, and nothing else.

A fenced block directly after `<!-- run -->` is run: sh by bash with the built command first in PATH, c as a whole
program. `<!-- setup` begins a comment whose lines are run too, unseen by readers. The blocks of a page share a scratch
folder.
"""
import os
import re
import subprocess
import sys
import tempfile
import time
from pathlib import Path

source = Path(os.environ["TARN_SOURCE_DIR"])
command = os.environ.get("TARN_COMMAND")
library = os.environ.get("TARN_LIBRARY")
BLOCK = re.compile(r"^<!-- setup\n(?P<setup>.*?)^-->$|^<!-- run -->\n```(?P<language>\w+)\n(?P<code>.*?)^```$",
                   re.M | re.S)


def run(script, folder, environment):
    return subprocess.run(["bash", "-euo", "pipefail", "-c", script], cwd=folder, env=environment,
                          stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
                          errors="replace", timeout=300)


def compile_and_run(code):
    """A shell script that compiles a program without warnings and runs it."""
    folder = Path(library).parent
    Path(scratch, "program.c").write_text(code, encoding="utf-8")
    return (f"{os.environ.get('TARN_CC', 'cc')} -std=c11 -Wall -Wextra -Wpedantic -Werror program.c -o program "
            f"-I'{source}/include' -L'{folder}' -ltarn -Wl,-rpath,'{folder}'; ./program")


failed = False
if command and library:
    environment = {**os.environ, "PATH": f"{Path(command).parent}:{os.environ['PATH']}"}
    for page in sorted((source / "docs/guide").glob("*.md")):
        blocks = list(BLOCK.finditer(page.read_text(encoding="utf-8")))
        with tempfile.TemporaryDirectory() as scratch:
            begin = time.monotonic()
            for block in blocks:
                code = block["setup"] or block["code"]
                if block["language"] == "c":
                    code = compile_and_run(code)
                result = run(code, scratch, environment)
                if result.returncode != 0:
                    failed = True
                    print(f"{page.name}: this block ends with status {result.returncode}:\n{code}\n{result.stdout}")
                    break
        if blocks:
            print(f"{page.name}: {len(blocks)} blocks, {time.monotonic() - begin:.1f} s")

guide = (source / "docs/guide/your-own-operation.md").read_text(encoding="utf-8")


def blocks_of(language):
    return re.findall(rf"^```{language}\n(.*?)^```$", guide, flags=re.M | re.S)


def lines(text):
    return [line for line in text.split("\n") if line.strip()]


def code_of(name):
    """A file's code after its first comment, without empty lines."""
    text = (source / "examples" / name).read_text(encoding="utf-8")
    return lines(text[text.index("*/") + 2 :])


c_blocks = blocks_of("c")
header = [block for block in c_blocks if block.startswith("#ifndef")]
found = {
    "custom_op.c": lines("".join(block for block in c_blocks if block not in header)),
    "custom_op.h": lines("".join(header)),
    "custom_op.cu": lines("".join(blocks_of("cuda"))),
}
for name, text in found.items():
    expected = code_of(name)
    if text == expected:
        continue
    failed = True
    at = next((i for i, pair in enumerate(zip(text, expected)) if pair[0] != pair[1]), min(len(text), len(expected)))
    print(f"docs/guide/your-own-operation.md and examples/{name} differ:")
    print("  guide:  ", text[at] if at < len(text) else "(ends here)")
    print("  example:", expected[at] if at < len(expected) else "(ends here)")
sys.exit(failed)
