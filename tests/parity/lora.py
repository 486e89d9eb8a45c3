"""Adapters of low rank against PEFT on transformers' GPT-2 and Llama family: folders that one wrote and the other
opens, 50 steps of training from the same weights, data and adapters, and the weights that adapters were merged into.

Embeddings and heads, tied or not, have adapters or are trained whole, with norms, as modules_to_save.

In f64 every number of every adapter must agree within 1e-9 after 50 steps of AdamW. In f32 the adapters must be no
further from those of the f64 run than twice torch's f32 are, the furthest number counted. AdamW divides a gradient's
scale out, so gradients are compared as well, in the first step, where all runs have the same weights. Weights below the
adapters keep their bits."""
import json
import os
import random
import subprocess
import tempfile
from pathlib import Path

import gguf
import peft
import torch
import transformers

import compare
import gguf_files
import gpt2
import llama
import support
import tarn
import text
import training

STEPS, BATCH = 50, 3
DTYPES = "f64", "f32", "bf16"
CONFIGS = {"gpt2": 2, "llama": 2, "mistral": 1, "qwen2": 1, "qwen3": 1}
ADDS = dict.fromkeys(CONFIGS, ()) | {"gpt2": ("added",), "llama": ("added",)}
# AdamW's first step is lr · g / (|g| + epsilon). With the default epsilon, 1e-8, it is ill-conditioned in f32: rounding
# alone moves these gradients by 1e-8 to 1e-6, so an element whose exact gradient is that small takes any step from -lr
# to lr, in torch too, and the furthest element depends on chance. An epsilon far above rounding leaves nothing to it.
RECIPES = {
    "f64": training.Recipe("adamw", (("lr", 1e-4), ("weight_decay", 0.01))),
    "f32": training.Recipe("adamw", (("lr", 1e-4), ("weight_decay", 0.01), ("epsilon", 1e-3)))}
# How far torch's furthest number must move, in units of what the comparison forgives: an adapter that was not trained,
# or by 5 % too little, cannot pass. Not an absolute distance in f32, where the epsilon above makes a step as short as
# its gradient is small: 147 draws moved by 8e-4 to 5e-3, which is 217 to 8700 times what is forgiven.
MOVED = 20
GRADIENTS = 2e-5  # relative distance in f32; a wrong factor of 1.0001 is 1e-4
PREFIX = "base_model.model."
TOKENS = "trainable_tokens_delta"
LAYERS = {"gpt2": ["c_attn", "c_fc", "attn.c_proj", "mlp.c_proj", "c_proj"],
          "llama": ["q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj", "mlp.up_proj"]}


# ---- the same model with the same adapters in both
# ----------------------------------------------------------------------------------------


def draw_network(family, dtype, rng):
    if family == "gpt2":
        config = gpt2.draw_config(rng)
        config.resid_pdrop = config.attn_pdrop = config.embd_pdrop = 0.0
        config.eos_token_id = None
        return gpt2.randomized(transformers.GPT2LMHeadModel(config)).to(support.TORCH[dtype]).eval()
    return llama.make_network(llama.draw_config(family, rng), dtype)


def context(config):
    return config.n_positions if config.model_type == "gpt2" else config.max_position_embeddings


def draw_layers(family, count, rng):
    """Which layers have adapters: all, by names, in some blocks only, by a pattern, without some."""
    names = LAYERS["gpt2" if family == "gpt2" else "llama"]
    blocks, part = ("h", "attn") if family == "gpt2" else ("layers", "self_attn")
    listed = rng.sample(names, rng.randint(1, len(names)))
    some = rng.sample(range(count), rng.randint(1, count))
    return rng.choice([
        {"target_modules": "all-linear"}, {"target_modules": listed},
        {"target_modules": listed, "layers_to_transform": rng.choice([some, some[0]]),
         "layers_pattern": rng.choice([None, blocks, [blocks, "other"]])},
        {"target_modules": rf".*\.{blocks}\.({'|'.join(map(str, some))})\..*\.\w*proj"},
        {"target_modules": rf".*\.{part}\.(c_attn|[qv]_proj)", "exclude_modules": rf".*\.{count}\..*"},
        {"target_modules": listed + [names[0]], "exclude_modules": [name for name in listed[:1] if name != names[0]]}])


def draw_patterns(family, count, rng):
    """Ranks and alphas of single layers. The first pattern that matches counts; PEFT writes them sorted, so they are
    drawn sorted, or it would not open its own folder."""
    names, blocks = LAYERS["gpt2" if family == "gpt2" else "llama"], "h" if family == "gpt2" else "layers"
    body = "transformer" if family == "gpt2" else "model"
    keys = rng.sample(names, 2) + [rf"{body}\.{blocks}\.{rng.randrange(count)}\..*", rf"{blocks}\.\d+\.mlp\.\w+"]
    draw = lambda values: {key: rng.choice(values) for key in sorted(rng.sample(keys, rng.randint(1, len(keys))))}
    return {
        "rank_pattern": draw([1, 3, 4]) if rng.random() < 0.5 else {},
        "alpha_pattern": draw([2, 8, 16]) if rng.random() < 0.5 else {}}


ENDS = {"gpt2": ["wte", "lm_head", "wpe"], "llama": ["embed_tokens", "lm_head"]}


def draw_tokens(family, vocab, rng):
    """Trained rows: of the embedding, which a tied head shares, of the head alone, or of both."""
    embedding, some = "wte" if family == "gpt2" else "embed_tokens", lambda: rng.sample(range(vocab), min(vocab, 4))
    same = some()
    return rng.choice([
        some(), {embedding: some()}, {"lm_head": some()}, {embedding: same, "lm_head": same},
        {embedding: some(), "lm_head": some()}])


def draw_ends(family, drawn, rng):
    """Embeddings and head: with adapters, trained whole, or neither; norms trained whole."""
    names = ENDS["gpt2" if family == "gpt2" else "llama"]
    ends = rng.sample(names, rng.randint(1, len(names)))
    choice = rng.random()
    if choice < 0.3 and "wpe" in ends:
        ends = ["lm_head", "wte"]
    if choice < 0.3 and isinstance(drawn["target_modules"], list):
        return {**drawn, "target_modules": drawn["target_modules"] + ends, "layers_to_transform": None,
                "layers_pattern": None}
    if choice < 0.7:
        norms = ["ln_f", "ln_1"] if family == "gpt2" else ["model.norm", "input_layernorm"]
        return {**drawn, "modules_to_save": ends + rng.sample(norms, rng.randint(0, 2))}
    return drawn


def draw_adapters(family, count, rng, vocab=0):
    """With a vocabulary: trained tokens in place of adapters and whole modules of the ends."""
    if vocab:
        return peft.LoraConfig(r=2, lora_alpha=3, task_type="CAUSAL_LM", fan_in_fan_out=family == "gpt2",
                               target_modules="all-linear",
                               trainable_token_indices=draw_tokens(family, vocab, rng))
    return peft.LoraConfig(r=rng.choice([1, 2, 5]), lora_alpha=rng.choice([8, 4, 3]), use_rslora=rng.random() < 0.4,
                           lora_dropout=rng.choice([0.0, 0.1]), task_type="CAUSAL_LM",
                           fan_in_fan_out=family == "gpt2", **draw_ends(family, draw_layers(family, count, rng), rng),
                           **draw_patterns(family, count, rng))


def with_adapters(network, config, rng):
    """PEFT's network; half of the time its B are no longer zeros."""
    network = peft.get_peft_model(network, config)
    if rng.random() < 0.5:
        with torch.no_grad():
            for name, values in network.named_parameters():
                if "lora_B" in name or "lora_embedding_" in name or "modules_to_save" in name or TOKENS in name:
                    values.add_(torch.randn_like(values) * 0.1)
    for module in network.modules():  # what is dropped out is drawn differently in both
        if isinstance(module, torch.nn.Dropout):
            module.p = 0.0
    return network


def wide(network_folder, adapter_folder, exact):
    """The same in f64: the truth."""
    network = transformers.AutoModelForCausalLM.from_pretrained(network_folder).to(torch.float64)
    network = llama.exact(network) if exact else network
    network = peft.PeftModel.from_pretrained(network, adapter_folder, is_trainable=True).to(torch.float64)
    for module in network.modules():
        if isinstance(module, torch.nn.Dropout):
            module.p = 0.0
    return network


def adapters_of(network, part=lambda values: values.detach()):
    own = lambda name: name[len(PREFIX):].replace(".modules_to_save", "").replace(".default", "")
    return {
        own(name): part(values).to(torch.float64).clone()
        for name, values in network.named_parameters()
        if "lora_" in name or ".modules_to_save." in name or TOKENS in name}


def open_both(folder, dtype):
    model = gpt2.open_in_tarn(os.path.join(folder, "base"), dtype)
    model.load_adapter(os.path.join(folder, "theirs"))
    return model


def logits_in_tarn(model, tokens):
    return support.read(model(support.tensor(tokens)))


def logits_in_torch(network, tokens):
    with torch.no_grad():
        return network(tokens).logits


def judge_logits(label, ours, truth, theirs, dtype):
    verdict = compare.summed(ours, truth, dtype, terms=compare.LONG + 1, label=label)
    own = compare.summed(theirs, truth, dtype, terms=compare.LONG + 1, label=label).error
    return compare.relax(verdict, own)


# ---- training --------------------------------------------------------------------------------------------------------
# ---------------------


def train_in_torch(network, batches, recipe):
    """The adapters, and their gradients in the first step."""
    network.train()
    optimizer, gradients = training.torch_optimizer(recipe, network), None
    for tokens, targets in batches:
        optimizer.zero_grad()
        torch.nn.functional.cross_entropy(network(tokens).logits.flatten(0, 1), targets.flatten()).backward()
        gradients = gradients or adapters_of(network, lambda values: values.grad)
        optimizer.step()
    network.eval()
    return adapters_of(network), gradients


def train_in_tarn(model, batches, recipe, trained):
    """The same, and what else than `trained` changed or had a gradient."""
    states = {name: support.read(p) for name, p in model.state_dict().items()}
    optimizer, gradients = training.tarn_optimizer(recipe, model), None
    wrong = []
    for tokens, targets in batches:
        model.loss(support.tensor(tokens), support.tensor(targets)).backward()
        found = {name: support.gradient(p) for name, p in model.state_dict().items()}
        wrong += [name for name, values in found.items() if (name in trained) != (values is not None)]
        gradients = gradients or {
            name: values.to(torch.float64) for name, values in found.items() if values is not None}
        training.tarn_step(recipe, optimizer)
    after = {name: support.read(p) for name, p in model.state_dict().items()}
    wrong += [name for name, values in after.items() if name not in trained and not torch.equal(values, states[name])]
    return {name: values.to(torch.float64) for name, values in after.items() if name in trained}, gradients, wrong


def furthest(ours, truth):
    return max((ours[name] - values).abs().max().item() for name, values in truth.items())


def judge_training(ours, wrong, before, truth, theirs, dtype):
    if set(ours) != set(truth):
        return [compare.Verdict(False, text=f"adapters {sorted(set(ours) ^ set(truth))} are in one alone")]
    far, moved = furthest(ours, truth), furthest(before, truth)
    bar = 1e-9 if dtype == "f64" else 2 * furthest(theirs, truth)
    least = 1e-3 if dtype == "f64" else MOVED * bar
    return [
        compare.Verdict(moved > least, text=f"torch's adapters moved by {moved:.3g} only, not by {least:.3g}"),
        compare.Verdict(
            not wrong,
            text=f"frozen, but changed or with a gradient; or trained without one: {sorted(set(wrong))[:5]}"),
        compare.Verdict(far <= bar, far, bar, "abs",
                        f"an adapter's number is {far:.3g} from torch's f64 after {STEPS} steps, {bar:.3g} allowed")]


def typical_distance(gradients, truth):
    """The median over adapters of the relative distance. Not the largest: the gradient of an adapter of rank 1 is a
    vector times one number, which can cancel to any small part of its terms."""
    return torch.tensor([((gradients[name] - values).norm() / values.norm()).item()
                         for name, values in truth.items() if values.norm() > 0]).median().item()


def judge_gradients(ours, truth, theirs, dtype):
    if dtype == "f64" or set(ours) != set(truth):
        return compare.gradients(ours, truth, dtype)
    far, bar = typical_distance(ours, truth), max(GRADIENTS, 2 * typical_distance(theirs, truth))
    return [
        compare.Verdict(far <= bar, far, bar, "rel",
                        f"gradients of the first step are {far:.3g} from torch's f64, {bar:.3g} allowed")]


# ---- folders and merged weights
# ----------------------------------------------------------------------------------------------------------


def same_logits(label, ours, theirs, dtype):
    """Of the same numbers in both programs."""
    if dtype == "f64":
        return compare.summed(ours, theirs, dtype, terms=compare.LONG + 1, label=label)
    gap, bar = (ours - theirs).abs().max().item(), llama.LOGITS * max(1.0, theirs.abs().max().item())
    return compare.Verdict(gap <= bar, text=f"{label} are {gap:.3g} apart, {bar:.3g} allowed")


def open_network(folder, dtype):
    """A folder in transformers, and what it misses there."""
    network, info = transformers.AutoModelForCausalLM.from_pretrained(folder, output_loading_info=True)
    lost = {
        key: sorted(map(str, info[key])) for key in ("missing_keys", "unexpected_keys", "mismatched_keys") if info[key]}
    is_exact = dtype == "f64" and network.config.model_type != "gpt2"
    return (llama.exact(network) if is_exact else network).eval(), compare.Verdict(
        not lost, text=f"transformers says of {folder}: {lost}")


def check_saved(model, folder, tokens, ours, dtype):
    """PEFT opens what tarn saved: the same numbers, none missing, and the same logits."""
    base, place = os.path.join(folder, "base"), os.path.join(folder, "ours")
    model.save_adapter(place, base)
    network = peft.PeftModel.from_pretrained(open_network(base, dtype)[0], place).eval()
    found = adapters_of(network)
    same = set(found) == set(ours) and all(torch.equal(values, ours[name]) for name, values in found.items())
    noted = peft.PeftConfig.from_pretrained(place).base_model_name_or_path
    return [
        compare.Verdict(same, text="PEFT reads other adapters than tarn saved"),
        compare.Verdict(noted == base, text=f"the base is noted as {noted}"),
        same_logits("logits of tarn's folder", logits_in_tarn(model, tokens), logits_in_torch(network, tokens), dtype)]


def parts_tied(network):
    """Whether merging unties embeddings: PEFT merges the adapter of one into the weight of both, tarn into its own.
    Trained tokens of a tied embedding are those of the head too, unless that has others."""
    ends, names = ("wte.", "embed_tokens.", "lm_head."), list(adapters_of(network))
    return network.config.tie_word_embeddings and (
        any(end in name for name in names if "lora_" in name for end in ends) or
        any("lm_head." in name and TOKENS in name for name in names))


def check_merged(model, network, truth_network, folder, tokens, dtype):
    """Merged in both, and tarn's merged folder in transformers."""
    place = os.path.join(folder, "merged")
    model.merge_adapter()
    model.write(place)
    opened, whole = open_network(place, dtype)
    ours = logits_in_tarn(model, tokens)
    parts = parts_tied(network)  # the logits before are the truth then
    truth, theirs = (
        logits_in_torch(n if parts else n.merge_and_unload(), tokens) for n in (truth_network, network))
    return [judge_logits("merged logits", ours, truth, theirs, dtype), whole,
            same_logits("logits of tarn's merged folder", ours, logits_in_torch(opened, tokens), dtype)]


def check_gguf(network, folder, source):
    """A folder and tarn's adapters in one GGUF file: in the gguf package every weight as PEFT merges it, in GGUF's
    order."""
    path, wrong = os.path.join(folder, "merged.gguf"), []
    tarn.convert(os.path.join(folder, source), path, adapter=os.path.join(folder, "ours"), replace=True)
    found, config = gguf_files.read_tensors(path), network.config
    kind = {"qwen2": gguf.MODEL_ARCH.QWEN2, "qwen3": gguf.MODEL_ARCH.QWEN3}.get(config.model_type,
                                                                                gguf.MODEL_ARCH.LLAMA)
    names = gguf.get_tensor_name_map(kind, config.num_hidden_layers)
    heads = {"q_proj": config.num_attention_heads, "k_proj": config.num_key_value_heads
            } if config.model_type in ("llama", "mistral") else {}
    for name, values in network.state_dict().items():
        if config.tie_word_embeddings and name == "lm_head.weight":
            continue
        stored = names.get_name(name, try_suffixes=(".weight", ".bias"))
        turned = heads.get(name.split(".")[-2])
        wanted = gguf_files.neighbours(values.numpy(), turned) if turned else values.numpy()
        ours = gguf.quants.dequantize(found[stored].data, found[stored].tensor_type).reshape(wanted.shape)
        if not abs(ours - wanted).max() <= 1e-5:
            wrong.append(f"{name}: {abs(ours - wanted).max():.3g}")
    return compare.Verdict(not wrong, text=f"the merged GGUF file of {source} differs: {wrong[:3]}")


def check_adapter_gguf(model, folder, family, tokens):
    """Adapters in a GGUF file, as llama.cpp's converter writes them: weights that the gguf package and transformers
    compute with, and adapters that tarn opens again."""
    path = os.path.join(folder, "adapter.gguf")
    ours = logits_in_tarn(model, tokens)
    model.save_adapter(path)
    reader, (network, _) = gguf.GGUFReader(path), open_network(os.path.join(folder, "base"), "f32")
    fields = {key: reader.fields[key].contents() for key in ("general.type", "adapter.type", "adapter.lora.alpha")}
    config, found = network.config, {tensor.name: torch.tensor(tensor.data) for tensor in reader.tensors}
    kind = {"qwen2": gguf.MODEL_ARCH.QWEN2, "qwen3": gguf.MODEL_ARCH.QWEN3, "gpt2": gguf.MODEL_ARCH.GPT2}.get(
        config.model_type, gguf.MODEL_ARCH.LLAMA)
    names = gguf.get_tensor_name_map(kind, config.num_hidden_layers)
    if config.tie_word_embeddings:
        network.get_output_embeddings().weight = torch.nn.Parameter(network.get_output_embeddings().weight.clone())
    used = 0
    for name, values in network.named_parameters():
        stored = names.get_name(name, try_suffixes=(".weight", ".bias"))
        if f"{stored}.lora_a" not in found:
            continue
        a, b = found[f"{stored}.lora_a"], found[f"{stored}.lora_b"]
        heads = {"q_proj": config.num_attention_heads, "k_proj": getattr(config, "num_key_value_heads", None)
                }.get(name.split(".")[-2]) if family in ("llama", "mistral") else None
        if heads:
            b = b.reshape(heads, -1, 2, b.shape[1]).transpose(1, 2).reshape(b.shape)
        scale = fields["adapter.lora.alpha"] / b.shape[1]
        delta = scale * (a @ b.T if stored == "token_embd.weight" else b @ a)
        with torch.no_grad():
            values += delta.T if "c_" in name else delta
        used += 2
    again = gpt2.open_in_tarn(os.path.join(folder, "base"), "f32")
    again.load_adapter(path)
    return [
        compare.Verdict(fields["general.type"] == "adapter" and fields["adapter.type"] == "lora", text=f"{fields}"),
        compare.Verdict(used == len(found), text=f"{len(found) - used} tensors have unknown names"),
        same_logits("logits of an adapter in GGUF", ours, logits_in_torch(network, tokens), "f32"),
        same_logits("logits of an opened adapter in GGUF", logits_in_tarn(again, tokens), ours, "f32")]


def check(family, dtype, rng, folder, has_tokens=False):
    network = draw_network(family, dtype, rng)
    config = network.config
    network.save_pretrained(os.path.join(folder, "base"))
    shape = BATCH, context(config)
    rows = lambda: torch.randint(0, config.vocab_size, shape)
    batches, tokens = [(rows(), rows()) for _ in range(STEPS)], rows()
    vocab = config.vocab_size if has_tokens else 0
    network = with_adapters(network, draw_adapters(family, network.config.num_hidden_layers, rng, vocab), rng)
    network.save_pretrained(os.path.join(folder, "theirs"))
    truth_network = wide(os.path.join(folder, "base"), os.path.join(folder, "theirs"), family != "gpt2").eval()
    model = open_both(folder, dtype)
    verdicts = [
        judge_logits("logits of PEFT's folder", logits_in_tarn(model, tokens),
                     logits_in_torch(truth_network, tokens), logits_in_torch(network, tokens), dtype)]
    before = adapters_of(truth_network)
    recipe = RECIPES[dtype]
    truth, truth_gradients = train_in_torch(truth_network, batches, recipe)
    theirs, their_gradients = train_in_torch(network, batches, recipe)
    ours, our_gradients, wrong = train_in_tarn(model, batches, recipe, set(truth))
    verdicts += judge_gradients(our_gradients, truth_gradients, their_gradients, dtype)
    verdicts += judge_training(ours, wrong, before, truth, theirs, dtype)
    verdicts += check_saved(model, folder, tokens, ours, dtype)
    if dtype == "f32" and all("lora_" in name for name in ours):
        verdicts += check_adapter_gguf(model, folder, family, tokens)
    parts = parts_tied(network)
    verdicts += check_merged(model, network, truth_network, folder, tokens, dtype)
    if dtype == "f32" and family != "gpt2":
        gguf_files.convert(os.path.join(folder, "base"), os.path.join(folder, "base.gguf"))
        base = open_network(os.path.join(folder, "base"), dtype)[0]
        if parts:
            base.lm_head.weight = torch.nn.Parameter(base.lm_head.weight.detach().clone())
            base.config.tie_word_embeddings = False
        merged = peft.PeftModel.from_pretrained(base, os.path.join(folder, "ours")).merge_and_unload()
        verdicts += [check_gguf(merged, folder, source) for source in ("base", "base.gguf")]
    return verdicts


def check_halves(family, rng, folder):
    """Weights in bf16 below adapters in f32: as far from the truth as torch is, twice at most."""
    network = draw_network(family, "bf16", rng)
    network.save_pretrained(os.path.join(folder, "base"))
    network = with_adapters(network, draw_adapters(family, network.config.num_hidden_layers, rng), rng)
    network.save_pretrained(os.path.join(folder, "theirs"))
    truth_network = wide(os.path.join(folder, "base"), os.path.join(folder, "theirs"), family != "gpt2").eval()
    tokens = torch.randint(0, network.config.vocab_size, (BATCH, context(network.config)))
    model = open_both(folder, "bf16")
    truth, distance = logits_in_torch(
        truth_network, tokens), lambda logits: (logits.to(torch.float64) - truth).square().mean().sqrt().item()
    ours, theirs = distance(logits_in_tarn(model, tokens)), distance(logits_in_torch(network, tokens))
    return [
        compare.Verdict(ours <= 2 * theirs, ours, 2 * theirs, "rms",
                        f"logits are {ours:.3g} from the truth, torch's {theirs:.3g}")]


def draw_exact(family, rng):
    network = draw_network(family, "f64", rng)
    return network if family == "gpt2" else llama.exact(network)


def check_dora(family, rng, folder):
    """DoRA adapters of PEFT's: used, written again and merged."""
    network = draw_exact(family, rng)
    network.save_pretrained(os.path.join(folder, "base"))
    config = draw_adapters(family, network.config.num_hidden_layers, rng)
    config.use_dora, config.modules_to_save = True, None
    if isinstance(config.target_modules, set):
        config.target_modules -= {"wte", "wpe", "embed_tokens"}
    network = with_adapters(network, config, rng).eval()
    with torch.no_grad():
        for name, values in network.named_parameters():
            if "magnitude" in name:
                values.mul_(1 + 0.3 * torch.rand_like(values))
    network.save_pretrained(os.path.join(folder, "theirs"))
    tokens = torch.randint(0, network.config.vocab_size, (BATCH, context(network.config)))
    model, ours = open_both(folder, "f64"), os.path.join(folder, "ours")
    theirs = logits_in_torch(network, tokens)
    verdicts = [same_logits("logits of DoRA", logits_in_tarn(model, tokens), theirs, "f64")]
    model.train()
    try:
        model.loss(support.tensor(tokens), support.tensor(tokens))
        verdicts.append(compare.Verdict(False, text="DoRA was trained"))
    except tarn.Error as error:
        verdicts.append(compare.Verdict("has a DoRA adapter" in str(error), text=f"training DoRA: {error}"))
    model.eval()
    model.save_adapter(ours)
    again = peft.PeftModel.from_pretrained(open_network(os.path.join(folder, "base"), "f64")[0], ours).eval()
    verdicts.append(same_logits("logits of tarn's DoRA folder", logits_in_torch(again, tokens), theirs, "f64"))
    model.merge_adapter()
    verdicts.append(same_logits("logits of merged DoRA", logits_in_tarn(model, tokens), theirs, "f64"))
    return verdicts


def check_resized(family, rng, folder):
    """Embedding and head with more rows than the base model's, whole or the added ones: a model that has tokens
    added."""
    network = draw_exact(family, rng)
    network.save_pretrained(os.path.join(folder, "base"))
    added = rng.randint(1, 9)
    count = network.config.vocab_size + added
    network.resize_token_embeddings(count, mean_resizing=False)
    names = ENDS["gpt2" if family == "gpt2" else "llama"][:2]
    rows = dict.fromkeys(names, list(range(network.config.vocab_size - added, count)))
    how = {"trainable_token_indices": rows} if rng.random() < 0.5 else {"modules_to_save": names}
    config = peft.LoraConfig(r=2, task_type="CAUSAL_LM", fan_in_fan_out=family == "gpt2", target_modules="all-linear",
                             **how)
    network = with_adapters(network, config, rng).eval()
    network.save_pretrained(os.path.join(folder, "theirs"))
    tokens = torch.randint(0, count, (BATCH, context(network.config)))
    tokens[0, 0] = count - 1
    model, merged = open_both(folder, "f64"), os.path.join(folder, "merged")
    theirs = logits_in_torch(network, tokens)
    verdicts = [same_logits("logits of added tokens", logits_in_tarn(model, tokens), theirs, "f64")]
    model.save_adapter(os.path.join(folder, "ours"))
    base = open_network(os.path.join(folder, "base"), "f64")[0]
    base.resize_token_embeddings(count, mean_resizing=False)
    again = peft.PeftModel.from_pretrained(base, os.path.join(folder, "ours")).eval()
    verdicts.append(same_logits("logits of tarn's added tokens", logits_in_torch(again, tokens), theirs, "f64"))
    once_more = gpt2.open_in_tarn(os.path.join(folder, "base"), "f64")
    once_more.load_adapter(os.path.join(folder, "ours"))
    verdicts.append(same_logits("logits of reopened tokens", logits_in_tarn(once_more, tokens), theirs, "f64"))
    model.merge_adapter()
    model.write(merged)
    opened, whole = open_network(merged, "f64")
    return verdicts + [
        whole, compare.Verdict(opened.config.vocab_size == count, text=f"vocab_size is {opened.config.vocab_size}"),
        same_logits("logits of added tokens in transformers", logits_in_torch(opened, tokens), theirs, "f64")]


# ---- added tokens ----------------------------------------------------------------------------------------------------

COMMAND = os.path.join(os.path.dirname(os.environ.get("TARN_LIBRARY", "")), "tarn")
ADDED = ["<|im_start|>", "<|im_end|>"]


def check_added(family, rng, folder):
    """tarn train --add-tokens: the merged folder in transformers, the adapters in PEFT: the same ids and logits."""
    base, run_folder, merged = (os.path.join(folder, name) for name in ("base", "run", "run/merged"))
    text.trained(text.corpus(rng), 300, ["<s>", "</s>"]).save(base)
    count = len(transformers.AutoTokenizer.from_pretrained(base))
    if family == "gpt2":
        config = transformers.GPT2Config(vocab_size=count, n_positions=64, n_embd=16, n_layer=1, n_head=2)
    else:
        config = transformers.LlamaConfig(vocab_size=count, hidden_size=16, intermediate_size=24, num_hidden_layers=1,
                                          num_attention_heads=2, num_key_value_heads=1, max_position_embeddings=64,
                                          tie_word_embeddings=rng.random() < 0.5)
    transformers.AutoModelForCausalLM.from_config(config).save_pretrained(base)
    talk = [{"role": "user", "content": "hello"}, {"role": "assistant", "content": "world"}]
    Path(folder, "chats.jsonl").write_text((json.dumps({"messages": talk}) + "\n") * 12, encoding="utf-8")
    ways = ["--lora", "2", "--merge", "folder"] if rng.random() < 0.7 else []
    done = subprocess.run(
        [COMMAND, "train", "--model", base, "--data", os.path.join(folder, "chats.jsonl"), "--add-tokens",
         ",".join(ADDED), "--template", "chatml", "--context", "64", "--batch-size", "2", "--steps", "3",
         "--lr", "0.05", "--device", "cpu", "--precision", "f32", "--out", run_folder, *ways],
        capture_output=True, check=False)
    if done.returncode:
        return [compare.Verdict(False, text=f"tarn train: {done.stderr.decode()}")]
    merged = merged if ways else os.path.join(run_folder, "best")
    theirs, (network, whole) = transformers.AutoTokenizer.from_pretrained(merged), open_network(merged, "f32")
    ours = text.opened(merged)
    prompt = theirs.apply_chat_template(talk, tokenize=False)
    ids = theirs(prompt, add_special_tokens=False)["input_ids"]
    tokens = torch.tensor([ids])
    model = gpt2.open_in_tarn(os.path.join(run_folder, "best"), "f32")
    logits, bound = logits_in_tarn(model, tokens), logits_in_torch(network, tokens)
    verdicts = [
        whole,
        compare.Verdict(ours.encode(prompt) == ids, text=f"ids are {ours.encode(prompt)}, not {ids}"),
        compare.Verdict([theirs.convert_tokens_to_ids(token) for token in ADDED] == [count, count + 1] and
                        set(ADDED) <= set(theirs.added_tokens_encoder), text="the added tokens have other ids"),
        compare.Verdict(network.config.vocab_size == count + 2, text=f"vocab_size is {network.config.vocab_size}"),
        same_logits("logits of added tokens in transformers", logits, bound, "f32")]
    if ways:
        network = open_network(base, "f32")[0]
        network.resize_token_embeddings(count + 2)
        network = peft.PeftModel.from_pretrained(network, os.path.join(run_folder, "best")).eval()
        verdicts.append(same_logits("logits of added tokens in PEFT", logits, logits_in_torch(network, tokens), "f32"))
    return verdicts


def run(seed):
    """Yields (name, dtype, verdicts)."""
    for family, configs in CONFIGS.items():
        for number in range(configs):
            for what in ("f64", "f32", "bf16", "dora", "resized", "tokens", *ADDS[family]):
                rng = random.Random(f"{seed}/lora/{family}/{number}/{what}")
                dtype = what if what in DTYPES else "f32" if what == "added" else "f64"
                torch.manual_seed(rng.randrange(1 << 31))
                with tempfile.TemporaryDirectory() as folder:
                    try:
                        reads = {"bf16": check_halves, "dora": check_dora, "resized": check_resized,
                                 "added": check_added}
                        verdicts = reads[what](family, rng, folder) if what in reads else check(
                            family, dtype, rng, folder, what == "tokens")
                    except tarn.Error as error:
                        verdicts = [compare.Verdict(False, text=f"tarn: {error}")]
                yield f"{family} {number} {what}", dtype, verdicts
