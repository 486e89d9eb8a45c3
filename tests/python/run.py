"""Tests of the Python package in python/:  run.py [--seed N] [NAME...]

TARN_LIBRARY names libtarn.so, TARN_COMMAND the command. Shapes and values are drawn from a seed that is new in every
run and printed (TARN_PARITY_SEED or --seed fixes it). NAMES are those of unittest: test_tensor, test_nn.Layers ..."""
import argparse
import os
import random
import sys
import time
import unittest
from pathlib import Path

HERE = Path(__file__).resolve().parent
ROOT = HERE.parents[1]


class Result(unittest.TextTestResult):
    """Counts what passed, and prints the seed with what failed."""
    passed = 0

    def addSuccess(self, test):
        super().addSuccess(test)
        self.passed += 1


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seed", type=int, default=int(os.environ.get("TARN_PARITY_SEED") or time.time_ns() % 2**31))
    parser.add_argument("names", nargs="*")
    given = parser.parse_args()
    os.environ["TARN_PARITY_SEED"] = str(given.seed)
    os.environ.setdefault("TARN_LIBRARY", str(ROOT / "build/release/libtarn.so"))
    os.environ.setdefault("TARN_COMMAND", str(Path(os.environ["TARN_LIBRARY"]).with_name("tarn")))
    sys.dont_write_bytecode = True
    sys.path[:0] = [str(ROOT / "python"), str(HERE)]
    random.seed(given.seed)
    print(f"python package: {os.environ['TARN_LIBRARY']}, seed {given.seed}", flush=True)
    loader = unittest.defaultTestLoader
    tests = loader.loadTestsFromNames(given.names) if given.names else loader.discover(str(HERE))
    result = unittest.TextTestRunner(stream=sys.stdout, resultclass=Result, verbosity=1).run(tests)
    failed = len(result.failures) + len(result.errors) + len(result.unexpectedSuccesses)
    for test, why in result.skipped:
        print(f"skipped: {test}: {why}")
    if failed:
        print(f"seed {given.seed}")
    print(f"{result.passed} passed, {failed} failed, {len(result.skipped)} skipped")
    return 1 if failed or not result.passed else 0


if __name__ == "__main__":
    sys.exit(main())
