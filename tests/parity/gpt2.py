"""GPT-2 against transformers, on folders that one wrote and the other opens: names and shapes, logits, the loss and
every gradient, and the text that follows greedily. Configurations, weights and tokens are random."""
import os
import random
import tempfile

import torch
import transformers

import compare
import support
import tarn

CONFIGS = 4
DTYPES = ["f32", "f64"]
LOW = ["bf16", "f16"]  # dtypes in which folders are only carried over

transformers.logging.set_verbosity_error()
transformers.logging.disable_progress_bar()


def draw_config(rng):
    heads, layers_ = rng.randint(1, 4), rng.randint(1, 4)
    vocab, size = rng.randint(3, 90), rng.choice(
        [3, 8, 16] if heads > 1 else [8, 16])  # norms of one or two numbers have no gradient
    return transformers.GPT2Config(vocab_size=vocab, n_positions=rng.randint(6, 40), n_embd=heads * size,
                                   n_layer=layers_, n_head=heads, n_inner=rng.choice([None, rng.randint(1, 50)]),
                                   layer_norm_epsilon=rng.choice([1e-5, 1e-3]), resid_pdrop=rng.choice([0.0, 0.1]),
                                   attn_pdrop=rng.choice([0.0, 0.2]), embd_pdrop=rng.choice([0.0, 0.3]),
                                   activation_function=rng.choice(["gelu_new", "gelu_pytorch_tanh"]), bos_token_id=None,
                                   eos_token_id=rng.choice([None, rng.randrange(vocab)]))


def randomized(network):
    """Weights far from those of a beginning, norms too, so that every part counts."""
    with torch.no_grad():
        for values in network.parameters():
            values.add_(torch.randn_like(values) * 0.3)
    return network


def open_in_tarn(folder, dtype):
    return tarn.Model.load(folder, device=support.device(), dtype=dtype, tokenizer=False)


def batch(config, rng):
    """Tokens, and targets some of which do not count."""
    shape = rng.randint(1, 3), rng.randint(2, config.n_positions)
    tokens, targets = (torch.randint(0, config.vocab_size, shape) for _ in range(2))
    targets[torch.rand(shape) < 0.2] = -100
    targets[0, 0] = 0  # at least one counts
    return tokens, targets


def in_torch(network, tokens, targets):
    """Logits, loss and {name: gradient}."""
    network.zero_grad()
    logits = network(tokens).logits
    loss = torch.nn.functional.cross_entropy(logits.flatten(0, 1), targets.flatten())
    loss.backward()
    return logits.detach(), loss.detach(), {name: p.grad.clone() for name, p in network.named_parameters()}


def in_tarn(model, tokens, targets):
    ids, wanted = support.tensor(tokens), support.tensor(targets)
    logits, loss = model(ids), model.loss(ids, wanted)
    loss.backward()
    return (support.read(logits), support.read(loss),
            {name: support.gradient(p) for name, p in model.named_parameters()})


def judge(ours, theirs, dtype):
    """Sums pass through many layers: the bars of long sums."""
    verdicts = [compare.summed(ours[0], theirs[0], dtype, terms=compare.LONG + 1, label="logits"),
                compare.summed(ours[1], theirs[1], dtype, terms=compare.LONG + 1, label="loss")]
    return verdicts + compare.gradients(ours[2], theirs[2], dtype)


def generate(model, prompt, most, ignore_eos=False):
    return model.generate_ids(prompt, max_tokens=most, ignore_eos=ignore_eos)


def check_text(network, model, config, rng):
    """Greedy texts of both, in f64; transformers' ends with the token that ends it."""
    prompt = [rng.randrange(config.vocab_size) for _ in range(rng.randint(1, config.n_positions - 1))]
    most = config.n_positions - len(prompt)
    with torch.no_grad():
        text = network.generate(torch.tensor([prompt]), attention_mask=torch.ones(1, len(prompt), dtype=torch.int64),
                                do_sample=False, max_new_tokens=most, pad_token_id=0)[0].tolist()[len(prompt):]
    if config.eos_token_id is not None and text[-1] == config.eos_token_id:
        text.pop()
    found = generate(model, prompt, most)
    return compare.Verdict(found == text, text=f"after {prompt} tarn writes {found}, transformers {text}")


def compare_models(network, model, config, dtype, rng):
    """The same weights in both: in f64 transformers' are the truth."""
    tokens, targets = batch(config, rng)
    theirs = in_torch(network, tokens, targets)
    wide = network.to(torch.float64)
    truth = in_torch(wide, tokens, targets)
    verdicts = judge(in_tarn(model, tokens, targets), truth, dtype)
    if dtype != "f64":  # sums of f32 through many layers: torch's own distance from the truth is what can be asked for
        own = max(v.error for v in judge(theirs, truth, dtype))
        verdicts = [compare.relax(v, own) for v in verdicts]
    return verdicts + ([check_text(wide, model, config, rng)] if dtype == "f64" else [])


def check_theirs(config, dtype, rng, folder):
    """transformers saves, with its head or as the body alone; tarn opens."""
    network = randomized(transformers.GPT2LMHeadModel(config).to(support.TORCH[dtype])).eval()
    (network if rng.random() < 0.7 else network.transformer).save_pretrained(folder)
    return compare_models(network, open_in_tarn(folder, dtype), config, dtype, rng)


def fields_of(config, dtype):
    none = lambda p: p or -1.0
    return dict(vocab_size=config.vocab_size, context=config.n_positions, layers=config.n_layer, heads=config.n_head,
                hidden_size=config.n_embd, ffn_size=config.n_inner or 0, dropout=config.resid_pdrop,
                attention_dropout=none(config.attn_pdrop), embedding_dropout=none(config.embd_pdrop),
                epsilon=config.layer_norm_epsilon, dtype=dtype, eos=config.eos_token_id)


def check_config(config, found):
    """What transformers reads in tarn's config.json."""
    names = [
        "vocab_size", "n_positions", "n_embd", "n_layer", "n_head", "layer_norm_epsilon", "resid_pdrop", "attn_pdrop",
        "embd_pdrop", "eos_token_id"]
    wrong = [
        f"{n} {getattr(found, n)} instead of {getattr(config, n)}" for n in names
        if getattr(found, n) != getattr(config, n)]
    if found.n_inner != (config.n_inner or 4 * config.n_embd):
        wrong.append(f"n_inner {found.n_inner}")
    return compare.Verdict(not wrong, text=f"config.json: {wrong}")


def check_ours(config, dtype, rng, folder):
    """tarn makes and saves; transformers opens, and misses nothing."""
    model = tarn.Model.create("gpt2", seed=rng.randrange(1 << 60), device=support.device(), **fields_of(config, dtype))
    for parameter in model.state_dict().values():
        values = support.read(parameter)
        support.write(parameter, values + torch.randn_like(values) * 0.3)
    model.eval().write(folder)
    network, info = transformers.AutoModelForCausalLM.from_pretrained(folder, output_loading_info=True)
    lost = {key: sorted(map(str, info[key])) for key in ("missing_keys", "unexpected_keys", "mismatched_keys")
            if info[key]}
    verdicts = [
        compare.Verdict(not lost, text=f"transformers says {lost}"),
        check_config(config, network.config),
        compare.Verdict(network.dtype == support.TORCH[dtype], text=f"transformers opens it in {network.dtype}")]
    return verdicts + compare_models(network.eval(), model, config, dtype, rng)


def check_bits(config, dtype, rng, folder):
    """A folder in a half dtype goes through tarn and comes back bitwise identical."""
    network = randomized(transformers.GPT2LMHeadModel(config).to(support.TORCH[dtype]))
    network.save_pretrained(os.path.join(folder, "there"))
    open_in_tarn(os.path.join(folder, "there"), dtype).write(os.path.join(folder, "back"))
    back = transformers.AutoModelForCausalLM.from_pretrained(os.path.join(folder, "back")).state_dict()
    state = network.state_dict()
    changed = [
        name for name in set(state) | set(back) if name not in state or name not in back or
        not torch.equal(state[name], back[name]) or state[name].dtype != back[name].dtype]
    return [compare.Verdict(not changed, text=f"changed on the way: {changed}")]


def run(seed):
    """Yields (name, dtype, verdicts)."""
    for number in range(CONFIGS):
        for title, check, dtypes in (("theirs", check_theirs, DTYPES), ("ours", check_ours, DTYPES), ("bits",
                                                                                                      check_bits, LOW)):
            for dtype in dtypes:
                rng = random.Random(f"{seed}/gpt2/{number}/{title}/{dtype}")
                torch.manual_seed(rng.randrange(1 << 31))
                with tempfile.TemporaryDirectory() as folder:
                    try:
                        verdicts = check(draw_config(rng), dtype, rng, folder)
                    except tarn.Error as error:
                        verdicts = [compare.Verdict(False, text=f"tarn: {error}")]
                yield f"{title} {number} {dtype}", dtype, verdicts
