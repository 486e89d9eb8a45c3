"""Every architecture in llama.cpp: a random model of transformers becomes a GGUF file by tarn, and llama.cpp computes
transformers' logits from it and writes its greedy text, in f32 and with quantized weights.

GGUF has no keys for all that config.json may set, and llama.cpp computes one choice of what it has no key for; tarn
keeps the others under keys of its own. Here are the configurations that llama.cpp computes; as_there() says which."""
import contextlib
import os
import random

import torch

import archs
import compare
import gguf_files
import llama
import llama_cpp_api
import llama_cpp_files
from llama_cpp_files import distance

CONFIGS = 4 if os.environ.get("TARN_TEST_LONG") else 1  # in f32, of each architecture
WIDTH = 8       # at least: norms of a few numbers multiply roundings
TOKENS = 40     # of a greedy text
F32 = 1e-5      # how far logits may be from transformers', by their root mean square
GELU = 1e-3     # the same with a GELU that both look up by f16: some x are rounded to another
BLOCKS = 5e-2   # the same with activations that are rounded to 8 bits beside quant blocks
HAS_GELU = {"gpt2", "starcoder2", "gpt_neox", "gemma", "gemma2", "gemma3_text"}
MIXTURES = ["Q8_0", "Q4_K_M", "Q4_0", "Q5_K_M", "Q6_K", "Q5_0", "IQ4_NL"]


# ---- configurations that llama.cpp computes
# ---------------------------------------------------------------------------------------------------------------------

SCALINGS = {  # of RoPE; other files of theirs with divisors of frequencies are refused
    **dict.fromkeys(["llama", "mistral", "granite"], ("default", "linear", "llama3", "dynamic", "yarn", "longrope")),
    **dict.fromkeys(["phi3"], ("default", "longrope")),
    **dict.fromkeys(["gpt_neox"], ("default", "linear"))}
OTHERS = ("default", "linear", "dynamic", "yarn")
UNTIED = {"olmo2", "gpt_neox", "stablelm"}  # llama.cpp wants the matrix of the head
FULL_WIDTH = {"qwen2", "olmo2", "starcoder2"}  # it wants heads that fill the width
ACTIVATION = {"gpt_neox": "gelu", "starcoder2": "gelu_pytorch_tanh", "gemma": "gelu_pytorch_tanh"}


def draw_rope(family, config, rng):
    """llama.cpp rounds the bounds of yarn's ramp and does not read its betas for these architectures, so `truncate` and
    the betas are as by default. It selects longrope's factors by the size of the context, here the long ones: texts
    have to be longer than the original context."""
    partial = {key: value for key, value in config.rope_parameters.items() if key == "partial_rotary_factor"}
    size = getattr(config, "head_dim", None) or config.hidden_size // config.num_attention_heads
    pairs = int(size * partial.get("partial_rotary_factor", 1)) // 2
    rope = archs.draw_rope(rng, pairs, config.max_position_embeddings, SCALINGS.get(family, OTHERS))
    for key in ("truncate", "beta_fast", "beta_slow"):
        rope.pop(key, None)
    if rope["rope_type"] == "longrope":
        rope["original_max_position_embeddings"] = rng.choice([8, 16])
        if family == "phi3":
            config.original_max_position_embeddings = rope["original_max_position_embeddings"]
            rope.pop("factor")
    return rope | partial


def as_there(family, config, rng):
    """What no key of GGUF says: activations, scales of attention, which layers have a window or RoPE; windows of
    architectures that have none in llama.cpp (Phi-3's are switched off there); biases that it has no tensors for, or
    wants; soft caps that are always or never there."""
    layers = config.num_hidden_layers
    config.tie_word_embeddings = family.startswith("gemma") or config.tie_word_embeddings and family not in UNTIED
    if family == "gpt2":
        config.activation_function, config.scale_attn_weights = "gelu_new", True
        config.scale_attn_by_inverse_layer_idx = False
        return
    if family != "gemma3":
        config.rope_parameters = draw_rope(family, config, rng)
    if family in FULL_WIDTH:
        config.hidden_size = config.num_attention_heads * config.head_dim
    if not family.startswith("gemma") or family == "gemma":
        config.hidden_act = ACTIVATION.get(family, "silu")
        config.sliding_window = 4096 if getattr(config, "layer_types", None) else rng.choice([None, 4096])
    if family in ("qwen3", "gemma", "gemma2", "gemma3", "olmo2", "smollm3"):
        config.attention_bias = config.mlp_bias = False
    if family in ("gpt_neox", "starcoder2"):
        config.attention_bias = config.use_bias = True
    if family == "smollm3":
        config.use_sliding_window, config.sliding_window = False, None
        config.layer_types = layers * ["full_attention"]
        config.no_rope_layer_interval, config.no_rope_layers = 4, [int((i + 1) % 4 > 0) for i in range(layers)]
    if family in ("gemma2", "gemma3"):
        period = 2 if family == "gemma2" else 6
        config.num_hidden_layers = layers = rng.randint(period, period + 2)
        config.layer_types = ["full_attention" if (i + 1) % period == 0 else "sliding_attention" for i in range(layers)]
        config.query_pre_attn_scalar = config.head_dim
        config.attn_logit_softcapping = rng.choice([50.0, 1.5]) if family == "gemma2" else None
        config.final_logit_softcapping = rng.choice([30.0, 2.0])


def draw(family, rng):
    while True:
        config = archs.DRAW[family](rng)
        as_there(family, config, rng)
        if config.hidden_size >= WIDTH:
            return config


# ---- logits and texts
# ---------------------------------------------------------------------------------------------------------------------


class TableGelu(torch.nn.Module):
    """llama.cpp's GELU: looked up by x in f16, in a table of f16."""

    def forward(self, x):
        found = torch.nn.functional.gelu(x.to(torch.float16).to(torch.float32), approximate="tanh")
        return torch.where(x <= -10, 0, torch.where(x >= 10, x, found.to(torch.float16).to(x.dtype)))


def with_table_gelu(network):
    for module in list(network.modules()):
        for name in ("act", "act_fn"):
            if hasattr(module, name):
                setattr(module, name, TableGelu())
    return network


def truth_of(network, ids):
    with torch.no_grad():
        return network(torch.tensor([ids])).logits[0].to(torch.float64)


def judge(label, network, theirs, ids, prompt, bar):
    """Logits of a text, and what follows greedily: the argmax at every place, or a token that is as likely within
    what the bar allows for two logits."""
    far = distance(theirs.logits(ids), truth_of(network, ids))
    text = theirs.write(prompt, TOKENS)
    truth = truth_of(network, prompt + text)[len(prompt) - 1:-1]
    behind = (truth.max(-1).values - truth[range(TOKENS), text]) / truth.square().mean(-1).sqrt()
    at = int(behind.argmax())
    return [compare.Verdict(far <= bar, far, bar, "rms",
                            f"{label}: logits are {far:.3g} from transformers', {bar:.3g} allowed"),
            compare.Verdict(bool(behind[at] <= 2 * bar), text=f"{label}: after {prompt} llama.cpp writes {text}, of "
                            f"which token {at} is {behind[at]:.3g} less likely than transformers'")]


def bar_of(mixture, network, ids):
    """Of products with quant blocks at least twice what it does to logits to round the layers' input to 8 bits."""
    if not mixture:
        return GELU if network.config.model_type in HAS_GELU else F32
    rounded = truth_of(archs.with_rounded_inputs(network), ids)
    return max(BLOCKS, 2 * distance(rounded, truth_of(network, ids)))


def check(family, mixture, rng, folder):
    """Rows of whole blocks where they are quantized, odd sizes else."""
    there, path, plain = (os.path.join(folder, name) for name in ("there", "there.gguf", "plain"))
    with archs.wide_sizes() if mixture else contextlib.nullcontext():
        config = draw(family, rng)
    network = archs.with_softcaps(llama.make_network(config, "f32", spread=0.05 if mixture else 0.15))
    network.save_pretrained(there)
    gguf_files.convert(there, path, mixture=mixture)
    if mixture:
        gguf_files.convert(path, plain)
        network = archs.with_softcaps(llama.opened_by_transformers(plain)[0])
    network = with_table_gelu(network) if network.config.model_type in HAS_GELU else network
    ids = [rng.randrange(config.vocab_size) for _ in range(config.max_position_embeddings)]
    prompt = ids[:rng.randint(17, max(17, len(ids) - TOKENS))] if is_longrope(config) else ids[:rng.randint(
        1, len(ids) - TOKENS)]
    bar = bar_of(mixture, network, ids)
    with llama_cpp_api.Model(path) as theirs:
        return judge(mixture or "f32", network, theirs, ids, prompt, bar)


def is_longrope(config):
    return (getattr(config, "rope_parameters", None) or {}).get("rope_type") == "longrope"


# ---------------------------------------------------------------------------------------------------------------------


def checks(seed):
    """Yields (name, dtype, a function of the verdicts in a folder)."""
    for family in archs.DRAW:
        rng = random.Random(f"{seed}/llama_cpp_archs/{family}")
        kinds = MIXTURES if os.environ.get("TARN_TEST_LONG") else [rng.choice(MIXTURES)]
        for number, mixture in enumerate(CONFIGS * [None] + kinds):
            name = f"{family} {number} {mixture or 'f32'}"
            yield name, "" if mixture else "f32", lambda place, family=family, mixture=mixture, name=name: check(
                family, mixture, random.Random(f"{seed}/llama_cpp_archs/{name}"), place)


def run(seed):
    return llama_cpp_files.verdicts_of(seed, checks(seed))
