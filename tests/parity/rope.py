"""Frequencies and magnitudes of scaled RoPE, beside transformers' ROPE_INIT_FUNCTIONS at random parameters.

tarn hands out no table, but rotating (1, 0) at position 1 gives magnitude · (cos f, sin f). transformers computes in
f32, and raises the base to a power rounded to it: ln(base) units in the last place."""
import ctypes as c
import math
import random

import torch
import transformers
from transformers.modeling_rope_utils import ROPE_INIT_FUNCTIONS

import support
import tarn
from tarn import _c

KINDS = ["default", "linear", "llama3", "dynamic", "yarn", "longrope"]  # in the order of tarn_rope_scaling
TOLERANCE = 3e-6
CASES = 200


def draw(kind, rng):
    """rope_parameters as in config.json, dims, context, current length."""
    dims, context = rng.choice([4, 6, 32, 64, 80, 128, 256]), rng.choice([16, 512, 4096, 131072])
    rope = {"rope_type": kind, "rope_theta": rng.choice([100.0, 10000.0, 500000.0, 1e6, 7e3])}
    if kind != "longrope" or rng.random() < 0.7:
        rope["factor"] = rng.choice([0.5, 1.0, 1.5, 2.0, 8.0, 40.0])
    if kind in ("llama3", "yarn", "longrope"):
        rope["original_max_position_embeddings"] = max(2, context // rng.choice([1, 2, 8]))
    if kind == "llama3":
        rope |= {"low_freq_factor": rng.choice([1.0, 1.5]), "high_freq_factor": rng.choice([2.5, 4.0])}
    optional = {"attention_factor": rng.choice([1.0, 0.7, 1.3])} if kind in ("yarn", "longrope") else {}
    if kind == "yarn":
        optional |= {"beta_fast": rng.choice([32, 16.5, 4]), "beta_slow": rng.choice([1, 0.5, 2]),
                     "truncate": rng.random() < 0.5, "mscale": rng.choice([0.707, 1.0]),
                     "mscale_all_dim": rng.choice([1.0, 0.5])}
    rope |= {key: value for key, value in optional.items() if rng.random() < 0.4}
    if kind == "longrope":
        rope |= {name: [rng.uniform(0.8, 40) for _ in range(dims // 2)] for name in ("short_factor", "long_factor")}
    return rope, dims, context, rng.choice([None, 1, context, context + 1, 3 * context])


def options_of(rope, dims, context, length):
    floats = c.c_float * (dims // 2)
    original = rope.get("original_max_position_embeddings", context)
    o = _c.tarn_rope_options(base=rope["rope_theta"], dims=dims, scaling=KINDS.index(rope["rope_type"]),
                             factor=rope.get("factor", context / original), original_context=original,
                             length=length or 0, untruncated=not rope.get("truncate", True))
    for key in ("low_freq_factor", "high_freq_factor", "attention_factor", "mscale", "mscale_all_dim", "beta_fast",
                "beta_slow"):
        setattr(o, key, rope.get(key, 0))
    if "long_factor" in rope:
        o.pair_factors, o.long_pair_factors = floats(*rope["short_factor"]), floats(*rope["long_factor"])
        o.pair_factor_count = dims // 2
    return o


def ours(o):
    """Inverse frequencies and the magnitude of each pair."""
    x = torch.zeros(1, 1, 1, o.dims, dtype=torch.float64)
    x[..., :o.dims // 2] = 1
    at = support.tensor(torch.tensor([1]))
    y = support.read(support.made("rope_sized", support.tensor(x), at, c.byref(o), c.sizeof(o))).reshape(2, -1)
    return torch.atan2(y[1], y[0]), torch.hypot(y[0], y[1])


def theirs(rope, dims, context, length):
    config = transformers.LlamaConfig(hidden_size=dims, num_attention_heads=1, head_dim=dims,
                                      max_position_embeddings=context, rope_parameters=rope)
    return ROPE_INIT_FUNCTIONS[rope["rope_type"]](config, torch.device("cpu"), seq_len=length)


def check(kind, rng):
    rope, dims, context, length = draw(kind, rng)
    frequency, magnitude = ours(options_of(rope, dims, context, length))
    wanted, factor = theirs(rope, dims, context, length)
    wanted, bound = wanted.to(torch.float64), TOLERANCE * max(1, math.log(rope["rope_theta"]) / 4)
    # atan2 knows angles up to a rotation
    off = (torch.remainder(wanted - frequency + math.pi, 2 * math.pi) - math.pi).abs()
    if not (off <= bound * wanted).all():
        return f"{rope}, dims {dims}, context {context}, length {length}: frequencies {frequency}, wanted {wanted}"
    if not ((magnitude - factor).abs() <= 1e-12 * factor).all():
        return f"{rope}, context {context}: magnitude {magnitude[0]}, wanted {factor}"
    return ""


def run(seed):
    rng = random.Random(f"{seed}/rope scalings")
    transformers.logging.set_verbosity_error()
    for number in range(CASES):
        kind = KINDS[1 + number % 5]
        try:
            yield f"{kind} {number}", check(kind, rng)
        except tarn.Error as error:
            yield f"{kind} {number}", f"tarn: {error}"
