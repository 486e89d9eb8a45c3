"""Every architecture of decoder-only models against transformers, on folders and GGUF files: logits, the loss and every
gradient, and the text that follows greedily; and with quantized weights against transformers on the same weights,
dequantized. Configurations are random, and vary what config.json may vary: windows, biases, activations, RoPE and its
scalings, soft caps, multipliers, layers without RoPE, parallel residuals."""
import contextlib
import copy
import os
import random
import tempfile
import types

import torch
import transformers

import compare
import gguf_files
import llama
import support
import tarn
from gpt2 import generate, open_in_tarn

CONFIGS = 2      # of each architecture
TOKENS = 50      # of a greedy text
LOGITS = 1e-4    # of the largest logit, or absolute below 1
GRADIENTS = 1e-4  # relative distance of a parameter's gradient
STEADY = GRADIENTS / 10  # how far a rounding of the parameters may move a gradient of a network that is compared
ACTIVATIONS = ["silu", "gelu", "gelu_pytorch_tanh", "relu"]
TYPES = ["Q8_0", "Q4_K_M", "Q4_0", "Q4_1", "Q5_0", "Q5_1", "Q2_K", "Q3_K_M", "Q4_K_S", "Q5_K_M", "Q6_K", "IQ4_NL",
         "IQ4_XS"]
sizes = {"is_wide": False}  # whether rows of the weights are whole quant blocks


# ---- configurations
# ---------------------------------------------------------------------------------------------------------------------


def draw_rope(rng, pairs, context, kinds=("default", "linear", "llama3", "dynamic", "yarn", "longrope")):
    kind = rng.choice(kinds)
    rope = {"rope_type": kind, "rope_theta": rng.choice([10000.0, 500000.0, 77.5])}
    if kind == "default":
        return rope
    rope["factor"] = rng.choice([2.0, 8.0, 1.5])
    if kind == "dynamic" and pairs == 1:
        return {"rope_type": "default", "rope_theta": 10000.0}
    if kind in ("llama3", "yarn", "longrope"):
        rope["original_max_position_embeddings"] = rng.choice([8, 16, context])
    if kind == "llama3":
        rope |= {"low_freq_factor": 1.0, "high_freq_factor": rng.choice([4.0, 2.5])}
    if kind == "yarn":
        rope |= rng.choice([{}, {"attention_factor": 1.25}, {"beta_fast": 24.0, "beta_slow": 2.0},
                            {"mscale": 0.8, "mscale_all_dim": 0.4}, {"truncate": False}])
    if kind == "longrope":
        rope |= {"short_factor": [1 + rng.random() for _ in range(pairs)],
                 "long_factor": [2 + rng.random() for _ in range(pairs)]}
        rope |= rng.choice([{}, {"attention_factor": 1.5}])
    return rope


@contextlib.contextmanager
def wide_sizes():
    sizes["is_wide"] = True
    try:
        yield
    finally:
        sizes["is_wide"] = False


def draw_context(rng):
    return rng.randint(TOKENS + 2, TOKENS + 40)


def draw_head_dim(rng):
    """Of architectures that rotate a part of a head."""
    return 64 if sizes["is_wide"] else rng.choice([8, 16])


def draw_sizes(rng):
    """Heads of queries and of keys, their size, hidden size, FFN size, layers."""
    if sizes["is_wide"]:
        return 4, rng.choice([1, 2, 4]), 64, 256, rng.choice([256, 512]), rng.randint(1, 2)
    kv_heads, size = rng.choice([1, 1, 2, 3]), rng.choice([2, 4, 6, 10, 16])
    heads = kv_heads * rng.choice([1, 2, 3])
    return heads, kv_heads, size, heads * rng.choice([size, size, 3, 5]), rng.randint(1, 50), rng.randint(1, 5)


def draw_common(rng):
    vocab = rng.randint(3, 90)
    heads, kv_heads, size, width, inner, layers = draw_sizes(rng)
    return dict(vocab_size=vocab, max_position_embeddings=draw_context(rng), hidden_size=width, intermediate_size=inner,
                num_hidden_layers=layers, num_attention_heads=heads, num_key_value_heads=kv_heads, head_dim=size,
                tie_word_embeddings=rng.random() < 0.5,
                bos_token_id=rng.choice([None, rng.randrange(vocab)]), pad_token_id=None,
                eos_token_id=rng.choice([None, rng.randrange(vocab)]))


def with_rope(config, rng, **extra):
    pairs = config["head_dim"] // 2
    return config | {"rope_parameters": draw_rope(rng, pairs, config["max_position_embeddings"])} | extra


def narrow(config):
    """Without a head_dim of its own: heads fill the width."""
    config = dict(config)
    config["hidden_size"] = config["num_attention_heads"] * config.pop("head_dim")
    return config


def window(rng):
    return rng.choice([None, 2, 5, 11, 4096])


def layer_types(rng, count):
    return rng.choice([None, [rng.choice(["full_attention", "sliding_attention"]) for _ in range(count)]])


def draw_llama(rng):
    return transformers.LlamaConfig(**with_rope(draw_common(rng), rng, attention_bias=rng.random() < 0.5,
                                                mlp_bias=rng.random() < 0.5, hidden_act=rng.choice(ACTIVATIONS)))


def draw_mistral(rng):
    return transformers.MistralConfig(**with_rope(draw_common(rng), rng, sliding_window=window(rng)))


def draw_qwen2(rng):
    c = draw_common(rng)
    return transformers.Qwen2Config(**with_rope(c, rng, use_sliding_window=True, sliding_window=rng.choice([3, 9, 99]),
                                                max_window_layers=rng.randint(0, c["num_hidden_layers"])))


def draw_qwen3(rng):
    c = draw_common(rng)
    return transformers.Qwen3Config(**with_rope(c, rng, attention_bias=rng.random() < 0.5, use_sliding_window=True,
                                                sliding_window=rng.choice([3, 9, 99]), max_window_layers=1))


def draw_phi3(rng):
    c = narrow(draw_common(rng))
    size = c["hidden_size"] // c["num_attention_heads"]
    part = rng.choice([1.0, 0.5]) if size % 4 == 0 else 1.0
    context = c["max_position_embeddings"]
    rope = draw_rope(rng, int(size * part) // 2, context, ("default", "longrope"))
    rope.pop("factor", None)
    rope["partial_rotary_factor"] = part
    original = rng.choice([context, 2, 8, 16, 40])
    if rope["rope_type"] == "longrope":
        rope["original_max_position_embeddings"] = original
    return transformers.Phi3Config(**c, rope_parameters=rope, original_max_position_embeddings=original,
                                   sliding_window=window(rng))


def draw_smollm3(rng):
    c = narrow(draw_common(rng)) | {"head_dim": None}
    c.pop("head_dim")
    return transformers.SmolLM3Config(**with_rope(c | {"head_dim": c["hidden_size"] // c["num_attention_heads"]}, rng,
                                                  no_rope_layer_interval=rng.choice([1, 2, 4]),
                                                  use_sliding_window=rng.random() < 0.5, sliding_window=window(rng),
                                                  attention_bias=rng.random() < 0.5, mlp_bias=rng.random() < 0.5))


def draw_granite(rng):
    return transformers.GraniteConfig(**with_rope(draw_common(rng), rng, attention_bias=rng.random() < 0.5,
                                                  mlp_bias=rng.random() < 0.5,
                                                  embedding_multiplier=rng.choice([1, 12.0]),
                                                  logits_scaling=rng.choice([1.0, 8.0]),
                                                  residual_multiplier=rng.choice([1, 0.22]),
                                                  attention_multiplier=rng.choice([1.0, 0.0625])))


def draw_olmo2(rng):
    return transformers.Olmo2Config(**with_rope(draw_common(rng), rng, attention_bias=rng.random() < 0.5))


def draw_starcoder2(rng):
    return transformers.Starcoder2Config(**with_rope(draw_common(rng), rng, use_bias=rng.random() < 0.7,
                                                     sliding_window=window(rng), hidden_act=rng.choice(ACTIVATIONS)))


def draw_gpt_neox(rng):
    c = narrow(draw_common(rng) | {"head_dim": draw_head_dim(rng)})
    c.pop("num_key_value_heads")
    part = rng.choice([0.25, 0.5, 1.0])
    size = c["hidden_size"] // c["num_attention_heads"]
    rope = draw_rope(rng, int(size * part) // 2, c["max_position_embeddings"], ("default", "linear"))
    return transformers.GPTNeoXConfig(**c, rope_parameters=rope | {"partial_rotary_factor": part},
                                      use_parallel_residual=rng.random() < 0.5, attention_bias=rng.random() < 0.5,
                                      hidden_act=rng.choice(ACTIVATIONS))


def draw_stablelm(rng):
    c = narrow(draw_common(rng) | {"head_dim": draw_head_dim(rng)})
    part = rng.choice([0.25, 0.5, 1.0])
    size = c["hidden_size"] // c["num_attention_heads"]
    rope = draw_rope(rng, int(size * part) // 2, c["max_position_embeddings"])
    return transformers.StableLmConfig(**c, rope_parameters=rope | {"partial_rotary_factor": part},
                                       use_parallel_residual=rng.random() < 0.5, use_qkv_bias=rng.random() < 0.5,
                                       hidden_act=rng.choice(ACTIVATIONS))


def draw_gemma(rng):
    return transformers.GemmaConfig(**with_rope(draw_common(rng), rng, attention_bias=rng.random() < 0.3,
                                                hidden_act=rng.choice(["gelu_pytorch_tanh", "gelu", "silu"])))


def gemma_extra(rng, layers):
    return dict(attention_bias=rng.random() < 0.3, query_pre_attn_scalar=rng.choice([4, 144]),
                sliding_window=rng.choice([3, 9, 99]), layer_types=layer_types(rng, layers),
                final_logit_softcapping=rng.choice([None, 30.0, 2.0]),
                attn_logit_softcapping=rng.choice([None, 50.0, 1.5]))


def draw_gemma2(rng):
    c = draw_common(rng)
    config = transformers.Gemma2Config(**with_rope(c, rng, **gemma_extra(rng, c["num_hidden_layers"])))
    config._attn_implementation = "eager"  # the only one with soft caps
    return config


def draw_gemma3(rng):
    c = draw_common(rng)
    rope = {"full_attention": draw_rope(rng, c["head_dim"] // 2, c["max_position_embeddings"], ("default", "linear")),
            "sliding_attention": {"rope_type": "default", "rope_theta": rng.choice([10000.0, 100.0])}}
    extra = gemma_extra(rng, c["num_hidden_layers"])
    config = transformers.Gemma3TextConfig(**c, rope_parameters=rope, **extra)
    config._attn_implementation = "eager"
    return config


def draw_gpt2(rng):
    heads, vocab = rng.randint(1, 4), rng.randint(3, 90)
    width = 256 if sizes["is_wide"] else heads * rng.choice([2, 4, 6])
    return transformers.GPT2Config(vocab_size=vocab, n_positions=draw_context(rng), n_embd=width,
                                   n_layer=rng.randint(1, 4), n_head=4 if sizes["is_wide"] else heads,
                                   activation_function=rng.choice(["gelu_new", "gelu", "relu", "silu"]),
                                   scale_attn_weights=rng.random() < 0.5,
                                   scale_attn_by_inverse_layer_idx=rng.random() < 0.5,
                                   bos_token_id=None, eos_token_id=None, resid_pdrop=0.0, attn_pdrop=0.0,
                                   embd_pdrop=0.0)


DRAW = {"gpt2": draw_gpt2, "llama": draw_llama, "mistral": draw_mistral, "qwen2": draw_qwen2, "qwen3": draw_qwen3,
        "phi3": draw_phi3, "smollm3": draw_smollm3, "granite": draw_granite, "olmo2": draw_olmo2,
        "starcoder2": draw_starcoder2, "gpt_neox": draw_gpt_neox, "stablelm": draw_stablelm, "gemma": draw_gemma,
        "gemma2": draw_gemma2, "gemma3": draw_gemma3}


# ---- both compute
# ---------------------------------------------------------------------------------------------------------------------


def logits_of(model, tokens):
    return support.read(model(support.tensor(tokens)))


def same_logits(label, ours, theirs):
    gap, bar = (ours - theirs).abs().max().item(), LOGITS * max(1.0, theirs.abs().max().item())
    return compare.Verdict(gap <= bar, gap, bar, "abs", f"{label}: logits are {gap:.3g} apart, {bar:.3g} allowed")


def distances(gradients, truth):
    """Relative, by parameter. A gradient far below the largest is rounding: of scores that do not matter, say."""
    largest = max(values.norm().item() for values in truth.values())
    return {name: ((gradients[name] - values).norm() / max(values.norm().item(), 1e-3 * largest)).item()
            for name, values in truth.items()}


def judge_gradients(ours, theirs, truth):
    """Against transformers in f64. Where sums cancel, its own f32 is further away than the bar, too."""
    if set(ours) != set(truth):
        return [compare.Verdict(False, text=f"parameters {sorted(set(ours) ^ set(truth))} are in one alone")]
    far, own = distances(ours, truth), distances(theirs, truth)
    worst = max(far, key=lambda name: far[name] / max(GRADIENTS, 2 * own[name]))
    bar = max(GRADIENTS, 2 * own[worst])
    return [compare.Verdict(far[worst] <= bar, far[worst], bar, "rel",
                            f"gradient of {worst} is {far[worst]:.3g} from transformers', {bar:.3g} allowed")]


def in_torch(network, tokens, targets):
    """Names as they are stored: transformers 5 renames GPT-NeoX's head in memory."""
    logits, loss, gradients = llama.in_torch(network, tokens, targets)
    renamed = {"lm_head.weight": "embed_out.weight"} if network.config.model_type == "gpt_neox" else {}
    return logits, loss, {renamed.get(name, name): values for name, values in gradients.items()}


def exact_gemma_norm(norm, x):
    return (1 + norm.weight) * x * torch.rsqrt(x.square().mean(-1, keepdim=True) + norm.eps)


def with_exact_norms(network):
    """transformers computes RMS norms in f32 whatever the dtype: not the truth, where gradients cancel."""
    for module in network.modules():
        kind = type(module).__name__
        if hasattr(module, "variance_epsilon"):
            module.forward = types.MethodType(llama.exact_norm, module)
        elif kind.startswith("Gemma") and kind.endswith("RMSNorm"):
            module.forward = types.MethodType(exact_gemma_norm, module)
    return network


def truth_of(network, tokens, targets, rounding=0.0):
    """Gradients in f64, with parameters moved by up to `rounding` of themselves."""
    network = with_exact_norms(copy.deepcopy(network).to(torch.float64))
    with torch.no_grad():
        for parameter in network.parameters():
            parameter.mul_(1 + rounding * (2 * torch.rand_like(parameter) - 1))
    return in_torch(network, tokens, targets)[2]


def is_steady(network, tokens, targets):
    """Whether f32 can be asked for these gradients: some networks of a few channels multiply a rounding by thousands,
    where a norm meets a row near 0."""
    truth = truth_of(network, tokens, targets)
    return all(max(distances(truth_of(network, tokens, targets, 2.0 ** -24), truth).values()) <= STEADY
               for _ in range(3))


def with_softcaps(network):
    """Computed by one of transformers' implementations of attention alone."""
    if getattr(network.config, "attn_logit_softcapping", None):
        network.set_attn_implementation("eager")
    return network


def draw_case(family, rng):
    """A config, its network, tokens and targets."""
    for _ in range(100):
        config = DRAW[family](rng)
        network = with_softcaps(llama.make_network(config, "f32"))
        shape = rng.randint(1, 3), rng.randint(2, config.max_position_embeddings)
        tokens, targets = (torch.randint(0, config.vocab_size, shape) for _ in range(2))
        if is_steady(network, tokens, targets):
            return config, network, tokens, targets
    raise RuntimeError(f"{family}: no network in 100 has gradients that f32 can compute")


def same_text(network, model, prompt, gap):
    """Greedy texts of both, up to a choice between two tokens whose logits are within twice the `gap` of logits. The
    text, and whether they are equal."""
    with torch.no_grad():
        made = network.generate(torch.tensor([prompt]), attention_mask=torch.ones(1, len(prompt), dtype=torch.int64),
                                do_sample=False, max_new_tokens=TOKENS, pad_token_id=0, eos_token_id=None,
                                output_logits=True, return_dict_in_generate=True)
    text, found = made.sequences[0].tolist()[len(prompt):], generate(model, prompt, TOKENS, ignore_eos=True)
    at = next((i for i, (one, other) in enumerate(zip(text, found)) if one != other), len(text))
    is_same, margin = found == text, float("inf")
    if at < min(len(text), len(found)):
        margin = (made.logits[at][0, text[at]] - made.logits[at][0, found[at]]).item()
    return text, is_same, compare.Verdict(is_same or margin <= 2 * gap,
                                          text=f"after {prompt} tarn writes {found}, transformers {text}: token {at} "
                                          f"by {margin:.3g}, of logits {gap:.3g} apart")


def check_text(network, model, config, rng):
    prompt = [rng.randrange(config.vocab_size) for _ in range(rng.randint(1, config.max_position_embeddings - TOKENS))]
    gap = LOGITS * max(1.0, network(torch.tensor([prompt])).logits.abs().max().item())
    text, is_same, verdict = same_text(network, model, prompt, gap)
    end = config.eos_token_id
    if not is_same or end not in text:
        return [verdict]
    found = generate(model, prompt, TOKENS)  # it ends there, without it
    return [verdict, compare.Verdict(len(found) <= text.index(end) and found == text[:len(found)],
                                     text=f"{end} does not end {found}")]


def compare_models(network, model, config, tokens, targets, rng):
    theirs, ours = in_torch(network, tokens, targets), llama.in_tarn(model, tokens, targets)
    loss = abs(ours[1].item() - theirs[1].item())
    verdicts = [same_logits("folder", ours[0], theirs[0]),
                compare.Verdict(loss <= LOGITS, text=f"losses are {loss:.3g} apart")]
    verdicts += check_text(network, model, config, rng)
    return verdicts + judge_gradients(ours[2], theirs[2], truth_of(network, tokens, targets))


def opened(path, tokens):
    return logits_of(open_in_tarn(path, "f32"), tokens)


def check(family, rng, folder):
    config, network, tokens, targets = draw_case(family, rng)
    there, back, file, again = (os.path.join(folder, name) for name in ("there", "back", "there.gguf", "again"))
    network.save_pretrained(there)
    model = open_in_tarn(there, "f32")
    verdicts = compare_models(network, model, config, tokens, targets, rng)
    model.write(back)
    with torch.no_grad():
        truth = network(tokens).logits
        other, nothing_lost = llama.opened_by_transformers(back)
        verdicts += [nothing_lost, same_logits("folder of tarn", with_softcaps(other)(tokens).logits, truth)]
    gguf_files.convert(there, file)
    gguf_files.convert(file, again)
    for label, path in (("GGUF", file), ("folder of GGUF", again)):
        verdicts.append(same_logits(label, opened(path, tokens), truth))
    return verdicts


# ---- quantized weights
# ---------------------------------------------------------------------------------------------------------------------


def rounded(x):
    """In 8 bits, 32 elements to a scale, as products with quantized weights take their input."""
    groups = x.unflatten(-1, (-1, 32))
    scale = groups.abs().amax(-1, keepdim=True) / 127
    return torch.where(scale > 0, (groups / scale).round() * scale, groups).flatten(-2)


def with_rounded_inputs(network):
    """A copy whose linear layers round their input."""
    network = copy.deepcopy(network)
    for module in network.modules():
        if isinstance(module, (torch.nn.Linear, transformers.pytorch_utils.Conv1D)):
            module.register_forward_pre_hook(lambda _, inputs: (rounded(inputs[0]), ))
    return network


def check_quantized(family, kind, rng, folder):
    """A GGUF file of a type, against transformers on its weights, dequantized: as far from it at most as twice the
    rounding of the layers' input."""
    there, file, plain = (os.path.join(folder, name) for name in ("there", "there.gguf", "plain"))
    with wide_sizes():
        config = DRAW[family](rng)
    llama.make_network(config, "f32", spread=0.05).save_pretrained(there)
    gguf_files.convert(there, file, mixture=kind)
    gguf_files.convert(file, plain)
    network, nothing_lost = llama.opened_by_transformers(plain)
    network = with_softcaps(network)
    tokens = torch.randint(0, config.vocab_size, (2, rng.randint(2, config.max_position_embeddings)))
    with torch.no_grad():
        truth = network(tokens).logits
        bar = 2 * (with_rounded_inputs(network)(tokens).logits - truth).abs().max().item()
    verdicts = [nothing_lost, same_logits(f"{kind}, dequantized", opened(plain, tokens), truth)]
    model = open_in_tarn(file, "f32")
    gap = (logits_of(model, tokens) - truth).abs().max().item()
    verdicts.append(compare.Verdict(gap <= bar, text=f"{kind}: logits are {gap:.3g} apart, {bar:.3g} allowed, of "
                                    f"{truth.abs().max().item():.3g}"))
    prompt = tokens[0, :rng.randint(1, config.max_position_embeddings - TOKENS)].tolist()
    return verdicts + [same_text(network, model, prompt, bar)[2]]


# ---------------------------------------------------------------------------------------------------------------------


def checks_of(family, rng):
    """(title, check). CI has less time on devices."""
    is_quick = os.environ.get("TARN_TEST_QUICK") and support.device_name() != "cpu"
    yield from ((str(number), check) for number in range(1 if is_quick else CONFIGS))
    kinds = rng.sample(TYPES, len(TYPES) if os.environ.get("TARN_TEST_LONG") else 1)
    yield from ((kind, lambda *given, kind=kind: check_quantized(given[0], kind, *given[1:])) for kind in kinds)


def run(seed):
    """Yields (name, dtype, verdicts)."""
    for family in DRAW:
        for title, one in checks_of(family, random.Random(f"{seed}/archs/{family}")):
            rng = random.Random(f"{seed}/archs/{family}/{title}")
            torch.manual_seed(rng.randrange(1 << 31))
            with tempfile.TemporaryDirectory() as folder:
                try:
                    verdicts = one(family, rng, folder)
                except tarn.Error as error:
                    verdicts = [compare.Verdict(False, text=f"tarn: {error}")]
            yield f"{family} {title}", "f32", verdicts
