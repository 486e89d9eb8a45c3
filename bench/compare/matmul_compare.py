#!/usr/bin/env python3
"""tarn's matmuls next to BLAS called directly and PyTorch, on the CPU with the same threads.

  python3 matmul_compare.py [--tarn build/release/tarn] [--threads N] [--sizes 128,256,...] [--dtype f32] [--json]

Runs `tarn bench matmul --json`, then the same matmuls in PyTorch, and prints GFLOP/s and ratios. Rows from 512 up where
tarn reaches less than 0.90 of the direct BLAS call are marked ("below"). Exit status 1 if a row is marked.
"""
import argparse
import json
import os
import subprocess
import sys
import time
from pathlib import Path

import torch

ROOT = Path(__file__).resolve().parents[2]
DTYPES = {"f32": torch.float32, "f64": torch.float64, "bf16": torch.bfloat16, "f16": torch.float16}
BAR, BAR_FROM = 0.90, 512


def torch_us(n, dtype, runs):
    a, b = (torch.randn(n, n, dtype=torch.float32).to(DTYPES[dtype]) for _ in range(2))
    for _ in range(2):
        torch.matmul(a, b)
    start = time.perf_counter()
    torch.matmul(a, b)
    turns = max(1, min(10000, int(4e-3 / max(time.perf_counter() - start, 1e-7))))
    figures = []
    for _ in range(runs):
        start = time.perf_counter()
        for _ in range(turns):
            torch.matmul(a, b)
        figures.append((time.perf_counter() - start) / turns * 1e6)
    return sorted(figures)[len(figures) // 2]


def main():
    ap = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    ap.add_argument("--tarn", default=os.environ.get("TARN_COMMAND", str(ROOT / "build/release/tarn")))
    ap.add_argument("--threads", type=int, default=os.cpu_count())
    ap.add_argument("--sizes", default="128,256,512,1024,2048,4096")
    ap.add_argument("--dtype", default="f32", choices=sorted(DTYPES))
    ap.add_argument("--runs", type=int, default=7)
    ap.add_argument("--json", action="store_true", help="one JSON object a line instead of a table")
    args = ap.parse_args()
    torch.set_num_threads(args.threads)
    command = [
        args.tarn, "bench", "matmul", "--json", "--threads",
        str(args.threads), "--sizes", args.sizes, "--dtype", args.dtype, "--runs",
        str(args.runs)]
    lines = subprocess.run(command, check=True, capture_output=True, text=True).stdout.splitlines()
    if not args.json:
        print(f"tarn, BLAS and PyTorch {torch.__version__} on the CPU, {args.threads} threads, {args.dtype}; GFLOP/s\n")
        print(f"{'size':>6}{'tarn':>10}{'BLAS':>10}{'PyTorch':>10}{'tarn/BLAS':>11}{'tarn/PyTorch':>14}")
    marked = 0
    for row in map(json.loads, lines):
        n = row["shape"][0]
        theirs = 2 * n**3 / torch_us(n, args.dtype, args.runs) / 1e3
        below = row["fwd_of_blas"] is not None and n >= BAR_FROM and row["fwd_of_blas"] < BAR
        marked += below
        if args.json:
            print(
                json.dumps({
                    "op": "matmul", "dtype": args.dtype, "shape": row["shape"], "tarn_gflops": row["gflops"],
                    "blas_gflops": row["blas_gflops"], "torch_gflops": round(theirs, 2), "of_blas": row["fwd_of_blas"],
                    "of_torch": round(row["gflops"] / theirs, 3), "marks": ["below"] if below else []}), flush=True)
            continue
        blas = f"{row['blas_gflops']:>10.1f}" if row["blas_gflops"] is not None else f"{'-':>10}"
        share = f"{row['fwd_of_blas']:>11.3f}" if row["fwd_of_blas"] is not None else f"{'-':>11}"
        print(f"{n:>6}{row['gflops']:>10.1f}{blas}{theirs:>10.1f}{share}{row['gflops'] / theirs:>14.3f}"
              f"{'  below ' + str(BAR) if below else ''}", flush=True)
    return 1 if marked else 0


if __name__ == "__main__":
    sys.exit(main())
