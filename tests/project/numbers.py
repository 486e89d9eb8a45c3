#!/usr/bin/env python3
"""JSON numbers are written as Python writes them: random doubles, printed by a test program, against repr()."""
import os
import random
import struct
import subprocess
import sys

program = os.environ["TARN_BUILD_DIR"] + "/tests/base/test_number_format"
if not os.path.exists(program):
    sys.exit(77)
seed = int(os.environ.get("TARN_TEST_SEED", "22"))
print(f"TARN_TEST_SEED={seed}")
random.seed(seed)


def any_double():
    value = struct.unpack("<d", struct.pack("<Q", random.getrandbits(64)))[0]
    return value if abs(value) < float("inf") else 0.0


values = [any_double() for _ in range(10000)]
values += [round(random.uniform(-1000, 1000), random.randrange(10)) for _ in range(10000)]
values += [sign * 2.0**power for power in range(-1074, 1024) for sign in (1, -1)]
lines = "\n".join(f"{struct.unpack('<Q', struct.pack('<d', value))[0]:x}" for value in values)
texts = subprocess.run([program, "--print"], input=lines, capture_output=True, text=True, check=True).stdout.split("\n")
wrong = [(repr(value), text) for value, text in zip(values, texts) if repr(value) != text]
for expected, text in wrong[:10]:
    print(f"{text} should be {expected}")
sys.exit(1 if wrong or len(texts) != len(values) + 1 else 0)
