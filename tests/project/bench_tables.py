#!/usr/bin/env python3
"""scripts/bench-tables: recording of a benchmark, columns with old names, and errors, in a scratch copy."""
import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

SOURCE = Path(os.environ["TARN_SOURCE_DIR"])
TARN = os.environ.get("TARN_COMMAND")
HEAD = "# date: 2026-01-01\n# machine: m\n# command: c\n"
problems = []


def expect(condition, text):
    if not condition:
        problems.append(text)


class Copy:
    """The script with an empty bench/results."""

    def __init__(self, folder):
        self.root = Path(folder)
        self.results = self.root / "bench/results"
        self.results.mkdir(parents=True)
        (self.root / "scripts").mkdir()
        self.script = shutil.copy(SOURCE / "scripts/bench-tables", self.root / "scripts")

    def run(self, *words):
        return subprocess.run([sys.executable, self.script, *words], capture_output=True, text=True, check=False)

    def program(self, name, *lines, status=0):
        """A program that prints these lines."""
        path = self.root / name
        path.write_text("#!/bin/sh\ncat << 'END'\n" + "".join(f"{line}\n" for line in lines) + f"END\nexit {status}\n")
        path.chmod(0o755)
        return str(path)

    def recorded(self, *words):
        """Columns and rows of the file that --record wrote."""
        done = self.run("--record", "box", *words)
        if done.returncode != 0:
            problems.append(f"--record {' '.join(words)}: {done.stderr}")
            return [], [], ""
        text = (self.root / done.stdout.strip()).read_text()
        lines = [line.split("\t") for line in text.splitlines() if not line.startswith("#")]
        return lines[0], [dict(zip(lines[0], line)) for line in lines[1:]], done.stdout.strip()


def check_benchmarks(copy):
    for words in (["ops", "--only", "add,add-broadcast-row,matmul", "--sizes", "4KiB", "--runs", "5"],
                  ["matmul", "--sizes", "16,32", "--runs", "5"],
                  ["train", "--model", "mlp", "--batch", "4", "--steps", "2", "--warmup", "0", "--device", "cpu"]):
        columns, rows, name = copy.recorded(TARN, "bench", *words)
        expect(rows and all(len(row) == len(columns) for row in rows), f"bench {words[0]}: {rows}")
        expect(name.endswith(f"-box-cpu-{words[0]}.tsv"), f"name of bench {words[0]}: '{name}'")
        expect(copy.run("--print", name).returncode == 0, f"--print {name}")
    _, rows, _ = copy.recorded(TARN, "bench", "train", "--model", "mlp", "--batch", "4", "--steps", "2", "--device",
                               "cpu")
    for key in ("utilization", "min_step_ms", "of_matmul", "mfu", "memory_peak"):
        expect(rows and key in rows[0], f"no column {key} of bench train")


def check_rows(copy):
    one = copy.program("tarn",
                       '{"model": "m", "device": "cuda:0", "kv": "model", "least_token_ms": 1.5, "of_copy": null}',
                       '{"model": "m", "device": "cuda:0", "kv_type": "f16", "captured": true}')
    columns, rows, first = copy.recorded(one, "bench", "decode")
    expect(columns == ["model", "device", "kv_type", "min_token_ms", "of_copy", "captured"], f"columns {columns}")
    expect(rows and list(rows[0].values()) == ["m", "cuda:0", "model", "1.5", "-", "-"], f"row of old keys: {rows}")
    expect(rows and rows[1]["kv_type"] == "f16" and rows[1]["captured"] == "true", f"row of new keys: {rows}")
    expect("# command: tarn bench decode\n" in (copy.root / first).read_text(), "the command without its folder")
    _, _, second = copy.recorded(one, "bench", "decode")
    expect(second == first.replace(".tsv", "-2.tsv"), f"the second file of a day: {second}")
    two = copy.program("two", '{"devices": ["cpu", "cuda:0"], "op": "add", "shape": [[4, 8], [8]], "fwd_us": [1, 2]}')
    columns, rows, name = copy.recorded(two, "bench", "ops")
    expect(columns == ["op", "shape", "fwd_us_cpu", "fwd_us_cuda0"], f"columns of two devices {columns}")
    expect(rows and rows[0]["shape"] == "4x8,8", f"row of two devices {rows}")
    expect("-box-cpu-cuda-ops.tsv" in name, f"name of two devices: {name}")


def check_old_files(copy):
    (copy.results / "old.tsv").write_text(HEAD + "model\tbusy\tof_peak\tleast_step_ms\nm\t0.9\t0.5\t3\n")
    shown = copy.run("--print", "old.tsv").stdout
    expect(shown.startswith("| model | utilization | mfu | min step ms |"), f"columns of an old file: {shown}")


def check_errors(copy):
    before = len(list(copy.results.iterdir()))
    for words, message in (
            (["box", copy.program("fails", status=3), "bench", "ops"], "exit status 3"),
            (["box", copy.program("silent"), "bench", "ops"], "printed no rows"),
            (["box", copy.program("words", "hello"), "bench", "ops"], "is not JSON"),
            (["box", str(copy.root / "missing"), "bench", "ops"], "No such file"),
            (["../box", copy.program("never"), "bench", "ops"], "machine name '../box'")):
        done = copy.run("--record", *words)
        expect(done.returncode == 2 and message in done.stderr and "Traceback" not in done.stderr,
               f"{words}: {done.stderr}")
    expect(len(list(copy.results.iterdir())) == before, "a failed command left a file")
    expect(copy.run("--record", "box").returncode == 2, "--record without a command")


with tempfile.TemporaryDirectory() as folder:
    scratch = Copy(folder)
    if TARN:
        check_benchmarks(scratch)
    check_rows(scratch)
    check_old_files(scratch)
    check_errors(scratch)
print("\n".join(problems), end="\n" if problems else "")
sys.exit(1 if problems else 0)
