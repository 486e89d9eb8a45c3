#!/usr/bin/env python3
"""tarn and llama.cpp alternating in one process on the same GGUF files: prefill and decoding on the CPU.

  TARN_LIBRARY=build/release/libtarn.so python3 llama_cpp_decode.py [--types q8_0,q4_k,bf16,f16] [--threads 2]
  [--prompt 128] [--tokens 32] [--runs 5] [--layers 16] [--hidden-size 2048] [--ffn-size 8192] [--heads 32]
  [--kv-heads 8] [--vocab-size 128256] [--folder FOLDER]

Needs the package llama-cpp-python, which pip compiles with the flags of this machine. The files hold a Llama of random
weights, by default of 1B's shape, written by tarn; --folder keeps them. Each program runs with its defaults: tarn with
weights as stored, llama.cpp with an f16 KV cache. Tokens are greedy and known to the host before the next. Prints per
type, as one JSON object per line, the minimum times of all runs in milliseconds, by wall clock and by processor time of
all threads (for busy machines: with --threads 1 it excludes others), and tarn / llama.cpp (below 1 tarn is faster)."""
import argparse
import ctypes
import json
import os
import random
import sys
import tempfile
import time
from pathlib import Path

import llama_cpp
import numpy as np

sys.path[:0] = [str(Path(__file__).resolve().parents[2] / "python")]

import tarn  # noqa: E402
from tarn import _c  # noqa: E402
from tarn._library import check, lib  # noqa: E402


def write_model(options, folder):
    """A folder of random weights in bf16."""
    model = tarn.Model.create("llama", seed=1, dtype="bf16", vocab_size=options.vocab_size, context=2048,
                              layers=options.layers, heads=options.heads, kv_heads=options.kv_heads,
                              hidden_size=options.hidden_size, ffn_size=options.ffn_size, tie_embeddings=True)
    model.write(folder)


def write_files(options, folder):
    """{type: path}; existing files are kept."""
    source, paths = os.path.join(folder, "model"), {}
    for kind in options.types.split(","):
        paths[kind] = os.path.join(folder, f"{kind}.gguf")
        if os.path.exists(paths[kind]):
            continue
        if not os.path.exists(os.path.join(source, "config.json")):
            write_model(options, source)
        tarn.convert(source, paths[kind], kind)
    return paths


class Ours:
    """The C interface, as a program would use it: no Python between two tokens but these calls."""
    def __init__(self, path, options):
        opening = _c.tarn_model_open_options(as_stored=True)
        making = _c.tarn_generator_options(context=options.prompt + options.tokens + 1)
        self.model = lib.tarn_model_open_sized(path.encode(), tarn.Device("cpu")._value, ctypes.byref(opening),
                                               ctypes.sizeof(opening))
        self.generator = lib.tarn_generator_new_sized(self.model, None, ctypes.byref(making), ctypes.sizeof(making))
        check()
        self.limit = _c.tarn_generate_options(max_tokens=options.tokens + 1, ignore_eos=True)
        self.output = _c.tarn_output()

    def read(self, prompt):
        lib.tarn_generator_prompt_sized(self.generator, 0, (ctypes.c_int32 * len(prompt))(*prompt), len(prompt),
                                        ctypes.byref(self.limit), ctypes.sizeof(self.limit))
        self.step()

    def step(self):
        lib.tarn_generator_next_sized(self.generator, ctypes.byref(self.output), ctypes.sizeof(self.output))
        check()

    def close(self):
        lib.tarn_generator_free(self.generator)
        lib.tarn_module_free(self.model)


class Theirs:
    def __init__(self, path, options):
        self.model = llama_cpp.Llama(path, n_ctx=options.prompt + options.tokens + 1, n_threads=options.threads,
                                     n_threads_batch=options.threads, verbose=False)

    def choose(self):
        logits = np.ctypeslib.as_array(llama_cpp.llama_get_logits_ith(self.model.ctx, -1),
                                       shape=(self.model.n_vocab(), ))
        self.token = int(logits.argmax())

    def read(self, prompt):
        self.model.reset()
        self.model.eval(prompt)
        self.choose()

    def step(self):
        self.model.eval([self.token])
        self.choose()

    def close(self):
        self.model.close()


def timed(work):
    """Milliseconds by the clock, and of all threads' processor time."""
    clock, used = time.perf_counter(), time.process_time()
    work()
    return 1e3 * (time.perf_counter() - clock), 1e3 * (time.process_time() - used)


def measure(programs, options):
    """The least (clock, processor) times of each, of reading a prompt and of a token."""
    rng, least = random.Random(1), {
        name: {"prompt": [float("inf")] * 2, "token": [float("inf")] * 2} for name in programs}
    for _ in range(options.runs):
        prompt = [rng.randrange(options.vocab_size) for _ in range(options.prompt)]
        for name, program in programs.items():
            times = [("prompt", timed(lambda: program.read(prompt)))] + [
                ("token", timed(program.step)) for _ in range(options.tokens)]
            for what, both in times:
                least[name][what] = [min(pair) for pair in zip(least[name][what], both)]
    return least


def report(kind, path, least, options):
    row = {"type": kind, "threads": options.threads, "prompt": options.prompt, "file_bytes": os.path.getsize(path)}
    for what in ("prompt", "token"):
        for index, unit in enumerate(("ms", "processor_ms")):
            ours, theirs = (least[name][what][index] for name in ("tarn", "llama.cpp"))
            row |= {
                f"{what}_{unit}": round(ours, 3), f"llama_cpp_{what}_{unit}": round(theirs, 3),
                f"{what}_{unit}_ratio": round(ours / theirs, 3)}
    print(json.dumps(row), flush=True)
    print(
        f"{kind:<5} prompt {row['prompt_ms']:9.2f} ms, llama.cpp {row['llama_cpp_prompt_ms']:9.2f} "
        f"({row['prompt_ms_ratio']:.2f}; by processor time "
        f"{row['prompt_processor_ms_ratio']:.2f}); token {row['token_ms']:8.2f} ms, llama.cpp "
        f"{row['llama_cpp_token_ms']:8.2f} ({row['token_ms_ratio']:.2f}; "
        f"{row['token_processor_ms_ratio']:.2f})", file=sys.stderr, flush=True)


def parse():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--types", default="q8_0,q4_k,bf16,f16")
    parser.add_argument("--folder", default="")
    for name, value in dict(threads=2, prompt=128, tokens=32, runs=5, layers=16, hidden_size=2048, ffn_size=8192,
                            heads=32, kv_heads=8, vocab_size=128256).items():
        parser.add_argument("--" + name.replace("_", "-"), type=int, default=value)
    return parser.parse_args()


def main():
    options = parse()
    tarn.set_threads(options.threads)
    with tempfile.TemporaryDirectory() as made:
        for kind, path in write_files(options, options.folder or made).items():
            programs = {"tarn": Ours(path, options), "llama.cpp": Theirs(path, options)}
            report(kind, path, measure(programs, options), options)
            for program in programs.values():
                program.close()


if __name__ == "__main__":
    main()
