"""The scripts of bench/compare that load tarn into Python, each with its smallest sizes: they run to their end and
print a line of figures. On the CPU, whatever device is in use."""
import importlib.util
import os
import re
import subprocess
import sys
from pathlib import Path

FOLDER = Path(__file__).resolve().parents[2] / "bench/compare"
LIBRARY = ["--library", os.environ["TARN_LIBRARY"]]
LOADS_TARN = re.compile(r"^\s*(import|from) (tarn|support)\b", re.M)

# script: (arguments, a line that it prints)
SCRIPTS = {
    "char_gpt": ([*LIBRARY, "--threads", "1", "--steps", "1", "--rounds", "1"],
                 r"cpu on cpu: tarn [\d.]+ steps/s, PyTorch \S+ [\d.]+ steps/s: [\d.]+ ×"),
    "cnn_compare": ([*LIBRARY, "--networks", "resnet20", "--threads", "1", "--batch", "2", "--steps", "1", "--rounds",
                     "1"], r"resnet20( +[\d.]+){8}"),
    "in_turn": ([*LIBRARY, "--size", "4096", "--runs", "1", "add", "pad"], r"pad +backward( +[\d.]+){5}"),
    "llama_cpp_decode": (["--types", "q8_0", "--threads", "1", "--prompt", "4", "--tokens", "2", "--runs", "1",
                          "--layers", "1", "--hidden-size", "64", "--ffn-size", "64", "--heads", "2", "--kv-heads", "1",
                          "--vocab-size", "64"], r'\{"type": "q8_0", .*"token_processor_ms_ratio": [\d.]+\}'),
}
PACKAGES = {"llama_cpp_decode": "llama_cpp"}  # beside those of scripts/parity


def check(name):
    """What is wrong with a script; None if its package is not installed."""
    if name not in SCRIPTS:
        return "tests/parity/bench.py has no arguments for it"
    package = PACKAGES.get(name)
    if package and not importlib.util.find_spec(package):
        print(f"SKIP bench: {name}: there is no package {package}", flush=True)
        return None
    arguments, line = SCRIPTS[name]
    done = subprocess.run([sys.executable, FOLDER / f"{name}.py", *arguments], capture_output=True, check=False,
                          text=True, timeout=120)
    if done.returncode:
        return f"status {done.returncode}: {done.stderr.strip()}"
    return "" if re.search(f"^{line}$", done.stdout, re.M) else f"no line of figures in:\n{done.stdout}"


def run(_):
    """Yields (script, what is wrong)."""
    found = {path.stem for path in FOLDER.glob("*.py") if LOADS_TARN.search(path.read_text(encoding="utf-8"))}
    for name in sorted(found | set(SCRIPTS)):
        yield name, check(name)
