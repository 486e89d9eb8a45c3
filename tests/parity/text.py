"""Tokenizers beside Hugging Face's tokenizers: the same ids for random Unicode, the same text back, files that both
open, and the same trained merges. Real vocabularies are read from TARN_TEST_DATA; without it tokenizers are trained
here, so that little is left out.

Characters are those of Unicode 3.2: newer ones are letters in one program and nothing yet in the other, by the age of
their tables."""
import json
import os
import random
import tempfile
import unicodedata

import gguf
import tokenizers
from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers, processors, trainers

import tarn

QWEN2 = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+")
LLAMA3 = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| "
    r"?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)
TEXTS = 400

OLD = [
    chr(i) for i in range(0x110000)
    if not 0xD800 <= i < 0xE000 and unicodedata.ucd_3_2_0.category(chr(i)) not in ("Cn", "Co")]
MARKS = [x for x in OLD if unicodedata.combining(x)]
SPACES = list(" \t\n\r\x0b\x0c\x85\xa0\u1680\u180e\u2000\u2003\u200b\u2028\u2029\u202f\u205f\u3000\ufeff")
WORDS = [
    "the", " hello", "World", "'s", "'LL", "don't", "'ſ", "I'M", "123", "4½", "²", "é", "e\u0301", "Å", "한국",
    "\u1112\u1161\u11ab", "日本語", "ﬁ", "🦙", "\U0001F468\u200d\U0001F469", "_x", "--", "...", "<|endoftext|>",
    "<|im_start|>", "<pad>", "<tag>", "\0", "İ", "ß"]


def some_text(rng):
    """Words, spaces and anything else, in all mixtures."""
    kinds = [
        lambda: rng.choice(WORDS), lambda: rng.choice(SPACES) * rng.randrange(1, 4), lambda: rng.choice(OLD),
        lambda: rng.choice(MARKS), lambda: chr(rng.randrange(32, 127)), lambda: rng.choice(OLD) * rng.randrange(1, 80)]
    weights = [rng.random() ** 2 for _ in kinds]
    return "".join(rng.choices(kinds, weights)[0]() for _ in range(rng.randrange(30)))


def opened(path):
    return tarn.Tokenizer(path)


def trained(texts, vocabulary, special=(), pattern=None, least=0):
    return tarn.Tokenizer.train_bpe(texts, vocabulary, special, pattern, least)


def theirs_to_train(vocabulary, special, pattern, least, texts):
    theirs = Tokenizer(models.BPE())
    split = [pre_tokenizers.Split(Regex(pattern), "isolated")] if pattern else []
    theirs.pre_tokenizer = pre_tokenizers.Sequence(
        split + [pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=not pattern)])
    theirs.decoder = decoders.ByteLevel()
    theirs.train_from_iterator(
        texts,
        trainers.BpeTrainer(vocab_size=vocabulary, special_tokens=list(special), min_frequency=least,
                            initial_alphabet=pre_tokenizers.ByteLevel.alphabet(), show_progress=False))
    return theirs


def difference(ours, theirs, rng, count=TEXTS, around=False):
    """What differs for random texts; "" when nothing does."""
    for _ in range(count):
        text = some_text(rng)
        a, b = ours.encode(text, add_special=around), theirs.encode(text, add_special_tokens=around).ids
        if a != b:
            return f"{text!r}: {a} here, {b} there"
        back, other = ours.decode_bytes(a), theirs.decode(b, skip_special_tokens=False)
        if back.decode(errors="replace") != other:
            return f"{text!r}: {a} give {back!r} here, {other!r} there"
        part = b[: rng.randrange(len(b) + 1)]  # may end inside a character
        if ours.decode(part) != theirs.decode(part, skip_special_tokens=False):
            return f"{part} give another text"
        theirs.encode_special_tokens = True
        plain, expected = ours.encode(text, special_as_text=True), theirs.encode(text, add_special_tokens=False).ids
        theirs.encode_special_tokens = False
        if plain != expected:
            return f"{text!r}: {plain} here, {expected} there, special tokens as text"
    return ""


def both_ways(ours, theirs, folder, rng, around=False):
    """Compares, then what each has saved as the other opens it."""
    wrong = difference(ours, theirs, rng, around=around)
    if wrong:
        return wrong
    saved = os.path.join(folder, "theirs.json")
    theirs.save(saved)
    ours.save(folder)
    crossed = Tokenizer.from_file(os.path.join(folder, "tokenizer.json"))
    return (difference(opened(saved), theirs, rng, 50, around) and "their file is read differently"
            or difference(ours, crossed, rng, 50, around) and "our file is read differently" or "")


# ---- real vocabularies
# ----------------------------------------------------------------------------------------------------------------


def data(name):
    path = os.path.join(os.environ.get("TARN_TEST_DATA", ""), name)
    return path if os.environ.get("TARN_TEST_DATA") and os.path.isdir(path) else None


def check_gpt2(folder, rng):
    path = data("gpt2-bpe")
    if not path:
        return None
    theirs = Tokenizer(models.BPE.from_file(os.path.join(path, "encoder.json"), os.path.join(path, "vocab.bpe")))
    theirs.pre_tokenizer, theirs.decoder = pre_tokenizers.ByteLevel(add_prefix_space=False), decoders.ByteLevel()
    theirs.add_special_tokens(["<|endoftext|>"])
    return both_ways(opened(path), theirs, folder, rng)


def check_qwen2(folder, rng):
    path = data("qwen2-bpe")
    if not path:
        return None
    theirs = Tokenizer(models.BPE.from_file(os.path.join(path, "vocab.json"), os.path.join(path, "merges.txt")))
    theirs.normalizer = normalizers.NFC()
    theirs.pre_tokenizer = pre_tokenizers.Sequence([pre_tokenizers.Split(Regex(QWEN2), "isolated"),
                                                    pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)])
    theirs.decoder = decoders.ByteLevel()
    with open(os.path.join(path, "tokenizer_config.json"), encoding="utf-8") as file:
        added = json.load(file)["added_tokens_decoder"]
    theirs.add_special_tokens([
        AddedToken(added[i]["content"], special=True, normalized=False) for i in sorted(added, key=int)])
    return both_ways(opened(path), theirs, folder, rng)


# ---- tokenizers that are made here
# -----------------------------------------------------------------------------------------------------


def corpus(rng, count=200):
    words = ["".join(rng.choices("abcdeé語 \n'1", k=rng.randrange(1, 9))) for _ in range(60)]
    return [" ".join(rng.choices(words, k=rng.randrange(40))) for _ in range(count)]


def check_training(folder, rng):
    """The same merges in the same order, for several patterns and bounds."""
    texts, pattern = corpus(rng), rng.choice([None, QWEN2, LLAMA3])
    special, least = rng.choice([(), ("<|endoftext|>",), ("<|endoftext|>", "<pad>", "<tag>")]), rng.choice([0, 0, 2, 5])
    vocabulary = rng.randrange(257 + len(special), 900)  # with fewer than the bytes and special tokens tarn refuses
    ours, theirs = trained(texts, vocabulary, special, pattern,
                           least), theirs_to_train(vocabulary, special, pattern, least, texts)
    ours.save(folder)
    with open(os.path.join(folder, "tokenizer.json"), encoding="utf-8") as file:
        model = json.load(file)["model"]
    expected = json.loads(theirs.to_str())["model"]
    pairs = [m.split(" ") if isinstance(m, str) else m for m in expected["merges"]]
    if model["merges"] != pairs:
        first = next((i for i, (a, b) in enumerate(zip(model["merges"], pairs)) if a != b),
                     min(len(pairs), len(model["merges"])))
        here, there = model['merges'][first:first + 1], pairs[first:first + 1]
        return f"merge {first} differs: {here} here, {there} there, {vocabulary} tokens"
    return "the vocabularies differ" if model["vocab"] != expected["vocab"] else both_ways(ours, theirs, folder, rng)


def check_settings(folder, rng):
    """Files of the package with every setting that tarn reads."""
    theirs = theirs_to_train(600, (), rng.choice([None, QWEN2, LLAMA3]), 0, corpus(rng))
    if rng.random() < 0.5:
        theirs.normalizer = normalizers.NFC()
    if rng.random() < 0.3:
        theirs.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=True)
    elif rng.random() < 0.5:
        theirs.pre_tokenizer = pre_tokenizers.Sequence([
            pre_tokenizers.Digits(rng.random() < 0.5),
            pre_tokenizers.ByteLevel(add_prefix_space=False)])
    elif rng.random() < 0.3:
        theirs.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    theirs.add_special_tokens([
        "<|endoftext|>",
        AddedToken("<pad>", lstrip=rng.random() < 0.5, rstrip=rng.random() < 0.5, normalized=False)])
    theirs.add_tokens([AddedToken("<tag>", normalized=rng.random() < 0.5, lstrip=rng.random() < 0.3)])
    end = theirs.token_to_id("<|endoftext|>")
    theirs.post_processor = processors.TemplateProcessing(single="<|endoftext|> $A <|endoftext|>",
                                                          special_tokens=[("<|endoftext|>", end)])
    model = json.loads(theirs.to_str())
    model["model"]["ignore_merges"] = rng.random() < 0.3
    theirs = Tokenizer.from_str(json.dumps(model))
    path = os.path.join(folder, "settings.json")
    theirs.save(path)
    return both_ways(opened(path), theirs, folder, rng, around=True)


def check_characters(folder, rng):
    """Characters and bytes, as the package opens what tarn has written."""
    alphabet = "".join(rng.sample([x for x in OLD if x != "\0"], 300))
    for ours in (tarn.Tokenizer.of_characters(alphabet), tarn.Tokenizer.of_bytes()):
        ours.save(folder)
        theirs = Tokenizer.from_file(os.path.join(folder, "tokenizer.json"))
        for _ in range(100):
            text = "".join(rng.choices(alphabet, k=rng.randrange(40)))
            ids = ours.encode(text)
            if ids != theirs.encode(text).ids or ours.decode(ids, "strict") != text or theirs.decode(ids) != text:
                return f"{text!r} gives {ids} here, {theirs.encode(text).ids} there"
    return ""


# ---- pre-tokenizers by their names in GGUF
# ---------------------------------------------------------------------------------------------

CASED = (r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+%s"
         r"|[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*%s"
         r"|\p{N}%s| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+")
ENDINGS = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)?"
DEEPSEEK_LETTERS = (
    "\\s?[A-Za-zµÀ-ÖØ-öø-ƺƼ-ƿǄ-ʓʕ-ʯͰ-ͳͶͷͻ-ͽͿΆΈ-ΊΌΎ-ΡΣ-ϵϷ-ҁҊ-ԯԱ-ՖႠ-ჅᎠ-Ᏽᏸ-ᏽᲐ-ᲺᲽ-Ჿᴀ-ᴫᵫ-ᵷᵹ-ᶚḀ-ἕἘ-Ἕἠ-ὅὈ-Ὅὐ-ὗὙὛ"
    "Ὕ\u1F5F-\u1F7Dᾀ-ᾴᾶ-ᾼ\u1FBEῂ-ῄῆ-ῌῐ-\u1FD3ῖ-\u1FDBῠ-Ῥῲ-ῴῶ-ῼℂℇℊ-ℓℕℙ-ℝℤ\u2126ℨ\u212A-ℭℯ-ℴℹℼ-ℿⅅ-ⅉⅎↃↄⰀ-ⱻⱾ-"
    "ⳤⳫ-ⳮⳲⳳꙀ-ꙭꚀ-ꚛꜢ-ꝯꝱ-ꞇꞋ-ꞎꭰ-ꮿﬀ-ﬆﬓ-ﬗＡ-Ｚａ-ｚ𐐀-𐑏𐒰-𐓓𐓘-𐓻𐲀-𐲲𐳀-𐳲𑢠-𑣟𞤀-𞥃]+")
DEEPSEEK_HAN = r"[一-龥ࠀ-一가-퟿]+"
DEEPSEEK_3 = ("[!\"#$%&'()*+,\\-./:;<=>?@\\[\\\\\\]^_`{|}~][A-Za-z]+|[^\r\n\\p{L}\\p{P}\\p{S}]?[\\p{L}\\p{M}]+"
              "| ?[\\p{P}\\p{S}]+[\r\n]*|\\s*[\r\n]+|\\s+(?!\\S)|\\s+")
BLOOM = r" ?[^(\s|[.,!?…。，、।۔،])]+"  # as in its tokenizer.json: a class within a class


def split(*patterns):
    return [pre_tokenizers.Split(Regex(p), "isolated") for p in patterns]


BYTES, BYTES_GPT2 = (pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=use) for use in (False, True))
ONE_DIGIT = [pre_tokenizers.Digits(individual_digits=True), BYTES_GPT2]
# by name: the steps in the model's tokenizer.json, whether it normalizes to NFC, whether it ignores merges
PRE_TOKENIZERS = {
    "gpt-2": ([BYTES_GPT2], False, False), "phi-2": ([BYTES_GPT2], False, False),
    "mpt": ([BYTES_GPT2], True, False), "olmo": ([BYTES_GPT2], True, False),
    "llama-bpe": (split(LLAMA3) + [BYTES], False, True), "falcon3": (split(LLAMA3) + [BYTES], False, True),
    "dbrx": (split(LLAMA3) + [BYTES], False, False), "chatglm-bpe": (split(LLAMA3) + [BYTES], False, False),
    "qwen2": (split(QWEN2) + [BYTES], True, False), "stablelm2": (split(QWEN2) + [BYTES], False, False),
    "starcoder": (ONE_DIGIT, False, False), "refact": (ONE_DIGIT, False, False), "smollm": (ONE_DIGIT, False, False),
    "command-r": (ONE_DIGIT, True, False), "tekken": (split(CASED % ("", "", "")) + [BYTES], False, True),
    "gpt-4o": (split(CASED % (ENDINGS, ENDINGS, "{1,3}")) + [BYTES], False, False),
    "deepseek-llm": (split("[\r\n]", DEEPSEEK_LETTERS, r"\s?[!-/:-~！-／：-～‘-‟　-。]+", r"\s+$", DEEPSEEK_HAN) +
                     [pre_tokenizers.Digits(individual_digits=False), BYTES], False, False),
    "deepseek-coder": (split("[\r\n]", r"\s?\p{L}+", r"\s?\p{P}+", DEEPSEEK_HAN) +
                       [pre_tokenizers.Digits(individual_digits=True), BYTES], False, False),
    "deepseek-v3": (split(r"\p{N}{1,3}", r"[一-龥぀-ゟ゠-ヿ]+", DEEPSEEK_3) + [BYTES], False, False),
    "bloom": (split(BLOOM) + [BYTES], False, False)}


def write_gguf(theirs, name, path):
    """A vocabulary alone, by the gguf package."""
    model = json.loads(theirs.to_str())["model"]
    tokens = sorted(model["vocab"], key=model["vocab"].get)
    writer = gguf.GGUFWriter(path, "llama")
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre(name)
    writer.add_token_list(tokens)
    writer.add_token_types([gguf.TokenType.NORMAL] * len(tokens))
    writer.add_token_merges([m if isinstance(m, str) else " ".join(m) for m in model["merges"]])
    writer.add_add_bos_token(False)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def check_pre_tokenizers(folder, rng):
    """The same ids from a GGUF file that has the name alone, and the tokenizer with the steps of that name."""
    wrong = []
    for name, (steps, nfc, ignores) in PRE_TOKENIZERS.items():
        theirs = Tokenizer(models.BPE())
        theirs.pre_tokenizer, theirs.decoder = pre_tokenizers.Sequence(steps), decoders.ByteLevel()
        theirs.train_from_iterator(
            corpus(rng) + [some_text(rng) for _ in range(200)],
            trainers.BpeTrainer(vocab_size=700, initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
                                show_progress=False))
        theirs.normalizer = normalizers.NFC() if nfc else None
        model = json.loads(theirs.to_str())
        model["model"]["ignore_merges"] = ignores
        theirs = Tokenizer.from_str(json.dumps(model))
        path = os.path.join(folder, f"{name}.gguf")
        write_gguf(theirs, name, path)
        found = difference(opened(path), theirs, rng, 150)
        wrong += [f"{name}: {found}"] if found else []
    return "; ".join(wrong)


CHECKS = {
    "gpt2": check_gpt2, "qwen2": check_qwen2, "training": check_training, "settings": check_settings,
    "characters": check_characters, "pre-tokenizers": check_pre_tokenizers}
TIMES = {"training": 4, "settings": 8}


def run(seed):
    """Pairs of a name and what is wrong: "" for nothing, None where it cannot run."""
    print(f"tokenizers {tokenizers.__version__}", flush=True)
    many = 10 if os.environ.get("TARN_TEST_LONG") else 1
    for name, check in CHECKS.items():
        for number in range(many * TIMES.get(name, 1)):
            with tempfile.TemporaryDirectory() as folder:
                try:
                    yield f"{name} {number}", check(folder, random.Random(f"{seed}/{name}/{number}"))
                except tarn.Error as error:
                    yield f"{name} {number}", f"tarn: {error}"
