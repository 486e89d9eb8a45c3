"""llama.cpp, as the package xllamacpp brings it, runs the GGUF files that tarn writes: the same greedy text,
logits as near as its rounding lets them be, the same ids of texts, the same chat template.

The truth is what the numbers in a file give: tarn in f32, which other comparisons hold against transformers. llama.cpp
rounds the activations to what it multiplies weights with: 16 bits beside 16 bits, 8 bits beside blocks. Keys and values
are f32 here."""
import json
import os
import random
import shutil
import subprocess
import tempfile

import numpy as np
import torch
import transformers

import compare
import gguf_files
import gpt2
import llama
import llama_cpp_api
import pieces
import support
import tarn
import text
from gpt2 import generate, open_in_tarn

# How far logits may be from the truth, by their root mean square. Half a step of the type that activations are rounded
# to is 2^-9 in bf16, 2^-12 in f16, 1/254 of a block's largest in 8 bits; a few layers add up. Matrices that are read
# wrongly are further off by factors of ten.
FAR = {"f32": 1e-5, "f16": 5e-3, "bf16": 3e-2, **{kind: 5e-2 for kind in support.QUANTIZED}}
GELU = 5e-3  # of a GPT-2 in f32: llama.cpp looks its GELU up in a table of f16
TOKENS = 40  # of a greedy text
COMMAND = os.path.join(os.path.dirname(os.environ["TARN_LIBRARY"]), "tarn")
TEXTS = [
    "", " ", "   ", "\n", "\t", "Hello world", " Hello  world ", "déjà vu, naïve café", "日本語 한국어 العربية",
    "🦙🚀 \U0001F468\u200d\U0001F469", "it's WE'LL don't I'M",
    "for (int i = 0; i < 1024; i++) {\n    x[i] += 3.14159e-7f;\n}\n", "1234567890 12 345", "a_b::c->d != e && \"f\"",
    "line\r\nline\n\n\n  end", "<s>begin</s> end", "<s><s>", "x</s>", "<|im_start|>user\nHi<|im_end|>\n",
    "a<|endoftext|>b <|endoftext|>"]


# ---- logits and texts
# ------------------------------------------------------------------------------------------------------------------


def logits_in_tarn(path, ids):
    with tarn.no_grad():
        return support.read(open_in_tarn(path, "f32")(support.tensor(torch.tensor([ids]))))[0].to(torch.float64)


def text_in_tarn(path, prompt, count):
    return generate(open_in_tarn(path, "f32"), prompt, count, ignore_eos=True)


def unpacked(path):
    """A file with the same numbers in f32."""
    wide = path.removesuffix(".gguf") + "-f32.gguf"
    gguf_files.convert(path, wide, "f32")
    return wide


def distance(logits, truth):
    return ((logits - truth).square().mean().sqrt() / truth.square().mean().sqrt()).item()


def judge_logits(path, theirs, kind, ids, least=0.0):
    """llama.cpp's logits of a text, beside the truth and tarn's own."""
    truth = logits_in_tarn(unpacked(path), ids)
    found, ours = theirs.logits(ids), logits_in_tarn(path, ids)
    far, own = distance(found, truth), distance(ours, truth)
    agree = (found.argmax(-1) == ours.argmax(-1)).double().mean().item()
    print(
        f"  {os.path.basename(path):<20} logits {far:.1e} from the truth in llama.cpp, {own:.1e} in tarn; the argmax "
        f"is the same at {agree:.1%} of {len(ids)}",
        flush=True)
    bar = max(FAR[kind], least)
    return compare.Verdict(far <= bar, far, bar, "rms",
                           f"{kind}: llama.cpp's logits are {far:.3g} from the truth, {bar:.3g} allowed")


def judge_text(path, theirs, wanted, prompt, near=0.0):
    """The same tokens, up to one that is as likely as the other within `near`, beside the root mean square of the
    logits."""
    found = theirs.write(prompt, len(wanted))
    same = next((i for i, (a, b) in enumerate(zip(found, wanted)) if a != b), len(wanted))
    good = found == wanted
    if not good and near:
        logits = logits_in_tarn(path, prompt + wanted[:same])[-1]
        good = (logits[wanted[same]] - logits[found[same]]).abs() <= near * logits.square().mean().sqrt()
    return compare.Verdict(
        bool(good),
        text=f"after {prompt} llama.cpp writes {found}, tarn {wanted}: the first {same} tokens are the same")


# ---- stories260K -----------------------------------------------------------------------------------------------------
# ------------------


def write_stories(data, folder):
    """The trained model with its tokenizer, as a folder of tarn's."""
    fields, state = llama.read_stories(os.path.join(data, "stories260K.bin"))
    model = tarn.Model.create("llama", **fields, bos=1, eos=2, device=support.device())
    for name, parameter in model.state_dict().items():
        support.write(parameter, state[name])
    model.write(folder)
    shutil.copy(os.path.join(data, "tok512.model"), os.path.join(folder, "tokenizer.model"))


def check_stories(kind, data, folder):
    """Logits along the golden story; in f32 its 200 tokens, as ids and as text."""
    with open(os.path.join(data, "golden_greedy200.json"), encoding="utf-8") as file:
        ids = json.load(file)["ids"]
    source, path = os.path.join(folder, "stories"), os.path.join(folder, f"stories-{kind}.gguf")
    write_stories(data, source)
    gguf_files.convert(source, path, kind)
    with llama_cpp_api.Model(path) as theirs:
        verdicts = [judge_logits(path, theirs, kind, ids[:-1])]
        if kind == "f32":
            verdicts.append(judge_text(path, theirs, ids[1:], ids[:1]))
            found, wanted = theirs.decode(ids[1:]), text.opened(path).decode_bytes(ids[1:])
            verdicts.append(
                compare.Verdict(found.strip() == wanted.strip(),
                                text=f"the story is {found!r} in llama.cpp, {wanted!r} in tarn"))
    return verdicts


# ---- families --------------------------------------------------------------------------------------------------------
# ------------------


FAMILIES = ["gpt2", *llama.FAMILIES]


def draw_config(family, rng):
    """As llama.cpp has them: Qwen2's heads fill the width, and neither Qwen has llama3's scaling. A GPT-2 has room for
    a text."""
    if family == "gpt2":
        config = gpt2.draw_config(rng)
        config.n_positions = rng.randint(llama.TOKENS + 1, 64)
        return config
    config = llama.draw_config(family, rng)
    while family.startswith("qwen") and config.rope_parameters["rope_type"] == "llama3":
        config.rope_parameters = llama.draw_rope(rng)
    if family == "qwen2":
        config.hidden_size = config.num_attention_heads * config.head_dim
    return config


def make_network(config):
    return gpt2.randomized(transformers.GPT2LMHeadModel(config)) if config.model_type == "gpt2" else llama.make_network(
        config, "f32")


def check_family(family, dtype, rng, folder):
    """A random model of transformers: the same logits, and the same greedy text."""
    network = make_network(draw_config(family, rng)).to(support.TORCH[dtype])
    source, path = os.path.join(folder, "source"), os.path.join(folder, f"{family}-{dtype}.gguf")
    network.save_pretrained(source)
    gguf_files.convert(source, path)
    vocab, most = network.config.vocab_size, network.config.max_position_embeddings
    ids, near = [rng.randrange(vocab) for _ in range(most)], GELU if family == "gpt2" else 0.0
    with llama_cpp_api.Model(path) as theirs:
        verdicts = [judge_logits(path, theirs, dtype, ids, near)]
        if dtype == "f32":
            prompt = ids[: rng.randint(1, most - llama.TOKENS)]
            verdicts.append(judge_text(path, theirs, text_in_tarn(path, prompt, llama.TOKENS), prompt, near))
    return verdicts


def wide_config(is_gpt2, rng):
    """Rows of whole blocks, as large models have them."""
    if is_gpt2:
        return transformers.GPT2Config(vocab_size=300, n_embd=256, n_inner=512, n_layer=3, n_head=4, n_positions=64,
                                       bos_token_id=None, eos_token_id=None)
    return llama.FAMILIES[rng.choice(list(llama.FAMILIES))](vocab_size=300, hidden_size=256, intermediate_size=512,
                                                            num_hidden_layers=3, num_attention_heads=4,
                                                            num_key_value_heads=2, head_dim=64,
                                                            max_position_embeddings=64, tie_word_embeddings=False)


def check_blocks(kind, is_gpt2, rng, folder):
    """Every matrix is of the type, but for the head beside q4_k."""
    config = wide_config(is_gpt2, rng)
    source, path = os.path.join(folder, "source"), os.path.join(folder, f"blocks-{kind}.gguf")
    network = transformers.AutoModelForCausalLM.from_config(config)
    network.save_pretrained(source)
    gguf_files.convert(source, path, kind)
    types = {t.tensor_type.name.lower() for t in gguf_files.read_tensors(path).values()} - {"f32"}
    with llama_cpp_api.Model(path) as theirs:
        return [
            judge_logits(path, theirs, kind, [rng.randrange(300) for _ in range(64)]),
            compare.Verdict(types == ({"q4_k", "q6_k"} if kind == "q4_k" else {kind}),
                            text=f"a file of {kind} has {types}")]


# ---- errors of quantized numbers -------------------------------------------------------------------------------------
# ------------------


def quantized_by_ggml(kind, values, importance=None):
    size, packed = gguf_files.gguf.GGML_QUANT_SIZES[gguf_files.BLOCKS[kind]]
    return llama_cpp_api.quantized(gguf_files.BLOCKS[kind], values, values.shape[1] // size * packed, importance)


def draw_numbers(generator):
    """{name: rows of 1024}: normal, uniform, heavy-tailed, with outliers, small, positive."""
    shape = 64, 1024
    normal = generator.standard_normal(shape)
    numbers = {
        "normal": 0.02 * normal, "uniform": generator.uniform(-1, 1, shape), "heavy": generator.standard_t(3, shape),
        "outlier": np.where(generator.random(shape) < 0.01, 20 * normal,
                            normal), "small": 1e-4 * normal, "positive": np.abs(normal) + 3}
    return {name: values.astype(np.float32) for name, values in numbers.items()}


def block_errors(weight, found, values):
    """Of each 256 elements, squared."""
    return (weight * np.square(found - values)).reshape(-1, 256).sum(1)


def check_errors(kind, rng, folder):
    """No type has a larger error than llama.cpp's, plain, or weighted with an importance. Nor is the error weighted by
    magnitude larger in most blocks; of all together one element of a heavy tail decides."""
    generator, number = np.random.default_rng(rng.randrange(2**31)), gguf_files.BLOCKS[kind]
    numbers, verdicts = draw_numbers(generator), []
    importance = {name: np.square(generator.exponential(1, 1024)).astype(np.float32) for name in numbers}
    file, _ = gguf_files.write_importance(folder, importance, 1)
    for with_importance in (False, True) if kind != "q8_0" else (False, ):
        packed = gguf_files.packed(folder, numbers, kind, file if with_importance else None)
        for name, values in numbers.items():
            theirs = quantized_by_ggml(kind, values, importance[name] if with_importance else None)
            found, x = (gguf_files.quants.dequantize(data, number).astype(np.float64)
                        for data in (packed[name].data, theirs)), values.astype(np.float64)
            found, weight = list(found), importance[name].astype(np.float64) if with_importance else np.ones_like(x)
            error = [np.sqrt(block_errors(weight, y, x).sum()) for y in found]
            title = "weighted by importance" if with_importance else "plain"
            verdicts.append(compare.Verdict(error[0] <= error[1] * (1 + 1e-6),
                                            text=f"{kind} of {name} numbers: {title} error {error[0]:.5g}, "
                                            f"llama.cpp's {error[1]:.5g}"))
            if not with_importance:
                ratio = np.exp(np.mean(np.log([block_errors(np.abs(x), y, x) + 1e-30 for y in found]), axis=1))
                verdicts.append(compare.Verdict(ratio[0] <= ratio[1] * (1 + 1e-6),
                                                text=f"{kind} of {name} numbers: error weighted by magnitude "
                                                f"{ratio[0]:.5g} in the mean of blocks, llama.cpp's {ratio[1]:.5g}"))
    return verdicts


# ---- tokenizers and chat templates
# -----------------------------------------------------------------------------------------------------

TEMPLATE = ("{% for m in messages %}<|im_start|>{{ m['role'] }}\né{{ m['content'] }}<|im_end|>\n{% endfor %}"
            "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}")


def small_model(folder, vocab, **fields):
    """A model of one narrow layer, for a tokenizer of so many tokens."""
    config = transformers.LlamaConfig(vocab_size=vocab, hidden_size=8, intermediate_size=8, num_hidden_layers=1,
                                      num_attention_heads=2, tie_word_embeddings=True, **fields)
    transformers.LlamaForCausalLM(config).save_pretrained(folder)


def save_made(tokenizer, folder):
    small_model(folder,
                tokenizer.get_vocab_size() + 7, bos_token_id=tokenizer.token_to_id("<s>"),
                eos_token_id=tokenizer.token_to_id("</s>"))
    tokenizer.save(os.path.join(folder, "tokenizer.json"))
    with open(os.path.join(folder, "tokenizer_config.json"), "w", encoding="utf-8") as file:
        json.dump({"bos_token": "<s>", "eos_token": "</s>", "chat_template": TEMPLATE}, file)


def judge_tokenizer(folder, texts, end):
    """The ids that both give for each text, the template, and the token that ends a text."""
    path = folder + ".gguf"
    gguf_files.convert(folder, path)
    ours, wrong = text.opened(path), []
    with llama_cpp_api.Model(path) as theirs:
        for sample in texts:
            found, wanted = theirs.encode(sample), ours.encode(sample)
            if found != wanted:
                wrong.append(f"{sample!r} is {found} in llama.cpp, {wanted} in tarn")
        template, last = theirs.metadata("tokenizer.chat_template"), theirs.eos()
    expected = transformers_template(folder)
    return [compare.Verdict(not wrong, text=f"{len(wrong)} of {len(texts)} texts: {'; '.join(wrong[:3])}"),
            compare.Verdict(template == expected, text=f"the chat template is {template!r} instead of {expected!r}"),
            compare.Verdict(last == end, text=f"token {last} ends a text, not {end}")]


def transformers_template(folder):
    path = os.path.join(folder, "tokenizer_config.json")
    if not os.path.exists(path):
        return None
    with open(path, encoding="utf-8") as file:
        return json.load(file).get("chat_template")


def golden_texts(data):
    with open(os.path.join(data, "golden.inp"), encoding="utf-8", newline="") as file:
        return file.read().split("\n__ggml_vocab_test__\n")


ENDS = {"gpt2-bpe": 50256, "qwen2-bpe": 151645, "llama-spm": 2}  # GPT-2's config.json alone says it


def save_real(name, folder):
    """The vocabulary of a model that people use; None where it is not there."""
    data = text.data(name)
    if not data:
        return None
    if name == "llama-spm":
        small_model(folder, 32000, bos_token_id=1, eos_token_id=2)
        pieces.llama(folder)
        os.rename(os.path.join(folder, "llama.model"), os.path.join(folder, "tokenizer.model"))
    else:
        ours = text.opened(data)
        small_model(folder, len(ours), bos_token_id=ENDS[name], eos_token_id=ENDS[name])
        ours.save(folder)
    return data


def check_real(name, folder):
    """llama.cpp takes any token that is called </s> for one that ends texts; in Qwen2's vocabulary it is a piece like
    others."""
    data = save_real(name, folder)
    return None if not data else judge_tokenizer(
        folder,
        golden_texts(data) + [t for t in TEXTS if name != "qwen2-bpe" or "</s>" not in t], ENDS[name])


MADE = {
    "llama3": lambda rng: gguf_files.bytes_tokenizer(gguf_files.LLAMA3, rng),
    "qwen2": lambda rng: gguf_files.bytes_tokenizer(gguf_files.QWEN2, rng),
    "pieces": lambda rng: gguf_files.spm_tokenizer(rng)}


def check_made(name, rng, folder):
    tokenizer = MADE[name](rng)
    save_made(tokenizer, folder)
    texts = TEXTS + [gguf_files.draw_text(rng, rng.randrange(40)) for _ in range(20)]
    if name == "qwen2":  # whose tokenizer puts letters and accents together (NFC), which llama.cpp leaves to others
        texts = [t.replace("e\u0301", "\u00e9") for t in texts]
    return judge_tokenizer(folder, texts, tokenizer.token_to_id("</s>"))


# ---- fine-tuned ------------------------------------------------------------------------------------------------------
# ------------------


def command(*arguments):
    done = subprocess.run([COMMAND, *arguments], capture_output=True, check=False)
    if done.returncode:
        raise RuntimeError(f"tarn {' '.join(arguments)}: {done.stderr.decode()}")
    return done.stdout


def write_chats(path):
    with open(path, "w", encoding="utf-8") as file:
        for i in range(60):
            user, answer = {"role": "user", "content": f"Tell me of {i} cats."
                           }, {"role": "assistant", "content": f"{i} cats sat on a mat."}
            file.write(json.dumps({"messages": [user, answer]}) + "\n")


def tuned(base, folder):
    """The file of a base, a folder or a file, with adapters trained on conversations merged into it."""
    chats, name = os.path.join(folder, "chats.jsonl"), os.path.basename(base).removesuffix(".gguf")
    run = os.path.join(folder, "run-" + name)
    write_chats(chats)
    command("train", "--model", base, "--data", chats, "--template", "mistral", "--lora", "4", "--lr", "0.01",
            "--context", "64", "--batch-size", "8", "--steps", "40", "--eval-every", "20", "--merge", "gguf", "--out",
            run, "--device", "cpu", "--quiet")
    return os.path.join(run, "merged.gguf")


def write_gpt2(data, folder):
    """A small GPT-2 with the vocabulary of all of them, not trained."""
    ours = text.opened(data)
    config = transformers.GPT2Config(vocab_size=len(ours), n_embd=64, n_layer=2, n_head=2, n_positions=128,
                                     bos_token_id=ENDS["gpt2-bpe"], eos_token_id=ENDS["gpt2-bpe"])
    transformers.GPT2LMHeadModel(config).save_pretrained(folder)
    ours.save(folder)
    with open(os.path.join(folder, "tokenizer_config.json"), "w", encoding="utf-8") as file:
        json.dump({"bos_token": "<|endoftext|>", "eos_token": "<|endoftext|>"}, file)


def check_tuned(write, data, folder, near=0.0):
    """From f32 llama.cpp writes what `tarn generate` does, and has the template; from blocks, beside which what was
    trained is bf16, its logits are as near as theirs may be."""
    base, small, prompt = os.path.join(folder, "base"), os.path.join(folder, "q8_0.gguf"), "Once upon a time"
    write(data, base)
    gguf_files.convert(base, small, "q8_0")
    path, mixed = tuned(base, folder), tuned(small, folder)
    ids, chat = text.opened(path).encode(prompt, add_special=True), tarn_template(path)
    wanted = command("generate", path, prompt, "--temperature", "0", "--tokens", str(TOKENS), "--ignore-eos", "--dtype",
                     "f32", "--device", "cpu").decode()
    with llama_cpp_api.Model(path) as theirs:
        same_ids = compare.Verdict(
            theirs.encode(prompt, add_special=True) == ids,
            text=f"the prompt's ids are not {ids}")
        made = theirs.write(ids, TOKENS)
        found = theirs.decode(made).decode(errors="replace")
        same = found.strip() == wanted.strip() or near > 0 and judge_text(path, theirs, text_in_tarn(path, ids, TOKENS),
                                                                          ids, near).good
        verdicts = [
            same_ids,
            compare.Verdict(same, text=f"llama.cpp writes {found!r}, tarn {wanted!r}"),
            compare.Verdict(
                bool(chat) and theirs.metadata("tokenizer.chat_template") == chat,
                text="the chat template is another")]
    with llama_cpp_api.Model(mixed) as theirs:
        return verdicts + [judge_logits(mixed, theirs, "q8_0", ids + made)]


def tarn_template(path):
    field = gguf_files.gguf.GGUFReader(path).fields.get("tokenizer.chat_template")
    return field.contents() if field else None


# ---- all of them -----------------------------------------------------------------------------------------------------
# ------------------


def checks(seed):
    """Yields (name, dtype, a function of the verdicts in a folder); one that cannot run gives None."""
    stories = text.data("stories260K")
    draw = lambda name: random.Random(f"{seed}/llama_cpp/{name}")
    for kind in FAR:
        yield f"stories260K {kind}", kind, lambda place, kind=kind: check_stories(kind, stories, place
                                                                                 ) if stories else None
    for family in FAMILIES:
        for number, dtype in enumerate(["f32", "f32", "bf16", "f16"]):
            name = f"{family} {number} {dtype}"
            yield name, dtype, lambda place, family=family, dtype=dtype, name=name: check_family(
                family, dtype, draw(name), place)
    for kind in gguf_files.BLOCKS:
        for name in (f"blocks {kind}", f"gpt2 blocks {kind}"):
            yield name, kind, lambda place, kind=kind, name=name: check_blocks(kind, name.startswith("gpt2"), draw(
                name), place)
    for kind in gguf_files.BLOCKS:
        yield f"errors {kind}", kind, lambda place, kind=kind: check_errors(kind, draw(f"errors {kind}"), place)
    for name in MADE:
        yield f"tokenizer {name}", "", lambda place, name=name: check_made(name, draw(f"tokenizer {name}"),
                                                                           os.path.join(place, name))
    for name in ENDS:
        yield f"tokenizer {name}", "", lambda place, name=name: check_real(name, os.path.join(place, name))
    yield "fine-tuned", "", lambda place: check_tuned(write_stories, stories, place) if stories else None
    yield "fine-tuned gpt2", "", lambda place: check_tuned(write_gpt2, text.data("gpt2-bpe"), place, GELU) if text.data(
        "gpt2-bpe") else None


def verdicts_of(seed, some):
    """Yields (name, dtype, verdicts). What llama.cpp refuses is wrong, too."""
    print(f"xllamacpp {llama_cpp_api.VERSION}", flush=True)
    for name, dtype, check in some:
        torch.manual_seed(random.Random(f"{seed}/llama_cpp/{name}").randrange(1 << 31))
        with tempfile.TemporaryDirectory() as folder:
            try:
                verdicts = check(folder)
            except (tarn.Error, ValueError, RuntimeError) as error:
                verdicts = [
                    compare.Verdict(False, text=f"{type(error).__name__}: {error}; {llama_cpp_api.complaints()}")]
        yield name, dtype, verdicts


def run(seed):
    return verdicts_of(seed, checks(seed))
