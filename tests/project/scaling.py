#!/usr/bin/env python3
"""scripts/scaling-tables: the tables of docs/internals/scaling.md are its output, and the model behaves."""
import os
import re
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

SOURCE = Path(os.environ["TARN_SOURCE_DIR"])
NAMES = ("inputs", "exchange", "weak", "strong", "limits")
problems = []


def expect(condition, text):
    if not condition:
        problems.append(text)


def run(root, *words):
    return subprocess.run([sys.executable, root / "scripts/scaling-tables", *words], capture_output=True, text=True,
                          check=False)


def column(name, title):
    """Cells of one column, as numbers."""
    lines = run(SOURCE, "--print", name).stdout.splitlines()
    at = lines[0].strip("| ").split(" | ").index(title)
    units = {"K": 1e3, "M": 1e6, "ms": 1}
    cells = [line.strip("| ").split(" | ")[at].replace(",", "").replace(" %", "").split() for line in lines[2:]]
    return [float(cell[0]) * units.get(cell[1] if len(cell) > 1 else "ms") for cell in cells]


def check_page():
    done = run(SOURCE, "--check")
    expect(done.returncode == 0, done.stderr)
    page = (SOURCE / "docs/internals/scaling.md").read_text()
    expect(sorted(re.findall(r"<!-- scaling: (\w+) -->", page)) == sorted(NAMES), "a table is missing in scaling.md")


def check_copy():
    """A changed cell and a changed measurement are found, and filling the tables makes the page whole again."""
    with tempfile.TemporaryDirectory() as folder:
        root = Path(folder)
        for part in ("scripts/scaling-tables", "docs/internals/scaling.md",
                     "bench/results/2026-11-19-h200-cuda-train.tsv"):
            (root / part).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(SOURCE / part, root / part)
        page = root / "docs/internals/scaling.md"
        whole = page.read_text()
        page.write_text(whole.replace("| 623,868 |", "| 623,869 |"))
        expect(page.read_text() != whole and run(root, "--check").returncode == 1, "a changed cell is not found")
        expect(run(root).returncode == 0 and page.read_text() == whole, "the tables are not filled")
        results = root / "bench/results/2026-11-19-h200-cuda-train.tsv"
        results.write_text(results.read_text().replace("623868", "700000"))
        expect(run(root, "--check").returncode == 1, "a changed measurement is not found")
        page.write_text(whole.replace("scaling: weak", "scaling: week"))
        expect("unknown table 'week'" in run(root, "--check").stderr, "an unknown table is not found")


def check_model():
    alone, overlapped = column("weak", "efficiency"), column("weak", "with overlap")
    expect(len(alone) == 12 and all(0 < a <= b <= 100 for a, b in zip(alone, overlapped)), f"weak: {alone}")
    expect(all(alone[i] >= alone[i + 1] for i in range(11) if i % 3 < 2), "more GPUs are more efficient")
    # the sum on 8 GPUs, by hand: 8 bytes of each of 8,030 M parameters times 7/8 at 450 GB/s, and latency
    by_hand = 1e3 * (8 * 8030e6 * 7 / 8 / 450e9 + 2 * 13.5e-6)
    expect(abs(column("exchange", "sum, ms")[9] - by_hand) < 0.01, "the sum of 8B")
    half, most = column("limits", "50 %, with overlap"), column("limits", "90 %, with overlap")
    expect(len(half) == 12 and all(b > a for a, b in zip(half, most)), f"limits: {half} {most}")


check_page()
check_copy()
check_model()
print("\n".join(problems), end="\n" if problems else "")
sys.exit(1 if problems else 0)
