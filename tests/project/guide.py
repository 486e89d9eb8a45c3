#!/usr/bin/env python3
"""docs/guide/your-own-operation.md has the code of examples/custom_op.c, .h and .cu: all of it, in order, and nothing else."""
import os
import re
import sys
from pathlib import Path

source = Path(os.environ["TARN_SOURCE_DIR"])
guide = (source / "docs/guide/your-own-operation.md").read_text(encoding="utf-8")


def blocks(language):
    return re.findall(rf"^```{language}\n(.*?)^```$", guide, flags=re.M | re.S)


def code(name):
    """A file's code after its first comment, without empty lines."""
    text = (source / "examples" / name).read_text(encoding="utf-8")
    return lines(text[text.index("*/") + 2 :])


def lines(text):
    return [line for line in text.split("\n") if line.strip()]


c_blocks = blocks("c")
header = [block for block in c_blocks if block.startswith("#ifndef")]
found = {
    "custom_op.c": lines("".join(block for block in c_blocks if block not in header)),
    "custom_op.h": lines("".join(header)),
    "custom_op.cu": lines("".join(blocks("cuda"))),
}
failed = False
for name, text in found.items():
    expected = code(name)
    if text == expected:
        continue
    failed = True
    at = next((i for i, pair in enumerate(zip(text, expected)) if pair[0] != pair[1]), min(len(text), len(expected)))
    print(f"docs/guide/your-own-operation.md and examples/{name} differ:")
    print("  guide:  ", text[at] if at < len(text) else "(ends here)")
    print("  example:", expected[at] if at < len(expected) else "(ends here)")
sys.exit(failed)
