"""Samplers against transformers' logits processors in the order in which generate() applies them: what may be chosen
and how often, greedy texts with a repetition penalty, several texts of different lengths at once, and logarithms of
probabilities. Logits, settings and models are random."""
import ctypes as c
import random
import tempfile

import torch
import transformers

import compare
import gpt2
import support
import tarn
from tarn import _c

DRAWS = 4000
SETTINGS = 30
TEXTS = 6


def processors(settings):
    """As transformers' generate() puts them in order."""
    config = transformers.GenerationConfig(do_sample=True, temperature=settings["temperature"], top_k=settings["top_k"],
                                           top_p=settings["top_p"] or 1.0, min_p=settings["min_p"] or None,
                                           repetition_penalty=settings["repeat_penalty"] or 1.0, bos_token_id=None,
                                           eos_token_id=None, pad_token_id=None)
    network = transformers.GPT2LMHeadModel(
        transformers.GPT2Config(vocab_size=4, n_positions=4, n_embd=4, n_layer=1, n_head=1))
    return network._get_logits_processor(config, input_ids_seq_length=1, device="cpu")


def draw_settings(rng, vocab):
    return dict(temperature=rng.choice([0.3, 0.7, 1.0, 1.7]), top_k=rng.choice([0, rng.randint(1, vocab)]),
                top_p=rng.choice([0.0, rng.uniform(0.05, 0.99)]), min_p=rng.choice([0.0, rng.uniform(0.01, 0.5)]),
                repeat_penalty=rng.choice([0.0, rng.uniform(0.5, 2.0)]), seed=rng.randrange(1 << 60))


def draws(settings, logits, seen):
    """How often each token is chosen, in DRAWS draws."""
    sampler = support.call("sampler_new_sized", *support.options("sampler", **settings))
    try:
        support.call("sampler_accept", sampler, support.tensor(seen.expand(DRAWS, -1)))
        tokens = support.read(support.made("sampler_sample", sampler, support.tensor(logits.expand(DRAWS, -1))))
    finally:
        support.call("sampler_free", sampler)
    return torch.bincount(tokens.flatten(), minlength=logits.shape[1])


def deviations(found, wanted):
    """How far shares of DRAWS are from those that are wanted, one draw aside, in standard deviations: the root of twice
    the logarithm of the binomial likelihood ratio. Three draws of a token that is expected 0.1 times are not beyond
    five, as they would be by the normal approximation."""
    near = wanted + torch.sign(found - wanted) * ((found - wanted).abs() - 1 / DRAWS).clamp(min=0)
    ratio = sum(torch.xlogy(a, a / b.clamp(min=1e-300)) for a, b in ((near, wanted), (1 - near, 1 - wanted)))
    return torch.sqrt(2 * DRAWS * ratio.clamp(min=0))


def check_choice(rng):
    vocab = rng.randint(2, 60)
    settings = draw_settings(rng, vocab)
    logits = torch.randn(1, vocab, dtype=torch.float64) * rng.choice([0.5, 2.0])
    seen = torch.randint(0, vocab, (1, rng.randint(1, 12)))
    scores = processors(settings)(seen, logits.clone())
    wanted, found = torch.softmax(scores, 1)[0], draws(settings, logits, seen) / DRAWS
    impossible = found[wanted == 0].sum().item()
    most = deviations(found, wanted).max().item()
    return [
        compare.Verdict(impossible == 0,
                        text=f"{settings}: tokens that transformers leaves out come with {impossible}"),
        compare.Verdict(most <= 5, text=f"{settings}: a share is {most} deviations from what is wanted")]


def check_logprobs(rng):
    vocab, rows = rng.randint(3, 50), rng.randint(1, 4)
    top = rng.randint(1, vocab)
    logits, tokens = torch.randn(rows, vocab, dtype=torch.float64), torch.randint(0, vocab, (rows, 1))
    theirs = torch.log_softmax(logits, 1)
    values, index = theirs.topk(top)
    ours = support.read(support.made("token_logprobs", support.tensor(logits), support.tensor(tokens), top))
    return [
        compare.summed(ours, torch.cat([theirs.gather(1, tokens), index.double(), values], 1), "f64", terms=vocab,
                       label="logprobs")]


def write(model, prompt, **how):
    """By the function that writes all of a text at once; other comparisons use the package's streams."""
    made = (c.c_int32 * how["max_tokens"])()
    count = support.call("generate_sized", model, support.array(c.c_int32, prompt), len(prompt), made,
                         *support.options("generate", **how))
    return list(made[:count])


def write_together(model, prompts, **how):
    """All at once, by one writer."""
    output = _c.tarn_output()
    writer = support.call("generator_new_sized", model, None, *support.options("generator", sequences=len(prompts)))
    texts = [[] for _ in prompts]
    try:
        for i, prompt in enumerate(prompts):
            support.call("generator_prompt_sized", writer, i, support.array(c.c_int32, prompt), len(prompt),
                         *support.options("generate", **how))
        while support.call("generator_next_sized", writer, c.byref(output), c.sizeof(output)):
            if output.token >= 0:
                texts[output.sequence].append(output.token)
    finally:
        support.call("generator_free", writer)
    return texts


def check_texts(rng, folder):
    """Greedy texts with a repetition penalty, in f64; transformers' end with the token that ends them."""
    config = gpt2.draw_config(rng)
    network = gpt2.randomized(transformers.GPT2LMHeadModel(config).double()).eval()
    network.save_pretrained(folder)
    most = rng.randint(1, config.n_positions - 1)
    prompts = [[rng.randrange(config.vocab_size) for _ in range(rng.randint(1, config.n_positions - most))]
               for _ in range(3)]
    penalty = rng.choice([1.0, rng.uniform(0.6, 1.8)])
    wanted = []
    for prompt in prompts:
        with torch.no_grad():
            text = network.generate(torch.tensor([prompt]),
                                    attention_mask=torch.ones(1, len(prompt),
                                                              dtype=torch.int64), do_sample=False, max_new_tokens=most,
                                    repetition_penalty=penalty, pad_token_id=0)[0].tolist()[len(prompt):]
        wanted.append(text[:-1] if config.eos_token_id is not None and text[-1] == config.eos_token_id else text)
    model = gpt2.open_in_tarn(folder, "f64")
    alone = [write(model, prompt, max_tokens=most, repeat_penalty=penalty) for prompt in prompts]
    together = write_together(model, prompts, max_tokens=most, repeat_penalty=penalty)
    return [
        compare.Verdict(alone == wanted, text=f"after {prompts} tarn writes {alone}, transformers {wanted}"),
        compare.Verdict(together == wanted,
                        text=f"after {prompts} together tarn writes {together}, transformers {wanted}")]


def run(seed):
    """Yields (name, dtype, verdicts)."""
    for number in range(SETTINGS + TEXTS):
        rng = random.Random(f"{seed}/generate/{number}")
        torch.manual_seed(rng.randrange(1 << 31))
        try:
            with tempfile.TemporaryDirectory() as folder:
                verdicts = check_choice(rng) + check_logprobs(rng) if number < SETTINGS else check_texts(rng, folder)
        except tarn.Error as error:
            verdicts = [compare.Verdict(False, text=f"tarn: {error}")]
        yield f"{'choice' if number < SETTINGS else 'texts'} {number}", "f64", verdicts
