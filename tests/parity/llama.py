"""The Llama family against transformers, on folders that one wrote and the other opens: names and shapes, logits, the
loss and every gradient, and the text that follows greedily. Families, configurations, weights and tokens are random. A
real model, stories260K, goes from its own format through tarn into a folder that transformers runs."""
import contextlib
import json
import os
import random
import struct
import tempfile
import types

import torch
import transformers
from transformers.modeling_rope_utils import ROPE_INIT_FUNCTIONS

import compare
import support
import tarn
from gpt2 import generate, in_tarn, judge, open_in_tarn

CONFIGS = 2  # of each family
FAMILIES = {"llama": transformers.LlamaConfig, "mistral": transformers.MistralConfig, "qwen2": transformers.Qwen2Config,
            "qwen3": transformers.Qwen3Config}
DTYPES = ["f32", "f64"]
TOKENS = 24        # of a greedy text
LOGITS = 1e-4      # f32, against transformers in f32

transformers.logging.set_verbosity_error()
transformers.logging.disable_progress_bar()


# ---- configurations and networks
# --------------------------------------------------------------------------------------------------------


def draw_rope(rng):
    kind = rng.choice(["default", "linear", "llama3"])
    rope = {"rope_type": kind, "rope_theta": rng.choice([10000.0, 500000.0, 77.5])}
    if kind != "default":
        rope["factor"] = rng.choice([2.0, 8.0, 1.5])
    if kind == "llama3":
        rope |= {
            "low_freq_factor": 1.0, "high_freq_factor": rng.choice([4.0, 2.5]),
            "original_max_position_embeddings": rng.choice([8, 16, 64])}
    return rope


def draw_config(family, rng):
    """Heads that do not fill the width, one head of keys for all, one block, tied and untied heads."""
    kv_heads = rng.choice([1, 1, 2, 3])
    heads, vocab = kv_heads * rng.choice([1, 2, 3]), rng.randint(3, 90)
    size = rng.choice([2, 4, 6, 10, 16])
    width = heads * rng.choice([size, size, 3, 5]) if family == "llama" or rng.random() < 0.3 else rng.choice([
        5, 12, 33])  # a Llama's are a multiple
    ends = rng.choice([None, rng.randrange(vocab), [rng.randrange(vocab) for _ in range(3)]])
    config = dict(vocab_size=vocab, max_position_embeddings=rng.randint(TOKENS + 2, 64), hidden_size=width,
                  intermediate_size=rng.randint(1, 50), num_hidden_layers=rng.randint(1, 4), num_attention_heads=heads,
                  num_key_value_heads=kv_heads, head_dim=size, rms_norm_eps=rng.choice([1e-6, 1e-5, 1e-3]),
                  tie_word_embeddings=rng.random() < 0.5, rope_parameters=draw_rope(rng),
                  bos_token_id=rng.choice([None, rng.randrange(vocab)]), eos_token_id=ends)
    if family == "mistral":
        config["sliding_window"] = rng.choice([None, 64, 4096])
    return FAMILIES[family](**config)


def make_network(config, dtype, spread=0.15):
    """Weights far from those of a beginning, norms and biases too, so that every part counts."""
    network = transformers.AutoModelForCausalLM.from_config(config).to(support.TORCH[dtype])
    with torch.no_grad():
        for values in network.parameters():
            values.add_(torch.randn_like(values) * spread)
    return network.eval()


@contextlib.contextmanager
def wide_floats():
    """transformers' formulas of frequencies ask for torch.float: here it is f64."""
    plain, torch.float = torch.float, torch.float64
    try:
        yield
    finally:
        torch.float = plain


def exact_norm(norm, x):
    return norm.weight * x * torch.rsqrt(x.square().mean(-1, keepdim=True) + norm.variance_epsilon)


def exact_rotary(rotary, x, position_ids):
    angles = position_ids[:, :, None].to(torch.float64) * rotary.exact
    angles = torch.cat([angles, angles], -1)
    return angles.cos(), angles.sin()


def plain_frequencies(config):
    size = config.head_dim
    return 1 / config.rope_parameters["rope_theta"] ** (torch.arange(0, size, 2, dtype=torch.float64) / size)


def exact(network):
    """The network in f64, without the parts that transformers computes in f32 whatever the dtype: norms and angles."""
    network = network.to(torch.float64)
    kind = network.config.rope_parameters["rope_type"]
    rotary = network.model.rotary_emb
    with wide_floats():
        rotary.exact = plain_frequencies(network.config) if kind == "default" else ROPE_INIT_FUNCTIONS[kind](
            network.config, torch.device("cpu"))[0]
    assert rotary.exact.dtype == torch.float64
    rotary.forward = types.MethodType(exact_rotary, rotary)
    for module in network.modules():
        if hasattr(module, "variance_epsilon"):
            module.forward = types.MethodType(exact_norm, module)
    return network


# ---- both compute ----------------------------------------------------------------------------------------------------
# -------------------


def batch(config, rng):
    """Tokens, and targets some of which do not count."""
    shape = rng.randint(1, 3), rng.randint(2, config.max_position_embeddings)
    tokens, targets = (torch.randint(0, config.vocab_size, shape) for _ in range(2))
    targets[torch.rand(shape) < 0.2] = -100
    targets[0, -1] = 0  # at least one counts, which looks at others,
    tokens[0, 0] = (
        tokens[0, -1] + 1
    # and one of them is another token: of equal ones the gradients of q and k are 0, and what is compared is noise
    ) % config.vocab_size
    return tokens, targets


def in_torch(network, tokens, targets):
    """Logits, loss and {name: gradient}."""
    network.zero_grad()
    logits = network(tokens).logits
    loss = torch.nn.functional.cross_entropy(logits.flatten(0, 1), targets.flatten())
    loss.backward()
    return logits.detach(), loss.detach(), {name: p.grad.clone() for name, p in network.named_parameters()}


def check_text(network, model, config, rng, shortest=1):
    """Greedy texts of both; transformers' ends with the token that ends it. `shortest`: tokens of a prompt."""
    length = rng.randint(shortest, config.max_position_embeddings - TOKENS)
    prompt = [rng.randrange(config.vocab_size) for _ in range(length)]
    with torch.no_grad():
        text = network.generate(torch.tensor([prompt]), attention_mask=torch.ones(1, len(prompt),
                                                                                  dtype=torch.int64), do_sample=False,
                                max_new_tokens=TOKENS, pad_token_id=0, eos_token_id=None)[0].tolist()[len(prompt):]
    ends = config.eos_token_id
    first = ends[0] if isinstance(ends, list) else ends
    found = generate(model, prompt, TOKENS, ignore_eos=True)
    verdicts = [
        compare.Verdict(found == text and len(found) == TOKENS,
                        text=f"after {prompt} tarn writes {found}, transformers {text}")]
    if first in text:  # it ends there, without it
        found = generate(model, prompt, TOKENS)
        verdicts.append(
            compare.Verdict(
                len(found) <= text.index(first) and found == text[:len(found)], text=f"{first} does not end {found}"))
    return verdicts


def compare_models(network, model, config, dtype, rng):
    """The same weights in both: in f64 transformers' are the truth."""
    tokens, targets = batch(config, rng)
    theirs = in_torch(network, tokens, targets)
    ours = in_tarn(model, tokens, targets)
    verdicts = []
    if dtype == "f32":
        gap = (ours[0] - theirs[0]).abs().max().item()
        verdicts.append(
            compare.Verdict(gap <= LOGITS, text=f"logits are {gap:.3g} apart, of {theirs[0].abs().max():.3g}"))
        verdicts += check_text(network, model, config, rng)
    truth = in_torch(exact(network), tokens, targets)
    judged = judge(ours, truth, dtype)
    if dtype != "f64":  # sums of f32 through many layers: torch's own distance from the truth is what can be asked for
        own = max(v.error for v in judge(theirs, truth, dtype))
        judged = [compare.relax(v, own) for v in judged]
    return verdicts + judged


# ---- folders ---------------------------------------------------------------------------------------------------------
# -------------------


def old_rope(folder):
    """config.json as transformers 4 wrote it: rope_theta beside rope_scaling, whose type may have its first name."""
    path = os.path.join(folder, "config.json")
    with open(path) as file:
        config = json.load(file)
    rope = config.pop("rope_parameters")
    config["rope_theta"] = rope.pop("rope_theta")
    kind = rope.pop("rope_type")
    config["rope_scaling"] = None if kind == "default" else {"type" if kind == "linear" else "rope_type": kind, **rope}
    with open(path, "w") as file:
        json.dump(config, file)


def check_theirs(config, dtype, rng, folder):
    """transformers saves, in one file or several; tarn opens."""
    network = make_network(config, dtype)
    sharded = rng.random() < 0.5
    network.save_pretrained(folder, **(dict(max_shard_size=rng.choice([2000, 20000])) if sharded else {}))
    if rng.random() < 0.5:
        old_rope(folder)
    return compare_models(network, open_in_tarn(folder, dtype), config, dtype, rng)


def fields_of(config, family, dtype):
    rope, ends = config.rope_parameters, config.eos_token_id
    ends = ends if isinstance(ends, list) else [] if ends is None else [ends]
    return dict(vocab_size=config.vocab_size, context=config.max_position_embeddings, layers=config.num_hidden_layers,
                heads=config.num_attention_heads, hidden_size=config.hidden_size, ffn_size=config.intermediate_size,
                kv_heads=config.num_key_value_heads, head_dim=config.head_dim, epsilon=config.rms_norm_eps,
                rope_theta=rope["rope_theta"], rope_scaling=rope["rope_type"],
                rope_factor=rope.get("factor", 0), rope_low_freq_factor=rope.get("low_freq_factor", 0),
                rope_high_freq_factor=rope.get("high_freq_factor", 0),
                rope_original_context=rope.get("original_max_position_embeddings", 0), qkv_bias=family == "qwen2",
                qk_norm=family == "qwen3", tie_embeddings=config.tie_word_embeddings, arch=family, dtype=dtype,
                bos=config.bos_token_id, eos=ends)


def check_config(config, found):
    """What transformers reads in tarn's config.json."""
    names = [
        "vocab_size", "max_position_embeddings", "hidden_size", "intermediate_size", "num_hidden_layers",
        "num_attention_heads", "num_key_value_heads", "head_dim", "rms_norm_eps", "tie_word_embeddings", "bos_token_id",
        "eos_token_id", "hidden_act"]
    wrong = [
        f"{n} {getattr(found, n)} instead of {getattr(config, n)}" for n in names
        if getattr(found, n) != getattr(config, n)]
    if {k: v for k, v in found.rope_parameters.items() if v is not None} != config.rope_parameters:
        wrong.append(f"rope {found.rope_parameters} instead of {config.rope_parameters}")
    if getattr(found, "sliding_window", None) is not None:
        wrong.append(f"sliding_window {found.sliding_window}")
    return compare.Verdict(not wrong, text=f"config.json: {wrong}")


def opened_by_transformers(folder):
    """The network, and what transformers did not find or did not expect."""
    network, info = transformers.AutoModelForCausalLM.from_pretrained(folder, output_loading_info=True)
    lost = {
        key: sorted(map(str, info[key])) for key in ("missing_keys", "unexpected_keys", "mismatched_keys") if info[key]}
    return network.eval(), compare.Verdict(not lost, text=f"transformers says {lost}")


def check_ours(config, dtype, rng, folder):
    """tarn makes and saves; transformers opens, and misses nothing."""
    model = tarn.Model.create(**fields_of(config, config.model_type, dtype), device=support.device(),
                              seed=rng.randrange(1 << 60))
    for parameter in model.state_dict().values():
        values = support.read(parameter)
        support.write(parameter, values + torch.randn_like(values) * 0.15)
    model.write(folder)
    network, nothing_lost = opened_by_transformers(folder)
    verdicts = [
        nothing_lost,
        check_config(config, network.config),
        compare.Verdict(
            type(network).__name__.lower().startswith(config.model_type),
            text=f"it opens as {type(network).__name__}"),
        compare.Verdict(network.dtype == support.TORCH[dtype], text=f"transformers opens it in {network.dtype}")]
    return verdicts + compare_models(network, model, network.config, dtype, rng)


def check_bits(config, dtype, rng, folder):
    """A folder in a half dtype goes through tarn, opened as stored, and comes back bitwise identical."""
    network = make_network(config, dtype)
    network.save_pretrained(os.path.join(folder, "there"), max_shard_size=rng.choice([3000, 10**9]))
    model = tarn.Model.load(os.path.join(folder, "there"), device=support.device(), tokenizer=False)
    model.write(os.path.join(folder, "back"))
    back = transformers.AutoModelForCausalLM.from_pretrained(os.path.join(folder, "back")).state_dict()
    state = network.state_dict()
    changed = [
        name for name in set(state) | set(back) if name not in state or name not in back or
        not torch.equal(state[name], back[name]) or state[name].dtype != back[name].dtype]
    return [compare.Verdict(not changed, text=f"changed on the way: {changed}")]


# ---- stories260K -----------------------------------------------------------------------------------------------------
# -------------------


def halves(weight, heads):
    """Rows of q and k from neighbours (2 i, 2 i + 1) to halves (i, i + D / 2)."""
    rows, width = weight.shape
    return weight.view(heads, rows // heads // 2, 2, width).transpose(1, 2).reshape(rows, width)


def read_stories(path):
    """The configuration and {name: values} of a file of the form that ../shared/data/README.md tells of."""
    with open(path, "rb") as file:
        width, inner, blocks, heads, kv_heads, vocab, context = struct.unpack("7i", file.read(28))
        values, at = torch.frombuffer(bytearray(file.read()), dtype=torch.float32), 0
    head = width // heads

    def take(*shape):
        nonlocal at
        count = int(torch.tensor(shape).prod())
        at += count
        return values[at - count:at].view(*shape)

    state = {"model.embed_tokens.weight": take(vocab, width)}
    parts = [("input_layernorm", (width, )), ("self_attn.q_proj", (heads * head, width)),
             ("self_attn.k_proj", (kv_heads * head, width)), ("self_attn.v_proj", (kv_heads * head, width)),
             ("self_attn.o_proj", (width, heads * head)), ("post_attention_layernorm", (width, )),
             ("mlp.gate_proj", (inner, width)), ("mlp.down_proj", (width, inner)), ("mlp.up_proj", (inner, width))]
    for name, shape in parts:
        for block in range(blocks):
            weight = take(*shape)
            turned = {"self_attn.q_proj": heads, "self_attn.k_proj": kv_heads}.get(name)
            state[f"model.layers.{block}.{name}.weight"] = halves(weight, turned) if turned else weight
    state["model.norm.weight"] = take(width)
    return dict(vocab_size=vocab, context=context, layers=blocks, heads=heads, kv_heads=kv_heads, hidden_size=width,
                ffn_size=inner, tie_embeddings=True), state


def check_stories(data, folder):
    """Greedy ids and logits of the golden file, in tarn and in transformers on the folder that tarn wrote."""
    with open(os.path.join(data, "golden_greedy200.json")) as file:
        golden = json.load(file)
    fields, state = read_stories(os.path.join(data, "stories260K.bin"))
    model, ids = tarn.Model.create("llama", device=support.device(), **fields), golden["ids"]
    for name, parameter in model.state_dict().items():
        support.write(parameter, state.pop(name))
    verdicts = [
        compare.Verdict(not state, text=f"tarn has no {sorted(state)}"),
        compare.Verdict(generate(model, ids[:1], len(ids) - 1) == ids[1:], text="tarn writes another story")]
    logits = support.read(model(support.tensor(torch.tensor([ids[:1]]))))[0, 0]
    model.write(folder)
    network, nothing_lost = opened_by_transformers(folder)
    with torch.no_grad():
        text = network.generate(torch.tensor([ids[:1]]), attention_mask=torch.ones(1, 1, dtype=torch.int64),
                                do_sample=False, max_new_tokens=len(ids) - 1, pad_token_id=0)[0].tolist()
    gap = (logits.to(torch.float64) - torch.tensor(golden["logits_pos0"], dtype=torch.float64)).abs().max().item()
    return verdicts + [
        nothing_lost,
        compare.Verdict(text == ids, text="transformers writes another story from tarn's folder"),
        compare.Verdict(gap <= LOGITS, text=f"logits are {gap:.3g} apart from the golden ones")]


def run(seed):
    """Yields (name, dtype, verdicts)."""
    data = os.path.join(os.environ.get("TARN_TEST_DATA", ""), "stories260K")
    with tempfile.TemporaryDirectory() as folder:
        yield "stories260K", "f32", check_stories(data, folder) if os.path.isdir(data) else None
    for family in FAMILIES:
        for number in range(CONFIGS):
            for title, check, dtypes in (("theirs", check_theirs, DTYPES), ("ours", check_ours, DTYPES),
                                         ("bits", check_bits, ["bf16", "f16"])):
                for dtype in dtypes:
                    rng = random.Random(f"{seed}/llama/{family}/{number}/{title}/{dtype}")
                    torch.manual_seed(rng.randrange(1 << 31))
                    with tempfile.TemporaryDirectory() as folder:
                        try:
                            verdicts = check(draw_config(family, rng), dtype, rng, folder)
                        except tarn.Error as error:
                            verdicts = [compare.Verdict(False, text=f"tarn: {error}")]
                    yield f"{family} {title} {number} {dtype}", dtype, verdicts
